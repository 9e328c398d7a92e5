"""Three words, one rule: the interval against what the card offers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainrig.prediction.prediction import predict
from trainrig.prediction.scenario import question
from trainrig.prediction.verdict import BORDERLINE, DOES_NOT_FIT, FITS, verdict_of

ADAPTED = {"model": "llama-8B", "on": "RTX 4090", "framework": "huggingface", "recompute": "full"}


@pytest.mark.parametrize(
    ("interval", "host", "word"),
    [
        ((17.8, 23.5), FITS, FITS),
        ((17.8, 23.6), FITS, BORDERLINE),
        ((23.5, 30.6), FITS, BORDERLINE),
        ((23.6, 30.6), FITS, DOES_NOT_FIT),
        ((1.0, 2.0), BORDERLINE, BORDERLINE),
        ((1.0, 2.0), DOES_NOT_FIT, DOES_NOT_FIT),
        ((23.6, 30.6), BORDERLINE, DOES_NOT_FIT),
    ],
)
def test_fits_needs_the_upper_end_below_what_is_offered(
    interval: tuple[float, float], host: str, word: str
) -> None:
    assert verdict_of(interval, 23.5, host=host) == word


def test_a_prediction_is_judged_by_the_interval_that_it_prints(trainrig: Any) -> None:
    words = ["--model", "llama-8B", "--on", "RTX 4090", "--method", "qlora", "--seq-len"]
    seen = set()
    for length in ("512", "2048", "4096", "6144", "32768"):
        how = ["--framework", "huggingface", "--recompute", "full", "--json"]
        code, out, _ = trainrig("predict", *words, length, *how)
        told = json.loads(out)
        low, high = told["interval"]["memory_bytes_per_gpu"]
        assert told["verdict"] == verdict_of((low, high), told["gpu_memory_bytes"])
        assert told["fits"] == (told["verdict"] == FITS)
        assert told["close"] == (told["verdict"] == BORDERLINE)
        assert code == (1 if told["verdict"] == DOES_NOT_FIT else 0)
        _, text, _ = trainrig("predict", *words, length, *how[:-1])
        assert told["verdict"] in text.split("\n\n")[0].replace("\n", " "), "the first line answers"
        assert f"80 % interval: {low / 2**30:.1f} to {high / 2**30:.1f}" in text
        seen.add(told["verdict"])
    assert seen == {FITS, BORDERLINE, DOES_NOT_FIT}


@pytest.mark.parametrize(("gpus", "zero"), [(1, 0), (8, 3)])
def test_weights_above_the_card_alone_do_not_fit(gpus: int, zero: int) -> None:
    """Borderline was said of 37.3 GiB of weights on a card of 31."""
    asked = {"on": "RTX 5090", "framework": "huggingface", "batch_size": 1, "seq_len": 128}
    asked |= {"gpus": gpus, "zero": zero, "recompute": "full"}
    for layers in range(8, 400, 8):
        shape = f"llama:num_layers={layers},hidden=4096,num_heads=32"
        found = predict(question({**asked, "model": shape}))
        states = found.memory.weights + found.memory.master + found.memory.optimizer
        if states > found.rates.memory_bytes:
            assert found.verdict == DOES_NOT_FIT, (layers, states)


def test_what_an_allocator_gives_back_is_not_needed() -> None:
    """An interval of what nvidia-smi shows made half of all answers borderline."""
    found = predict(question(ADAPTED | {"method": "qlora"})).memory
    low, high = found.needed_interval
    assert low < found.total < high < found.interval("device")[1]
    assert (high - low) / found.total < 0.4


def test_what_the_driver_keeps_is_not_offered() -> None:
    """A 24 GB card was taken for 24.0 GiB."""
    found = predict(question(ADAPTED | {"method": "qlora"}))
    assert found.rates.memory_bytes < 23.7 * 2**30
