"""Outputs of system tools from another machine: the same checks on what they hold."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from trainrig import doctor
from trainrig.cli.main import cli
from trainrig.doctor import diagnose
from trainrig.doctor.check import gpus_of
from trainrig.errors import DataError
from trainrig.machine import inspect
from trainrig.machine.captured import CapturedHost, sections
from trainrig.machine.lspci import parse_lspci
from trainrig.machine.snapshot import Missing
from trainrig.selftest.doctor_faults import build

LSPCI = """\
00:01.0 PCI bridge: Intel Corporation Device 1bbc (rev 11)
\tKernel driver in use: pcieport
19:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)
\tNUMA node: 0
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 <4us
\t\tLnkSta:\tSpeed 32GT/s (ok), Width x8 (downgraded)
\tKernel driver in use: nouveau
\tKernel modules: nouveau

3b:00.0 VGA compatible controller: NVIDIA Corporation Device 2684 (rev ff)
\t!!! Unknown header type 7f
\tKernel driver in use: nvidia
5e:00.0 VGA compatible controller: ASPEED Technology, Inc. ASPEED Graphics Family (rev 41)
"""
MODULES = """\
Handle 0x0011, DMI type 17, 84 bytes
Memory Device
\tSize: 16384 MB
\tLocator: DIMM_A1
\tSpeed: 3200 MT/s
\tConfigured Memory Speed: {speed} MT/s

Handle 0x0012, DMI type 17, 84 bytes
Memory Device
\tSize: 16384 MB
\tLocator: DIMM_B1
\tSpeed: 3200 MT/s
\tConfigured Memory Speed: 3200 MT/s
"""
SMART_NVME = """\
smartctl 7.2 2020-12-30 r5155 [x86_64-linux-5.15.0] (local build)
=== START OF INFORMATION SECTION ===
Model Number:                       Example SSD 1TB
=== START OF SMART DATA SECTION ===
SMART overall-health self-assessment test result: {result}
Critical Warning:                   0x00
Available Spare:                    {spare}%
Available Spare Threshold:          10%
Percentage Used:                    3%
Media and Data Integrity Errors:    1,024
"""
SMART_ATA = """\
smartctl 7.2 2020-12-30 r5155 [x86_64-linux-5.15.0] (local build)
Device Model:     Example HDD
SMART overall-health self-assessment test result: PASSED
ID# ATTRIBUTE_NAME          FLAG     VALUE WORST THRESH TYPE      UPDATED  WHEN_FAILED RAW_VALUE
  5 Reallocated_Sector_Ct   0x0033   100   100   010    Pre-fail  Always       -       24
197 Current_Pending_Sector  0x0032   100   100   000    Old_age   Always       -       0
"""


def findings(tmp_path: Path, **files: str) -> tuple[dict[str, str], list[str]]:
    """State of each check that was answered, and the ids of findings."""
    for name, text in files.items():
        (tmp_path / f"{name}.txt").write_text(text)
    done = CliRunner().invoke(cli, ["doctor", str(tmp_path), "--json"], standalone_mode=False)
    assert done.exception is None, done.exception
    checks = json.loads(done.stdout)["checks"]
    states = {each["id"]: each["state"] for each in checks if each["state"] != "not checkable"}
    return states, [name for each in checks for name in each["findings"]]


def test_lspci_shows_a_wrong_driver_a_dead_card_and_missing_lanes(tmp_path: Path) -> None:
    states, ids = findings(tmp_path, lspci=LSPCI)
    assert ids == ["gpu-without-driver", "gpu-fell-off-bus", "pcie-link-below-max"]
    assert states == {"gpu-driver": "fault", "gpu-on-bus": "fault", "pcie": "warning"}


def test_lspci_without_drivers_and_links_says_nothing_of_them() -> None:
    plain = [line for line in LSPCI.splitlines() if not line.startswith("\t")]
    gpus = parse_lspci("\n".join(plain))
    assert isinstance(gpus, tuple)
    assert [gpu.pci_id for gpu, _ in gpus] == ["10de:2330", "10de:2684"]
    assert all(isinstance(gpu.driver, Missing) for gpu, _ in gpus)
    assert all(isinstance(gpu.link.width, Missing) for gpu, _ in gpus)
    assert [state.answers for _, state in gpus] == [True, False]


@pytest.mark.parametrize(("speed", "state"), [(3200, "healthy"), (2133, "warning")])
def test_dmidecode_shows_modules_below_their_rate(tmp_path: Path, speed: int, state: str) -> None:
    states, _ = findings(tmp_path, dmidecode=MODULES.format(speed=speed))
    assert states == {"memory-modules": state}


def test_smartctl_s_text_shows_what_its_json_does(tmp_path: Path) -> None:
    worn = SMART_NVME.format(result="FAILED!", spare=3)
    states, ids = findings(tmp_path, nvme=worn, ata=SMART_ATA)
    assert states == {"disks": "fault"}
    assert sorted(ids) == ["disk-errors", "disk-errors", "disk-failing"]


def test_a_report_with_many_outputs_is_cut_into_them() -> None:
    line = "_" * 44
    report = f"{line}\n\n/sbin/lspci\n{LSPCI}\n{line}\n\ndmidecode\n{MODULES.format(speed=3200)}\n"
    host = CapturedHost()
    added = [host.add(section) for section in sections(report.splitlines())]
    assert added == [False, True, True]
    assert "DIMM_A1" in str(host.run("dmidecode", "-t", "17"))
    assert "DIMM_A1" not in str(host.run("lspci"))


def test_files_that_answer_no_check_are_refused_and_say_what_to_add(tmp_path: Path) -> None:
    (tmp_path / "lscpu.txt").write_text("Architecture:        x86_64\nCPU(s):   96\n")
    done = CliRunner().invoke(cli, ["doctor", str(tmp_path)], standalone_mode=False)
    assert isinstance(done.exception, DataError)
    assert "lspci" in str(done.exception.hint)
    done = CliRunner().invoke(cli, ["import", str(tmp_path / "lscpu.txt")], standalone_mode=False)
    assert isinstance(done.exception, DataError)
    assert "trainrig doctor" in str(done.exception.hint)


def test_lspci_without_a_gpu_says_so_and_is_not_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / "lspci.txt").write_text(LSPCI[: LSPCI.index("19:00.0")])
    done = CliRunner().invoke(cli, ["doctor", str(tmp_path)], standalone_mode=False)
    assert isinstance(done.exception, DataError)
    assert "lspci lists no GPU" in done.exception.message
    assert "lspci" not in str(done.exception.hint)


RETIRED = """\
==============NVSMI LOG==============
Driver Version                            : 535.86.10
Attached GPUs                             : 1
GPU 00000001:00:00.0
    Retired Pages
        Single Bit ECC                    : {pages}
        Double Bit ECC                    : 0
        Pending Page Blacklist            : No
"""


@pytest.mark.parametrize(("pages", "state"), [(0, "healthy"), (2, "note"), (61, "fault")])
def test_a_part_of_nvidia_smi_answers_the_check_of_that_part(
    tmp_path: Path, pages: int, state: str
) -> None:
    states, _ = findings(tmp_path, smi=RETIRED.format(pages=pages))
    assert states == {"gpu-memory-repairs": state}


TABLE = """\
Fri Jun 11 19:27:00 2021
| NVIDIA-SMI 460.32.03    Driver Version: 460.32.03    CUDA Version: 11.2     |
|   0  Tesla V100-SXM2...  On   | 00000008:00:00.0 Off |                    0 |
| N/A   42C    P0    42W / 300W |      0MiB / 32510MiB |      0%      Default |

WARNING: infoROM is corrupted at gpu 0008:00:00.0
"""


def test_what_nvidia_smi_warns_of_below_its_table_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "smi.txt"
    path.write_text(TABLE)
    done = CliRunner().invoke(cli, ["doctor", str(path), "--json"], standalone_mode=False)
    (found,) = json.loads(done.stdout)["findings"]
    assert (found["id"], found["severity"]) == ("inforom-corrupted", "warning")
    assert found["evidence"].startswith("the InfoROM of GPU 0 ")
    assert "lines that were not read: 1 of 6 (1)" in done.stderr
    assert "--on" not in done.stderr  # an option of import's


def test_the_system_s_limit_of_files_is_taken_back_where_it_was_set(tmp_path: Path) -> None:
    path = tmp_path / "dmesg.txt"
    path.write_text("[ 1.000000] VFS: file-max limit 1000000 reached\n")
    done = CliRunner().invoke(cli, ["doctor", str(path), "--json"], standalone_mode=False)
    (found,) = json.loads(done.stdout)["findings"]
    assert "fs.file-max" in found["fix"] and "fs.file-max" in found["undo"]
    assert "{{" not in found["fix"]
    assert "all programs together" in found["cause"]


def test_no_text_of_a_finding_shows_a_doubled_brace() -> None:
    for path in Path(doctor.__file__).parent.glob("*.toml"):
        rows = tomllib.loads(path.read_text(encoding="utf-8")).values()
        texts = [text for row in rows if isinstance(row, dict) for text in row.items()]
        assert not [text for text in texts if "{{" in str(text[1]) and text[0] != "evidence"]


def test_a_card_at_its_power_limit_is_neither_hot_nor_badly_fed() -> None:
    healthy = inspect(build("a100"), with_health=True)
    gpus = (
        gpu.replace(
            throttle_reasons=("sw_power_cap",),
            link=dataclasses.replace(gpu.link, generation=1, max_generation=4),
            utilization=0.0,
        )
        for gpu in gpus_of(healthy)
    )
    machine = dataclasses.replace(healthy, gpus=tuple(gpus))
    found = [finding for finding in diagnose(machine) if finding.severity == "info"]
    causes = {finding.id: finding.cause for finding in found}
    assert "as much power as the limit allows" in causes["throttled"]
    assert "to save power" in causes["pcie-link-below-max"]


def test_a_pipe_is_waited_for_aloud_and_read_as_a_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    waited_for: list[Path] = []

    def write(name: Path) -> None:
        """Write once it was said that nothing is there."""
        waited_for.append(name)
        path.write_text(RETIRED.format(pages=2))

    monkeypatch.setattr("trainrig.importers.file._PATIENCE_S", 0.0)
    monkeypatch.setattr("trainrig.importers.file._say_waiting", write)
    done = CliRunner().invoke(cli, ["doctor", str(path), "--json"], standalone_mode=False)
    assert done.exception is None, done.exception
    assert waited_for == [path]
    assert [each["id"] for each in json.loads(done.stdout)["findings"]] == ["memory-rows-replaced"]


@pytest.mark.parametrize("other", ["RTX 4080", "RTX 4090"])
def test_files_of_two_machines_are_said_to_be_mixed(tmp_path: Path, other: str) -> None:
    for model in ("RTX 4090", other):
        text = RETIRED.format(pages=0) + f"    Product Name : NVIDIA GeForce {model}\n"
        (tmp_path / f"{model}.txt").write_text(text)
    done = CliRunner().invoke(cli, ["doctor", str(tmp_path)], standalone_mode=False)
    assert ("the answers mix machines" in done.stderr) == (other != "RTX 4090")
