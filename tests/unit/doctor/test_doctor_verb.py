"""`trainrig doctor` as it is typed, on a real machine's driver library, programs and sockets.

The driver is the stand-in libnvidia-ml.so.1; smartctl, lsblk and dmesg are programs on PATH.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from nvml_driver import driver  # noqa: F401 - a fixture
from trainrig.doctor import answers, what_root_adds
from trainrig.doctor.check import Answer, State
from trainrig.doctor.crash import parse_crash
from trainrig.doctor.listening import describe, is_exposed
from trainrig.doctor.remedy import apply_remedies, remedies
from trainrig.machine import inspect
from trainrig.machine.kernel_log import parse_kernel_log
from trainrig.machine.ports import listeners
from trainrig.machine.snapshot import MemoryInfo, Missing
from trainrig.machine.system_access import ThisMachine
from trainrig.record import Finding
from trainrig.selftest.doctor_faults import build

ROOT = Path(__file__).resolve().parents[3]


def doctor(*words: str, cwd: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainrig", "doctor", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOME": str(cwd), **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def program(folder: Path, name: str, prints: str, code: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\nexit {code}\n")
    path.chmod(0o755)


def state_of(shown: dict, check: str) -> dict:
    return next(each for each in shown["checks"] if each["id"] == check)


def test_json_is_one_object_and_loads_no_torch(tmp_path: Path) -> None:
    done = doctor("--json", cwd=tmp_path)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr
    shown = json.loads(done.stdout)
    assert {"schema", "findings", "checks", "needs_root", "changes"} == shown.keys()
    for finding in shown["findings"]:
        keys = ("id", "severity", "evidence", "cause", "risk", "fix", "reboot", "undo")
        assert finding.keys() == set(keys)
    for check in shown["checks"]:
        assert check["state"] in get_args(State)
        assert check["reason"] or not check["state"].startswith("not ")


def test_a_mismatch_of_library_and_module_is_seen_through_the_real_library(
    driver: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = {"LD_LIBRARY_PATH": str(driver)}
    well = json.loads(doctor("--json", cwd=tmp_path, NVML_SHIM="2", **settings).stdout)
    assert state_of(well, "gpu-heat")["state"] == "healthy"
    sick = doctor("--json", cwd=tmp_path, NVML_SHIM="2", NVML_SHIM_LINKS="direct", **settings)
    assert "nvlink-inactive" in state_of(json.loads(sick.stdout), "nvlink")["findings"]


def test_a_driver_that_hangs_or_dies_costs_one_probe(driver: Path, tmp_path: Path) -> None:  # noqa: F811
    for scenario in ("hang", "crash", "garbage"):
        done = doctor("--json", cwd=tmp_path, NVML_SHIM=scenario, LD_LIBRARY_PATH=str(driver))
        assert done.returncode in (0, 1) and json.loads(done.stdout)["checks"], scenario


def test_a_failing_disk_is_a_fault_and_its_exit_code_is_no_obstacle(tmp_path: Path) -> None:
    listed = '{"blockdevices": [{"name": "nvme9n1", "type": "disk", "size": 1000, "rota": false}]}'
    program(tmp_path / "bin", "lsblk", listed)
    smart = '{"smart_status": {"passed": %s}, "temperature": {"current": 40}}'
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    program(tmp_path / "bin", "smartctl", smart % "false", code=8)
    done = doctor(cwd=tmp_path, PATH=path)
    assert done.returncode == 1 and "fault: disk-failing" in done.stdout
    program(tmp_path / "bin", "smartctl", smart % "true")
    assert "disk-failing" not in doctor(cwd=tmp_path, PATH=path).stdout


def test_markdown_and_json_are_not_both(tmp_path: Path) -> None:
    done = doctor("--json", "--markdown", cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 2
    assert "## Checks" in doctor("--markdown", cwd=tmp_path).stdout


# ---- what listens, by real sockets of real processes

SERVER = """
import socket, sys
one = socket.socket(); one.bind(("127.0.0.1", 0)); one.listen()
print(one.getsockname()[1], flush=True); sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("words", "protection"),
    [(["--ServerApp.token="], "none"), ([], "token"), (["--ServerApp.token=abc"], "token")],
)
def test_a_real_process_is_found_with_its_port_and_protection(
    tmp_path: Path, words: list[str], protection: str
) -> None:
    script = tmp_path / "jupyter-lab"
    script.write_text(SERVER)
    process = subprocess.Popen(
        [sys.executable, str(script), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        found = [one for one in listeners(ThisMachine()) if one.port == port]
        assert [(one.address, one.service) for one in found] == [("127.0.0.1", "jupyter")]
        assert found[0].protection == protection
        assert not is_exposed(found[0]) and f"127.0.0.1:{port}" in describe(found[0])
    finally:
        process.communicate(timeout=120)


def test_this_process_s_own_socket_is_listed() -> None:
    with socket.socket(socket.AF_INET6) as one:
        one.bind(("::1", 0))
        one.listen()
        port = one.getsockname()[1]
        found = [each for each in listeners(ThisMachine()) if each.port == port]
    assert [each.address for each in found] == ["::1"]


# ---- --apply


def netrc(folder: Path) -> Path:
    path = folder / ".netrc"
    path.write_text("machine api.example.org login ada password a-secret\n")
    folder.chmod(0o755)
    path.chmod(0o644)
    return path


def test_apply_closes_a_readable_secret_and_says_so(tmp_path: Path) -> None:
    path = netrc(tmp_path)
    before = json.loads(doctor("--json", cwd=tmp_path).stdout)
    assert "secret-readable" in [one["id"] for one in before["findings"]]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "a look changes nothing"
    after = json.loads(doctor("--json", "--apply", cwd=tmp_path).stdout)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "secret-readable" not in [one["id"] for one in after["findings"]]
    assert any("secret-readable" in line and "done" in line for line in after["changes"])


def test_what_did_not_help_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = netrc(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = answers(inspect(with_health=True))
    looks: list[int] = []

    def look() -> tuple[Answer, ...]:
        looks.append(stat.S_IMODE(path.stat().st_mode))
        return found

    _, lines = apply_remedies(found, look)
    assert looks[:2] == [0o600, 0o644] and stat.S_IMODE(path.stat().st_mode) == 0o644
    assert any("it did not help; undone" in line for line in lines)


def test_what_needs_root_or_cannot_be_undone_is_left_alone() -> None:
    for name in ("gpu-fell-off-bus", "port-runs-programs", "disk-failing", "governor-powersave"):
        assert remedies(Finding(id=name, severity="error", evidence="x", fix="y")) == ()


def test_what_root_would_add_is_what_was_denied() -> None:
    denied = build("desktop", {"commands": {"dmidecode -t 17": "ABSENT", "dmesg": "ABSENT"}})
    snapshot = inspect(denied, with_health=True)
    assert isinstance(snapshot.memory, MemoryInfo)
    no = Missing("dmidecode: /dev/mem: Permission denied")
    blind = replace(snapshot, memory=replace(snapshot.memory, dimms=no))
    named = [line.partition(":")[0] for line in what_root_adds(answers(blind))]
    assert "memory-modules" in named and "listening" in named and "disks" not in named
    server = answers(inspect(build("cpu-server"), with_health=True))
    assert "direct-access: " not in " ".join(what_root_adds(server)), "it has no GPU"


# ---- logs


def test_repeated_lines_are_one_event_with_a_count() -> None:
    line = "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=gpud, Timeout"
    text = "\n".join(f"[{second}.0] {line}" for second in range(5000))
    (event,) = parse_kernel_log(text)
    assert (event.code, event.count, event.pci_address) == (119, 5000, "0000:9b:00.0")


@pytest.mark.parametrize(
    ("log", "signal"),
    [
        ("Fatal Python error: Bus error\n", "SIGBUS"),
        ("  exitcode  : -9 (pid: 123)\n", "SIGKILL"),
        ("Signal 11 (SIGSEGV) received by PID 5", "SIGSEGV"),
        ("worker killed by signal: Killed, SIGKILL", "SIGKILL"),
    ],
)
def test_a_crash_is_read_from_a_log(log: str, signal: str) -> None:
    crash = parse_crash(log, "run", "rank-0.log")
    assert crash is not None and crash.signal == signal
    assert parse_crash("loss 3.2\nall done\n", "run", "rank-0.log") is None
