"""Weights to and from Megatron-Core's names: what lies elsewhere there, and how ranks split it.

Megatron's q, k and v are one matrix by groups of heads: the queries of a group, its key, its value,
then the next group, so that a share of the rows is a share of the heads; GPT-2 of ours has that
order already.  A gated net's gate and up are one matrix, gate first.  The state here is of the
whole model, as one rank without parallelism would hold it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trainrig.models import build
from trainrig.workload.model import ModelShape

State = dict[str, Tensor]

_ENDS = {
    "tokens": "embedding.word_embeddings",
    "positions": "embedding.position_embeddings",
    "norm": "decoder.final_layernorm",
    "head": "output_layer",
}
_LAYER = {
    "norm_1": "input_layernorm",
    "attention.qkv": "self_attention.linear_qkv",
    "attention.out": "self_attention.linear_proj",
    "norm_2": "pre_mlp_layernorm",
    "ffn.up": "mlp.linear_fc1",
    "ffn.down": "mlp.linear_fc2",
}


def to_megatron(shape: ModelShape, state: Mapping[str, Tensor]) -> State:
    """Megatron's state from ours: gpt2 and llama, each weight whole."""
    found: State = {}
    for module, leaf in (name.rpartition(".")[::2] for name in state):
        name = f"{module}.{leaf}"
        if module in _ENDS:
            found[f"{_ENDS[module]}.{leaf}"] = state[name]
            continue
        block, part = _block(module)
        if part in ("attention.k", "attention.v", "ffn.gate"):
            continue  # with q, with up
        weight = state[name]
        if part == "attention.q":
            qkv = [state[f"{block}.attention.{one}.{leaf}"] for one in "qkv"]
            weight, part = _by_group(shape, qkv), "attention.qkv"
        elif part == "ffn.up" and shape.gated_ffn:
            weight = torch.cat([state[f"{block}.ffn.gate.{leaf}"], weight])
        found[f"decoder.layers.{block.partition('.')[2]}.{_LAYER[part]}.{leaf}"] = weight
    return found


def from_megatron(shape: ModelShape, state: Mapping[str, Tensor]) -> State:
    """Our state of Megatron's, the other way round."""
    found: State = {}
    ends = {other: native for native, other in _ENDS.items()}
    layer = {other: native for native, other in _LAYER.items()}
    native = build(shape, device="meta").state_dict()
    for name, weight in state.items():
        module, _, leaf = name.rpartition(".")
        if module in ends:
            found[f"{ends[module]}.{leaf}"] = weight
            continue
        number, _, rest = module.removeprefix("decoder.layers.").partition(".")
        prefix, part = f"blocks.{number}", layer[rest]
        if part == "attention.qkv" and f"{prefix}.attention.q.{leaf}" in native:
            sizes = [shape.num_heads // shape.num_kv_heads * shape.head_dim, *[shape.head_dim] * 2]
            by_group = weight.view(shape.num_kv_heads, sum(sizes), *weight.shape[1:])
            for one, each in zip("qkv", by_group.split(sizes, dim=1), strict=True):
                found[f"{prefix}.attention.{one}.{leaf}"] = each.flatten(0, 1)
        elif part == "ffn.up" and shape.gated_ffn:
            gate, up = weight.chunk(2)
            found |= {f"{prefix}.ffn.gate.{leaf}": gate, f"{prefix}.ffn.up.{leaf}": up}
        else:
            found[f"{prefix}.{part}.{leaf}"] = weight
    return {name: found[name] for name in native if name in found}


def _block(module: str) -> tuple[str, str]:
    """``blocks.3.attention.q`` → ``blocks.3`` and ``attention.q``."""
    first, number, part = module.split(".", 2)
    return f"{first}.{number}", part


def _by_group(shape: ModelShape, qkv: list[Tensor]) -> Tensor:
    groups = [one.view(shape.num_kv_heads, -1, *one.shape[1:]) for one in qkv]
    return torch.cat(groups, dim=1).flatten(0, 1)
