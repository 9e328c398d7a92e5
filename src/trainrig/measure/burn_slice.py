"""Result type of a burn's checks, and comparison of numbers by their bits.

A check works for about as long as it is told, verifies all of it on the device, and says what it
did.  Words are compared, not numbers: NaN equals NaN, and -0 differs from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

MOST_SHOWN = 8
"""Errors that are described; all of them are counted."""
_WORD_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Work, time and errors of a check in about one second."""

    work: float
    """FLOPs, or bytes written and read."""
    seconds: float
    """Seconds until all results were computed and compared."""
    num_checked: int
    """Results that were compared: products, steps, words, rounds of a core."""
    num_errors: int = 0
    """Number of wrong results among those checked."""
    errors: tuple[str, ...] = ()
    """First few errors, each as a sentence."""


class BurnCheck(Protocol):
    """One check, prepared on one device."""

    unit: str
    """Unit of its rate: ``FLOP/s`` or ``B/s``."""
    what: str
    """Plural noun for its results, such as ``products``."""

    def run(self, seconds: float) -> Slice:
        """Work for about so long, at least one unit, and compare all of it."""
        ...

    def finish(self) -> Slice:
        """Make the last comparison, of data that stays in memory."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return further facts for its record: sizes, digests."""
        ...


def as_words(tensor: torch.Tensor) -> torch.Tensor:
    """View a contiguous tensor as integers of its width, or of 64 bits where its rows allow."""
    import torch

    row_bytes = tensor.shape[-1] * tensor.element_size() if tensor.ndim else 0
    if row_bytes and row_bytes % 8 == 0:
        return tensor.view(torch.int64)
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(widths[tensor.element_size()])


def flipped_bit(difference: int, element_bytes: int) -> str:
    """Name the flipped bit where one bit explains the difference of two sums of 64-bit words."""
    for candidate in (difference % 2**_WORD_BITS, -difference % 2**_WORD_BITS):
        if candidate and candidate & (candidate - 1) == 0:
            return bit_text(candidate.bit_length() - 1, element_bytes)
    return "several bits"


def bit_text(bit: int, element_bytes: int) -> str:
    """Return text such as ``bit 0 (the lowest)`` for a bit of a little-endian word."""
    bit_in_element, last = bit % (8 * element_bytes), 8 * element_bytes - 1
    suffix = {0: " (the lowest)", last: " (the sign)"}.get(bit_in_element, "")
    return f"bit {bit_in_element}{suffix}"


def bits_of(words: Sequence[int], element_bytes: int) -> str:
    """Return the bits that are set in some differences (exclusive or) of words."""
    together = 0
    for word in words:
        together |= word % 2 ** (8 * element_bytes)
    bits = [bit for bit in range(8 * element_bytes) if together >> bit & 1]
    if len(bits) > _FEW_BITS:
        return f"{len(bits)} bits"
    return ", ".join(bit_text(bit, element_bytes) for bit in bits)


_FEW_BITS = 6


def error_slice(seconds: float, errors: Sequence[str]) -> Slice:
    """Return a slice that adds only errors (perhaps none) and no work."""
    return Slice(
        work=0.0,
        seconds=seconds,
        num_checked=0,
        num_errors=len(errors),
        errors=tuple(errors[:MOST_SHOWN]),
    )


@dataclass(slots=True)
class UnitTime:
    """Estimate of the number of units of work that fit a slice, from past durations."""

    most: int
    unit_s: float = math.inf

    def count(self, seconds: float) -> int:
        """Units for about ``seconds``; one before anything is known."""
        if not 0.0 < self.unit_s < math.inf:
            return 1
        return max(1, min(self.most, round(seconds / self.unit_s)))

    def learn(self, count: int, seconds: float) -> None:
        """Record that ``count`` units took this many seconds."""
        self.unit_s = seconds / count
