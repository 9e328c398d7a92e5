"""Write another framework's inputs: the model in its words, first weights, learning rates.

Run as ``python -m trainrig.train.driver_files MODELS FOLDER`` before the driver, whose environment
has no models of ours.  MODELS is the package that they come from: transformers or megatron-core.
It reads FOLDER/experiment.json and adds to the folder

    theirs.json   Hugging Face's class names and configuration (without a class, a type of model of
                  its automatic classes), or the arguments of Megatron-Core's
                  TransformerConfig and of the model; objective, and the learning rate of each step
    weights.pt    the very weights that our engine begins with, whole, under the framework's names;
                  none of a model that our engine does not build
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainrig import models
from trainrig.models.hf_weights import to_hugging_face
from trainrig.models.megatron_weights import to_megatron
from trainrig.process.child import die_with_parent
from trainrig.train.config import Experiment, check, objective_of
from trainrig.train.native.weight_source import first_weights
from trainrig.train.parity import probe_of
from trainrig.train.trainer_arguments import parsed
from trainrig.units import format_memory
from trainrig.workload import ModelShape
from trainrig.workload.hf_config import class_names, config_of, library_config


def main() -> None:
    """Write both files."""
    die_with_parent()
    package, folder = sys.argv[1], Path(sys.argv[2])
    request = json.loads((folder / "experiment.json").read_text())
    experiment = Experiment.of(**request["experiment"])
    shape = check(experiment)
    if shape.is_only_predicted:  # transformers builds it, with random weights of its own
        described = _automatic_model(experiment, library_config(shape))
        _write(folder, experiment, shape, described, None)
        return
    initial_weights = first_weights(experiment, shape)
    state = models.build(shape, seed=experiment.seed, given=initial_weights).state_dict()
    if package == "megatron-core":
        _write(folder, experiment, shape, megatron_model(shape), to_megatron(shape, state))
    else:
        described = _hugging_face_model(experiment, shape)
        _write(folder, experiment, shape, described, to_hugging_face(shape, state))


def _hugging_face_model(experiment: Experiment, shape: ModelShape) -> dict[str, Any]:
    """Class names, configuration, and what Trainer is given besides."""
    config_class, model_class = class_names(shape)
    config = {
        name: experiment.dropout if "drop" in name else value
        for name, value in config_of(shape).items()
    }
    trainer = parsed(experiment.kernels.trainer)
    return {
        "config_class": config_class,
        "model_class": model_class,
        "config": config,
        "trainer": trainer,
    }


def _automatic_model(experiment: Experiment, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model of transformers' automatic classes.

    Its type and the keys of its config.json.
    """
    return {
        "config_class": None,
        "model_class": "AutoModelForCausalLM",
        "config": {**config, "use_cache": False},
        "trainer": parsed(experiment.kernels.trainer),
    }


def megatron_model(shape: ModelShape) -> dict[str, Any]:
    """Arguments of TransformerConfig (``transformer``) and of GPTModel or BertModel (``model``)."""
    rotary, is_bert = shape.family == "llama", shape.family == "bert"
    segments = {"num_tokentypes": shape.token_types, "add_binary_head": False}
    return {
        "family": shape.family,
        "transformer": {
            "num_layers": shape.num_layers,
            "hidden_size": shape.hidden,
            "num_attention_heads": shape.attention.num_heads,
            "num_query_groups": shape.attention.num_kv_heads,
            "kv_channels": shape.attention.head_dim,
            "ffn_hidden_size": shape.ffn.width,
            "normalization": "LayerNorm" if shape.norm_bias else "RMSNorm",
            "layernorm_epsilon": shape.norm_eps,
            "gated_linear_unit": shape.ffn.gated,
            "add_bias_linear": shape.ffn.bias,
            "add_qkv_bias": shape.attention.qkv_bias,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        "activation": shape.ffn.activation,
        "model": {
            "max_sequence_length": shape.position.max_positions,
            "share_embeddings_and_output_weights": shape.head.tied,
            "position_embedding_type": "rope" if rotary else "learned_absolute",
            **({"rotary_base": shape.position.rope_theta} if rotary else {}),
            **(segments if is_bert else {}),
        },
    }


def _write(
    folder: Path,
    experiment: Experiment,
    shape: ModelShape,
    description: Mapping[str, Any],
    state: Mapping[str, torch.Tensor] | None,
) -> None:
    """Write theirs.json and weights.pt: the model's ``description`` and what every driver needs.

    Without ``state`` there is no weights.pt, and the library's first weights are trained.
    """
    probe, of_probe = probe_of(experiment), ("steps", "optimizer", "lr", "weight_decay", "clip")
    content = {
        **description,
        "objective": objective_of(shape),
        "vocab": shape.vocab,
        "rates": [experiment.learning_rate(step) for step in range(experiment.steps)],
        "probe": {
            **{name: probe.get(name) for name in of_probe},
            "rates": [probe.learning_rate(step) for step in range(probe.steps)],
        },
    }
    (folder / "theirs.json").write_text(json.dumps(content))
    if state is None:
        return
    check_room(folder, sum(weight.numel() * weight.element_size() for weight in state.values()))
    torch.save(dict(state), folder / "weights.pt")


def check_room(folder: Path, needed: int) -> None:
    """End with a line on stderr where weights do not fit: a full disk could not take one."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        sizes = f"{format_memory(needed)}, and {format_memory(free)} are free"
        sys.exit(f"the disk is full: the first weights take {sizes} in {folder}")


if __name__ == "__main__":
    main()
