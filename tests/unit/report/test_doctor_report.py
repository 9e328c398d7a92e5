"""What the doctor prints of each check: what holds, what was found, what does not apply."""

from __future__ import annotations

import dataclasses

import pytest

from trainrig.doctor import CHECKS, Answer, answers
from trainrig.doctor.check import NotApplicable, answer, finding
from trainrig.machine import Missing, inspect
from trainrig.machine.health import KernelEvent
from trainrig.machine.snapshot import Snapshot
from trainrig.report.doctor_report import doctor_document, doctor_findings
from trainrig.report.document import Paragraph, Section, Table
from trainrig.selftest.doctor_faults import build

CPU, GPUS = "cpu-server", "a100"
CHECK = CHECKS[0]
IDS = {name for check in CHECKS for name in check.finds}


def snapshot_of(base: str) -> Snapshot:
    return inspect(build(base), with_health=True)


def logged(snapshot: Snapshot, *events: KernelEvent) -> Snapshot:
    assert not isinstance(snapshot.health, Missing)
    return dataclasses.replace(
        snapshot, health=dataclasses.replace(snapshot.health, kernel_log=events)
    )


def event(kind: str, count: int = 1, **more: object) -> KernelEvent:
    return KernelEvent(kind=kind, text="a line of the log", count=count, **more)


def crashed(count: int) -> Snapshot:
    return logged(snapshot_of(CPU), event("segfault", count, program="python"))


def rows(found: tuple[Answer, ...]) -> dict[str, tuple[str, str]]:
    """State and words of each check that has an answer, by its id."""
    sections = (b for b in doctor_document(found, ()).blocks if isinstance(b, Section))
    (checks,) = (section for section in sections if section.title == "Checks")
    (table,) = checks.blocks
    assert isinstance(table, Table)
    return {cells[0].text: (cells[1].text, cells[2].text) for _, cells in table.lines()}


def summary_of(found: tuple[Answer, ...]) -> str:
    first = doctor_document(found, ()).blocks[0]
    assert isinstance(first, Paragraph)
    return first.text


@pytest.mark.parametrize("base", [CPU, GPUS])
def test_a_healthy_row_says_what_holds_and_names_no_fault(base: str) -> None:
    for state, words in rows(answers(snapshot_of(base))).values():
        assert state == "healthy" and words
        assert not IDS & set(words.replace(",", "").split())


def test_what_is_only_worth_knowing_is_a_note_and_not_healthy() -> None:
    assert rows(answers(crashed(1)))["crash"] == ("note", "process-crashed")
    assert rows(answers(snapshot_of(CPU)))["crash"][0] == "healthy"
    assert "1 note, " in summary_of(answers(crashed(1)))


def test_the_first_line_counts_what_stands_below_it() -> None:
    events = (event("xid", code=79, pci_address=f"0000:0{i}:00.0") for i in range(4))
    found = answers(logged(snapshot_of(CPU), *events))
    assert len(doctor_findings(found)) == 4
    assert summary_of(found).startswith("4 faults, ")
    healthy = [answer for answer in found if answer.state == "healthy"]
    assert summary_of(tuple(healthy[:1])) == "1 check healthy"
    assert summary_of(tuple(healthy[:2])) == "2 checks healthy"


@pytest.mark.parametrize(
    ("kind", "count", "words"),
    [
        ("segfault", 1, "python died of a segmentation fault"),
        ("segfault", 3, "python died 3 times of a segmentation fault"),
        ("out-of-memory", 1, "the kernel killed python because memory was full"),
        ("out-of-memory", 2, "the kernel killed python 2 times because memory was full"),
    ],
)
def test_how_often_is_said_where_it_was_more_than_once(kind: str, count: int, words: str) -> None:
    found = answers(logged(snapshot_of(CPU), event(kind, count, program="python")))
    (one,) = (each for answer in found for each in answer.findings)
    assert one.evidence.startswith(words)


def test_what_is_about_gpus_does_not_apply_to_a_machine_without_one() -> None:
    found = answers(snapshot_of(CPU))
    states = {each.check.id: each.state for each in found}
    about_gpus = {"xid", "gpudirect", "gpu-memory", "nvlink", "pcie", "tf32", "gpu-driver"}
    assert {states[id] for id in about_gpus} == {"not applicable"}
    for _, words in rows(found).values():
        assert not any(word in words for word in ("GPU", "Xid", "NVLink", "CUDA"))
    summary = summary_of(found)
    num_apart = list(states.values()).count("not applicable")
    assert f"{num_apart} checks do not apply here" in summary
    assert f"{list(states.values()).count('healthy')} checks healthy" in summary
    with_gpus = {each.check.id: each.state for each in answers(snapshot_of(GPUS))}
    assert with_gpus["xid"] == with_gpus["nvlink"] == "healthy"


def test_an_error_of_a_gpu_that_is_gone_is_still_found() -> None:
    gone = logged(snapshot_of(CPU), event("xid", code=79, pci_address="0000:01:00.0"))
    assert rows(answers(gone))["xid"][0] in ("warning", "fault")


@pytest.mark.parametrize(
    ("needed", "state"),
    [
        (None, "healthy"),
        (Missing("denied"), "not checkable"),
        (NotApplicable("no GPU here"), "not applicable"),
    ],
)
def test_not_there_is_told_from_not_readable(needed: object, state: str) -> None:
    check = dataclasses.replace(
        CHECK, needs=lambda _: needed, facts=(), judge=lambda _: (), note=lambda _: ""
    )
    assert answer(check, snapshot_of(CPU)).state == state


def test_a_check_with_a_warning_names_it() -> None:
    found = finding("torch-missing", "warning", "torch is gone", "install it")
    check = dataclasses.replace(CHECK, needs=lambda _: None, judge=lambda _: (found,))
    assert rows((answer(check, snapshot_of(CPU)),)) == {CHECK.id: ("warning", "torch-missing")}
