"""Weights to and from Hugging Face: names, layouts, and what is stored twice there.

A weight of ours is made of one or more of theirs: of one as it is, of one transposed (GPT-2 keeps
its matrices the other way round), or of q, k and v, which GPT-2 of ours holds in one matrix head by
head.  Going back undoes it.  Needs no transformers: only the names of its state dict.

Left aside when reading: buffers of old files (masks, position numbers), BERT's pooler and
next-sentence head, and the copies of tied weights, which are written again for the other way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainrig.errors import DataError
from trainrig.workload.model import ModelShape

State = dict[str, Tensor]
_Rows = Iterator[tuple[Any, ...]]
"""The fields of a _Pair, in order; one name of theirs may stand by itself."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Our weight and the names of theirs that it is made of, in this order."""

    native: str
    hf: tuple[str, ...]
    transposed: bool = False
    heads: int = 0
    """Not 0: theirs are all q, all k, all v; ours is q, k, v for each of so many heads."""

    def join(self, hf: list[Tensor]) -> Tensor:
        whole = torch.cat([t.t() if self.transposed and t.ndim == 2 else t for t in hf])
        if not self.heads:
            return whole.contiguous()
        rest = whole.shape[1:]
        by_head = whole.view(3, self.heads, -1, *rest).transpose(0, 1)
        return by_head.reshape(whole.shape).contiguous()

    def split(self, native: Tensor) -> list[Tensor]:
        if self.heads:
            rest = native.shape[1:]
            native = native.view(self.heads, 3, -1, *rest).transpose(0, 1).reshape(native.shape)
        parts = native.chunk(len(self.hf))
        if self.transposed and native.ndim == 2:
            parts = tuple(part.t() for part in parts)
        return [part.contiguous() for part in parts]


def from_hugging_face(shape: ModelShape, state: Mapping[str, Tensor]) -> State:
    """Our state dict from theirs (of the model with its language-model head).

    DataError if a weight is missing, left over, or of another shape than ``shape`` says.
    """
    state = _with_prefix(shape, state)
    native, used = {}, set()
    for pair in _pairs(shape):
        missing = [name for name in pair.hf if name not in state]
        if missing:
            raise DataError(f"{shape.name}: the weights have no {missing[0]!r}")
        native[pair.native] = pair.join([state[name] for name in pair.hf])
        used |= set(pair.hf)
    known = used | _copies(shape).keys()
    aside = re.compile(_ASIDE[shape.family])
    extra = [name for name in state if name not in known and not aside.search(name)]
    if extra:
        raise DataError(f"{shape.name}: nothing here takes the weight {extra[0]!r}")
    _check_sizes(shape, native)
    return native


def to_hugging_face(shape: ModelShape, state: Mapping[str, Tensor]) -> State:
    """Their state dict from ours, with the copies of tied weights that theirs lists."""
    hf: State = {}
    for pair in _pairs(shape):
        hf |= zip(pair.hf, pair.split(state[pair.native]), strict=True)
    for copy, of in _copies(shape).items():
        hf[copy] = hf[of]
    return hf


def _check_sizes(shape: ModelShape, native: State) -> None:
    from trainrig.models import build

    expected = build(shape, device="meta").state_dict()
    for name, tensor in native.items():
        if tensor.shape != expected[name].shape:
            raise DataError(
                f"{shape.name}: {name} is {tuple(tensor.shape)}, "
                f"the shape asks for {tuple(expected[name].shape)}"
            )


# What a published file may hold besides: buffers, heads that are not built, copies.
_ASIDE = {
    "gpt2": r"\.attn\.(masked_)?bias$",
    "gpt-neo": r"\.attention\.(masked_)?bias$",
    "bert": r"^bert\.pooler\.|^cls\.seq_relationship\.|\.position_ids$|\.token_type_ids$",
    "t5": r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",
    "llama": r"\.rotary_emb\.inv_freq$",
}


def _copies(shape: ModelShape) -> dict[str, str]:
    """Names in their state dict that are another weight once more."""
    if shape.family == "bert":
        return {
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        }
    if shape.family == "t5":
        copies = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in _T5_STACKS}
        return copies | ({"lm_head.weight": "shared.weight"} if shape.tied else {})
    tokens = "model.embed_tokens.weight" if shape.family == "llama" else "transformer.wte.weight"
    return {"lm_head.weight": tokens} if shape.tied else {}


_T5_STACKS = ("encoder", "decoder")
_PREFIX = {"gpt2": "transformer.", "gpt-neo": "transformer.", "llama": "model."}


def _with_prefix(shape: ModelShape, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Some files hold the model without its head, whose names lack the first word."""
    prefix = _PREFIX.get(shape.family, "")
    if any(name.startswith(prefix) for name in state):
        return state
    return {prefix + name: tensor for name, tensor in state.items()}


def _pairs(shape: ModelShape) -> Iterator[_Pair]:
    """All weights of a shape, ours and theirs."""
    family = {"gpt2": _gpt2, "gpt-neo": _gpt_neo, "bert": _bert, "t5": _t5, "llama": _llama}
    for native, hf, *how in family[shape.family](shape):
        names = (hf,) if isinstance(hf, str) else hf
        yield _Pair(native, names, *how)


def _module(native: str, hf: str, *, bias: bool = True, transposed: bool = False) -> _Rows:
    """The weight, and if there is one the bias, of a module that both have."""
    for name in ("weight", "bias") if bias else ("weight",):
        yield f"{native}.{name}", f"{hf}.{name}", transposed


def _gpt2(shape: ModelShape) -> _Rows:
    yield from _gpt_ends(shape)
    for i in range(shape.num_layers):
        native, hf = f"blocks.{i}", f"transformer.h.{i}"
        yield from _module(f"{native}.norm_1", f"{hf}.ln_1")
        for name in ("weight", "bias"):
            qkv = f"{hf}.attn.c_attn.{name}"
            yield f"{native}.attention.qkv.{name}", qkv, True, shape.num_heads
        yield from _module(f"{native}.attention.out", f"{hf}.attn.c_proj", transposed=True)
        yield from _module(f"{native}.norm_2", f"{hf}.ln_2")
        yield from _module(f"{native}.ffn.up", f"{hf}.mlp.c_fc", transposed=True)
        yield from _module(f"{native}.ffn.down", f"{hf}.mlp.c_proj", transposed=True)


def _gpt_neo(shape: ModelShape) -> _Rows:
    yield from _gpt_ends(shape)
    for i in range(shape.num_layers):
        native, hf = f"blocks.{i}", f"transformer.h.{i}"
        attention = f"{hf}.attn.attention"
        yield from _module(f"{native}.norm_1", f"{hf}.ln_1")
        qkv = tuple(f"{attention}.{part}_proj.weight" for part in "qkv")
        yield f"{native}.attention.qkv.weight", qkv, False, shape.num_heads
        yield from _module(f"{native}.attention.out", f"{attention}.out_proj")
        yield from _module(f"{native}.norm_2", f"{hf}.ln_2")
        yield from _module(f"{native}.ffn.up", f"{hf}.mlp.c_fc")
        yield from _module(f"{native}.ffn.down", f"{hf}.mlp.c_proj")


def _gpt_ends(shape: ModelShape) -> _Rows:
    yield "tokens.weight", "transformer.wte.weight"
    yield "positions.weight", "transformer.wpe.weight"
    yield from _module("norm", "transformer.ln_f")
    yield from _head(shape)


def _head(shape: ModelShape) -> _Rows:
    if not shape.tied:
        yield "head.weight", "lm_head.weight"


def _bert(shape: ModelShape) -> _Rows:
    for native, hf in (
        ("tokens", "word_embeddings"),
        ("positions", "position_embeddings"),
        ("segments", "token_type_embeddings"),
    ):
        yield f"{native}.weight", f"bert.embeddings.{hf}.weight"
    yield from _module("norm", "bert.embeddings.LayerNorm")
    for i in range(shape.num_layers):
        native, hf = f"blocks.{i}", f"bert.encoder.layer.{i}"
        for part, name in (("q", "query"), ("k", "key"), ("v", "value")):
            yield from _module(f"{native}.attention.{part}", f"{hf}.attention.self.{name}")
        yield from _module(f"{native}.attention.out", f"{hf}.attention.output.dense")
        yield from _module(f"{native}.norm_1", f"{hf}.attention.output.LayerNorm")
        yield from _module(f"{native}.ffn.up", f"{hf}.intermediate.dense")
        yield from _module(f"{native}.ffn.down", f"{hf}.output.dense")
        yield from _module(f"{native}.norm_2", f"{hf}.output.LayerNorm")
    yield from _module("transform", "cls.predictions.transform.dense")
    yield from _module("head_norm", "cls.predictions.transform.LayerNorm")
    yield "head_bias", "cls.predictions.bias"


def _llama(shape: ModelShape) -> _Rows:
    yield "tokens.weight", "model.embed_tokens.weight"
    yield from _module("norm", "model.norm", bias=False)
    yield from _head(shape)
    for i in range(shape.num_layers):
        native, hf = f"blocks.{i}", f"model.layers.{i}"
        yield from _module(f"{native}.norm_1", f"{hf}.input_layernorm", bias=False)
        for part in "qkv":
            name = f"{hf}.self_attn.{part}_proj"
            yield from _module(f"{native}.attention.{part}", name, bias=shape.qkv_bias)
        out = f"{hf}.self_attn.o_proj"
        yield from _module(f"{native}.attention.out", out, bias=shape.out_bias)
        yield from _module(f"{native}.norm_2", f"{hf}.post_attention_layernorm", bias=False)
        for part in ("gate", "up", "down"):
            name = f"{hf}.mlp.{part}_proj"
            yield from _module(f"{native}.ffn.{part}", name, bias=shape.ffn_bias)


def _t5(shape: ModelShape) -> _Rows:
    yield "tokens.weight", "shared.weight"
    yield from _head(shape)
    for stack, bias, norm in (
        ("encoder", "bias", "encoder_norm"),
        ("decoder", "decoder_bias", "norm"),
    ):
        first = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield f"{bias}.buckets.weight", first
        yield from _module(norm, f"{stack}.final_layer_norm", bias=False)
    for i in range(shape.num_layers):
        yield from _t5_block(shape, f"blocks.{i}", f"encoder.block.{i}.layer", cross=False)
    for i in range(shape.num_decoder_layers):
        yield from _t5_block(shape, f"decoder_blocks.{i}", f"decoder.block.{i}.layer", cross=True)


def _t5_block(shape: ModelShape, native: str, hf: str, *, cross: bool) -> _Rows:
    attentions = [("norm_1", "attention", f"{hf}.0", "SelfAttention")]
    if cross:
        attentions.append(("norm_cross", "cross", f"{hf}.1", "EncDecAttention"))
    for norm, attention, layer, name in attentions:
        yield from _module(f"{native}.{norm}", f"{layer}.layer_norm", bias=False)
        for part, letter in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o")):
            yield f"{native}.{attention}.{part}.weight", f"{layer}.{name}.{letter}.weight"
    last = f"{hf}.{len(attentions)}"
    yield from _module(f"{native}.norm_2", f"{last}.layer_norm", bias=False)
    ups = {"gate": "wi_0", "up": "wi_1"} if shape.gated_ffn else {"up": "wi"}
    for part, name in (ups | {"down": "wo"}).items():
        yield f"{native}.ffn.{part}.weight", f"{last}.DenseReluDense.{name}.weight"
