"""Whole machines: each kind of finding is seen on a host that has it, and not on the same repaired.

The faults lie in files, in what programs print and in NVML's answers, below every probe; no check
is handed a value.  What needs hardware (a GPU, NVLink, InfiniBand) is only as true as the formats.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainrig.doctor import CHECKS, answers
from trainrig.doctor.check import meanings, meanings_by_number
from trainrig.machine import from_dict, inspect, to_dict
from trainrig.selftest.doctor_faults import FaultHost, bases, build, fault_hosts

HOSTS = list(fault_hosts())
IDS = [f"{host.finding}-{host.name}" for host in HOSTS]
WITHOUT_A_HOST = {"gpu-not-described"}
"""Only torch tells of such a GPU: tests/unit/doctor/test_checks.py and runner/test_targets.py."""


@pytest.mark.parametrize("base", bases())
def test_a_healthy_host_has_no_finding(base: str) -> None:
    snapshot = inspect(build(base), with_health=True)
    found = answers(snapshot)
    assert [one for each in found for one in each.findings] == []
    assert sum(each.state == "healthy" for each in found) >= 15
    assert from_dict(to_dict(snapshot)) == snapshot


@pytest.mark.parametrize("host", HOSTS, ids=IDS)
def test_a_fault_is_found_with_all_that_is_needed_to_mend_it(
    host: FaultHost, tmp_path: Path
) -> None:
    found = host.findings(host.fault, tmp_path)
    own = [one for one in found if one.id == host.finding and host.evidence in one.evidence]
    assert own, found
    assert own[0].fix and own[0].cause and own[0].risk and own[0].undo


@pytest.mark.parametrize("host", HOSTS, ids=IDS)
def test_the_repaired_twin_has_no_finding(host: FaultHost, tmp_path: Path) -> None:
    left = [one for one in host.findings(host.repaired, tmp_path) if one.id not in host.allowed]
    assert left == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_every_finding_of_a_check_has_a_fault_host(check) -> None:
    """A check that is added without one fails here."""
    assert set(check.finds) - WITHOUT_A_HOST <= {host.finding for host in HOSTS}
    assert check.finds and check.title and check.reads


def test_every_finding_has_its_meaning_and_belongs_to_a_check() -> None:
    known = {name for check in CHECKS for name in check.finds}
    assert known == set(meanings())
    for meaning in meanings().values():
        assert meaning["cause"] and meaning["risk"] and meaning["undo"]
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_a_fault_is_seen_by_the_check_that_it_is_listed_for(tmp_path: Path) -> None:
    """Where several checks have a finding, the host names the one that sees it."""
    makers = {name: [c for c in CHECKS if name in c.finds] for c in CHECKS for name in c.finds}
    for number, host in enumerate(HOSTS):
        if len(makers[host.finding]) > 1:
            seen = [
                each.check.id
                for each in answers(host.snapshot(host.fault, tmp_path / str(number)))
                if any(host.evidence in one.evidence for one in each.findings)
            ]
            assert host.seen_by in seen, host.name


def test_findings_come_from_the_check_that_names_them(tmp_path: Path) -> None:
    for number, host in enumerate(HOSTS):
        folder = tmp_path / str(number)
        ids = {one.id for one in host.findings(host.fault, folder)}
        assert ids <= {name for check in CHECKS for name in check.finds}, host.name


def test_there_are_as_many_hosts_as_promised() -> None:
    assert len(HOSTS) >= 40 and {"a100", "cloud", "cpu-server", "desktop", "laptop"} == set(bases())
    assert all(host.source for host in HOSTS)


def test_each_xid_has_a_meaning_a_severity_and_a_next_step() -> None:
    xids = meanings_by_number("xid.toml")
    assert {13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 126, 167, 172} <= set(xids)
    assert not {0, 5, 91, 138, 999} & set(xids)
    for row in xids.values():
        assert row["severity"] in ("error", "warning", "info") and row["meaning"] and row["next"]


def test_the_page_of_checks_is_what_its_tool_writes() -> None:
    tool = Path(__file__).resolve().parents[3] / "tools" / "doctor_table.py"
    page = (tool.parents[1] / "docs" / "doctor.md").read_text()
    done = subprocess.run(
        [sys.executable, str(tool)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == page, "python tools/doctor_table.py --write"
