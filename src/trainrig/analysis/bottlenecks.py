"""Why a level lies below its ceiling, as far as the records say.

Each rule looks at one level of a waterfall and names a cause only from what was
recorded: clocks, power, throttle reasons, the shape of the case, the machine's
links and limits.  The first rule that fits is taken; a layer's or a training step's
drop is split into shares (`time_loss`).  Where none fits the cause is "not known",
which is an answer too: nothing here is a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainrig.analysis.evidence import (
    Drop,
    bandwidth_of,
    bench_command,
    boost_clock,
    chip_of,
    gpu_number,
    gpu_of,
    intensity_of,
    number,
    plain,
    throttle_reasons,
)
from trainrig.analysis.time_loss import Share, shares_of
from trainrig.benchmarks.matmul import square_size
from trainrig.benchmarks.spec import Role, find, role_of
from trainrig.record import Kind, Record
from trainrig.units import format_quantity, format_share, range_text

# Below this share of the ceiling nothing needs a reason: it is within what clocks wander.
CLOSE = 0.03

# A clock this share below the data sheet's explains something.
_LOW_CLOCK = 0.03

# The curve still rises when the largest size beats the one before it by this share.
_RISING = 0.05


# A share of a drop that is too small to say, and a residual too large to call the drop explained.
TINY = 0.01
_MOSTLY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why, and what to try."""

    text: str
    next: str = ""
    known: bool = True
    shares: tuple[Share, ...] = ()
    """Sizes of several causes and of what they leave, where they could be told apart."""


def find_cause(drop: Drop) -> Cause:
    """The first cause whose rule fits, else "not known"."""
    for rule in _RULES:
        cause = rule(drop)
        if cause is not None:
            return cause
    return _unknown(drop)


def _unknown(drop: Drop) -> Cause:
    if drop.record.kind is Kind.BASELINE:
        return Cause(text="cause not known: the source states no clocks", known=False)
    return Cause(text="cause not known", next=bench_command(drop.record, peak=True), known=False)


def _disturbed(drop: Drop) -> Cause | None:
    if drop.record.disturbed is None:
        return None
    return Cause(
        text=f"disturbed: {drop.record.disturbed}; not judged",
        next=f"on a quiet machine: {bench_command(drop.record)}",
    )


def _above(drop: Drop) -> Cause | None:
    if drop.share <= 0.0:
        return None
    if drop.ceiling_kind is not Kind.CLAIMED:
        return Cause(text="faster than the level above")
    boost, clock = boost_clock(drop.record), number(drop.record, "sm_clock_hz")
    if boost and clock and clock > boost:
        return Cause(
            text=f"ran at {format_quantity(clock, 'Hz')}; the data sheet counts with "
            f"{format_quantity(boost, 'Hz')}: not an error"
        )
    if drop.share <= CLOSE:
        return Cause(text="at the claim")
    spec = find(drop.record.benchmark)
    if spec and spec.follows_clock and drop.record.device_index is not None:
        return Cause(text="boost clock above the data sheet's, or another definition: not an error")
    return Cause(
        text="above the claim: data partly in cache, or another definition",
        next=bench_command(drop.record),
    )


def _close(drop: Drop) -> Cause | None:
    return Cause(text="close to its ceiling") if drop.share >= -CLOSE else None


def _uncertain_claim(drop: Drop) -> Cause | None:
    """A claim computed from a CPU's flags is a range: its upper end is the ceiling."""
    claim = drop.ceiling_record
    if claim is None or claim.kind is not Kind.CLAIMED or claim.interval is None:
        return None
    low, high = claim.interval
    if drop.value < low * (1.0 - CLOSE):
        return None
    return Cause(
        text=f"the claim itself is uncertain: {range_text(low, high, drop.record.unit)}, "
        "by how many units a core has"
    )


def _attributed(drop: Drop) -> Cause | None:
    """Several causes with their sizes, and the rest; below a hundredth of the drop: none."""
    shares = shares_of(drop)
    if not shares:
        return None
    named = [share for share in shares if abs(share.part) >= TINY]
    unit, known = drop.record.unit, shares[-1].part < _MOSTLY
    tried = next((share.next for share in named if share.next), "")
    return Cause(
        text="; ".join(f"{share.name}: {format_quantity(share.amount, unit)}" for share in named),
        next=tried if known else "profile one step and read where its time goes",
        known=known,
        shares=shares,
    )


def _pageable(drop: Drop) -> Cause | None:
    if drop.record.case.get("memory") != "pageable":
        return None
    return Cause(
        text="pageable memory is copied into a pinned buffer by the driver first",
        next="pin_memory=True in the data loader",
    )


def _thermal(drop: Drop) -> Cause | None:
    if "thermal" not in throttle_reasons(drop.record):
        return None
    heat = number(drop.record, "temperature_c")
    return Cause(
        text="thermal slowdown" + (f" at {heat:.0f} °C" if heat else ""),
        next="check fans and airflow: nvidia-smi -q -d TEMPERATURE,PERFORMANCE",
    )


def _power_cap(drop: Drop) -> Cause | None:
    reasons = throttle_reasons(drop.record)
    if "power" not in reasons:
        return None
    limit = number(drop.record, "power_limit_w") or gpu_number(drop, "power_limit_w")
    return Cause(
        text="power cap" + (f" of {limit:.0f} W" if limit else "") + _clocks(drop.record),
        next="nvidia-smi -q -d POWER shows the range; sudo nvidia-smi -pl WATTS changes it",
    )


def _narrow_link(drop: Drop) -> Cause | None:
    if drop.record.case.get("direction") not in ("h2d", "d2h"):
        return None
    link = (gpu_of(drop) or {}).get("link")
    if not isinstance(link, Mapping):
        return None
    for now, most, what in (
        ("width", "max_width", "x{}"),
        ("generation", "max_generation", "generation {}"),
    ):
        has, could = plain(link.get(now)), plain(link.get(most))
        if has and could and has < could:
            return Cause(
                text=f"PCIe link at {what.format(int(has))} of {what.format(int(could))}",
                next="reseat the card or use another slot; then: trainrig inspect",
            )
    return None


def _fewer_cpus(drop: Drop) -> Cause | None:
    if drop.record.device_index is not None or drop.ceiling_kind is not Kind.CLAIMED:
        return None
    cpu = (drop.view.machine or {}).get("cpu")
    if not isinstance(cpu, Mapping):
        return None
    threads = plain(cpu.get("threads"))
    usable = plain(cpu.get("quota_cpus")) or plain(cpu.get("usable_threads"))
    if not threads or not usable or usable >= threads:
        return None
    return Cause(
        text=f"this process may use {usable:g} of the {threads:g} threads",
        next="raise the container's CPU limit, or widen its affinity",
    )


def _low_clock(drop: Drop) -> Cause | None:
    clock, boost = number(drop.record, "sm_clock_hz"), boost_clock(drop.record)
    if drop.ceiling_kind is not Kind.CLAIMED and drop.ceiling_record is not None:
        boost = number(drop.ceiling_record, "sm_clock_hz")
    if not clock or not boost or clock > boost * (1.0 - _LOW_CLOCK):
        return None
    explained = min(1.0, (1.0 - clock / boost) / -drop.share)
    return Cause(
        text=f"clock: {format_quantity(clock, 'Hz')} under load, {format_quantity(boost, 'Hz')} "
        f"behind the ceiling; that is {format_share(explained)} of the gap",
        next="nvidia-smi -q -d CLOCK,PERFORMANCE",
    )


def _memory_bound(drop: Drop) -> Cause | None:
    """Arithmetic intensity below the ridge: the roofline's slope is the true ceiling."""
    intensity = intensity_of(drop.record)
    bandwidth = bandwidth_of(drop)
    if role_of(drop.record.benchmark) is not Role.PRODUCT or not intensity or not bandwidth:
        return None
    ridge = drop.ceiling / bandwidth
    if intensity >= ridge:
        return None
    return Cause(
        text=f"memory-bound shape: {intensity:.0f} FLOP/B, the ridge lies at {ridge:.0f}",
        next=bench_command(drop.record, peak=True),
    )


def _still_rising(drop: Drop) -> Cause | None:
    """The largest size was the fastest by far: the plateau was not reached."""
    if role_of(drop.record.benchmark) is not Role.PRODUCT or drop.record.case.get("sustained"):
        return None
    curve = sorted(
        (size, row.measured.value)
        for row in drop.rows
        if row.role is Role.PRODUCT
        and row.count == drop.record.device_count
        and row.case.get("dtype") == drop.record.case.get("dtype")
        and not row.case.get("sustained")
        and row.measured is not None
        and row.measured.is_usable
        and row.measured.value
        and (size := square_size(row.case))
    )
    if len(curve) < 2 or curve[-1][1] < curve[-2][1] * (1.0 + _RISING):
        return None
    return Cause(
        text=f"still rising at {curve[-1][0]}, the largest size that was measured",
        next=bench_command(drop.record, peak=True),
    )


def _layer_parts(drop: Drop) -> Cause | None:
    """A layer that was also measured in parts: the slowest part of the same code is named."""
    if role_of(drop.record.benchmark) is not Role.BLOCK:
        return None
    same = [(name, drop.record.case.get(name)) for name in ("dtype", "code")]
    parts = [
        row.measured
        for row in drop.rows
        if row.role is Role.BLOCK
        and "m" in row.case
        and all(row.case.get(name) == value for name, value in same)
        and row.measured is not None
        and row.measured.disturbed is None
    ]
    ranked = sorted((p for p in parts if p.value), key=lambda p: p.value or 0.0)
    if len(ranked) < 2:
        return None
    slow, fast = ranked[0], ranked[-1]
    return Cause(
        text=f"memory-bound work between the matmuls: {slow.case['layer']} runs at "
        f"{format_quantity(slow.value or 0.0, slow.unit)}, {fast.case['layer']} at "
        f"{format_quantity(fast.value or 0.0, fast.unit)}",
        next="fused kernels: FlashAttention, fused GELU and norms",
    )


def _no_peer_access(drop: Drop) -> Cause | None:
    if drop.record.device_count < 2 or role_of(drop.record.benchmark) is not Role.STEP:
        return None
    chip = chip_of(drop.record.device)
    if chip is None or chip.p2p is not False:
        return None
    return Cause(
        text="exposed communication: these cards have no P2P, gradients cross host memory",
        next="fewer, larger exchanges: gradient accumulation, a larger micro-batch",
    )


def _step_parts(drop: Drop) -> Cause | None:
    if role_of(drop.record.benchmark) is not Role.STEP or drop.ceiling_record is None:
        return None
    if role_of(drop.ceiling_record.benchmark) is not Role.BLOCK:
        return None
    return Cause(
        text="a step also holds optimizer, embeddings, loss and data wait; how much each takes is "
        "not known",
        next="profile one step and read where its time goes",
        known=False,
    )


def _clocks(record: Record) -> str:
    clock = number(record, "sm_clock_hz")
    return f": {format_quantity(clock, 'Hz')} under load" if clock else ""


_RULES = (
    _disturbed,
    _above,
    _close,
    _uncertain_claim,
    _attributed,
    _pageable,
    _thermal,
    _power_cap,
    _narrow_link,
    _fewer_cpus,
    _low_clock,
    _memory_bound,
    _still_rising,
    _layer_parts,
    _no_peer_access,
    _step_parts,
)
