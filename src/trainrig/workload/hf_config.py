"""A shape from a Hugging Face config.json, without transformers.

Read: gpt2, gpt_neo, bert, t5 and llama configurations.  What would change the mathematics and is
not built here (another activation, another kind of rotary scaling, cross-attention in GPT-2) is
refused in one line instead of being ignored.  Dropout is ignored: see `models`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, Strict, ValidationError

from trainrig.errors import DataError, first_problem
from trainrig.workload.model import ModelShape, RopeScaling
from trainrig.workload.presets import custom

Count = Annotated[int, Field(ge=1, lt=2**31)]
Share = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"]
_OURS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


class _Config(BaseModel):
    """Keys that no shape follows from (dropout, token ids, versions) are left aside."""

    model_config = ConfigDict(extra="ignore", strict=True)


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

    def numbers(self) -> dict[str, Any]:
        return {
            "num_layers": self.n_layer,
            "hidden": self.n_embd,
            "num_heads": self.n_head,
            "ffn": self.n_inner or 4 * self.n_embd,
            "vocab": self.vocab_size,
            "max_positions": self.n_positions,
            "activation": _OURS.get(self.activation_function, self.activation_function),
            "norm_eps": self.layer_norm_epsilon,
            "init_std": self.initializer_range,
            "tied": self.tie_word_embeddings,
        }


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

    def numbers(self) -> dict[str, Any]:
        kinds = [kind for group, times in self.attention_types for kind in group * times]
        return {
            "num_layers": self.num_layers,
            "hidden": self.hidden_size,
            "num_heads": self.num_heads,
            "ffn": self.intermediate_size or 4 * self.hidden_size,
            "vocab": self.vocab_size,
            "max_positions": self.max_position_embeddings,
            "activation": _OURS.get(self.activation_function, self.activation_function),
            "norm_eps": self.layer_norm_epsilon,
            "init_std": self.initializer_range,
            "tied": self.tie_word_embeddings,
            "windows": tuple(self.window_size if kind == "local" else 0 for kind in kinds),
        }


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

    def numbers(self) -> dict[str, Any]:
        return {
            "num_layers": self.num_hidden_layers,
            "hidden": self.hidden_size,
            "num_heads": self.num_attention_heads,
            "ffn": self.intermediate_size,
            "vocab": self.vocab_size,
            "max_positions": self.max_position_embeddings,
            "activation": _OURS.get(self.hidden_act, self.hidden_act),
            "token_types": self.type_vocab_size,
            "norm_eps": self.layer_norm_eps,
            "init_std": self.initializer_range,
        }


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

    def numbers(self) -> dict[str, Any]:
        scaled = self.scale_decoder_outputs
        gated, activation = "gated" in self.feed_forward_proj, self.feed_forward_proj.split("-")[-1]
        if self.feed_forward_proj == "gated-gelu":  # T5 v1.1 means the tanh form by it
            activation = "gelu_tanh"
        return {
            "num_layers": self.num_layers,
            "num_decoder_layers": self.num_decoder_layers or self.num_layers,
            "hidden": self.d_model,
            "num_heads": self.num_heads,
            "head_dim": self.d_kv,
            "ffn": self.d_ff,
            "vocab": self.vocab_size,
            "max_positions": self.n_positions,
            "num_buckets": self.relative_attention_num_buckets,
            "max_distance": self.relative_attention_max_distance,
            "activation": activation,
            "gated_ffn": gated,
            "norm_eps": self.layer_norm_epsilon,
            "init_std": self.initializer_factor,
            "tied": self.tie_word_embeddings,
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
        return RopeScaling(
            factor=self.factor,
            low=self.low_freq_factor,
            high=self.high_freq_factor,
            original_positions=self.original_max_position_embeddings,
        )


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

    def numbers(self) -> dict[str, Any]:
        rope = self.rope_parameters or self.rope_scaling or _Rope.model_validate({})
        return {
            "num_layers": self.num_hidden_layers,
            "hidden": self.hidden_size,
            "num_heads": self.num_attention_heads,
            "num_kv_heads": self.num_key_value_heads or self.num_attention_heads,
            "head_dim": self.head_dim or self.hidden_size // self.num_attention_heads,
            "ffn": self.intermediate_size,
            "vocab": self.vocab_size,
            "max_positions": self.max_position_embeddings,
            "activation": _OURS.get(self.hidden_act, self.hidden_act),
            "norm_eps": self.rms_norm_eps,
            "init_std": self.initializer_range,
            "tied": self.tie_word_embeddings,
            "rope_theta": rope.rope_theta or self.rope_theta,
            "rope_scaling": rope.scaling(),
            "qkv_bias": self.attention_bias,
            "out_bias": self.attention_bias,
            "ffn_bias": self.mlp_bias,
        }


_CONFIGS: dict[str, tuple[str, type[_Gpt2 | _GptNeo | _Bert | _T5 | _Llama]]] = {
    "gpt2": ("gpt2", _Gpt2),
    "gpt_neo": ("gpt-neo", _GptNeo),
    "bert": ("bert", _Bert),
    "t5": ("t5", _T5),
    "llama": ("llama", _Llama),
}


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


def _is_several(number: object) -> bool:
    return isinstance(number, int) and number > 1


def shape_of_config(config: object, where: str) -> ModelShape:
    """The shape of a parsed config.json; ``where`` names it in errors."""
    kind = config.get("model_type") if isinstance(config, dict) else None
    if isinstance(config, dict) and any(_is_several(config.get(name)) for name in _EXPERTS):
        raise DataError(
            f"{where}: mixture of experts comes later: dense models only so far",
            "one of: " + ", ".join(_CONFIGS),
        )
    if not isinstance(kind, str) or kind not in _CONFIGS:
        raise DataError(f"{where}: unknown model_type {kind!r}", "one of: " + ", ".join(_CONFIGS))
    family, model = _CONFIGS[kind]
    try:
        numbers = model.model_validate(config).numbers()
    except ValidationError as error:
        raise DataError(f"{where}: {first_problem(error)}") from None
    return custom(family, name=where, **numbers)
