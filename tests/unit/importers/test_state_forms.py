"""Tools that describe GPUs and links beside nvidia-smi -q, and RDMA, with their right values."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainrig.errors import DataError
from trainrig.importers import Reading, read_file
from trainrig.importers.extract import device_name
from trainrig.machine.snapshot import Missing

SAMPLES = Path(__file__).parent / "samples"


def read(name: str) -> Reading:
    ((_, reading),) = read_file(SAMPLES / name)
    return reading


def value(reading: Reading, metric: str, index: int | None = None, **case: object) -> float | None:
    (record,) = [
        record
        for record in reading.records
        if record.metric == metric
        and record.device_index == index
        and all(record.case.get(key) == wanted for key, wanted in case.items())
    ]
    return record.value


def test_nvlinks_that_are_down_are_counted_beside_those_that_are_up() -> None:
    reading = read("nvlink-2xa100.txt")
    assert [(g.nvlinks.active, g.nvlinks.inactive) for g in reading.gpus] == [(4, 0), (3, 1)]


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("NVML: Unable to retrieve NVLink information as all links are inactive", (0, None)),
        ("Device does not have or support Nvlink", (0, 0)),
    ],
)
def test_a_gpu_without_links_has_none_and_one_whose_links_are_down_has_some(
    line: str, counts: tuple[int, int | None], tmp_path: Path
) -> None:
    (tmp_path / "s.txt").write_text(f"GPU 6: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n{line}\n")
    ((_, reading),) = read_file(tmp_path / "s.txt")
    links = reading.gpus[0].nvlinks
    inactive = None if isinstance(links.inactive, Missing) else links.inactive
    assert (links.active, inactive) == counts


def test_the_matrix_of_direct_access_is_of_pairs() -> None:
    links = {(link.a, link.b): link.p2p_read for link in read("topo-p2p.txt").links}
    assert links == {(0, 1): "ok", (0, 2): "chipset not supported", (1, 2): "chipset not supported"}


def test_rows_of_dmon_are_samples_of_medians() -> None:
    reading = read("dmon-2x.txt")
    assert value(reading, "power", 0) == 303.0 and value(reading, "utilization", 1) == 0.98
    assert value(reading, "sm_clock", 1) == 2535e6


def test_device_query_describes_the_gpus_and_their_peers() -> None:
    reading = read("device-query.txt")
    first = reading.gpus[0]
    assert (first.compute_capability, first.num_cores) == ("8.6", 10496)
    assert (first.memory.total_bytes, first.memory.bus_bits) == (25327566848, 384)
    assert [gpu.pci_address for gpu in reading.gpus] == ["0000:01:00.0", "0000:41:00.0"]
    assert [(link.a, link.b, link.p2p_read) for link in reading.links] == [(0, 1, "ok")]


def test_perftest_s_gigabits_are_bits_and_its_megabytes_powers_of_two(tmp_path: Path) -> None:
    assert value(read("perftest-write.txt"), "byte_rate", bytes=65536) == pytest.approx(24.615e9)
    text = (SAMPLES / "perftest-write.txt").read_text().replace("Gb/sec", "MB/sec")
    (tmp_path / "mb.txt").write_text(text)
    ((_, reading),) = read_file(tmp_path / "mb.txt")
    assert value(reading, "byte_rate", bytes=65536) == pytest.approx(196.92 * 2**20)


def test_amd_s_gpus_are_read_as_on_this_machine() -> None:
    rocm, smi = read("rocm-smi.json").gpus[0], read("amd-smi-static.json").gpus[0]
    assert (rocm.pci_address, rocm.memory.total_bytes) == ("0000:c1:00.0", 68702699520)
    assert (smi.name, smi.memory.total_bytes) == ("AMD Instinct MI300X", 192 * 2**30)


def test_fio_s_text_has_the_rates_of_its_json() -> None:
    reading = read("fio-text.txt")
    assert value(reading, "byte_rate", job="scan") == pytest.approx(19.5 * 2**30 / 10.001)
    assert value(reading, "op_rate", job="scan", op="randread", depth=32, jobs=4) == 512e3
    assert value(reading, "byte_rate", op="write", block=2**20) == pytest.approx(1.86 * 2**30, 1e-3)


def test_fio_2_counts_in_powers_of_two_and_an_error_is_no_rate(tmp_path: Path) -> None:
    old = """fio-2.16
a: (groupid=0, jobs=1): err= 0: pid=1: Thu Jan  1 00:00:00 2026
  read : io=1024.0MB, bw=102400KB/s, iops=25600, runt= 10000msec
b: (groupid=0, jobs=1): err= 5 (file:x.c:1, func=y, error=Input/output error): pid=2: Thu
  read : io=1.0MB, bw=1KB/s, iops=1, runt= 10000msec
"""
    (tmp_path / "old.txt").write_text(old)
    ((_, reading),) = read_file(tmp_path / "old.txt")
    assert value(reading, "byte_rate", job="a") == pytest.approx(2**30 / 10)
    assert value(reading, "byte_rate", job="b") is None


def test_dcgm_s_table_says_what_failed_on_which_gpu() -> None:
    reading = read("dcgm-diag-table.txt")
    states = {(r.case["test"], r.device_index): r.status.value for r in reading.records}
    assert states["GPU Memory", 0] == "ok" and states["GPU Memory", 1] == "failed"
    assert states["Persistence Mode", None] == "failed"
    assert states["Targeted Power", None] == "skipped"
    assert (reading.version, reading.driver) == ("3.3.8", "535.183.01")


def test_dcgm_4_names_gpus_in_rows_of_their_own(tmp_path: Path) -> None:
    table = """| Diagnostic                | Result                   |
|-----  Hardware  ----------+--------------------------|
| memory                    | Fail                     |
|                           | GPU0: Pass               |
|                           | GPU1: Fail               |
"""
    (tmp_path / "diag.txt").write_text(table)
    ((_, reading),) = read_file(tmp_path / "diag.txt")
    assert [(r.device_index, r.status.value) for r in reading.records] == [(0, "ok"), (1, "failed")]


def test_a_product_behind_a_chip_s_code_name_is_found() -> None:
    assert device_name("Arcturus GL-XL [Instinct MI100]") == "MI100"
    assert device_name("NVIDIA H100 80GB HBM3") == "H100 SXM5 80GB"
    assert device_name("Unknown [Thing]") == "Unknown [Thing]"


@pytest.mark.parametrize("name", ["topo-p2p.txt", "perftest-write.txt", "dmon-2x.txt"])
def test_a_head_without_results_is_refused(name: str, tmp_path: Path) -> None:
    head = (SAMPLES / name).read_text().splitlines()
    at = next(n for n, line in enumerate(head) if "GPU0" in line or "#" in line)
    (tmp_path / name).write_text("\n".join(head[: at + 1]) + "\n")
    with pytest.raises(DataError):
        read_file(tmp_path / name)
