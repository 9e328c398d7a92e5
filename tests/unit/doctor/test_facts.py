"""A healthy answer rests on facts: on those that a check declares, and on words in the file."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from machine_fakes import healthy
from trainrig.cli.main import cli
from trainrig.doctor import CHECKS, answers_of_files
from trainrig.doctor.check import HealthCheck, answer
from trainrig.errors import DataError
from trainrig.machine import inspect
from trainrig.machine.snapshot import GPU_KEYS, Missing, Snapshot
from trainrig.runner.elsewhere import snapshot_of
from trainrig.selftest.doctor_faults import build

WORDS = {
    "gpu-memory": r"(?i)uncorr|double[ _]bit",
    "gpu-memory-repairs": r"(?i)retired.pages|remapped.rows",
    "gpu-memory-size": r"(?i)FB Memory|fb_memory|memory\.total|MiB /|global memory|VRAM",
    "gpu-speed": r"(?i)clocks[ _]?(?:event|throttle)",
    "gpu-heat": r"(?i)temp",
    "gpu-modes": r"(?i)persistence",
    "gpu-on-bus": r"(?i)controller|accelerator",
    "gpu-driver": r"(?i)Kernel driver in use",
    "pcie": r"(?i)link.?(?:width|gen)|LnkSta",
    "nvlink": r"NV\d|Link \d+: ",
    "topology": r"GPU0\s",
    "direct-access": r"(?i)\bOK\b|peer",
    "resizable-bar": r"(?i)bar1",
    "xid": r"(?i)kern|nvrm|\[ *\d+\.\d+\]|^\d+,\d+,\d+",
    "kernel-log": r"(?i)kern|nvrm|\[ *\d+\.\d+\]|^\d+,\d+,\d+",
    "crash": r"(?i)kern|nvrm|\[ *\d+\.\d+\]|^\d+,\d+,\d+",
    "memory-modules": r"Configured|Speed",
    "memory-room": r"MemAvailable|available",
    "disks": r"(?i)smart|media_errors",
    "disk-space": r"fsavail",
    "filesystems": r" / ",
}
"""Words of a tool without which no file supports the statement of a check."""


def test_every_healthy_answer_on_a_captured_file_has_its_facts_in_that_file(captures: Path) -> None:
    paths = [
        path for path in sorted(captures.rglob("*")) if path.is_file() and path.parent != captures
    ]
    supported = 0
    for path in paths:
        try:
            machine = snapshot_of([path])
        except DataError:
            continue
        text = path.read_text(errors="replace")
        for each in answers_of_files(machine.snapshot, machine.incomplete):
            if each.state == "healthy":
                supported += 1
                assert re.search(WORDS[each.check.id], text, re.MULTILINE), (path, each.check.id)
    assert supported > 50


def test_a_matrix_of_paths_says_nothing_of_memory_heat_or_clocks(samples: Path) -> None:
    machine = snapshot_of([samples / "topo-8xa100.txt"])
    healthy_ids = {a.check.id for a in answers_of_files(machine.snapshot) if a.state == "healthy"}
    assert healthy_ids == {"nvlink", "topology"}


def test_memory_that_nothing_is_known_of_is_not_called_whole() -> None:
    (check,) = [check for check in CHECKS if check.id == "gpu-memory-size"]
    two = full()
    assert answer(check, two).state == "healthy"
    assert isinstance(two.gpus, tuple)
    unknown = two.gpus[0].replace(name="A card that no catalog has", pci_id="10de:0000")
    assert answer(check, dataclasses.replace(two, gpus=(unknown,))).state == "not checkable"
    again = unknown.replace(index=1)
    assert answer(check, dataclasses.replace(two, gpus=(unknown, again))).state == "healthy"
    sliced = unknown.replace(mig=True)
    assert answer(check, dataclasses.replace(two, gpus=(sliced,))).state == "not checkable"


def test_results_of_a_tool_are_no_machine_and_lead_to_import(samples: Path) -> None:
    path = samples / "gpu-burn-faulty.txt"
    done = CliRunner().invoke(cli, ["doctor", str(path)], standalone_mode=False)
    assert isinstance(done.exception, DataError)
    assert "results of gpu-burn" in done.exception.message
    assert f"trainrig import {path}" in (done.exception.hint or "")


@pytest.fixture
def samples() -> Path:
    return Path(__file__).parents[1] / "importers" / "samples"


def full() -> Snapshot:
    """A machine of which most is known."""
    seen = inspect(build("a100", {}), with_health=True)
    return dataclasses.replace(healthy(2), health=seen.health, memory=seen.memory, disks=seen.disks)


def hide(value: Any, path: str) -> Any:
    """The same facts with the value at a path missing, of every element on its way."""
    name, _, rest = path.rstrip("?*").partition(".")
    inner = getattr(value, name)
    if not rest:
        hidden: Any = "" if path == "software.python" or name == "python" else Missing("not read")
    elif isinstance(inner, tuple):
        hidden = tuple(hide(element, rest) for element in inner)
    else:
        hidden = inner if isinstance(inner, Missing) else hide(inner, rest)
    return dataclasses.replace(value, **{name: hidden})


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_no_check_is_healthy_without_one_of_its_facts(check: HealthCheck) -> None:
    assert check.facts
    for fact in check.facts:
        blind = full()
        for path in fact.split("|"):
            blind = hide(blind, path)
        assert answer(check, blind).state != "healthy", fact


def test_most_checks_are_healthy_where_all_is_known() -> None:
    states = [answer(check, full()).state for check in CHECKS]
    assert states.count("healthy") > len(CHECKS) // 2, states
    assert set(GPU_KEYS.places)
