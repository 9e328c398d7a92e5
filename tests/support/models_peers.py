"""Small Hugging Face models with random weights, and ours of the same shape with the same weights.

No hub: every model is made from a configuration written here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch", reason="needs torch")
transformers = pytest.importorskip("transformers", reason="needs transformers")

from trainrig import models  # noqa: E402
from trainrig.models import hf_weights  # noqa: E402
from trainrig.workload import ModelShape  # noqa: E402
from trainrig.workload.hf_config import shape_of_config  # noqa: E402

VOCAB = 97
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_SMALL_LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}
_SMALL_T5 = {
    "vocab_size": VOCAB,
    "d_model": 48,
    "d_kv": 16,
    "d_ff": 80,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 5,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
_NO_IDS = {"bos_token_id": None, "eos_token_id": None}
_SMALL_GPT = _NO_IDS | {
    "vocab_size": VOCAB,
    "n_positions": 64,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
}
_SMALL_NEO = _NO_IDS | {
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "hidden_size": 48,
    "num_layers": 4,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 2]],
    "window_size": 8,
}
_SMALL_BERT = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}

# name: (configuration class, model class, numbers)
SMALL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", _SMALL_GPT),
    "gpt2-wide": (
        "GPT2Config",
        "GPT2LMHeadModel",
        _SMALL_GPT | {"n_inner": 100, "activation_function": "relu", "tie_word_embeddings": False},
    ),
    "gpt-neo": ("GPTNeoConfig", "GPTNeoForCausalLM", _SMALL_NEO),
    "bert": ("BertConfig", "BertForMaskedLM", _SMALL_BERT),
    "bert-relu": (
        "BertConfig",
        "BertForMaskedLM",
        _SMALL_BERT | {"hidden_act": "relu", "type_vocab_size": 3, "layer_norm_eps": 1e-3},
    ),
    "t5": ("T5Config", "T5ForConditionalGeneration", _SMALL_T5),
    "t5-gated": (
        "T5Config",
        "T5ForConditionalGeneration",
        _SMALL_T5 | {"feed_forward_proj": "gated-gelu"},
    ),
    "t5-unscaled": (
        "T5Config",
        "T5ForConditionalGeneration",
        _SMALL_T5 | {"tie_word_embeddings": False},  # transformers 5 ties it all the same
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", _SMALL_LLAMA | {"num_key_value_heads": 2}),
    "llama-tied": (
        "LlamaConfig",
        "LlamaForCausalLM",
        _SMALL_LLAMA | {"tie_word_embeddings": True, "head_dim": 12, "rope_parameters": _ROPE},
    ),
    "llama-biased": (
        "LlamaConfig",
        "LlamaForCausalLM",
        _SMALL_LLAMA | {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    ),
}


@dataclass
class Peers:
    """Both models, in evaluation mode, and their shape."""

    shape: ModelShape
    theirs: Any
    ours: Any


def config_of(name: str) -> Any:
    config, _, numbers = SMALL[name]
    return getattr(transformers, config)(**numbers)


def their_model(name: str) -> Any:
    """Theirs, with every weight random: zeros and ones would hide a mistake."""
    _, model, _ = SMALL[name]
    theirs = getattr(transformers, model)._from_config(config_of(name)).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.4, generator=generator)
    return theirs


def shape_of(name: str) -> ModelShape:
    return shape_of_config(json.loads(config_of(name).to_json_string()), name)


def peers(name: str, **choices: Any) -> Peers:
    theirs, shape = their_model(name), shape_of(name)
    ours = models.build(shape, **choices).eval()
    ours.load_state_dict(hf_weights.from_hugging_face(shape, theirs.state_dict()))
    return Peers(shape=shape, theirs=theirs, ours=ours)


def tokens(batch: int = 3, num_tokens: int = 24, seed: int = 0) -> Any:
    """Never 0: BERT's and T5's padding, whose row Hugging Face keeps from learning."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCAB, (batch, num_tokens), generator=generator)


def padding(batch: int = 3, num_tokens: int = 24) -> Any:
    """(B, T) bool: whole, half and three tokens long."""
    lengths = torch.tensor([num_tokens, num_tokens // 2, 3])[:batch, None]
    return torch.arange(num_tokens)[None, :] < lengths
