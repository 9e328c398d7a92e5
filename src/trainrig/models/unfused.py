"""A model's operations written out, one kernel for each line of arithmetic: what fusing is worth.

    norm    LayerNorm and RMSNorm as mean, difference, square, root, quotient, scale
    gelu    a feed-forward net's activation by its formula
    loss    the head's logits whole, in fp32, then maximum, exponentials, sum, logarithm
    pad     the head in chunks, whose rows of logits begin where the last one ends

The numbers are those of the fused kernels, statistics in fp32 as in them.  Attention has its own
word (``attention = "plain"``: softmax over scores that are in memory), and AdamW (``optimizer =
"adamw"``: an operation at a time).  A compiler would fuse them again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from trainrig.models.loss import IGNORED, cross_entropy

_Activation = Callable[[Tensor], Tensor]


def take_apart(model: nn.Module, words: Iterable[str], activation: str) -> None:
    """Take apart what ``words`` name, in place; ``activation``: the model's."""
    words = set(words)
    for module in model.modules():
        layer: Any = module
        if "norm" in words and isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            layer.forward = partial(_norm, module)
        if "gelu" in words and hasattr(module, "act"):
            layer.act = _UNFUSED_ACTIVATIONS[activation]
    whole: Any = model
    if "pad" in words:
        whole.head_loss = partial(cross_entropy, aligned=1)
    if "loss" in words:
        whole.head_loss = head_loss


def _norm(norm: Any, x: Tensor) -> Tensor:
    wide = x.float()
    if isinstance(norm, nn.LayerNorm):
        wide = wide - wide.mean(-1, keepdim=True)
    wide = wide / torch.sqrt((wide * wide).mean(-1, keepdim=True) + norm.eps)
    scaled = wide * norm.weight.float()
    bias = getattr(norm, "bias", None)
    return (scaled if bias is None else scaled + bias.float()).to(x.dtype)


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def _gelu_tanh(x: Tensor) -> Tensor:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + torch.tanh(inner))


def _silu(x: Tensor) -> Tensor:
    return x / (1.0 + torch.exp(-x))


_UNFUSED_ACTIVATIONS: dict[str, _Activation] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": F.relu,  # one kernel in any case
    "silu": _silu,
}


def head_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    reduction: str = "mean",
    **_: Any,
) -> Tensor:
    """`loss.cross_entropy` with all logits in memory, whatever else it is told."""
    logits = F.linear(hidden, weight, bias).flatten(0, -2).float()
    targets = targets.flatten()
    seen = targets != IGNORED
    top = logits.amax(-1, keepdim=True)
    log_sum = (logits - top).exp().sum(-1).log() + top[:, 0]
    chosen = logits.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    total = ((log_sum - chosen) * seen).sum()
    return total / seen.sum() if reduction == "mean" else total
