"""How far the rates derived from claims are from what others measured: one row for each figure.

Answers the error of every published product, stream, collective and attention that a rate of the
catalog's rule can be asked for; the command that refits the constants and the tests read it.  Does
not answer how far a whole step is off (docs/accuracy.md).  An error is |predicted/measured − 1| of
the time.  Left out: products that hold in cache what was measured cold, peaks of single
instructions, and figures that a source searched for (the best of many shapes), which are marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from trainrig.catalog.chip import Chip
from trainrig.catalog.lookup import find_chip
from trainrig.catalog.published import published_for
from trainrig.predict.rates import Rates
from trainrig.predict.rates.from_chip import rates_of_chip
from trainrig.predict.rates.links import FACTORS
from trainrig.record import Record

# Cards whose memory size or form the source leaves out: the usual one.
_PRESUMED = {
    "V100 32GB": "V100 SXM2 32GB",
    "V100 SXM2": "V100 SXM2 32GB",
    "V100": "V100 SXM2 32GB",
    "A100 80GB": "A100 SXM4 80GB",
    "A100 40GB": "A100 SXM4 40GB",
    "A100 SXM4": "A100 SXM4 80GB",
}
# 300 or 400 W: a stream does not mind, a product does.
_FORM_UNKNOWN = ("A100 80GB",)
# What a node sends into the fabric, B/s, by the words that sources print.
_FABRICS = {
    "8x50 GB/s": 400e9,
    "400 Gb/s per GPU": 400e9,
    "3.2 Tb/s": 400e9,
    "Omni-Path 100 Gb": 12.5e9,
}
_LARGE = 4e9  # B, where a source printed its best or fitted rate
_SMALL = 1e6  # B: smaller collectives are latency alone, and no step waits for those
_LAUNCHED = 8e6  # B: smaller streams were bound by launches on those machines
_BACKWARD = re.compile(r"bwd-only .*=> ([0-9.]+) TFLOPS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One published figure and what the rule says of it."""

    table: str
    """``matmul``, ``stream``, ``collective``, ``attention``."""
    source: str
    device: str
    case: str
    measured: float
    """s."""
    predicted: float
    """s."""

    @property
    def family(self) -> str:
        """The source without the file and the version: rows of one share hidden conditions."""
        return self.source.partition(" ")[0].partition("@")[0]

    @property
    def ratio(self) -> float:
        """Predicted time against measured."""
        return self.predicted / self.measured

    @property
    def error(self) -> float:
        return abs(self.ratio - 1.0)


def chip_named(device: str | None) -> Chip | None:
    """The chip that a published figure is about, or None where no single one is meant."""
    return find_chip(_PRESUMED.get(device or "", device or ""))


@cache
def _rates(device: str) -> Rates | None:
    chip = chip_named(device)
    return None if chip is None else rates_of_chip(chip)


def forget() -> None:
    """Build rates anew: the constants have changed."""
    _rates.cache_clear()
    _rates_linked.cache_clear()


def products() -> Iterator[Compared]:
    """Published products of matrices."""
    for benchmark in ("matmul", "matmul_accumulate", "batched_matmul"):
        for record in published_for(benchmark):
            rates = _rates(record.device or "")
            if record.device in _FORM_UNKNOWN:
                continue
            if rates is not None and record.value and _is_product(record):
                yield _product(record, rates)


def _dtype(record: Record, rates: Rates) -> str:
    """What the product ran in: TF32 where a source allowed it and the chip has it."""
    allowed = "TF32" in str(record.conditions.get("printed_dtype", "")).upper()
    return "tf32" if allowed and rates.peak("tf32") else str(record.case["dtype"])


def _is_product(record: Record) -> bool:
    """It has a shape, was not searched for, and takes longer than a launch."""
    sizes = [int(record.case.get(axis) or 0) for axis in ("m", "k", "n")]
    if not all(sizes) or "search" in str(record.conditions.get("kind")):
        return False
    return 2.0 * sizes[0] * sizes[1] * sizes[2] > 1e9


def _product(record: Record, rates: Rates) -> Compared:
    m, k, n = (int(record.case[axis] or 0) for axis in ("m", "k", "n"))
    batch, dtype = int(record.case.get("batch") or 1), _dtype(record, rates)
    wide = {"matmul_accumulate": 8.0}.get(record.benchmark)
    return Compared(
        table="matmul",
        source=record.source or "",
        device=record.device or "",
        case=f"{record.conditions.get('kind', '')} {dtype} {batch}×{m}×{k}×{n}",
        measured=2.0 * batch * m * k * n / float(record.value or 1.0),
        predicted=float(rates.matmul(m, n, k, batch=batch, dtype=dtype, output_bytes=wide)),
    )


def streams() -> Iterator[Compared]:
    """Published streams of bytes in a chip's memory, elementwise kernels and copies."""
    for benchmark in ("vector", "copy"):
        for record in published_for(benchmark):
            rates = _rates(record.device or "")
            if rates is not None and record.value and record.metric == "byte_rate":
                yield from _stream(record, rates)


def _stream(record: Record, rates: Rates) -> Iterator[Compared]:
    if record.case.get("direction") in ("h2d", "d2h"):
        return
    if record.benchmark == "vector" and record.case.get("op") != "scale":
        return
    elements = record.case.get("num_elements")
    moved = 8.0 * float(elements) if elements else _LARGE
    if moved < _LAUNCHED:
        return
    yield Compared(
        table="stream",
        source=record.source or "",
        device=record.device or "",
        case=f"{record.case.get('direction', 'scale')} {moved:.3g} B",
        measured=moved / float(record.value or 1.0),
        predicted=float(rates.stream(moved)),
    )


def collectives() -> Iterator[Compared]:
    """Published collectives whose topology the source states."""
    for record in published_for("collective"):
        rates = _rates_linked(record.device or "", _words(record))
        if rates is None or not record.value:
            continue
        if int(record.case.get("bytes") or _LARGE) >= _SMALL and _is_possible(record, rates):
            yield _collective(record, rates)


def _is_possible(record: Record, rates: Rates) -> bool:
    """One source prints more than the links of its node can carry."""
    several = int(record.case["nodes"] or 1) > 1
    return several or (record.value or 0.0) < 1.5 * rates.links.inside.bandwidth


def _words(record: Record) -> str:
    return str(record.conditions.get("interconnect") or "")


@cache
def _rates_linked(device: str, words: str) -> Rates | None:
    """Rates of a chip with the links that a source prints beside its collectives."""
    chip = chip_named(device)
    if chip is None:
        return None
    fabric = next((rate for part, rate in _FABRICS.items() if part in words), None)
    link = "pcie" if words.startswith("PCIe") else "nvlink"
    return rates_of_chip(chip, link=link, fabric=fabric, p2p=True)


def _collective(record: Record, rates: Rates) -> Compared:
    kind, ranks = str(record.case["collective"]), int(record.case["ranks"] or 1)
    num_bytes = float(record.case.get("bytes") or _LARGE)
    per_node = ranks // int(record.case["nodes"] or 1)
    moved = FACTORS[kind] * (1.0 if kind == "broadcast" else (ranks - 1) / ranks) * num_bytes
    return Compared(
        table="collective",
        source=record.source or "",
        device=record.device or "",
        case=f"{kind} {ranks} ranks {num_bytes:.3g} B {record.conditions.get('algo', '')}",
        measured=moved / float(record.value or 1.0),
        predicted=float(rates.collective(kind, num_bytes, ranks, per_node)),
    )


def attentions() -> Iterator[Compared]:
    """Published fused attention, whose sources count a causal one's scores in full."""
    for record in published_for("layer"):
        layer = str(record.case.get("layer"))
        rates = _rates(record.device or "")
        if layer.startswith("flash attention (causal)") and rates is not None and record.value:
            yield from _attention(record, rates, layer)


def _attention(record: Record, rates: Rates, layer: str) -> Iterator[Compared]:
    sizes = dict(pair.split("=") for pair in layer.split() if "=" in pair)
    batch, seq, heads = (int(record.case.get(axis) or 0) for axis in ("batch", "seq", "heads"))
    inner, outer = int(sizes["d_qk"]), int(sizes["d_v"])
    if inner != outer:  # the rule knows one size of head
        return
    both = {"forward": float(record.value or 1.0)}
    printed = _BACKWARD.search(str(record.conditions.get("notes")))
    if printed:
        both["backward"] = float(printed.group(1)) * 1e12
    for direction, rate in both.items():
        flops = 2.0 * (5.0 if direction == "backward" else 2.0) * batch * heads * seq * seq * inner
        if direction == "backward":  # counted as twice the forward
            flops *= 4.0 / 5.0
        yield Compared(
            table="attention",
            source=record.source or "",
            device=record.device or "",
            case=f"{direction} {heads} heads of {inner} seq {seq}",
            measured=flops / rate,
            predicted=float(
                rates.attention(
                    batch=batch,
                    heads=heads,
                    kv_heads=int(sizes["kv_heads"]),
                    queries=seq,
                    keys=seq,
                    head_dim=inner,
                    dtype="bf16",
                    causal=True,
                    backward=direction == "backward",
                    kernels="flash+fused",
                )
            ),
        )


TABLES = {
    "matmul": products,
    "stream": streams,
    "collective": collectives,
    "attention": attentions,
}


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which ``share`` of them lie; NaN of none."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
