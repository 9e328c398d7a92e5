"""Where a layer's or a training step's time went, from the records beside it.

A layer falls from the best matmul, a training step from the best layer, and what they lost is
found in what was measured: parts of the step that were timed, the rate of a layer's own matrix
products, clocks, rows of equal times (launch gaps), and the roofline: counted bytes at the measured
memory bandwidth.  What has no record is no loss here, and stays in the residual.

A level does ``work`` FLOPs in ``time``; at its ceiling's rate C they would take work / C.  The rest
of the time was lost, and so was the rate C − work / time.  A cause that took t seconds took the
share t / (time − work / C) of the drop, which is C·t / time in FLOP/s: so the shares add up to
the drop, whatever their order, and what no cause accounts for is a share of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from trainrig.analysis.evidence import Drop, Share, number, throttle_reasons
from trainrig.analysis.rows import Row
from trainrig.benchmarks import layer as layers
from trainrig.benchmarks.spec import Role
from trainrig.errors import UsageError
from trainrig.record import Case, Kind, Record, dtype_of
from trainrig.stats import launch_bound, median
from trainrig.units import format_quantity
from trainrig.workload import (
    FAMILIES,
    ModelShape,
    Op,
    block_ops,
    find,
    presets,
    step_ops,
    total_flops,
)
from trainrig.workload.layout import Layout
from trainrig.workload.model import SHAPE_KEYS
from trainrig.workload.span_corruption import written_tokens

NOT_EXPLAINED = "not explained"
TOO_MUCH = "estimates overlap"
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Seconds of one call or step that its work did not need at the ceiling's rate."""

    name: str
    seconds: float
    next: str = ""
    """Remedy to try."""
    options: str = ""
    """Options of ``trainrig train`` that try it."""


def attribute(
    *, ceiling_rate: float, work: float, time: float, losses: Iterable[Loss], unsure: float = 0.0
) -> tuple[Share, ...]:
    """Return the drop from ``ceiling_rate`` to work / time by cause, the largest first.

    Nothing where nothing was lost.  The last share is what the losses leave.  Where they claim more
    seconds than there were, they share these if the excess is within ``unsure``, what time and
    ceiling may be off by; else the last share is negative, under another name.
    """
    lost = time - work / ceiling_rate
    if lost <= 0.0 or time <= 0.0:
        return ()
    named = sorted((loss for loss in losses if loss.seconds > 0.0), key=lambda loss: -loss.seconds)
    explained = sum(loss.seconds for loss in named)
    if lost < explained <= lost + unsure:
        named = [replace(loss, seconds=loss.seconds * lost / explained) for loss in named]
        explained = lost
    unexplained = lost - explained
    remainder = Loss(
        name=NOT_EXPLAINED if unexplained > -_ROUNDING * lost else TOO_MUCH, seconds=unexplained
    )
    return tuple(
        Share(
            name=loss.name,
            amount=ceiling_rate * loss.seconds / time,
            seconds=loss.seconds,
            part=loss.seconds / lost,
            next=loss.next,
            options=loss.options,
        )
        for loss in (*named, remainder)
    )


LAUNCH_GAPS = "launch gaps: the GPU waits for the host"
# A part of a step that is timed by itself: what it is called, what to try, and options that do.
PARTS = {
    "data_wait": (
        "data wait",
        "more loader threads, data on a faster disk, or prepared tokens",
        "",
    ),
    "optimizer": (
        "optimizer",
        "gradient accumulation, or a larger batch: fewer updates",
        "--grad-accum 8",
    ),
    "communication": (
        "exposed communication",
        "gradient accumulation: fewer exchanges",
        "--grad-accum 8",
    ),
    "launch_gap": (LAUNCH_GAPS, "torch.compile, or a larger micro-batch", "--compile"),
    "other": ("other: belongs to no part of the step", "profile one step", ""),
}
_SAME_COUNT = 0.02
"""FLOPs of a step that differ by less were counted alike."""
_LOWER_CLOCK = 0.97


def shares_of(drop: Drop) -> tuple[Share, ...]:
    """Return the drop of a layer or a training step by cause; empty where the records name none."""
    if drop.role is Role.BLOCK and (counted := count_layer(drop.record)):
        time = counted.work / drop.value
        losses = _layer_losses(drop, counted)
    elif drop.role is Role.STEP and (time := step_time(drop)):
        losses = _step_losses(drop, time)
    else:
        return ()
    work = drop.value * time
    if not any(loss.seconds > 0.0 for loss in losses):
        return ()
    losses += _clock_loss(drop, work)
    return attribute(
        ceiling_rate=drop.ceiling,
        work=work,
        time=time,
        losses=losses,
        unsure=_uncertain_seconds(drop.record, work)
        + _uncertain_seconds(drop.ceiling_record, work),
    )


def _uncertain_seconds(record: Record | None, work: float) -> float:
    """Return seconds for ``work`` between the ends of a measured rate's interval."""
    if record is None or record.kind is Kind.CLAIMED or record.interval is None:
        return 0.0
    low, high = record.interval
    return work / low - work / high if low > 0.0 else 0.0


# ---- a layer


def _layer_losses(drop: Drop, counted: CountedWork) -> list[Loss]:
    bandwidth = drop.bandwidth
    losses: list[Loss] = []
    if bandwidth:
        seconds = memory_seconds(counted.ops, drop.ceiling, bandwidth)
        losses.append(_memory_loss("memory-bound work between the matmuls", seconds, bandwidth))
    again = total_flops(counted.ops, "recompute") / drop.ceiling
    losses.append(Loss(name="attention recomputed in backward", seconds=again))
    case = drop.record.case
    tokens = prod(layers.layer_tokens(case))
    products = [
        row.value
        for row in drop.rows
        if row.role is Role.BLOCK
        and row.case.get("dtype") == case.get("dtype")
        and (row.case.get("m"), row.case.get("k")) == (tokens, case.get("hidden"))
        and is_dense(row.case.get("layer"))
        and row.is_usable
    ]
    if products and (product_rate := max(products)) < drop.ceiling:
        dense = total_flops(op for op in counted.ops if op.kind == "matmul")
        slower = dense * (1.0 / product_rate - 1.0 / drop.ceiling)
        rate = format_quantity(product_rate, drop.record.unit)
        losses.append(Loss(name=f"matmuls of this shape, measured at {rate}", seconds=slower))
    if _is_launch_bound(drop.rows, drop.record):
        lost = counted.work / drop.value - counted.work / drop.ceiling
        remainder = lost - sum(loss.seconds for loss in losses)
        losses.append(_part_loss("launch_gap", remainder))
    return losses


def _memory_loss(name: str, seconds: float, bandwidth: float) -> Loss:
    rate = format_quantity(bandwidth, "B/s")
    return Loss(
        name=f"{name}, by counted bytes at {rate}",
        seconds=seconds,
        next="fused kernels: torch.compile, FlashAttention, fused norms and activations",
        options="--compile",
    )


def _part_loss(part: str, seconds: float, name: str = "") -> Loss:
    called, cause, options = PARTS[part]
    return Loss(name=name or called, seconds=seconds, next=cause, options=options)


def is_dense(layer: object, *, activation: bool = False) -> bool:
    """Return whether a layer's name means one dense product, with or without activation."""
    name = str(layer).lower()
    has = any(word in name for word in ("gelu", "relu", "silu", "activation"))
    return name.startswith("dense") and has == activation


def layer_times(rows: Sequence[Row], record: Record) -> dict[int, tuple[float, Record]]:
    """Return by batch the time of one call and its record, of cases that differ in batch alone."""
    times: dict[int, tuple[float, Record]] = {}
    for row in rows:
        batch, record_of_row = row.case.get("batch_size"), row.measured
        if row.role is not Role.BLOCK or not isinstance(batch, int) or not row.is_usable:
            continue
        if record_of_row is None or {**row.case, "batch_size": 0} != {
            **record.case,
            "batch_size": 0,
        }:
            continue
        if row.metric == "time":
            times[batch] = row.value, record_of_row
        elif (
            row.metric == "flop_rate"
            and batch not in times
            and (counted := count_layer(record_of_row))
        ):
            times[batch] = counted.work / row.value, record_of_row
    return times


def _is_launch_bound(rows: Sequence[Row], record: Record) -> bool:
    times = {batch: time for batch, (time, _) in layer_times(rows, record).items()}
    flat, batch = launch_bound(times), record.case.get("batch_size")
    return flat is not None and isinstance(batch, int) and flat[0] <= batch <= flat[1]


# ---- a training step


def step_time(drop: Drop) -> float:
    """Return the seconds of a step: measured, else counted FLOPs over its rate, else 0."""
    if time := step_parts(drop, drop.record).get("time"):
        return time
    counted = count_step(drop.record)
    return counted.work / drop.value if counted else 0.0


def step_parts(drop: Drop, record: Record) -> dict[str, float]:
    """Return seconds of each part of ``record`` that was timed, ``time`` for the whole.

    Points of their own (metric ``time.optimizer``), or conditions of the attempts.
    """
    parts: dict[str, float] = {}
    case, count = dict(record.case), record.device_count
    for row in drop.rows:
        same = row.role is Role.STEP and dict(row.case) == case and row.count == count
        if same and row.is_usable:
            name = row.metric.removeprefix("time.")
            if row.metric == "time" or name != row.metric:
                parts[name] = row.value
    ids = set(record.derived.ids) if record.derived else set()
    workers = [
        record_of_worker for record_of_worker in drop.view.records if record_of_worker.id in ids
    ]
    for name in (*PARTS, "time"):
        worker_times = [
            record_of_worker.value if name == "time" else number(record_of_worker, f"time.{name}")
            for record_of_worker in workers
        ]
        known = [value for value in worker_times if value is not None]
        if known:
            parts.setdefault(name, median(known))
    return parts


def _step_losses(drop: Drop, time: float) -> list[Loss]:
    parts, above = step_parts(drop, drop.record), drop.ceiling_record
    is_below_step = above is not None and drop.ceiling_role is Role.STEP
    # What the step above lost as well is no loss here.
    before = step_parts(drop, above) if above is not None and is_below_step else {}
    losses = [
        _part_loss(part, parts[part] - before.get(part, 0.0)) for part in PARTS if part in parts
    ]
    counted, bandwidth = count_step(drop.record), drop.bandwidth
    if counted is None or is_below_step:
        return losses
    ops = counted.ops
    if "optimizer" not in parts and bandwidth:
        seconds = sum(op.num_bytes for op in ops if op.kind == "optimizer") / bandwidth
        rate = format_quantity(bandwidth, "B/s")
        name = f"optimizer, by its counted bytes at {rate}"
        losses.append(_part_loss("optimizer", seconds, name))
    if abs(drop.value * time / counted.work - 1.0) > _SAME_COUNT:
        return losses  # another head, or another rule of counting: its operations are not these
    if without := count_step(drop.record, recompute="none"):
        again = total_flops(ops, "recompute") - total_flops(without.ops, "recompute")
        losses.append(
            Loss(
                name="activations computed again",
                seconds=again / drop.ceiling,
                next="less activation checkpointing, if memory allows",
            )
        )
    if bandwidth:
        is_below_layer = drop.ceiling_role is Role.BLOCK
        outside = [op for op in ops if "block" not in op.name] if is_below_layer else ops
        seconds = memory_seconds(outside, drop.ceiling, bandwidth)
        keeps_scores = not is_below_layer and _kernels(drop.record) == "eager"
        name = _WITH_SCORES if keeps_scores else "memory-bound work around the layers"
        losses.append(_memory_loss(name, seconds, bandwidth))
    return losses


_WITH_SCORES = "attention scores kept in memory, and other memory-bound work"
_WIDTHS = ("family", "hidden", "num_heads", "ffn")


def is_own_layer(case: Case, step: Case) -> bool:
    """Return whether a layer's case is the block of a step's model, at its batch and sequence."""
    layer_model, model = layer_shape(case), model_shape(step)
    same = ("batch_size", "seq_len")
    return (
        case.get("pass") == "forward+backward"
        and layer_model is not None
        and model is not None
        and all(
            SHAPE_KEYS.get(layer_model[0], name) == SHAPE_KEYS.get(model, name) for name in _WIDTHS
        )
        and dtype_of(case) == dtype_of(step)
        and all(case.get(name) == step.get(name) for name in same)
    )


# ---- either


def _clock_loss(drop: Drop, work: float) -> list[Loss]:
    """Return the loss by a clock lower than the ceiling's: all arithmetic is slower."""
    if drop.ceiling_record is None:
        return []
    clock, before = number(drop.record, "sm_clock_hz"), number(drop.ceiling_record, "sm_clock_hz")
    if not clock or not before or clock > before * _LOWER_CLOCK:
        return []
    reasons = throttle_reasons(drop.record)
    why = "heat" if "thermal" in reasons else "power cap" if "power" in reasons else "lower clock"
    name = f"{why}: {format_quantity(clock, 'Hz')} against {format_quantity(before, 'Hz')}"
    seconds = work / drop.ceiling * (before / clock - 1.0)
    return [Loss(name=name, seconds=seconds, next="nvidia-smi -q -d CLOCK,PERFORMANCE")]


# ---- what a case counts: only known names, and no file is read: a record may be a stranger's


_MODELS = {"gpt-2 medium": "gpt2-medium"}
"""Models of published tables whose names are not the presets'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedWork:
    """Operations and bytes of one call or step."""

    ops: tuple[Op, ...]

    @property
    def work(self) -> int:
        """FLOPs that the mathematics needs."""
        return total_flops(self.ops, "forward", "backward")


def layer_shape(case: Case) -> tuple[ModelShape, bool] | None:
    """Return the model of a whole layer's case, and whether its decoder; None if unknown."""
    if case.get("layer") not in layers.LAYERS:
        return None
    try:
        return layers.layer_shape(case)
    except UsageError:
        return None


def model_shape(case: Case) -> ModelShape | None:
    """Return the model of a step's case by its name; None if unknown."""
    name = str(case.get("model", ""))
    try:
        if name.partition(":")[0] in FAMILIES and ":" in name:  # numbers: no file is looked for
            return find(name)
        return presets.known(_MODELS.get(name.lower(), name))
    except (UsageError, TypeError):
        return None


def count_layer(record: Record) -> CountedWork | None:
    """Return the operations of one block; None where the case does not say which."""
    model, phases = layer_shape(record.case), layers.PASSES.get(str(record.case.get("pass")))
    if model is None or phases is None:
        return None
    shape, decoder = model
    with suppress(UsageError):
        ops = block_ops(shape, _layout(record.case, kernels=_kernels(record)), decoder=decoder)
        return CountedWork(ops=tuple(op for op in ops if op.phase in phases))
    return None


def count_step(record: Record, *, recompute: str | None = None) -> CountedWork | None:
    """Return the operations of one training step; ``recompute`` replaces the case's."""
    shape = model_shape(record.case)
    if shape is None:
        return None
    once = ("optimizer", "cast")  # whatever the number of micro-batches
    with suppress(UsageError):
        micros = layers.size_of({"grad_accum": 1, **record.case}, "grad_accum")
        layout = _layout(
            record.case,
            kernels=_kernels(record),
            recompute=recompute or str(record.case.get("recompute") or "none"),
            # The decoder of a whole model writes another number of tokens than is read.
            target_seq_len=written_tokens(shape, layers.size_of(record.case, "seq_len")),
        )
        ops = (
            op if op.kind in once else replace(op, count=op.count * micros)
            for op in step_ops(shape, layout)
        )
        return CountedWork(ops=tuple(ops))
    return None


def _layout(case: Case, **more: Any) -> Layout:
    """Return the layout of a step's case.  Raises UsageError for a size out of range."""
    return Layout.of(
        batch_size=layers.size_of(case, "batch_size"),
        seq_len=layers.size_of(case, "seq_len"),
        precision=str(dtype_of(case)),
        **more,
    )


def memory_seconds(ops: Iterable[Op], rate: float, bandwidth: float) -> float:
    """Return seconds beyond arithmetic at ``rate``: what the counted bytes need at ``bandwidth``.

    An operation without FLOPs takes its bytes' time; a product only what its bytes take
    longer than its FLOPs (the roofline).
    """
    return sum(
        op.count * max(0.0, op.num_bytes / bandwidth - op.flops / rate)
        for op in ops
        if op.kind != "optimizer"
    )


_OLD_TORCH = re.compile(r"\btorch [01]\.")
"""torch has fused attention since 2.0 (release notes, March 2023); before, scores are stored."""


def _kernels(record: Record) -> str:
    """Return whether attention scores are in memory: by the case, else by the software."""
    stated = record.case.get("attention")
    if stated is not None:  # "fused" in older runs
        return "flash" if stated in ("fused", "sdpa", "auto") else "eager"
    software = " ".join(str(record.conditions.get(name, "")) for name in ("software", "notes"))
    return "eager" if "eager" in software or _OLD_TORCH.search(software) else "flash"
