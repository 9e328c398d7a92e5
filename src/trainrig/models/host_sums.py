"""Sums over tokens that torch keeps in bf16 on a host, kept in fp32, as its GPU kernels keep them.

A norm's weight and bias have a summand of their gradient for each token, an embedding's row one for
each time that its token occurs.  On a GPU torch adds them in fp32 and rounds once.  On a host it
rounds after each of them (2.13, `native_layer_norm_backward` and `embedding_dense_backward`): a
norm's bias keeps 0.55 of 1,408 summands of one sign and 0.11 of 11,264, an embedding's row 0.999 of
99.  How much is lost depends on how tokens are spread, so layouts of one model then have different
gradients.  RMSNorm, products and their biases are right.

Here the operation is given fp32 and its result is rounded: the same forward to within a rounding,
and a backward whose sums are fp32's.  For every engine whose ranks train on a host in bf16 or fp16;
on a GPU nothing is changed.

Imports torch alone: drivers use it in their engine's environment.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

_NARROW = (torch.bfloat16, torch.float16)


def apply(model: nn.Module) -> None:
    """Widen each LayerNorm and embedding, in place; not where the forward is another already."""
    for part in model.modules():
        own: Any = part
        if "forward" in vars(part):
            continue
        if type(part) is nn.LayerNorm:
            own.forward = partial(_norm_of, part)
        elif type(part) is nn.Embedding:
            own.forward = partial(_embedding_of, part)


def layer_norm(
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """torch's, of what is narrow in fp32.  (..., C) → (..., C), of the type of ``x``."""
    if not _rounds_each(x):
        return F.layer_norm(x, shape, weight, bias, eps)
    scale, shift = (None if each is None else each.float() for each in (weight, bias))
    return F.layer_norm(x.float(), shape, scale, shift, eps).to(x.dtype)


def embedding(tokens: Tensor, weight: Tensor, *rest: Any, **more: Any) -> Tensor:
    """torch's, of what is narrow in fp32.  (...), (V, C) → (..., C), of the type of ``weight``."""
    if not _rounds_each(weight):
        return F.embedding(tokens, weight, *rest, **more)
    return F.embedding(tokens, weight.float(), *rest, **more).to(weight.dtype)


def _rounds_each(x: Tensor) -> bool:
    return x.dtype in _NARROW and x.device.type == "cpu"


def _norm_of(norm: Any, x: Tensor) -> Tensor:
    return layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _embedding_of(table: Any, tokens: Tensor) -> Tensor:
    return embedding(
        tokens,
        table.weight,
        table.padding_idx,
        table.max_norm,
        table.norm_type,
        table.scale_grad_by_freq,
        table.sparse,
    )
