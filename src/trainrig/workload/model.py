"""Model shapes: the numbers that fix a transformer.

A shape says everything that its parameters, FLOPs and bytes follow from, and what its layers
compute (activation, biases, positions), so that `models` builds a network from a shape alone.
It holds no weights and no tokenizer.  `presets` has the known ones.

Parameters are counted exactly, by formula, in the parts that people speak of.  With h the width, a
= heads · head_dim, k = kv_heads · head_dim, f the feed-forward width and V the vocabulary: an
attention has h·a + 2·h·k + a·h weights, a feed-forward network 2·h·f (3·h·f gated), a mixture of E
of them E times that and a router of h·E, an embedding V·h; biases and norms besides.  A tied head
has no weights of its own.  Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) has, with
ranks r of its keys and values and q of its queries, h·q + q·a, h·(r + rotary) and
r·heads·(head_dim − rotary + value_dim) instead of the three.  The masked language model of BERT is
counted with its head's transform and without a pooler, as it is trained.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

from trainrig.errors import UsageError

FAMILIES = ("gpt2", "gpt-neo", "bert", "t5", "llama")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
ATTENTIONS = ("auto", "sdpa", "tiles", "plain")
"""How a training computes attention.  sdpa: torch's scaled_dot_product_attention; tiles: native for
short sequences on a CPU (`models.cpu_attention`); plain: every score in memory at once; auto: tiles
where they are faster, sdpa elsewhere."""
FP8_RECIPES = ("rowwise", "tensorwise", "rowwise_with_gw_hp")
"""How torchao scales products of 8-bit floats, by its own names; the first is the usual one."""
WRITTEN_OUT = ("norm", "gelu", "loss")
"""Of UNFUSED, operations that are written out, one kernel for each line of arithmetic."""
GPU_ONLY = ("chunk", "sdpa", "segments", "omp", "numa")
"""Of UNFUSED, what nothing but a GPU's training has."""
UNFUSED = (*WRITTEN_OUT, "pad", "clip", "foreach", *GPU_ONLY)
"""What a training may leave out of what makes it fast, to see what that is worth.

norm, gelu, loss: written out; pad: rows of logits as they come; clip: a pass of its own; foreach:
gradients and weights are copied one by one; chunk: of a compiled model the loss's chunk is not;
sdpa: torch's own order of attention's kernels; segments: the allocator's blocks do not grow; omp:
OMP_NUM_THREADS is not set; numa: ranks are not bound to the processors beside their GPU."""
_MAX = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3's stretching of the rotary wavelengths beyond the first training length.

    Wavelengths over ``original_positions / low`` are multiplied by ``factor``, those under
    ``original_positions / high`` stay, those between are blended.
    """

    factor: float
    low: float
    high: float
    original_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A transformer in numbers.  Letters in brackets are those of the formulas."""

    name: str
    family: str
    num_layers: int
    """Blocks; for t5 those of the encoder."""
    num_decoder_layers: int = 0
    """Blocks with cross-attention (t5)."""
    hidden: int
    """Width of the residual stream (h)."""
    num_heads: int
    num_kv_heads: int
    """Heads of keys and values; fewer than num_heads is grouped-query attention."""
    head_dim: int
    ffn: int
    """Width inside the feed-forward network; 4h in the classic ones."""
    vocab: int
    """Tokens that the embedding knows (V)."""
    max_positions: int
    """Learned positions, or the length that rotary and relative ones were meant for."""
    activation: str
    gated_ffn: bool = False
    """down(act(gate(x)) * up(x)) instead of down(act(up(x)))."""
    tied: bool = True
    """The logits' matrix is the token embedding."""
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    norm_eps: float = 1e-5
    init_std: float = 0.02
    """Standard deviation of fresh weights; for t5 the factor on its own scheme."""
    token_types: int = 0
    """Rows of the segment embedding (bert)."""
    num_buckets: int = 0
    max_distance: int = 0
    """Relative positions (t5): buckets, and the distance that the last one begins at."""
    scale_logits: bool = False
    """Logits are divided by √h (t5 with a tied embedding)."""
    rope_theta: float = 0.0
    rope_scaling: RopeScaling | None = None
    windows: tuple[int, ...] = ()
    """For each layer, how many tokens it looks back on, 0 = all; empty = all for all."""
    memory: int = 0
    """Segments before its own that attention looks at, each as long, by relative positions (Dai et
    al. 2019, arXiv 1901.02860, section 3): projected anew for each step, without a gradient."""
    shortlist: int = 0
    """Words that a token's logits are of on average, where the softmax is adaptive (Grave et al.
    2017, arXiv 1609.04309): those of its head, and a share of its clusters'; 0: all."""
    num_experts: int = 0
    """Feed-forward nets of a block (E), of width ``ffn`` each; 0: one, and no router (llama)."""
    experts_per_token: int = 0
    """Experts that a token goes through."""
    expert_ffn: int = 0
    """Width inside an expert, where ``ffn`` is that of dense blocks; 0: ``ffn``."""
    shared_experts: int = 0
    """Further experts that all tokens go through."""
    dense_layers: int = 0
    """Blocks of a mixture that have one net of width ``ffn``: the first ones, or some between."""
    expert_hidden: int = 0
    """Width that tokens are narrowed to on their way through routed experts; 0: they are not."""
    state_width: int = 0
    """Width of the values of layers that keep a state instead of keys (Mamba-2's, the gated delta
    rule's): those with a window, which is how deep the state is (elements of a key); 0: none."""
    state_keys: int = 0
    """Width of the queries and of the keys of such layers where they have matrices of their own: to
    queries, keys, values and a gate of the result, and from it; 0: attention's matrices."""
    ahead: int = 0
    """Tokens after the next that Megatron's training predicts, too, each by a block more and logits
    of its own, of shared weights."""
    expert_groups: int = 0
    """Parts of the experts; a token's are chosen within some of them (DeepSeek); 0: anywhere."""
    groups_per_token: int = 0
    """Parts that a token's experts are chosen within."""
    kv_rank: int = 0
    """Width that keys and values are made from (latent attention); 0: from the hidden states."""
    q_rank: int = 0
    """Width that latent attention makes queries from; 0: from the hidden states."""
    rope_dim: int = 0
    """Of latent attention's ``head_dim``, the part that is turned, one for all heads of keys."""
    vectors: int = 0
    """Elements of a block's small vectors besides two norms (norms of queries and keys, further
    norms, sinks, experts' biases), negative where a norm is missing: only counted."""
    end_vectors: int = 0
    """Likewise of the final norm and the logits."""
    variant: str = ""
    """Model type whose details formulas alone know, in transformers' words; empty: the family's."""
    value_dim: int = 0
    """Width of a head of latent attention's values."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def causal(self) -> bool:
        """Whether a token sees only earlier ones (t5: in its decoder)."""
        return self.family != "bert"

    @property
    def positions(self) -> str:
        """How a layer knows the order of its tokens: learned, relative or rotary."""
        of_family = {"t5": "relative", "llama": "rotary"}.get(self.family, "learned")
        return "relative" if self.memory else of_family

    @property
    def norm_bias(self) -> bool:
        """LayerNorm has a bias; RMSNorm (t5, llama) has not, and subtracts no mean."""
        return self.family not in ("t5", "llama")

    @property
    def expert_width(self) -> int:
        """Width inside one expert."""
        return self.expert_ffn or self.ffn

    @property
    def routed_width(self) -> int:
        """Width of what is sent to an expert."""
        return self.expert_hidden or self.hidden

    @property
    def num_logits(self) -> int:
        """Words that logits of a token are computed for."""
        return self.shortlist or self.vocab

    @property
    def width_per_token(self) -> int:
        """Width inside all nets of a block that a token goes through."""
        if not self.num_experts:
            return self.ffn
        return (self.experts_per_token + self.shared_experts) * self.expert_width

    @property
    def is_only_predicted(self) -> bool:
        """Whether `models` builds no such network yet, and formulas alone know it.

        The one mixture that it builds is Mixtral's, whose experts have no width of their own.
        """
        mixed = self.expert_ffn or self.shared_experts or self.dense_layers or self.state_width
        return bool(mixed or self.kv_rank or self.memory or self.variant)

    @property
    def softmax_scale(self) -> float:
        """Factor on q·k: 1/√head_dim, but 1 in T5 and GPT-Neo, whose weights absorb it."""
        return 1.0 if self.family in ("t5", "gpt-neo") else float(self.head_dim**-0.5)


def _is_whole(number: object, least: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and least <= number < _MAX


def _is_real(number: object) -> bool:
    real = isinstance(number, int | float) and not isinstance(number, bool)
    return real and math.isfinite(number)  # type: ignore[arg-type]


_FIELDS: list[tuple[str, Callable[[Any], bool], str]] = [
    (
        "num_layers hidden num_heads num_kv_heads head_dim ffn vocab max_positions",
        lambda n: _is_whole(n, 1),
        "a whole number from 1",
    ),
    (
        "num_decoder_layers token_types num_buckets max_distance num_experts experts_per_token "
        "expert_ffn shared_experts dense_layers expert_hidden state_width state_keys ahead "
        "expert_groups groups_per_token "
        "kv_rank q_rank rope_dim value_dim memory shortlist",
        lambda n: _is_whole(n, 0),
        "a whole number from 0",
    ),
    (
        "gated_ffn tied qkv_bias out_bias ffn_bias scale_logits",
        lambda n: isinstance(n, bool),
        "true or false",
    ),
    ("norm_eps init_std", lambda n: _is_real(n) and n > 0, "a number above 0"),
    ("rope_theta", lambda n: _is_real(n) and n >= 0, "a number from 0"),
    (
        "windows",
        lambda n: isinstance(n, tuple) and all(_is_whole(window, 0) for window in n),
        "a window for each layer",
    ),
]
"""What each field may be by itself: numbers also come from a command line, as they are typed."""


def _check(shape: ModelShape) -> None:
    if shape.family not in FAMILIES:
        raise UsageError(f"unknown model family {shape.family!r}", "one of: " + ", ".join(FAMILIES))
    if not _are_whole(_FROM_1(shape), 1) or not _are_whole(_FROM_0(shape), 0):
        _refuse(shape, _FIELDS)
    _refuse(shape, _FIELDS[2:])
    if shape.activation not in ACTIVATIONS:
        raise UsageError(
            f"{shape.name}: unknown activation {shape.activation!r}",
            "one of: " + ", ".join(ACTIVATIONS),
        )
    for wrong, what in _contradictions(shape):
        if wrong:
            raise UsageError(f"{shape.name}: {what}", "the numbers must fit one another")


def _are_whole(numbers: tuple[object, ...], least: int) -> bool:
    """Whether all are whole numbers from ``least``: `_is_whole` of many at once."""
    return set(map(type, numbers)) == {int} and min(numbers) >= least and max(numbers) < _MAX  # type: ignore[type-var,operator]


_FROM_1, _FROM_0 = (attrgetter(*names.split()) for names, _, _ in _FIELDS[:2])


def _refuse(shape: ModelShape, fields: list[tuple[str, Callable[[Any], bool], str]]) -> None:
    """Raise UsageError with the first number that is none by itself."""
    for names, fits, wanted in fields:
        for name in names.split():
            if not fits(getattr(shape, name)):
                raise UsageError(f"{shape.name}: {name} = {getattr(shape, name)!r}", wanted)


def _contradictions(shape: ModelShape) -> tuple[tuple[bool, str], ...]:
    kv_heads, heads = shape.num_kv_heads, shape.num_heads
    one_width = shape.family not in ("t5", "llama")
    return (
        (heads % kv_heads != 0, f"{heads} heads cannot share {kv_heads} heads of keys"),
        (
            kv_heads != heads and shape.family != "llama",
            f"{shape.family} has a head of keys for each head",
        ),
        (
            one_width and heads * shape.head_dim != shape.hidden,
            f"{heads} heads of {shape.head_dim} do not make a width of {shape.hidden}",
        ),
        (
            shape.positions == "rotary" and (shape.head_dim % 2 != 0 or shape.rope_theta <= 0),
            "rotary positions turn pairs: head_dim must be even, rope_theta above 0",
        ),
        (
            shape.family == "t5" and not (shape.num_decoder_layers > 0 and shape.num_buckets > 3),
            "t5 needs decoder layers and at least 4 buckets",
        ),
        (
            shape.family == "t5" and shape.max_distance <= shape.num_buckets // 2,
            f"max_distance {shape.max_distance} leaves no room for {shape.num_buckets} buckets",
        ),
        (
            shape.rope_scaling is not None
            and not 0 < shape.rope_scaling.low < shape.rope_scaling.high,
            "rotary scaling needs 0 < low < high",
        ),
        (shape.family == "bert" and shape.token_types < 1, "BERT has segments: token_types"),
        (shape.family == "bert" and not shape.tied, "BERT's logits use its token embedding"),
        (shape.family != "t5" and shape.num_decoder_layers != 0, "only t5 has a decoder apart"),
        (shape.num_experts > 0 and shape.family != "llama", "only llama has experts"),
        (
            not min(1, shape.num_experts) <= shape.experts_per_token <= shape.num_experts,
            f"a token cannot go through {shape.experts_per_token} of {shape.num_experts} experts",
        ),
        (
            shape.num_experts == 0
            and shape.expert_ffn + shape.shared_experts + shape.dense_layers > 0,
            "expert_ffn, shared_experts and dense_layers are those of a mixture: num_experts",
        ),
        (
            not min(1, shape.expert_groups) <= shape.groups_per_token <= shape.expert_groups,
            f"a token cannot choose {shape.groups_per_token} of {shape.expert_groups} groups",
        ),
        (
            shape.dense_layers >= shape.num_layers,
            f"{shape.dense_layers} dense of {shape.num_layers} layers leave none for experts",
        ),
        (
            (shape.kv_rank > 0) != (shape.value_dim > 0 and shape.rope_dim > 0)
            or shape.rope_dim > shape.head_dim
            or (shape.q_rank > 0 and shape.kv_rank == 0),
            "latent attention has kv_rank, value_dim and a rope_dim within head_dim",
        ),
        (shape.state_keys > 0 and shape.state_width == 0, "state_keys are a state's: state_width"),
        (
            bool(shape.windows) and len(shape.windows) != shape.num_layers,
            f"{len(shape.windows)} windows for {shape.num_layers} layers",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKind:
    """Blocks of a model that compute alike."""

    num: int
    """How many there are."""
    decoder: bool = False
    """With cross-attention (t5)."""
    dense: bool = False
    """One net instead of a mixture's experts."""
    window: int = 0
    """Tokens that one looks back on, or how deep the state is that it keeps; 0: all."""
    state: bool = False
    """With a state instead of keys."""


@lru_cache(maxsize=1024)
def block_kinds(shape: ModelShape) -> tuple[BlockKind, ...]:
    """All blocks by kind, in the order in which the kinds are met first."""
    windows = shape.windows or (0,) * shape.num_layers
    counts = Counter((at < shape.dense_layers, window) for at, window in enumerate(windows))
    keeps = shape.state_width > 0
    found = [
        BlockKind(num=n, dense=dense, window=window, state=keeps and window > 0)
        for (dense, window), n in counts.items()
    ]
    if shape.num_decoder_layers:
        found.append(BlockKind(num=shape.num_decoder_layers, decoder=True))
    return tuple(found)


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


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix of a block: its product, its parameters and its adapter follow from it."""

    branch: str
    """attention, cross or ffn."""
    part: str
    wide_in: int
    wide_out: int
    has_bias: bool
    copies: int = 1
    """Experts that have one each."""
    copies_per_token: int = 1
    """Experts whose matrix a token is multiplied by."""

    @property
    def num_parameters(self) -> int:
        """Weights and bias."""
        return self.copies * (self.wide_in + self.has_bias) * self.wide_out


def matrices(
    shape: ModelShape,
    *,
    decoder: bool = False,
    dense: bool = False,
    state: bool = False,
    tp: int = 1,
    ep: int = 1,
    expert_tp: int = 1,
) -> list[Matrix]:
    """All matrices of one block, in order.

    ``decoder``: of one with cross-attention (t5); ``dense``: of one that has no experts in a
    mixture; ``state``: of one that keeps a state.  ``tp``: one rank's part of heads and columns; a
    head of keys is not cut, but repeated.  Of experts a rank has one of ``ep`` parts, of their
    columns one of ``expert_tp``.
    """
    found: list[Matrix] = []
    for branch in ("attention", "cross") if decoder else ("attention",):
        if state and shape.state_keys:
            found += _around_state(shape, tp)
        else:
            found += _latent(shape, tp) if shape.kv_rank else _projections(shape, branch, tp)
    h = shape.hidden
    ups = ("gate", "up") if shape.gated_ffn else ("up",)

    def net(
        width: int, copies: int = 1, per_token: int = 1, prefix: str = "", wide: int = h
    ) -> list[Matrix]:
        sizes = [(part, wide, width) for part in ups] + [("down", width, wide)]
        return [
            Matrix("ffn", prefix + p, i, o, shape.ffn_bias, copies, per_token) for p, i, o in sizes
        ]

    if dense or not shape.num_experts:
        return found + net(-(-shape.ffn // tp))
    found.append(Matrix("ffn", "router", h, shape.num_experts, has_bias=False))
    own, wide = -(-shape.num_experts // ep), shape.routed_width
    if shape.expert_hidden:
        sizes = (("latent_down", h, wide), ("latent_up", wide, h))
        found += [Matrix("ffn", part, i, o, has_bias=False) for part, i, o in sizes]
    width, per_token = -(-shape.expert_width // expert_tp), max(1, shape.experts_per_token)
    found += net(width, own, per_token, wide=wide)
    if shape.shared_experts:
        found += net(-(-shape.shared_experts * shape.expert_width // tp), prefix="shared_")
    return found


def _projections(shape: ModelShape, branch: str, tp: int) -> list[Matrix]:
    queries = -(-shape.num_heads // tp) * shape.head_dim
    keys = -(-shape.num_kv_heads // tp) * shape.head_dim
    wide = {"q": queries, "k": keys, "v": keys}
    found = [Matrix(branch, part, shape.hidden, w, shape.qkv_bias) for part, w in wide.items()]
    if shape.memory:
        found.append(Matrix(branch, "positions", shape.hidden, queries, has_bias=False))
    return [*found, Matrix(branch, "out", queries, shape.hidden, shape.out_bias)]


def _around_state(shape: ModelShape, tp: int) -> list[Matrix]:
    keys, values = -(-shape.state_keys // tp), -(-shape.state_width // tp)
    wide = {"q": keys, "k": keys, "v": values, "output_gate": values}
    found = [Matrix("attention", part, shape.hidden, w, has_bias=False) for part, w in wide.items()]
    return [*found, Matrix("attention", "out", values, shape.hidden, has_bias=False)]


def _latent(shape: ModelShape, tp: int) -> list[Matrix]:
    """Latent attention's: what narrows is whole on each tensor-parallel rank."""
    h, heads = shape.hidden, -(-shape.num_heads // tp)
    sizes = [("q", shape.q_rank or h, heads * shape.head_dim)]
    if shape.q_rank:
        sizes.insert(0, ("q_down", h, shape.q_rank))
    sizes += [
        ("kv_down", h, shape.kv_rank + shape.rope_dim),
        ("kv", shape.kv_rank, heads * (shape.head_dim - shape.rope_dim + shape.value_dim)),
        ("out", heads * shape.value_dim, h),
    ]
    return [Matrix("attention", part, i, o, has_bias=False) for part, i, o in sizes]


@lru_cache(maxsize=1024)
def parameters(shape: ModelShape) -> Parameters:
    """Counted as torch counts: each tensor once, tied ones too."""
    plain, crossed = shape.num_layers, shape.num_decoder_layers
    kinds = [
        (kind.num, matrices(shape, decoder=kind.decoder, dense=kind.dense, state=kind.state))
        for kind in block_kinds(shape)
    ]

    def of(is_ffn: bool) -> int:
        return sum(
            blocks * each.num_parameters
            for blocks, found in kinds
            for each in found
            if (each.branch == "ffn") is is_ffn
        )

    num_norms = 2 * plain + 3 * crossed
    return Parameters(
        embedding=_embedding(shape),
        attention=of(False),
        ffn=of(True),
        norms=num_norms * norm_parameters(shape)
        + plain * shape.vectors
        + final_norm_parameters(shape),
        head=_head(shape) + shape.end_vectors,
    )


@lru_cache(maxsize=1024)
def block_parameters(shape: ModelShape, *, decoder: bool = False, dense: bool = False) -> int:
    """One block, of those with a state and those without the average.

    ``decoder``: one with cross-attention (t5); ``dense``: a mixture's without experts.
    """

    def weights(*, state: bool) -> int:
        found = matrices(shape, decoder=decoder, dense=dense, state=state)
        return sum(each.num_parameters for each in found)

    share = state_share(shape)
    average = weights(state=False) + round(share * (weights(state=True) - weights(state=False)))
    return average + (3 if decoder else 2) * norm_parameters(shape) + shape.vectors


def state_share(shape: ModelShape) -> float:
    """Share of the blocks whose state has matrices of its own."""
    if not shape.state_keys:
        return 0.0
    return sum(kind.num for kind in block_kinds(shape) if kind.state) / shape.num_layers


@lru_cache(maxsize=1024)
def expert_parameters(shape: ModelShape) -> int:
    """The routed experts of one block of a mixture."""
    return sum(each.num_parameters for each in matrices(shape) if each.copies > 1)


def norm_parameters(shape: ModelShape) -> int:
    """A scale, and for LayerNorm a shift, for each element of the width."""
    return shape.hidden * (2 if shape.norm_bias else 1)


def final_norm_parameters(shape: ModelShape) -> int:
    """BERT normalises after each part, so that none is left for the end; T5 ends twice."""
    return {"bert": 0, "t5": 2}.get(shape.family, 1) * norm_parameters(shape)


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
