"""What can be changed about a layout to need less memory: one knob at a time, by one notch or more.

Answers which neighbours a layout has; what they cost is `fits`'s.  The global batch stays: a
smaller micro-batch means more of them, and so do fewer data-parallel ranks.  What cannot be run
(`legal`) is no neighbour, and neither is another model, precision or length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainrig.errors import UsageError
from trainrig.predict.legal import check, engine_for
from trainrig.workload.layout import RECOMPUTE, Layout
from trainrig.workload.shapes import ModelShape

STACKS = {
    "eager": ("fused", "flash", "flash+fused", "compiled"),
    "fused": ("flash+fused",),
    "flash": ("flash+fused", "compiled"),
}
"""Kernels that keep less than others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One change."""

    name: str
    """Which knob: micro-batch, recompute, zero, tp, pp, …"""
    says: str
    """The change, as options of a command line."""
    layout: Layout
    """After it."""


def knobs(shape: ModelShape, layout: Layout, *, can_flash: bool = True) -> tuple[Knob, ...]:
    """Every legal change; ``can_flash``: the chip has a flash attention."""
    every = (
        *_micro_batch(layout),
        *_recompute(layout),
        *_kernels(layout, can_flash),
        *_zero(layout),
        *_parallel(layout),
        *_optimizer(layout),
    )
    return tuple(knob for knob in every if _is_legal(shape, knob.layout))


def _is_legal(shape: ModelShape, layout: Layout) -> bool:
    try:
        check(shape, layout)
    except UsageError:
        return False
    return True


def _micro_batch(layout: Layout) -> Iterator[Knob]:
    micro, accum = int(layout.micro_batch), int(layout.grad_accum)
    for smaller in (size for size in range(micro - 1, 0, -1) if micro % size == 0):
        more = accum * (micro // smaller)
        yield Knob(
            name="micro-batch",
            says=f"--batch-size {smaller} --grad-accum {more}",
            layout=layout.replace(micro_batch=smaller, grad_accum=more),
        )


def _recompute(layout: Layout) -> Iterator[Knob]:
    for more in RECOMPUTE[RECOMPUTE.index(layout.recompute) + 1 :]:
        changed = layout.replace(recompute=more)
        yield Knob(name="recompute", says=f"--recompute {more}", layout=changed)


def _kernels(layout: Layout, can_flash: bool) -> Iterator[Knob]:
    for stack in STACKS.get(layout.kernels, ()):
        if can_flash or stack == "fused":
            changed = layout.replace(kernels=stack)
            yield Knob(name="kernels", says=f"--kernels {stack}", layout=changed)


def _zero(layout: Layout) -> Iterator[Knob]:
    if int(layout.dp) == 1:
        return
    for stage in range(int(layout.zero) + 1, 4):
        engine = _engine(layout, zero=stage)
        says = f"--zero {stage}" + (f" --engine {engine}" if engine != layout.engine else "")
        yield Knob(name="zero", says=says, layout=layout.replace(zero=stage, engine=engine))


def _engine(layout: Layout, *, zero: int = 0, split: int = 1) -> str:
    """The same engine if it can, else the usual one."""
    can_shard = layout.engine == "deepspeed" or zero < 2
    can_split = layout.engine in ("megatron", "deepspeed", "fsdp") or split == 1
    if (zero and can_shard and layout.engine != "plain") or (not zero and can_split):
        return layout.engine
    zero = max(zero, int(layout.zero))
    return engine_for(int(layout.tp) * split, int(layout.pp), zero, int(layout.gpus))


def _parallel(layout: Layout) -> Iterator[Knob]:
    """Twice as many GPUs for each copy of the model, and half as many copies."""
    if int(layout.tp) > 1 and not int(layout.sequence_parallel):
        changed = layout.replace(sequence_parallel=1)
        yield Knob(name="sequence-parallel", says="--sequence-parallel", layout=changed)
    for name in ("tp", "pp"):
        old, more = int(getattr(layout, name)), 2
        while int(layout.dp) % more == 0 and (name == "pp" or old * more <= layout.gpus_per_node):
            yield _split(layout, name, more)
            more *= 2


def _split(layout: Layout, name: str, more: int) -> Knob:
    size, accum = int(getattr(layout, name)) * more, int(layout.grad_accum) * more
    zero = min(int(layout.zero), 1) if name == "pp" else int(layout.zero)
    changed = layout.replace(**{name: size}, grad_accum=accum, zero=zero)
    engine = _engine(changed, split=more) if zero < 2 else layout.engine
    says = f"--{name} {size} --grad-accum {accum}"
    if engine != layout.engine:
        says += f" --engine {engine}"
    return Knob(name=name, says=says, layout=changed.replace(engine=engine))


def _optimizer(layout: Layout) -> Iterator[Knob]:
    if layout.optimizer in ("adamw", "adamw-fused"):
        changed = layout.replace(optimizer="adamw-8bit")
        yield Knob(name="optimizer", says="--optimizer adamw-8bit", layout=changed)
    if layout.offload == "none":
        changed = layout.replace(offload="host")
        yield Knob(name="offload", says="--offload host", layout=changed)
