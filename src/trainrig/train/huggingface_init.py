"""What a driver of Hugging Face's models needs from us: configuration, first weights, rates.

Run as ``python -m trainrig.train.huggingface_init FOLDER`` before the driver, whose
environment has no models of ours.  It reads FOLDER/experiment.json and adds to the folder

    theirs.json   class names, configuration, objective, and the learning rate of each step
    weights.pt    the very weights that our engine begins with, under their names
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from trainrig import models
from trainrig.models.hf_weights import to_hugging_face
from trainrig.train.config import Experiment, check, from_dict, objective_of
from trainrig.train.drivers.parent import die_with_parent
from trainrig.train.parity import probe_of
from trainrig.units import format_memory
from trainrig.workload import ModelShape

_CLASSES = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "gpt-neo": ("GPTNeoConfig", "GPTNeoForCausalLM"),
    "bert": ("BertConfig", "BertForMaskedLM"),
    "t5": ("T5Config", "T5ForConditionalGeneration"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
}


def main() -> None:
    """Write both files."""
    die_with_parent()
    folder = Path(sys.argv[1])
    experiment = from_dict(json.loads((folder / "experiment.json").read_text())["experiment"])
    shape = check(experiment)
    config, model = _CLASSES[shape.family]
    theirs = {
        "config_class": config,
        "model_class": model,
        "config": config_of(shape),
        "objective": objective_of(shape),
        "vocab": shape.vocab,
        "rates": _rates(experiment),
        "probe": {**_numbers(probe_of(experiment)), "rates": _rates(probe_of(experiment))},
    }
    (folder / "theirs.json").write_text(json.dumps(theirs))
    state = to_hugging_face(shape, models.build(shape, seed=experiment.seed).state_dict())
    check_room(folder, sum(weight.numel() * weight.element_size() for weight in state.values()))
    torch.save(state, folder / "weights.pt")


def check_room(folder: Path, needed: int) -> None:
    """End with a line on stderr where weights do not fit: a full disk could not take one."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        sizes = f"{format_memory(needed)}, and {format_memory(free)} are free"
        sys.exit(f"the disk is full: the first weights take {sizes} in {folder}")


def _rates(experiment: Experiment) -> list[float]:
    return [experiment.schedule(step) for step in range(experiment.steps)]


def _numbers(probe: Experiment) -> dict[str, Any]:
    names = ("steps", "optimizer", "learning_rate", "weight_decay", "clip")
    return {name: getattr(probe, name) for name in names}


def config_of(shape: ModelShape) -> dict[str, Any]:
    """The arguments of their configuration; no dropout, as in ours."""
    return {
        "gpt2": _gpt2,
        "gpt-neo": _gpt_neo,
        "bert": _bert,
        "t5": _t5,
        "llama": _llama,
    }[shape.family](shape)


def _gpt2(shape: ModelShape) -> dict[str, Any]:
    return {
        "n_layer": shape.num_layers,
        "n_embd": shape.hidden,
        "n_head": shape.num_heads,
        "n_inner": shape.ffn,
        "n_positions": shape.max_positions,
        "vocab_size": shape.vocab,
        "activation_function": _activation(shape),
        "layer_norm_epsilon": shape.norm_eps,
        "tie_word_embeddings": shape.tied,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,
    }


def _gpt_neo(shape: ModelShape) -> dict[str, Any]:
    kinds = ["local" if window else "global" for window in shape.windows]
    kinds = kinds or ["global"] * shape.num_layers
    return {
        "num_layers": shape.num_layers,
        "hidden_size": shape.hidden,
        "num_heads": shape.num_heads,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.max_positions,
        "vocab_size": shape.vocab,
        "attention_types": [[[kind], 1] for kind in kinds],
        "window_size": max(shape.windows, default=0) or 256,
        "activation_function": _activation(shape),
        "layer_norm_epsilon": shape.norm_eps,
        "tie_word_embeddings": shape.tied,
        "resid_dropout": 0.0,
        "embed_dropout": 0.0,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,
    }


def _bert(shape: ModelShape) -> dict[str, Any]:
    return {
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.num_heads,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.max_positions,
        "vocab_size": shape.vocab,
        "type_vocab_size": shape.token_types,
        "hidden_act": _activation(shape),
        "layer_norm_eps": shape.norm_eps,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def _t5(shape: ModelShape) -> dict[str, Any]:
    return {
        "num_layers": shape.num_layers,
        "num_decoder_layers": shape.num_decoder_layers,
        "d_model": shape.hidden,
        "d_kv": shape.head_dim,
        "d_ff": shape.ffn,
        "num_heads": shape.num_heads,
        "vocab_size": shape.vocab,
        "relative_attention_num_buckets": shape.num_buckets,
        "relative_attention_max_distance": shape.max_distance,
        "feed_forward_proj": ("gated-" if shape.gated_ffn else "") + _activation(shape),
        "layer_norm_epsilon": shape.norm_eps,
        "tie_word_embeddings": shape.tied,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
        "use_cache": False,
    }


def _llama(shape: ModelShape) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
    if shape.rope_scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": shape.rope_scaling.factor,
            "low_freq_factor": shape.rope_scaling.low,
            "high_freq_factor": shape.rope_scaling.high,
            "original_max_position_embeddings": shape.rope_scaling.original_positions,
        }
    return {
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.max_positions,
        "vocab_size": shape.vocab,
        "rms_norm_eps": shape.norm_eps,
        "tie_word_embeddings": shape.tied,
        "rope_parameters": rope,
        "use_cache": False,
    }


def _activation(shape: ModelShape) -> str:
    return {"gelu_tanh": "gelu_new"}.get(shape.activation, shape.activation)


if __name__ == "__main__":
    main()
