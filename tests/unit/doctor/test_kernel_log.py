"""Lines of the kernel's log: errors by device, none on a boot, and those of other machines."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from trainrig.cli.main import cli
from trainrig.machine.kernel_log import parse_kernel_log

BOOT = (Path(__file__).parent / "boot.txt").read_text()
"""Messages of healthy boots, in the forms of the kernel's and the drivers' sources."""


def test_a_boot_has_no_error_and_each_link_is_lost_once() -> None:
    assert [event.kind for event in parse_kernel_log(BOOT)] == ["carrier-lost"]


ERRORS = [
    ("NVRM: Xid (PCI:0000:9b:00 GPU-I:05): 43, pid=1, name=python, Ch 8", "xid", "0000:9b:00.0"),
    ("NVRM: Xid (0000:03:00): 31, Ch 00000003", "xid", "0000:03:00.0"),
    ("NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.", "gpu-off-bus", "0000:c1:00.0"),
    ("nvme nvme1: I/O 123 QID 4 timeout, aborting", "disk", None),
    ("print_req_error: critical medium error, dev sdb, sector 5", "disk", None),
    (
        "DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0x0",
        "io-page-fault",
        "0000:01:00.0",
    ),
    (
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=41:00.0 domain=0x12]",
        "io-page-fault",
        "0000:41:00.0",
    ),
    ("Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB", "out-of-memory", None),
    ("NVRM: rm_init_adapter(0) failed", "gpu-init-failed", None),
    ("nvidia: probe of 0000:01:00.0 failed with error -1", "gpu-init-failed", "0000:01:00.0"),
    (
        "nvidia 0000:01:00.0: probe with driver nvidia failed with error -1",
        "gpu-init-failed",
        "0000:01:00.0",
    ),
    ("NVRM: The NVIDIA probe routine was not called for 1 device(s).", "driver-silent", None),
    ("NVRM: API mismatch: the client has the version 550.54, but", "version-mismatch", None),
    ("Kernel panic - not syncing: Fatal exception", "panic", None),
    ("{1}[Hardware Error]: event severity: fatal", "machine-check", None),
    ("nvme0n1: I/O Cmd(0x2) @ LBA 8, 8 blocks, I/O Error (sct 0x2 / sc 0x81)", "disk", None),
    ("mlx5_core 0000:41:00.0 ib0: Link down", "carrier-lost", "0000:41:00.0"),
    (
        "pcieport 0000:00:01.1: broken device, retraining non-functional downstream link",
        "link-down",
        "0000:00:01.1",
    ),
]


@pytest.mark.parametrize(("line", "kind", "address"), ERRORS)
@pytest.mark.parametrize(
    "before",
    [
        "",
        "[  100.25] ",
        "[Sun Feb 23 16:24:18 2025] ",
        "Nov 20 10:00:00 host kernel: ",
        "<3>[ 1.5] ",
        "3,3973,227996636,-;",
    ],
)
def test_an_error_is_read_behind_any_time(
    line: str, kind: str, address: str | None, before: str
) -> None:
    (event,) = parse_kernel_log(before + line)
    assert (event.kind, event.pci_address, event.count) == (kind, address, 1)


def test_errors_are_counted_by_device_and_not_lines() -> None:
    first, second = (f"[ 1.{n}] nvidia 0000:0{n}:00.0: " for n in (1, 2))
    lines = [
        "[ 1.0] pcieport 0000:00:01.1: AER: Multiple Corrected error received: 0000:01:00.0",
        f"{first}PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        f"{first}  device [10de:2684] error status/mask=00000001/0000a000",
        f"{first}   [ 0] RxErr",
        f"{first}PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        f"{second}PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
    ]
    events = parse_kernel_log("\n".join(lines))
    assert [(e.pci_address, e.severity, e.count) for e in events] == [
        ("0000:01:00.0", "corrected", 2),
        ("0000:02:00.0", "uncorrected (fatal)", 1),
    ]
    (edac,) = parse_kernel_log("EDAC MC0: 12 CE memory read error on CPU_SrcID#0_MC#0_DIMM#1 (x)")
    assert (edac.count, edac.device) == (12, "CPU_SrcID#0_MC#0_DIMM#1")


def findings(log: str, tmp_path: Path) -> list[str]:
    """Severity and evidence of each finding in a kernel's log."""
    (tmp_path / "dmesg.txt").write_text(log)
    words = ["doctor", str(tmp_path / "dmesg.txt"), "--json"]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.exception is None, done.exception
    return [f"{one['severity']} {one['evidence']}" for one in json.loads(done.stdout)["findings"]]


def test_numbers_that_are_not_in_nvidia_s_tables_are_called_unknown(tmp_path: Path) -> None:
    xid = "[ 1.0] NVRM: Xid (PCI:0000:9b:00): {}, pid=1"
    sxid = "[ 1.0] nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): {}, Non-fatal, Link 5"
    log = [xid.format(138), xid.format(126), sxid.format(20034), sxid.format(31999)]
    shown = findings("\n".join(log), tmp_path)
    assert any("unknown Xid 138 (1 in the log)" in line for line in shown)
    assert any("Xid 126 (1 in the log): an error of a copy engine" in line for line in shown)
    assert any(line.startswith("warning") and "the wire of an NVLink" in line for line in shown)
    assert any("unknown SXid 31999" in line for line in shown)


def test_a_link_that_is_lost_again_and_again_is_found(tmp_path: Path) -> None:
    line = "Aug 17 06:18:06 host systemd-networkd[5398]: ib6: lost carrier"
    assert findings(f"[    1.000000] x\n{line}", tmp_path) == []
    many = "[    1.000000] x\n" + f"{line}\n" * 6
    assert "ib6 lost its link 6 times" in findings(many, tmp_path)[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the driver.", "not reach"),
        ("Failed to initialize NVML: Driver/library version mismatch", "two versions"),
        ("Unable to determine the device handle for GPU 0000:41:00.0: GPU is lost.", "off the bus"),
    ],
)
def test_what_nvidia_smi_says_instead_of_its_table_is_read(
    text: str, words: str, tmp_path: Path
) -> None:
    assert words in findings(text, tmp_path)[0]


# ---- files of another machine

FALLEN = """\
[ 1843.308145] NVRM: The NVIDIA GPU 0000:c3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
[ 1843.439662] NVRM: The NVIDIA probe routine failed for 1 device(s).
"""


def doctor(*words: object, stdin: str | None = None) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code, and the state of each check by name."""
    done = CliRunner().invoke(
        cli, ["doctor", *map(str, words), "--json"], input=stdin, standalone_mode=False
    )
    assert done.exception is None, done.exception
    checks = {each["id"]: each for each in json.loads(done.stdout)["checks"]}
    return int(done.return_value or 0), checks


def test_a_log_of_another_machine_is_read_from_standard_input() -> None:
    code, checks = doctor("-", stdin=FALLEN)
    assert (code, checks["kernel-log"]["state"]) == (1, "fault")
    silent = {
        each["state"] for name, each in checks.items() if name not in ("kernel-log", "crash", "xid")
    }
    assert silent == {"not checkable"}


def test_a_healthy_boot_of_another_machine_has_no_finding(tmp_path: Path) -> None:
    (tmp_path / "dmesg.txt").write_text(BOOT)
    code, checks = doctor(tmp_path / "dmesg.txt")
    assert (code, checks["kernel-log"]["state"]) == (0, "healthy")


def test_files_may_be_packed_or_lie_in_a_folder(tmp_path: Path) -> None:
    content = FALLEN.encode()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "nvidia-bug-report.log.gz").write_bytes(gzip.compress(content))
    with tarfile.open(tmp_path / "sos.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("../../var/log/kern.log")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    for path in (tmp_path / "logs", tmp_path / "sos.tar.gz"):
        code, checks = doctor(path)
        assert (code, checks["kernel-log"]["state"]) == (1, "fault")


def test_a_file_that_says_nothing_of_a_machine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "any.txt").write_text("hello\n")
    done = CliRunner().invoke(cli, ["doctor", str(tmp_path / "any.txt")], standalone_mode=False)
    assert "not a file of a tool that is known here" in str(done.exception)
