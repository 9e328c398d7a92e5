"""The readers of other programs' output: whatever comes in, no traceback comes out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machine_fakes import FakeHost, fixture, healthy
from trainrig.doctor import diagnose
from trainrig.errors import DataError
from trainrig.machine import from_dict, inspect, to_dict
from trainrig.machine.amd import parse_amd_smi, parse_rocm_smi
from trainrig.machine.counters import parse_stat
from trainrig.machine.cpu import lscpu_caches, lscpu_fields
from trainrig.machine.disks import parse_lsblk
from trainrig.machine.memory import count_channels, parse_dimms, slowest_speed
from trainrig.machine.nvidia import read_inventory
from trainrig.machine.nvml import QUESTION_NAMES
from trainrig.machine.pci import names_in_pci_ids
from trainrig.machine.software import version_literals

numbers = st.integers() | st.floats() | st.sampled_from([2**32 - 1, 2**63 - 1, 2**64 - 1, -1])
words = st.text(max_size=20) | st.sampled_from(["N/A", "", "0x10de", "00000000:01:00.0", "8 GB"])
scalars = st.none() | st.booleans() | numbers | words
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
# Fields that the parsers look at, so that the fuzz reaches what is behind them.
NAMES = [
    *("lscpu", "field", "data", "children", "caches", "name", "one-size", "all-size"),
    *("blockdevices", "type", "size", "rota", "tran", "model", "mountpoints", "mountpoint"),
    *("card0", "card1", "gpu_data", "asic", "bus", "vram", "limit", "bdf", "value", "unit"),
    *("Device ID", "PCI Bus", "GPU use (%)", "pcie clock level", "sclk clock speed:"),
    *("devices", "pairs", "links", "state", "remote", "kind", "busId", "a", "b", "missing"),
    *QUESTION_NAMES,
]
shaped = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6)
    ),
    max_leaves=40,
)

JSON_PARSERS: list[Callable[[str], object]] = [
    *(lscpu_fields, lscpu_caches, parse_lsblk, parse_rocm_smi, parse_amd_smi),
]
TEXT_PARSERS: list[Callable[[str], object]] = [
    *JSON_PARSERS,
    *(parse_dimms, parse_stat, version_literals),
    lambda text: names_in_pci_ids(text, {"10de:2684"}),
]


@pytest.mark.parametrize("parse", JSON_PARSERS)
@settings(max_examples=60, deadline=None)
@given(value=shaped)
def test_json_of_any_shape(parse: Callable[[str], object], value: Any) -> None:
    parse(json.dumps(value))
    parse(
        json.dumps({"blockdevices": [value], "card0": value, "lscpu": [value], "caches": [value]})
    )
    parse(json.dumps([value]))


@pytest.mark.parametrize("parse", TEXT_PARSERS)
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=200))
def test_any_text(parse: Callable[[str], object], text: str) -> None:
    parse(text)


@settings(max_examples=100, deadline=None)
@given(facts=st.dictionaries(st.sampled_from(QUESTION_NAMES), values, max_size=12), pair=values)
def test_any_answer_of_a_driver_makes_a_snapshot_that_can_be_written(facts: Any, pair: Any) -> None:
    answer = {"devices": [facts, {"links": pair}], "pairs": [{"a": 0, "b": 1, "read": pair}, pair]}
    commands = {"nvml": json.dumps(answer)}
    snapshot = inspect(FakeHost(commands=commands))
    assert from_dict(json.loads(json.dumps(to_dict(snapshot), allow_nan=False))) == snapshot
    diagnose(snapshot)


@settings(max_examples=60, deadline=None)
@given(answer=st.dictionaries(st.sampled_from(NAMES), shaped, max_size=5))
def test_any_inventory(answer: dict[str, Any]) -> None:
    read_inventory(answer)


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 800), inserted=st.text(max_size=30))
def test_dmidecode_cut_and_spoiled(cut: int, inserted: str) -> None:
    content = fixture("dmidecode_two_channels.txt")
    dimms = parse_dimms(content[:cut] + inserted + content[cut + len(inserted) :])
    count_channels(dimms)
    slowest_speed(dimms)


@settings(max_examples=80, deadline=None)
@given(place=st.sampled_from(sorted(to_dict(healthy()))), value=values)
def test_a_spoiled_snapshot_is_read_or_refused(place: str, value: Any) -> None:
    spoiled = {**to_dict(healthy()), place: value}
    with contextlib.suppress(DataError):
        assert to_dict(from_dict(spoiled))["schema"] == 1
