"""A mixture of experts: several feed-forward nets, of which each token goes through a few.

A router's logits say which: the tokens' ``experts_per_token`` most likely, weighed by the softmax
of their logits (Mixtral's rule).  No token is dropped and none is added: the rows of a step are
sorted by expert, each expert multiplies its own, however many, and the results go back to their
tokens.  No loss balances the experts.

Source: Jiang et al. 2024 (Mixtral, arXiv 2401.04088); dropless: Gale et al. 2022 (MegaBlocks).

Letters: N tokens, C width, F width of a net, E experts, k experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable

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

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """(R, C) → (R, C); rows are sorted by expert, of which each has one of ``counts``."""
        gate, up, down = (
            weight.to_local() if hasattr(weight, "to_local") else weight
            for weight in (self.up if self.gate is None else self.gate, self.up, self.down)
        )
        results = []
        for expert, x in enumerate(rows.split(counts)):
            wide = x @ up[expert].t()
            if self.gate is None:
                wide = self.act(wide)
            else:
                wide = self.act(x @ gate[expert].t()) * wide
            results.append(wide @ down[expert].t())
        return torch.cat(results)


class MixtureFeedForward(nn.Module):
    """Each token through its experts.  (B, T, C) → (B, T, C)"""

    def __init__(self, shape: ModelShape, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.per_token = shape.moe.experts_per_token
        self.router = nn.Linear(shape.hidden, shape.moe.num_experts, bias=False)
        self.experts = Experts(shape, act)
        self.exchange: Exchange | None = None
        """How rows reach experts on other ranks and come back."""

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
            results = self.experts(rows, counts.tolist())
        else:
            results = self.exchange(self.experts, rows, counts)
        weighed = results * shares.flatten()[order, None]
        total = torch.zeros_like(tokens, dtype=weighed.dtype).index_add(0, token, weighed)
        return total.view_as(x)
