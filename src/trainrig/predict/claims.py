"""What is claimed for a device, as records, and which claim is a case's ceiling.

A claim has a case of its own (a dtype and its accumulate type, a direction of a
link), since no vendor promises a rate for a shape.  `ceiling` says which claim
bounds a measured case.  Cases that are hot in cache have no ceiling here: a
cache's bandwidth is not on the data sheets.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainrig.catalog.chip import DEFAULT_ACCUMULATE, Chip, peak
from trainrig.catalog.host import HostClaim, cpu_peaks, memory_bandwidth, pcie_bandwidth
from trainrig.errors import UsageError
from trainrig.machine.snapshot import Gpu, Missing, Snapshot, value_or
from trainrig.record import Case, Kind, Limit, Record


def gpu_claims(chip: Chip, index: int | None) -> tuple[Record, ...]:
    """The peaks, the memory bandwidth and the PCIe rate that a chip's vendor claims."""
    peaks = (peak(chip, dtype) for dtype in DEFAULT_ACCUMULATE)
    claims = [
        _claim(
            "matmul",
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
        claims.append(_claim("memory", {}, ("byte_rate", "B/s"), chip.bandwidth, source))
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
    """The claim that bounds a case of ``benchmark``; ``claims`` are one device's.

    What multiplies matrices is bounded by the peak of its dtype *and* of the type
    that torch sums in (fp32; int32 for integers, fp64 for fp64): fp16's peak with fp16
    accumulation bounds nothing that is run here.
    """
    wanted = _wanted(benchmark, case)
    if wanted is None:
        return None
    return next((claim for claim in claims if _matches(claim, *wanted)), None)


_MULTIPLYING = frozenset(["matmul", "layer", "step"])


def _wanted(benchmark: str, case: Case) -> tuple[str, Case] | None:
    """Benchmark and case of the claim that bounds a case."""
    if benchmark in _MULTIPLYING:
        dtype = str(case.get("dtype"))
        return "matmul", {"dtype": dtype, "accumulate": DEFAULT_ACCUMULATE.get(dtype)}
    if case.get("direction") in ("h2d", "d2h"):
        return "link", {"direction": case["direction"]}
    if case.get("cache") == "cold":
        return "memory", {}
    return None


def _matches(claim: Record, benchmark: str, case: Case) -> bool:
    return (
        claim.benchmark == benchmark and dict(claim.case) == dict(case) and claim.value is not None
    )


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
    return tuple(
        _host_claim(claim).replace(device=device)
        for claim in (*_cpu_peaks(snapshot), *_memory_bandwidth(snapshot))
    )


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
        _claim("link", {"direction": way}, ("byte_rate", "B/s"), rate.high, rate.formula).replace(
            device=device, device_index=gpu.index
        )
        for way in ("h2d", "d2h")
    )


def _host_claim(claim: HostClaim) -> Record:
    source = claim.formula if claim.note is None else f"{claim.formula}; {claim.note}"
    if claim.dtype is None:
        return _claim("memory", {}, ("byte_rate", "B/s"), claim.high, source)
    case = {"dtype": claim.dtype, "accumulate": DEFAULT_ACCUMULATE[claim.dtype]}
    peak_claim = _claim("matmul", case, ("flop_rate", claim.unit), claim.high, source)
    # What the flags leave open is the report's to show.
    return (
        peak_claim.replace(interval=(claim.low, claim.high))
        if claim.low < claim.high
        else peak_claim
    )


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


def _memory_bandwidth(snapshot: Snapshot) -> tuple[HostClaim, ...]:
    speed, channels = snapshot.memory.speed_mt_per_s, snapshot.memory.channels
    if isinstance(speed, Missing) or isinstance(channels, Missing):
        return ()
    return (memory_bandwidth(speed * 1e6, channels),)
