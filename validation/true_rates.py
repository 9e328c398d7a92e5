"""What a healthy device of the catalog does, by what others measured: the truth of simulated ones.

Not by our own rate model, which is what the simulation is to judge.  In this order:

    large products   the median of what was published for the chip at a stated shape of 8192 and
                     more (4096 where there is none); what a source searched for, times the share
                     of a searched maximum that stated shapes reach on the same chips; else the
                     chip's claim times a share: the median of the three published figures of that
                     dtype whose claims have the nearest power behind them (W per TFLOP/s)
    streams          published cold streams of the chip; else the claim times the median share
    links            the median published share of the link's own claim
    layers           what was published for the case and the chip; else half of the products' rate

Smaller products than 8192 fall off plausibly; nothing judges them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from trainrig.benchmarks.spec import number_in
from trainrig.catalog.chip import Chip, peak
from trainrig.catalog.host_parts import pcie_bandwidth
from trainrig.catalog.lookup import find_chip, require_chip
from trainrig.catalog.published import published_for
from trainrig.record import Case, Record
from trainrig.stats import median

LAUNCH = 8e-6
"""s of the smallest call."""
_KINDS = {"fp16": "16 bit", "bf16": "16 bit"}
_LIKE = {"int8": "fp8", "fp8": "16 bit", "fp64": "fp32", "tf32": "16 bit"}
"""Where nothing was published of a dtype: the one whose shares it borrows."""
_OF_PRODUCTS = 0.5
_FALL_OFF = 500.0
"""A product of this size reaches half of what a large one does."""
_NEIGHBOURS = 3
_UNKNOWN_RATE, _UNKNOWN_BANDWIDTH = 4e12, 1e11


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """One published product of a chip in the catalog."""

    chip: Chip
    kind: str
    share: float
    """Of its claim."""
    watts: float
    """W per TFLOP/s of the claim."""
    size: float
    """Smallest of its three axes; 0 where it is not stated."""
    searched: bool


def _kind(dtype: object) -> str:
    return _KINDS.get(str(dtype), str(dtype))


def _watts(chip: Chip, claimed: float) -> float:
    return (chip.board.tdp or 400.0) / (claimed / 1e12)


@cache
def _figures() -> tuple[_Figure, ...]:
    return tuple(figure for record in published_for("matmul") for figure in _figure(record))


def _figure(record: Record) -> Iterator[_Figure]:
    chip, words = find_chip(record.device or ""), str(record.conditions.get("kind"))
    claimed = peak(chip, str(record.case.get("dtype"))) if chip else None
    fitted = words.startswith("GEMM per shape")  # a simulator's table
    if chip is None or claimed is None or not record.value or fitted or record.device_count != 1:
        return
    yield _Figure(
        chip=chip,
        kind=_kind(record.case.get("dtype")),
        share=record.value / claimed.rate,
        watts=_watts(chip, claimed.rate),
        size=min(number_in(record.case, axis) for axis in ("m", "k", "n")),
        searched="search" in words,
    )


def num_published(chip: Chip, dtype: str) -> int:
    """Say how many large products of stated shape were published for the chip; one for a search."""
    kind = _kind(dtype)
    searched = any(f.searched and f.chip == chip and f.kind == kind for f in _figures())
    return len(_stated(chip, kind)) or int(searched)


def _stated(chip: Chip, kind: str) -> list[float]:
    """Shares of the claim that stated large shapes reached."""
    shares = [f for f in _figures() if f.chip == chip and f.kind == kind and not f.searched]
    large = [f.share for f in shares if f.size >= 8192]
    return large or [f.share for f in shares if f.size >= 4096]


@cache
def _of_searched() -> float:
    """Share of a searched maximum that stated shapes reach, where a chip has both."""
    shares = []
    for figure in _figures():
        stated = _stated(figure.chip, figure.kind) if figure.searched else []
        if stated:
            shares.append(median(stated) / figure.share)
    return min(median(shares), 1.0)


def _share(chip: Chip, kind: str, claimed: float) -> float:
    """Share of its claim that a large product reaches on a chip."""
    if stated := _stated(chip, kind):
        return median(stated)
    of_kind = [f for f in _figures() if f.kind == kind]
    if searched := [f.share for f in of_kind if f.chip == chip and f.searched]:
        return median(searched) * _of_searched()
    by_chip = {f.chip.name: (f.chip, f.watts) for f in of_kind if _stated(f.chip, kind)}
    if not by_chip:
        return _share(chip, _LIKE[kind], claimed)
    watts = _watts(chip, claimed)
    near = sorted(by_chip.values(), key=lambda pair: abs(math.log(pair[1] / watts)))
    return min(median([median(_stated(c, kind)) for c, _ in near[:_NEIGHBOURS]]), 1.0)


def product_rate(chip: Chip, dtype: str) -> float | None:
    """FLOP/s of a large product; None where the chip cannot do it."""
    claimed = peak(chip, dtype)
    if claimed is not None:
        return claimed.rate * _share(chip, _kind(dtype), claimed.rate)
    if dtype in ("fp8", "int8"):
        return None
    if dtype == "fp32":
        half = peak(chip, "bf16") or peak(chip, "fp16")
        return half.rate / 16.0 if half else _UNKNOWN_RATE
    wide = product_rate(chip, "fp32") or _UNKNOWN_RATE
    return wide / 32.0 if dtype == "fp64" else wide


@cache
def _stream_shares() -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for record in (*published_for("copy"), *published_for("vector")):
        chip = find_chip(record.device or "")
        if record.case.get("cache") != "cold" or record.case.get("direction") in ("h2d", "d2h"):
            continue
        if chip is not None and chip.memory.bandwidth and record.value and record.device_count == 1:
            found.setdefault(chip.name, []).append(min(record.value / chip.memory.bandwidth, 1.0))
    return {name: median(shares) for name, shares in found.items()}


def stream_rate(chip: Chip) -> float:
    """B/s of a stream that does not fit in the caches."""
    shares = _stream_shares()
    usual = median(list(shares.values()))
    claimed = chip.memory.bandwidth or chip.memory.computed_bandwidth or _UNKNOWN_BANDWIDTH
    return claimed * shares.get(chip.name, usual)


@cache
def _link_share() -> float:
    shares = []
    for record in published_for("copy"):
        chip = find_chip(record.device or "")
        if record.case.get("direction") not in ("h2d", "d2h") or chip is None or not record.value:
            continue
        if chip.pcie.generation and chip.pcie.lanes:
            claimed = pcie_bandwidth(chip.pcie.generation, chip.pcie.lanes).high
            shares.append(record.value / claimed)
    return median(shares)


def link_rate(generation: int, lanes: int) -> float:
    """B/s of a copy between pinned memory and a device."""
    return pcie_bandwidth(generation, lanes).high * _link_share()


@cache
def _layers() -> dict[tuple[str | None, frozenset[tuple[str, object]]], float]:
    return {
        (record.device, frozenset(record.case.items())): record.value
        for record in published_for("layer")
        if record.metric == "flop_rate" and record.value
    }


def layer_rate(chip: Chip, case: Case) -> float:
    """FLOP/s of a layer."""
    rate = _layers().get((chip.name, frozenset(case.items())))
    return rate or _OF_PRODUCTS * (product_rate(chip, str(case["dtype"])) or _UNKNOWN_RATE)


def size_share(*sizes: float) -> float:
    """Share of a large product's rate that one of these sizes reaches."""
    least = min(sizes)
    return 1.0 if least >= 8192 else least / (least + _FALL_OFF) / (8192 / (8192 + _FALL_OFF))


@cache
def power_exponent() -> float:
    """By how much a product's rate follows its power limit: 400 W against 250 W of one silicon."""
    wide, narrow = require_chip("A100 SXM4 80GB"), require_chip("A100 PCIe 40GB")
    rates = [product_rate(chip, "bf16") or 1.0 for chip in (wide, narrow)]
    return math.log(rates[0] / rates[1]) / math.log(
        (wide.board.tdp or 1.0) / (narrow.board.tdp or 2.0)
    )


def between_gpus(chip: Chip | None) -> float:
    """B/s, one way, of an exchange between GPUs of one machine.

    Over the chip's own links where a switch joins them (NCCL's bus bandwidth is 0.75 to 0.9 of a
    direction), else over PCIe.
    """
    if chip is None:
        return link_rate(5, 16)
    if chip.link.name == "NVLink" and chip.link.bandwidth:
        return 0.8 * chip.link.bandwidth / 2.0
    return link_rate(chip.pcie.generation or 5, chip.pcie.lanes or 16)
