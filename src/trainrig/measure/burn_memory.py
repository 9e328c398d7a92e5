"""Patterns over nearly all of a device's free memory, written whole, then read and compared whole.

Definition.  Memory is taken in chunks.  Each pass writes one pattern into all chunks, then reads
all of them: what lies between is as long as the memory is large, so that a cell that leaks is seen.
The first pass writes for a quarter of the time that there is: what it does not come to is given
back, so that what is kept is compared.  What the time cuts off of the last pass is not counted as
a pass.  Bytes written and read over the wall time of the slice, comparing included.

    address         each 64-bit word holds its own place among all chunks: a wire of the address
                    that is stuck makes two places one
    walking         a single one wanders through the bits of the words, then a single zero
    random          words of a generator with a seed, drawn again to compare
    inversions      what lies there is compared and its complement is written in its place, block
                    after block upwards, then downwards (moving inversions)

An error names chunk, place and bits.  Places are those of the virtual memory: which module or bank
it is only the driver (ECC counters, row remapping) or the firmware knows.  What it cannot see: what
the allocator did not hand out, and what ECC puts right, which the counters beside it tell.

Source: the tests of memtest86+ and MemTestG80 (Haque and Pande, 2010) for what finds which fault.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from trainrig.benchmarks.burn import LEAST_MEMORY, WRITING_SHARE
from trainrig.errors import UnavailableError
from trainrig.measure.burn_slice import MOST_SHOWN, Slice, bits_of, error_slice
from trainrig.process.child import first_line, is_out_of_memory

if TYPE_CHECKING:
    import torch

CHUNK = 1 << 28
"""Bytes of one allocation."""
BLOCK = 1 << 25
"""Bytes that are compared at a time: what the comparison needs besides."""
GPU_SHARE, HOST_SHARE = 0.95, 0.80
"""Share of the free memory to test; on the host the rest stays for others and the page cache."""
_COMPARING = 8
"""Blocks that the expected words, the comparison and the allocator's rounding take."""
_HOST_BLOCK = BLOCK // 8
"""Block of one comparison: fits a processor's cache, and bounds how late a phase ends."""
_WORD = 8
_MASK = 2**64

Pattern = Callable[[int, int, "torch.Generator"], "torch.Tensor"]
"""(first word's place, number of words, generator) → what is to lie there."""


def usual_bytes(device: str, free_bytes: int) -> int:
    """Return the bytes to test of ``free_bytes``, leaving room for comparing."""
    share = HOST_SHARE if device == "cpu" else GPU_SHARE
    testable_bytes = free_bytes - _COMPARING * BLOCK
    return max(int(min(share * free_bytes, testable_bytes)), free_bytes // 2)


class MemoryPatterns:
    """The check of a device's memory."""

    unit = "B/s"
    what = "words"

    def __init__(self, device: str, num_bytes: int, *, chunk: int = CHUNK, seed: int = 0) -> None:
        """Allocate the memory.  Raises UnavailableError where not even a tenth can be allocated."""
        import torch

        self.device, self._seed = device, seed
        self.seconds = math.inf
        """For all of it; set before the first `run`."""
        self._began: float | None = None
        chunk = max(_WORD, min(chunk, num_bytes) // _WORD * _WORD)
        block = _HOST_BLOCK if device == "cpu" else BLOCK
        self._block = max(1, min(block, chunk // 8) // _WORD)
        self._chunks: list[torch.Tensor] = []
        self.wanted = num_bytes
        reason = ""
        try:
            for start in range(0, max(_WORD, num_bytes // _WORD * _WORD), chunk):
                words = max(_WORD, min(chunk, num_bytes - start)) // _WORD
                self._chunks.append(torch.empty(words, dtype=torch.int64, device=device))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = first_line(error)
            if self._chunks:  # room for what comparing takes
                self._chunks.pop()
        self.held = sum(piece.numel() * _WORD for piece in self._chunks)
        if self.held < LEAST_MEMORY * num_bytes:
            raise UnavailableError(
                f"{self.held} of {num_bytes} bytes could be allocated: {reason}",
                "free memory, or test less of it: --memory 4GiB",
            )
        self._passes = self._cycle()
        self._going: Iterator[tuple[int, int, list[str]]] | None = None
        self._name, self.num_passes = "", 0

    # ---- patterns

    def _cycle(self) -> Iterator[tuple[str, Pattern, bool]]:
        """Yield passes without end: name, pattern, and whether it ends in moving inversions."""
        import torch

        def constant(value: int) -> Pattern:
            signed = value - _MASK if value >= _MASK // 2 else value
            return lambda _, count, __: torch.full(
                (count,), signed, dtype=torch.int64, device=self.device
            )

        def address(first: int, count: int, _: torch.Generator) -> torch.Tensor:
            return torch.arange(first, first + count, dtype=torch.int64, device=self.device)

        def random(_: int, count: int, generator: torch.Generator) -> torch.Tensor:
            words = torch.empty(count, dtype=torch.int64, device=self.device)
            return words.random_(-(2**63), None, generator=generator)

        def walking(shift: int, flip: int) -> Pattern:
            def words(first: int, count: int, generator: torch.Generator) -> torch.Tensor:
                bit_index = address(first + shift, count, generator).remainder_(64)
                one_bit = torch.ones((), dtype=torch.int64, device=self.device)
                return torch.bitwise_xor(torch.bitwise_left_shift(one_bit, bit_index), flip)

            return words

        shift = 0
        while True:
            yield "address", address, False
            yield "walking ones", walking(shift, 0), False
            yield "random", random, True
            yield "walking zeros", walking(shift, -1), False
            yield "inversions of 0", constant(0), True
            yield "inversions of 0x5555555555555555", constant(0x5555555555555555), True
            shift += 1

    def _blocks(self, *, descending: bool = False) -> Iterator[tuple[int, int, int]]:
        """Yield (chunk, first word in it, index of that word in all memory) for each block."""
        size, turn = self._chunks[0].numel(), -1 if descending else 1
        for number in range(len(self._chunks))[::turn]:
            for first in range(0, self._chunks[number].numel(), self._block)[::turn]:
                yield number, first, number * size + first

    # ---- what is run

    def _one_pass(self, pattern: Pattern, *, inverts: bool) -> Iterator[tuple[int, int, list[str]]]:
        """Run one pass; yield bytes moved, words compared and errors after each block."""
        import torch

        def expected(place: int, count: int) -> torch.Tensor:
            seed = (self._seed + self.num_passes) * 1_000_003 + place // self._block
            generator = torch.Generator(device=self.device).manual_seed(seed)
            return pattern(place, count, generator)

        def block_words(number: int, first: int) -> torch.Tensor:
            return self._chunks[number][first : first + self._block]

        for number, first, place in self._blocks():
            words = block_words(number, first)
            words.copy_(expected(place, words.numel()))
            yield words.numel() * _WORD, 0, []
            if self.num_passes == 0 and self._is_late():
                self._keep(number, first + words.numel())
                break
        turns = [(False, False), *([(False, True), (True, False)] if inverts else [])]
        for down, complement in turns[1:] if inverts else turns:
            for number, first, place in self._blocks(descending=down):
                words = block_words(number, first)
                wanted = expected(place, words.numel())
                if not complement and inverts:
                    wanted.bitwise_not_()
                errors = self._compare(words, wanted, number, first)
                if inverts:
                    words.copy_(wanted.bitwise_not_())
                moved = words.numel() * _WORD * (2 if inverts else 1)
                yield moved, words.numel(), errors

    def _is_late(self) -> bool:
        """Return whether the first pass has used up its time for writing."""
        if self._began is None or self.seconds == math.inf:
            return False
        self._wait()
        return time.perf_counter() - self._began >= WRITING_SHARE * self.seconds

    def _keep(self, number: int, words: int) -> None:
        """Give back all behind so many words of a chunk."""
        del self._chunks[number + 1 :]
        self._chunks[number] = self._chunks[number][:words]
        self.held = sum(piece.numel() * _WORD for piece in self._chunks)

    def _compare(
        self, words: torch.Tensor, expected: torch.Tensor, number: int, first: int
    ) -> list[str]:
        import torch

        if torch.equal(words, expected):
            return []
        places = (words != expected).nonzero().flatten()
        shown = places[:MOST_SHOWN]
        changed = torch.bitwise_xor(words[shown], expected[shown]).tolist()
        num_hidden = len(places) - len(shown)
        texts = [
            f"{self._name}: chunk {number}, byte {(first + at) * _WORD:#x}: {bits_of([bits], 8)}"
            for at, bits in zip(shown.tolist(), changed, strict=True)
        ]
        return texts + [""] * num_hidden  # counted, not described

    def run(self, seconds: float) -> Slice:
        """Blocks for about ``seconds``."""
        start = time.perf_counter()
        self._began = start if self._began is None else self._began
        moved, compared = 0, 0
        errors: list[str] = []
        while True:
            if self._going is None:
                self._name, pattern, inverts = next(self._passes)
                self._going = self._one_pass(pattern, inverts=inverts)
            turn = next(self._going, None)
            if turn is None:
                self._going = None
                self.num_passes += 1
            else:
                moved, compared, errors = moved + turn[0], compared + turn[1], errors + turn[2]
            if time.perf_counter() - start >= seconds:
                break
        self._wait()
        return Slice(
            work=float(moved),
            seconds=time.perf_counter() - start,
            num_checked=compared,
            num_errors=len(errors),
            errors=tuple(filter(None, errors))[:MOST_SHOWN],
        )

    def _wait(self) -> None:
        import torch

        if self.device != "cpu":
            torch.cuda.synchronize(self.device)

    def finish(self) -> Slice:
        """Complete the pass that has begun, if no time limit is set."""
        if self.seconds < math.inf:
            return error_slice(0.0, ())
        start = time.perf_counter()
        moved, compared = 0, 0
        errors: list[str] = []
        for turn in self._going or ():
            moved, compared, errors = moved + turn[0], compared + turn[1], errors + turn[2]
        self.num_passes += self._going is not None
        self._going = None
        result = error_slice(time.perf_counter() - start, list(filter(None, errors)))
        return Slice(
            work=float(moved),
            seconds=result.seconds,
            num_checked=compared,
            num_errors=len(errors),
            errors=result.errors,
        )

    def facts(self) -> dict[str, Any]:
        """Return bytes tested, bytes present and the number of passes."""
        return {
            "memory_bytes": self.held,
            "memory_wanted_bytes": self.wanted,
            "passes": self.num_passes,
        }
