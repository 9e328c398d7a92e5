"""What is claimed for a device, as records, and which claim is a case's ceiling.

A claim has a case of its own (a dtype and its accumulate type, a direction of a
link), since no vendor promises a rate for a shape.  `ceiling` says which claim
bounds a measured case.  Cases that are hot in cache have no ceiling here: a
cache's bandwidth is not on the data sheets.

What a case should reach on this device, as a band, and on what grounds.

Grounds, best first:

1. this machine's own history: at least three earlier runs with a good point of the
   same key; the band is their range, widened by MARGIN.  It counts only where its
   floor is not below that of 2 or 3: a machine does not become right by being slow
   three times;
2. what others published for the same device and a comparable case;
3. the claim, derated by the shares of their claims that other devices of the
   same vendor were published to reach at comparable cases (10th to 90th
   percentile, widened); GPUs only;
4. nothing: no target is known, and that is said.

Cases are comparable when their benchmark, dtype or direction and cache agree and
both are large: small ones are bound by launches and hot ones by caches, so that
host and software decide, and nothing published there carries over.  A matmul is
judged from 8192 on; what others published counts from 2048 on, where it fills the
chip of its time.  A layer is compared with the very same case on the same device,
from 8192 tokens on.  Each benchmark's spec has the rule.  fp16 and bf16 count as one type where
both accumulate in fp32: the tensor cores do them at one rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import quantiles

from trainrig.benchmarks.spec import LINK_CLAIM, MARGIN, MEMORY_CLAIM, PEAK, find
from trainrig.catalog.chip import DEFAULT_ACCUMULATE, Chip, peak
from trainrig.catalog.host_parts import HostClaim, cpu_peaks, memory_bandwidth, pcie_bandwidth
from trainrig.errors import UsageError
from trainrig.machine.snapshot import Gpu, Missing, Snapshot, value_or
from trainrig.record import Case, Kind, Limit, Record, Status, dtype_of
from trainrig.stats import median


def gpu_claims(chip: Chip, index: int | None) -> tuple[Record, ...]:
    """The peaks, the memory bandwidth and the PCIe rate that a chip's vendor claims."""
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
    if chip.bandwidth is not None:
        source = f"{chip.name} data sheet, memory bandwidth{_unverified(chip, 'bandwidth')}"
        claims.append(_claim(MEMORY_CLAIM, {}, ("byte_rate", "B/s"), chip.bandwidth, source))
    return tuple(c.replace(device=chip.name, device_index=index) for c in claims)


def of_device(claims: Iterable[Record], device: str | None, index: int | None) -> list[Record]:
    """The claims of one device: two cards of one model may sit in unlike slots."""
    return [
        claim for claim in claims if claim.device == device and claim.device_index in (None, index)
    ]


def ceiling(claims: Iterable[Record], benchmark: str, case: Case) -> Limit | None:
    """The claim that bounds a case of ``benchmark`` as its limit, or None where none does."""
    claim = claim_for(claims, benchmark, case)
    if claim is None or claim.value is None:
        return None
    return Limit(value=claim.value, source=claim.source or "claimed")


def claim_for(claims: Iterable[Record], benchmark: str, case: Case) -> Record | None:
    """The claim that bounds a case of ``benchmark``; ``claims`` are one device's."""
    spec = find(benchmark)
    wanted = spec.claim(case) if spec else None
    if wanted is None:
        return None
    named, of = wanted
    fitting = (c for c in claims if c.benchmark == named and dict(c.case) == dict(of))
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
    """What the host's processor and memory claim by what the machine reports of them.

    The upper end of each range, since it is a ceiling; what could not be read has
    no claim.
    """
    speed, channels = snapshot.memory.speed_mt_per_s, snapshot.memory.channels
    found = [_cpu_claim(claim) for claim in _cpu_peaks(snapshot)]
    if not isinstance(speed, Missing) and not isinstance(channels, Missing):
        claim = memory_bandwidth(speed * 1e6, channels)
        source = claim.formula if claim.note is None else f"{claim.formula}; {claim.note}"
        found.append(_claim(MEMORY_CLAIM, {}, ("byte_rate", "B/s"), claim.high, source))
    return tuple(claim.replace(device=device) for claim in found)


def link_claims(gpu: Gpu, device: str) -> tuple[Record, ...]:
    """The PCIe rate of a GPU's slot, each direction, by the most its link can do."""
    generation, lanes = gpu.link.max_generation, gpu.link.max_width
    if isinstance(generation, Missing) or isinstance(lanes, Missing):
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


def _cpu_claim(claim: HostClaim) -> Record:
    source = claim.formula if claim.note is None else f"{claim.formula}; {claim.note}"
    case = {"dtype": claim.dtype, "accumulate": DEFAULT_ACCUMULATE[str(claim.dtype)]}
    found = _claim(PEAK, case, ("flop_rate", claim.unit), claim.high, source)
    # What the flags leave open is the report's to show.
    return found.replace(interval=(claim.low, claim.high)) if claim.low < claim.high else found


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
    return cpu_peaks(cores=min(cpu.cores, usable), clock=clock, flags=cpu.flags)


LONE_MARGIN = 0.15
"""One or two figures do not show how far their software lies from ours."""
MIN_HISTORY = 3
MIN_OTHERS = 3
"""Fewer published devices than this say nothing about the next one."""

_ONE_RATE = {"fp16": "16 bit", "bf16": "16 bit"}
# A simulator's table of efficiency factors, one a shape of its models: fitted, partly tiny shapes.
_NOT_A_MEASUREMENT = "GEMM per shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A baseline record and the claim of its device, where both are known."""

    record: Record
    limit: Limit | None
    vendor: str | None = None


def expect(
    point: Record,
    limit: Limit | None,
    history: Iterable[Record],
    published: Iterable[Published],
    vendor: str | None = None,
) -> Record:
    """The prediction for ``point``, a record that says which case on which device is meant.

    ``limit`` is its claim, ``vendor`` the maker of its device.  Its status is
    missing, with the reason, where no target is known.
    """
    bare = point.replace(kind=Kind.PREDICTED, limit=limit)
    spec = find(point.benchmark)
    large = spec is None or spec.is_large(point.case)
    relevant = [one for one in published if large and _comparable(one.record, point)]
    grounds = _from_published(point, relevant) or _from_claim(
        point, limit, [one for one in relevant if one.vendor == vendor]
    )
    own = _from_history(point, history)
    # History narrows what others lead one to expect; it never excuses a machine that is slow: a
    # card that was below its band three times is still below it.
    if own is not None and (grounds is None or own[0] >= grounds[0]):
        grounds = own
    if grounds is not None:
        low, centre, high, source = grounds
        return bare.replace(value=centre, interval=(low, high), source=source)
    why = "no claim and nothing published" if limit is None else "nothing published"
    return bare.replace(
        status=Status.MISSING, reason=f"no target known: {why} for this case on {point.device}"
    )


Grounds = tuple[float, float, float, str]


def _from_history(point: Record, history: Iterable[Record]) -> Grounds | None:
    by_run: dict[str, list[float]] = {}
    for record in history:
        if record.key == point.key and record.value is not None and record.disturbed is None:
            by_run.setdefault(record.run, []).append(record.value)
    # One value a run: eight equal cards in one run are not eight runs.
    values = [median(values) for values in by_run.values()]
    if len(values) < MIN_HISTORY:
        return None
    spec = find(point.benchmark)
    margin = spec.history_margin if spec else MARGIN
    return _band(values, f"{len(values)} earlier runs on this machine", margin)


def _from_published(point: Record, relevant: Sequence[Published]) -> Grounds | None:
    own = (one.record.value for one in relevant if one.record.device == point.device)
    known = [value for value in own if value is not None]
    if not known:
        return None
    margin = MARGIN if len(known) >= MIN_OTHERS else LONE_MARGIN
    return _band(known, f"published for {point.device}, n = {len(known)}", margin)


def _from_claim(
    point: Record, limit: Limit | None, relevant: Sequence[Published]
) -> Grounds | None:
    # A processor's claim is itself a range (its units, its clock), and every published share is
    # a GPU's: nothing can be said from it.
    if limit is None or point.device_index is None:
        return None
    by_device: dict[str | None, list[float]] = {}
    for one in relevant:
        if one.limit is not None and one.record.value is not None:
            share = one.record.value / one.limit.value
            by_device.setdefault(one.record.device, []).append(share)
    # One share a device: a source that printed 300 shapes of one chip counts once.
    shares = sorted(max(shares) for shares in by_device.values())
    if len(shares) < MIN_OTHERS:
        return None
    centre, deciles = median(shares), quantiles(shares, n=10, method="inclusive")
    low, high = deciles[0], deciles[-1]
    source = f"{limit.source} × {centre:.2f}, median of {len(shares)} published devices"
    band = _band([low * limit.value, high * limit.value], source)
    return band[0], centre * limit.value, band[2], source


def _band(values: Sequence[float], source: str, margin: float = MARGIN) -> Grounds:
    low, high = min(values) * (1.0 - margin), max(values) * (1.0 + margin)
    return low, median(values), high, source


def _comparable(published: Record, point: Record) -> bool:
    spec = find(point.benchmark)
    if spec is None or published.benchmark != spec.name:
        return False
    fills = spec.fills_chip or spec.is_large
    return (
        not str(published.conditions.get("kind", "")).startswith(_NOT_A_MEASUREMENT)
        and published.version == point.version
        and published.metric == point.metric
        and published.device_count == point.device_count
        and (published.device == point.device or not spec.same_device)
        and _rate_type(published.case) == _rate_type(point.case)
        and spec.nature(published.case) == spec.nature(point.case)
        and fills(published.case)
    )


def _rate_type(case: Case) -> str | None:
    """The dtype, where fp16 and bf16 are one: the tensor cores do them at one rate."""
    dtype = dtype_of(case)
    return _ONE_RATE.get(str(dtype), dtype)
