"""Experts that run one after the other, and hooks that gather weights module by module."""

from validation.normalise.answers import time_of
from validation.normalise.case import case_of

QWEN = {
    "chip": "A100 SXM4 80GB",
    "num_gpus": "8",
    "model": "Qwen3-30B-A3B",
    "framework": "HF transformers 4.51, FSDP",
    "seq": "2048",
    "micro_batch": "1",
    "grad_accum": "1",
    "recompute": "full",
    "kind": "sft",
    "date": "2025-05",
}


def test_transformers_before_5_runs_experts_in_turn() -> None:
    each = {
        words: case_of(QWEN | {"framework": words}).layout.moe.experts
        for words in (
            *("HF Trainer, FSDP", "ms-swift", "transformers 5.1, FSDP", "NeMo AutoModel"),
            *("HF Trainer + ScatterMoE", "torchtitan", "Megatron-Core", "TRL, Unsloth"),
        )
    }
    assert [words for words, how in each.items() if how == "modules"] == [
        *("HF Trainer, FSDP", "ms-swift", "TRL, Unsloth"),
    ]
    later = QWEN | {"framework": "TRL 0.20, Unsloth, transformers 4.57", "date": "2026-03"}
    assert case_of(later).layout.moe.experts == "grouped"  # by Unsloth's own kernels
    assert case_of(QWEN | {"date": "2026-06"}).layout.moe.experts == "grouped"
    assert case_of(QWEN | {"ep": "8"}).layout.moe.experts == "grouped"  # a rank has its own
    assert case_of(QWEN | {"model": "granite-3.0-3b-a800m"}).layout.moe.experts == "slices"


def test_the_host_rules_where_experts_run_in_turn() -> None:
    def seconds(words: str) -> float:
        return time_of(case_of(QWEN | {"framework": words}))[1]

    # 128 experts, 48 layers, three passes: half a million kernels.
    assert seconds("HF transformers 4.51, FSDP") > 5.0 * seconds("transformers 5.1, FSDP")
    # DeepSpeed's hooks around each of three matrices of each expert come on top.
    assert seconds("HF transformers 4.51, DeepSpeed ZeRO-3") > 1.5 * seconds("HF Trainer, FSDP")


def test_hooks_matter_to_short_passes_alone() -> None:
    dense = QWEN | {"model": "llama-2-7b", "chip": "H100 SXM5 80GB", "zero_stage": "3"}
    for seq, least, most in (("512", 1.5, 9.0), ("16384", 0.95, 1.2)):
        deepspeed, fsdp = (
            time_of(case_of(dense | {"seq": seq, "framework": words}))[1]
            for words in ("HF Trainer, DeepSpeed", "HF Trainer, FSDP")
        )
        assert least < deepspeed / fsdp < most
