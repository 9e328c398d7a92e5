"""What can be changed about a layout to need less memory: one knob at a time.

Answers which neighbours a layout has; what they cost is `fits`'s.  The global batch stays: a
smaller micro-batch means more of them, and so do fewer data-parallel ranks.  What cannot be run
(`legal`) is no neighbour, and neither is another model, precision or length.

Whether a training fits in memory, how much more would, and which knob to turn first.

A step fits if what one GPU needs at its worst moment, with an allowance for context and allocator
(`workload.memory`), is no more than the GPU has.  Knobs are compared by what prediction itself says
of each: bytes, and seconds for each sample, for the global batch stays the same.  First come those
that make it fit, the fastest first; then those that do not suffice alone, the one that saves most
first.  Where one is not enough, `way` turns one after the other: of those that leave the least, the
fastest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from trainrig.errors import UsageError
from trainrig.predict.legal import check, engine_for
from trainrig.predict.rates import Rates
from trainrig.predict.scenario import Question
from trainrig.predict.step import predict_step
from trainrig.workload.layout import RECOMPUTE, Layout
from trainrig.workload.memory import Memory, memory
from trainrig.workload.model import ModelShape

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


MOST_SAMPLES = 1 << 16
"""Micro-batches are not searched beyond it."""
_MOST_TURNS = 6
_FLASH_SINCE = 2020


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
    """A knob, and what turning it does."""

    knob: Knob
    memory: Memory
    saved: int
    """Bytes less than before, on the fullest GPU."""
    sample_time: float
    """s of a step over its samples."""
    slower: float
    """That over what it was."""
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The answer."""

    asked: Question
    capacity: float
    """B of one GPU."""
    memory: Memory
    sample_time: float
    largest_micro_batch: int
    """0: not even one sample fits."""
    turned: tuple[Turned, ...]
    """Knobs that need less, in the order in which to turn them."""
    way: tuple[Turned, ...]
    """One after the other until it fits; empty if it does, or if all are not enough."""

    @property
    def fits(self) -> bool:
        """Whether one GPU's memory is enough."""
        return float(self.memory.total) <= self.capacity

    @property
    def is_close(self) -> bool:
        """The interval of what is needed has the capacity in it."""
        low, high = self.memory.interval("device")
        return bool(low <= self.capacity <= high)


def fit(asked: Question) -> Fit:
    """Whether a layout fits, and what to do about it."""
    rates, shape, layout = asked.site.rates(), asked.shape, asked.layout
    bench = _Bench(shape, rates, can_flash=_can_flash(asked))
    return Fit(
        asked=asked,
        capacity=rates.memory_bytes,
        memory=memory(shape, layout),
        sample_time=bench.sample_time(layout),
        largest_micro_batch=largest_micro_batch(shape, layout, rates.memory_bytes),
        turned=order(bench.turn(layout)),
        way=bench.way(layout),
    )


def order(turned: Iterable[Turned]) -> tuple[Turned, ...]:
    """Those that make it fit, the fastest first; then those that save most."""
    return tuple(sorted((one for one in turned if one.saved > 0), key=_rank))


def _rank(one: Turned) -> tuple[bool, float, float]:
    if one.fits:
        return False, one.sample_time, -float(one.saved)
    return True, -float(one.saved), one.sample_time


def largest_micro_batch(shape: ModelShape, layout: Layout, capacity: float) -> int:
    """Samples at once that fit; more samples never need less."""
    import numpy as np

    low, high = 0, MOST_SAMPLES
    while high > low:  # a few values at a time, for all of them cost little more than one
        tries = np.unique(np.linspace(low + 1, high, 64).astype(np.int64))
        enough = tries[memory(shape, layout.replace(micro_batch=tries)).total <= capacity]
        low = int(enough[-1]) if enough.size else low
        above = tries[tries > low]
        high = int(above[0]) - 1 if above.size else low
    return low


@dataclass(frozen=True, slots=True)
class _Bench:
    """Where knobs are tried."""

    shape: ModelShape
    rates: Rates
    can_flash: bool

    def sample_time(self, layout: Layout) -> float:
        """s of a step, over its samples."""
        step = predict_step(self.shape, layout, self.rates)
        return float(step.total) / int(layout.global_batch)

    def turn(self, layout: Layout) -> tuple[Turned, ...]:
        """Every knob of a layout."""
        before, time = int(memory(self.shape, layout).total), self.sample_time(layout)
        return tuple(
            self._turned(knob, before, time)
            for knob in knobs(self.shape, layout, can_flash=self.can_flash)
        )

    def _turned(self, knob: Knob, before: int, time: float) -> Turned:
        needed, takes = memory(self.shape, knob.layout), self.sample_time(knob.layout)
        return Turned(
            knob=knob,
            memory=needed,
            saved=before - int(needed.total),
            sample_time=takes,
            slower=takes / time,
            fits=float(needed.total) <= self.rates.memory_bytes,
        )

    def way(self, layout: Layout) -> tuple[Turned, ...]:
        """The first knob, then the first of what that leaves, until it fits."""
        found: list[Turned] = []
        needed = float(memory(self.shape, layout).total)
        while needed > self.rates.memory_bytes and len(found) < _MOST_TURNS:
            best = order(self.turn(layout))[:1]
            if not best:
                return ()
            found.append(best[0])
            layout, needed = best[0].knob.layout, float(best[0].memory.total)
        return tuple(found) if needed <= self.rates.memory_bytes else ()


def _can_flash(asked: Question) -> bool:
    """Flash attention needs half precision and a chip of 2020 or later."""
    chip = asked.site.chip
    modern = chip is None or (chip.year or _FLASH_SINCE) >= _FLASH_SINCE
    return modern and asked.layout.precision in ("bf16", "fp16", "fp8")


def fit_dict(found: Fit) -> dict[str, Any]:
    """What ``fits --json`` prints; others script against it."""
    from trainrig.predict.prediction import layout_dict, memory_dict

    low, high = found.memory.interval("device")
    return {
        "model": found.asked.shape.name,
        "on": found.asked.site.rates().device,
        "layout": layout_dict(found.asked.layout),
        "fits": found.fits,
        "close": found.is_close,
        "gpu_memory_bytes": found.capacity,
        "memory_bytes_per_gpu": int(found.memory.total),
        "memory_allocated_bytes_per_gpu": int(found.memory.allocated),
        "interval": {"memory_bytes_per_gpu": [float(low), float(high)]},
        "memory_parts_bytes": memory_dict(found.memory),
        "largest_micro_batch": found.largest_micro_batch,
        "sample_time_s": found.sample_time,
        "knobs": [_turned_dict(one) for one in found.turned],
        "way": [_turned_dict(one) for one in found.way],
    }


def _turned_dict(one: Turned) -> dict[str, Any]:
    return {
        "knob": one.knob.name,
        "change": one.knob.says,
        "fits": one.fits,
        "memory_bytes_per_gpu": int(one.memory.total),
        "saved_bytes": one.saved,
        "sample_time_s": one.sample_time,
        "slower": one.slower,
    }
