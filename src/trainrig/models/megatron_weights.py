"""Weights to and from Megatron-Core's names: what lies elsewhere there, and how ranks split it.

Megatron's q, k and v are one matrix by groups of heads: the queries of a group, its key, its value,
then the next group, so that a share of the rows is a share of the heads; GPT-2 of ours has that
order already.  A gated net's gate and up are one matrix, gate first.  The state here is of the
whole model, as one rank without parallelism would hold it.

BERT's norms lie behind the sums, where Megatron-Core's own BERT has none: they have the names of
`trainrig.train.drivers.megatron_bert`, which puts them there, and no checkpoint of Megatron's has
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from trainrig.errors import DataError
from trainrig.models import build
from trainrig.workload.model import ModelShape

State = dict[str, Tensor]

_ENDS = {
    "tokens": "embedding.word_embeddings",
    "positions": "embedding.position_embeddings",
    "norm": "decoder.final_layernorm",
    "head": "output_layer",
}
_BERT_ENDS = {
    "tokens": "embedding.word_embeddings",
    "positions": "embedding.position_embeddings",
    "segments": "embedding.tokentype_embeddings",
    "norm": "embedding.norm",
    "transform": "lm_head.dense",
    "head_norm": "lm_head.layer_norm",
}
_LAYER = {
    "norm_1": "input_layernorm",
    "attention.qkv": "self_attention.linear_qkv",
    "attention.out": "self_attention.linear_proj",
    "norm_2": "pre_mlp_layernorm",
    "ffn.up": "mlp.linear_fc1",
    "ffn.down": "mlp.linear_fc2",
}


_BERT_LAYER = {**_LAYER, "norm_1": "self_attn_bda.norm", "norm_2": "mlp_bda.norm"}


def to_megatron(shape: ModelShape, state: Mapping[str, Tensor]) -> State:
    """Megatron's state from ours: gpt2, llama and bert, each weight whole."""
    megatron_state: State = {}
    is_bert = shape.family == "bert"
    ends, layer = (_BERT_ENDS, _BERT_LAYER) if is_bert else (_ENDS, _LAYER)
    layers = "encoder.layers" if is_bert else "decoder.layers"
    for module, leaf in (name.rpartition(".")[::2] for name in state):
        if not module:  # BERT's head_bias
            megatron_state["output_layer.bias"] = state[leaf]
            continue
        name = f"{module}.{leaf}"
        if module in ends:
            megatron_state[f"{ends[module]}.{leaf}"] = state[name]
            continue
        block, part = _block(module)
        if part in ("attention.k", "attention.v", "ffn.gate"):
            continue  # with q, with up
        weight = state[name]
        if part == "attention.q":
            qkv = [state[f"{block}.attention.{letter}.{leaf}"] for letter in "qkv"]
            weight, part = _by_group(shape, qkv), "attention.qkv"
        elif part == "ffn.up" and shape.ffn.gated:
            weight = torch.cat([state[f"{block}.ffn.gate.{leaf}"], weight])
        megatron_state[f"{layers}.{block.partition('.')[2]}.{layer[part]}.{leaf}"] = weight
    return megatron_state


def from_megatron(shape: ModelShape, state: Mapping[str, Tensor]) -> State:
    """Our state of Megatron's, the other way round."""
    native_state: State = {}
    ends = {other: native for native, other in _ENDS.items()}
    part_names = {other: native for native, other in _LAYER.items()}
    native = build(shape, device="meta").state_dict()
    for name, weight in state.items():
        module, _, leaf = name.rpartition(".")
        if module in ends:
            native_state[f"{ends[module]}.{leaf}"] = weight
            continue
        number, _, name_in_layer = module.removeprefix("decoder.layers.").partition(".")
        prefix, part = f"blocks.{number}", part_names[name_in_layer]
        if part == "attention.qkv" and f"{prefix}.attention.q.{leaf}" in native:
            sizes = [
                shape.attention.num_heads
                // shape.attention.num_kv_heads
                * shape.attention.head_dim,
                *[shape.attention.head_dim] * 2,
            ]
            by_group = weight.view(shape.attention.num_kv_heads, sum(sizes), *weight.shape[1:])
            for letter, rows in zip("qkv", by_group.split(sizes, dim=1), strict=True):
                native_state[f"{prefix}.attention.{letter}.{leaf}"] = rows.flatten(0, 1)
        elif part == "ffn.up" and shape.ffn.gated:
            gate, up = weight.chunk(2)
            native_state |= {f"{prefix}.ffn.gate.{leaf}": gate, f"{prefix}.ffn.up.{leaf}": up}
        else:
            native_state[f"{prefix}.{part}.{leaf}"] = weight
    return {name: native_state[name] for name in native if name in native_state}


def stacked_layers(stored: str, size: Sequence[int]) -> list[tuple[str, int | None]]:
    """Return the names of a distributed checkpoint's tensor ``stored``, and each one's place in it.

    Megatron keeps equal layers in one tensor, their number its first size, and calls a norm by the
    matrix that Transformer Engine fuses it with.
    """
    head, name_in_layer = "decoder.layers.", stored.removeprefix("decoder.layers.")
    if name_in_layer == stored:
        return [(stored, None)]
    number, _, part = name_in_layer.partition(".")
    for fused, alone in _FUSED.items():
        part, name_in_layer = part.replace(fused, alone), name_in_layer.replace(fused, alone)
    if number.isdecimal():
        return [(f"{head}{number}.{part}", None)]
    return [(f"{head}{layer}.{name_in_layer}", layer) for layer in range(size[0] if size else 0)]


def to_distributed(
    shape: ModelShape, state: Mapping[str, Tensor]
) -> tuple[State, dict[str, list[Tensor]]]:
    """Megatron's state as its distributed checkpoints keep it: `stacked_layers` backwards.

    Weights that lie alone, and the layers' of those that lie in one tensor, not copied.
    """
    stacked_state: State = {}
    layers: dict[str, list[Tensor]] = {}
    for name, weight in to_megatron(shape, state).items():
        name_in_layer = name.removeprefix("decoder.layers.")
        if name_in_layer == name:
            stacked_state[name] = weight
        else:
            layers.setdefault(name_in_layer.partition(".")[2], []).append(weight)
    stacks: dict[str, list[Tensor]] = {}
    for part, weights in layers.items():
        for fused, alone in _FUSED.items():
            if part.startswith(alone):
                part = part.replace(alone, fused)  # noqa: PLW2901
        stacks[f"decoder.layers.{part}"] = weights
    return stacked_state, stacks


def extra_states(shape: ModelShape) -> dict[str, list[None]]:
    """Return the extra states that Megatron's layers expect: scales of fp8, all empty.

    Under their keys in a distributed checkpoint, an object a layer.
    """
    names = [f"decoder.layers.{part}" for part in _LAYER.values() if "linear" in part]
    keys = [
        f"{name}._extra_state/shard_{n}_{shape.num_layers}"
        for name in names
        for n in range(shape.num_layers)
    ]
    return {key: [None] for key in [*keys, "output_layer._extra_state/shard_0_1"]}


_FUSED = {
    "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
    "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm.",
}


def one_by_one(
    shape: ModelShape, sizes: Mapping[str, Sequence[int]], get: Callable[[str], Tensor]
) -> Callable[[str], Tensor]:
    """Return a reader of single weights of ours, made of Megatron's that ``get`` reads by name.

    Rows that Megatron adds to a vocabulary are left.  DataError for the first of ``sizes`` that is
    not what ``shape`` says; nothing is read for that.
    """
    made_of: dict[str, str] = {}
    for name, whole in to_megatron(shape, build(shape, device="meta").state_dict()).items():
        size = tuple(sizes.get(name, ()))
        if not size:
            raise DataError(f"{shape.name}: the weights have no {name!r}")
        added = size[0] - whole.shape[0] if name in _BY_TOKEN else 0
        if size[1:] != tuple(whole.shape[1:]) or size[0] != whole.shape[0] + added:
            requested = f"the shape asks for {tuple(whole.shape)}"
            raise DataError(f"{shape.name}: {name} is {size}, {requested}")
        if not 0 <= added < _MOST_ADDED:
            requested = f"the shape asks for a vocabulary of {whole.shape[0]}"
            raise DataError(f"{shape.name}: {name} has {size[0]} rows, {requested}")
        made_of |= dict.fromkeys(from_megatron(shape, {name: whole}), name)

    def read(native: str) -> Tensor:
        whole = get(made_of[native])
        if made_of[native] in _BY_TOKEN:
            whole = whole[: shape.vocab]
        return from_megatron(shape, {made_of[native]: whole})[native]

    return read


_BY_TOKEN = ("embedding.word_embeddings.weight", "output_layer.weight")
_MOST_ADDED = 128 * 64
"""Rows: to a multiple of 128 for each tensor-parallel rank (make_vocab_size_divisible_by)."""


def _block(module: str) -> tuple[str, str]:
    """Return ``blocks.3.attention.q`` → ``blocks.3`` and ``attention.q``."""
    first, number, part = module.split(".", 2)
    return f"{first}.{number}", part


def _by_group(shape: ModelShape, qkv: list[Tensor]) -> Tensor:
    groups = [matrix.view(shape.attention.num_kv_heads, -1, *matrix.shape[1:]) for matrix in qkv]
    return torch.cat(groups, dim=1).flatten(0, 1)
