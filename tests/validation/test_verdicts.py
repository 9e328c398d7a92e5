"""A quick part of `validation.verdicts`."""

from __future__ import annotations

import pytest
from validation.simulated import Machine, qualified

from trainrig.catalog.chip import peak
from trainrig.catalog.load import load_chips
from trainrig.catalog.lookup import require_chip
from validation import true_rates, verdicts

SCENARIOS = {scenario.name: scenario for scenario in verdicts.scenarios()}
QUICK = (
    "healthy RTX 4090",
    "RTX 4090 at 60 %",
    "RTX 4090: one wrong answer",
    "RTX 4090: all calls of CUDA fail",
    "RTX 4090 on a busy host",
    "host without GPUs, quiet",
)
LONG = (
    "healthy pair of RTX 4090, 1",
    "one of 8 x H100 SXM5 80GB at 92 %",
    "RTX 4090 at 85 %",
    "RTX 4090 limited to 60 % of its power",
    "RTX 4090 with 4 of 16 lanes",
    "RTX 4090 at PCIe generation 1 under load",
    "RTX 4090 throttled to 50 %",
    "RTX 4090: ECC errors are counted during load",
    "RTX 4090: ECC error in every optional bf16 case",
    "RTX 4090 is lost at 16384",
    "RTX 4090 with a desktop on it",
)


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.acceptance) for name in LONG)]
)
def test_a_machine_is_judged_as_it_is(name: str) -> None:
    line = verdicts.line_of(SCENARIOS[name])
    assert line.right, line


@pytest.mark.parametrize("crowd", verdicts.CROWDS, ids=lambda crowd: crowd.name)
def test_a_crowd_of_noisy_machines_is_judged_as_it_is(crowd: verdicts.Crowd) -> None:
    line = verdicts.crowd_line(crowd, 150)
    assert line.right, line


def test_the_table_has_every_chip_and_every_fault() -> None:
    names = list(SCENARIOS)
    assert {f"healthy {chip.name}" for chip in load_chips()} <= set(names)
    for words in ("60 %", "85 %", "92 %", "4 of 16", "generation 1", "throttled", "power", "ECC"):
        assert any(words in name for name in names), words


def test_the_truth_is_what_was_published() -> None:
    h100, a100 = require_chip("H100 SXM5 80GB"), require_chip("A100 PCIe 40GB")
    assert true_rates.product_rate(h100, "bf16") == pytest.approx(736e12, rel=0.01)
    assert true_rates.product_rate(a100, "tf32") == pytest.approx(106e12)
    assert 0.2 < true_rates.power_exponent() < 0.8
    for chip in load_chips()[::4]:
        for dtype in ("fp32", "bf16", "fp16"):
            claimed, rate = peak(chip, dtype), true_rates.product_rate(chip, dtype)
            assert rate is not None
            assert claimed is None or 0.3 < rate / claimed.rate < 1.1, (chip.name, dtype)
        assert true_rates.stream_rate(chip) > 1e9


def test_the_simulation_is_the_same_each_time() -> None:
    once, again = (qualified(Machine(chip=require_chip("L4"), budget=60.0)) for _ in range(2))
    assert once.outcome == again.outcome
    assert [r.value for r in once.records] == [r.value for r in again.records]
