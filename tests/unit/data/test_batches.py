"""Batches: each sample once an epoch, ranks apart, resumed as uninterrupted; masks and spans."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.data.batches import Batch, CausalBatches, MaskedBatches, Shard, SpanBatches
from trainrig.data.masking import IGNORED, corrupt_spans, mask_tokens
from trainrig.data.shuffle import permute, random_below, random_bits, random_shares
from trainrig.errors import DataError, UsageError
from trainrig.workload.span_corruption import span_sizes, span_sizes_for

TOKENS = np.arange(1000, 1000 + 8 * 60 + 1, dtype=np.uint16)
CAUSAL = CausalBatches(tokens=TOKENS, seq_len=8, shard=Shard(batch=3, num_ranks=2, seed=5))


# order


def whole_epoch(count: int, seed: int, epoch: int) -> list[int]:
    return permute(np.arange(count), count, seed, np.full(count, epoch)).tolist()


@given(st.integers(1, 400), st.integers(0, 2**70), st.integers(0, 2**40))
def test_an_epoch_is_a_permutation(count: int, seed: int, epoch: int) -> None:
    assert sorted(whole_epoch(count, seed, epoch)) == list(range(count))


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(whole_epoch(100, *key)) for key in itertools.product(range(5), range(5))}
    assert len(orders) == 25


def test_the_order_has_no_pattern() -> None:
    """Over 400 epochs each sample is first equally often: chi squared over 16 places."""
    counts = np.bincount([whole_epoch(16, 1, epoch)[0] for epoch in range(1600)], minlength=16)
    assert ((counts - 100) ** 2 / 100).sum() < 37.7  # 0.1 % of fair orders lie above
    steps = np.diff(whole_epoch(1000, 1, 0))
    assert (steps == 1).mean() < 0.01


def test_the_bits_are_splitmix64s() -> None:
    """The generator's published first outputs for the seed 1234567, so that no release changes."""
    assert random_bits(1234567).tolist() == [6457827717110365317]


def test_random_numbers_fill_their_range_evenly() -> None:
    bits = random_bits(3, np.arange(20_000))
    assert np.bincount(random_below(4, bits)) / 20_000 == pytest.approx([0.25] * 4, abs=0.02)
    shares = random_shares(bits)
    assert 0 <= shares.min() < shares.max() < 1
    assert shares.mean() == pytest.approx(0.5, abs=0.01)


# causal


def firsts(batch: Batch) -> list[int]:
    """Which samples of TOKENS a batch holds."""
    return [(row - 1000) // 8 for row in batch.inputs[:, 0].tolist()]


def test_labels_are_the_next_tokens() -> None:
    batch = CAUSAL(0)
    assert batch.inputs.shape == batch.labels.shape == (3, 8)
    assert batch.inputs.dtype == batch.labels.dtype == np.int64
    assert batch.inputs.flags.c_contiguous and batch.labels.flags.c_contiguous
    assert (batch.labels == batch.inputs + 1).all()
    assert ((batch.inputs[:, 0] - 1000) % 8 == 0).all()


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_ranks_are_disjoint_and_cover_an_epoch(num_ranks: int) -> None:
    shards = [Shard(batch=6, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    per_rank = [
        [first for step in range(60 // (6 * num_ranks)) for first in firsts(ranked(step))]
        for ranked in (replace(CAUSAL, shard=shard) for shard in shards)
    ]
    assert sorted(itertools.chain(*per_rank)) == list(range(60))


def test_a_step_is_the_same_however_many_ranks_share_it() -> None:
    def samples(num_ranks: int) -> list[int]:
        shards = [
            Shard(batch=12 // num_ranks, rank=rank, num_ranks=num_ranks)
            for rank in range(num_ranks)
        ]
        return [n for shard in shards for n in firsts(replace(CAUSAL, shard=shard)(7))]

    assert samples(1) == samples(2) == samples(6)


def test_the_next_epoch_is_complete_and_in_another_order() -> None:
    epochs = [[n for step in range(20) for n in firsts(one(20 * e + step))] for e in range(2)
              for one in [replace(CAUSAL, shard=Shard(batch=3))]]  # fmt: skip
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(60))
    assert epochs[0] != epochs[1]


def test_an_epoch_may_end_within_a_batch() -> None:
    batches = replace(CAUSAL, shard=Shard(batch=7))
    seen = Counter(first for step in range(60) for first in firsts(batches(step)))
    assert set(seen.values()) == {7}
    assert len(seen) == 60


def test_a_batch_depends_on_the_step_alone() -> None:
    again = replace(CAUSAL)
    later = [again(step).inputs.tolist() for step in (9, 4)]
    assert later == [CAUSAL(step).inputs.tolist() for step in range(10)][9:3:-5]


@pytest.mark.parametrize(
    "shard", [{"batch": 0}, {"batch": 1, "rank": 1}, {"batch": 1, "rank": -1, "num_ranks": 2}]
)
def test_a_shard_that_cannot_be_is_refused(shard: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="is no shard"):
        Shard(**shard)


@pytest.mark.parametrize("seq_len", [0, -1])
def test_a_sequence_without_room_for_text_is_refused(seq_len: int) -> None:
    with pytest.raises(UsageError, match="no room for text"):
        replace(CAUSAL, seq_len=seq_len)


@pytest.mark.parametrize("seq_len", [len(TOKENS), 10_000])
def test_too_few_tokens_are_refused(seq_len: int) -> None:
    with pytest.raises(DataError, match="too few for a sample"):
        replace(CAUSAL, seq_len=seq_len)


def test_the_longest_sample_that_fits_is_taken() -> None:
    assert replace(CAUSAL, seq_len=len(TOKENS) - 1).num_samples == 1


# masks

MASK, VOCAB = 4, 8192
ROWS = np.arange(1000, 1000 + 64 * 200).reshape(64, 200)
NUMBERS = np.arange(64)


def masked(numbers: np.ndarray = NUMBERS, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    return mask_tokens(ROWS, numbers, seed=seed, mask=MASK, vocab_size=VOCAB)


def test_every_sample_has_the_same_number_of_masked_tokens() -> None:
    _, labels = masked()
    assert ((labels != IGNORED).sum(axis=1) == 30).all()


def test_labels_are_the_hidden_tokens_and_the_rest_is_untouched() -> None:
    inputs, labels = masked()
    chosen = labels != IGNORED
    assert (labels[chosen] == ROWS[chosen]).all()
    assert (inputs[~chosen] == ROWS[~chosen]).all()


def test_of_the_chosen_80_are_masked_10_random_10_kept() -> None:
    """1920 chosen tokens: a share's standard error is below 0.01, the limits are four of them."""
    inputs, labels = masked()
    chosen = labels != IGNORED
    hidden = (inputs[chosen] == MASK).mean()
    kept = (inputs[chosen] == ROWS[chosen]).mean()
    assert hidden == pytest.approx(0.8, abs=0.037)
    assert kept == pytest.approx(0.1, abs=0.028)
    assert 1 - hidden - kept == pytest.approx(0.1, abs=0.028)
    others = inputs[chosen & (inputs != MASK) & (inputs != ROWS)]
    assert others.min() >= 0
    assert VOCAB / 2 < others.max() < VOCAB
    assert len(set(others.tolist())) > 0.9 * others.size


def test_masks_fall_everywhere_and_differ_by_sample_and_seed() -> None:
    chosen = masked()[1] != IGNORED
    assert chosen.any(axis=0).mean() > 0.99
    assert (chosen != chosen[0]).any(axis=1)[1:].all()
    assert (chosen != (masked(seed=2)[1] != IGNORED)).any()


def test_a_sample_is_masked_alike_wherever_it_lies() -> None:
    inputs, labels = masked()
    some = mask_tokens(ROWS[10:12], NUMBERS[10:12], seed=1, mask=MASK, vocab_size=VOCAB)
    assert (some[0] == inputs[10:12]).all()
    assert (some[1] == labels[10:12]).all()


def test_masked_batches_stand_between_class_and_separator() -> None:
    batches = MaskedBatches(
        tokens=TOKENS, seq_len=42, shard=Shard(batch=2), mask=4, vocab_size=VOCAB, around=(2, 3)
    )
    assert batches.num_samples == len(TOKENS) // 40
    batch = batches(3)
    assert batch.inputs.shape == batch.labels.shape == (2, 42)
    assert batch.inputs[:, 0].tolist() == [2, 2]
    assert batch.inputs[:, -1].tolist() == [3, 3]
    assert (batch.labels[:, [0, -1]] == IGNORED).all()
    assert ((batch.labels != IGNORED).sum(axis=1) == 6).all()
    whole = np.where(batch.labels == IGNORED, batch.inputs, batch.labels)[:, 1:-1]
    assert (np.diff(whole) == 1).all()
    assert (replace(batches, around=None)(0).inputs.shape) == (2, 42)


def test_masks_differ_between_epochs() -> None:
    batches = MaskedBatches(
        tokens=TOKENS[:40], seq_len=40, shard=Shard(batch=1), mask=4, vocab_size=VOCAB
    )
    assert batches.num_samples == 1
    assert (batches(0).labels != batches(1).labels).any()


# spans

END = 1
SENTINELS = np.arange(99, -1, -1) + 32000


def reconstruct(inputs: list[int], target: list[int]) -> list[int]:
    """The text, from what is left of it and what was taken."""
    assert inputs[-1] == target[-1] == END
    spans: dict[int, list[int]] = {}
    for token in target[:-1]:
        if token >= 32000:
            current = spans.setdefault(token, [])
            assert not current
        else:
            current.append(token)
    assert all(spans.values())
    assert inputs[0] < 32000
    assert all(min(pair) < 32000 for pair in itertools.pairwise(inputs))
    found = []
    for token in inputs[:-1]:
        found += spans.pop(token) if token >= 32000 else [token]
    assert not spans
    return found


@given(st.integers(2, 300), st.integers(0, 10**9), st.sampled_from([(0.15, 3.0), (0.5, 3.0)]))
def test_spans_put_back_give_the_text(length: int, seed: int, how: tuple[float, float]) -> None:
    sizes = span_sizes(length, *how)
    tokens = 100 + np.arange(3 * length).reshape(3, length)
    inputs, targets = corrupt_spans(
        tokens, np.arange(3), seed=seed, sizes=sizes, sentinels=SENTINELS, end=END
    )
    assert inputs.shape == (3, sizes.input_len)
    assert targets.shape == (3, sizes.target_len)
    for row, left, taken in zip(tokens, inputs, targets, strict=True):
        assert reconstruct(left.tolist(), taken.tolist()) == row.tolist()
        assert [token for token in left if token >= 32000] == SENTINELS[: sizes.num_spans].tolist()


def test_the_share_and_the_spans_are_t5s() -> None:
    """Its 512 tokens of input: 568 of text, 85 of them in 28 spans, 114 of target."""
    sizes = span_sizes_for(512)
    assert (sizes.num_tokens, sizes.num_noise, sizes.num_spans) == (568, 85, 28)
    assert (sizes.input_len, sizes.target_len) == (512, 114)


@given(st.integers(4, 400))
def test_inputs_fill_their_length(input_len: int) -> None:
    assert input_len - 1 <= span_sizes_for(input_len).input_len <= input_len


def test_span_lengths_vary_and_spans_fall_everywhere() -> None:
    rows = np.tile(np.arange(100), (2000, 1))
    sizes = span_sizes(100)
    _, targets = corrupt_spans(
        rows, np.arange(2000), seed=1, sizes=sizes, sentinels=SENTINELS, end=200
    )
    taken = Counter(token for token in targets.ravel().tolist() if token < 100)
    assert min(taken[place] for place in range(1, 100)) > 50
    lengths = Counter(
        len(list(run))
        for row in targets.tolist()
        for text, run in itertools.groupby(row, key=lambda token: token < 100)
        if text
    )
    assert sum(n * count for n, count in lengths.items()) == 2000 * sizes.num_noise
    assert lengths[1] > lengths[3] > lengths[6] > 0


def test_span_batches_have_fixed_shapes() -> None:
    batches = SpanBatches(
        tokens=TOKENS,
        seq_len=33,
        shard=Shard(batch=2),
        sentinels=tuple(SENTINELS.tolist()),
        end=END,
        pad=0,
    )
    batch, sizes = batches(0), batches.sizes
    assert batch.inputs.shape == (2, 33)
    assert batch.labels.shape == (2, sizes.target_len)
    left = batch.inputs[0, : sizes.input_len].tolist()
    text = reconstruct(left, batch.labels[0].tolist())
    assert np.diff(text).tolist() == [1] * (sizes.num_tokens - 1)


def test_more_spans_than_sentinels_are_refused() -> None:
    with pytest.raises(UsageError, match="114 spans, but the tokenizer has 100 sentinels"):
        corrupt_spans(
            np.zeros((1, 2274), np.int64),
            np.zeros(1, np.int64),
            seed=0,
            sizes=span_sizes(2274),
            sentinels=SENTINELS,
            end=END,
        )
    with pytest.raises(UsageError, match="no room"):
        span_sizes_for(3)
