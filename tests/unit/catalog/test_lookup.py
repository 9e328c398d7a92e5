"""A name gives the right chip or none, never a neighbour's figures."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.catalog.load import chip_files, chips_of_file, load_chips, names_in_file
from trainrig.catalog.lookup import (
    candidates,
    chips_named,
    did_you_mean,
    find_chip,
    most_common,
    normalise,
    require_chip,
)
from trainrig.errors import UsageError

CHIPS = load_chips()
KNOWN = [name for chip in CHIPS for name in (chip.name, *chip.short_names, *chip.aliases)]

REPORTED = {
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "NVIDIA GeForce RTX 4090 D": "RTX 4090 D",
    "4090 D": "RTX 4090 D",
    "rtx-4090": "RTX 4090",
    "GeForce RTX 4090": "RTX 4090",
    "GeForce RTX 2080 Ti": "RTX 2080 Ti",
    "NVIDIA GeForce RTX 3090 Ti": "RTX 3090 Ti",
    "NVIDIA GeForce RTX 5090": "RTX 5090",
    "NVIDIA A100-SXM4-80GB": "A100 SXM4 80GB",
    "A100-SXM4-40GB": "A100 SXM4 40GB",
    "NVIDIA A100-PCIE-40GB": "A100 PCIe 40GB",
    "NVIDIA A100 80GB PCIe": "A100 PCIe 80GB",
    "NVIDIA A800-SXM4-80GB": "A800 SXM4 80GB",
    "NVIDIA H100 80GB HBM3": "H100 SXM5 80GB",
    "NVIDIA H100 PCIe": "H100 PCIe 80GB",
    "NVIDIA H100 NVL": "H100 NVL 94GB",
    "NVIDIA H200": "H200 SXM 141GB",
    "NVIDIA H20": "H20 96GB",
    "NVIDIA H800": "H800 SXM5 80GB",
    "NVIDIA GH200 480GB": "GH200 96GB",
    "NVIDIA B200": "B200 SXM",
    "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
    "NVIDIA RTX A6000": "RTX A6000",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000 Blackwell",
    "Tesla V100-SXM2-16GB": "V100 SXM2 16GB",
    "Tesla V100-SXM2-32GB": "V100 SXM2 32GB",
    "Tesla V100-PCIE-32GB": "V100 PCIe 32GB",
    "Tesla T4": "T4",
    "Tesla V100S-PCIE-32GB": "V100S PCIe 32GB",
    "Tesla P100-SXM2-16GB": "P100 SXM2 16GB",
    "Tesla P100-PCIE-16GB": "P100 PCIe 16GB",
    "Tesla P40": "P40",
    "GeForce GTX 1080 Ti": "GTX 1080 Ti",
    "Quadro RTX 6000": "Quadro RTX 6000",
    "Quadro RTX 8000": "Quadro RTX 8000",
    "NVIDIA A10G": "A10G",
    "NVIDIA RTX A4000": "RTX A4000",
    "NVIDIA GeForce RTX 3080": "RTX 3080 10GB",
    "NVIDIA GeForce RTX 4080 SUPER": "RTX 4080 SUPER",
    "NVIDIA RTX 5000 Ada Generation": "RTX 5000 Ada",
    "NVIDIA GeForce RTX 5070 Ti": "RTX 5070 Ti",
    "NVIDIA GB10": "GB10",
    "H100 SXM 96GB": "Custom H100 96GB HBM2e",
    "AMD Instinct MI250": "MI250",
    "AMD Instinct MI350X": "MI350X",
    "AMD Radeon RX 7900 XTX": "Radeon RX 7900 XTX",
    "Intel(R) Arc(TM) B580 Graphics": "Arc B580",
    "Ironwood": "TPU7x",
    "trn1": "Trainium1",
    "NVIDIA TITAN V": "TITAN V",
    "NVIDIA L40S": "L40S",
    "AMD Instinct MI300X OAM": "MI300X",
    "Gaudi 3": "Gaudi3",
    "Apple M4": "Apple M4",
    "NVIDIA GeForce RTX 2080 SUPER": "RTX 2080 SUPER",
    "NVIDIA GeForce RTX 4070 Ti SUPER": "RTX 4070 Ti SUPER",
    "NVIDIA GeForce RTX 3070 Ti": "RTX 3070 Ti",
    "NVIDIA GeForce GTX 1080": "GTX 1080",
    "A100X": "A100X",
    "NVIDIA A100-SXM-64GB": "Custom A100 64GB",
    "NVIDIA A16": "A16",
    "NVIDIA A2": "A2",
    "NVIDIA H100 64GB HBM2": "Custom H100 64GB HBM2",
    "NVIDIA H20-3e": "H20 141GB",
    "NVIDIA L2": "L2",
    "NVIDIA L20": "L20",
    "Quadro RTX 4000": "Quadro RTX 4000",
    "AMD Radeon RX 7900 XT": "Radeon RX 7900 XT",
    "AMD Instinct MI300A": "MI300A",
    "Ascend 910": "Ascend 910A",
    "Ascend 910B3": "Ascend 910B3",
    "NVIDIA GeForce RTX 4090 Laptop GPU": "RTX 4090 Laptop",
    "NVIDIA GeForce RTX 5090 D": "RTX 5090 D",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 Blackwell Server",
    "Intel(R) Arc(TM) A750 Graphics": "Arc A750",
}

# Other chips, slices, virtual cards, boards, several cards, and names that fit several chips.
NEVER_MATCHED = [
    "NVIDIA GeForce RTX 2080 with Max-Q Design",
    "NVIDIA GeForce RTX 5090 D v2",
    "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "H100 MIG 1g",
    "MIG 1g.10gb",
    "GRID A100-10C",
    "GRID A100X-4C",
    "NVIDIA A40-48Q",
    "NVIDIA A10M",
    "NVIDIA AX800",
    "NVIDIA A800 40GB Active",
    "NVIDIA H100",
    "NVIDIA H200 NVL",
    "NVIDIA H20 NVL16",
    "NVIDIA H800 PCIe",
    "NVIDIA H800 NVL",
    "NVIDIA L40G",
    "NVIDIA RTX 6000D",
    "NVIDIA RTX 6000 Ada Generation Laptop GPU",
    "RTX 6000",
    "NVIDIA TITAN V CEO Edition",
    "TITAN Z",
    "Tesla V100-SXM3-32GB",
    "Tesla V100-DGXS-32GB",
    "Tesla P100-PCIE-12GB",
    "NVIDIA RTX 4500 Ada Generation",
    "AMD Instinct MI60 / MI50",
    "Apple M2 Max",
    "Apple M1 Ultra",
    "P100",
    "Tesla V100-SXM2...",
    "Tesla T40 24GB",
    "NVIDIA T400",
    "NVIDIA GeForce RTX 3090 x2",
    "2x RTX 4090",
    "RTX 4090+",
    "RTX 4090超",
    "RTX 40901",
    "RTX 409",
    "AMD Instinct MI300X HF",
    "AMD Instinct MI250X / MI250",
    "Gaudi",
    "TPU v5",
    "Apple M4 Max",
    "Apple M4 Ultra",
    "A100",
    "H100",
    "V100",
    "GH200",
    "NVIDIA Graphics Device",
    "NVIDIA",
    "GeForce RTX",
    "",
    "   ",
    "NVIDIA Corporation AD102 [GeForce RTX 4090] (rev a1)",
    "RTX 4090" + " " * 400 + "Laptop GPU",
]


def test_reported_names_find_their_chip() -> None:
    found = {reported: find_chip(reported) for reported in REPORTED}
    assert {reported: chip.name if chip else None for reported, chip in found.items()} == REPORTED


def test_other_chips_and_slices_find_none() -> None:
    found = {reported: find_chip(reported) for reported in NEVER_MATCHED}
    assert {reported: chip.name for reported, chip in found.items() if chip} == {}


def test_every_name_of_a_chip_finds_that_chip() -> None:
    for chip in CHIPS:
        for name in (chip.name, *chip.short_names, *chip.aliases):
            assert find_chip(name) is chip


def test_only_vendor_words_in_front_are_dropped() -> None:
    assert normalise("NVIDIA GeForce RTX 4090") == normalise("rtx-4090") == "rtx4090"
    assert normalise("Quadro RTX 6000") != normalise("RTX 6000")
    assert normalise("GRID A100") != normalise("A100")
    assert normalise("RTX 4090 by NVIDIA") != normalise("RTX 4090")


def test_an_ambiguous_name_lists_its_candidates() -> None:
    names = [chip.name for chip in candidates("A100")]
    assert names == ["A100 SXM4 40GB", "A100 SXM4 80GB", "A100 PCIe 40GB", "A100 PCIe 80GB"]
    assert [chip.name for chip in candidates("A100 80GB")] == ["A100 SXM4 80GB", "A100 PCIe 80GB"]
    assert candidates("A1") == ()
    assert candidates("") == ()
    with pytest.raises(
        UsageError, match=r"A100 is one of: A100 SXM4 40GB, .*A100 PCIe 80GB"
    ) as caught:
        require_chip("A100")
    assert caught.value.hint == 'give the whole name, as "A100 SXM4 80GB"'


@pytest.mark.parametrize(
    ("short", "chip"),
    [
        ("A100", "A100 SXM4 80GB"),
        ("A100 80GB", "A100 SXM4 80GB"),
        ("A100 40GB", "A100 SXM4 40GB"),
        ("H100", "H100 SXM5 80GB"),
        ("V100 32GB", "V100 SXM2 32GB"),
        ("V100 PCIe", "V100 PCIe 16GB"),
        ("M4 Max", "Apple M4 Max (40-core)"),
        ("GH200", "GH200 96GB"),
        ("rtx 6000", "RTX 6000 Ada"),
    ],
)
def test_a_short_name_is_presumed_to_be_the_most_common(short: str, chip: str) -> None:
    found = most_common(short)
    assert found is not None and found.name == chip
    assert found in chips_named(short) and len(chips_named(short)) > 1


@pytest.mark.parametrize("line", ["RTX", "TPU", "Arc Pro", "quadro", "RTX 4900", ""])
def test_a_line_alone_means_no_chip(line: str) -> None:
    assert most_common(line) is None
    with pytest.raises(UsageError):
        chips_named(line)


def test_an_unknown_name_gets_a_hint_and_no_figures() -> None:
    with pytest.raises(UsageError) as caught:
        require_chip("RTX 4900")
    assert caught.value.hint is not None and "RTX 4090" in caught.value.hint
    assert did_you_mean("NVIDIA GeForce RTX 4090 with Max-Q")[0].startswith("RTX 4090")
    with pytest.raises(UsageError) as caught:
        require_chip("zzzzzz")
    assert caught.value.hint == "list them with: trainrig catalog"
    with pytest.raises(UsageError) as caught:
        require_chip("x" * 5000)
    assert len(caught.value.message) < 100


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("H100 SMX", "H100 SXM5 80GB"),
        ("RTX 4080 Tii", "RTX 4080"),
        ("RTX4090 Ti", "RTX 4090"),
        ("MI300Y", "MI300X"),
        ("GH200 95GB", "GH200 96GB"),
    ],
)
def test_a_misspelt_variant_is_taken_for_one_of_the_same_number(typed: str, meant: str) -> None:
    """H100 SMX looks more like B100 SXM: letters alone do not tell them apart."""
    assert did_you_mean(typed)[0] == meant


@settings(deadline=None)  # a busy machine is no fault
@given(st.text(max_size=300))
def test_any_text_finds_a_chip_only_by_one_of_its_names(text: str) -> None:
    found = find_chip(text)
    if found is not None:
        own = (found.name, *found.short_names, *found.aliases)
        assert normalise(text) in {normalise(name) for name in own}
    candidates(text)
    did_you_mean(text)


@settings(deadline=None)  # a busy machine is no fault
@given(
    st.sampled_from(KNOWN),
    st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789é+", min_size=1, max_size=6),
)
def test_a_word_more_is_another_chip(name: str, extra: str) -> None:
    found = find_chip(f"{name} {extra}")
    if found is not None:  # "RTX 4090" and "d" is the name of another chip of ours, exactly
        assert normalise(f"{name} {extra}") in {normalise(known) for known in KNOWN}
        assert found is not find_chip(name) or normalise(extra) == ""


@settings(deadline=None)  # a busy machine is no fault
@given(st.sampled_from(KNOWN), st.sampled_from([str.upper, str.lower, str.title]))
def test_case_spaces_and_dashes_do_not_count(name: str, change: object) -> None:
    assert callable(change)
    spelled = change(name).replace(" ", "--")
    assert find_chip(f"  {spelled}\t") is find_chip(name)


def test_the_quick_index_has_every_name_and_no_other() -> None:
    """Of the catalog's files only the one that has a name is read."""
    for path in chip_files():
        chips = chips_of_file(path)
        names = {name for chip in chips for name in (chip.name, *chip.short_names, *chip.aliases)}
        assert set(names_in_file(path)) == names, path.name
        for chip in chips:
            assert find_chip(chip.name) is chip
    assert load_chips() == tuple(chip for path in chip_files() for chip in chips_of_file(path))


def test_no_name_means_two_chips() -> None:
    owners: dict[str, str] = {}
    for chip in load_chips():
        for name in (chip.name, *chip.short_names, *chip.aliases):
            assert owners.setdefault(normalise(name), chip.name) == chip.name


@pytest.mark.parametrize(
    "text",
    ["10de:2684", "10DE:2684", "Device 2684", "NVIDIA Corporation Device 2684 (rev a1)"],
)
def test_a_device_is_found_as_lspci_prints_it(text: str) -> None:
    assert require_chip(text).name == "RTX 4090"


@pytest.mark.parametrize("text", ["Device 0000", "2684", "Device 268"])
def test_an_id_that_is_no_chip_s_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        require_chip(text)
