"""Context parallel by Ulysses: each rank has a part of every sequence, attention some of the heads.

All but attention works token by token.  There, an all-to-all exchange of queries, keys and values
gives a rank all tokens of its share of the heads, and one of the result gives the tokens back: four
exchanges forward and four backward a block, each of 1/n of what a rank holds.  It runs wherever
all-to-all does, with any kernel of attention; torch's own ring attention has no kernel for a CPU.

Source: Jacobs et al. 2023 (DeepSpeed-Ulysses, arXiv 2309.14509).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

# Private by its module's name alone: no public function of torch's is differentiable and compiles.
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh

from trainrig.errors import UsageError
from trainrig.models.layers import Stretch


def apply(model: nn.Module, mesh: DeviceMesh) -> None:
    """Let ``model``, or a stage, take this rank's part of the tokens, in place.

    After tensor parallel, which leaves a rank some of the heads.  UsageError for an
    encoder-decoder: what it writes begins with the last token of another rank's part, and its
    biases are of all tokens and heads.
    """
    shape, ranks = model.shape, mesh.size()
    if shape.family == "t5":
        raise UsageError("context parallel of an encoder-decoder (t5) comes later", "--cp 1")
    before: Stretch = model.stretch
    model.stretch = Stretch(part=mesh.get_local_rank(), parts=ranks, spread=before.spread)
    for module in model.modules():
        if hasattr(module, "kernel"):
            module.kernel = partial(_by_heads, module.kernel, mesh.get_group(), ranks)


def _by_heads(
    kernel: Callable[..., Tensor],
    group: Any,
    ranks: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    **how: Any,
) -> Tensor:
    """Return ``kernel`` of all tokens and some heads.

    Q (B, H, T, D), k, v (B, K, T, D) are of some.
    """
    if k.shape[1] % ranks:  # fewer heads of keys than ranks: each is needed by several
        groups = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    q, k, v = (_exchange(t, group, ranks, cut=1, join=2) for t in (q, k, v))
    return _exchange(kernel(q, k, v, **how), group, ranks, cut=2, join=1)


def _exchange(x: Tensor, group: Any, ranks: int, *, cut: int, join: int) -> Tensor:
    """Each rank's share along ``cut`` goes to it; what comes is joined along ``join``."""
    shares = torch.stack(x.chunk(ranks, cut))
    got: Tensor = all_to_all_single_autograd(shares, None, None, group)
    return torch.cat(got.unbind(0), join)
