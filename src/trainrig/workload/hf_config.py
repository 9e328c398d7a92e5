"""Shapes to and from Hugging Face configurations, without transformers: one table a family.

Read: gpt2, gpt_neo, bert, t5 and llama configurations.  What would change the mathematics and is
not built here (another activation, another kind of rotary scaling, cross-attention in GPT-2) is
refused in one line instead of being ignored.  Dropout is ignored: see `models`; what is written has
none.  A shape that a configuration cannot express is refused, too: `config_of` reads back what it
has written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, Strict, ValidationError

from trainrig.errors import DataError, UsageError, first_problem
from trainrig.workload.model import ModelShape, RopeScaling
from trainrig.workload.presets import custom

Count = Annotated[int, Field(ge=1, lt=2**31)]
Share = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"]


class _Config(BaseModel):
    """Keys that no shape follows from (dropout, token ids, versions) are left aside."""

    model_config = ConfigDict(extra="ignore", strict=True)

    def extra(self) -> dict[str, Any]:
        """The shape's numbers that are no plain copies of a key."""
        return {}


class _Gpt2(_Config):
    vocab_size: Count
    n_positions: Count
    n_embd: Count
    n_layer: Count
    n_head: Count
    n_inner: Count | None = None
    activation_function: Activation = "gelu_new"
    layer_norm_epsilon: Share = 1e-5
    initializer_range: Share = 0.02
    tie_word_embeddings: bool = True
    scale_attn_weights: Literal[True] = True
    scale_attn_by_inverse_layer_idx: Literal[False] = False
    add_cross_attention: Literal[False] = False


# [["global", "local"], 12]: these kinds of attention, in turn, 12 times.
_Group = Annotated[tuple[list[Literal["global", "local"]], Count], Strict(False)]


class _GptNeo(_Config):
    vocab_size: Count
    max_position_embeddings: Count
    hidden_size: Count
    num_layers: Count
    num_heads: Count
    intermediate_size: Count | None = None
    attention_types: list[_Group]
    window_size: Count = 256
    activation_function: Activation = "gelu_new"
    layer_norm_epsilon: Share = 1e-5
    initializer_range: Share = 0.02
    tie_word_embeddings: bool = True

    def extra(self) -> dict[str, Any]:
        kinds = [kind for group, times in self.attention_types for kind in group * times]
        return {"windows": tuple(self.window_size if kind == "local" else 0 for kind in kinds)}


class _Bert(_Config):
    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    intermediate_size: Count
    max_position_embeddings: Count
    hidden_act: Activation = "gelu"
    type_vocab_size: Count = 2
    layer_norm_eps: Share = 1e-12
    initializer_range: Share = 0.02
    tie_word_embeddings: Literal[True] = True
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False


class _T5(_Config):
    vocab_size: Count
    d_model: Count
    d_kv: Count
    d_ff: Count
    num_layers: Count
    num_decoder_layers: Count | None = None
    num_heads: Count
    n_positions: Count = 512
    relative_attention_num_buckets: Count = 32
    relative_attention_max_distance: Count = 128
    layer_norm_epsilon: Share = 1e-6
    initializer_factor: Share = 1.0
    feed_forward_proj: Literal["relu", "gated-gelu", "gated-silu", "gelu", "silu"] = "relu"
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool | None = None
    """Written by transformers 5; before, what is tied was scaled and what is not was not."""

    def extra(self) -> dict[str, Any]:
        scaled = self.scale_decoder_outputs
        activation = self.feed_forward_proj.removeprefix("gated-")
        if self.feed_forward_proj == "gated-gelu":  # T5 v1.1 means the tanh form by it
            activation = "gelu_tanh"
        return {
            "activation": activation,
            "gated_ffn": self.feed_forward_proj.startswith("gated-"),
            "scale_logits": self.tie_word_embeddings if scaled is None else scaled,
        }


class _Rope(_Config):
    rope_type: Literal["default", "llama3"] = Field(
        "default", validation_alias=AliasChoices("rope_type", "type")
    )
    rope_theta: Share | None = None
    partial_rotary_factor: Annotated[float, Field(ge=1.0, le=1.0)] = 1.0
    factor: Share = 1.0
    low_freq_factor: Share = 1.0
    high_freq_factor: Share = 4.0
    original_max_position_embeddings: Count = 8192

    def scaling(self) -> RopeScaling | None:
        if self.rope_type == "default":
            return None
        return RopeScaling(**{name: getattr(self, key) for name, key in _ROPE_SCALING.items()})


class _Llama(_Config):
    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    hidden_act: Activation = "silu"
    max_position_embeddings: Count = 2048
    initializer_range: Share = 0.02
    rms_norm_eps: Share = 1e-6
    tie_word_embeddings: bool = False
    rope_theta: Share = 10000.0
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    """What transformers 5 writes instead of the two above."""
    attention_bias: bool = False
    mlp_bias: bool = False

    def extra(self) -> dict[str, Any]:
        rope = self.rope_parameters or self.rope_scaling or _Rope.model_validate({})
        return {
            "rope_theta": rope.rope_theta or self.rope_theta,
            "rope_scaling": rope.scaling(),
            "out_bias": self.attention_bias,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """How one family's shapes and configurations are written in each other's words."""

    config_class: str
    model_class: str
    """Their names in transformers; the model is the one with the head that is trained."""
    keys: type[_Config]
    names: Mapping[str, str]
    """Field of a ModelShape: key of config.json.  What is no plain copy stands in `extra`."""
    constants: Mapping[str, Any]
    """What else is written: no dropout, no cache."""


# What every family's configuration calls alike.
_SHARED = {"vocab": "vocab_size", "init_std": "initializer_range", "tied": "tie_word_embeddings"}
_ROPE_SCALING = {
    "factor": "factor",
    "low": "low_freq_factor",
    "high": "high_freq_factor",
    "original_positions": "original_max_position_embeddings",
}
_GPT_CONSTANTS = {"bos_token_id": None, "eos_token_id": None, "use_cache": False}

_FAMILIES = {
    "gpt2": _Family(
        config_class="GPT2Config",
        model_class="GPT2LMHeadModel",
        keys=_Gpt2,
        names=_SHARED
        | {
            "num_layers": "n_layer",
            "hidden": "n_embd",
            "num_heads": "n_head",
            "ffn": "n_inner",
            "max_positions": "n_positions",
            "activation": "activation_function",
            "norm_eps": "layer_norm_epsilon",
        },
        constants=_GPT_CONSTANTS | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ),
    "gpt-neo": _Family(
        config_class="GPTNeoConfig",
        model_class="GPTNeoForCausalLM",
        keys=_GptNeo,
        names=_SHARED
        | {
            "num_layers": "num_layers",
            "hidden": "hidden_size",
            "num_heads": "num_heads",
            "ffn": "intermediate_size",
            "max_positions": "max_position_embeddings",
            "activation": "activation_function",
            "norm_eps": "layer_norm_epsilon",
        },
        constants=_GPT_CONSTANTS
        | {"resid_dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0},
    ),
    "bert": _Family(
        config_class="BertConfig",
        model_class="BertForMaskedLM",
        keys=_Bert,
        names=_SHARED
        | {
            "num_layers": "num_hidden_layers",
            "hidden": "hidden_size",
            "num_heads": "num_attention_heads",
            "ffn": "intermediate_size",
            "max_positions": "max_position_embeddings",
            "token_types": "type_vocab_size",
            "activation": "hidden_act",
            "norm_eps": "layer_norm_eps",
        },
        constants={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    ),
    "t5": _Family(
        config_class="T5Config",
        model_class="T5ForConditionalGeneration",
        keys=_T5,
        names=_SHARED
        | {
            "init_std": "initializer_factor",
            "num_layers": "num_layers",
            "num_decoder_layers": "num_decoder_layers",
            "hidden": "d_model",
            "num_heads": "num_heads",
            "head_dim": "d_kv",
            "ffn": "d_ff",
            "max_positions": "n_positions",
            "num_buckets": "relative_attention_num_buckets",
            "max_distance": "relative_attention_max_distance",
            "norm_eps": "layer_norm_epsilon",
        },
        constants={"dropout_rate": 0.0, "decoder_start_token_id": 0, "use_cache": False},
    ),
    "llama": _Family(
        config_class="LlamaConfig",
        model_class="LlamaForCausalLM",
        keys=_Llama,
        names=_SHARED
        | {
            "num_layers": "num_hidden_layers",
            "hidden": "hidden_size",
            "num_heads": "num_attention_heads",
            "num_kv_heads": "num_key_value_heads",
            "head_dim": "head_dim",
            "ffn": "intermediate_size",
            "max_positions": "max_position_embeddings",
            "qkv_bias": "attention_bias",
            "ffn_bias": "mlp_bias",
            "activation": "hidden_act",
            "norm_eps": "rms_norm_eps",
        },
        constants={"use_cache": False},
    ),
}


def class_names(shape: ModelShape) -> tuple[str, str]:
    """The classes of a shape's configuration and model in transformers."""
    family = _FAMILIES[shape.family]
    return family.config_class, family.model_class


def config_of(shape: ModelShape) -> dict[str, Any]:
    """The arguments of a shape's Hugging Face configuration, without dropout.

    Raises UsageError where that configuration would describe another model.
    """
    family = _FAMILIES[shape.family]
    written = {key: getattr(shape, name) for name, key in family.names.items()}
    config = {**written, **_extra_keys(shape), **family.constants}
    if shape.activation == "gelu_tanh" and shape.family != "t5":
        config[family.names["activation"]] = "gelu_new"
    try:
        known = _shape_from(shape.family, config, shape.name)
    except (DataError, UsageError):
        known = None
    if known != replace(shape, windows=shape.windows or getattr(known, "windows", ())):
        raise UsageError(
            f"Hugging Face has no {shape.family} model like {shape.name}",
            "train it with the native framework",
        )
    return config


def _extra_keys(shape: ModelShape) -> dict[str, Any]:
    """The keys of a configuration that are no plain copies: `_Config.extra` the other way."""
    if shape.family == "gpt-neo":
        windows = shape.windows or (0,) * shape.num_layers
        return {
            "attention_types": [[["local" if window else "global"], 1] for window in windows],
            "window_size": max(windows) or 256,
        }
    if shape.family == "t5":
        activation = shape.activation.removesuffix("_tanh") if shape.gated_ffn else shape.activation
        return {
            "feed_forward_proj": ("gated-" if shape.gated_ffn else "") + activation,
            "scale_decoder_outputs": shape.scale_logits,
        }
    if shape.family == "llama":
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
        if shape.rope_scaling is not None:
            scaling = {key: getattr(shape.rope_scaling, n) for n, key in _ROPE_SCALING.items()}
            rope |= {"rope_type": "llama3"} | scaling
        return {"rope_parameters": rope}
    return {}


def read_config(path: Path) -> ModelShape:
    """The shape in the config.json at ``path``; DataError if it is none, or not built here."""
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path} is not JSON") from None
    return shape_of_config(config, str(path))


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def shape_of_config(config: object, where: str) -> ModelShape:
    """The shape of a parsed config.json; ``where`` names it in errors."""
    families = {name.replace("-", "_"): name for name in _FAMILIES}
    known = "one of: " + ", ".join(families)
    keys: dict[str, Any] = config if isinstance(config, dict) else {}
    if any(isinstance(keys.get(name), int) and keys[name] > 1 for name in _EXPERTS):
        raise DataError(f"{where}: mixture of experts comes later: dense models only so far", known)
    kind = keys.get("model_type")
    if not isinstance(kind, str) or kind not in families:
        raise DataError(f"{where}: unknown model_type {kind!r}", known)
    return _shape_from(families[kind], keys, where)


def _shape_from(name: str, config: Mapping[str, Any], where: str) -> ModelShape:
    family = _FAMILIES[name]
    try:
        keys = family.keys.model_validate(config)
    except ValidationError as error:
        raise DataError(f"{where}: {first_problem(error)}") from None
    copied = {field: getattr(keys, key) for field, key in family.names.items()}
    if copied.get("activation") in ("gelu_new", "gelu_pytorch_tanh"):
        copied["activation"] = "gelu_tanh"
    given = {field: value for field, value in copied.items() if value is not None}
    return custom(name, name=where, **given, **keys.extra())
