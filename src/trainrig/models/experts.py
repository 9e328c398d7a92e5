"""A mixture of experts: several feed-forward nets, of which each token goes through a few.

A router's logits say which: the tokens' ``experts_per_token`` most likely, weighed by the softmax
of their logits (Mixtral's rule).  No token is dropped and none is added: the rows of a step are
sorted by expert, each expert multiplies its own, however many, and the results go back to their
tokens.  No loss balances the experts.

On an accelerator all experts' products in bf16 are one kernel (`torch.nn.functional.grouped_mm`,
compute capability 8.0 or later), told on the device how many rows each expert has; unverified on
hardware.  Elsewhere one product follows another.

Source: Jiang et al. 2024 (Mixtral, arXiv 2401.04088); dropless: Gale et al. 2022 (MegaBlocks).

Letters: N tokens, C width, F width of a net, E experts, k experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from trainrig.workload.model import ModelShape

Exchange = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Experts(nn.Module):
    """down(act(gate(x)) · up(x)), or down(act(up(x))), of each expert.

    Under expert parallel a rank has some of them: DTensors, split along the first dimension.
    """

    def __init__(self, shape: ModelShape, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        wide = (shape.moe.num_experts, shape.ffn.width, shape.hidden)
        self.gate = nn.Parameter(torch.empty(wide)) if shape.ffn.gated else None
        self.up = nn.Parameter(torch.empty(wide))
        self.down = nn.Parameter(torch.empty(shape.moe.num_experts, shape.hidden, shape.ffn.width))
        self.act = act

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the experts' results.  (R, C), (E) → (R, C)

        ``rows`` are sorted by expert, of which each has one of ``counts``.
        """
        weights: list[Any] = [self.gate, self.up, self.down]
        gate, up, down = (
            weight.to_local() if hasattr(weight, "to_local") else weight for weight in weights
        )
        if has_grouped_products(rows):
            multiply = partial(_grouped, offsets=counts.cumsum(0).to(torch.int32))
        else:  # how many rows an expert has is asked of the device, once a layer
            multiply = partial(_one_by_one, counts=counts.tolist())
        wide = multiply(rows, up)
        wide = self.act(wide) if gate is None else self.act(multiply(rows, gate)) * wide
        return multiply(wide, down)


def has_grouped_products(rows: Tensor) -> bool:
    """Return whether one kernel can multiply all experts' rows: bf16 on an accelerator."""
    return rows.device.type != "cpu" and rows.dtype is torch.bfloat16


def _grouped(rows: Tensor, weight: Tensor, *, offsets: Tensor) -> Tensor:
    """Multiply by `grouped_mm`; ``offsets`` (E) are the ends of the experts' rows."""
    return F.grouped_mm(rows, weight.transpose(-2, -1), offs=offsets)


def _one_by_one(rows: Tensor, weight: Tensor, *, counts: list[int]) -> Tensor:
    pairs = zip(rows.split(counts), weight, strict=True)
    return torch.cat([part @ matrix.t() for part, matrix in pairs])


class MixtureFeedForward(nn.Module):
    """Each token through its experts.  (B, T, C) → (B, T, C)"""

    def __init__(self, shape: ModelShape, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.per_token = shape.moe.experts_per_token
        self.router = nn.Linear(shape.hidden, shape.moe.num_experts, bias=False)
        self.experts = Experts(shape, act)
        self.exchange: Exchange | None = None
        """Function that sends rows to experts on other ranks and returns their results."""

    @torch.compiler.disable  # how many rows an expert has is known on the host alone
    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        shares, chosen = self.router(tokens).float().topk(self.per_token, dim=-1)  # (N, k)
        shares = torch.softmax(shares, dim=-1).to(x.dtype)
        of_rows = chosen.flatten()
        order = of_rows.argsort(stable=True)
        token = order // self.per_token
        rows = tokens[token]
        counts = F.one_hot(of_rows, self.router.out_features).sum(0)
        if self.exchange is None:
            results = self.experts(rows, counts)
        else:
            results = self.exchange(self.experts, rows, counts)
        weighed = results * shares.flatten()[order, None]
        total = torch.zeros_like(tokens, dtype=weighed.dtype).index_add(0, token, weighed)
        return total.view_as(x)
