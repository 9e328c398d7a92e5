"""The weights of a model one by one: name, size, and what tensor parallelism splits of it.

Sums of parameters are `model.parameters`; whoever cuts weights over ranks needs each by itself,
since a share is rounded up for each: FSDP2 gives a rank ceil(rows / ranks) rows of a tensor (the
first ones; later ranks have fewer, or none) and pads what is exchanged to that on all ranks.  Names
are those of the whole model in `models`, which has no others (tests/unit/workload/test_tensors.py),
in the order in which its forward pass reads them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from trainrig.workload.model import ModelShape, matrices

Cut = Literal[None, 0, 1]
"""The dimension that tensor parallelism splits: rows (columns of the product), columns, none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A tensor of a model."""

    name: str
    dims: tuple[int, ...]
    cut: Cut = None

    def on(self, tp: int, rank: int = 0) -> tuple[int, ...]:
        """Return its size on one of ``tp`` tensor-parallel ranks.

        On the first one it is the largest.
        """
        return tuple(
            rows_of(n, tp, rank) if axis == self.cut else n for axis, n in enumerate(self.dims)
        )

    def of_experts(self, ranks: int) -> Weight:
        """Return the part of a tensor of all experts that one of ``ranks`` has."""
        return replace(self, dims=(self.dims[0] // ranks, *self.dims[1:]))

    def share(self, ranks: int, rank: int = 0, *, tp: int = 1, tp_rank: int = 0) -> int:
        """Elements of one of ``ranks`` that share it by rows; no rank has more than the first."""
        rows, *others = self.on(tp, tp_rank)
        return rows_of(rows, ranks, rank) * math.prod(others)

    def padded(self, ranks: int, *, tp: int = 1, tp_rank: int = 0) -> int:
        """Elements that all-gather and reduce-scatter of these ranks carry for it."""
        return ranks * self.share(ranks, tp=tp, tp_rank=tp_rank)


def rows_of(rows: int, ranks: int, rank: int = 0) -> int:
    """Return the share of ``rows`` of one rank, dealt out in equal parts, rounded up."""
    part = -(-rows // ranks)
    return max(0, min(part, rows - rank * part))


def _linear(name: str, wide_in: int, wide_out: int, bias: bool, cut: Cut) -> list[Weight]:
    weights = [Weight(name=f"{name}.weight", dims=(wide_out, wide_in), cut=cut)]
    if bias:  # of a product whose sum over ranks comes first, it is added once: whole on each
        weights.append(Weight(name=f"{name}.bias", dims=(wide_out,), cut=0 if cut == 0 else None))
    return weights


def _norm(name: str, shape: ModelShape) -> list[Weight]:
    parts = ("weight", "bias") if shape.norm_bias else ("weight",)
    return [Weight(name=f"{name}.{part}", dims=(shape.hidden,)) for part in parts]


def block_tensors(shape: ModelShape, *, decoder: bool = False) -> list[Weight]:
    """Return one block's; ``decoder``: of one with cross-attention (t5)."""
    branches = {"attention": "norm_1", "cross": "norm_cross", "ffn": "norm_2"}
    parts: dict[str, list[Weight]] = {name: [] for name in branches}
    joined = shape.family in ("gpt2", "gpt-neo")
    for matrix in matrices(shape, decoder=decoder):
        weights = parts[matrix.branch]
        name, cut = f"{matrix.branch}.{matrix.part}", 1 if matrix.part in ("out", "down") else 0
        if joined and matrix.part in ("q", "k", "v"):
            if matrix.part == "q":
                wide = 3 * matrix.wide_out
                weights += _linear("attention.qkv", matrix.wide_in, wide, matrix.has_bias, 0)
            continue
        if shape.moe.num_experts and matrix.branch == "ffn" and matrix.part != "router":
            dims = (matrix.copies, matrix.wide_out, matrix.wide_in)
            weights.append(Weight(name=f"ffn.experts.{matrix.part}", dims=dims))
            continue
        split: Cut = None if matrix.part == "router" else 1 if cut else 0
        weights += _linear(name, matrix.wide_in, matrix.wide_out, matrix.has_bias, split)
    ordered: list[Weight] = []
    for branch, norm in branches.items():
        if parts[branch]:  # BERT has its norms behind the sums
            sides = (_norm(norm, shape), parts[branch])
            ordered += [*sides[1], *sides[0]] if shape.family == "bert" else [*sides[0], *sides[1]]
    return ordered


def embedding_tensors(shape: ModelShape) -> list[Weight]:
    """Return the tensors of the first pipeline stage besides blocks."""
    rows = {"tokens": shape.vocab}
    if shape.positions == "learned":
        rows["positions"] = shape.position.max_positions
    if shape.family == "bert":
        rows["segments"] = shape.token_types
    weights = [
        Weight(name=f"{name}.weight", dims=(n, shape.hidden), cut=0 if name == "tokens" else None)
        for name, n in rows.items()
    ]
    if shape.family == "bert":
        weights += _norm("norm", shape)
    if shape.family == "t5":
        weights += [
            Weight(
                name=f"{stack}.buckets.weight",
                dims=(shape.position.num_buckets, shape.attention.num_heads),
                cut=1,
            )
            for stack in ("bias", "decoder_bias")
        ]
    return weights


def head_tensors(shape: ModelShape) -> list[Weight]:
    """Return the tensors of the last pipeline stage besides blocks.

    A tied head's matrix is the embedding.
    """
    if shape.family == "bert":
        weights = _linear("transform", shape.hidden, shape.hidden, True, None)
        return [
            *weights,
            *_norm("head_norm", shape),
            Weight(name="head_bias", dims=(shape.vocab,), cut=0),
        ]
    weights = _norm("norm", shape)
    if shape.family == "t5":
        weights += _norm("encoder_norm", shape)
    if not shape.head.tied:
        weights += _linear("head", shape.hidden, shape.vocab, False, 0)
    return weights


def model_tensors(shape: ModelShape) -> list[Weight]:
    """Return all of a model, each with its whole name."""
    stacks = (("blocks", shape.num_layers), ("decoder_blocks", shape.num_decoder_layers))
    encoder, decoder = (
        [
            replace(weight, name=f"{stack}.{number}.{weight.name}")
            for number in range(num)
            for weight in block_tensors(shape, decoder=stack == "decoder_blocks")
        ]
        for stack, num in stacks
    )
    ends = [*embedding_tensors(shape), *head_tensors(shape)]
    between = [weight for weight in ends if weight.name in _BETWEEN]  # an encoder and its decoder
    first = [weight for weight in embedding_tensors(shape) if weight not in between]
    last = [weight for weight in head_tensors(shape) if weight not in between]
    return [*first, *encoder, *sorted(between, key=_place), *decoder, *last]


_BETWEEN = ("encoder_norm.weight", "decoder_bias.buckets.weight")


def _place(weight: Weight) -> int:
    return _BETWEEN.index(weight.name)
