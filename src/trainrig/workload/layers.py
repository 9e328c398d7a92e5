"""The layers that are measured by themselves: their names, shapes and operations.

The names are those of the published tables, so that a measured case meets a published one.  A
whole layer states batch, seq, hidden, heads and ffn; the named shape gives the rest (activation,
biases, positions).  A part of a BERT layer states its product as the tables do: m tokens, width
k, and n where it is one product.  Operations and FLOPs are those of `blocks`: nothing is counted
a second time here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from trainrig.errors import UsageError
from trainrig.workload.blocks import Step
from trainrig.workload.flops import Op, block_ops
from trainrig.workload.model import ModelShape
from trainrig.workload.operators import Work
from trainrig.workload.presets import named

Case = Mapping[str, str | int | float | bool | None]

LAYERS = {
    "BERT-large layer": ("bert-large", False),
    "GPT-2 medium block": ("gpt2-medium", False),
    "T5-large encoder block": ("t5-large", False),
    "T5-large decoder block": ("t5-large", True),
    "Llama-7B block": ("llama-7B", False),
}
"""Name: the model, and whether it is a block with cross-attention."""

PARTS: dict[str, tuple[str, ...]] = {
    "dense h->4h": ("ffn.up",),
    "dense+GELU": ("ffn.up", "ffn.activation"),
    "FFN": ("ffn.",),
    "attention block": ("attention.",),
}
"""Name: the operations of a BERT layer that it is, by the beginning of their names."""

PASSES = {"forward": "forward", "forward+backward": "training"}
"""Pass of a case: mode of a `Step`."""

MAX_SIZE = 1 << 20
_TOKENS = 128
"""Tokens of a sequence where a part does not depend on it."""


def layer_numbers(layer: str) -> dict[str, int]:
    """hidden, heads and ffn of a layer as its model has them.  UsageError for an unknown one."""
    if layer not in LAYERS:
        raise UsageError(f"unknown layer {layer!r}", "one of: " + ", ".join(LAYERS))
    shape = named(LAYERS[layer][0])
    return {"hidden": shape.hidden, "heads": shape.num_heads, "ffn": shape.ffn}


def layer_shape(case: Case) -> tuple[ModelShape, bool]:
    """The shape that a case means, and whether its decoder block.  UsageError if none fits."""
    layer = str(case.get("layer"))
    if layer in PARTS:
        width = size_of(case, "k")
        heads = size_of(case, "heads") if "heads" in case else 1
        ffn = size_of(case, "n") if "n" in case else 4 * width
        return _with_numbers(named("bert-large"), width, heads, ffn), False
    if layer not in LAYERS:
        known = ", ".join([*LAYERS, *PARTS])
        raise UsageError(f"unknown layer {case.get('layer')!r}", f"one of: {known}")
    name, decoder = LAYERS[layer]
    numbers = (size_of(case, axis) for axis in ("hidden", "heads", "ffn"))
    return _with_numbers(named(name), *numbers), decoder


def layer_tokens(case: Case) -> tuple[int, int]:
    """(batch, seq) of a case.  UsageError where m is no whole number of sequences."""
    if str(case.get("layer")) not in PARTS:
        return size_of(case, "batch_size"), size_of(case, "seq_len")
    tokens = size_of(case, "m")
    seq = size_of(case, "seq_len") if "seq_len" in case else _TOKENS
    if tokens % seq:
        if "seq_len" in case:
            raise UsageError(f"m = {tokens} tokens are no whole number of sequences of {seq}")
        return 1, tokens
    return tokens // seq, seq


def layer_ops(case: Case, attention: str = "fused") -> tuple[Op, ...]:
    """The operations of one call, as model FLOPs count them; ``attention``: fused or plain."""
    shape, decoder = layer_shape(case)
    batch, seq = layer_tokens(case)
    how = str(case.get("pass"))
    if how not in PASSES:
        raise UsageError(f"unknown pass {how!r}", "one of: " + ", ".join(PASSES))
    step = Step(
        batch_size=batch,
        seq_len=seq,
        dtype=str(case["dtype"]),
        mode=PASSES[how],
        attention=attention,
    )
    ops = [op for op in block_ops(shape, step, decoder=decoder) if op.phase != "recompute"]
    wanted = PARTS.get(str(case["layer"]))
    if wanted is None:
        return tuple(ops)
    starts = tuple(f"block.{start}" for start in wanted)
    return tuple(op for op in ops if op.name.startswith(starts))


def layer_work(case: Case) -> Work:
    """FLOPs and counted bytes of one call."""
    ops = layer_ops(case)
    return Work(flops=sum(op.flops for op in ops), num_bytes=sum(op.num_bytes for op in ops))


def size_of(case: Case, axis: str) -> int:
    """A size of a case.  UsageError unless it is a whole number in range."""
    size = case.get(axis)
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_SIZE:
        raise UsageError(f"layer size {axis} = {size!r}", f"a whole number from 1 to {MAX_SIZE}")
    return size


def _with_numbers(shape: ModelShape, hidden: int, heads: int, ffn: int) -> ModelShape:
    if hidden % heads:
        raise UsageError(f"{heads} heads do not divide a width of {hidden}")
    return dataclasses.replace(
        shape,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        ffn=ffn,
    )
