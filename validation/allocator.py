"""Replay traced steps through the rules of torch's caching allocator: how much it reserves.

    python -m validation.allocator             all steps of `memory_families`, of at most 12 blocks
    python -m validation.allocator --varied    of batches as long as their longest example

What a step asks for is traced on the meta device (`memory_families`); what torch's allocator takes
from the driver for it follows from its rules, which this module plays.  Sizes are multiples of
512 B; up to 1 MiB comes from segments of 2 MiB, below 10 MiB from segments of 20, more from a
segment of its own in multiples of 2 MiB; the smallest free block that is large enough is taken, and
split where more than 1 MiB (small ones: 512 B) is left; neighbours that are free become one; before
it fails, the allocator gives back segments that are free as a whole.  Source: torch's notes on CUDA
and c10/cuda/CUDACachingAllocator.cpp, in its default settings.  One stream; no workspaces.

Printed of each step: reserved over allocated where memory is plenty, and the least memory in which
it ends over allocated.  `workload.memory.overheads` holds what was made of them.
"""

from __future__ import annotations

import bisect
import logging
import math
import random
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from trainrig.workload.memory import memory
from validation import memory_families as families

MIB = 1 << 20
_UNIT, _ROUND = 512, 2 * MIB
Event = tuple[int, int]
"""A storage's number, and its bytes; -1: it is freed."""


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment, of the pool for small ones or of that for large ones."""

    start: int
    size: int
    is_small: bool
    before: Block | None = None
    after: Block | None = None
    is_free: bool = False


@dataclass(slots=True)
class Allocator:
    """torch's, of a device with ``limit`` bytes."""

    limit: float = float("inf")
    reserved: int = 0
    allocated: int = 0
    peak_reserved: int = 0
    peak_allocated: int = 0
    _free: dict[bool, list[tuple[int, int, Block]]] = field(
        default_factory=lambda: {True: [], False: []}
    )
    _segments: int = 0

    def allocate(self, size: int) -> Block:
        """A block of at least ``size`` bytes.  MemoryError where there is none."""
        size = max(_UNIT, -(-size // _UNIT) * _UNIT)
        free = self._free[size <= MIB]
        at = bisect.bisect_left(free, size, key=lambda entry: entry[0])
        block = free.pop(at)[2] if at < len(free) else self._segment(size)
        block.is_free = False
        if block.size - size >= (_UNIT if block.is_small else MIB + 1):
            left = block.size - size
            rest = Block(block.start + size, left, block.is_small, block, block.after)
            if block.after:
                block.after.before = rest
            block.after, block.size = rest, size
            self._keep(rest)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def release(self, block: Block) -> None:
        """Free a block and join it with its neighbours that are free."""
        self.allocated -= block.size
        if block.before and block.before.is_free:
            block = self._joined(block.before, block)
        if block.after and block.after.is_free:
            block = self._joined(block, block.after)
        self._keep(block)

    def _joined(self, first: Block, second: Block) -> Block:
        for block in (first, second):
            if block.is_free:
                free = self._free[block.is_small]
                free.pop(bisect.bisect_left(free, (block.size, block.start), key=lambda e: e[:2]))
                block.is_free = False
        first.size, first.after = first.size + second.size, second.after
        if second.after:
            second.after.before = first
        return first

    def _keep(self, block: Block) -> None:
        block.is_free = True
        entry = (block.size, block.start, block)
        bisect.insort(self._free[block.is_small], entry, key=lambda each: each[:2])

    def _segment(self, size: int) -> Block:
        """New memory of the driver's, after giving back what is free as a whole if need be."""
        num = (
            2 * MIB if size <= MIB else 20 * MIB if size < 10 * MIB else -(-size // _ROUND) * _ROUND
        )
        if self.reserved + num > self.limit:
            for pool, free in self._free.items():
                whole = [entry for entry in free if not (entry[2].before or entry[2].after)]
                self.reserved -= sum(entry[0] for entry in whole)
                self._free[pool] = [entry for entry in free if entry not in whole]
        if self.reserved + num > self.limit:
            raise MemoryError(size)
        self._segments += 1
        self.reserved += num
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return Block(self._segments << 48, num, size <= MIB)


class Traced(families.Answering):
    """A tracker that writes down what comes and goes."""

    def __init__(self, twice: Iterable[torch.Tensor] = ()) -> None:
        super().__init__(twice)
        self.events: list[Event] = []
        LAST.append(self)

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage until it is freed."""
        key = tensor.untyped_storage()._cdata
        if key not in self._seen:
            self.events.append((key, tensor.untyped_storage().nbytes()))
        super().add(tensor)

    def _drop(self, key: int, size: int) -> None:
        super()._drop(key, size)
        self.events.append((key, -1))


LAST: list[Traced] = []


def replayed(events: Iterable[Event], limit: float = float("inf")) -> Allocator:
    """The allocator behind all events.  MemoryError where they do not fit."""
    allocator, blocks = Allocator(limit=limit), dict[int, Block]()
    for key, size in events:
        if size >= 0:
            blocks[key] = allocator.allocate(max(1, size))
        elif key in blocks:
            allocator.release(blocks.pop(key))
    return allocator


def least(events: list[Event], plenty: Allocator) -> float:
    """Bytes in which the step just ends, to a 128th of half of what it allocates."""
    low, high = float(plenty.peak_allocated), 1.5 * plenty.peak_allocated
    for _ in range(7):
        middle = (low + high) / 2
        try:
            replayed(events, middle)
            high = middle
        except MemoryError:
            low = middle
    return high


def traced(name: str, times: int, mode: str, more: dict[str, Any]) -> list[Event]:
    """Return what a step asks for."""
    family, layers, batch_size, seq = families.STEPS[name]
    with patch.object(families, "Answering", Traced):
        families.step_peak(family, min(layers, 12), times * batch_size, seq, mode, **more)
    return LAST.pop().events


def varied() -> Iterator[tuple[str, float]]:
    """Return what batches of many lengths hold besides, over the bytes of the loss of the longest.

    Forty batches of 1 and of 4 examples, lengths spread as a lognormal of 0.8 and cut at 2048, the
    longest among them anywhere; eight times each.
    """
    family = families.STEPS["Qwen2.5 7B"][0]
    for mode, more in families.WAYS[3:5] + families.WAYS[6:]:
        for batch_size in (1, 4):
            predicted = memory(
                family.shape(4), families.layout_of("sdpa", mode, batch_size, 2048, **more)
            )
            loss = 12.0 * batch_size * 2048 * family.shape(4).vocab
            shares = []
            for seed in range(8):
                lengths = _lengths(random.Random(seed), batch_size)
                with patch.object(families, "Answering", Traced):
                    families.step_peak(family, 4, batch_size, 0, mode, lengths=lengths, **more)
                allocator = replayed(LAST.pop().events)
                shares.append((allocator.peak_reserved - predicted.reserved) / loss)
            yield f"{mode} {more} of {batch_size}", sum(shares) / len(shares)


def _lengths(numbers: random.Random, batch_size: int) -> list[int]:
    drawn = [
        max(numbers.lognormvariate(math.log(512), 0.8) for _ in range(batch_size))
        for _ in range(40)
    ]
    lengths = [min(2048, int(length)) for length in drawn]
    lengths[numbers.randrange(40)] = 2048
    return lengths


def main() -> int:
    """Replay all and print both shares."""
    if sys.argv[1:] == ["--varied"]:
        for name, held in varied():
            print(f"{name:45} {held:5.2f}", flush=True)
        return 0
    reserved, needed = list[float](), list[float]()
    for name, (family, layers, batch_size, seq) in families.STEPS.items():
        for times in (1, 4):
            for mode, more in families.WAYS:
                events = traced(name, times, mode, more)
                plenty = replayed(events)
                layout = families.layout_of("sdpa", mode, times * batch_size, seq, **more)
                predicted = memory(family.shape(min(layers, 12)), layout)
                reserved.append(plenty.peak_reserved / plenty.peak_allocated)
                needed.append(least(events, plenty) / plenty.peak_allocated)
                words = " ".join((mode, *(f"{key}={value}" for key, value in more.items())))
                print(
                    f"{name:14}x{times} {words:33}{plenty.peak_allocated / 2**30:7.2f} GiB"
                    f"  reserved {reserved[-1]:5.3f}, "
                    f"told {predicted.reserved / predicted.allocated:5.3f}"
                    f"  needed {needed[-1]:5.3f}",
                    flush=True,
                )
    print(f"{len(needed)} steps: reserved {median(reserved):.3f}, needed {median(needed):.3f}")
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    sys.exit(main())
