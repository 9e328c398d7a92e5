"""Parameters that follow from a config.json are those of the published model, to the last one.

PUBLISHED has numbers of parameters as the models' pages count their weights.  Each family's
configuration is also built small by its own class in transformers, written as it writes it, read by
us, and counted in both; the model is on the meta device, without weights.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainrig.errors import DataError
from trainrig.workload.hf_config import shape_of_config
from trainrig.workload.model import parameters


def config(kind: str, *sizes: int, **more: Any) -> dict[str, Any]:
    """Width, feed-forward width, layers, heads, heads of keys, vocabulary; and further keys."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "vocab_size")
    return {"model_type": kind, **dict(zip(names, sizes, strict=True)), **more}


PUBLISHED = [
    ("qwen2.5-7B", 7615616512, config("qwen2", 3584, 18944, 28, 28, 4, 152064)),
    (
        "qwen2.5-0.5B",
        494032768,
        config("qwen2", 896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True),
    ),
    ("qwen3-8B", 8190735360, config("qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128)),
    (
        "qwen3-0.6B",
        596049920,
        config("qwen3", 1024, 3072, 28, 16, 8, 151936, head_dim=128, tie_word_embeddings=True),
    ),
    ("gemma-7b", 8537680896, config("gemma", 3072, 24576, 28, 16, 16, 256000, head_dim=256)),
    ("gemma-2b", 2506172416, config("gemma", 2048, 16384, 18, 8, 1, 256000, head_dim=256)),
    ("gemma2-9b", 9241705984, config("gemma2", 3584, 14336, 42, 16, 8, 256000, head_dim=256)),
    ("gemma2-2b", 2614341888, config("gemma2", 2304, 9216, 26, 8, 4, 256000, head_dim=256)),
    ("gemma3-1b", 999885952, config("gemma3_text", 1152, 6912, 26, 4, 1, 262144, head_dim=256)),
    ("phi-2", 2779683840, config("phi", 2560, 10240, 32, 32, 32, 51200)),
    ("phi-3-mini", 3821079552, config("phi3", 3072, 8192, 32, 32, 32, 32064)),
    ("phi-4", 14659507200, config("phi3", 5120, 17920, 40, 40, 10, 100352)),
    (
        "mistral-v0.1",
        7241732096,
        config("mistral", 4096, 14336, 32, 32, 8, 32000, sliding_window=4096),
    ),
    (
        "mixtral",
        46702792704,
        config(
            "mixtral", 4096, 14336, 32, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2
        ),
    ),
    (
        "qwen1.5-moe",
        14315784192,
        config(
            "qwen2_moe",
            2048,
            5632,
            24,
            16,
            16,
            151936,
            num_experts=60,
            num_experts_per_tok=4,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
        ),
    ),
    (
        "qwen3-30b",
        30532122624,
        config(
            "qwen3_moe",
            2048,
            6144,
            48,
            32,
            4,
            151936,
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
        ),
    ),
    (
        "gpt-oss-20b",
        20914757184,
        config(
            "gpt_oss",
            2880,
            2880,
            24,
            64,
            8,
            201088,
            head_dim=64,
            attention_bias=True,
            num_local_experts=32,
            num_experts_per_tok=4,
        ),
    ),
    (
        "olmoe",
        6919161856,
        config("olmoe", 2048, 1024, 16, 16, 16, 50304, num_experts=64, num_experts_per_tok=8),
    ),
    (
        "dsv2-lite",
        15706484224,
        config(
            "deepseek_v2",
            2048,
            10944,
            27,
            16,
            16,
            102400,
            n_routed_experts=64,
            num_experts_per_tok=6,
            moe_intermediate_size=1408,
            n_shared_experts=2,
            first_k_dense_replace=1,
            kv_lora_rank=512,
            q_lora_rank=None,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            n_group=1,
            topk_group=1,
        ),
    ),
    (
        "dsv3",
        671026404352,
        config(
            "deepseek_v3",
            7168,
            18432,
            61,
            128,
            128,
            129280,
            n_routed_experts=256,
            num_experts_per_tok=8,
            moe_intermediate_size=2048,
            n_shared_experts=1,
            first_k_dense_replace=3,
            kv_lora_rank=512,
            q_lora_rank=1536,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            n_group=8,
            topk_group=4,
        ),
    ),
    (
        "falcon-7b",
        6921720704,
        {
            "model_type": "falcon",
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "vocab_size": 65024,
            "multi_query": True,
            "parallel_attn": True,
            "bias": False,
            "new_decoder_architecture": False,
        },
    ),
    (
        "falcon-40b",
        41303293952,
        {
            "model_type": "falcon",
            "hidden_size": 8192,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "vocab_size": 65024,
            "new_decoder_architecture": True,
            "parallel_attn": True,
            "bias": False,
        },
    ),
]


@pytest.mark.parametrize(("name", "published", "keys"), PUBLISHED, ids=lambda v: str(v)[:20])
def test_parameters_are_as_published(name: str, published: int, keys: dict[str, Any]) -> None:
    assert parameters(shape_of_config(keys, name)).total == published


SMALL = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "vocab_size": 320,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_group": 2,
    "topk_group": 1,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("LlamaConfig", {}),
    ("LlamaConfig", {"tie_word_embeddings": True, "head_dim": 32}),
    ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    ("MistralConfig", {"sliding_window": None}),
    ("MistralConfig", {"sliding_window": 64}),
    ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ("Qwen2Config", {}),
    ("Qwen2Config", {"tie_word_embeddings": True}),
    ("Qwen3Config", {"head_dim": 32}),
    ("Qwen2MoeConfig", EXPERTS | {"shared_expert_intermediate_size": 96}),
    ("Qwen2MoeConfig", EXPERTS | {"shared_expert_intermediate_size": 100}),
    ("Qwen3MoeConfig", EXPERTS | {"head_dim": 32}),
    ("GemmaConfig", {"head_dim": 32}),
    ("Gemma2Config", {"head_dim": 32}),
    ("Gemma3TextConfig", {"head_dim": 32}),
    ("PhiConfig", {"num_key_value_heads": 4}),
    ("PhiConfig", {"qk_layernorm": True}),
    ("Phi3Config", {}),
    ("DeepseekV2Config", LATENT),
    ("DeepseekV2Config", LATENT | {"q_lora_rank": None}),
    ("DeepseekV3Config", LATENT),
    ("GptOssConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}),
    ("NemotronConfig", {}),
    ("OlmoeConfig", {"num_experts": 8, "num_experts_per_tok": 2}),
    ("FalconConfig", {}),
    ("FalconConfig", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("FalconConfig", {"multi_query": False, "parallel_attn": False, "bias": True}),
]


@pytest.mark.parametrize(("name", "changes"), CASES, ids=lambda v: str(v)[:40])
def test_parameters_are_those_of_transformers(name: str, changes: dict[str, Any]) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = getattr(transformers, name)(**(SMALL | changes))
    written = json.loads(config.to_json_string(use_diff=False))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert parameters(shape_of_config(written, "config.json")).total == counted


@pytest.mark.parametrize(("name", "auto"), [("BertConfig", "MaskedLM"), ("T5Config", "Seq2SeqLM")])
def test_encoders_are_those_of_transformers(name: str, auto: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    small = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    config = getattr(transformers, name)(**(small if name == "T5Config" else SMALL))
    written = json.loads(config.to_json_string(use_diff=False))
    with torch.device("meta"):
        model = getattr(transformers, f"AutoModelFor{auto}").from_config(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert parameters(shape_of_config(written, "config.json")).total == counted


def test_what_is_only_counted_is_not_trained() -> None:
    config = {"model_type": "gemma2", **SMALL, "head_dim": 32}
    assert shape_of_config(config, "config.json").is_only_predicted
    with pytest.raises(DataError, match="num_attention_heads"):
        shape_of_config({k: v for k, v in config.items() if k != "num_attention_heads"}, "x")


def test_gemma3_s_text_is_read_beside_its_pictures() -> None:
    text = {**SMALL, "head_dim": 32}
    whole = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 32}}
    plain = shape_of_config({"model_type": "gemma3_text", **text}, "x")
    assert parameters(shape_of_config(whole, "x")) == parameters(plain)
