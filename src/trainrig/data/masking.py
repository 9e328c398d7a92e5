"""BERT's masked tokens and T5's corrupted spans, for whole batches.

Both are functions of the seed and the samples' numbers: the same sample is masked
alike on every rank and after every resume, and differently in its next epoch, when it
has another number.

Masked: ``round(0.15 n)`` of the n positions that may be masked, the same number in
every sample, so that each step does the same work.  Of these, each by itself, 80 %
become the mask token, 10 % a random id and 10 % stay (Devlin et al. 2019, 3.1).
Spans: of random lengths, each replaced by a sentinel; the target is each sentinel with
what it stands for (Raffel et al. 2020, 3.1.4).  How many: `workload.span_corruption`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainrig.data.shuffle import random_below, random_bits, random_shares
from trainrig.errors import UsageError
from trainrig.workload.span_corruption import SpanSizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainrig.data.shuffle import Ints

IGNORED = -100
"""The label of a position without loss: what torch's cross entropy ignores."""

# What the random bits are for; part of the key, so that no two uses share bits.
_CHOOSE, _REPLACE, _RANDOM, _NOISE, _TEXT = range(5)


_MASKED = 0.15
"""Share of a sample's tokens, as BERT has it."""


def mask_tokens(
    tokens: Ints, numbers: Ints, *, seed: int, mask: int, vocab_size: int
) -> tuple[Ints, Ints]:
    """BERT's inputs and labels for ``tokens``, shape (batch, length), of samples ``numbers``."""
    shape, rows = tokens.shape, numbers[:, None]
    places = np.arange(shape[1])[None, :]
    count = max(1, round(_MASKED * shape[1]))
    ranks = np.argsort(random_bits(seed, _CHOOSE, rows, places), axis=1, kind="stable")
    chosen = np.zeros(shape, dtype=bool)
    np.put_along_axis(chosen, ranks[:, :count], values=True, axis=1)
    fate = random_shares(random_bits(seed, _REPLACE, rows, places))
    random_ids = random_below(vocab_size, random_bits(seed, _RANDOM, rows, places))
    inputs = np.where(chosen & (fate < 0.8), mask, tokens)
    inputs = np.where(chosen & (fate >= 0.9), random_ids, inputs)
    return inputs, np.where(chosen, tokens, IGNORED)


def corrupt_spans(
    tokens: Ints, numbers: Ints, *, seed: int, sizes: SpanSizes, sentinels: Ints, end: int
) -> tuple[Ints, Ints]:
    """T5's inputs and targets for ``tokens``, shape (batch, sizes.num_tokens).

    ``sentinels`` are the ids that stand for the first, second, ... span.  Both results
    end with the token ``end`` and have the lengths that ``sizes`` tells.
    """
    if sizes.num_spans > len(sentinels):
        raise UsageError(
            f"{sizes.num_spans} spans, but the tokenizer has {len(sentinels)} sentinels",
            "use a shorter sequence",
        )
    noise = _composition(sizes.num_noise, sizes.num_spans, _NOISE, seed, numbers)
    text = _composition(sizes.num_tokens - sizes.num_noise, sizes.num_spans, _TEXT, seed, numbers)
    starts = np.cumsum(text, axis=1) + np.cumsum(noise, axis=1) - noise
    pairs = zip(tokens, starts, starts + noise, strict=True)
    rows = [_corrupt_row(*pair, sentinels, end) for pair in pairs]
    return np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows])


def _composition(total: int, parts: int, use: int, seed: int, numbers: Ints) -> Ints:
    """For each sample ``parts`` lengths >= 1 that sum to ``total``, all equally likely."""
    keys = random_bits(seed, use, numbers[:, None], np.arange(total - 1)[None, :])
    cuts = np.sort(np.argsort(keys, axis=1, kind="stable")[:, : parts - 1], axis=1) + 1
    ends = np.pad(cuts, ((0, 0), (0, 1)), constant_values=total)
    return np.diff(ends, axis=1, prepend=0)


def _corrupt_row(
    tokens: Ints, starts: Ints, ends: Ints, sentinels: Ints, end: int
) -> tuple[Ints, Ints]:
    pieces: tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]] = ([], [])
    before = 0
    for number, (start, stop) in enumerate(zip(starts, ends, strict=True)):
        sentinel = sentinels[number : number + 1]
        pieces[0].extend((tokens[before:start], sentinel))
        pieces[1].extend((sentinel, tokens[start:stop]))
        before = stop
    closing = np.array([end])
    inputs = np.concatenate([*pieces[0], tokens[before:], closing])
    return inputs, np.concatenate([*pieces[1], closing])
