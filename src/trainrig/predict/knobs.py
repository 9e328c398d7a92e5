"""What can be changed about a layout to need less memory: one knob at a time.

Answers which neighbours a layout has; what they cost is `fits`'s.  The global batch stays: a
smaller micro-batch means more of them, and so do fewer data-parallel ranks.  What cannot be run
(`legal`) is no neighbour, and neither is another model, precision or length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

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


_MOST_SIZES = 16
_LARGEST = 1 << 12
"""Smaller micro-batches that are tried: so many, from so large a one on."""


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
    micro = int(layout.micro_batch)
    samples = micro * int(layout.grad_accum)
    sizes = range(min(micro - 1, _LARGEST), 0, -1)
    for smaller in islice((size for size in sizes if samples % size == 0), _MOST_SIZES):
        more = samples // smaller
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
        yield _with_engine("zero", f"--zero {stage}", layout, layout.replace(zero=stage))


def _parallel(layout: Layout) -> Iterator[Knob]:
    """More GPUs for each copy of the model, and fewer copies."""
    if int(layout.tp) > 1 and not int(layout.sequence_parallel):
        changed = layout.replace(sequence_parallel=1)
        yield Knob(name="sequence-parallel", says="--sequence-parallel", layout=changed)
    for name in ("tp", "pp"):
        more = 2
        while int(layout.dp) % more == 0:
            size = int(getattr(layout, name)) * more
            if name == "pp" or size <= int(layout.gpus_per_node):
                yield _split(layout, name, size, int(layout.grad_accum) * more)
            more *= 2


def _split(layout: Layout, name: str, size: int, accum: int) -> Knob:
    """A pipeline accumulates gradients, so that they cannot be sharded (`legal`)."""
    zero = min(int(layout.zero), 1) if name == "pp" else int(layout.zero)
    says = f"--{name} {size} --grad-accum {accum}"
    says += f" --zero {zero}" if zero != int(layout.zero) else ""
    changed = layout.replace(**{name: size}, grad_accum=accum, zero=zero)
    return _with_engine(name, says, layout, changed)


def _with_engine(name: str, says: str, before: Layout, after: Layout) -> Knob:
    """The same engine if it runs such a layout, else the one that usually does."""
    zero, split = int(after.zero), int(after.tp) * int(after.pp)
    runs = {
        "plain": int(after.gpus) == 1,
        "ddp": zero < 2 and split == 1,
        "fsdp": zero >= 2,
        "megatron": zero < 2,
        "deepspeed": True,
    }
    if runs[before.engine]:
        return Knob(name=name, says=says, layout=after)
    usual = engine_for(int(after.tp), int(after.pp), zero, int(after.gpus))
    return Knob(name=name, says=f"{says} --engine {usual}", layout=after.replace(engine=usual))


def _optimizer(layout: Layout) -> Iterator[Knob]:
    if layout.optimizer in ("adamw", "adamw-fused"):
        changed = layout.replace(optimizer="adamw-8bit")
        yield Knob(name="optimizer", says="--optimizer adamw-8bit", layout=changed)
    if layout.offload == "none":
        changed = layout.replace(offload="host")
        yield Knob(name="offload", says="--offload host", layout=changed)
