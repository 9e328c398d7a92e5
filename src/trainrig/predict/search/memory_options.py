"""Whether a training fits in memory, how much more would, and which option to change first.

A step fits if what one GPU needs at its worst moment, with an allowance for context and allocator
(`workload.memory`), is no more than the GPU has.  Options are changed one at a time: batch size,
recomputation, kernels, ZeRO, tensor and pipeline parallel, optimizer, offload.  The global batch
stays: a smaller batch size means more micro-batches, and so do fewer data-parallel ranks.  What
cannot be run is no option, and neither is another model, precision or length.

Options are compared by what prediction itself says of each: bytes, and seconds for each sample.
First come those that make it fit, the fastest first; then those that do not suffice alone, the one
that saves most first.  Where one is not enough, `sequence` changes one after the other: of those
that leave the least, the fastest.  Where all are not enough, `adapters` asks the same of training
adapters (LoRA) instead of all weights, which is another training and therefore comes last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from trainrig.predict.rates import Rates
from trainrig.predict.scenario import Question, has_flash
from trainrig.predict.step import predict_step
from trainrig.workload.layout import OFFLOADS_ALONE, RECOMPUTE, Layout, framework_for, is_legal
from trainrig.workload.memory import Memory, memory
from trainrig.workload.model import ModelShape

STACKS = {
    "eager": ("fused", "flash", "flash+fused", "compiled"),
    "fused": ("flash+fused",),
    "flash": ("flash+fused", "compiled"),
}
"""Kernels that keep less than others."""
LORA_RANK = 16
"""Of the adapters that are tried where nothing else makes it fit."""
MOST_SAMPLES = 1 << 16
"""Batch sizes are not searched beyond it."""
_MOST_SIZES = 16
_LARGEST = 1 << 12
"""Smaller batch sizes that are tried: so many, from so large a one on."""
_MOST_CHANGES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOption:
    """One change of a layout that may need less memory."""

    name: str
    """What is changed: batch-size, recompute, zero, tp, pp, …"""
    change: str
    """As options of a command line."""
    layout: Layout
    """After it."""


def memory_options(
    shape: ModelShape, layout: Layout, *, can_flash: bool = True
) -> tuple[MemoryOption, ...]:
    """Every legal change; ``can_flash``: the chip has a flash attention."""
    every = (
        *_batch_size(layout),
        *_recompute(layout),
        *_kernels(layout, can_flash),
        *_zero(shape, layout),
        *_parallel(shape, layout),
        *_optimizer(layout),
        *_offload(layout),
    )
    return tuple(option for option in every if is_legal(shape, option.layout))


def _batch_size(layout: Layout) -> Iterator[MemoryOption]:
    micro = int(layout.batch_size)
    samples = micro * int(layout.grad_accum)
    sizes = range(min(micro - 1, _LARGEST), 0, -1)
    for smaller in islice((size for size in sizes if samples % size == 0), _MOST_SIZES):
        more = samples // smaller
        yield MemoryOption(
            name="batch-size",
            change=f"--batch-size {smaller} --grad-accum {more}",
            layout=layout.replace(batch_size=smaller, grad_accum=more),
        )


def _recompute(layout: Layout) -> Iterator[MemoryOption]:
    for more in RECOMPUTE[RECOMPUTE.index(layout.recompute) + 1 :]:
        changed = layout.replace(recompute=more)
        yield MemoryOption(name="recompute", change=f"--recompute {more}", layout=changed)


def _kernels(layout: Layout, can_flash: bool) -> Iterator[MemoryOption]:
    for stack in STACKS.get(layout.kernels, ()):
        if can_flash or stack == "fused":
            changed = layout.replace(kernels=stack)
            yield MemoryOption(name="kernels", change=f"--kernels {stack}", layout=changed)


def _zero(shape: ModelShape, layout: Layout) -> Iterator[MemoryOption]:
    if int(layout.dp) == 1:
        return
    for stage in range(int(layout.zero) + 1, 4):
        yield _with_framework(shape, "zero", f"--zero {stage}", layout.replace(zero=stage))


def _parallel(shape: ModelShape, layout: Layout) -> Iterator[MemoryOption]:
    """More GPUs for each copy of the model, and fewer copies."""
    if int(layout.tp) > 1 and not int(layout.sequence_parallel):
        changed = layout.replace(sequence_parallel=1)
        yield MemoryOption(name="sequence-parallel", change="--sequence-parallel", layout=changed)
    for name in ("tp", "pp"):
        more = 2
        while int(layout.dp) % more == 0:
            size = int(getattr(layout, name)) * more
            if name == "pp" or size <= int(layout.gpus_per_node):
                yield _split(shape, layout, name, size, int(layout.grad_accum) * more)
            more *= 2


def _split(shape: ModelShape, layout: Layout, name: str, size: int, accum: int) -> MemoryOption:
    """A pipeline accumulates gradients, so that they cannot be sharded (layout rules)."""
    zero = min(int(layout.zero), 1) if name == "pp" else int(layout.zero)
    change = f"--{name} {size} --grad-accum {accum}"
    change += f" --zero {zero}" if zero != int(layout.zero) else ""
    changed = layout.replace(**{name: size}, grad_accum=accum, zero=zero)
    return _with_framework(shape, name, change, changed)


def _with_framework(shape: ModelShape, name: str, change: str, after: Layout) -> MemoryOption:
    """This layout if its framework runs such a layout, else the one that usually does."""
    if is_legal(shape, after):
        return MemoryOption(name=name, change=change, layout=after)
    layout = after.replace(parallel="auto")
    layout = layout.replace(framework=framework_for(layout))
    change = f"{change} --framework {layout.framework}"
    return MemoryOption(name=name, change=change, layout=layout)


def _optimizer(layout: Layout) -> Iterator[MemoryOption]:
    if layout.optimizer in ("adamw", "adamw-fused"):
        changed = layout.replace(optimizer="adamw-8bit")
        yield MemoryOption(name="optimizer", change="--optimizer adamw-8bit", layout=changed)


def _offload(layout: Layout) -> Iterator[MemoryOption]:
    """To the host; on one GPU by DeepSpeed and FSDP, too: gradients or weights go there as well."""
    if layout.offload != "none":
        return
    changed, change = layout.replace(offload="host"), "--offload host"
    yield MemoryOption(name="offload", change=change, layout=changed)
    if int(layout.gpus) > 1:
        return
    for framework, zero in OFFLOADS_ALONE:
        if (layout.framework, layout.zero) != (framework, zero):
            yield MemoryOption(
                name="offload",
                change=f"{change} --zero {zero} --framework {framework}",
                layout=changed.replace(zero=zero, framework=framework, parallel="auto"),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionEffect:
    """A memory option, and what it brings."""

    option: MemoryOption
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
    """Whether a layout fits, and what would make it."""

    question: Question
    capacity: float
    """B of one GPU."""
    memory: Memory
    sample_time: float
    largest_batch_size: int
    """0: not even one sample fits."""
    options: tuple[OptionEffect, ...]
    """Options that need less memory, in the order in which to try them."""
    sequence: tuple[OptionEffect, ...]
    """One after the other until it fits; empty if it does, or if all are not enough."""
    tried: tuple[str, ...]
    """Names of the options that there are for this layout."""
    adapters: tuple[OptionEffect, ...]
    """Where all are not enough: LoRA, and what it needs besides to fit; empty if that does not."""

    @property
    def fits(self) -> bool:
        """Whether one GPU's memory is enough."""
        return float(self.memory.total) <= self.capacity

    @property
    def is_close(self) -> bool:
        """The interval of what is needed has the capacity in it."""
        low, high = self.memory.interval("device")
        return bool(low <= self.capacity <= high)


def fit(question: Question) -> Fit:
    """Whether a layout fits, and what to do about it."""
    rates, shape, layout = question.cluster.rates(), question.shape, question.layout
    trial = _Trial(shape, rates, has_flash(question.cluster.chip, layout.precision))
    effects = trial.effects(layout)
    fits = float(memory(shape, layout).total) <= rates.memory_bytes
    sequence = trial.sequence(layout)
    return Fit(
        question=question,
        capacity=rates.memory_bytes,
        memory=memory(shape, layout),
        sample_time=trial.sample_time(layout),
        largest_batch_size=largest_batch_size(shape, layout, rates.memory_bytes),
        options=order(effects),
        sequence=sequence,
        tried=tuple(dict.fromkeys(effect.option.name for effect in effects)),
        adapters=() if fits or sequence else trial.with_adapters(layout),
    )


def order(effects: Iterable[OptionEffect]) -> tuple[OptionEffect, ...]:
    """Options that make it fit, the fastest first; then those that save most."""
    return tuple(sorted((effect for effect in effects if effect.saved > 0), key=_rank))


def _rank(effect: OptionEffect) -> tuple[bool, float, float]:
    if effect.fits:
        return False, effect.sample_time, -float(effect.saved)
    return True, -float(effect.saved), effect.sample_time


def largest_batch_size(shape: ModelShape, layout: Layout, capacity: float) -> int:
    """Samples at once that fit; more samples never need less."""
    import numpy as np

    low, high = 0, MOST_SAMPLES
    while high > low:  # a few values at a time, for all of them cost little more than one
        tries = np.unique(np.linspace(low + 1, high, 64).astype(np.int64))
        enough = tries[memory(shape, layout.replace(batch_size=tries)).total <= capacity]
        low = int(enough[-1]) if enough.size else low
        above = tries[tries > low]
        high = int(above[0]) - 1 if above.size else low
    return low


@dataclass(frozen=True, slots=True)
class _Trial:
    """Where options are tried."""

    shape: ModelShape
    rates: Rates
    can_flash: bool

    def sample_time(self, layout: Layout) -> float:
        """s of a step, over its samples."""
        step = predict_step(self.shape, layout, self.rates)
        return float(step.total) / int(layout.global_batch)

    def effects(self, layout: Layout) -> tuple[OptionEffect, ...]:
        """Every option of a layout."""
        options = memory_options(self.shape, layout, can_flash=self.can_flash)
        return tuple(self._effect(layout, option) for option in options)

    def _effect(self, before: Layout, option: MemoryOption) -> OptionEffect:
        needed, takes = memory(self.shape, option.layout), self.sample_time(option.layout)
        return OptionEffect(
            option=option,
            memory=needed,
            saved=int(memory(self.shape, before).total) - int(needed.total),
            sample_time=takes,
            slower=takes / self.sample_time(before),
            fits=float(needed.total) <= self.rates.memory_bytes,
        )

    def sequence(self, layout: Layout) -> tuple[OptionEffect, ...]:
        """The first option, then the first of what that leaves, until it fits."""
        found: list[OptionEffect] = []
        needed = float(memory(self.shape, layout).total)
        while needed > self.rates.memory_bytes and len(found) < _MOST_CHANGES:
            best = order(self.effects(layout))[:1]
            if not best:
                return ()
            found.append(best[0])
            layout, needed = best[0].option.layout, float(best[0].memory.total)
        return tuple(found) if needed <= self.rates.memory_bytes else ()

    def with_adapters(self, layout: Layout) -> tuple[OptionEffect, ...]:
        """LoRA, then what it needs besides; empty where that does not fit either."""
        adapted = layout.replace(lora_rank=LORA_RANK)
        if layout.lora_rank or not is_legal(self.shape, adapted):
            return ()
        change = f"--lora-rank {LORA_RANK}"
        first = self._effect(layout, MemoryOption(name="lora", change=change, layout=adapted))
        rest = () if first.fits else self.sequence(adapted)
        return (first, *rest) if first.fits or rest else ()


def fit_dict(found: Fit) -> dict[str, Any]:
    """What ``fits --json`` prints; others script against it."""
    from trainrig.predict.prediction import layout_dict, memory_dict

    low, high = found.memory.interval("device")
    return {
        "model": found.question.shape.name,
        "on": found.question.cluster.rates().device,
        "layout": layout_dict(found.question.layout),
        "fits": found.fits,
        "close": found.is_close,
        "gpu_memory_bytes": found.capacity,
        "memory_bytes_per_gpu": int(found.memory.total),
        "memory_allocated_bytes_per_gpu": int(found.memory.allocated),
        "interval": {"memory_bytes_per_gpu": [float(low), float(high)]},
        "memory_parts_bytes": memory_dict(found.memory),
        "largest_batch_size": found.largest_batch_size,
        "sample_time_s": found.sample_time,
        "options": [_effect_dict(effect) for effect in found.options],
        "sequence": [_effect_dict(effect) for effect in found.sequence],
        "options_tried": list(found.tried),
        "adapters": [_effect_dict(effect) for effect in found.adapters],
    }


def _effect_dict(effect: OptionEffect) -> dict[str, Any]:
    return {
        "option": effect.option.name,
        "change": effect.option.change,
        "fits": effect.fits,
        "memory_bytes_per_gpu": int(effect.memory.total),
        "saved_bytes": effect.saved,
        "sample_time_s": effect.sample_time,
        "slower": effect.slower,
    }
