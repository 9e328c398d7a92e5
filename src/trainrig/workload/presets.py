"""Which shape a user means: by name, by numbers, or from a Hugging Face config.json.

Sources of the named shapes: the config.json published with each model.  The Llama names mean
llama-1B: Llama 3.2 1B, llama-3B: Llama 3.2 3B, llama-7B: Llama 2 7B, llama-8B: Llama 3.1 8B,
llama-13B: Llama 2 13B, llama-30B and llama-65B: Llama 1, llama-70B: Llama 2 70B, llama3-70B and
llama3-405B: Llama 3.1; mistral-7B is version 0.3, whose attention has no window.

Without a config.json: the gpt3 sizes are those of Brown et al. 2020 (arXiv 2005.14165, table 2.1),
13B with the width of 5120 that its 40 heads of 128 make; the megatron sizes are Narayanan et al.
2021 (arXiv 2104.04473, table 1) and Korthikanti et al. 2022 (arXiv 2205.05198, table 3: 22B); 530B
is MT-NLG (Smith et al. 2022, arXiv 2201.11990).  Those trained with Megatron have its vocabulary,
50257 padded to 51200.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from trainrig.errors import UsageError, unknown
from trainrig.workload.model import FAMILIES, ModelShape, RopeScaling

_BIASED = dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), True)
# What a family fixes, and what it takes where nothing is said.
_FAMILY: dict[str, dict[str, Any]] = {
    "gpt2": _BIASED | {"vocab": 50257, "max_positions": 1024, "activation": "gelu_tanh"},
    "gpt-neo": {
        "vocab": 50257,
        "max_positions": 2048,
        "activation": "gelu_tanh",
        "out_bias": True,
        "ffn_bias": True,
    },
    "bert": {
        **_BIASED,
        "vocab": 30522,
        "max_positions": 512,
        "activation": "gelu",
        "norm_eps": 1e-12,
        "token_types": 2,
    },
    "t5": {
        "vocab": 32128,
        "max_positions": 512,
        "activation": "relu",
        "norm_eps": 1e-6,
        "init_std": 1.0,
        "num_buckets": 32,
        "max_distance": 128,
        "scale_logits": True,
    },
    "llama": {
        "vocab": 32000,
        "max_positions": 4096,
        "activation": "silu",
        "gated_ffn": True,
        "tied": False,
        "rope_theta": 10000.0,
    },
}


def _gpt(layers: int, hidden: int, heads: int, vocab: int = 51200) -> tuple[str, dict[str, Any]]:
    """A GPT that reads 2048 tokens."""
    numbers = {"num_layers": layers, "hidden": hidden, "num_heads": heads}
    return "gpt2", numbers | {"vocab": vocab, "max_positions": 2048}


def _llama(
    layers: int, hidden: int, heads: int, ffn: int, **more: Any
) -> tuple[str, dict[str, Any]]:
    return "llama", {"num_layers": layers, "hidden": hidden, "num_heads": heads, "ffn": ffn} | more


def _llama3(
    layers: int, hidden: int, heads: int, ffn: int, stretch: float, **more: Any
) -> tuple[str, dict[str, Any]]:
    """Rotary wavelengths up to ``stretch`` times as long as those of the first training length."""
    scaling = RopeScaling(factor=stretch, low=1.0, high=4.0, original_positions=8192)
    more |= {"vocab": 128256, "max_positions": 131072, "num_kv_heads": 8}
    more |= {"rope_theta": 500000.0, "rope_scaling": scaling}
    return _llama(layers, hidden, heads, ffn, **more)


NAMED: dict[str, tuple[str, dict[str, Any]]] = {
    # These train on two cores in minutes: native, published by nobody.
    "gpt2-small-cpu": (
        "gpt2",
        {"num_layers": 4, "hidden": 256, "vocab": 8192, "max_positions": 256},
    ),
    "mixtral-small-cpu": _llama(
        4, 256, 4, 512, num_kv_heads=2, vocab=8192, max_positions=256, num_experts=4
    ),
    "gpt2": ("gpt2", {"num_layers": 12, "hidden": 768}),
    "gpt2-medium": ("gpt2", {"num_layers": 24, "hidden": 1024}),
    "gpt2-large": ("gpt2", {"num_layers": 36, "hidden": 1280}),
    "gpt2-xl": ("gpt2", {"num_layers": 48, "hidden": 1600}),
    "gpt-neo-1.3B": (
        "gpt-neo",
        {"num_layers": 24, "hidden": 2048, "num_heads": 16, "windows": (0, 256) * 12},
    ),
    "bert-base": ("bert", {"num_layers": 12, "hidden": 768}),
    "bert-large": ("bert", {"num_layers": 24, "hidden": 1024}),
    "t5-base": ("t5", {"num_layers": 12, "hidden": 768}),
    "t5-large": ("t5", {"num_layers": 24, "hidden": 1024}),
    "llama-1B": _llama3(16, 2048, 32, 8192, 32.0, tied=True),
    "llama-7B": _llama(32, 4096, 32, 11008),
    "llama-8B": _llama3(32, 4096, 32, 14336, 8.0),
    "llama-13B": _llama(40, 5120, 40, 13824),
    "llama-3B": _llama3(28, 3072, 24, 8192, 32.0, tied=True),
    "llama-30B": _llama(60, 6656, 52, 17920, max_positions=2048),
    "llama-65B": _llama(80, 8192, 64, 22016, max_positions=2048),
    "llama-70B": _llama(80, 8192, 64, 28672, num_kv_heads=8),
    "llama3-70B": _llama3(80, 8192, 64, 28672, 8.0),
    "llama3-405B": _llama3(126, 16384, 128, 53248, 8.0),
    "mistral-7B": _llama(
        32,
        4096,
        32,
        14336,
        num_kv_heads=8,
        vocab=32768,
        max_positions=32768,
        rope_theta=1000000.0,
    ),
    "mixtral-8x7B": _llama(
        32,
        4096,
        32,
        14336,
        num_kv_heads=8,
        max_positions=32768,
        rope_theta=1000000.0,
        num_experts=8,
    ),
    "gpt3-1.3B": _gpt(24, 2048, 16, 50257),
    "gpt3-2.7B": _gpt(32, 2560, 32, 50257),
    "gpt3-6.7B": _gpt(32, 4096, 32, 50257),
    "gpt3-13B": _gpt(40, 5120, 40, 50257),
    "gpt3-175B": _gpt(96, 12288, 96),
    "megatron-1.7B": _gpt(24, 2304, 24),
    "megatron-3.6B": _gpt(30, 3072, 32),
    "megatron-7.5B": _gpt(36, 4096, 32),
    "megatron-18B": _gpt(40, 6144, 48),
    "megatron-22B": _gpt(48, 6144, 64),
    "megatron-39B": _gpt(48, 8192, 64),
    "megatron-76B": _gpt(60, 10240, 80),
    "megatron-145B": _gpt(80, 12288, 96),
    "megatron-310B": _gpt(96, 16384, 128),
    "mt-nlg-530B": _gpt(105, 20480, 128),
    "megatron-1T": _gpt(128, 25600, 160),
}


def custom(family: str, *, name: str | None = None, **numbers: Any) -> ModelShape:
    """A shape by numbers: at least num_layers and hidden; the rest as the family has it.

    Where nothing is said: heads of 64, a feed-forward width of 4·hidden (llama: 8/3·hidden,
    rounded up to 256s), as many decoder layers as encoder layers (t5).
    Raises UsageError for an unknown family or number, or if the numbers contradict.
    """
    if family not in _FAMILY:
        raise unknown("model family", family, FAMILIES)
    known = [field.name for field in fields(ModelShape)]
    for number in numbers:
        if number not in known:
            raise UsageError(f"a model shape has no {number!r}", "it has: " + ", ".join(known))
    for needed in ("num_layers", "hidden"):
        if not isinstance(numbers.get(needed), int) or numbers[needed] < 1:
            raise UsageError(f"a {family} shape needs {needed}, a whole number from 1")
    full = _FAMILY[family] | numbers
    hidden = full["hidden"]
    heads = full.setdefault("num_heads", max(1, hidden // 64))
    full.setdefault("num_kv_heads", heads)
    full.setdefault("head_dim", max(1, hidden // heads) if isinstance(heads, int) and heads else 0)
    full.setdefault(
        "ffn", -(-hidden * 8 // 3 // 256) * 256 if full.get("gated_ffn") else 4 * hidden
    )
    full.setdefault("experts_per_token", 2 if full.get("num_experts") else 0)
    if family == "t5":
        full.setdefault("num_decoder_layers", full["num_layers"])
    described = ",".join(f"{number}={value}" for number, value in numbers.items())
    return ModelShape(name=name or f"{family}:{described}", family=family, **full)


def named(name: str) -> ModelShape:
    """One of NAMED, in any capitals; UsageError with the nearest names otherwise."""
    for known, (family, numbers) in NAMED.items():
        if known.lower() == name.lower():
            return custom(family, name=known, **numbers)
    other = "; all: trainrig catalog --models; or a config.json, or gpt2:num_layers=4,hidden=256"
    raise unknown("model", name, NAMED, other)
