"""Explanations: the field's classic questions, answered from records alone.

Each rule looks for one pattern that people take for a fault or overlook: times that do not grow
with the batch, a bandwidth above the memory's, a rate above the data sheet's, an activation that
costs more than its arithmetic, two cards that do not reach each other.  A rule states what was
seen, with its numbers, and says nothing where its pattern is not whole.  docs/definitions.md has
the conditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainrig import workload
from trainrig.analysis.bottlenecks import CLOSE
from trainrig.analysis.evidence import (
    boost_clock,
    cache_of,
    claimed_memory,
    memory_rate,
    number,
    work_of,
)
from trainrig.analysis.rows import Row, claim_for, is_burst, name_devices, rows
from trainrig.analysis.time_loss import is_dense, layer_times
from trainrig.analysis.waterfall import devices
from trainrig.benchmarks.spec import Role, case_text
from trainrig.record import Record, RunView
from trainrig.stats import launch_bound
from trainrig.units import format_memory, format_quantity, format_share, range_text

MOST_BOOST = 1.25
"""No card boosts further above the clock of its data sheet; more is another definition."""
SAME_LINK = 0.10
"""Two rates of a link that differ by less are one."""
NEAR_ROOFLINE = 0.35
"""A loss this close to the counted bytes' time is theirs."""
MAX_ROWS_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One thing that the numbers say."""

    id: str
    """Stable: launch-bound, lives-in-cache, boost-clock, memory-bound or no-p2p."""
    subject: str
    """Subject without its numbers: two runs agree when both have the pattern of one subject."""
    text: str
    next: str = ""
    records: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """``Launch bound``: the id as a heading."""
        return {"no-p2p": "No P2P"}.get(self.id) or self.id.replace("-", " ").capitalize()


def find_patterns(view: RunView) -> tuple[Pattern, ...]:
    """Return everything that one run's numbers say, device by device."""
    everything = rows(view)
    patterns: list[Pattern] = []
    for where, name in name_devices(devices(everything)).items():
        device_rows = tuple(row for row in everything if (row.device, row.index) == where)
        patterns += _launch_bound(device_rows, name)
        patterns += _in_cache(view, device_rows, name)
        patterns += _above_boost_claim(view, device_rows, name)
        patterns += _activation(view, device_rows, name)
    return (*patterns, *_no_p2p(everything))


# ---- equal times over a growing batch


def _launch_bound(device_rows: Sequence[Row], name: str) -> Iterator[Pattern]:
    """Yield every layer of equal times, the one of the widest row of batches first."""
    kinds: dict[str, Record] = {}
    for row in device_rows:
        if row.role is Role.BLOCK and "batch_size" in row.case and row.measured is not None:
            case = {name: value for name, value in row.case.items() if name != "batch_size"}
            kinds.setdefault(case_text(row.benchmark, case), row.measured)
    flat_layers: list[tuple[float, int, str]] = []
    records: list[str] = []
    for layer, record in kinds.items():
        points = layer_times(device_rows, record)
        flat = launch_bound({batch: time for batch, (time, _) in points.items()})
        if flat is None:
            continue
        first, last = flat
        inside = [pair for batch, pair in points.items() if first <= batch <= last]
        times = range_text(min(t for t, _ in inside), max(t for t, _ in inside), "s")
        flat_layers.append(
            (first / last, last, f"{layer}: {times} at every batch from {first} to {last}")
        )
        records += [row.id for _, row in inside]
    if not flat_layers:
        return
    flat_layers.sort(key=lambda row: row[0])
    _, last, text = flat_layers[0]
    why = "It is launch-bound: the GPU waits for the host to launch its kernels"
    if device_rows[0].index is None:
        why = "The framework's overhead takes the time, not arithmetic"
    others = "; ".join(layer_text for _, _, layer_text in flat_layers[1:MAX_ROWS_SHOWN])
    likewise = f" Likewise {others}." if others else ""
    yield Pattern(
        id="launch-bound",
        subject=f"{name}: layers",
        text=f"{name}, {text}. {why}.{likewise}",
        next=f"torch.compile or CUDA graphs, a faster host, or a batch above {last}",
        records=tuple(records),
    )


# ---- faster than the memory


def _in_cache(view: RunView, device_rows: Sequence[Row], name: str) -> Iterator[Pattern]:
    """Yield the fastest vector of a device, where it fits the last-level cache."""
    memory, cache = (
        claimed_memory(view, device_rows) or memory_rate(view, device_rows),
        cache_of(view, device_rows),
    )
    if memory is None or cache is None:
        return
    cache_size, level = cache
    candidates = [
        (row.value, work.num_bytes, row)
        for row in device_rows
        if row.role is Role.STREAM and row.metric == "byte_rate" and row.is_usable
        if (work := work_of(row.benchmark, row.case)) is not None
        and 0 < work.num_bytes <= cache_size
    ]
    rate, size, row = max(candidates, key=lambda candidate: candidate[0], default=(0.0, 0, None))
    if row is None or rate <= memory * (1.0 + CLOSE):
        return
    yield Pattern(
        id="lives-in-cache",
        subject=f"{name}: {row.case.get('op')}",
        text=f"{name}, {case_text(row.benchmark, row.case)}: {format_quantity(rate, 'B/s')} "
        f"against {format_quantity(memory, 'B/s')} of the memory. It lives in {level}: "
        f"{format_memory(size)} of {format_memory(cache_size)}, and says nothing about the memory.",
        next="a vector beyond the cache, or buffers in rotation: cache cold",
        records=_record_ids([row]),
    )


def _record_ids(measured_rows: Iterable[Row]) -> tuple[str, ...]:
    """Return the records that rows were measured as."""
    return tuple(row.measured.id for row in measured_rows if row.measured is not None)


# ---- faster than the data sheet


def _above_boost_claim(view: RunView, device_rows: Sequence[Row], name: str) -> Iterator[Pattern]:
    """Yield the best product of each dtype that beats its claim by what a clock can do."""
    bursts = [
        row for row in device_rows if is_burst(row) and row.index is not None and row.is_usable
    ]
    best: dict[str, Row] = {}
    for row in bursts:
        dtype = str(row.case.get("dtype"))
        best[dtype] = max(best.get(dtype, row), row, key=lambda candidate: candidate.value)
    for dtype, row in best.items():
        claim, record = claim_for(view.records, row), row.measured
        if claim is None or not claim.value or record is None:
            continue
        ratio = row.value / claim.value
        clock, boost = number(record, "sm_clock_hz"), boost_clock(record)
        if not 1.0 + CLOSE < ratio <= MOST_BOOST:
            continue
        if clock and boost and clock / boost < ratio * (1.0 - CLOSE):
            continue  # the clock that was seen does not explain it
        ran = f" ({format_quantity(clock, 'Hz')} seen)" if clock else ""
        at = f", {format_quantity(boost, 'Hz')}" if boost else ""
        # A data sheet's own digits: 165.2, not 165.
        claimed = f"{claim.value / 1e12:.1f} T{'OPS' if claim.unit == 'OP/s' else 'FLOPS'}"
        yield Pattern(
            id="boost-clock",
            subject=f"{name}: {dtype} matmul",
            text=f"{name}, {dtype} matmul: {format_quantity(row.value, row.unit)} against "
            f"{claimed} claimed with {claim.case.get('accumulate')} accumulation "
            f"(+{format_share(ratio - 1.0)}). The boost clock{ran} lies above the data "
            f"sheet's{at}: not an error.",
            records=(record.id, claim.id),
        )


# ---- what an activation costs


def _activation(view: RunView, device_rows: Sequence[Row], name: str) -> Iterator[Pattern]:
    """Yield a dense product with and without its activation, against the bytes of that."""
    bandwidth = memory_rate(view, device_rows)
    layers = [row for row in device_rows if row.role is Role.BLOCK and row.is_usable]
    activated = {
        _product(row): row for row in layers if is_dense(row.case.get("layer"), activation=True)
    }
    for plain in layers:
        other = activated.get(_product(plain))
        if other is None or not is_dense(plain.case.get("layer")) or not bandwidth:
            continue
        m, k, n = (plain.case.get(axis) for axis in ("m", "k", "n"))
        if not (isinstance(m, int) and isinstance(k, int) and isinstance(n, int)):
            continue
        dtype = str(plain.case.get("dtype"))
        if dtype not in workload.DTYPE_BYTES:
            continue
        work = workload.matmul(m, k, n, dtype).flops
        moved = workload.vector("gelu", m * n, dtype).num_bytes
        expected = work / (work / plain.value + moved / bandwidth)
        lost, predicted = plain.value - other.value, plain.value - expected
        if lost <= 0.0 or abs(lost / predicted - 1.0) > NEAR_ROOFLINE:
            continue
        unit, off = plain.unit, lost / predicted - 1.0
        than = f"{format_share(abs(off))} {'more' if off > 0.0 else 'less'} than predicted"
        yield Pattern(
            id="memory-bound",
            subject=f"{name}: activation after a dense layer",
            text=f"{name}, {dtype} dense layer {m} × {k} × {n}: the activation takes it from "
            f"{format_quantity(plain.value, unit)} to {format_quantity(other.value, unit)}. It "
            f"is memory-bound: its {format_memory(moved)} at {format_quantity(bandwidth, 'B/s')} "
            f"predict {format_quantity(expected, unit)}, a loss of "
            f"{format_quantity(predicted, unit)} where {format_quantity(lost, unit)} were lost "
            f"({than}).",
            next="fuse the activation into the product: torch.compile, or a fused layer",
            records=_record_ids((plain, other)),
        )


def _product(row: Row) -> tuple[object, ...]:
    """Return the fields that a dense product shares with its activated twin."""
    same = ("m", "k", "n", "dtype", "pass", "code")
    return (row.metric, *(row.case.get(name) for name in same))


# ---- whether two cards reach each other


def _no_p2p(everything: Sequence[Row]) -> Iterator[Pattern]:
    """Yield the pattern of pairs whose rate is the same with peer access on and off."""
    pairs: dict[tuple[object, ...], dict[bool, list[Row]]] = {}
    for row in everything:
        on = row.case.get("peer_access")
        ways = row.case.get("ways", 1)
        is_pair = row.role is Role.LINK and row.case.get("direction") == "p2p" and ways == 1
        if is_pair and isinstance(on, bool) and row.is_usable:
            ends = frozenset([row.case.get("from"), row.case.get("to")])
            pairs.setdefault((row.device, ends), {}).setdefault(on, []).append(row)
    for (device, _), sides in pairs.items():
        with_it, without = sides.get(True, []), sides.get(False, [])
        if not with_it or not without:
            continue
        on, off = (max(row.value for row in side) for side in (with_it, without))
        if on > off * (1.0 + SAME_LINK):
            continue
        yield Pattern(
            id="no-p2p",
            subject=f"{device}: P2P",
            text=f"Two {device}: {format_quantity(on, 'B/s')} from card to card with P2P on, "
            f"{format_quantity(off, 'B/s')} with P2P off. There is no P2P between them: what they "
            "exchange crosses the host's memory.",
            next="fewer, larger exchanges: gradient accumulation, a larger micro-batch",
            records=_record_ids((*with_it, *without)),
        )
