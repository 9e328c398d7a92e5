"""Whether a training fits in memory, how much more would, and which knob to turn first.

A step fits if what one GPU needs at its worst moment, with an allowance for context and allocator
(`workload.memory`), is no more than the GPU has.  Knobs are compared by what prediction itself says
of each: bytes, and seconds for each sample, for the global batch stays the same.  First come those
that make it fit, the fastest first; then those that do not suffice alone, the one that saves most
first.  Where one is not enough, `way` turns one after the other: of those that leave the least, the
fastest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainrig.predict.ask import Question
from trainrig.predict.knobs import Knob, knobs
from trainrig.predict.rates import Rates
from trainrig.predict.step import predict_step
from trainrig.workload.layout import Layout
from trainrig.workload.memory import Memory, memory
from trainrig.workload.shapes import ModelShape

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
    from trainrig.predict.answer import layout_dict, memory_dict

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
