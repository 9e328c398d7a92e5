"""Models that are trained: GPT-2, GPT-Neo, BERT, T5 and Llama in plain PyTorch.

    gpt2, bert, t5, llama   one file a family: Attention, Block, Model
    layers                  what they share: attention, feed-forward
    recompute               what blocks keep for backward, and what they compute again
    first_weights           fresh weights by (seed, name), or another training's
    loss                    cross-entropy in chunks, so that the logits never exist whole
    dropout                 what is dropped, the same in every layout
    unfused                 operations written out, to see what their kernels are worth
    hf_weights              weights to and from Hugging Face's names and layouts

A model is built from a `workload.ModelShape` alone and computes what Hugging Face's computes with
the same weights, within rounding.  Nothing is dropped unless `dropout` is applied: today's
pretraining runs without it.  Importing this room imports torch.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from trainrig.errors import UsageError, unknown
from trainrig.models import bert, dropout, gpt2, llama, t5
from trainrig.models import recompute as recomputation
from trainrig.models.first_weights import Given, fill_weights
from trainrig.models.unfused import take_apart
from trainrig.workload.layout.groups import RECOMPUTE
from trainrig.workload.model import ATTENTIONS, ModelShape

__all__ = ["block_inputs", "build", "build_block", "compile_blocks", "dropout", "fill_weights"]

_FILES: dict[str, ModuleType] = {
    "gpt2": gpt2,
    "gpt-neo": gpt2,
    "bert": bert,
    "t5": t5,
    "llama": llama,
}


def build(
    shape: ModelShape,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    recompute: str = "none",
    attention: str = "auto",
    unfused: Collection[str] = (),
    seed: int = 0,
    given: Given | None = None,
) -> nn.Module:
    """Return a model with fresh weights, or with those that are ``given``.

    ``recompute``: none, selective or full (`models.recompute`); ``attention``: one of ATTENTIONS;
    ``unfused``: some of UNFUSED, which are written out (`models.unfused`).
    ``device="meta"``: shapes without memory, no weights.
    """
    if recompute not in RECOMPUTE:
        raise unknown("recompute", recompute, RECOMPUTE)
    _check_attention(attention)
    if shape.is_only_predicted:
        missing_part = "latent attention" if shape.latent.kv_rank else "such a mixture of experts"
        raise UsageError(
            f"{shape.name}: {missing_part} is predicted, not trained yet", "mixtral-small-cpu"
        )
    with torch.device("meta"):
        model = _FILES[shape.family].Model(shape, attention=attention)
        if unfused:
            take_apart(model, unfused, shape.ffn.activation)
        recomputation.apply(model, recompute)
    model.to(dtype)
    if device == "meta":
        return model
    model.to_empty(device=device)
    fill_weights(model, seed, given)
    return model


def _check_attention(attention: str) -> None:
    if attention not in ATTENTIONS:
        raise unknown("attention", attention, ATTENTIONS)


def build_block(
    shape: ModelShape,
    *,
    decoder: bool = False,
    device: str = "cpu",
    attention: str = "auto",
) -> nn.Module:
    """Return one block by itself in fp32, with torch's default weights.

    ``decoder``: t5's, with cross-attention.  UsageError for a family without one.
    """
    _check_attention(attention)
    if decoder and shape.family != "t5":
        raise UsageError(f"{shape.family} has no decoder block apart", "only t5 has")
    family = _FILES[shape.family]
    with torch.device(device):
        block: nn.Module = (family.DecoderBlock if decoder else family.Block)(shape, attention)
    return block


def block_inputs(shape: ModelShape, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, ...]:
    """Return the arguments of a block's forward for hidden states ``x`` (B, T, C).

    ``memory`` (B, S, C): what a t5 decoder block looks at.
    """
    if shape.family == "t5":
        return t5.block_inputs(shape, x, memory)
    return llama.block_inputs(shape, x) if shape.family == "llama" else (x,)


def compile_blocks(model: nn.Module, *, chunk: bool = True, **options: Any) -> None:
    """torch.compile for each block, in place: equal blocks share one compilation.

    And, with ``chunk``, for what a GPU does with a chunk of the head's logits.
    """
    if chunk and hasattr(model, "head_loss"):
        whole: Any = model
        whole.head_loss = partial(model.head_loss, compiled=True)
    for block in recomputation.blocks_of(model):
        block.compile(**options)
