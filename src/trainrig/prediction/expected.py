"""What is claimed for a device, as records, and which claim is a case's ceiling.

A claim has a case of its own (a dtype and its accumulate type, a direction of a
link), since no vendor promises a rate for a shape.  `ceiling` says which claim
bounds a measured case.  Cases that are hot in cache have no ceiling here: a
cache's bandwidth is not on the data sheets.

What a case should reach on this device, as a band, and on what grounds.

Grounds, best first:

1. what the user demands: the same case in another run of this model of card, or a number;
2. this machine's own history: at least three earlier runs with a good point of the
   same key; the band is their range, widened by MARGIN.  It counts only where its
   floor is not below that of 3: a machine does not become right by being slow three times;
3. the chip's own predicted rate under the power limit that is set.  The band is as wide as such
   predictions were off on sources that they were not fitted to (`unsure_of`); where others
   published the same case on the same chip, as wide as those figures, widened, and never above the
   predicted rate.  What a source searched for (the best of many shapes) is an upper end alone.
   What goes over a link has a share of the link's claim as its least;
4. nothing: no target is known, and that is said.  A dtype that nothing is claimed of has none.

Cases are comparable when their device, benchmark, dtype or direction and cache agree and
both are large: small ones are bound by launches and hot ones by caches, so that
host and software decide, and nothing predicted or published carries over.  A matmul is
judged from 8192 on; what others published counts from 2048 on, where it fills the
chip of its time, if there is nothing larger.  A layer is compared with the very same case,
from 8192 tokens on.  Each benchmark's spec has the rule.  fp16 and bf16 count as one type where
both accumulate in fp32: the tensor cores do them at one rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trainrig.benchmarks.spec import LINK_CLAIM, MARGIN, MEMORY_CLAIM, PEAK, Role, find, size_in
from trainrig.catalog.chip import DEFAULT_ACCUMULATE, Chip, peak
from trainrig.catalog.host_parts import HostClaim, cpu_peaks, memory_bandwidth, pcie_bandwidth
from trainrig.catalog.published import is_measurement
from trainrig.errors import UsageError
from trainrig.machine.fact import Missing, value_or
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_chip import power_slows, rates_of_chip, unsure_of
from trainrig.record import Case, Kind, Limit, Record, Status, dtype_of
from trainrig.stats import median

if TYPE_CHECKING:
    from trainrig.machine.snapshot import Gpu, PciGpu, Snapshot


def gpu_claims(chip: Chip, index: int | None) -> tuple[Record, ...]:
    """Return the peaks, the memory bandwidth and the PCIe rate that a chip's vendor claims."""
    peaks = (peak(chip, dtype) for dtype in DEFAULT_ACCUMULATE)
    claims = [
        _claim(
            PEAK,
            {"dtype": p.dtype, "accumulate": p.accumulate},
            ("flop_rate", p.rate_unit),
            p.rate,
            f"{chip.name} data sheet, {p.dtype} dense, {p.accumulate} accumulation"
            f"{_unverified(chip, p.field)}",
        )
        for p in peaks
        if p is not None
    ]
    if chip.memory.bandwidth is not None:
        source = f"{chip.name} data sheet, memory bandwidth{_unverified(chip, 'bandwidth')}"
        claims.append(_claim(MEMORY_CLAIM, {}, ("byte_rate", "B/s"), chip.memory.bandwidth, source))
    return tuple(c.replace(device=chip.name, device_index=index) for c in claims)


def of_device(claims: Iterable[Record], device: str | None, index: int | None) -> list[Record]:
    """Return the claims of one device: two cards of one model may sit in unlike slots."""
    return [
        claim for claim in claims if claim.device == device and claim.device_index in (None, index)
    ]


def ceiling(claims: Iterable[Record], benchmark: str, case: Case) -> Limit | None:
    """Return claim that bounds a case of ``benchmark`` as its limit, or None where none does."""
    claim = claim_for(claims, benchmark, case)
    if claim is None or claim.value is None:
        return None
    return Limit(value=claim.value, source=claim.source or "claimed")


def claim_for(claims: Iterable[Record], benchmark: str, case: Case) -> Record | None:
    """Return the claim that bounds a case of ``benchmark``; ``claims`` are one device's."""
    spec = find(benchmark)
    wanted = spec.claim(case) if spec else None
    if wanted is None:
        return None
    named, keys = wanted
    fitting = (c for c in claims if c.benchmark == named and dict(c.case) == dict(keys))
    return next((claim for claim in fitting if claim.value is not None), None)


def _claim(
    benchmark: str, case: Case, metric: tuple[str, str], value: float, source: str
) -> Record:
    return Record(
        kind=Kind.CLAIMED,
        benchmark=benchmark,
        case=case,
        metric=metric[0],
        unit=metric[1],
        value=value,
        source=source,
    )


def _unverified(chip: Chip, field: str) -> str:
    known = chip.provenance.get(field)
    return "" if known is None or known.verified else " (unverified)"


def host_claims(snapshot: Snapshot, device: str) -> tuple[Record, ...]:
    """Return claims of the host's processor and memory, from what the machine reports.

    The upper end of each range, since it is a ceiling; what could not be read has
    no claim.
    """
    speed, channels = snapshot.memory.speed_mt_per_s, snapshot.memory.channels
    claims = [_cpu_claim(claim) for claim in _cpu_peaks(snapshot)]
    if not isinstance(speed, Missing) and not isinstance(channels, Missing):
        claim = memory_bandwidth(speed * 1e6, channels)
        claims.append(_claim(MEMORY_CLAIM, {}, ("byte_rate", "B/s"), claim.high, claim.source))
    return tuple(claim.replace(device=device) for claim in claims)


def link_claims(
    gpu: Gpu, device: str, pci: PciGpu | None = None, chip: Chip | None = None
) -> tuple[Record, ...]:
    """Return the PCIe rate of a GPU, each direction, by the most that the card and its slot can do.

    The bus (``pci``) says what the card can do, else the catalog; the slot's part is the bus's too,
    else the driver's, whose maximum counts what both can do.
    """
    card = pci.link if pci else gpu.link
    slot = pci.slot if pci else gpu.link
    generation = _both(
        value_or(card.max_generation, chip.pcie.generation if chip else None),
        value_or(slot.max_generation, value_or(gpu.link.max_generation, None)),
    )
    lanes = _both(
        value_or(card.max_width, chip.pcie.lanes if chip else None),
        value_or(slot.max_width, value_or(gpu.link.max_width, None)),
    )
    if generation is None or lanes is None:
        return ()
    try:
        rate = pcie_bandwidth(generation, lanes)
    except UsageError:  # a driver that reports generation 0 or 255 lanes claims nothing
        return ()
    return tuple(
        _claim(
            LINK_CLAIM, {"direction": way}, ("byte_rate", "B/s"), rate.high, rate.formula
        ).replace(device=device, device_index=gpu.index)
        for way in ("h2d", "d2h")
    )


def _both(card: int | None, slot: int | None) -> int | None:
    """Return the lesser; the one that is known."""
    known = [value for value in (card, slot) if value]
    return min(known, default=None)


def _cpu_claim(claim: HostClaim) -> Record:
    case = {"dtype": claim.dtype, "accumulate": DEFAULT_ACCUMULATE[str(claim.dtype)]}
    record = _claim(PEAK, case, ("flop_rate", claim.unit), claim.high, claim.source)
    # What the flags leave open is the report's to show.
    return record.replace(interval=(claim.low, claim.high)) if claim.low < claim.high else record


def _cpu_peaks(snapshot: Snapshot) -> tuple[HostClaim, ...]:
    cpu = snapshot.cpu
    clock = cpu.max_clock_hz if not isinstance(cpu.max_clock_hz, Missing) else cpu.clock_hz
    if (
        isinstance(cpu.cores, Missing)
        or isinstance(clock, Missing)
        or isinstance(cpu.flags, Missing)
    ):
        return ()
    usable = value_or(cpu.usable_threads, cpu.cores)
    family = value_or(cpu.family, "")
    return cpu_peaks(
        cores=min(cpu.cores, usable),
        clock=clock,
        flags=cpu.flags,
        vendor=value_or(cpu.vendor, ""),
        family=int(family) if family.isdecimal() else None,
    )


LONE_MARGIN = 0.15
"""One figure does not show how far its software lies from ours."""
MIN_HISTORY = 3

_ONE_RATE = {"fp16": "16 bit", "bf16": "16 bit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """Targets and baselines that the user gives."""

    baseline: tuple[Record, ...] = ()
    """Points of another run."""
    name: str = ""
    """Name of the baseline run."""
    least: Mapping[str, float] = field(default_factory=dict)
    """By dtype, of large products; ``memory``, of streams in it; ``link``, of copies over it."""
    requested: tuple[str, ...] = ()
    """``least`` as it was typed: ``bf16=600TFLOPS``."""
    path: str = ""
    """The run's folder or bundle as it was typed."""


def expect(
    point: Record,
    limit: Limit | None,
    history: Iterable[Record],
    published: Iterable[Record],
    chip: Chip | None = None,
    power: float | None = None,
    demands: Demands | None = None,
) -> Record:
    """Return the prediction for ``point``, a record that says which case on which device is meant.

    ``limit`` is its claim, ``chip`` its device's entry in the catalog, ``power`` the W that it is
    limited to.  Its status is missing, with the reason, where no target is known.
    """
    bare = point.replace(kind=Kind.PREDICTED, limit=limit)
    spec = find(point.benchmark)
    grounds = None
    if spec is None or (spec.is_large(point.case) and (limit or not spec.claim(point.case))):
        same = [record for record in published if _comparable(record, point)]
        grounds = _from_link(point, limit) or _from_chip(point, same, chip, power)
    history = tuple(history)
    from_history = _from_history(point, history)
    # History narrows what a chip leads one to expect; it never excuses a machine that is slow: a
    # card that was below its band three times is still below it.
    if from_history is not None and (grounds is None or from_history[0] >= grounds[0]):
        grounds = from_history
    grounds = _demanded(point, demands or Demands(), grounds) or grounds
    if grounds is not None:
        low, centre, high, source = grounds
        return bare.replace(value=centre, interval=(low, high), source=source)
    why = "nothing is claimed" if limit is None else "nothing predicted or published"
    return bare.replace(
        status=Status.MISSING,
        reason=f"no target known: {why} for this case on {point.device}",
        conditions={**bare.conditions, **_few_earlier_runs(point, history)},
    )


Grounds = tuple[float, float, float, str]


def _demanded(point: Record, demands: Demands, known: Grounds | None) -> Grounds | None:
    """Return the user's target for a point, which replaces all others; None: there is none."""
    spec = find(point.benchmark)
    if spec is None or (point.device_index is not None and not spec.is_large(point.case)):
        return None
    benchmark, keys = spec.claim(point.case) or ("", {})
    named = str(keys.get("dtype", benchmark))
    if named in demands.least and spec.role is not Role.BLOCK and spec.is_large(point.case):
        low = demands.least[named]
        centre, high = (max(low, value) for value in (known[1:3] if known else (low, low)))
        return low, centre, high, f"--min {named}"
    if same := [r.value for r in demands.baseline if r.key == point.key and r.value]:
        words = f"the baseline {demands.name}, n = {len(same)}"
        return _band(same, words, spec.history_margin)
    return None


EARLIER_VALUE, EARLIER_RUNS = "earlier_value", "earlier_runs"
"""Conditions of a prediction without a target: what the few earlier runs of this machine reached
(median, in the record's unit), and how many there are."""
NOISY_EARLIER_RUNS = "noisy_earlier_runs"
"""The condition where there are earlier runs and the point is noisy in all of them: how many."""


def _few_earlier_runs(point: Record, history: Sequence[Record]) -> Case:
    """Return what earlier runs reached where they are too few for a target; empty without any."""
    if values := _of_runs(point, history):
        return {EARLIER_VALUE: median(values), EARLIER_RUNS: len(values)}
    noisy = {record.run for record in history if record.key == point.key and record.disturbed}
    return {NOISY_EARLIER_RUNS: len(noisy)} if noisy else {}


def _of_runs(point: Record, history: Iterable[Record]) -> list[float]:
    """Return one value a run: eight equal cards in one run are not eight runs."""
    by_run: dict[str, list[float]] = {}
    for record in history:
        if record.key == point.key and record.value is not None and record.disturbed is None:
            by_run.setdefault(record.run, []).append(record.value)
    return [median(values) for values in by_run.values()]


def _from_history(point: Record, history: Iterable[Record]) -> Grounds | None:
    values = _of_runs(point, history)
    if len(values) < MIN_HISTORY:
        return None
    spec = find(point.benchmark)
    margin = spec.history_margin if spec else MARGIN
    return _band(values, f"{len(values)} earlier runs on this machine", margin)


def _from_link(point: Record, limit: Limit | None) -> Grounds | None:
    spec = find(point.benchmark)
    share = spec.least_share(point.case) if spec else None
    if limit is None or share is None or point.device_index is None:
        return None
    low = share * limit.value
    return low, (low + limit.value) / 2.0, limit.value, f"{share:g} and more of {limit.source}"


def _from_chip(
    point: Record, same: Sequence[Record], chip: Chip | None, power: float | None
) -> Grounds | None:
    """``same``: what was published of comparable cases on the same device."""
    spec = find(point.benchmark)
    if spec is None:
        return None
    slower = power_slows(chip, power) if chip and spec.role in (Role.PRODUCT, Role.BLOCK) else 1.0
    searched = [r.value * (1.0 + MARGIN) for r in same if r.value and _is_searched(r)]
    stated = [r for r in same if r.value and not _is_searched(r)]
    # Those of judged sizes where there are any.
    stated = [r for r in stated if spec.is_large(r.case)] or stated
    figures = [slower * r.value for r in stated if r.value]
    own_rate = _own_rate(point, rates_of_chip(chip, power=power)) if chip else None
    if figures:
        margin = MARGIN if len(figures) > 1 else LONE_MARGIN
        source = f"published for {point.device}, n = {len(figures)}"
        low, centre, high, source = _band(figures, source, margin)
        if own_rate is not None:
            low, centre, high = min(low, own_rate), own_rate, max(high, own_rate)
    elif own_rate is not None and chip is not None:
        product = str(point.case["dtype"]) if spec.role is Role.PRODUCT else "stream"
        unsure = unsure_of(chip, product)
        low, centre, high = own_rate * (1.0 - unsure), own_rate, own_rate * (1.0 + unsure)
        source = f"predicted for {point.device}"
    else:
        return None
    source += f", at {power:g} W" if slower < 1.0 else ""
    return low * (1.0 - spec.slower(point.case)), centre, max([high, *searched]), source


def _own_rate(point: Record, rates: Rates) -> float | None:
    """Return what the rate model says of a large product or a stream of one device."""
    spec, case = find(point.benchmark), point.case
    metric = spec.metric(case, point.metric) if spec else None
    if spec is None or metric is None or point.device_count != 1:
        return None
    if spec.role is Role.PRODUCT and case["dtype"] in rates.matmuls.sustained:
        m, n, k = (size_in(case, axis) for axis in "mnk")
        return metric.of(float(rates.matmul(m, n, k, dtype=str(case["dtype"]))))
    if spec.claim(case) == (MEMORY_CLAIM, {}):
        cold = replace(rates.streams, cache=0.0)
        return metric.of(float(cold.time(spec.work(case).num_bytes)))
    return None


def _band(values: Sequence[float], source: str, margin: float = MARGIN) -> Grounds:
    low, high = min(values) * (1.0 - margin), max(values) * (1.0 + margin)
    return low, median(values), high, source


def _comparable(published: Record, point: Record) -> bool:
    spec = find(point.benchmark)
    if spec is None or published.benchmark != spec.name:
        return False
    fills = spec.fills_chip or spec.is_large
    return (
        is_measurement(published)
        and published.version == point.version
        and published.metric == point.metric
        and published.device_count == point.device_count
        and published.device == point.device
        and _rate_type(published.case) == _rate_type(point.case)
        and spec.nature(published.case) == spec.nature(point.case)
        and fills(published.case)
    )


def _is_searched(published: Record) -> bool:
    return "search" in str(published.conditions.get("kind", ""))


def _rate_type(case: Case) -> str | None:
    """Return the dtype, where fp16 and bf16 are one: the tensor cores do them at one rate."""
    dtype = dtype_of(case)
    return _ONE_RATE.get(str(dtype), dtype)
