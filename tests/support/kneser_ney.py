"""An interpolated Kneser-Ney trigram: what a text's last two tokens say of the next.

    P3(w | u v) = max(c(u v w) − D3, 0) / c(u v ·) + D3 · n(u v ·) / c(u v ·) · P2(w | v)
    P2(w | v)   = max(n(· v w) − D2, 0) / n(· v ·) + D2 · n(v ·) / n(· v ·) · P1(w)
    P1(w)       = max(n(· w) − D1, 0) / n(· ·) + D1 · n / n(· ·) / V

c counts trigrams and n counts different ones: below the trigram a token's weight is in how many
contexts it was seen, not how often.  D = n1 / (n1 + 2 n2) of the counts of its order, n1 and n2
those that are 1 and 2.  Sources: Kneser and Ney 1995; Chen and Goodman 1999, section 2.7.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class _Order:
    """Events (contexts · V + token) with a count each; a discounted share, and what is left."""

    def __init__(self, events: Ints, counts: Ints, vocab: int, discount: float | None) -> None:
        ones, twos = int((counts == 1).sum()), int((counts == 2).sum())
        self.discount = discount if discount is not None else ones / max(1, ones + 2 * twos)
        self._events, self._counts, self._vocab = events, counts.astype(np.float64), vocab
        self._contexts, where = np.unique(events // vocab, return_inverse=True)
        self._sums = np.bincount(where, weights=self._counts)
        self._kinds = np.bincount(where).astype(np.float64)

    def probability(self, context: Ints, token: Ints, lower: Floats) -> Floats:
        """Of ``token`` (N,) behind ``context`` (N,); ``lower`` (N,): by a shorter context."""
        place = _find(self._contexts, context)
        known = place >= 0
        sums = np.where(known, self._sums[place], 1.0)
        event = _find(self._events, context * self._vocab + token)
        seen = np.where(event >= 0, self._counts[event], 0.0)
        own = np.maximum(seen - self.discount, 0.0) / sums
        left = self.discount * self._kinds[place] / sums
        return np.where(known, own + left * lower, lower)


def _find(ordered: Ints, wanted: Ints) -> Ints:
    """Where each is in ``ordered``; -1 for what is not there."""
    place = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.where(ordered[place] == wanted, place, -1)


class KneserNey:
    """Fitted on rows of tokens; contexts do not reach from one row into the next."""

    def __init__(self, rows: Ints, vocab: int, discount: float | None = None) -> None:
        """rows (N, T), T at least 3; ``discount``: of every order, in place of its own."""
        self._vocab = vocab
        first, second, third = rows[:, :-2], rows[:, 1:-1], rows[:, 2:]
        events, counts = np.unique(((first * vocab + second) * vocab + third), return_counts=True)
        self._third = _Order(events, counts, vocab, discount)
        pairs, kinds = np.unique(events % vocab**2, return_counts=True)
        self._second = _Order(pairs, kinds, vocab, discount)
        tokens, spread = np.unique(pairs % vocab, return_counts=True)
        self._first = _Order(tokens, spread, vocab, discount)

    def probabilities(self, contexts: Ints, tokens: Ints) -> Floats:
        """contexts (N, 2), tokens (N,); -1 in place of a context's token: there is none."""
        lowest = np.full(len(tokens), 1.0 / self._vocab)
        first = self._first.probability(np.zeros_like(tokens), tokens, lowest)
        second = self._second.probability(contexts[:, 1], tokens, first)
        both = contexts[:, 0] * self._vocab + contexts[:, 1]
        return self._third.probability(np.where(contexts[:, 0] < 0, -1, both), tokens, second)

    def loss(self, batches: Iterable[Any]) -> float:
        """The mean of each batch's mean of -ln P, over its labels, as a held-out loss is taken."""
        losses = []
        for batch in batches:
            before = np.concatenate(
                (np.full_like(batch.inputs[:, :1], -1), batch.inputs[:, :-1]), axis=1
            )
            contexts = np.stack((before.ravel(), batch.inputs.ravel()), axis=1)
            shares = self.probabilities(contexts, batch.labels.ravel())
            losses.append(-np.log(shares).mean())
        return float(np.mean(losses))
