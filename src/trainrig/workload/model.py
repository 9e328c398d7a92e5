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
from dataclasses import asdict, dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

from trainrig.errors import UsageError
from trainrig.flat_keys import FlatKeys, part
from trainrig.workload.shape_parts import (
    Attention,
    FeedForward,
    LatentAttention,
    Mixture,
    OutputHead,
    PositionEncoding,
    StateLayers,
)

FAMILIES = ("gpt2", "gpt-neo", "bert", "t5", "llama")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
ATTENTIONS = ("auto", "sdpa", "tiles", "plain")
"""Words for how a training computes attention.  sdpa: torch's scaled_dot_product_attention; tiles:
native for short sequences on a CPU (`models.cpu_attention`); plain: every score in memory at once;
auto: tiles where they are faster, sdpa elsewhere."""
FP8_RECIPES = ("rowwise", "tensorwise", "rowwise_with_gw_hp")
"""Scalings of torchao's 8-bit products, by its own names; the first is the usual one."""
WRITTEN_OUT = ("norm", "gelu", "loss")
"""Words of UNFUSED for operations that are written out, one kernel for each line of arithmetic."""
GPU_ONLY = ("chunk", "sdpa", "segments", "omp", "numa")
"""Words of UNFUSED that a GPU's training alone has."""
UNFUSED = (*WRITTEN_OUT, "pad", "clip", "foreach", *GPU_ONLY)
"""Optimizations that a training may leave out, to see what they are worth.

norm, gelu, loss: written out; pad: rows of logits as they come; clip: a pass of its own; foreach:
gradients and weights are copied one by one; chunk: of a compiled model the loss's chunk is not;
sdpa: torch's own order of attention's kernels; segments: the allocator's blocks do not grow; omp:
OMP_NUM_THREADS is not set; numa: ranks are not bound to the processors beside their GPU."""
_MAX = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A transformer in numbers.  Letters in brackets are those of the formulas."""

    name: str
    family: str
    variant: str = ""
    """Model type whose details formulas alone know, in transformers' words; empty: the family's."""
    num_layers: int
    """Blocks; for t5 those of the encoder."""
    num_decoder_layers: int = 0
    """Blocks with cross-attention (t5)."""
    hidden: int
    """Width of the residual stream (h)."""
    vocab: int
    """Tokens that the embedding knows (V)."""
    token_types: int = 0
    """Rows of the segment embedding (bert)."""
    norm_eps: float = 1e-5
    init_std: float = 0.02
    """Standard deviation of fresh weights; for t5 the factor on its own scheme."""
    vectors: int = 0
    """Elements of a block's small vectors besides two norms (norms of queries and keys, further
    norms, sinks, experts' biases), negative where a norm is missing: only counted."""
    end_vectors: int = 0
    """Elements of the small vectors of the final norm and the logits: only counted."""
    attention: Attention = part(Attention)
    latent: LatentAttention = part(LatentAttention)
    state: StateLayers = part(StateLayers)
    ffn: FeedForward = part(FeedForward)
    moe: Mixture = part(Mixture)
    position: PositionEncoding = part(PositionEncoding)
    head: OutputHead = part(OutputHead)

    @classmethod
    def of(cls, **keys: Any) -> ModelShape:
        """Return the shape of flat keys.

        Raises:
            UsageError: The numbers contradict each other.
        """
        return SHAPE_KEYS.make(**keys)

    def replace(self, **keys: Any) -> ModelShape:
        """Return a copy with the values of some flat keys changed.

        Raises:
            UsageError: The numbers contradict each other.
        """
        return SHAPE_KEYS.replace(self, **keys)

    def flat(self) -> dict[str, Any]:
        """Return plain values by flat keys, as JSON has them."""
        return SHAPE_KEYS.flatten(asdict(self))

    def __hash__(self) -> int:
        # Shapes are keys of many caches: a few numbers tell them apart as well as all of them do.
        return hash((self.name, self.num_layers, self.hidden, self.moe.dense_layers))

    def __post_init__(self) -> None:
        _check(self)

    @property
    def causal(self) -> bool:
        """Return whether a token sees only earlier ones (t5: in its decoder)."""
        return self.family != "bert"

    @property
    def positions(self) -> str:
        """Kind of position encoding: learned, relative or rotary."""
        of_family = {"t5": "relative", "llama": "rotary"}.get(self.family, "learned")
        return "relative" if self.attention.memory_segments else of_family

    @property
    def norm_bias(self) -> bool:
        """LayerNorm has a bias; RMSNorm (t5, llama) has not, and subtracts no mean."""
        return self.family not in ("t5", "llama")

    @property
    def expert_width(self) -> int:
        """Width inside one expert."""
        return self.moe.expert_ffn or self.ffn.width

    @property
    def routed_width(self) -> int:
        """Width of what is sent to an expert."""
        return self.moe.expert_hidden or self.hidden

    @property
    def num_logits(self) -> int:
        """Words that logits of a token are computed for."""
        return self.head.shortlist or self.vocab

    @property
    def width_per_token(self) -> int:
        """Width inside all nets of a block that a token goes through."""
        if not self.moe.num_experts:
            return self.ffn.width
        return (self.moe.experts_per_token + self.moe.shared_experts) * self.expert_width

    @property
    def is_only_predicted(self) -> bool:
        """Return whether `models` builds no such network yet, and formulas alone know it.

        The one mixture that it builds is Mixtral's, whose experts have no width of their own.
        """
        mixed = self.moe.expert_ffn or self.moe.shared_experts or self.moe.dense_layers
        return bool(
            mixed
            or self.state.width
            or self.latent.kv_rank
            or self.attention.memory_segments
            or self.variant
        )

    @property
    def softmax_scale(self) -> float:
        """Factor on q·k: 1/√head_dim, but 1 in T5 and GPT-Neo, whose weights absorb it."""
        return 1.0 if self.family in ("t5", "gpt-neo") else float(self.attention.head_dim**-0.5)


SHAPE_KEYS = FlatKeys(
    ModelShape,
    (
        *("name", "family", "num_layers", "num_decoder_layers", "hidden", "num_heads"),
        *("num_kv_heads", "head_dim", "ffn", "vocab", "max_positions", "activation", "gated_ffn"),
        *("tied", "qkv_bias", "out_bias", "ffn_bias", "norm_eps", "init_std", "token_types"),
        *("num_buckets", "max_distance", "scale_logits", "rope_theta", "rope_scaling", "windows"),
        *("memory", "shortlist", "num_experts", "experts_per_token", "expert_ffn"),
        *("shared_experts", "dense_layers", "expert_hidden", "state_width", "state_keys", "ahead"),
        *("expert_groups", "groups_per_token", "kv_rank", "q_rank", "rope_dim", "vectors"),
        *("end_vectors", "variant", "value_dim"),
    ),
)
"""The flat keys of a shape, in the order that JSON has."""


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
"""Limits of each field by itself: numbers also come from a command line, as they are typed."""


def _check(shape: ModelShape) -> None:
    if shape.family not in FAMILIES:
        raise UsageError(f"unknown model family {shape.family!r}", "one of: " + ", ".join(FAMILIES))
    if not _are_whole(_FROM_1(shape), 1) or not _are_whole(_FROM_0(shape), 0):
        _refuse(shape, _FIELDS)
    _refuse(shape, _FIELDS[2:])
    if shape.ffn.activation not in ACTIVATIONS:
        raise UsageError(
            f"{shape.name}: unknown activation {shape.ffn.activation!r}",
            "one of: " + ", ".join(ACTIVATIONS),
        )
    for wrong, reason in _contradictions(shape):
        if wrong:
            raise UsageError(f"{shape.name}: {reason}", "the numbers must fit one another")


def _are_whole(numbers: tuple[object, ...], least: int) -> bool:
    """Return whether all are whole numbers from ``least``: `_is_whole` of many at once."""
    return set(map(type, numbers)) == {int} and min(numbers) >= least and max(numbers) < _MAX  # type: ignore[type-var,operator]


_FROM_1, _FROM_0 = (
    attrgetter(*(SHAPE_KEYS.path(key) for key in keys.split())) for keys, _, _ in _FIELDS[:2]
)


def _refuse(shape: ModelShape, fields: list[tuple[str, Callable[[Any], bool], str]]) -> None:
    """Raise UsageError with the first number that is none by itself."""
    for keys, fits, wanted in fields:
        for key in keys.split():
            if not fits(value := SHAPE_KEYS.get(shape, key)):
                raise UsageError(f"{shape.name}: {key} = {value!r}", wanted)


def _contradictions(shape: ModelShape) -> tuple[tuple[bool, str], ...]:
    kv_heads, heads = shape.attention.num_kv_heads, shape.attention.num_heads
    head_dim, windows = shape.attention.head_dim, shape.attention.windows
    moe, latent, state, position = shape.moe, shape.latent, shape.state, shape.position
    scaling = position.rope_scaling
    one_width = shape.family not in ("t5", "llama")
    return (
        (heads % kv_heads != 0, f"{heads} heads cannot share {kv_heads} heads of keys"),
        (
            kv_heads != heads and shape.family != "llama",
            f"{shape.family} has a head of keys for each head",
        ),
        (
            one_width and heads * head_dim != shape.hidden,
            f"{heads} heads of {head_dim} do not make a width of {shape.hidden}",
        ),
        (
            shape.positions == "rotary" and (head_dim % 2 != 0 or position.rope_theta <= 0),
            "rotary positions turn pairs: head_dim must be even, rope_theta above 0",
        ),
        (
            shape.family == "t5"
            and not (shape.num_decoder_layers > 0 and position.num_buckets > 3),
            "t5 needs decoder layers and at least 4 buckets",
        ),
        (
            shape.family == "t5" and position.max_distance <= position.num_buckets // 2,
            f"max_distance {position.max_distance} leaves no room for "
            f"{position.num_buckets} buckets",
        ),
        (
            scaling is not None and not 0 < scaling.low < scaling.high,
            "rotary scaling needs 0 < low < high",
        ),
        (shape.family == "bert" and shape.token_types < 1, "BERT has segments: token_types"),
        (shape.family == "bert" and not shape.head.tied, "BERT's logits use its token embedding"),
        (shape.family != "t5" and shape.num_decoder_layers != 0, "only t5 has a decoder apart"),
        (moe.num_experts > 0 and shape.family != "llama", "only llama has experts"),
        (
            not min(1, moe.num_experts) <= moe.experts_per_token <= moe.num_experts,
            f"a token cannot go through {moe.experts_per_token} of {moe.num_experts} experts",
        ),
        (
            moe.num_experts == 0 and moe.expert_ffn + moe.shared_experts + moe.dense_layers > 0,
            "expert_ffn, shared_experts and dense_layers are those of a mixture: num_experts",
        ),
        (
            not min(1, moe.expert_groups) <= moe.groups_per_token <= moe.expert_groups,
            f"a token cannot choose {moe.groups_per_token} of {moe.expert_groups} groups",
        ),
        (
            moe.dense_layers >= shape.num_layers,
            f"{moe.dense_layers} dense of {shape.num_layers} layers leave none for experts",
        ),
        (
            (latent.kv_rank > 0) != (latent.value_dim > 0 and latent.rope_dim > 0)
            or latent.rope_dim > head_dim
            or (latent.q_rank > 0 and latent.kv_rank == 0),
            "latent attention has kv_rank, value_dim and a rope_dim within head_dim",
        ),
        (
            state.key_width > 0 and state.width == 0,
            "state_keys are a state's: state_width",
        ),
        (
            bool(windows) and len(windows) != shape.num_layers,
            f"{len(windows)} windows for {shape.num_layers} layers",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKind:
    """Blocks of a model that compute alike."""

    num: int
    """Number of layers of this kind."""
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
    """Return all blocks by kind, in the order in which the kinds are met first."""
    windows = shape.attention.windows or (0,) * shape.num_layers
    counts = Counter((at < shape.moe.dense_layers, window) for at, window in enumerate(windows))
    keeps = shape.state.width > 0
    kinds = [
        BlockKind(num=n, dense=dense, window=window, state=keeps and window > 0)
        for (dense, window), n in counts.items()
    ]
    if shape.num_decoder_layers:
        kinds.append(BlockKind(num=shape.num_decoder_layers, decoder=True))
    return tuple(kinds)


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
    """Parameters that only the logits use: 0 in a tied GPT-2."""

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
    """Return all matrices of one block, in order.

    ``decoder``: of one with cross-attention (t5); ``dense``: of one that has no experts in a
    mixture; ``state``: of one that keeps a state.  ``tp``: one rank's part of heads and columns; a
    head of keys is not cut, but repeated.  Of experts a rank has one of ``ep`` parts, of their
    columns one of ``expert_tp``.
    """
    products: list[Matrix] = []
    for branch in ("attention", "cross") if decoder else ("attention",):
        if state and shape.state.key_width:
            products += _around_state(shape, tp)
        else:
            products += (
                _latent(shape, tp) if shape.latent.kv_rank else _projections(shape, branch, tp)
            )
    h = shape.hidden
    ups = ("gate", "up") if shape.ffn.gated else ("up",)

    def net(
        width: int, copies: int = 1, per_token: int = 1, prefix: str = "", wide: int = h
    ) -> list[Matrix]:
        sizes = [(part, wide, width) for part in ups] + [("down", width, wide)]
        return [
            Matrix("ffn", prefix + p, i, o, shape.ffn.bias, copies, per_token) for p, i, o in sizes
        ]

    if dense or not shape.moe.num_experts:
        return products + net(-(-shape.ffn.width // tp))
    products.append(Matrix("ffn", "router", h, shape.moe.num_experts, has_bias=False))
    num_experts, wide = -(-shape.moe.num_experts // ep), shape.routed_width
    if shape.moe.expert_hidden:
        sizes = (("latent_down", h, wide), ("latent_up", wide, h))
        products += [Matrix("ffn", part, i, o, has_bias=False) for part, i, o in sizes]
    width, per_token = -(-shape.expert_width // expert_tp), max(1, shape.moe.experts_per_token)
    products += net(width, num_experts, per_token, wide=wide)
    if shape.moe.shared_experts:
        products += net(-(-shape.moe.shared_experts * shape.expert_width // tp), prefix="shared_")
    return products


def _projections(shape: ModelShape, branch: str, tp: int) -> list[Matrix]:
    queries = -(-shape.attention.num_heads // tp) * shape.attention.head_dim
    keys = -(-shape.attention.num_kv_heads // tp) * shape.attention.head_dim
    wide = {"q": queries, "k": keys, "v": keys}
    products = [
        Matrix(branch, part, shape.hidden, w, shape.attention.qkv_bias) for part, w in wide.items()
    ]
    if shape.attention.memory_segments:
        products.append(Matrix(branch, "positions", shape.hidden, queries, has_bias=False))
    return [*products, Matrix(branch, "out", queries, shape.hidden, shape.attention.out_bias)]


def _around_state(shape: ModelShape, tp: int) -> list[Matrix]:
    keys, values = -(-shape.state.key_width // tp), -(-shape.state.width // tp)
    wide = {"q": keys, "k": keys, "v": values, "output_gate": values}
    products = [
        Matrix("attention", part, shape.hidden, w, has_bias=False) for part, w in wide.items()
    ]
    return [*products, Matrix("attention", "out", values, shape.hidden, has_bias=False)]


def _latent(shape: ModelShape, tp: int) -> list[Matrix]:
    """Latent attention's: what narrows is whole on each tensor-parallel rank."""
    h, heads = shape.hidden, -(-shape.attention.num_heads // tp)
    sizes = [("q", shape.latent.q_rank or h, heads * shape.attention.head_dim)]
    if shape.latent.q_rank:
        sizes.insert(0, ("q_down", h, shape.latent.q_rank))
    sizes += [
        ("kv_down", h, shape.latent.kv_rank + shape.latent.rope_dim),
        (
            "kv",
            shape.latent.kv_rank,
            heads * (shape.attention.head_dim - shape.latent.rope_dim + shape.latent.value_dim),
        ),
        ("out", heads * shape.latent.value_dim, h),
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
            blocks * matrix.num_parameters
            for blocks, products in kinds
            for matrix in products
            if (matrix.branch == "ffn") is is_ffn
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
    """Return one block, of those with a state and those without the average.

    ``decoder``: one with cross-attention (t5); ``dense``: a mixture's without experts.
    """

    def weights(*, state: bool) -> int:
        products = matrices(shape, decoder=decoder, dense=dense, state=state)
        return sum(matrix.num_parameters for matrix in products)

    share = state_share(shape)
    average = weights(state=False) + round(share * (weights(state=True) - weights(state=False)))
    return average + (3 if decoder else 2) * norm_parameters(shape) + shape.vectors


def state_share(shape: ModelShape) -> float:
    """Share of the blocks whose state has matrices of its own."""
    if not shape.state.key_width:
        return 0.0
    return sum(kind.num for kind in block_kinds(shape) if kind.state) / shape.num_layers


@lru_cache(maxsize=1024)
def expert_parameters(shape: ModelShape) -> int:
    """Return the routed experts of one block of a mixture."""
    return sum(matrix.num_parameters for matrix in matrices(shape) if matrix.copies > 1)


def norm_parameters(shape: ModelShape) -> int:
    """Return a scale, and for LayerNorm a shift, for each element of the width."""
    return shape.hidden * (2 if shape.norm_bias else 1)


def final_norm_parameters(shape: ModelShape) -> int:
    """BERT normalises after each part, so that none is left for the end; T5 ends twice."""
    return {"bert": 0, "t5": 2}.get(shape.family, 1) * norm_parameters(shape)


def _embedding(shape: ModelShape) -> int:
    rows = shape.vocab + shape.token_types
    if shape.positions == "learned":
        rows += shape.position.max_positions
    own_norm = norm_parameters(shape) if shape.family == "bert" else 0
    num_stacks = 2 if shape.family == "t5" else 0
    return (
        rows * shape.hidden
        + own_norm
        + num_stacks * shape.position.num_buckets * shape.attention.num_heads
    )


def _head(shape: ModelShape) -> int:
    logits = 0 if shape.head.tied else shape.vocab * shape.hidden
    if shape.family != "bert":
        return logits
    transform = shape.hidden * (shape.hidden + 1) + norm_parameters(shape)
    return logits + transform + shape.vocab
