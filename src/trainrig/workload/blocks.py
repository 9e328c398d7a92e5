"""The operations of one block and of the ends of a model, in the order in which they run.

Letters: b batch, s tokens of a sequence, h width, f feed-forward width, V vocabulary.  Forward, a
classic block is 8bsh² (projections) + 4bs²h (scores and values) + 16bsh² (feed-forward, f = 4h);
cross-attention adds one more attention; logits are 2bshV.  These sums follow from the parts below
and are not written down a second time.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainrig.errors import UsageError
from trainrig.workload.parts import (
    Heads,
    Part,
    cross_entropy,
    elementwise,
    embedding,
    fused_attention,
    linear,
    norm,
    plain_attention,
    residual,
)
from trainrig.workload.primitives import dtype_bytes
from trainrig.workload.shapes import ModelShape

_CHOICES = {
    "mode": ("forward", "training"),
    "causal": ("full", "half"),
    "attention": ("fused", "plain"),
    "recompute": ("none", "selective", "full"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is asked of a model at once."""

    batch: int
    seq: int
    """Tokens of each sequence; for t5 those that the encoder reads."""
    target_seq: int = 0
    """Tokens that t5's decoder writes; 0 = as many as it reads."""
    mode: str = "training"
    """forward, or training: forward, backward and optimizer."""
    dtype: str = "bf16"
    """What is computed in."""
    weights: str = "fp32"
    """What weights, gradients and the optimizer's two moments are kept in."""
    causal: str = "full"
    """Scores of a causal attention counted in full, or half of them."""
    attention: str = "fused"
    """fused: one kernel, no scores in memory; plain: matmul, softmax, matmul."""
    recompute: str = "none"
    """What backward computes a second time: nothing; selective: all but matmuls and attention;
    full: the whole block."""
    tp: int = 1
    """Devices that share each matrix; what is counted is one device's share."""
    sequence_parallel: bool = False
    """Norms, residuals and the embedding are split over the same devices, along the sequence."""

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise UsageError(
                    f"unknown {name} {getattr(self, name)!r}", "one of: " + ", ".join(known)
                )
        for name, least in (("batch", 1), ("seq", 1), ("target_seq", 0), ("tp", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} = {getattr(self, name)}", f"a whole number from {least}")
        dtype_bytes(self.dtype)
        dtype_bytes(self.weights)

    @property
    def written(self) -> int:
        """Tokens of a sequence that logits are computed for."""
        return self.target_seq or self.seq

    def share(self, size: int) -> int:
        """One device's part of ``size`` heads, columns or tokens: at least one."""
        return -(-size // self.tp)

    def rows(self, seq: int) -> int:
        """Tokens that one device's norms and residuals see."""
        return self.share(self.batch * seq) if self.sequence_parallel else self.batch * seq


def block(shape: ModelShape, step: Step, *, decoder: bool = False) -> list[Part]:
    """One block; ``decoder``: t5's, over ``step.written`` tokens, with cross-attention."""
    seq = step.written if decoder else step.seq
    rows, dtype = step.rows(seq), step.dtype
    parts = _branch(shape, "attention", _self_attention(shape, step, seq, decoder), rows, dtype)
    if decoder:
        parts += _branch(shape, "cross", _cross_attention(shape, step), rows, dtype)
    inside = feed_forward(shape, step.batch * seq, step.share(shape.ffn), dtype)
    return parts + _branch(shape, "ffn", inside, rows, dtype)


def _branch(shape: ModelShape, name: str, parts: list[Part], rows: int, dtype: str) -> list[Part]:
    """What leaves the residual stream and is added back: x + f(norm(x)); BERT: norm(x + f(x))."""
    normed = norm(f"{name}.norm", rows, shape.hidden, dtype)
    add = residual(f"{name}.residual", rows * shape.hidden, dtype)
    return [*parts, add, normed] if shape.family == "bert" else [normed, *parts, add]


def _self_attention(shape: ModelShape, step: Step, seq: int, decoder: bool) -> list[Part]:
    rows, dtype = step.batch * seq, step.dtype
    causal = shape.causal and (decoder or shape.family != "t5")
    queries, keys = _widths(shape, step)
    heads = _heads(shape, step, seq, seq, half=causal and step.causal == "half")
    if shape.family in ("gpt2", "gpt-neo"):  # one matrix for the three, as in `models`
        parts = [linear("attention.qkv", rows, shape.hidden, queries + 2 * keys, dtype)]
    else:
        sizes = {"q": queries, "k": keys, "v": keys}
        parts = [
            linear(f"attention.{name}", rows, shape.hidden, size, dtype)
            for name, size in sizes.items()
        ]
    if shape.positions == "rotary":
        turned = rows * (queries + keys)
        parts.append(elementwise("attention.rotary", "elementwise", turned, dtype, reads=1))
    bias = step.share(shape.num_heads) * seq * seq if shape.positions == "relative" else 0
    parts += _attend("attention", heads, step, bias)
    return [*parts, linear("attention.out", rows, queries, shape.hidden, dtype)]


def _cross_attention(shape: ModelShape, step: Step) -> list[Part]:
    """Queries of what is written, keys and values of what was read."""
    written, read, dtype = step.batch * step.written, step.batch * step.seq, step.dtype
    queries, keys = _widths(shape, step)
    heads = _heads(shape, step, step.written, step.seq, half=False)
    return [
        linear("cross.q", written, shape.hidden, queries, dtype),
        linear("cross.k", read, shape.hidden, keys, dtype),
        linear("cross.v", read, shape.hidden, keys, dtype),
        *_attend("cross", heads, step, 0),
        linear("cross.out", written, queries, shape.hidden, dtype),
    ]


def _widths(shape: ModelShape, step: Step) -> tuple[int, int]:
    """Columns of the queries, and of the keys: a head of keys is not cut, but repeated."""
    heads, kv_heads = step.share(shape.num_heads), step.share(shape.num_kv_heads)
    return heads * shape.head_dim, kv_heads * shape.head_dim


def _heads(shape: ModelShape, step: Step, queries: int, keys: int, *, half: bool) -> Heads:
    return Heads(
        batch=step.batch,
        queries=queries,
        keys=keys,
        num_heads=step.share(shape.num_heads),
        num_kv_heads=step.share(shape.num_kv_heads),
        head_dim=shape.head_dim,
        half=half,
    )


def _attend(name: str, heads: Heads, step: Step, bias: int) -> list[Part]:
    attention = fused_attention if step.attention == "fused" else plain_attention
    return attention(f"{name}.attend", heads, step.dtype, bias)


def feed_forward(shape: ModelShape, rows: int, ffn: int, dtype: str) -> list[Part]:
    """2·rows·h·f up and as much down, once more up if gated; ``ffn``: one device's share of f."""
    ups = ["ffn.gate", "ffn.up"] if shape.gated_ffn else ["ffn.up"]
    return [
        *(linear(name, rows, shape.hidden, ffn, dtype) for name in ups),
        elementwise("ffn.activation", "elementwise", rows * ffn, dtype, reads=len(ups)),
        linear("ffn.down", rows, ffn, shape.hidden, dtype),
    ]


def embed(shape: ModelShape, batch: int, seq: int, dtype: str) -> list[Part]:
    """Tokens to vectors; learned positions (and BERT's segments and norm) added."""
    rows, elements = batch * seq, batch * seq * shape.hidden
    parts = [embedding("embed.tokens", rows, shape.hidden, dtype)]
    if shape.positions == "learned":
        parts.append(residual("embed.positions", elements, dtype))
    if shape.family == "bert":
        parts += [
            residual("embed.segments", elements, dtype),
            norm("embed.norm", rows, shape.hidden, dtype),
        ]
    return parts


def head(shape: ModelShape, step: Step) -> list[Part]:
    """From the last hidden states to the loss: logits of every token, 2bshV."""
    rows, dtype, vocab = step.batch * step.written, step.dtype, step.share(shape.vocab)
    logits = linear("head.logits", rows, shape.hidden, vocab, dtype)
    entropy = cross_entropy(rows, vocab, dtype)
    last = norm("head.norm", rows, shape.hidden, dtype)
    if shape.family != "bert":
        return [last, logits, entropy]
    transform = linear("head.transform", rows, shape.hidden, shape.hidden, dtype)
    act = elementwise("head.activation", "elementwise", rows * shape.hidden, dtype, reads=1)
    return [transform, act, last, logits, entropy]
