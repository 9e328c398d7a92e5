"""The operations behind a layer's or a step's case: FLOPs and counted bytes, out of `workload`.

A case names its layer or model; the numbers in it (hidden, heads, ffn) replace the named shape's.
Only known names count: a record may be a stranger's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from trainrig.errors import UsageError
from trainrig.record import Case, Record, Scalar
from trainrig.workload import (
    FAMILIES,
    ModelShape,
    Op,
    Step,
    block_ops,
    find,
    named,
    step_ops,
    total_flops,
)

# First words of a layer's name: its model, and whether it is a block of the decoder.
_LAYERS = {
    "bert-large": ("bert-large", False),
    "gpt-2 medium": ("gpt2-medium", False),
    "gpt2-medium": ("gpt2-medium", False),
    "t5-large encoder": ("t5-large", False),
    "t5-large decoder": ("t5-large", True),
    "llama-1b": ("llama-1B", False),
    "llama-7b": ("llama-7B", False),
    "llama-8b": ("llama-8B", False),
    "llama-13b": ("llama-13B", False),
}
_MODELS = {
    "bert-base": "bert-base",
    "bert-large": "bert-large",
    "gpt-2 medium": "gpt2-medium",
}
MAX_SIZE = 1 << 24
"""Of a batch or a sequence; beyond it a number is a mistake."""


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
    """The model that a layer's case means, and whether its decoder; None if unknown."""
    name = str(case.get("layer", "")).lower()
    known = next((found for start, found in _LAYERS.items() if name.startswith(start)), None)
    if known is None:
        return None
    return _with_numbers(named(known[0]), case), known[1]


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
    found, case = layer_shape(record.case), record.case
    if found is None or case.get("pass") not in ("forward", "forward+backward"):
        return None
    mode = "forward" if case["pass"] == "forward" else "training"
    step = _step(case, mode=mode, attention=_attention(record))
    if step is None:
        return None
    shape, decoder = found
    return Counted(shape=shape, ops=block_ops(shape, step, decoder=decoder))


def count_step(record: Record, *, recompute: str | None = None) -> Counted | None:
    """The operations of one training step; ``recompute`` replaces the case's."""
    shape, micros = model_shape(record.case), _size(record.case.get("grad_accum"), 1)
    how = recompute or str(record.case.get("recompute") or "none")
    step = _step(record.case, mode="training", recompute=how)
    if shape is None or step is None:
        return None
    once = ("optimizer", "cast")  # whatever the number of micro-batches
    return Counted(
        shape=shape,
        ops=tuple(
            op if op.kind in once else dataclasses.replace(op, count=op.count * micros)
            for op in step_ops(shape, step)
        ),
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


def _with_numbers(shape: ModelShape, case: Case) -> ModelShape:
    hidden = _size(case.get("hidden"), shape.hidden)
    heads = _size(case.get("heads"), shape.num_heads)
    shared = shape.num_heads // shape.num_kv_heads
    try:
        return dataclasses.replace(
            shape,
            hidden=hidden,
            num_heads=heads,
            num_kv_heads=max(1, heads // shared),
            head_dim=max(1, hidden // heads),
            ffn=_size(case.get("ffn"), shape.ffn),
        )
    except UsageError:
        return shape


def _size(value: Scalar, otherwise: int = 0) -> int:
    """A size that is one, else ``otherwise``."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_SIZE:
        return value
    return otherwise


def _step(
    case: Case, mode: str = "training", attention: str = "fused", recompute: str = "none"
) -> Step | None:
    try:
        return Step(
            batch=_size(case.get("batch")),
            seq=_size(case.get("seq")),
            dtype=str(case.get("dtype")),
            mode=mode,
            attention=attention,
            recompute=recompute,
        )
    except UsageError:
        return None


def _attention(record: Record) -> str:
    """Scores in memory or not: as the case says, else as the software did it."""
    stated = record.case.get("attention")
    if stated in ("fused", "plain"):
        return str(stated)
    return "plain" if "eager" in _software(record) else "fused"


def _software(record: Record) -> str:
    return " ".join(str(record.conditions.get(name, "")) for name in ("software", "notes"))
