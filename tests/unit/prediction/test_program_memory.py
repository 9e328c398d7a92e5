"""What programs do beside their defaults, as memory sees it."""

from __future__ import annotations

from typing import Any

import pytest

from trainrig.prediction.prediction import Prediction, predict
from trainrig.prediction.scenario import question
from trainrig.workload.memory import host_bytes

GIB = 1 << 30
QLORA = {"model": "llama-8B", "on": "RTX 4090", "quantize": "nf4", "batch_size": 1}


def asked(**options: Any) -> Prediction:
    return predict(question({**QLORA, **options}))


def test_unsloth_keeps_inputs_of_blocks_on_the_host() -> None:
    """78,475 tokens fit a card of 24 GB by its own table; three times that was predicted."""
    away = asked(framework="unsloth", lora_rank=32, seq_len=78475)
    here = asked(framework="unsloth", lora_rank=32, seq_len=78475, offload_checkpoints=0)
    inputs = 2 * 78475 * 4096
    assert here.memory.activations - away.memory.activations == pytest.approx(30 * inputs, rel=0.1)
    on_host = host_bytes(away.question.shape, away.layout)
    assert on_host == pytest.approx(30 * inputs, rel=0.01)
    assert host_bytes(here.question.shape, here.layout) == 0


def test_offloaded_checkpoints_give_way_to_no_recomputation() -> None:
    assert asked(framework="unsloth", recompute="none").layout.memory.offload_checkpoints == 0


def test_frozen_weights_beside_adapters_are_as_the_program_holds_them() -> None:
    """Embedding and head of Llama 3: 1.05 billion numbers."""
    weights = {
        program: asked(framework=program, lora_rank=8, seq_len=96).memory.weights
        for program in ("huggingface", "unsloth", "mlx")
    }
    ends = 2 * 128256 * 4096
    wide = 2 * ends + ends  # two bytes more for each, and the head's narrow copy at the loss
    assert weights["huggingface"] - weights["unsloth"] == pytest.approx(wide, rel=0.01)
    assert weights["unsloth"] - weights["mlx"] == pytest.approx((2 - 0.5625) * ends, rel=0.1)


def test_unsloth_runs_gemma_3_by_eager_attention() -> None:
    fused = asked(framework="unsloth", model="qwen3-8B")
    eager = asked(framework="unsloth", model="gemma-3-12b-it", on="H100")
    assert fused.layout.kernels.is_flash and not eager.layout.kernels.is_flash
    assert eager.layout.kernels.loss == "chunked"
    tuned = asked(framework="huggingface", model="gemma-3-12b-it", on="H100")
    assert tuned.layout.kernels.is_flash, "transformers has SDPA for it"


def test_deepspeed_copies_gradients_into_one_piece_at_the_update() -> None:
    full = {"model": "qwen2.5-3B", "on": "RTX 3090", "gpus": 4, "framework": "deepspeed"}
    second = predict(question({**full, "zero": 2, "batch_size": 1, "seq_len": 128}))
    num = second.memory.weights / 2
    assert second.memory.optimizer == pytest.approx((8 + 4 + 2) * num / 4, rel=0.01)


def test_megatron_interleaves_uneven_stages() -> None:
    """DeepSeek-V3 with PP 2 and VP 8 is a recipe of NVIDIA's; it was refused."""
    how = {"model": "deepseek-v3", "on": "GB300", "gpus": 256, "framework": "megatron", "pp": 2}
    found = predict(question({**how, "interleave": 8, "ep": 32, "seq_len": 4096, "grad_accum": 16}))
    assert found.time > 0.0


def test_a_card_before_flash_attention_has_torchs_memory_efficient_one() -> None:
    """A T4 stored all scores: 22.8 GiB for what Unsloth's notebooks do on 15."""
    base = {"model": "llama-8B", "on": "T4", "method": "qlora", "seq_len": 4096, "batch_size": 1}

    def needed(**options: Any) -> Prediction:
        return predict(question({**base, **options}))

    scores = 32 * (32 * 4096**2 * 2)  # of all layers
    kept = {"framework": "huggingface", "recompute": "none"}
    saved = needed(**kept).memory.activations
    assert needed(**kept, kernels="eager").memory.activations > saved + scores
    assert needed(framework="unsloth", seq_len=2048).verdict == "fits"
    old = needed(framework="huggingface", software="2021").layout.kernels
    assert old.efficient_attention == 0, "torch 1 has none"
    assert needed(framework="trainrig").layout.kernels.efficient_attention == 0
    assert needed(framework="huggingface", on="L4").layout.kernels.efficient_attention == 0
