"""Stored results of trainings: what is invalid is named by the key that the file has."""

from __future__ import annotations

from typing import Any

import pytest

from training_summaries import results_of, summary
from trainrig.errors import DataError


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step_time_s": "x"}, "step_time_s is 'x', not a number"),
        ({"energy_j": -1.0}, "energy_j is -1.0, not 0 or more"),
        ({"layout_found": {"ranks": "2"}}, "ranks in [layout_found] is '2', not a whole number"),
        ({"memory_by_rank": [{"rank": "a"}]}, "rank in [memory_by_rank 1] is 'a', not a whole"),
        ({"losses": [1.0]}, "the whole: 1 losses and 2 gradient norms"),
    ],
)
def test_a_fault_is_named_by_the_files_key(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError) as error:
        results_of(summary("a", 1.0, **changes))
    assert error.value.message.startswith(
        f"series/experiments.jsonl:1 is no experiment's summary: {words}"
    )


def test_keys_of_earlier_versions_are_read() -> None:
    row = summary("a", 1.0)
    row["backend"], row["requested_layout"] = row.pop("framework"), row.pop("layout_asked")
    (result,) = results_of(row)
    assert (result.framework, result.layout.requested) == ("native", {"ranks": 2, "zero": 0})
