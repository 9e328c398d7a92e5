"""The parsers on outputs captured from real machines, where these lie beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainrig.machine.amd import parse_rocm_smi
from trainrig.machine.cpu import Fields, cpuinfo_cores, physical_cores
from trainrig.machine.disks import parse_lsblk
from trainrig.machine.memory import count_channels, meminfo_sizes, parse_dimms, slowest_speed
from trainrig.machine.snapshot import Missing, value_or
from trainrig.machine.software import driver_version

# file, modules, channels (None: the locators do not name them), MT/s of the slowest module
DIMMS = [
    ("memory_superbench_2xv100_pcie.txt", 8, 8, 2400.0),
    ("memory_supermicro_6028r.txt", 4, 4, 2133.0),
    ("memory_supermicro_7048gr.txt", 3, 3, 2133.0),
    ("memory_qct_x10e.txt", 2, 2, 2133.0),
    ("memory_dell_m630.txt", 8, None, 2133.0),
    ("memory_hp_bl460c_gen10.txt", None, None, 2666.0),
    ("memory_superbench_8xa100_ndv4.txt", 6, None, None),
    ("memory_vmware.txt", None, None, None),
]


@pytest.mark.parametrize(("name", "modules", "channels", "speed"), DIMMS)
def test_dmidecode(
    captures: Path, name: str, modules: int | None, channels: int | None, speed: float | None
) -> None:
    dimms = parse_dimms((captures / "dmidecode" / name).read_text())
    assert isinstance(dimms, tuple)
    assert modules is None or len(dimms) == modules
    assert value_or(count_channels(dimms), -1) == (channels or -1)
    assert value_or(slowest_speed(dimms), -1.0) == (speed or -1.0)


def text_fields(content: str) -> Fields:
    """`lscpu` without -J: the same fields, a line each."""
    pairs = (line.partition(":") for line in content.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


@pytest.mark.parametrize(
    ("name", "cores"),
    [
        ("dual_epyc_7451.txt", 48),
        ("dual_xeon_e5_2670v2.txt", 20),
        ("grace_hopper_neoverse_v2.txt", 72),
        ("x86_64-dell_e4310.txt", 2),
    ],
)
def test_lscpu_cores(captures: Path, name: str, cores: int) -> None:
    assert physical_cores(text_fields((captures / "lscpu" / name).read_text())) == cores


def test_proc_cpuinfo(captures: Path) -> None:
    files = sorted((captures / "lscpu").glob("proc_cpuinfo*"))
    assert files
    for file in files:
        cores = cpuinfo_cores(file.read_text())
        assert isinstance(cores, tuple), file.name
        assert cores[0].get("model name") or cores[0].get("vendor_id"), file.name


@pytest.mark.parametrize(
    ("name", "mount"),
    [
        ("many_nvme_raid.json", "/"),
        ("server1.json", "/mnt/test-cache/vol-0"),
        ("server2.json", "/"),
    ],
)
def test_lsblk(captures: Path, name: str, mount: str) -> None:
    found = parse_lsblk((captures / "lsblk" / name).read_text())
    assert isinstance(found, tuple) and found
    assert not any(disk.name.startswith(("loop", "/")) for disk in found)
    assert mount in {point.path for disk in found for point in disk.mounts}


@pytest.mark.parametrize(
    ("name", "count", "first_id"),
    [
        ("rocm_smi_mi100_rocm602.json", 4, "1002:738c"),
        ("rocm_info_mi100.json", 8, "1002:738c"),
        ("rocm_smi_rx6700xt_rocm612.json", 1, "1002:73df"),
        ("rocm_smi_vega_20_wks_gl_xe.json", 1, "1002:66a1"),
    ],
)
def test_rocm_smi(captures: Path, name: str, count: int, first_id: str) -> None:
    found = parse_rocm_smi((captures / "amd" / name).read_text())
    assert isinstance(found, tuple) and len(found) == count
    assert found[0].pci_id == first_id
    assert value_or(found[0].memory.total_bytes, 0) > 2**33
    assert 20.0 < value_or(found[0].cooling.temperature_c, 0.0) < 110.0


def test_meminfo_and_driver(captures: Path) -> None:
    sizes = meminfo_sizes((captures / "memory" / "proc_meminfo.txt").read_text())
    assert isinstance(sizes, dict) and sizes["MemTotal"] > 2**30
    file = captures / "system" / "proc_driver_nvidia_version_440.txt"
    assert driver_version(file.read_text()) == "440.31"


def test_no_capture_breaks_a_parser(captures: Path) -> None:
    """Any file handed to the wrong parser is a reason or a value, never a traceback."""
    files = [file for file in captures.rglob("*") if file.is_file()]
    assert len(files) > 100
    for file in files:
        content = file.read_text(encoding="utf-8", errors="replace")
        for parse in (parse_dimms, parse_lsblk, parse_rocm_smi, cpuinfo_cores, meminfo_sizes):
            assert isinstance(parse(content), tuple | dict | Missing), (file, parse)
        json.dumps(value_or(driver_version(content), ""))
