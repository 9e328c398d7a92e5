"""Faults at thresholds: found a tenth beyond, silent a tenth inside; every threshold is stated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainrig.remote.quick_tunnels import tunnel_programs
from trainrig.selftest import audit_faults
from trainrig.selftest.registry import HEALTHY, SEED, Event, Fault, FaultResult, all_faults, prove
from trainrig.selftest.threshold_faults import (
    MODULES,
    TABLES,
    actual_numbers,
    stated_numbers,
)

ANALYSIS = Path(audit_faults.__file__).parents[1] / "analysis"
FAMILIES = all_faults()
FAULTS = [f for faults in FAMILIES.values() for f in faults if isinstance(f.variants, range)]


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{f.check} {f.name}" for f in FAULTS])
def test_a_threshold_decides_where_it_stands(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEED, "92")
    with fault.inject(Path(), 92) as beyond:
        lines = list(fault.observe(beyond))
    assert any(fault.says in line and fault.finds in line for line in lines), lines
    with fault.inject(Path(), HEALTHY) as inside:
        assert list(fault.observe(inside)) == []


@pytest.mark.parametrize("family", ["audit", "thresholds.stated"])
def test_a_family_without_random_places_is_sound(family: str) -> None:
    events: list[Event] = []
    prove([fault for faults in all_faults([family]).values() for fault in faults], events.append, 1)
    assert events
    assert all(isinstance(event, FaultResult) and event.caught for event in events), events


def test_every_threshold_is_stated_a_second_time() -> None:
    assert stated_numbers() == actual_numbers(), "python tools/selftest_table.py --thresholds"


def test_every_rule_table_and_judging_module_is_held_to_what_is_stated() -> None:
    assert {path.stem for path in ANALYSIS.glob("*.toml")} == set(TABLES)
    judging = {path.stem for path in ANALYSIS.glob("judge*.py")}
    no_number = {"judge_noise"}
    assert judging - no_number <= {name.removeprefix("analysis.") for name in MODULES}


def test_every_module_that_judges_has_faults() -> None:
    wanted = ("audit", "burn", "compare", "expectation", "import", "judge", "links", "noise")
    assert {*wanted, "statistics", "threshold", "timing", "train", "watched"} <= set(FAMILIES)


def test_every_tunnel_program_has_a_command_line_that_is_planted() -> None:
    lines = [line for line, _, _ in audit_faults._TUNNELS]
    first = [next(row for row in tunnel_programs() if re.search(row.command, it)) for it in lines]
    assert {row.command for row in first} == {row.command for row in tunnel_programs()}
