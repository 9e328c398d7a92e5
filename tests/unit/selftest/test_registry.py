"""The self-test: every check has its fault, a fault that is missed and a false alarm are seen."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from trainrig.doctor import CHECKS
from trainrig.errors import UsageError
from trainrig.selftest.doctor_faults import fault_hosts
from trainrig.selftest.registry import (
    Alarm,
    Event,
    Fault,
    FaultResult,
    all_faults,
    prove,
)
from trainrig.selftest.run import run_all

ROOT = Path(__file__).resolve().parents[3]
FAULTS = [fault for own in all_faults().values() for fault in own]
BY_FINDING = {fault.finds for fault in FAULTS}
NOTES = {"import-note", "above-claim", "same-as-published", "machine-state"}
"""Findings that accuse nobody."""


def constants_of(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Names that a statement gives to words: ``A = "a"``, ``A, B = "a", "b"``."""
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        many = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
        names = target.elts if many else [target]
        values = node.value.elts if many else [node.value]
        for name, value in zip(names, values, strict=True):
            if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                yield name.id, str(value.value)


def literal_ids(path: Path) -> Iterator[str]:
    """Ids of findings that a file makes, as they stand there or by the name of a constant."""
    tree = ast.parse(path.read_text())
    constants = dict(named for node in tree.body for named in constants_of(node))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id not in ("Finding", "finding", "_finding"):
            continue
        named = [word.value for word in node.keywords if word.arg == "id"]
        given = named or node.args[:1]
        for value in given:
            for part in ast.walk(value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value
                if isinstance(part, ast.Name) and part.id in constants:
                    yield constants[part.id]


JUDGES = sorted((ROOT / "src" / "trainrig" / "analysis").glob("judge*.py"))


@pytest.mark.parametrize("path", JUDGES, ids=lambda path: path.stem)
def test_every_finding_of_a_judge_has_its_fault(path: Path) -> None:
    """A finding that is added without one fails here."""
    lacking = set(literal_ids(path)) - BY_FINDING - NOTES
    assert not lacking, f"no fault in src/trainrig/selftest finds {sorted(lacking)}"


def test_every_finding_of_the_doctor_has_its_fault() -> None:
    known = {name for check in CHECKS for name in check.finds} - {"gpu-not-described"}
    assert known <= BY_FINDING
    assert {f"doctor.{check.id}" for check in CHECKS} <= {fault.check for fault in FAULTS}


@pytest.mark.parametrize("check", ["bundle.hash", "store.write", "store.read"])
def test_a_check_without_findings_has_its_fault(check: str) -> None:
    assert check in {fault.check for fault in FAULTS}


def test_every_host_says_how_grave_its_fault_is() -> None:
    unsaid = [host.finding for host in fault_hosts() if host.severity == ""]
    assert not unsaid


def test_names_are_told_apart() -> None:
    names = [(fault.check, fault.name) for fault in FAULTS]
    assert len(set(names)) == len(names)


def planted(*, sees: Any = lambda scene: ["found it"] if scene else [], **more: Any) -> list[Event]:
    """What comes of a fault whose scene is its variant."""
    fault = Fault(
        name="a fault",
        check="test.check",
        inject=lambda _, variant: nullcontext(variant),
        observe=sees,
        variants=("here", "there"),
        **more,
    )
    heard: list[Event] = []
    prove([fault], heard.append, clean_runs=3)
    return heard


def test_a_fault_that_is_seen_everywhere_is_caught() -> None:
    (one,) = planted()
    assert isinstance(one, FaultResult)
    assert one.caught is True and (one.trials, one.caught_trials) == (2, 2)
    assert one.reason == "found it" and one.seconds is not None


def test_a_fault_that_is_seen_at_once_took_some_time() -> None:
    """Not 0 ns: a check of microseconds has a time of its own."""
    (one,) = planted()
    assert isinstance(one, FaultResult)
    assert one.seconds is not None and one.seconds > 0.0


def test_a_fault_that_is_seen_in_one_place_of_two_is_missed() -> None:
    (one,) = planted(sees=lambda scene: ["found it"] if scene == "here" else [])
    assert isinstance(one, FaultResult)
    assert one.caught is False and one.caught_trials == 1 and one.reason == "there: nothing found"


def test_another_fault_s_words_do_not_count() -> None:
    (one,) = planted(says="an x8 link")
    assert isinstance(one, FaultResult) and one.caught is False


def test_whatever_is_said_of_a_healthy_twin_is_a_false_alarm() -> None:
    one, *alarms = planted(sees=lambda _: ["found it"])
    assert isinstance(one, FaultResult) and one.caught
    assert [alarm.run for alarm in alarms if isinstance(alarm, Alarm)] == [1, 2, 3]


def test_a_check_that_breaks_has_found_nothing_and_accuses_nobody_else() -> None:
    one, *alarms = planted(sees=lambda scene: 1 / 0)
    assert isinstance(one, FaultResult)
    assert one.caught is False and "ZeroDivisionError" in str(one.reason)
    assert len(alarms) == 3  # of a healthy twin it is an alarm


def test_a_fault_of_a_part_that_is_not_here_is_neither() -> None:
    (one,) = planted(needs=lambda: "no GPU here")
    assert isinstance(one, FaultResult) and one.caught is None and one.reason == "no GPU here"


def test_a_word_that_names_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown check"):
        all_faults(["nothing"])


def test_a_line_must_begin_with_its_severity() -> None:
    (one,) = planted(begins="error", sees=lambda scene: ["warning found it"] if scene else [])
    assert isinstance(one, FaultResult) and one.caught is False


def test_a_family_in_its_own_process() -> None:
    result = run_all(["bundle.hash"], clean_runs=1, seed=7)
    assert result.seed == 7
    assert result.is_sound and len(result.results) == 2 and result.clean_runs == 1
    assert {"faults", "false_alarms", "clean_runs"} <= set(result.to_dict())


def test_what_a_family_did_not_come_to_is_missed() -> None:
    result = run_all(["bundle.hash"], clean_runs=1, limit_s=0.0)
    assert [one.caught for one in result.results] == [False, False]
    assert not result.is_sound and "not done within" in str(result.results[0].reason)


def test_the_page_lists_the_faults_that_there_are() -> None:
    spec = importlib.util.spec_from_file_location("table", ROOT / "tools" / "selftest_table.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    rows = tool.rows_of((ROOT / "docs" / "selftest.md").read_text())
    own = {(fault.check, fault.name) for fault in FAULTS}
    assert rows.keys() == own, "python tools/selftest_table.py --write FAMILY"
    assert {caught for caught, _ in rows.values()}.isdisjoint({"NO", "not run"})


@pytest.mark.acceptance
def test_fifty_clean_runs_without_a_false_alarm() -> None:
    result = run_all(clean_runs=50, limit_s=1800.0)
    assert not result.alarms and not result.missed
