"""Who hangs in which collective, by what torch's groups recorded.

The record in fixtures/collectives is torch 2.13's: two gloo ranks, of which rank 1 left out the
fourth all_reduce.  NCCL's is of the same class (and its entries are named ``nccl:``).
"""

from __future__ import annotations

import copy
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from trainrig.process import flight_recorder

RECORDED = Path(__file__).parents[2] / "support" / "fixtures" / "collectives"


@pytest.fixture
def dumps() -> dict[int, Any]:
    """What the two ranks remembered."""
    return {rank: dict(dump) for rank, dump in flight_recorder.read(RECORDED).items()}


def test_rank_and_collective_of_a_hang_are_named(dumps: dict[int, Any]) -> None:
    assert flight_recorder.explain(dumps) == (
        "rank 0 in all_reduce 4 of group default_pg (16×2 Float); rank 1 has not called it: "
        "its last there is all_reduce 3 of group default_pg (8×4 Float)"
    )
    assert str(flight_recorder.explain({0: dumps[0]})).startswith("rank 0 in all_reduce 4")


def test_a_rank_that_does_not_answer_is_named_where_its_group_is_known(
    dumps: dict[int, Any],
) -> None:
    """NCCL's record says who is in a group; gloo's does not."""
    dumps[0]["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    said = flight_recorder.explain({0: dumps[0]})
    assert str(said).endswith("; rank 1 does not answer")


def test_another_collective_in_its_place_is_named(dumps: dict[int, Any]) -> None:
    other = copy.deepcopy(dumps[0])
    other["entries"][-1] |= {"profiling_name": "gloo:all_gather", "time_created_ns": 2**62}
    said = flight_recorder.explain({0: dumps[0], 1: other})
    assert str(said).endswith(
        "; rank 1 called all_gather 4 of group default_pg (16×2 Float) in its place"
    )


def test_what_is_over_hangs_nowhere(dumps: dict[int, Any]) -> None:
    assert flight_recorder.explain({1: dumps[1]}) is None
    assert flight_recorder.explain({}) is None


def test_ranks_write_when_their_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "collectives-0.pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # as the watchdog opens it

    def watchdog() -> None:
        while not os.read(reading, 128):
            pass
        (tmp_path / "collectives-0").write_bytes((RECORDED / "collectives-0").read_bytes())

    thread = threading.Thread(target=watchdog)
    thread.start()
    os.mkfifo(tmp_path / "collectives-1.pipe")  # of a rank that is gone
    found = flight_recorder.ask(tmp_path)
    thread.join()
    os.close(reading)
    assert list(found) == [0]


def test_a_pickle_that_would_call_something_is_not_read(tmp_path: Path) -> None:
    for content in (pickle.dumps(os.getcwd), b"\x80\x02torn", pickle.dumps([1])):
        (tmp_path / "collectives-0").write_bytes(content)
        assert flight_recorder.read(tmp_path) == {}


def test_plain_values_are_those_that_were_written(tmp_path: Path) -> None:
    content = (RECORDED / "collectives-0").read_bytes()
    assert flight_recorder._plain_values(content) == pickle.loads(content)  # noqa: S301 - our own fixture
    value = {"a": [1, -2, 2.5, None, True, (1,), (1, 2, 3, 4), 2**40], "b": {}, "c": "é" * 300}
    for protocol in (2, 3, 4, 5):
        assert flight_recorder._plain_values(pickle.dumps(value, protocol)) == value
    for end in range(len(content) - 1):
        (tmp_path / "collectives-0").write_bytes(content[:end])
        assert flight_recorder.read(tmp_path) == {}


def test_ranks_are_told_where_to_write(tmp_path: Path) -> None:
    settings = flight_recorder.settings(tmp_path)
    assert settings["TORCH_FR_BUFFER_SIZE"] == settings["TORCH_NCCL_TRACE_BUFFER_SIZE"]
    assert {value for name, value in settings.items() if name.endswith("FILE")} == {
        str(tmp_path / "collectives-")
    }
