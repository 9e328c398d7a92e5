"""Each fault below a burn's checks is found, and its healthy twin raises nothing."""

from __future__ import annotations

import re

import pytest

from trainrig.benchmarks.burn import BENCHMARK
from trainrig.benchmarks.spec import Scope
from trainrig.measure.burn import prepare, reset_torch
from trainrig.measure.timing import Settings
from trainrig.selftest.burn_planted import FAULTS, NAN, NEGATIVE_ZERO, BurnFault, inject, observe

NAMES = [fault.name for fault in FAULTS]


_AT_ROW_3 = (3 * 64 + 5.5) / 4096
"""Row 3, column 5 of 64 × 64 elements."""


def some(fault: BurnFault) -> list[str]:
    """The lowest, the highest and a middle bit, and what is no number."""
    known = fault.variants
    chosen = {known[0], known[len(known) // 2], known[-1], NAN, NEGATIVE_ZERO}
    return [variant for variant in known if variant in chosen]


@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_it_is_found_and_its_healthy_twin_is_clean(fault: BurnFault) -> None:
    for variant in some(fault):
        with inject(fault, variant):
            assert observe(fault), variant
    with inject(fault, None):
        assert observe(fault) == []


@pytest.mark.acceptance
@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_every_bit_is_found(fault: BurnFault) -> None:
    missed = []
    for variant in fault.variants:
        with inject(fault, variant):
            missed += [] if observe(fault) else [variant]
    assert missed == []


def test_a_product_names_element_and_bit() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "a flipped bit in C, bf16")
    with inject(fault, "mantissa 0", share=_AT_ROW_3):
        (text,) = observe(fault)
    assert text.startswith("product 1 differs from the first: element [3, 5]: bit 0 (the lowest)")


def test_an_operand_names_itself_and_its_row() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "a flipped bit in B, bf16")
    with inject(fault, "sign", share=_AT_ROW_3):
        texts = observe(fault)
    assert texts[0] == "operand B changed in memory: row 3, bit 15 (the sign)"


def test_a_step_names_the_first_tensor() -> None:
    fault = next(fault for fault in FAULTS if "gradient" in fault.name)
    with inject(fault, "mantissa 0"):
        texts = observe(fault)
    assert "of round 2, backward ffn.gate" in texts[0]


def test_memory_names_chunk_place_and_bit() -> None:
    fault = next(fault for fault in FAULTS if "sticks" in fault.name)
    with inject(fault, "at 1", share=0.5):
        texts = observe(fault)
    assert re.search(r"chunk 0, byte 0x[1-9a-f][0-9a-f]*: bit 9", texts[0]), texts


def test_a_qualification_burns_for_some_seconds_and_sees_a_flipped_bit() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "a flipped bit in C, bf16")
    case = {"mode": "matmul", "dtype": "bf16", "m": 64, "k": 64, "n": 64}
    BENCHMARK.check(case)
    for variant in ("mantissa 0", None):
        with inject(fault, variant):
            prepared = prepare(case, "cpu")
            samples = prepared.sample(Settings(max_time=0.05))
        assert min(samples.times) > 0.0
        assert (prepared.wrong() is None) is (variant is None)
    reset_torch()
    (planned,) = BENCHMARK.qualify(Scope(is_gpu=True, budget=240.0))
    assert (planned.required, planned.seconds) == (True, 5.0)
    assert not BENCHMARK.qualify(Scope(is_gpu=True, budget=60.0))
    assert not BENCHMARK.qualify(Scope(is_gpu=False, budget=240.0, beside_gpus=True))
