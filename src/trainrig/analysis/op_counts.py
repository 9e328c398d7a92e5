"""The operations behind a layer's or a step's case: FLOPs and counted bytes, out of `workload`.

A case names its layer (`benchmarks.layer`) or its model.  Only known names count, and no file is
read: a record may be a stranger's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trainrig.benchmarks import layer as layers
from trainrig.errors import UsageError
from trainrig.record import Case, Record, dtype_of
from trainrig.workload import (
    FAMILIES,
    ModelShape,
    Op,
    block_ops,
    find,
    named,
    step_ops,
    total_flops,
)
from trainrig.workload.layout import Layout
from trainrig.workload.span_corruption import written_tokens

_MODELS = {"gpt-2 medium": "gpt2-medium"}
"""Models of published tables whose names are not the presets'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one call or step does."""

    shape: ModelShape
    ops: tuple[Op, ...]

    @property
    def work(self) -> int:
        """FLOPs that the mathematics needs."""
        return total_flops(self.ops, "forward", "backward")

    @property
    def matmul(self) -> int:
        """FLOPs of matrix products with weights."""
        return total_flops(op for op in self.ops if op.kind == "matmul")


def layer_shape(case: Case) -> tuple[ModelShape, bool] | None:
    """The model that a whole layer's case means, and whether its decoder; None if unknown."""
    if case.get("layer") not in layers.LAYERS:
        return None
    try:
        return layers.layer_shape(case)
    except UsageError:
        return None


def model_shape(case: Case) -> ModelShape | None:
    """The model of a step's case by its name; None if unknown."""
    name = str(case.get("model", ""))
    try:
        if name.partition(":")[0] in FAMILIES and ":" in name:  # numbers: no file is looked for
            return find(name)
        return named(_MODELS.get(name.lower(), name))
    except (UsageError, TypeError):
        return None


def count_layer(record: Record) -> Counted | None:
    """The operations of one block; None where the case does not say which."""
    found, phases = layer_shape(record.case), layers.PASSES.get(str(record.case.get("pass")))
    if found is None or phases is None:
        return None
    shape, decoder = found
    with suppress(UsageError):
        ops = block_ops(shape, _layout(record.case, kernels=_kernels(record)), decoder=decoder)
        return Counted(shape=shape, ops=tuple(op for op in ops if op.phase in phases))
    return None


def count_step(record: Record, *, recompute: str | None = None) -> Counted | None:
    """The operations of one training step; ``recompute`` replaces the case's."""
    shape = model_shape(record.case)
    if shape is None:
        return None
    once = ("optimizer", "cast")  # whatever the number of micro-batches
    with suppress(UsageError):
        micros = layers.size_of({"grad_accum": 1, **record.case}, "grad_accum")
        layout = _layout(
            record.case,
            recompute=recompute or str(record.case.get("recompute") or "none"),
            # The decoder of a whole model writes another number of tokens than is read.
            target_seq_len=written_tokens(shape, layers.size_of(record.case, "seq_len")),
        )
        ops = (
            op if op.kind in once else dataclasses.replace(op, count=op.count * micros)
            for op in step_ops(shape, layout)
        )
        return Counted(shape=shape, ops=tuple(ops))
    return None


def _layout(case: Case, **more: Any) -> Layout:
    """Raises UsageError where a size is missing or out of range."""
    return Layout(
        batch_size=layers.size_of(case, "batch_size"),
        seq_len=layers.size_of(case, "seq_len"),
        precision=str(dtype_of(case)),
        **more,
    )


def memory_seconds(ops: Iterable[Op], rate: float, bandwidth: float) -> float:
    """Seconds beyond arithmetic at ``rate``: what the counted bytes need at ``bandwidth``.

    An operation without FLOPs takes its bytes' time; a product only what its bytes take
    longer than its FLOPs (the roofline).
    """
    return sum(
        op.count * max(0.0, op.num_bytes / bandwidth - op.flops / rate)
        for op in ops
        if op.kind != "optimizer"
    )


def _kernels(record: Record) -> str:
    """Scores in memory or not: as the case says, else as the software did it."""
    stated = record.case.get("attention")
    if stated is not None:  # "fused" in older runs
        return "flash" if stated in ("fused", "sdpa", "auto") else "eager"
    software = " ".join(str(record.conditions.get(name, "")) for name in ("software", "notes"))
    return "eager" if "eager" in software else "flash"
