"""How many parameters a shape has: exactly, by formula, in the parts that people speak of.

With h the width, a = heads · head_dim, k = kv_heads · head_dim, f the feed-forward width and V the
vocabulary: an attention has h·a + 2·h·k + a·h weights, a feed-forward network 2·h·f (3·h·f gated),
an embedding V·h; biases and norms besides.  A tied head has no weights of its own.  The masked
language model of BERT is counted with its head's transform and without a pooler, as it is trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainrig.workload.shapes import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters by part, of the whole model."""

    embedding: int
    """Tokens, learned positions, segments and their norm, relative position buckets."""
    attention: int
    ffn: int
    norms: int
    """Norms of the blocks, and the final ones."""
    head: int
    """What only the logits use: 0 in a tied GPT-2."""

    @property
    def total(self) -> int:
        return self.embedding + self.attention + self.ffn + self.norms + self.head


def parameters(shape: ModelShape) -> Parameters:
    """Counted as torch counts: each tensor once, tied ones too."""
    num_blocks = shape.num_layers + shape.num_decoder_layers
    num_attentions = num_blocks + shape.num_decoder_layers  # cross-attention once more
    num_norms = num_attentions + num_blocks + _final_norms(shape)
    return Parameters(
        embedding=_embedding(shape),
        attention=num_attentions * attention_parameters(shape),
        ffn=num_blocks * ffn_parameters(shape),
        norms=num_norms * norm_parameters(shape),
        head=_head(shape),
    )


def block_parameters(shape: ModelShape, *, decoder: bool = False) -> int:
    """One block; ``decoder``: one with cross-attention (t5)."""
    num_attentions = 2 if decoder else 1
    return (
        num_attentions * attention_parameters(shape)
        + ffn_parameters(shape)
        + (num_attentions + 1) * norm_parameters(shape)
    )


def attention_parameters(shape: ModelShape) -> int:
    """Projections to queries, keys and values, and back."""
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    weights = shape.hidden * (queries + 2 * keys) + queries * shape.hidden
    biases = shape.qkv_bias * (queries + 2 * keys) + shape.out_bias * shape.hidden
    return weights + biases


def ffn_parameters(shape: ModelShape) -> int:
    """Up (twice if gated) and down."""
    num_up = 2 if shape.gated_ffn else 1
    biases = shape.ffn_bias * (num_up * shape.ffn + shape.hidden)
    return (num_up + 1) * shape.hidden * shape.ffn + biases


def adapter_parameters(shape: ModelShape, rank: int, *, decoder: bool = False) -> int:
    """Adapters of ``rank`` on all matrices of one block: rank · (wide in + wide out) for each.

    Low-rank adaptation (Hu et al. 2021): W stays, B·A beside it is trained.
    """
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention = 4 * shape.hidden + 2 * queries + 2 * keys
    ffn = (3 if shape.gated_ffn else 2) * (shape.hidden + shape.ffn)
    return rank * ((2 if decoder else 1) * attention + ffn)


def norm_parameters(shape: ModelShape) -> int:
    """A scale, and for LayerNorm a shift, for each element of the width."""
    return shape.hidden * (2 if shape.norm_bias else 1)


def _final_norms(shape: ModelShape) -> int:
    """BERT normalises after each part, so that none is left for the end; T5 ends twice."""
    return {"bert": 0, "t5": 2}.get(shape.family, 1)


def _embedding(shape: ModelShape) -> int:
    rows = shape.vocab + shape.token_types
    if shape.positions == "learned":
        rows += shape.max_positions
    own_norm = norm_parameters(shape) if shape.family == "bert" else 0
    num_stacks = 2 if shape.family == "t5" else 0
    return rows * shape.hidden + own_norm + num_stacks * shape.num_buckets * shape.num_heads


def _head(shape: ModelShape) -> int:
    logits = 0 if shape.tied else shape.vocab * shape.hidden
    if shape.family != "bert":
        return logits
    transform = shape.hidden * (shape.hidden + 1) + norm_parameters(shape)
    return logits + transform + shape.vocab
