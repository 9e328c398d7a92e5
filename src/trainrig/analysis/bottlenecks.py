"""Why a level lies below its ceiling, as far as the records say.

Each rule looks at one level of a waterfall and names a cause only from what was
recorded: clocks, power, throttle reasons, the shape of the case, the machine's
links and limits.  The first rule that fits is taken; a layer's or a training step's
drop is split into shares (`time_loss`).  Where none fits the cause is "not known",
which is an answer too: nothing here is a guess.
"""

from __future__ import annotations

from trainrig.analysis.best import is_reference
from trainrig.analysis.evidence import (
    Drop,
    Gap,
    bench_command,
    boost_clock,
    chip_of,
    finite_number,
    intensity_of,
    number,
    throttle_reasons,
)
from trainrig.analysis.rows import at_path
from trainrig.analysis.time_loss import shares_of
from trainrig.benchmarks.matmul import square_size
from trainrig.benchmarks.spec import Role, find
from trainrig.record import Kind
from trainrig.units import format_quantity, format_share, range_text

CLOSE = 0.03
"""Below this share of the ceiling nothing needs a reason: it is within what clocks wander."""
_LOW_CLOCK = 0.03
"""A clock this share below the data sheet's explains something."""
_RISING = 0.05
"""The curve still rises when the largest size beats the one before it by this share."""
TINY = 0.01
"""A share of a drop that is too small to say."""
_MOSTLY = 0.5
"""A residual of this share is too large to call the drop explained."""


def find_cause(drop: Drop) -> Gap:
    """Return the gap with the first cause whose rule fits, else "not known"."""
    for rule in _RULES:
        if (gap := rule(drop)) is not None:
            return gap
    if drop.record.kind is Kind.BASELINE:
        return drop.because("cause not known: the source states no clocks", known=False)
    return drop.because("cause not known", bench_command(drop.record, peak=True), known=False)


def _noisy(drop: Drop) -> Gap | None:
    if drop.record.disturbed is None:
        return None
    command = bench_command(drop.record)
    again = f"on a quiet machine: {command}" if command else "measure it again on a quiet machine"
    return drop.because(f"noisy: {drop.record.disturbed}", again)


def _no_difference(drop: Drop) -> Gap | None:
    """Return the gap of two measured levels whose intervals overlap: neither is surely faster."""
    interval, above = drop.record.interval, drop.ceiling_record
    if drop.is_from_claim or above is None or interval is None or above.interval is None:
        return None
    low, high = above.interval
    if interval[0] > high or low > interval[1]:
        return None
    ranges = [range_text(*ends, drop.record.unit) for ends in (interval, above.interval)]
    return drop.because(
        f"no difference seen: {ranges[0]} and {ranges[1]} overlap",
        bench_command(drop.record),
        is_certain=False,
    )


def _above_claim(drop: Drop) -> Gap | None:
    """Return the gap of a level above a claim: a clock, or what is counted."""
    if drop.share <= 0.0:
        return None
    boost, clock = boost_clock(drop.record), number(drop.record, "sm_clock_hz")
    if boost and clock and clock > boost:
        return drop.because(
            f"ran at {format_quantity(clock, 'Hz')}; the data sheet counts with "
            f"{format_quantity(boost, 'Hz')}: not an error"
        )
    if is_reference(drop.record):
        return drop.because(
            "above the reference: the processor does not run at the clock that it reports"
        )
    if drop.share <= CLOSE:
        return drop.because("at the claim")
    spec = find(drop.record.benchmark)
    if spec and spec.follows_clock and drop.record.device_index is not None:
        return drop.because(
            "boost clock above the data sheet's, or another definition: not an error"
        )
    return drop.because(
        "above the claim: data partly in cache, or another definition", bench_command(drop.record)
    )


def _near_ceiling(drop: Drop) -> Gap | None:
    return drop.because("close to its ceiling") if drop.share >= -CLOSE else None


def _uncertain_claim(drop: Drop) -> Gap | None:
    """Return the gap to a claim computed from a CPU's flags: its upper end is the ceiling."""
    claim = drop.ceiling_record
    if claim is None or claim.kind is not Kind.CLAIMED or claim.interval is None:
        return None
    low, high = claim.interval
    if drop.value < low * (1.0 - CLOSE):
        return None
    return drop.because(
        f"the claim itself is uncertain: {range_text(low, high, drop.record.unit)}, "
        "by how many units a core has",
        is_certain=False,
    )


def _attributed(drop: Drop) -> Gap | None:
    """Return the gap with several causes, their sizes, and the rest; None below a hundredth."""
    shares = shares_of(drop)
    if not shares:
        return None
    named = [share for share in shares if abs(share.part) >= TINY]
    unit, known = drop.record.unit, shares[-1].part < _MOSTLY
    tried = next((share.next for share in named if share.next), "")
    return drop.because(
        "; ".join(f"{share.name}: {format_quantity(share.amount, unit)}" for share in named),
        tried if known else "profile one step and read where its time goes",
        known=known,
        shares=shares,
    )


def _pageable(drop: Drop) -> Gap | None:
    if drop.record.case.get("memory") != "pageable":
        return None
    return drop.because(
        "pageable memory is copied into a pinned buffer by the driver first",
        "pin_memory=True in the data loader",
    )


def _throttled(drop: Drop) -> Gap | None:
    reasons = throttle_reasons(drop.record)
    if "thermal" in reasons:
        heat = number(drop.record, "temperature_c")
        return drop.because(
            "thermal slowdown" + (f" at {heat:.0f} °C" if heat else ""),
            "check fans and airflow: nvidia-smi -q -d TEMPERATURE,PERFORMANCE",
        )
    if "power" not in reasons:
        return None
    name = "power_limit_w"
    limit = number(drop.record, name) or finite_number(at_path(drop.gpu, name))
    clock = number(drop.record, "sm_clock_hz")
    return drop.because(
        "power cap"
        + (f" of {limit:.0f} W" if limit else "")
        + (f": {format_quantity(clock, 'Hz')} under load" if clock else ""),
        "nvidia-smi -q -d POWER shows the range; sudo nvidia-smi -pl WATTS changes it",
    )


def _narrow_link(drop: Drop) -> Gap | None:
    if drop.record.case.get("direction") not in ("h2d", "d2h"):
        return None
    for name, prefix in (("width", "x"), ("generation", "generation ")):
        has, could = (
            finite_number(at_path(drop.gpu, "link", f"{most}{name}")) for most in ("", "max_")
        )
        if has and could and has < could:
            return drop.because(
                f"PCIe link at {prefix}{has:.0f} of {prefix}{could:.0f}",
                "reseat the card or use another slot; then: trainrig inspect",
            )
    return None


def _fewer_cpus(drop: Drop) -> Gap | None:
    if drop.record.device_index is not None or not drop.is_from_claim:
        return None
    threads, quota, allowed = (
        finite_number(at_path(drop.view.machine, "cpu", name))
        for name in ("threads", "quota_cpus", "usable_threads")
    )
    usable = quota or allowed
    if not threads or not usable or usable >= threads:
        return None
    return drop.because(
        f"this process may use {usable:g} of the {threads:g} threads",
        "raise the container's CPU limit, or widen its affinity",
    )


def _low_clock(drop: Drop) -> Gap | None:
    clock, boost = number(drop.record, "sm_clock_hz"), boost_clock(drop.record)
    if not drop.is_from_claim and drop.ceiling_record is not None:
        boost = number(drop.ceiling_record, "sm_clock_hz")
    if not clock or not boost or clock > boost * (1.0 - _LOW_CLOCK):
        return None
    explained = min(1.0, (1.0 - clock / boost) / -drop.share)
    return drop.because(
        f"clock: {format_quantity(clock, 'Hz')} under load, {format_quantity(boost, 'Hz')} "
        f"behind the ceiling; that is {format_share(explained)} of the gap",
        "nvidia-smi -q -d CLOCK,PERFORMANCE",
    )


def _product(drop: Drop) -> Gap | None:
    """Return the gap of a product whose shape is below the roofline's ridge, or is too small."""
    if drop.role is not Role.PRODUCT:
        return None
    peak = bench_command(drop.record, peak=True)
    intensity, bandwidth = intensity_of(drop.record), drop.bandwidth
    if intensity and bandwidth and intensity < (ridge := drop.ceiling / bandwidth):
        text = f"memory-bound shape: {intensity:.0f} FLOP/B, the ridge lies at {ridge:.0f}"
        return drop.because(text, peak)
    if drop.record.case.get("sustained"):
        return None
    curve = sorted(
        (size, row.value)
        for row in drop.rows
        if row.role is Role.PRODUCT
        and row.count == drop.record.device_count
        and row.case.get("dtype") == drop.record.case.get("dtype")
        and not row.case.get("sustained")
        and row.is_usable
        and (size := square_size(row.case))
    )
    if len(curve) < 2 or curve[-1][1] < curve[-2][1] * (1.0 + _RISING):
        return None
    return drop.because(f"still rising at {curve[-1][0]}, the largest size that was measured", peak)


def _layer_parts(drop: Drop) -> Gap | None:
    """Return the gap of a layer that was also measured in parts: the slowest part is named."""
    if drop.role is not Role.BLOCK:
        return None
    same = {name: drop.record.case.get(name) for name in ("dtype", "code")}
    parts = sorted(
        (
            row
            for row in drop.rows
            if row.role is Role.BLOCK
            and "m" in row.case
            and {name: row.case.get(name) for name in same} == same
            and row.is_usable
        ),
        key=lambda row: row.value,
    )
    if len(parts) < 2:
        return None
    slow, fast = parts[0], parts[-1]
    return drop.because(
        f"memory-bound work between the matmuls: {slow.case['layer']} runs at "
        f"{format_quantity(slow.value, slow.unit)}, {fast.case['layer']} at "
        f"{format_quantity(fast.value, fast.unit)}",
        "fused kernels: FlashAttention, fused GELU and norms",
    )


def _no_p2p(drop: Drop) -> Gap | None:
    chip = chip_of(drop.record.device)
    has_peers = drop.role is Role.STEP and drop.record.num_devices > 1
    if not has_peers or chip is None or chip.link.p2p is not False:
        return None
    return drop.because(
        "exposed communication: these cards have no P2P, gradients cross host memory",
        "fewer, larger exchanges: gradient accumulation, a larger micro-batch",
    )


_RULES = (
    _noisy,
    _no_difference,
    _above_claim,
    _near_ceiling,
    _uncertain_claim,
    _attributed,
    _pageable,
    _throttled,
    _narrow_link,
    _fewer_cpus,
    _low_clock,
    _product,
    _layer_parts,
    _no_p2p,
)
