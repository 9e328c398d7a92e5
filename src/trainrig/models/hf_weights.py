"""Weights to and from Hugging Face: names, layouts, and what is stored twice there.

A weight of ours is made of one or more of theirs: of one as it is, of one transposed (GPT-2 keeps
its matrices the other way round), or of q, k and v, which GPT-2 of ours holds in one matrix head by
head.  Going back undoes it.  Needs no transformers: only the names of its state dict.

Left aside when reading: buffers of old files (masks, position numbers), BERT's pooler and
next-sentence head, and the copies of tied weights, which are written again for the other way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainrig.errors import DataError
from trainrig.models import build
from trainrig.workload.model import ModelShape

State = dict[str, Tensor]


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
        trailing_sizes = whole.shape[1:]
        by_head = whole.view(3, self.heads, -1, *trailing_sizes).transpose(0, 1)
        return by_head.reshape(whole.shape).contiguous()

    def split(self, native: Tensor) -> list[Tensor]:
        if self.heads:
            trailing_sizes = native.shape[1:]
            native = (
                native.view(self.heads, 3, -1, *trailing_sizes)
                .transpose(0, 1)
                .reshape(native.shape)
            )
        parts = native.chunk(len(self.hf))
        if self.transposed and native.ndim == 2:
            parts = tuple(part.t() for part in parts)
        return [part.contiguous() for part in parts]


def from_hugging_face(shape: ModelShape, state: Mapping[str, Tensor]) -> State:
    """Our state dict from theirs (of the model with its language-model head).

    DataError if a weight is missing, left over, or of another shape than ``shape`` says.
    """
    sizes = {name: tensor.shape for name, tensor in state.items()}
    native = build(shape, device="meta").state_dict()
    read = one_by_one(shape, sizes, state.__getitem__)
    return {name: read(name) for name in native}


def one_by_one(
    shape: ModelShape, sizes: Mapping[str, Sequence[int]], get: Callable[[str], Tensor]
) -> Callable[[str], Tensor]:
    """Return a reader of single weights of ours, made of theirs that ``get`` reads by name.

    DataError for the first of ``sizes`` that is not what ``shape`` says; nothing is read for that.
    """
    prefix = _PREFIX.get(shape.family, "")
    cut = 0
    if not any(name.startswith(prefix) for name in sizes):  # the model without its head
        sizes, cut = {prefix + name: size for name, size in sizes.items()}, len(prefix)
    state = build(shape, device="meta").state_dict()
    pairs = {pair.native: pair for pair in _pairs(shape, state)}
    for pair in pairs.values():
        for name, part in zip(pair.hf, pair.split(state[pair.native]), strict=True):
            if name not in sizes:
                raise DataError(f"{shape.name}: the weights have no {name!r}")
            if tuple(sizes[name]) != tuple(part.shape):
                raise DataError(
                    f"{shape.name}: {name} is {tuple(sizes[name])}, "
                    f"the shape asks for {tuple(part.shape)}"
                )
    known = {name for pair in pairs.values() for name in pair.hf} | _copies(shape).keys()
    aside = re.compile(_ASIDE[shape.family])
    extra = [name for name in sizes if name not in known and not aside.search(name)]
    if extra:
        raise DataError(f"{shape.name}: nothing here takes the weight {extra[0]!r}")
    return lambda native: pairs[native].join([get(name[cut:]) for name in pairs[native].hf])


def to_hugging_face(
    shape: ModelShape, state: Mapping[str, Tensor], *, copies: bool = True
) -> State:
    """Their state dict from ours, with the ``copies`` of tied weights that theirs lists."""
    hf: State = {}
    for pair in _pairs(shape, state):
        hf |= zip(pair.hf, pair.split(state[pair.native]), strict=True)
    for copy, source in _copies(shape).items() if copies else ():
        hf[copy] = hf[source]
    return hf


# What a published file may hold besides: buffers, heads that are not built, copies.
_ASIDE = {
    "gpt2": r"\.attn\.(masked_)?bias$",
    "gpt-neo": r"\.attention\.(masked_)?bias$",
    "bert": r"^bert\.pooler\.|^cls\.seq_relationship\.|\.position_ids$|\.token_type_ids$",
    "t5": r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",
    "llama": r"\.rotary_emb\.inv_freq$",
}


def _copies(shape: ModelShape) -> dict[str, str]:
    """Return names in their state dict that are another weight once more."""
    if shape.family == "bert":
        return {
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        }
    if shape.family == "t5":
        copies = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in _T5_STACKS}
        return copies | ({"lm_head.weight": "shared.weight"} if shape.head.tied else {})
    tokens = "model.embed_tokens.weight" if shape.family == "llama" else "transformer.wte.weight"
    return {"lm_head.weight": tokens} if shape.head.tied else {}


_T5_STACKS = ("encoder", "decoder")
_PREFIX = {"gpt2": "transformer.", "gpt-neo": "transformer.", "llama": "model."}

_GPT_ENDS = {
    "tokens": "transformer.wte",
    "positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "blocks": "transformer.h.{number}",
    "norm_1": "ln_1",
    "norm_2": "ln_2",
    "ffn.up": "mlp.c_fc",
    "ffn.down": "mlp.c_proj",
}
_MODULES = {
    "gpt2": _GPT_ENDS | {"attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj"},
    "gpt-neo": _GPT_ENDS
    | {
        "attention.qkv": "attn.attention.q_proj attn.attention.k_proj attn.attention.v_proj",
        "attention.out": "attn.attention.out_proj",
    },
    "bert": {
        "tokens": "bert.embeddings.word_embeddings",
        "positions": "bert.embeddings.position_embeddings",
        "segments": "bert.embeddings.token_type_embeddings",
        "norm": "bert.embeddings.LayerNorm",
        "blocks": "bert.encoder.layer.{number}",
        "attention.q": "attention.self.query",
        "attention.k": "attention.self.key",
        "attention.v": "attention.self.value",
        "attention.out": "attention.output.dense",
        "norm_1": "attention.output.LayerNorm",
        "ffn.up": "intermediate.dense",
        "ffn.down": "output.dense",
        "norm_2": "output.LayerNorm",
        "transform": "cls.predictions.transform.dense",
        "head_norm": "cls.predictions.transform.LayerNorm",
        "head_bias": "cls.predictions.bias",
    },
    "llama": {
        "tokens": "model.embed_tokens",
        "norm": "model.norm",
        "head": "lm_head",
        "blocks": "model.layers.{number}",
        "norm_1": "input_layernorm",
        **{f"attention.{part}": f"self_attn.{part}_proj" for part in "qkv"},
        "attention.out": "self_attn.o_proj",
        "norm_2": "post_attention_layernorm",
        **{f"ffn.{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    },
    "t5": {
        "tokens": "shared",
        "head": "lm_head",
        "bias.buckets": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "encoder_norm": "encoder.final_layer_norm",
        "decoder_bias.buckets": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "norm": "decoder.final_layer_norm",
        "blocks": "encoder.block.{number}.layer",
        "decoder_blocks": "decoder.block.{number}.layer",
        "norm_1": "0.layer_norm",
        **{f"attention.{part}": f"0.SelfAttention.{part}" for part in "qkv"},
        "attention.out": "0.SelfAttention.o",
        "norm_cross": "1.layer_norm",
        **{f"cross.{part}": f"1.EncDecAttention.{part}" for part in "qkv"},
        "cross.out": "1.EncDecAttention.o",
        "norm_2": "{last}.layer_norm",
        "ffn.gate": "{last}.DenseReluDense.wi_0",
        "ffn.up": "{last}.DenseReluDense.{up}",
        "ffn.down": "{last}.DenseReluDense.wo",
    },
}
"""Our modules: theirs; inside a block, what follows its name.  Several are joined in this order."""


def _pairs(shape: ModelShape, names: Iterable[str]) -> Iterator[_Pair]:
    """Yield for each of our weights the names of Hugging Face's that it is made of."""
    modules = _MODULES[shape.family]
    for name in names:
        if name in modules:  # a parameter of the model itself
            yield _Pair(name, (modules[name],))
            continue
        module, _, leaf = name.rpartition(".")
        stack, number, part = _IN_BLOCK.fullmatch(module).groups()  # type: ignore[union-attr]
        hf_modules = (
            f"{modules[stack]}.{hf_module}" if stack else hf_module
            for hf_module in modules[part].split()
        )
        last, up = 2 if stack == "decoder_blocks" else 1, "wi_1" if shape.ffn.gated else "wi"
        hf = tuple(
            f"{hf_module}.{leaf}".format(number=number, last=last, up=up)
            for hf_module in hf_modules
        )
        transposed = shape.family == "gpt2" and bool(stack)
        yield _Pair(
            name, hf, transposed, shape.attention.num_heads if part == "attention.qkv" else 0
        )


_IN_BLOCK = re.compile(r"(?:(\w*blocks)\.(\d+)\.)?(.+)")
