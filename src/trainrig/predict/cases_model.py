"""Which architecture a row's numbers are: the family that has as many parameters as are printed.

The name decides where it names an architecture (it is what is run); otherwise the numbers do: fewer
heads of keys than heads, or a feed-forward width near 8/3 of the hidden, is a gated Llama; the rest
is a GPT.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from trainrig.errors import UsageError
from trainrig.predict.cases_sizes import whole
from trainrig.workload.model import ModelShape
from trainrig.workload.presets import custom

Row = Mapping[str, str]

_TANH = ("gpt-2", "gpt2", "neo")
"""Models whose GELU is the tanh form, which is written out in Python where nothing fuses it."""
_BERT_MASKED = 0.156
"""Share of the tokens that a masked language model is asked for: 20 of 128, 80 of 512."""


def shape_of(row: Row) -> ModelShape:
    """The shape of a row.  UsageError where numbers are missing or contradict."""
    layers, hidden = whole(row, "layers"), whole(row, "hidden")
    heads = whole(row, "heads", usual_heads(hidden, whole(row, "tp", 1)))
    kv_heads = whole(row, "kv_heads", heads)
    ffn = whole(row, "ffn", 0)
    vocab = whole(row, "vocab", 0)
    name = (row.get("model") or "").strip()
    return _shape(name, layers, hidden, heads, kv_heads, ffn, vocab, whole(row, "seq"))


@lru_cache(maxsize=1024)
def usual_heads(hidden: int, tp: int) -> int:
    """Where heads are not stated: a number that tensor parallel divides, each about 64 wide."""
    fitting = [tp * n for n in range(1, hidden // tp + 1) if hidden % (tp * n) == 0]
    aligned = [n for n in fitting if hidden // n % 8 == 0] or fitting or [1]
    return min(aligned, key=lambda n: abs(hidden / n - 64))


@lru_cache(maxsize=4096)
def _shape(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, seq: int
) -> ModelShape:
    if hidden % heads:
        raise UsageError(f"{heads} heads do not divide a width of {hidden}")
    family = family_of(name, hidden, heads, kv_heads, ffn)
    numbers: dict[str, Any] = {"num_layers": layers, "hidden": hidden, "num_heads": heads}
    if ffn:
        numbers["ffn"] = ffn
    if vocab:
        numbers["vocab"] = vocab
    if family == "gpt2" and not any(word in name.lower() for word in _TANH):
        numbers["activation"] = "gelu"
    if family == "llama":
        numbers["num_kv_heads"] = kv_heads
        if hidden // heads % 2:
            raise UsageError(f"heads of {hidden // heads}: rotary positions turn pairs")
    if family == "t5":
        numbers |= {"num_layers": max(1, layers // 2), "num_decoder_layers": max(1, layers // 2)}
    return custom(family, name=name or None, max_positions=max(seq, 512), **numbers)


def family_of(name: str, hidden: int, heads: int, kv_heads: int, ffn: int) -> str:
    """gpt2, bert, t5 or llama."""
    word = name.lower()
    if any(one in word for one in ("bert", "electra", "vit-")):
        return "bert"
    if any(one in word for one in ("t5", "bart", "enc-dec", "pegasus", "marian")):
        return "t5"
    if any(one in word for one in ("llama", "mistral", "qwen", "gemma", "yi-", "deepseek")):
        return "llama"
    if any(one in word for one in ("gpt", "mpt", "opt-", "bloom", "neox", "pythia", "megatron")):
        return "gpt2"
    gated = ffn and 2.2 < ffn / hidden < 3.9
    return "llama" if gated or kv_heads != heads else "gpt2"


def head_share(row: Row, shape: ModelShape) -> float:
    """Share of the tokens that logits are computed for.

    A fine-tuned encoder has a small head instead; NVIDIA's BERT computes logits for masked
    tokens alone.
    """
    if shape.family != "bert":
        return 1.0
    if (row.get("kind") or "").strip().lower() == "finetune":
        return 0.0
    framework = (row.get("framework") or "").lower()
    return _BERT_MASKED if "deeplearningexamples" in framework.replace(" ", "") else 1.0
