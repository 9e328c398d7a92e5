"""The reference that a trained model is held against: by hand, and as a distribution."""

from __future__ import annotations

import numpy as np
import pytest

from kneser_ney import KneserNey

ROWS = np.array([[0, 1, 2, 0, 1, 3, 0, 1, 2]])
"""Trigrams 012 twice, 120 201 013 130 301 once each."""


def probability(model: KneserNey, *tokens: int) -> float:
    return float(model.probabilities(np.array([tokens[:2]]), np.array(tokens[2:]))[0])


def test_a_trigram_by_hand() -> None:
    """D = 1/2.  Pairs by how many tokens stand before them: 12 1, 20 1, 01 2, 13 1, 30 1.

    P1(2) = (1 - ½)/5 + ½·4/5 · ¼ = 0.2;  P2(2|1) = (1 - ½)/2 + ½·2/2 · P1(2) = 0.35;
    P3(2|01) = (2 - ½)/3 + ½·2/3 · P2(2|1).
    """
    model = KneserNey(ROWS, vocab=4, discount=0.5)
    assert probability(model, 0, 1, 2) == pytest.approx(0.5 + 0.35 / 3)
    assert probability(model, 3, 1, 2) == pytest.approx(0.35)  # 31 was never seen
    assert probability(model, -1, 1, 2) == pytest.approx(0.35)


def test_discounts_are_those_of_the_counts() -> None:
    """Of trigrams 5 were seen once, 1 twice: 5/7; of pairs 4 and 1: 4/6; of tokens 3 and 1: 3/5."""
    model = KneserNey(ROWS, vocab=4)
    found = [order.discount for order in (model._third, model._second, model._first)]
    assert found == pytest.approx([5 / 7, 4 / 6, 3 / 5])


@pytest.mark.parametrize("context", [(0, 1), (5, 7), (-1, 3), (19, 19)])
def test_probabilities_of_all_tokens_add_up_to_one(context: tuple[int, int]) -> None:
    rows = np.random.default_rng(0).zipf(1.5, (40, 50)) % 20
    model = KneserNey(rows, vocab=20)
    every = model.probabilities(np.array([context] * 20), np.arange(20))
    assert every.sum() == pytest.approx(1.0) and every.min() > 0.0


def test_it_knows_a_text_that_repeats_and_not_another() -> None:
    class Rows:
        inputs, labels = ROWS[:, :-1], ROWS[:, 1:]

    model = KneserNey(np.repeat(ROWS, 50, axis=0), vocab=4)
    assert model.loss([Rows]) < 0.45 < KneserNey(3 - ROWS, vocab=4).loss([Rows])
