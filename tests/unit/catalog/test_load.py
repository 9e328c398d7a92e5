"""The catalog's data files: every value sourced, dense, consistent; broken files refused."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from trainrig.catalog.chip import CHIP_KEYS, Chip, Peak, Provenance, Source, peak
from trainrig.catalog.load import CHIPS_DIR, load_chips, read_chips
from trainrig.catalog.lookup import chip_by_pci_id, find_chip
from trainrig.errors import DataError

CHIPS = load_chips()
NOT_CLAIMS = {"name", "vendor", "provenance", "short_names", "peaks", "notes"}
NAMED_BY_THE_ISSUE = [
    "V100 SXM2 16GB", "V100 SXM2 32GB", "V100 PCIe 16GB", "V100 PCIe 32GB", "T4", "RTX 2080 Ti",
    "TITAN V", "A100 SXM4 40GB", "A100 SXM4 80GB", "A100 PCIe 40GB", "A100 PCIe 80GB",
    "A800 SXM4 80GB", "A30", "A40", "RTX A6000", "RTX 3090", "RTX 3090 Ti", "RTX 4090",
    "RTX 4090 D", "RTX 5090", "RTX 6000 Ada", "L4", "L40S", "H100 PCIe 80GB", "H100 SXM5 80GB",
    "H100 NVL 94GB", "H800 SXM5 80GB", "H20 96GB", "H200 SXM 141GB", "B200 SXM", "MI250X",
    "MI300X", "MI325X", "MI355X", "Gaudi2", "Gaudi3", "TPU v4", "TPU v5e", "TPU v5p",
    "Ascend 910B", "Apple M4", "Apple M4 Pro", "Apple M4 Max (40-core)",
    "A10G", "RTX A5000", "RTX A4500", "RTX A4000", "RTX 3080 10GB", "RTX 3080 Ti", "RTX 3070",
    "RTX 3060 12GB", "RTX 4080", "RTX 4080 SUPER", "RTX 4070 Ti", "RTX 4070", "RTX 5080",
    "RTX 5070 Ti", "RTX 4000 Ada", "RTX 5000 Ada", "Quadro RTX 8000", "Quadro RTX 6000",
    "Quadro RTX 5000", "RTX 2080", "P100 SXM2 16GB", "P100 PCIe 16GB", "P40", "GTX 1080 Ti",
    "V100S PCIe 32GB", "Custom H100 96GB HBM2e", "Custom H100 96GB HBM3", "GB10", "MI50", "MI100",
    "MI210", "MI250", "MI350X", "Radeon RX 7900 XTX", "Radeon PRO W7900",
    "Data Center GPU Max 1550", "Arc A770", "Arc B580", "Trainium1", "TPU v2", "TPU7x",
    "Ascend 910C", "Apple M1 Max (32-core)", "Apple M1 Max (24-core)", "Apple M1 Ultra (64-core)",
    "Apple M1 Ultra (48-core)", "Apple M2 Pro (19-core)", "Apple M2 Pro (16-core)",
    "Apple M2 Max (38-core)", "Apple M2 Max (30-core)", "Apple M2 Ultra (76-core)",
    "Apple M2 Ultra (60-core)", "Apple M3 Max (40-core)", "Apple M3 Max (30-core)",
    "Apple M3 Ultra (80-core)", "Apple M3 Ultra (60-core)",
    "MI25", "MI60", "MI300A", "MI308X", "MI250X GCD", "MI250 GCD", "Radeon RX 7900 XT",
    "Radeon RX 7900 GRE", "Radeon RX 7800 XT", "Radeon PRO W7800", "Radeon RX 9070 XT",
    "Radeon RX 9070", "Radeon RX 6900 XT", "Radeon RX 6800 XT", "Radeon VII", "Radeon AI PRO R9700",
    "Radeon 8060S", "Apple M1", "Apple M1 Pro (16-core)", "Apple M1 Pro (14-core)", "Apple M2",
    "Apple M3", "Apple M3 Pro (18-core)", "Apple M3 Pro (14-core)", "Apple M5", "Trainium3",
    "Ascend 910A", "Ascend 910B1", "Ascend 910B2", "Ascend 910B3", "Ascend 910B4",
    "Ascend 910C die", "RTX 4060", "RTX 4060 Ti 8GB", "RTX 4060 Ti 16GB", "RTX 4070 SUPER",
    "RTX 4070 Ti SUPER", "RTX 4500 Ada", "RTX 2000 Ada", "L20", "L2", "RTX 3050 8GB", "RTX 3060 Ti",
    "RTX 3070 Ti", "RTX 3080 12GB", "A2", "A16", "RTX A2000 12GB", "RTX A5500", "Custom A100 64GB",
    "A100X", "RTX 5050", "RTX 5060", "RTX 5060 Ti 8GB", "RTX 5060 Ti 16GB", "RTX 5070",
    "RTX PRO 5000 Blackwell", "RTX PRO 4500 Blackwell", "RTX PRO 4000 Blackwell", "B100 SXM",
    "H800 PCIe 80GB", "H200 NVL 141GB", "H20 141GB", "Custom H100 64GB HBM2", "GTX 1080",
    "GTX 1070", "GTX 1070 Ti", "GTX 1060 6GB", "TITAN Xp", "P4", "Quadro P6000", "Quadro P5000",
    "M40", "K80", "TITAN X (Maxwell)", "GTX 980 Ti", "RTX 2060 6GB", "RTX 2060 SUPER", "RTX 2070",
    "RTX 2070 SUPER", "RTX 2080 SUPER", "T4G", "Quadro RTX 4000", "GTX 1660", "GTX 1660 SUPER",
    "GTX 1660 Ti", "GTX 1650", "Quadro GV100", "MTT S4000", "MetaX C500", "MLU370-X8", "K100-AI",
    "BI-V100",
]  # fmt: skip


def by_name(name: str) -> Chip:
    chip = find_chip(name)
    assert chip is not None, name
    return chip


def test_the_chips_people_ask_for_are_there() -> None:
    assert [by_name(name).name for name in NAMED_BY_THE_ISSUE] == list(NAMED_BY_THE_ISSUE)


def test_every_value_has_a_dated_source() -> None:
    claims = CHIP_KEYS.places.keys() - NOT_CLAIMS
    for chip in CHIPS:
        given = {name for name in claims if CHIP_KEYS.get(chip, name) not in (None, ())}
        assert given | {p.field for p in chip.peaks} == set(chip.provenance), chip.name
        for origin in chip.provenance.values():
            assert origin.source.title, chip.name
            assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", origin.source.date), chip.name


PRESUMED = {"unsourced", "line", "naming", "generation"}


def test_nothing_is_recalled_and_what_is_presumed_is_never_called_verified() -> None:
    origins = [
        (chip.name, name, origin) for chip in CHIPS for name, origin in chip.provenance.items()
    ]
    assert {origin.source.key for *_, origin in origins} >= PRESUMED
    wrong = [
        (chip, name)
        for chip, name, origin in origins
        if "recall" in (origin.source.key + origin.source.title).casefold()
        or (origin.source.key in PRESUMED and origin.verified)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "path", sorted(CHIPS_DIR.parent.rglob("*.toml")), ids=lambda path: path.stem
)
def test_no_file_of_the_catalog_is_from_memory(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\brecall|from memory|not looked up", text, re.IGNORECASE)
    for name, source in tomllib.loads(text).get("sources", {}).items():
        assert source["title"] and re.match(r"20\d\d-\d\d", source["date"]), name


# Vendors round the claim (8 TB/s for 8.18), so up to 2.5 % apart; a wrong bus width, stack count
# or multiplier is off by 9 % or more (11 or 12 memory chips of 32 bits).
BANDWIDTH_TOLERANCE = 0.025


def test_bandwidth_is_data_rate_times_bus_width() -> None:
    for chip in CHIPS:
        if chip.memory.computed_bandwidth and chip.memory.bandwidth:
            expected = pytest.approx(chip.memory.bandwidth, rel=BANDWIDTH_TOLERANCE)
            assert chip.memory.computed_bandwidth == expected, chip.name


def test_bandwidth_of_the_textbook_examples() -> None:
    assert by_name("RTX 4090").memory.computed_bandwidth == pytest.approx(1008e9)
    assert by_name("Apple M4 Max (40-core)").memory.computed_bandwidth == pytest.approx(
        546e9, rel=1e-3
    )
    assert sum(chip.memory.computed_bandwidth is not None for chip in CHIPS) >= 40


# Dense peaks as their makers print them.  The sparse figure is twice this.
DENSE = [
    ("H100 SXM5 80GB", "fp16", None, 989e12),
    ("H100 SXM5 80GB", "fp8", None, 1979e12),
    ("H100 PCIe 80GB", "bf16", None, 756e12),
    ("H200 SXM 141GB", "bf16", None, 989e12),
    ("A100 SXM4 80GB", "bf16", None, 312e12),
    ("A100 SXM4 80GB", "tf32", None, 156e12),
    ("A100 SXM4 80GB", "fp64", None, 19.5e12),
    ("A100 PCIe 40GB", "int8", None, 624e12),
    ("RTX 4090", "fp16", None, 165.2e12),
    ("RTX 4090", "fp16", "fp16", 330.3e12),
    ("RTX 4090", "fp8", None, 330.3e12),
    ("RTX 4090", "int8", None, 660.6e12),
    ("RTX 5090", "bf16", None, 209.5e12),
    ("RTX PRO 6000 Blackwell", "bf16", None, 503.8e12),
    ("RTX 3090", "fp16", None, 71e12),
    ("RTX 2080 Ti", "fp16", None, 53.8e12),
    ("L40S", "bf16", None, 362e12),
    ("L4", "fp16", None, 121e12),
    ("V100 SXM2 16GB", "fp16", None, 125e12),
    ("V100 SXM2 16GB", "fp32", None, 15.67e12),
    ("B200 SXM", "bf16", None, 2250e12),
    ("MI300X", "bf16", None, 1307.4e12),
    ("MI355X", "bf16", None, 2500e12),
    ("Gaudi2", "bf16", None, 432e12),
    ("RTX A4000", "fp16", None, 76.7e12),
    ("RTX 3080 10GB", "fp16", None, 59.5e12),
    ("RTX 3080 10GB", "fp16", "fp16", 119e12),
    ("RTX 3070", "bf16", None, 40.6e12),
    ("RTX 4080", "fp16", None, 97.5e12),
    ("RTX 4080", "fp8", None, 194.9e12),
    ("RTX 5080", "bf16", None, 112.6e12),
    ("RTX 5080", "fp4", None, 900.4e12),
    ("Quadro RTX 6000", "fp16", None, 130.5e12),
    ("Quadro RTX 5000", "fp16", None, 89.2e12),
    ("RTX 2080", "fp16", None, 40.3e12),
    ("V100S PCIe 32GB", "fp16", None, 130e12),
    ("V100 SXM2 16GB", "int8", None, 62.7e12),
    ("P100 SXM2 16GB", "fp16", "fp16", 21.2e12),
    ("P40", "int8", None, 47e12),
    ("MI100", "fp16", None, 184.6e12),
    ("MI250", "bf16", None, 362e12),
    ("MI350X", "bf16", None, 2300e12),
    ("Radeon RX 7900 XTX", "fp16", None, 122.8e12),
    ("Trainium1", "bf16", None, 190e12),
    ("TPU7x", "bf16", None, 2307e12),
]


@pytest.mark.parametrize(("name", "dtype", "accumulate", "rate"), DENSE)
def test_peaks_are_dense_and_keyed_by_accumulate_type(
    name: str, dtype: str, accumulate: str | None, rate: float
) -> None:
    found = peak(by_name(name), dtype, accumulate)
    assert found is not None
    assert found.rate == pytest.approx(rate, rel=1e-3)


# Dense fp16 multiply-adds per clock of one tensor core by compute capability, and what other types
# do relative to it; a sparse peak would be twice that.
FMA_PER_CLOCK = {"7.0": 64, "7.5": 64, "8.0": 256, "8.6": 128, "8.9": 128, "9.0": 512}
FMA_PER_CLOCK |= {"10.0": 1024, "12.0": 128}
RELATIVE = {"tf32": 0.5, "bf16": 1.0, "fp16": 1.0, "fp8": 2.0, "int8": 2.0, "fp4": 4.0}
COUNTED = [
    (chip, found)
    for chip in CHIPS
    for found in chip.peaks
    if found.unit == "tensor" and found.dtype in RELATIVE
    if chip.compute.tensor_cores
    and chip.compute.boost_clock
    and chip.compute.capability in FMA_PER_CLOCK
]


def test_no_tensor_peak_exceeds_what_the_tensor_cores_can_do() -> None:
    for chip, claim in COUNTED:
        assert chip.compute.tensor_cores and chip.compute.boost_clock
        per_core_and_clock = claim.rate / (2 * chip.compute.tensor_cores * chip.compute.boost_clock)
        most = FMA_PER_CLOCK[chip.compute.capability or ""] * RELATIVE[claim.dtype]
        assert per_core_and_clock <= most * 1.02, (chip.name, claim.field)


def test_that_check_covers_most_of_the_catalog() -> None:
    assert len(COUNTED) >= 100
    assert len({chip.name for chip, _ in COUNTED}) >= 25


def test_a_peak_that_is_not_known_is_none() -> None:
    assert peak(by_name("V100 SXM2 16GB"), "bf16") is None
    assert peak(by_name("RTX 3090"), "fp8") is None
    assert peak(by_name("Apple M4"), "fp16") is None
    assert peak(by_name("RTX 4090"), "fp12") is None


def vector_peak(chip: Chip, dtype: str) -> Peak | None:
    """Of the ordinary lanes alone."""
    lanes = (p for p in chip.peaks if p.dtype == dtype and p.unit == "vector")
    return max(lanes, key=lambda p: p.rate, default=None)


def test_the_faster_unit_counts_for_a_matmul_and_the_lanes_for_elementwise() -> None:
    a100 = by_name("A100 SXM4 80GB")
    matmul, lanes = peak(a100, "fp64"), vector_peak(a100, "fp64")
    assert matmul is not None and matmul.unit == "tensor"
    assert lanes is not None and lanes.rate == pytest.approx(9.746e12)


@pytest.mark.parametrize("name", ["P100 SXM2 16GB", "P40", "GTX 1080 Ti"])
def test_pascal_has_no_tensor_cores_and_no_bf16(name: str) -> None:
    """cuBLAS sums fp16 products in fp32, in ordinary lanes; GP102's own fp16 is at 1/64."""
    chip = by_name(name)
    assert chip.compute.tensor_cores is None
    assert {found.unit for found in chip.peaks} == {"vector"}
    assert peak(chip, "fp16") is None and peak(chip, "bf16") is None
    half, full = vector_peak(chip, "fp16"), vector_peak(chip, "fp32")
    assert half is not None and full is not None
    ratio = 2.0 if name.startswith("P100") else 1 / 64
    assert half.rate / full.rate == pytest.approx(ratio, rel=0.01)


def test_pcie_is_said_each_way() -> None:
    assert by_name("RTX 3090").pcie.bandwidth == pytest.approx(31.5e9, rel=1e-3)
    assert by_name("H100 SXM5 80GB").pcie.bandwidth == pytest.approx(63e9, rel=1e-3)
    assert by_name("TPU v4").pcie.bandwidth is None


def test_pci_ids_lead_to_their_chip() -> None:
    found = chip_by_pci_id("10DE:2684")
    assert found is not None and found.name == "RTX 4090"
    assert chip_by_pci_id("10de:2685") is by_name("RTX 4090 D")
    assert chip_by_pci_id("10de:2717") is None  # the laptop's RTX 4090
    assert chip_by_pci_id("") is None


def test_values_that_contradict_each_other_are_flagged() -> None:
    assert not by_name("Ascend 910B").provenance["tensor.fp16.fp32"].verified
    assert by_name("RTX 4090").provenance["tensor.fp16.fp32"] == Provenance(
        source=Source(
            key="ada",
            title="NVIDIA Ada GPU Architecture, whitepaper v2.1, appendix A",
            url="https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
            date="2026-11-20",
        ),
        verified=True,
    )


WHOLE = """
schema = 1
[sources.a]
title = "A sheet"
date = "2026-11-20"
[[chip]]
name = "X1"
vendor = "Maker"
[chip.from.a]
tdp_w = 100
"""

BROKEN = [
    ("not = [toml", "chip.toml"),
    ("schema = 2\nchip = []\n[sources]\n", "schema"),
    (WHOLE.replace("tdp_w = 100", "tdp_w = -5"), "tdp_w"),
    (WHOLE.replace("tdp_w = 100", 'tdp_w = "100 W"'), "tdp_w"),
    (WHOLE.replace("tdp_w = 100", "tdp_w = nan"), "tdp_w"),
    (WHOLE.replace("tdp_w = 100", "watts = 100"), "watts"),
    (WHOLE.replace("chip.from.a", "chip.from.b"), "unknown source"),
    (WHOLE.replace('date = "2026-11-20"', 'date = "lately"'), "date"),
    (WHOLE.replace('date = "2026-11-20"', ""), "date"),
    (WHOLE + "[chip.unverified.a]\ntdp_w = 90\n", "given twice"),
    (WHOLE + '[[chip]]\nname = "x1"\nvendor = "Maker"\n', "belongs to both"),
    (WHOLE + "tensor.fp16.sparse = 2\n", "tensor"),
    (WHOLE + 'pci_ids = ["2684"]\n', "pci_ids"),
]


@pytest.mark.parametrize(("text", "part"), BROKEN)
def test_a_broken_data_file_is_one_line(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "chip.toml"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_chips([path])
    assert part in caught.value.message
    assert "\n" not in caught.value.message
    if part != "belongs to both":
        assert str(path) in caught.value.message and caught.value.hint


def test_the_unbroken_file_reads(tmp_path: Path) -> None:
    path = tmp_path / "chip.toml"
    path.write_text(WHOLE)
    (chip,) = read_chips([path])
    assert (chip.name, chip.board.tdp, chip.memory.bandwidth) == ("X1", 100.0, None)


def test_bytes_that_are_no_text_and_absent_files_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "chip.toml"
    path.write_bytes(b"\xff\xfe\x00")
    for bad in (path, tmp_path / "none.toml"):
        with pytest.raises(DataError):
            read_chips([bad])


@pytest.mark.parametrize("chip", CHIPS[::7], ids=lambda chip: chip.name)
def test_a_chip_is_made_again_of_its_flat_keys(chip: Chip) -> None:
    assert Chip.of(**CHIP_KEYS.flat(chip)) == chip


@pytest.mark.parametrize("key", CHIP_KEYS.places)
def test_each_flat_key_is_a_value_of_its_own(key: str) -> None:
    chip = by_name("RTX 4090")
    before, after = CHIP_KEYS.flat(chip), CHIP_KEYS.flat(chip.replace(**{key: "other"}))
    assert {name for name in before if before[name] != after[name]} == {key}
