"""Whether a training fits in memory, how much more would, and which option to change first.

Whether a step fits is said in three words (`prediction.verdict`), by the interval of what one GPU
needs at its worst moment (`workload.memory`).  Options are changed one at a time: batch size,
recomputation, kernels, ZeRO, tensor, pipeline, context and expert parallel, optimizer (8 bits,
pages of the host, inside backward), offload.  The global batch
stays: a smaller batch size means more micro-batches, and so do fewer data-parallel ranks.  What
cannot be run is no option, and neither is another model, precision or length.

Options are compared by what prediction itself says of each: bytes, and seconds for each sample.
First come those that make it fit, the fastest first; then those that leave it borderline, and
those that do not suffice alone, the one that saves most first.  Where one is not enough, `sequence`
has the fastest two that are, or changes one after the other: of those that leave the least, the
fastest.  Where nothing makes it fit for certain, it is content with borderline.  Training adapters
instead of all weights is another training: `methods` asks about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from trainrig.prediction.rates import Rates
from trainrig.prediction.scenario import Question, has_flash
from trainrig.prediction.step import predict_step
from trainrig.prediction.verdict import (
    BORDERLINE,
    FITS,
    VERDICTS,
    verdict_of,
    verdict_of_layout,
)
from trainrig.workload.layout import Layout, is_legal
from trainrig.workload.layout.groups import RECOMPUTE
from trainrig.workload.memory import Memory, host_bytes, memory
from trainrig.workload.model import ModelShape
from trainrig.workload.numerics import FROZEN, scheme_of
from trainrig.workload.option_words import option_of
from trainrig.workload.programs import FRAMEWORKS

STACKS = {
    "eager": ("fused", "flash", "flash+fused", "compiled"),
    "fused": ("flash+fused",),
    "flash": ("flash+fused", "compiled"),
}
"""Kernels that keep less than others."""
MOST_SAMPLES = 1 << 16
"""Batch sizes are not searched beyond it."""
_MOST_SIZES = 16
_LARGEST = 1 << 12
"""Smaller batch sizes that are tried: so many, from so large a one on."""
_MOST_CHANGES = 10
_LIGHTER = {
    **dict.fromkeys(("adamw", "adamw-fused"), ("8bit", "paged", "8bit-paged")),
    "adamw-8bit": ("8bit-paged",),
}
_FLAGS = ("sequence_parallel", "optimizer_in_backward", "offload_checkpoints")
_ALTERS = ("states", "optimizer-in-backward", "quantize")
"""Options that change what is computed more than where it is kept: they come after all others."""

Change = dict[str, Any]
"""Fields of a layout that are changed together; the first one names the option."""


def memory_options(
    shape: ModelShape, layout: Layout, *, can_flash: bool = True
) -> Iterator[tuple[Change, Layout]]:
    """Return every legal change and the layout after it.

    ``can_flash``: the chip has a flash attention.

    Where the layout's framework does not run another split, the one that usually does takes over.
    """
    for change in _changes(layout, can_flash):
        after = layout.replace(**change)
        if next(iter(change)) in ("zero", "tp", "pp", "cp", "ep") and not is_legal(shape, after):
            after = after.replace(parallel="auto")
            change["parallel"] = "auto"
            change["framework"] = after.usual_framework
            after = after.replace(framework=change["framework"])
        if is_legal(shape, after):
            yield change, after


def _name(change: Change) -> str:
    """Return the option that a change is named by."""
    return option_of(next(iter(change))).removeprefix("--")


def _changes(layout: Layout, can_flash: bool) -> Iterator[Change]:
    micro, accum = int(layout.batch.micro), int(layout.batch.grad_accum)
    sizes = range(min(micro - 1, _LARGEST), 0, -1)
    for size in islice((size for size in sizes if micro * accum % size == 0), _MOST_SIZES):
        yield {"batch_size": size, "grad_accum": micro * accum // size}
    for more in RECOMPUTE[RECOMPUTE.index(layout.memory.recompute) + 1 :]:
        yield {"recompute": more}
    if layout.memory.recompute == "full" and not layout.memory.offload_checkpoints:
        yield {"offload_checkpoints": 1}
    for stack in STACKS.get(layout.kernels.stack, ()):
        if can_flash or stack == "fused":
            yield {"kernels": stack}
    if layout.scheme == "dataparallel":
        yield {"parallel": "ddp"}
    if layout.mesh.dp > 1:
        for stage in range(int(layout.sharding.zero) + 1, 4):
            yield {"zero": stage}
    yield from _splits(layout)
    yield from _states(layout)
    if layout.memory.offload == "none":
        yield from _offloads(layout)


def _states(layout: Layout) -> Iterator[Change]:
    """Less for each parameter: other optimizers, no gradients that stay, narrow numbers."""
    if layout.memory.optimizer in ("adamw", "adamw-fused", "adamw-8bit"):
        yield from ({"optimizer": f"adamw-{kind}"} for kind in _LIGHTER[layout.memory.optimizer])
    if not layout.memory.optimizer_in_backward:
        yield {"optimizer_in_backward": 1}
    if scheme_of(layout) != "pure" and layout.precision.compute in ("bf16", "fp16"):
        yield {"states": "pure"}
    if layout.lora.rank:
        stored = list(FROZEN)
        for kind in stored[stored.index(layout.lora.quantize) + 1 :]:
            yield {"quantize": kind}


def _splits(layout: Layout) -> Iterator[Change]:
    """More GPUs for each copy of the model, and fewer copies."""
    if layout.mesh.tp > 1 and not layout.mesh.sequence_parallel:
        yield {"sequence_parallel": 1}
    for name in ("tp", "pp", "cp"):
        more = 2
        while layout.mesh.dp % more == 0:
            size = int(layout.get(name)) * more
            change = {name: size, "grad_accum": int(layout.batch.grad_accum) * more}
            if (
                name == "pp" and layout.sharding.zero > 1
            ):  # most pipelines cannot shard what they add up
                yield dict(change)
                change["zero"] = 1
            if name != "tp" or size <= layout.mesh.gpus_per_node:
                yield change
            more *= 2
    more = 2
    while (
        layout.mesh.dp % (layout.mesh.ep * more) == 0
    ):  # refused where there are no experts to share
        yield {"ep": layout.mesh.ep * more}
        more *= 2


def _offloads(layout: Layout) -> Iterator[Change]:
    """To the host; on one GPU by DeepSpeed and FSDP, too: gradients or weights go there as well."""
    yield {"offload": "host"}
    for framework, engine in FRAMEWORKS.items() if layout.mesh.gpus == 1 else ():
        zero = engine.ranks.offloads_alone
        if zero and (layout.framework, layout.sharding.zero) != (framework, zero):
            yield {"offload": "host", "zero": zero, "framework": framework, "parallel": "auto"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionEffect:
    """One change of a layout that may need less memory, and what it brings."""

    option: str
    """Option that is changed: micro-batch, recompute, zero, tp, pp, …"""
    change: str
    """Change as options of a command line."""
    verdict: str
    """One of `verdict.VERDICTS`."""
    memory_bytes_per_gpu: int
    saved_bytes: int
    """Less than before, on the fullest GPU."""
    sample_time_s: float
    """Seconds of a step over its samples."""
    slower: float
    """Ratio of `sample_time_s` to that before the change."""
    host_memory_bytes_per_node: int
    """Bytes of a node's own memory, for what is offloaded."""
    layout: Layout
    """After it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Verdict on one layout's memory, with the changes that would make it fit."""

    question: Question
    capacity: float
    """B that one GPU offers."""
    memory: Memory
    sample_time: float
    largest_batch_size: int
    """With room for what the allocator keeps, or what was asked where that fits; 0: not even one
    sample fits."""
    options: tuple[OptionEffect, ...]
    """Options that need less memory, in the order in which to try them."""
    sequence: tuple[OptionEffect, ...]
    """One after the other until it fits; empty if it does, or if all are not enough."""
    tried: tuple[str, ...]
    """Names of the options that there are for this layout."""

    @property
    def verdict(self) -> str:
        """Return one of `verdict.VERDICTS`."""
        return verdict_of(
            self.memory.needed_interval, self.capacity, host=self.question.host_verdict
        )


def fit(question: Question) -> Fit:
    """Return whether a layout fits, and the changes that would make it."""
    rates, shape, layout = question.cluster.rates(), question.shape, question.layout
    can_flash = has_flash(question.cluster.chip, layout.precision.compute)
    trial = _Trial(shape, rates, can_flash, question.cluster.host_memory)
    effects = trial.effects(layout)
    needed = memory(shape, layout)
    is_fitting = float(needed.total) <= rates.memory_bytes
    largest = largest_batch_size(shape, layout, rates.memory_bytes)
    return Fit(
        question=question,
        capacity=rates.memory_bytes,
        memory=needed,
        sample_time=trial.sample_time(layout),
        largest_batch_size=max(largest, int(layout.batch.micro) * is_fitting),
        options=_ordered(effects, BORDERLINE),
        sequence=trial.sequence(layout),
        tried=tuple(dict.fromkeys(effect.option for effect in effects)),
    )


def _reaches(verdict: str, goal: str) -> bool:
    return VERDICTS.index(verdict) <= VERDICTS.index(goal)


def _ordered(effects: Iterable[OptionEffect], goal: str) -> tuple[OptionEffect, ...]:
    """Options that reach ``goal``, the fastest first; then those that save most."""

    def rank(effect: OptionEffect) -> tuple[int, bool, float, float]:
        takes, saves = effect.sample_time_s, -float(effect.saved_bytes)
        last, place = effect.option in _ALTERS, VERDICTS.index(effect.verdict)
        if _reaches(effect.verdict, goal):
            return (place, last, takes, saves)
        return (len(VERDICTS), last, saves, takes)

    return tuple(sorted((effect for effect in effects if effect.saved_bytes > 0), key=rank))


def largest_batch_size(shape: ModelShape, layout: Layout, capacity: float) -> int:
    """Return samples at once that fit with what the allocator keeps (`Memory.shown`).

    1 if less does.

    A step that leaves the allocator no such room ends, but asks the driver for blocks and gives
    them back again and again (`num_alloc_retries` of torch.cuda.memory_stats).  Of 56 batches that
    one table (Lambda's) has as its 14 cards' largest, the most that ends is 10 % more on average,
    this 2 % less.  More samples never need less.
    """
    most = largest_fitting(
        MOST_SAMPLES,
        lambda samples: bool(memory(shape, layout.replace(batch_size=samples)).shown <= capacity),
    )
    return most or int(memory(shape, layout.replace(batch_size=1)).total <= capacity)


def largest_fitting(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest whole number up to ``most`` that fits; 0 where 1 does not.

    Args:
        most: The largest that is tried.
        fits: Whether a number fits; where one does, so do all smaller ones.
    """
    low, high = 0, 1
    while high <= most and fits(high):  # most answers are small: doubling reaches them first
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class _Trial:
    """Model, rates and limits by which changed layouts are tried."""

    shape: ModelShape
    rates: Rates
    can_flash: bool
    host: float | None
    """B of a node's memory: what needs more there is no option."""

    def sample_time(self, layout: Layout) -> float:
        """s of a step, over its samples."""
        step = predict_step(self.shape, layout, self.rates)
        return float(step.total) / int(layout.global_batch)

    def effects(self, layout: Layout) -> tuple[OptionEffect, ...]:
        """Return every option of a layout."""
        return tuple(self._effect(layout, *changed) for changed in self._options(layout))

    def _options(self, layout: Layout) -> Iterator[tuple[Change, Layout]]:
        limit = math.inf if self.host is None else self.host
        for change, after in memory_options(self.shape, layout, can_flash=self.can_flash):
            if host_bytes(self.shape, after) <= limit:
                yield change, after

    def _effect(self, before: Layout, change: Change, after: Layout) -> OptionEffect:
        needed, takes = int(memory(self.shape, after).total), self.sample_time(after)
        words = [
            option_of(name) + ("" if name in _FLAGS else f" {value}")
            for name, value in change.items()
            if name != "parallel" or before.sharding.parallel != "auto"
        ]
        return OptionEffect(
            option=_name(change),
            change=" ".join(words),
            verdict=self._verdict(after),
            memory_bytes_per_gpu=needed,
            saved_bytes=int(memory(self.shape, before).total) - needed,
            sample_time_s=takes,
            slower=takes / self.sample_time(before),
            host_memory_bytes_per_node=int(host_bytes(self.shape, after)),
            layout=after,
        )

    def _verdict(self, layout: Layout) -> str:
        return verdict_of_layout(self.shape, layout, self.rates.memory_bytes, self.host)

    def sequence(self, layout: Layout) -> tuple[OptionEffect, ...]:
        """Changes until it fits, else until it is borderline; empty where neither is reached."""
        now = self._verdict(layout)
        goals = (goal for goal in (FITS, BORDERLINE) if not _reaches(now, goal))
        return next(filter(None, (self._until(layout, goal) for goal in goals)), ())

    def _until(self, layout: Layout, goal: str) -> tuple[OptionEffect, ...]:
        """Return one option, or the fastest two.

        Else one by one until ``goal``, if that is faster.
        """
        effects = self._one_by_one(layout, goal)
        if len(effects) == 1:
            return effects
        two = self._two(layout, goal)
        alters = not effects or any(effect.option in _ALTERS for effect in effects)
        return (
            two
            if two and (alters or two[-1].sample_time_s < effects[-1].sample_time_s)
            else effects
        )

    def _two(self, layout: Layout, goal: str) -> tuple[OptionEffect, ...]:
        """The fastest two options that suffice together, none of which alters what is computed."""
        best, least = None, math.inf
        for change, first in self._options(layout):
            for more, both in self._options(first):
                if {_name(change), _name(more)} & set(_ALTERS):
                    continue
                if not _reaches(self._verdict(both), goal):
                    continue
                if (takes := self.sample_time(both)) < least:
                    best, least = ((layout, change, first), (first, more, both)), takes
        return () if best is None else tuple(self._effect(*changed) for changed in best)

    def _one_by_one(self, layout: Layout, goal: str) -> tuple[OptionEffect, ...]:
        """Return the first option, then the first of what that leaves."""
        effects: list[OptionEffect] = []
        while not _reaches(self._verdict(layout), goal) and len(effects) < _MOST_CHANGES:
            best = _ordered(self.effects(layout), goal)[:1]
            if not best:
                return ()
            effects.append(best[0])
            layout = best[0].layout
        return tuple(effects) if _reaches(self._verdict(layout), goal) else ()
