"""Fused attention beside the papers of its kernels: FlashAttention-2 on Ampere, and 3 on Hopper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.catalog import require_chip
from trainrig.prediction.prediction import predict
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_chip import rates_of_chip, with_flash2
from trainrig.prediction.scenario import question
from trainrig.prediction.step.calibration import fitted

MOST = {  # FLOP/s of the fastest published run with heads of 128, forward and backward
    "A100 SXM4 80GB": (230e12, 197e12),
    "A100 PCIe 80GB": (230e12, 197e12),
    "H100 SXM5 80GB": (648e12, 561e12),
    "H200 SXM 141GB": (648e12, 561e12),
    "B200 SXM": (1613e12, 1613e12),
}
STACKS = ("flash", "flash+fused", "compiled")


def rate(rates: Rates, kernels: str, seq: int = 16384, **words: bool) -> float:
    """FLOP/s that are needed: masked scores of a causal attention are not."""
    sizes = {"batch": 1, "heads": 32, "kv_heads": 32, "queries": seq, "keys": seq}
    seconds = rates.attention(**sizes, head_dim=128, dtype="bf16", kernels=kernels, **words)
    products = (5 if words["backward"] else 2) * (0.5 if words["causal"] else 1.0)
    return float(2 * products * 32 * seq * seq * 128 / seconds)


@given(
    chip=st.sampled_from([*MOST]),
    kernels=st.sampled_from(STACKS),
    seq=st.integers(64, 1 << 20),
    causal=st.booleans(),
    backward=st.booleans(),
    today=st.booleans(),
)
def test_no_attention_is_faster_than_its_kernel_was_ever_seen(
    chip: str, kernels: str, seq: int, causal: bool, backward: bool, today: bool
) -> None:
    rates = rates_of_chip(require_chip(chip))
    rates = with_flash2(rates) if today else rates
    reached = rate(rates, kernels, seq, causal=causal, backward=backward)
    assert reached <= 1.001 * MOST[chip][backward]
    assert fitted().newest >= 1.0 and fitted().attention >= 1.0  # nor inside a step


@pytest.mark.parametrize(
    ("chip", "kernels", "forward", "backward"),
    [
        ("A100 SXM4 80GB", "flash", 228, 197),
        ("A100 SXM4 80GB", "flash+fused", 228, 197),
        ("H100 SXM5 80GB", "flash", 370, 322),
        ("H100 SXM5 80GB", "flash+fused", 600, 516),
    ],
)
def test_long_sequences_run_as_the_papers_print(
    chip: str, kernels: str, forward: float, backward: float
) -> None:
    rates = with_flash2(rates_of_chip(require_chip(chip)))
    for printed, way in ((forward, False), (backward, True)):
        reached = rate(rates, kernels, causal=False, backward=way)
        assert reached / 1e12 == pytest.approx(printed, rel=0.04)


def test_an_a100_has_one_kernel_whatever_is_fused_beside_it() -> None:
    asked = {"model": "llama3-8B", "on": "A100 SXM4 80GB", "seq_len": 131072}
    asked |= {"framework": "trainrig", "recompute": "none"}
    steps = {k: predict(question({**asked, "kernels": k})).time for k in STACKS}
    # 4.5 PFLOP forward and 11.25 backward at the kernel's most, and products without a pause.
    least = 4.5e15 / 230e12 + 11.25e15 / 197e12 + 6.3e15 / 268e12
    assert all(least < time < 1.15 * least for time in steps.values())
    assert steps["flash+fused"] <= steps["flash"] < 1.05 * steps["flash+fused"]


def test_a_chip_of_fewer_products_is_no_later_by_its_kernel_s_instructions() -> None:
    whole, cut = (rates_of_chip(require_chip(name)) for name in ("H100 SXM5 80GB", "H20 96GB"))
    for backward in (False, True):
        most = cut.attentions.backward.most if backward else cut.attentions.forward.most
        assert most == pytest.approx(cut.peaks["bf16"])  # of 65 % of an H100's, more than its own
        assert rate(cut, "flash+fused", causal=True, backward=backward) < rate(
            whole, "flash+fused", causal=True, backward=backward
        )
