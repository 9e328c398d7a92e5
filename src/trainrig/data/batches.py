"""A step's number → the samples that one rank trains on in it.

Each objective is a callable ``batches(step)`` without state: what it yields depends on
the seed, the step and the rank alone.  The tokens of a part are cut into samples of
one length, documents packed one after another with the end token between; an epoch
visits every sample once, in an order of its own.  Sample g of the run is
``g = step · batch · num_ranks + rank · batch + row``, so that ranks never meet within
an epoch, and a step's samples are the same however many ranks share them.

Arrays are int64, shape (batch, seq_len), ready for torch.from_numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from trainrig.data.masking import IGNORED, corrupt_spans, mask_tokens
from trainrig.data.shuffle import permute
from trainrig.errors import DataError, UsageError
from trainrig.workload.span_corruption import SpanSizes, span_sizes_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainrig.data.shuffle import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Samples of each step that belong to this rank."""

    batch: int
    """Samples of one rank in one step."""
    rank: int = 0
    num_ranks: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1 or not 0 <= self.rank < self.num_ranks:
            raise UsageError(
                f"batch {self.batch} on rank {self.rank} of {self.num_ranks} ranks is no shard",
                "a batch is at least 1, and ranks count from 0",
            )

    @property
    def global_batch(self) -> int:
        """Return samples of all ranks in one step."""
        return self.batch * self.num_ranks

    def numbers(self, step: int) -> Ints:
        """Return the run's sample numbers of this rank in ``step``, shape (batch,)."""
        first = step * self.global_batch + self.rank * self.batch
        return np.arange(first, first + self.batch, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Inputs and labels of one step; labels of -100 carry no loss."""

    inputs: Ints
    labels: Ints
    """Causal: the next token.  Masked: the token behind the mask.  Spans: the target."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CausalBatches:
    """GPT: each position's label is the next token."""

    tokens: NDArray[Any]
    seq_len: int
    shard: Shard

    def __post_init__(self) -> None:
        _check_samples(self.num_samples, self.seq_len, self.tokens)

    @property
    def num_samples(self) -> int:
        """Return samples of an epoch; they share the token that ends one and labels the other."""
        return _num_samples(self.tokens.size - 1, self.seq_len)

    def __call__(self, step: int) -> Batch:
        """The batch of ``step``."""
        rows = _rows(self, step, self.seq_len, self.seq_len + 1)
        inputs, labels = np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])
        return Batch(inputs=inputs, labels=labels)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedBatches:
    """BERT: some tokens are hidden; one segment, between class and separator token if given."""

    tokens: NDArray[Any]
    seq_len: int
    shard: Shard
    mask: int
    vocab_size: int
    around: tuple[int, int] | None = None
    """The class and the separator token: never masked."""

    def __post_init__(self) -> None:
        _check_samples(self.num_samples, self._text_len, self.tokens)

    @property
    def _text_len(self) -> int:
        return self.seq_len - (2 if self.around else 0)

    @property
    def num_samples(self) -> int:
        """Return samples of an epoch."""
        return _num_samples(self.tokens.size, self._text_len)

    def __call__(self, step: int) -> Batch:
        """The batch of ``step``."""
        inputs, labels = mask_tokens(
            _rows(self, step, self._text_len),
            self.shard.numbers(step),
            seed=self.shard.seed,
            mask=self.mask,
            vocab_size=self.vocab_size,
        )
        if self.around:
            edges = ((0, 0), (1, 1))
            inputs = np.pad(inputs, edges, constant_values=((0, 0), self.around))
            labels = np.pad(labels, edges, constant_values=IGNORED)
        return Batch(inputs=inputs, labels=labels)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanBatches:
    """T5: spans are replaced by sentinels; inputs are padded to seq_len, by a token at most."""

    tokens: NDArray[Any]
    seq_len: int
    shard: Shard
    sentinels: tuple[int, ...]
    end: int
    pad: int
    """Fills inputs up and starts the decoder, as T5 does."""

    def __post_init__(self) -> None:
        _check_samples(self.num_samples, self.sizes.num_tokens, self.tokens)

    @property
    def sizes(self) -> SpanSizes:
        """Return the lengths of one sample; ``sizes.target_len`` is that of the labels."""
        return span_sizes_for(self.seq_len)

    @property
    def num_samples(self) -> int:
        """Return samples of an epoch."""
        return _num_samples(self.tokens.size, self.sizes.num_tokens)

    def __call__(self, step: int) -> Batch:
        """The batch of ``step``."""
        inputs, labels = corrupt_spans(
            _rows(self, step, self.sizes.num_tokens),
            self.shard.numbers(step),
            seed=self.shard.seed,
            sizes=self.sizes,
            sentinels=np.array(self.sentinels, dtype=np.int64),
            end=self.end,
        )
        fill = ((0, 0), (0, self.seq_len - self.sizes.input_len))
        return Batch(inputs=np.pad(inputs, fill, constant_values=self.pad), labels=labels)


Batches: TypeAlias = CausalBatches | MaskedBatches | SpanBatches


def _num_samples(num_tokens: int, length: int) -> int:
    return num_tokens // length if length > 0 else 0


def _check_samples(num_samples: int, length: int, tokens: NDArray[Any]) -> None:
    if length < 1:
        raise UsageError(
            "the sequence has no room for text beside its special tokens", "a longer --seq-len"
        )
    if num_samples < 1:
        raise DataError(
            f"{tokens.size} tokens are too few for a sample of {length}",
            "prepare more text, or train with a shorter sequence",
        )


def _rows(batches: Batches, step: int, stride: int, length: int | None = None) -> Ints:
    """Return this rank's samples of ``step``, one every ``stride`` tokens: (batch, length)."""
    shard, count = batches.shard, batches.num_samples
    epochs, places = np.divmod(shard.numbers(step), count)
    places = permute(places, count, shard.seed, epochs)
    rows: Ints = batches.tokens[places[:, None] * stride + np.arange(length or stride)]
    return rows.astype(np.int64)
