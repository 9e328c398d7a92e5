"""T5's corrupted spans in numbers: how long a sample's text, input and target are.

``round(density n)`` of n tokens of text lie in ``round(that / mean)`` spans.  The encoder reads
what is left, with a sentinel for each span; the decoder writes each sentinel and what it stands
for: 114 tokens for 512 read (Raffel et al. 2020, 3.1.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from trainrig.errors import UsageError
from trainrig.workload.model import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSizes:
    """Corrupted tokens and spans of a sample, alike for every sample of that length."""

    num_tokens: int
    """Tokens of text in a sample."""
    num_noise: int
    """Tokens of the text that are replaced."""
    num_spans: int

    @property
    def input_len(self) -> int:
        """Return the text that is left, a sentinel a span, and the end token."""
        return self.num_tokens - self.num_noise + self.num_spans + 1

    @property
    def target_len(self) -> int:
        """Return the replaced text, a sentinel a span, and the end token."""
        return self.num_noise + self.num_spans + 1


def span_sizes(num_tokens: int, density: float = 0.15, mean: float = 3.0) -> SpanSizes:
    """Return the sizes for samples of ``num_tokens``; between every two spans lies some text."""
    noise = min(max(1, round(num_tokens * density)), num_tokens - 1)
    spans = min(max(1, round(noise / mean)), num_tokens - noise)
    return SpanSizes(num_tokens=num_tokens, num_noise=noise, num_spans=spans)


@cache
def span_sizes_for(input_len: int, density: float = 0.15, mean: float = 3.0) -> SpanSizes:
    """Return the longest samples whose corrupted inputs fit ``input_len``, at least 4."""
    if input_len < 4:
        raise UsageError(f"an input of {input_len} tokens has no room for a span", "use 4 or more")
    sizes = span_sizes(2, density, mean)
    while (longer := span_sizes(sizes.num_tokens + 1, density, mean)).input_len <= input_len:
        sizes = longer
    return sizes


def written_tokens(shape: ModelShape, seq: int) -> int:
    """Return the tokens that a decoder writes in training for ``seq`` tokens read.

    It is a step's ``target_seq_len``.

    0 for a model without a decoder of its own.  UsageError where no span fits.
    """
    return span_sizes_for(seq).target_len if shape.family == "t5" else 0
