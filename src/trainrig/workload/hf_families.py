"""Families of models as Hugging Face configures them: which key is which number of a shape.

One class a family, gpt2, gpt_neo, bert, t5 and llama, and one for each of Llama's followers whose
keys differ (`OTHERS`).  `hf_config` reads and writes config.json by them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, fields
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, Strict

from trainrig.workload.model import ACTIVATIONS, ModelShape
from trainrig.workload.shape_parts import RopeScaling

Count = Annotated[int, Field(ge=1, lt=2**31)]
Whole = Annotated[int, Field(ge=0, lt=2**31)]
Share = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"]
_GPT_CONSTANTS = {"bos_token_id": None, "eos_token_id": None, "use_cache": False}


class FamilyConfig(BaseModel):
    """One family's configuration.

    Fields are called as in ModelShape, their aliases are the keys; those that are no fields of a
    shape are read by `extra` and written by `extra_keys`.  Keys that no shape follows from
    (dropout, token ids, versions) are left aside.
    """

    model_config = ConfigDict(extra="ignore", strict=True)

    config_class: ClassVar[str]
    """Names in transformers; the model's is the one with the head that is trained."""
    model_class: ClassVar[str]
    constants: ClassVar[dict[str, Any]]
    """Further keys that are written: no dropout, no cache."""

    vocab: Count = Field(alias="vocab_size")
    init_std: Share = Field(0.02, alias="initializer_range")
    tied: bool = Field(True, alias="tie_word_embeddings")

    def extra(self) -> dict[str, Any]:
        """Return the shape's numbers that are no plain copies of a key."""
        return {}

    @staticmethod
    def extra_keys(shape: ModelShape) -> dict[str, Any]:
        """Return the keys of a configuration that are no plain copies: `extra` the other way."""
        del shape
        return {}


class _Gpt2(FamilyConfig):
    config_class = "GPT2Config"
    model_class = "GPT2LMHeadModel"
    constants = _GPT_CONSTANTS | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

    max_positions: Count = Field(alias="n_positions")
    hidden: Count = Field(alias="n_embd")
    num_layers: Count = Field(alias="n_layer")
    num_heads: Count = Field(alias="n_head")
    ffn: Count | None = Field(None, alias="n_inner")
    activation: Activation = Field("gelu_new", alias="activation_function")
    norm_eps: Share = Field(1e-5, alias="layer_norm_epsilon")
    scale_attn_weights: Literal[True] = True
    scale_attn_by_inverse_layer_idx: Literal[False] = False
    add_cross_attention: Literal[False] = False


# [["global", "local"], 12]: these kinds of attention, in turn, 12 times.
_Group = Annotated[tuple[list[Literal["global", "local"]], Count], Strict(False)]


class _GptNeo(FamilyConfig):
    config_class = "GPTNeoConfig"
    model_class = "GPTNeoForCausalLM"
    constants = _GPT_CONSTANTS | {
        "resid_dropout": 0.0,
        "embed_dropout": 0.0,
        "attention_dropout": 0.0,
    }

    max_positions: Count = Field(alias="max_position_embeddings")
    hidden: Count = Field(alias="hidden_size")
    num_layers: Count
    num_heads: Count
    ffn: Count | None = Field(None, alias="intermediate_size")
    activation: Activation = Field("gelu_new", alias="activation_function")
    norm_eps: Share = Field(1e-5, alias="layer_norm_epsilon")
    attention_types: list[_Group]
    window_size: Count = 256

    def extra(self) -> dict[str, Any]:
        kinds = [kind for group, times in self.attention_types for kind in group * times]
        return {"windows": tuple(self.window_size if kind == "local" else 0 for kind in kinds)}

    @staticmethod
    def extra_keys(shape: ModelShape) -> dict[str, Any]:
        windows = shape.attention.windows or (0,) * shape.num_layers
        return {
            "attention_types": [[["local" if window else "global"], 1] for window in windows],
            "window_size": max(windows) or 256,
        }


class _Bert(FamilyConfig):
    config_class = "BertConfig"
    model_class = "BertForMaskedLM"
    constants = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

    tied: Literal[True] = Field(True, alias="tie_word_embeddings")
    hidden: Count = Field(alias="hidden_size")
    num_layers: Count = Field(alias="num_hidden_layers")
    num_heads: Count = Field(alias="num_attention_heads")
    ffn: Count = Field(alias="intermediate_size")
    max_positions: Count = Field(alias="max_position_embeddings")
    activation: Activation = Field("gelu", alias="hidden_act")
    token_types: Count = Field(2, alias="type_vocab_size")
    norm_eps: Share = Field(1e-12, alias="layer_norm_eps")
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False


class _T5(FamilyConfig):
    config_class = "T5Config"
    model_class = "T5ForConditionalGeneration"
    constants = {"dropout_rate": 0.0, "decoder_start_token_id": 0, "use_cache": False}

    init_std: Share = Field(1.0, alias="initializer_factor")
    hidden: Count = Field(alias="d_model")
    head_dim: Count = Field(alias="d_kv")
    ffn: Count = Field(alias="d_ff")
    num_layers: Count
    num_decoder_layers: Count | None = None
    num_heads: Count
    max_positions: Count = Field(512, alias="n_positions")
    num_buckets: Count = Field(32, alias="relative_attention_num_buckets")
    max_distance: Count = Field(128, alias="relative_attention_max_distance")
    norm_eps: Share = Field(1e-6, alias="layer_norm_epsilon")
    feed_forward_proj: Literal["relu", "gated-gelu", "gated-silu", "gelu", "silu"] = "relu"
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
            "scale_logits": self.tied if scaled is None else scaled,
        }

    @staticmethod
    def extra_keys(shape: ModelShape) -> dict[str, Any]:
        activation = (
            shape.ffn.activation.removesuffix("_tanh") if shape.ffn.gated else shape.ffn.activation
        )
        return {
            "feed_forward_proj": ("gated-" if shape.ffn.gated else "") + activation,
            "scale_decoder_outputs": shape.head.scale_logits,
        }


class _Rope(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    rope_type: Literal["default", "llama3"] = Field(
        "default", validation_alias=AliasChoices("rope_type", "type")
    )
    rope_theta: Share | None = None
    partial_rotary_factor: Annotated[float, Field(ge=1.0, le=1.0)] = 1.0
    factor: Share = 1.0
    low: Share = Field(1.0, alias="low_freq_factor")
    high: Share = Field(4.0, alias="high_freq_factor")
    original_positions: Count = Field(8192, alias="original_max_position_embeddings")


class _Llama(FamilyConfig):
    config_class = "LlamaConfig"
    model_class = "LlamaForCausalLM"
    constants = {"use_cache": False}

    tied: bool = Field(False, alias="tie_word_embeddings")
    hidden: Count = Field(alias="hidden_size")
    ffn: Count = Field(alias="intermediate_size")
    num_layers: Count = Field(alias="num_hidden_layers")
    num_heads: Count = Field(alias="num_attention_heads")
    num_kv_heads: Count | None = Field(None, alias="num_key_value_heads")
    head_dim: Count | None = None
    activation: Activation = Field("silu", alias="hidden_act")
    max_positions: Count = Field(2048, alias="max_position_embeddings")
    norm_eps: Share = Field(1e-6, alias="rms_norm_eps")
    qkv_bias: bool = Field(False, alias="attention_bias")
    ffn_bias: bool = Field(False, alias="mlp_bias")
    theta: Share = Field(10000.0, alias="rope_theta")
    rope: _Rope | None = Field(None, alias="rope_scaling")
    rope_parameters: _Rope | None = None
    """Key that transformers 5 writes instead of the two above."""

    def extra(self) -> dict[str, Any]:
        rope = self.rope_parameters or self.rope or _Rope.model_validate({})
        scaling = RopeScaling(**{name: getattr(rope, name) for name in keys_of(_Rope, _SCALING)})
        return {
            "rope_theta": rope.rope_theta or self.theta,
            "rope_scaling": None if rope.rope_type == "default" else scaling,
            "out_bias": self.qkv_bias,
        }

    @staticmethod
    def extra_keys(shape: ModelShape) -> dict[str, Any]:
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.position.rope_theta}
        if shape.position.rope_scaling is not None:
            rope |= {"rope_type": "llama3"} | copied_keys(
                _Rope, asdict(shape.position.rope_scaling)
            )
        return {"rope_parameters": rope}


class _Follower(_Llama):
    """A model type that is only predicted; what rotary positions turn does not count."""

    rope: Any = Field(None, alias="rope_scaling")
    rope_parameters: Any = None
    activation: Any = Field(
        "silu", validation_alias=AliasChoices("hidden_activation", "hidden_act")
    )

    def extra(self) -> dict[str, Any]:
        """Return the shape's numbers; ``vectors`` are per block, and `ends` once."""
        wide = self.head_dim or self.hidden // self.num_heads
        names = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu2": "relu"}
        word = names.get(str(self.activation), str(self.activation))
        return {
            "rope_theta": self.theta,
            "out_bias": self.qkv_bias,
            "head_dim": wide,
            "activation": word if word in ACTIVATIONS else "silu",
            "variant": type(self).__name__.strip("_").lower(),
        }

    @property
    def wide(self) -> int:
        """Elements of a head."""
        return self.head_dim or self.hidden // self.num_heads


class WindowedConfig(_Follower):
    """Mistral with a window."""

    sliding_window: Count | None = None


class _Qwen2(_Follower):
    """Queries, keys and values have biases, and what leaves attention has none."""

    def extra(self) -> dict[str, Any]:
        return super().extra() | {"qkv_bias": True, "out_bias": False}


class _Qwen3(_Follower):
    """Heads of queries and of keys have a norm each."""

    head_dim: Count | None = 128

    def extra(self) -> dict[str, Any]:
        return super().extra() | {"vectors": 2 * self.wide}


class _Gemma(_Follower):
    """Gemma 1: Llama with other widths."""

    tied: bool = Field(True, alias="tie_word_embeddings")
    head_dim: Count | None = 256

    def extra(self) -> dict[str, Any]:
        return super().extra() | {"activation": "gelu_tanh"}


class _Gemma2(_Gemma):
    """Norms behind attention and the feed-forward net, too."""

    def extra(self) -> dict[str, Any]:
        return super().extra() | {"vectors": 2 * self.hidden}


class _Gemma3(_Gemma2):
    """And norms of queries and keys."""

    def extra(self) -> dict[str, Any]:
        return super().extra() | {"vectors": 2 * self.hidden + 2 * self.wide}


class _Phi(_Follower):
    """Phi 1 and 2: one LayerNorm for both halves of a block, biases everywhere."""

    activation: Any = Field("gelu_new", alias="hidden_act")
    qk_norm: bool = Field(False, alias="qk_layernorm")

    def extra(self) -> dict[str, Any]:
        biased = dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), True)
        ends = {"end_vectors": self.hidden + self.vocab}
        vectors = {"vectors": 4 * self.wide if self.qk_norm else 0, "gated_ffn": False}
        return super().extra() | biased | ends | vectors


class _Phi3(_Follower):
    """Phi 3 and 4: one matrix for the three, as large as those."""


class _Nemotron(_Follower):
    """LayerNorm, and squares of a ReLU without a gate."""

    activation: Any = Field("relu2", alias="hidden_act")

    def extra(self) -> dict[str, Any]:
        norms = {"vectors": 2 * self.hidden, "end_vectors": self.hidden}
        return super().extra() | norms | {"gated_ffn": False}


class _Falcon(_Follower):
    """Attention and feed-forward net side by side, behind one norm or one each."""

    tied: bool = Field(True, alias="tie_word_embeddings")
    ffn: Count | None = Field(None, alias="ffn_hidden_size")  # type: ignore[assignment]
    num_kv_heads: Count | None = Field(None, alias="num_kv_heads")
    activation: Any = Field("gelu", alias="activation")
    multi_query: bool = True
    new_decoder_architecture: bool = False
    parallel_attn: bool = True
    num_norms: Count | None = Field(None, alias="num_ln_in_parallel_attn")
    bias: bool = False

    def extra(self) -> dict[str, Any]:
        new = self.new_decoder_architecture
        heads = (self.num_kv_heads or self.num_heads) if new or not self.multi_query else 1
        norms = 2 if not self.parallel_attn else self.num_norms or (2 if new else 1)
        keys = super().extra() | dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), self.bias)
        keys |= {"vectors": (norms - 1) * 2 * self.hidden, "end_vectors": self.hidden}
        return keys | {
            "num_kv_heads": heads,
            "gated_ffn": False,
            "ffn": self.ffn or 4 * self.hidden,
        }


class _Mistral(_Llama):
    """All tokens are looked back on: windows are not read."""

    sliding_window: None = None


class _Mixtral(_Llama):
    """A mixture as `models` builds it."""

    num_experts: Count = Field(
        validation_alias=AliasChoices("num_local_experts", "num_experts", "n_routed_experts")
    )
    experts_per_token: Count = Field(
        validation_alias=AliasChoices("num_experts_per_tok", "experts_per_token")
    )


class _Mixture(_Mixtral):
    """Mixtral's followers, DeepSeek's with latent attention: they are read, not written."""

    expert_ffn: Count | None = Field(None, alias="moe_intermediate_size")
    shared: Whole | None = Field(None, alias="n_shared_experts")
    shared_width: Whole | None = Field(None, alias="shared_expert_intermediate_size")
    dense_layers: Whole = Field(0, alias="first_k_dense_replace")
    expert_groups: Whole | None = Field(None, alias="n_group")
    groups_per_token: Whole | None = Field(None, alias="topk_group")
    kv_rank: Whole | None = Field(None, alias="kv_lora_rank")
    q_rank: Whole | None = Field(None, alias="q_lora_rank")
    nope_dim: Whole = Field(0, alias="qk_nope_head_dim")
    rope_dim: Whole = Field(0, alias="qk_rope_head_dim")
    value_dim: Whole = Field(0, alias="v_head_dim")

    def extra(self) -> dict[str, Any]:
        keys = _Llama.extra(self)
        width = self.expert_ffn or self.ffn
        keys["expert_ffn"] = width
        keys["shared_experts"] = self.shared or -(-(self.shared_width or 0) // width)
        keys["variant"] = "mixture"
        if self.kv_rank:  # a norm behind each of the narrow matrices
            keys["head_dim"] = self.nope_dim + self.rope_dim
            keys["vectors"] = self.kv_rank + (self.q_rank or 0)
        return keys


class _Mixtures(_Mixture):
    """A mixture whose positions may be stretched in ways that do not count."""

    rope: Any = Field(None, alias="rope_scaling")
    rope_parameters: Any = None
    tied: bool = Field(False, alias="tie_word_embeddings")

    def extra(self) -> dict[str, Any]:
        plain = self.model_copy(update={"rope": None, "rope_parameters": None})
        return _Mixture.extra(plain)

    @property
    def wide(self) -> int:
        """Elements of a head."""
        return self.head_dim or self.hidden // self.num_heads


class _Qwen2Moe(_Mixtures):
    """Biases as in Qwen2, and a gate for what all tokens go through."""

    def extra(self) -> dict[str, Any]:
        keys, width = super().extra(), self.expert_ffn or self.ffn
        spare = keys["shared_experts"] * width - (self.shared_width or 0)
        vectors = (self.hidden if self.shared_width else 0) - 3 * self.hidden * spare
        return keys | {"qkv_bias": True, "out_bias": False, "vectors": vectors}


class _Qwen3Moe(_Mixtures):
    """Norms of queries and keys."""

    def extra(self) -> dict[str, Any]:
        return super().extra() | {"vectors": 2 * self.wide}


class _GptOss(_Mixtures):
    """Biases everywhere, and a sink for each head."""

    qkv_bias: bool = Field(True, alias="attention_bias")
    head_dim: Count | None = 64

    def extra(self) -> dict[str, Any]:
        experts = self.num_experts * (1 + 2 * self.ffn + self.hidden)
        return super().extra() | {"vectors": experts + self.num_heads}


class _Olmoe(_Mixtures):
    """Norms of all queries and all keys of a token."""

    def extra(self) -> dict[str, Any]:
        keys = (self.num_kv_heads or self.num_heads) * self.wide
        return super().extra() | {"vectors": self.hidden + keys}


OTHERS: dict[str, type[FamilyConfig]] = {
    "mistral": _Mistral,
    "mixtral": _Mixtral,
    "qwen2_moe": _Qwen2Moe,
    "qwen3_moe": _Qwen3Moe,
    "gpt_oss": _GptOss,
    "olmoe": _Olmoe,
    **dict.fromkeys(("phimoe", "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe"), _Mixtures),
    "qwen2": _Qwen2,
    "qwen3": _Qwen3,
    "gemma": _Gemma,
    "gemma2": _Gemma2,
    **dict.fromkeys(("gemma3", "gemma3_text"), _Gemma3),
    "phi": _Phi,
    "phi3": _Phi3,
    "nemotron": _Nemotron,
    "falcon": _Falcon,
}
"""Further model types, all of the family llama."""
CONFIGURED_AS = {
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "electra", "esm"), "bert"),
    "distilbert": "bert",
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), "qwen2"),
    "qwen3_vl": "qwen3",
    **dict.fromkeys(("olmo2", "granite", "internlm2", "smollm3", "mllama", "stablelm"), "mistral"),
}
"""Types whose language model is configured and computes as another's; formulas alone know them."""
RENAMED = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
}
RENAMED |= {"n_layers": "num_hidden_layers", "position_embedding_type": ""}


CONFIGS: dict[str, type[FamilyConfig]] = {
    "gpt2": _Gpt2,
    "gpt-neo": _GptNeo,
    "bert": _Bert,
    "t5": _T5,
    "llama": _Llama,
}


_SCALING = tuple(one.name for one in fields(RopeScaling))


def keys_of(config: type[BaseModel], named: Collection[str]) -> dict[str, str]:
    """Return the key that a configuration has for each of ``named`` that it copies as it is."""
    listed = config.model_fields.items()
    return {name: info.alias or name for name, info in listed if name in named}


def copied_keys(config: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration has of ``values`` as it is, by the configuration's keys."""
    return {key: values[name] for name, key in keys_of(config, values).items()}
