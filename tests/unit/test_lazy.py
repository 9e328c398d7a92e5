"""What is made when it is first used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from trainrig import machine, workload
from trainrig.lazy import Later, exports


def test_members_are_made_one_by_one_and_once() -> None:
    made: list[int] = []

    def members() -> Iterator[int]:
        for member in range(3):
            made.append(member)
            yield member

    later = Later(members())
    assert made == []
    assert next(iter(later)) == 0
    assert made == [0]
    assert list(later) == list(later) == [0, 1, 2]
    assert made == [0, 1, 2]
    assert later[1:] == [1, 2]
    assert later == (0, 1, 2)
    assert repr(later) == "(0, 1, 2)"


@pytest.mark.parametrize("package", [machine, workload])
def test_a_package_has_every_name_that_it_lists(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None


def test_a_name_that_it_lacks_is_none_of_its() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        exports("trainrig.machine", {"fact": ("Missing",)})("nothing")


def test_a_package_loads_only_what_is_asked_of_it() -> None:
    code = "import sys, trainrig.machine, trainrig.workload; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "trainrig.machine.probes" not in loaded
    assert "trainrig.workload.blocks" not in loaded
