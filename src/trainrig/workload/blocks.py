"""The operations of one block and of the ends of a model, in the order in which they run.

Letters: b batch, s tokens of a sequence, h width, f feed-forward width, a heads, V vocabulary.
Forward, a classic block is 8bsh² (projections) + 4bs²h (scores and values) + 16bsh² (feed-forward,
f = 4h); cross-attention adds one more attention; logits are 2bshV.  These sums follow from the
parts below and are not written down a second time.

A block saves tensors for its backward pass, listed by name, in bytes for one sample.  Each
operation keeps what its derivative needs: a product its inputs, a softmax its result, a GELU its
input, a norm its input, dropout its mask; an addition keeps nothing.  The lists below name these
tensors one by one; their sums are the field's formulas.  For a classic block (f = 4h, half
precision, dropout, fused softmax) they add up to 34sbh + 5as²b bytes, and what selective
recomputation drops is 5as²b (Korthikanti et al. 2022, arXiv 2205.05198, sections 4 and 5); a test
holds that.  The softmax's result is 2as²b, its dropout's mask as²b, the dropped result 2as²b.

What tensor parallelism splits is marked; the rest is whole on each of its ranks, or split along the
sequence with sequence parallelism.  A layout's sizes may be arrays: those of operations then are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from trainrig.workload.adapters import has_adapter
from trainrig.workload.arrays import choose, is_any, larger, nearest, smaller
from trainrig.workload.families import facts_of
from trainrig.workload.layout import Layout
from trainrig.workload.model import Matrix, ModelShape, matrices, state_share
from trainrig.workload.numerics import Numerics
from trainrig.workload.operators import (
    Heads,
    Operator,
    cross_entropy,
    elementwise,
    embedding,
    fused_attention,
    linear,
    norm,
    plain_attention,
    position_scores,
    residual,
    state_kernels,
)


def block(
    shape: ModelShape,
    layout: Layout,
    *,
    decoder: bool = False,
    dense: bool = False,
    half: bool = False,
    window: int = 0,
) -> list[Operator]:
    """Return one block; ``decoder``: t5's, over ``layout.written`` tokens, with cross-attention.

    ``dense``: one of a mixture that has no experts; ``half``: half of the causal scores count;
    ``window``: tokens that a fused attention looks back on (0: all), or how deep a state is.
    Its branches leave the residual stream and are added back: x + f(norm(x)); BERT: norm(x + f(x)).
    """
    seq = layout.batch.written if decoder else layout.part_of_sequence
    tokens: Any = layout.batch.micro * seq
    # What one device's norms and residuals see.
    rows = choose(layout.mesh.sequence_parallel > 0, _share(layout, tokens), tokens)
    parts: list[Operator] = []
    cuts: dict[str, Any] = {
        "tp": layout.mesh.tp,
        "ep": layout.mesh.ep,
        "expert_tp": layout.mesh.expert_tp,
    }
    keeps = window > 0 and shape.state.width > 0
    every = matrices(shape, decoder=decoder, dense=dense, state=keeps, **cuts)
    for branch in ("attention", "cross", "ffn") if decoder else ("attention", "ffn"):
        weights = {matrix.part: matrix for matrix in every if matrix.branch == branch}
        if branch == "ffn":
            # Where an expert is whole, each rank has its own part of the tokens.
            is_split = layout.mesh.expert_tp == layout.mesh.tp
            routed = choose(is_split, tokens, _share(layout, tokens))
            if is_any((most := layout.most_routed(0 if dense else shape.moe.num_experts)) > 1.0):
                routed = nearest(routed * most)
            inside = _feed_forward(weights, tokens, routed, layout.precision.compute)
        else:
            more: dict[str, Any] = {"half": half, "window": window}
            inside = _attention(shape, layout, branch, weights, decoder=decoder, **more)
        normed = norm(f"{branch}.norm", rows, shape.hidden, layout.precision.compute)
        add = residual(f"{branch}.residual", rows * shape.hidden, layout.precision.compute)
        parts += [*inside, add, normed] if shape.family == "bert" else [normed, *inside, add]
    return parts


def _share(layout: Layout, size: Any) -> Any:
    """Return one device's part of ``size`` heads, columns or tokens: at least one."""
    return -(-size // layout.mesh.tp)


def _attention(
    shape: ModelShape,
    layout: Layout,
    branch: str,
    weights: dict[str, Matrix],
    *,
    decoder: bool,
    half: bool,
    window: int,
) -> list[Operator]:
    """In cross-attention, keys and values come from what was read."""
    is_self, dtype = branch == "attention", layout.precision.compute
    segments = 1 + shape.attention.memory_segments
    batch: Any = layout.batch.micro
    seq = layout.batch.written if decoder else layout.part_of_sequence
    read = seq if is_self else layout.batch.seq_len
    rows = {part: batch * (read if part in "kv" else seq) for part in weights}
    rows["positions"] = segments * seq
    *products, out = (_product(matrix, rows[part], dtype) for part, matrix in weights.items())
    queries = weights["q"].wide_out
    keys = weights["k"].wide_out if "k" in weights else shape.latent.rope_dim
    if shape.latent.kv_rank:  # what is narrowed is normalised, and only a part of each head turns
        narrow = shape.latent.q_rank + shape.latent.kv_rank
        products.append(norm("attention.narrow", batch * seq, narrow, dtype))
        queries = queries // shape.attention.head_dim * shape.latent.rope_dim
    if not _apart(shape):  # one matrix for the three, as in `models`
        every, wide = segments * rows["q"], queries + 2 * keys  # the memory's queries, too
        products[:3] = [linear("attention.qkv", every, shape.hidden, wide, dtype)]
    keeps = window > 0 and shape.state.width > 0  # of whose queries and keys nothing turns
    if is_self and shape.positions == "rotary" and not keeps:
        turned = rows["q"] * (queries + keys)
        products.append(elementwise("attention.rotary", "elementwise", turned, dtype, reads=1))
    causal = is_self and shape.causal and (decoder or shape.family != "t5")
    read = segments * read * layout.mesh.cp
    heads = Heads(
        batch=batch,
        queries=seq,
        keys=_looked_at(read, window if causal and layout.kernels.is_flash else 0, half=half),
        num_heads=_share(layout, shape.attention.num_heads),
        num_kv_heads=_share(layout, shape.attention.num_kv_heads),
        # Scores and values count alike: heads of different width as those of their mean.
        head_dim=(shape.attention.head_dim + shape.latent.value_dim) // 2
        if shape.latent.kv_rank
        else shape.attention.head_dim,
        half=causal and half and not shape.attention.memory_segments,
    )
    bias = heads.num_heads * seq * seq if is_self and shape.positions == "relative" else 0
    attend = fused_attention if layout.kernels.is_flash else plain_attention
    if shape.attention.memory_segments:
        bias, attend = 0, plain_attention
        products += position_scores("attention.attend", heads, dtype)
    if keeps:
        name = facts_of(shape).state_kernels
        wide = _share(layout, shape.state.width)
        return [*products, state_kernels(name, batch * seq, wide, window), out]
    return [*products, *attend(f"{branch}.attend", heads, dtype, bias), out]


def _looked_at(keys: int, window: int, *, half: bool) -> int:
    """Keys of an attention, with those that are passed round: as many as make its score's work.

    Of n tokens all but the first w look at w of them: w - w²/2n on average, of which a causal
    attention that is counted by halves has twice as many.
    """
    if not 0 < window < keys:
        return keys
    return max(1, min(keys, round(2.0 * window - window * window / keys))) if half else window


def _feed_forward(weights: dict[str, Matrix], rows: int, routed: int, dtype: str) -> list[Operator]:
    """2·rows·h·f up and as much down, once more up if gated; of each expert of a token.

    A mixture's ``routed`` rows are gathered by expert, and scattered back with their weights; all
    experts are taken to have equally many.  A rank of several has a part of the experts, and for
    those the rows of all of these ranks.
    """
    shared = [matrix for part, matrix in weights.items() if part.startswith("shared_")]
    nets = [matrix for part, matrix in weights.items() if part in ("gate", "up", "down")]
    if "router" not in weights:
        return _net(nets, rows, dtype)
    here = routed * weights["up"].copies_per_token
    sorted_rows = here * weights["up"].wide_in
    route = _product(weights["router"], routed, dtype)
    gather = elementwise("ffn.gather", "elementwise", sorted_rows, dtype, reads=1)
    scatter = elementwise("ffn.scatter", "elementwise", sorted_rows, dtype, reads=2)
    shared_net = _net(shared, rows, dtype) if shared else []
    around = (weights[part] for part in ("latent_down", "latent_up") if part in weights)
    shared_net += [_product(matrix, routed, dtype) for matrix in around]
    return [*shared_net, route, gather, *_net(nets, here, dtype), scatter]


def _net(nets: list[Matrix], rows: int, dtype: str) -> list[Operator]:
    *ups, down = (_product(matrix, rows, dtype) for matrix in nets)
    wide = rows * nets[0].wide_out
    act = elementwise("ffn.activation", "elementwise", wide, dtype, reads=len(ups))
    return [*ups, act, down]


def _product(matrix: Matrix, rows: int, dtype: str) -> Operator:
    name, groups = f"{matrix.branch}.{matrix.part}", matrix.copies
    if is_any(groups > 1):
        groups = smaller(groups, larger(1, rows))
    return linear(name, rows, matrix.wide_in, matrix.wide_out, dtype, groups)


def embed(shape: ModelShape, layout: Layout, seq: int) -> list[Operator]:
    """Return tokens to vectors; learned positions (and BERT's segments and norm) added."""
    dtype = layout.precision.compute
    rows: Any = layout.batch.micro * seq
    elements = rows * shape.hidden
    parts = [embedding("embed.tokens", rows, shape.hidden, dtype)]
    if shape.positions == "learned":
        parts.append(residual("embed.positions", elements, dtype))
    if shape.family == "bert":
        parts += [
            residual("embed.segments", elements, dtype),
            norm("embed.norm", rows, shape.hidden, dtype),
        ]
    return parts


def head(shape: ModelShape, layout: Layout) -> list[Operator]:
    """From the last hidden states to the loss: logits of every token, 2bshV."""
    dtype = layout.precision.compute
    rows: Any = layout.batch.micro * layout.batch.written // layout.mesh.cp
    vocab = _share(layout, shape.num_logits)
    logits = linear("head.logits", rows, shape.hidden, vocab, dtype)
    entropy = cross_entropy(rows, vocab, dtype)
    last = norm("head.norm", rows, shape.hidden, dtype)
    if shape.family != "bert":
        return [last, logits, entropy]
    transform = linear("head.transform", rows, shape.hidden, shape.hidden, dtype)
    act = elementwise("head.activation", "elementwise", rows * shape.hidden, dtype, reads=1)
    return [transform, act, last, logits, entropy]


NONE, CORE, PRODUCTS, HALF, FULL = "none", "core", "products", "half", "full"
LATENT = "latent"
"""Policies: keep everything; all but the scores (Megatron's selective recomputation); results of
products and of attention; of every second product and of attention (torchtitan's); the block's
input alone; latent attention's: all but results of norms, of what widens and of the activation."""


def selective_policy(shape: ModelShape, layout: Layout) -> str:
    """Return the policy by which selective recomputation keeps tensors.

    Of latent attention that is fused, Megatron's drops what its recipes drop (`--recompute-modules
    mla_up_proj layernorm moe_act`; DeepSeek-V3, arXiv 2412.19437, section 3.2.3): its core keeps
    no scores, and the heads that are widened from narrow ones are most of what attention keeps.
    """
    of_megatron = layout.traits.models.recomputes_core and layout.kernels.is_flash
    return LATENT if shape.latent.kv_rank and of_megatron else layout.traits.models.selective


_ALL = frozenset((NONE, CORE, PRODUCTS, FULL, LATENT))
_SAVED = frozenset((NONE, CORE, PRODUCTS, LATENT))  # a result that even latent attention's keeps
_INSIDE = frozenset((NONE, CORE, LATENT))  # what single modules keep that are not run again
_RESULT = frozenset((NONE, CORE, PRODUCTS))  # of a product, and needed by what follows it
_CHEAP = frozenset((NONE, CORE))  # computed again from a product's result
_SCORES = frozenset((NONE,))
_IDLE = frozenset((PRODUCTS,))  # a product's result that no derivative needs, kept all the same
_LATENT = frozenset((LATENT,))
_INPUT = frozenset((PRODUCTS, FULL))  # the block's input where only its copy is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """One tensor that waits for the backward pass."""

    name: str
    num_bytes: float
    """For one sample, unsplit."""
    split: bool
    """Over tensor-parallel ranks; otherwise whole, or split along the sequence."""
    policies: frozenset[str]


def total(items: Iterable[SavedTensor], policy: str, *, split: bool) -> float:
    """Bytes of one sample that ``policy`` keeps, of what tensor parallelism splits or not."""
    return sum(i.num_bytes for i in items if policy in i.policies and i.split == split)


@lru_cache(maxsize=1 << 10)  # all stages of a layout keep the same, and rows of one model
def saved_tensors(
    shape: ModelShape, numerics: Numerics, seq: int, *, decoder: bool = False, read: int = 0
) -> list[SavedTensor]:
    """Return one block over ``seq`` tokens; ``decoder``: with cross-attention to ``read`` tokens.

    Of a mixture with dense blocks, too: each tensor as large as it is on average.
    """
    if shape.moe.dense_layers:
        none = dict.fromkeys(
            ("num_experts", "experts_per_token", "expert_ffn", "shared_experts", "dense_layers"), 0
        )
        dense = shape.replace(**none)
        share = shape.moe.dense_layers / shape.num_layers
        kinds = ((dense, share), (shape.replace(dense_layers=0), 1.0 - share))
        return [
            replace(tensor, num_bytes=weight * tensor.num_bytes)
            for kind, weight in kinds
            for tensor in saved_tensors(kind, numerics, seq)
        ]
    if share := state_share(shape):
        whole = shape.replace(state_keys=0)
        heads = shape.state.width // shape.attention.head_dim
        of_heads = whole.replace(num_heads=heads, num_kv_heads=heads)
        kernels = replace(numerics.kernels, flash=True, repeats_keys=False)
        alone = replace(numerics, kernels=kernels)  # a state has no scores
        of_state = [
            *saved_tensors(of_heads, alone, seq),
            *_saved_by_state(shape, numerics, seq),
        ]
        return [
            replace(tensor, num_bytes=weight * tensor.num_bytes)
            for tensors_of_kind, weight in (
                (of_state, share),
                (saved_tensors(whole, numerics, seq), 1.0 - share),
            )
            for tensor in tensors_of_kind
        ]
    items = _saved_by_branch(shape, numerics, seq, "attention", first=True)
    items += _saved_by_attention(
        shape, numerics, "attention", seq, (1 + shape.attention.memory_segments) * seq
    )
    if (
        shape.attention.memory_segments
    ):  # what is remembered, beside what is new, its queries, and two sums of queries
        wide = shape.attention.memory_segments * (2 * shape.hidden + shape.attention.width)
        wide += 2 * shape.attention.num_heads * shape.attention.head_dim
        items.append(_tp("attention.remembered", numerics.formats.compute * seq * wide, _CHEAP))
    if decoder:
        items += _saved_by_branch(shape, numerics, seq, "cross")
        items += _saved_by_attention(shape, numerics, "cross", seq, read)
    items += _saved_by_branch(shape, numerics, seq, "ffn")
    items += _saved_by_feed_forward(shape, numerics, seq)
    halved = _every_second(shape)
    return [_halved(item) if item.name in halved else item for item in items]


def _halved(item: SavedTensor) -> SavedTensor:
    """Return a tensor that is kept where every second product is, too."""
    return SavedTensor(
        name=item.name, num_bytes=item.num_bytes, split=item.split, policies=item.policies | {HALF}
    )


def _every_second(shape: ModelShape) -> frozenset[str]:
    """Return the tensors kept where every second product is kept, and all attentions."""
    names = {"attention.x"}
    for branch in ("attention", "cross"):
        names |= {f"{branch}.{part}" for part in ("q", "v", "values", "logsumexp")}
    if not _apart(shape):  # one product for q, k and v
        return frozenset(names | {"attention.k", "ffn.up"})
    return frozenset(names | ({"ffn.gate", "ffn.down"} if shape.ffn.gated else {"ffn.up"}))


def _apart(shape: ModelShape) -> bool:
    """Queries, keys and values come from three products."""
    return shape.family not in ("gpt2", "gpt-neo")


def _saved_by_branch(
    shape: ModelShape, numerics: Numerics, seq: int, name: str, *, first: bool = False
) -> list[SavedTensor]:
    """Return residual stream where a branch begins, its norm, and the mask where it is added back.

    RMSNorm written out keeps an fp32 copy and the normalised numbers, and its result.  BERT's norm
    comes after the sum: the same tensors in another order.
    """
    wide, stream = seq * shape.hidden, numerics.formats.residual
    if name == "ffn" and numerics.norms.shared:  # a further copy of the one norm's result
        return [
            _seq("ffn.norm.out", numerics.formats.product_input * wide, _CHEAP)
        ] * numerics.formats.autocast
    written_out = numerics.norms.written_out
    copied = (written_out or numerics.formats.autocast) and stream < 4
    is_layer = first or facts_of(shape).nets_are_layers
    needed = _INPUT if first and copied else _ALL if is_layer else _INSIDE
    readers = 1  # copies of the result: autocast narrows it for each product that reads it
    if numerics.formats.autocast and not numerics.kernels.joins_products:
        if name == "attention" and _apart(shape):
            readers = 3
        elif name == "ffn" and shape.ffn.gated:
            readers = 2
    items = []
    if first or not copied or shape.family == "t5":  # T5's is scaled from what it is itself
        policies = _ALL if first and shape.family == "t5" else needed
        items.append(_seq(f"{name}.x", stream * wide, policies))
    if copied:
        items.append(_seq(f"{name}.norm.fp32", 4 * wide, _CHEAP))
    if written_out and not numerics.adapters.frozen:
        items.append(_seq(f"{name}.norm.scaled", numerics.formats.norm_input * wide, _CHEAP))
    if numerics.norms.outer:  # of the branch's result
        size = (numerics.formats.norm_input + 4) if written_out else numerics.formats.compute
        items.append(_seq(f"{name}.norm.outer", size * wide, _CHEAP))
    items += [
        _seq(f"{name}.norm.out", readers * numerics.formats.product_input * wide, _CHEAP),
        _seq(f"{name}.statistics", 4 * seq * (2 if shape.norm_bias else 1), _CHEAP),
    ]
    if numerics.kernels.dropout:
        items.append(_seq(f"{name}.dropout.mask", wide, _INSIDE))
    return items


def _saved_by_attention(
    shape: ModelShape, numerics: Numerics, name: str, seq: int, read: int
) -> list[SavedTensor]:
    """Queries, keys and values, scores (eager) or their sums (flash), and the result.

    In cross-attention keys and values come from what was read; that itself is kept once for all
    blocks.
    """
    c, wide = numerics.formats.compute, seq * shape.attention.num_heads * shape.attention.head_dim
    keys = c * read * shape.attention.num_kv_heads * shape.attention.head_dim
    values = keys
    items = [
        _tp(
            f"{name}.q",
            c * wide,
            _RESULT if shape.latent.q_rank or not shape.latent.kv_rank else _SAVED,
        )
    ]
    if (
        shape.latent.kv_rank
    ):  # what is narrowed, before and after its norm; heads of keys for all queries
        narrow = c * seq * (shape.latent.q_rank + shape.latent.kv_rank)
        items.append(_seq(f"{name}.narrow", narrow, _SAVED))
        items.append(_seq(f"{name}.narrow.norm", narrow, _RESULT))
        wide, keys = seq * shape.attention.num_heads * shape.latent.value_dim, c * wide
        values = c * wide
    if numerics.norms.heads:
        size = (c if numerics.kernels.fused else numerics.formats.head_norm_input + 4) * (
            wide + keys // c
        )
        items.append(_tp(f"{name}.heads.norm", size, _CHEAP))
    for part, size in ((f"{name}.k", keys), (f"{name}.v", values)):
        items.append(_tp(part, size, _IDLE if numerics.kernels.repeats_keys else _RESULT))
        if numerics.kernels.repeats_keys:
            items.append(_tp(f"{part}.repeated", c * wide, _CHEAP))
    if name == "cross" and numerics.formats.autocast:
        items.append(_seq("cross.memory", 2 * c * read * shape.hidden, _CHEAP))
    copies = (
        2 if numerics.adapters.frozen and numerics.formats.autocast else 1
    )  # by way of the adapters' fp32
    items.append(_tp(f"{name}.values", c * wide, _SAVED))
    items.append(_tp(f"{name}.values.narrowed", (copies - 1) * c * wide, _CHEAP))
    num = 3 if numerics.adapters.targets == "qkv" else 4
    items.append(_seq(f"{name}.adapters", num * c * numerics.adapters.rank * seq, _CHEAP))
    items.append(_seq(f"{name}.out", c * seq * shape.hidden, _IDLE))
    if not numerics.kernels.flash:
        return items + _saved_scores(numerics, name, shape.attention.num_heads * seq * read)
    if numerics.kernels.merges_heads:
        items.append(_tp(f"{name}.merged", c * wide, _CHEAP))
        if numerics.kernels.joins_products:  # values are a part of one tensor
            items.append(_tp(f"{name}.qkv", c * wide + keys, _CHEAP))
    return [*items, _tp(f"{name}.logsumexp", 4 * seq * shape.attention.num_heads, _SAVED)]


def _saved_by_state(shape: ModelShape, numerics: Numerics, seq: int) -> list[SavedTensor]:
    """Return the tensors that a state's layer keeps beside queries, keys, values and result.

    Those three before their activation and the gate; the kernel's result, which is normalised, what
    comes of it, and the gate's sigmoid (MiniMax-01's lightning attention).
    """
    wide = numerics.formats.compute * seq * shape.state.width
    keys = numerics.formats.compute * seq * shape.state.key_width
    before = _tp("attention.state.before", 2 * keys + 2 * wide, _RESULT)
    return [before, _tp("attention.state.gated", 3 * wide, _CHEAP)]


def _saved_scores(numerics: Numerics, name: str, scores: int) -> list[SavedTensor]:
    """Return the tensors kept of as² ``scores``.

    The softmax's result, dropout's mask and its result.
    """
    c = numerics.formats.compute
    items = [
        _tp(f"{name}.scores", c * scores, _IDLE),
        _tp(f"{name}.softmax", numerics.formats.softmax * scores, _SCORES),
    ]
    if numerics.kernels.caps_scores:
        items.append(_tp(f"{name}.capped", c * scores, _SCORES))
    if numerics.kernels.dropout:
        items.append(_tp(f"{name}.softmax.mask", scores, _SCORES))
        items.append(_tp(f"{name}.softmax.dropped", c * scores, _SCORES))
    elif numerics.formats.softmax != c:
        items.append(_tp(f"{name}.softmax.narrow", c * scores, _SCORES))
    return items


def _saved_by_feed_forward(shape: ModelShape, numerics: Numerics, seq: int) -> list[SavedTensor]:
    per_token, c = max(1, shape.moe.experts_per_token), numerics.formats.compute
    wide = seq * shape.width_per_token
    down = _seq("ffn.down", c * per_token * seq * shape.routed_width, _IDLE)
    if shape.ffn.gated:
        items = [_tp("ffn.gate", c * wide, _RESULT), _tp("ffn.up", c * wide, _RESULT)]
        # In 8 bits where products are (`--activation-func-fp8-input-store`; arXiv 2412.19437,
        # section 3.3.3), for they are needed again together with what is recomputed from them.
        narrow = numerics.formats.product_input * wide
        items += [_tp(f"{item.name}.stored", narrow, _LATENT) for item in items]
        if not numerics.kernels.fused:
            items.append(_tp("ffn.activated", c * wide, _CHEAP))
    elif shape.ffn.activation == "relu":  # its result says all
        items = [_tp("ffn.up", c * wide, _IDLE)]
    elif numerics.kernels.gelu_written_out:
        # x·(1 + tanh(…x³))/2: the cube's x, tanh, 1 + tanh in fp32 (autocast widens powers), x/2
        wider = 4 if numerics.formats.autocast else c
        items = [_tp("ffn.gelu", (3 * wider + c) * wide, _CHEAP)]
        items.append(_tp("ffn.up", c * wide, _IDLE))
    else:
        items = [_tp("ffn.up", c * wide, _SAVED)]
    nets = [(per_token, shape.moe.num_experts > 0), (1 * (shape.moe.shared_experts > 0), False)]
    with_adapter = sum(
        num
        for num, routed in nets
        if has_adapter(numerics.adapters.targets, "ffn", "up", is_expert=routed)
    )
    if with_adapter:
        rows = (3 if shape.ffn.gated else 2) * with_adapter * seq
        items.append(_seq("ffn.adapters", c * numerics.adapters.rank * rows, _CHEAP))
    if numerics.kernels.dropout and shape.family == "t5":  # inside the net, too
        items.append(_tp("ffn.dropout.inner", wide, _CHEAP))
        if not shape.ffn.gated:
            items.append(_tp("ffn.dropped", c * wide, _CHEAP))
    if shape.moe.num_experts:  # gathered rows; results by expert, where they are weighed after
        rows = per_token * seq * shape.routed_width
        items.append(_seq("ffn.rows", numerics.formats.product_input * rows, _INSIDE))
        if not numerics.kernels.permuted_probs:
            items.append(_seq("ffn.results", c * rows, _SAVED))
    return [*items, _tp("ffn.activation", numerics.formats.product_input * wide, _CHEAP), down]


def _tp(name: str, num_bytes: float, policies: frozenset[str]) -> SavedTensor:
    return SavedTensor(name=name, num_bytes=num_bytes, split=True, policies=policies)


def _seq(name: str, num_bytes: float, policies: frozenset[str]) -> SavedTensor:
    return SavedTensor(name=name, num_bytes=num_bytes, split=False, policies=policies)
