"""Which shape a user means: by name, by numbers, or from a Hugging Face config.json.

Sources of the named shapes: the config.json published with each model.  The Llama names mean
llama-1B: Llama 3.2 1B, llama-3B: Llama 3.2 3B, llama-7B: Llama 2 7B, llama-8B: Llama 3.1 8B,
llama-13B: Llama 2 13B, llama-30B and llama-65B: Llama 1, llama-70B: Llama 2 70B, llama3-70B and
llama3-405B: Llama 3.1; mistral-7B is version 0.3, whose attention has no window.

Mixtures of experts are those of their config.json, too (DeepSeek-V2 to V3, Kimi K2, Moonlight,
Qwen, gpt-oss, Llama 4, GLM-4.5, DBRX, OLMoE, Phi-3.5, Mixtral) or of the released code (Grok-1);
what lies outside of the blocks' products (biases of gpt-oss, the norms of queries and keys, several
tokens predicted ahead) is left out, and so are Llama 4's chunks of attention.

Further names and spellings are data: published_models.toml (Qwen, Gemma, Phi, Falcon, OPT, …).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from trainrig.errors import UsageError, near_words, unknown
from trainrig.workload.model import FAMILIES, SHAPE_KEYS, ModelShape
from trainrig.workload.shape_parts import RopeScaling

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


def _mixture(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    *,
    ffn: int,
    experts: tuple[int, int],
    **more: Any,
) -> tuple[str, dict[str, Any]]:
    """Return a Llama with ``experts`` (how many, how many for a token) in place of its nets."""
    numbers = {"num_kv_heads": kv_heads, "vocab": vocab, "head_dim": 128, "max_positions": 32768}
    numbers |= {"num_experts": experts[0], "experts_per_token": experts[1], "expert_ffn": ffn}
    return _llama(layers, hidden, heads, ffn, **(numbers | more))


def _latent(
    layers: int,
    hidden: int,
    heads: int,
    vocab: int,
    ffn: int,
    expert_ffn: int,
    experts: tuple[int, int, int, int],
    q_rank: int = 1536,
    groups: tuple[int, int] = (1, 1),
) -> tuple[str, dict[str, Any]]:
    """DeepSeek's: ``experts`` in all, for a token, shared by all; and dense layers at first.

    ``groups`` of experts, and those that one token's are chosen from.
    """
    num, per_token, shared, dense = experts
    latent = {"kv_rank": 512, "q_rank": q_rank, "rope_dim": 64, "value_dim": 128, "head_dim": 192}
    mixed = {"expert_ffn": expert_ffn, "shared_experts": shared, "dense_layers": dense}
    mixed |= {"expert_groups": groups[0], "groups_per_token": groups[1], "vectors": 512 + q_rank}
    return _mixture(
        layers, hidden, heads, heads, vocab, ffn=ffn, experts=(num, per_token), **latent, **mixed
    )


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
        32, 4096, 32, 14336, num_kv_heads=8, vocab=32768, max_positions=32768, rope_theta=1e6
    ),
    "mixtral-8x7B": _llama(
        32, 4096, 32, 14336, num_kv_heads=8, max_positions=32768, rope_theta=1e6, num_experts=8
    ),
    "mixtral-8x22B": _llama(
        56, 6144, 48, 16384, num_kv_heads=8, max_positions=65536, rope_theta=1e6, num_experts=8
    ),
    "grok-1": _mixture(64, 6144, 48, 8, 131072, ffn=32768, experts=(8, 2), activation="gelu"),
    "dbrx": _mixture(40, 6144, 48, 8, 100352, ffn=10752, experts=(16, 4)),
    "phi-3.5-MoE": _mixture(32, 4096, 32, 8, 32064, ffn=6400, experts=(16, 2)),
    "olmoe-1B-7B": _mixture(16, 2048, 16, 16, 50304, ffn=1024, experts=(64, 8)),
    "qwen1.5-MoE-A2.7B": _mixture(
        24, 2048, 16, 16, 151936, ffn=5632, experts=(60, 4), expert_ffn=1408, shared_experts=4
    ),
    "qwen2-57B-A14B": _mixture(
        28, 3584, 28, 4, 151936, ffn=18944, experts=(64, 8), expert_ffn=2560, shared_experts=8
    ),
    "qwen3-30B-A3B": _mixture(48, 2048, 32, 4, 151936, ffn=6144, experts=(128, 8), expert_ffn=768),
    "qwen3-235B-A22B": _mixture(
        94, 4096, 64, 4, 151936, ffn=12288, experts=(128, 8), expert_ffn=1536
    ),
    "gpt-oss-20B": _mixture(
        *(24, 2880, 64, 8, 201088),
        ffn=2880,
        experts=(32, 4),
        head_dim=64,
        windows=(128, 0) * 12,
        variant="gptoss",
    ),
    "gpt-oss-120B": _mixture(
        *(36, 2880, 64, 8, 201088),
        ffn=2880,
        experts=(128, 4),
        head_dim=64,
        windows=(128, 0) * 18,
        variant="gptoss",
    ),
    "llama4-scout": _mixture(48, 5120, 40, 8, 202048, ffn=8192, experts=(16, 1), shared_experts=1),
    "llama4-maverick": _mixture(
        *(48, 5120, 40, 8, 202048),
        ffn=16384,
        experts=(128, 1),
        expert_ffn=8192,
        shared_experts=1,
        dense_layers=24,
    ),
    "glm-4.5": _mixture(
        *(92, 5120, 96, 8, 151552),
        ffn=12288,
        experts=(160, 8),
        expert_ffn=1536,
        shared_experts=1,
        dense_layers=3,
    ),
    "glm-4.5-air": _mixture(
        *(46, 4096, 96, 8, 151552),
        ffn=10944,
        experts=(128, 8),
        expert_ffn=1408,
        shared_experts=1,
        dense_layers=1,
    ),
    "deepseek-v2-lite": _latent(27, 2048, 16, 102400, 10944, 1408, (64, 6, 2, 1), q_rank=0),
    "deepseek-v2": _latent(60, 5120, 128, 102400, 12288, 1536, (160, 6, 2, 1), groups=(8, 3)),
    "deepseek-v3": _latent(61, 7168, 128, 129280, 18432, 2048, (256, 8, 1, 3), groups=(8, 4)),
    "moonlight-16B-A3B": _latent(27, 2048, 16, 163840, 11264, 1408, (64, 6, 2, 1), q_rank=0),
    "kimi-k2": _latent(61, 7168, 64, 163840, 18432, 2048, (384, 8, 1, 1)),
}


def custom(family: str, *, name: str | None = None, **numbers: Any) -> ModelShape:
    """Return a shape by numbers: at least num_layers and hidden; the rest as the family has it.

    Where nothing is said: heads of 64, a feed-forward width of 4·hidden (llama: 8/3·hidden,
    rounded up to 256s), as many decoder layers as encoder layers (t5).
    Raises UsageError for an unknown family or number, or if the numbers contradict.
    """
    if family not in _FAMILY:
        raise unknown("model family", family, FAMILIES)
    known = list(SHAPE_KEYS.places)
    for number in numbers:
        if number not in known:
            raise UsageError(f"a model shape has no {number!r}", "it has: " + ", ".join(known))
    for needed in ("num_layers", "hidden"):
        if not isinstance(numbers.get(needed), int) or numbers[needed] < 1:
            raise UsageError(
                f"a {family} shape needs {needed}, a whole number from 1",
                f"as {family}:num_layers=12,hidden=768",
            )
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
    return ModelShape.of(name=name or f"{family}:{described}", family=family, **full)


def named(name: str) -> ModelShape:
    """Return a model by its name, in any capitals; UsageError with the nearest names otherwise."""
    if (shape := known(name)) is not None:
        return shape
    names = {spelled.lower(): spelled for spelled in (*NAMED, *published())}
    beginning = [names[lowered] for lowered in names if name and lowered.startswith(name.lower())]
    near = beginning or [names[lowered] for lowered in near_words(name.lower(), names, _CLOSE)]
    shown = name if len(name) <= _MOST_SHOWN else name[: _MOST_SHOWN - 3] + "..."
    if near:
        hint = f"did you mean {' or '.join(near[:3])}? or pass a config.json"
        raise UsageError(f"unknown model {shown!r}", hint)
    raise UsageError(
        f"unknown model {shown!r}",
        "pass a config.json, or a shape as gpt2:num_layers=4,hidden=256; "
        "names: trainrig catalog --models",
    )


_CLOSE = 0.78
"""Likeness from which a name is asked about: whisper is no pegasus, FLUX no bart."""
_MOST_SHOWN = 60


@lru_cache(maxsize=1024)
def known(name: str) -> ModelShape | None:
    """Return a model by its name, in any capitals; None if there is none."""
    wanted = name.lower()
    if (shape := _listed(NAMED, wanted)) is None and wanted in _text().lower():
        return _listed(published(), wanted)  # to parse its file takes longer
    return shape


def _listed(models: Mapping[str, tuple[str, dict[str, Any]]], wanted: str) -> ModelShape | None:
    for name, (family, numbers) in models.items():
        if name.lower() == wanted:
            return custom(family, name=name, **numbers)
    return None


_PATH = Path(__file__).parent / "published_models.toml"
_COLUMNS = ("num_layers", "hidden", "num_heads", "num_kv_heads", "ffn", "vocab")


@cache
def _text() -> str:
    return _PATH.read_text(encoding="utf-8")


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(_text())


def spellings(kind: str) -> dict[str, str]:
    """Names by other ``spellings``, or by their ``families`` alone, from published_models.toml."""
    names: dict[str, str] = _file()[kind]
    return names


def wordlist(kind: str) -> tuple[str, ...]:
    """Words of models' names of one ``kind``: ``towers``, ``stored``."""
    return tuple(_file()["words"][kind])


def hub_names() -> dict[str, str]:
    """Return the repositories on huggingface.co of known models, by their names."""
    names: dict[str, str] = _file()["hub"]
    return names


def table(kind: str) -> dict[str, Any]:
    """Return a table of published_models.toml."""
    content: dict[str, Any] = _file()[kind]
    return content


@cache
def published() -> dict[str, tuple[str, dict[str, Any]]]:
    """Further models: family and numbers by name, from published_models.toml."""
    models = {}
    for name, row in _file()["models"].items():
        sizes, more = row[: len(_COLUMNS)], dict(*row[len(_COLUMNS) :])
        numbers = dict(zip(_COLUMNS, sizes, strict=True))
        window, every = more.pop("window", 0), more.pop("every", 0)
        if window:
            whole = [every > 0 and (layer + 1) % every == 0 for layer in range(sizes[0])]
            numbers["windows"] = tuple(0 if is_whole else window for is_whole in whole)
        family = more.pop("family", "llama")
        models[name] = (family, numbers | more)
    return models
