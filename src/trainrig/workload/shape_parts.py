"""The small types that a `ModelShape` is made of, each about one idea of a transformer.

    attention   heads, their widths and windows
    latent      ranks of latent attention
    state       layers that keep a state instead of keys
    ffn         the feed-forward network of a block
    moe         experts of a mixture, and how tokens choose among them
    position    sizes of the encoding of positions
    head        the matrix that makes logits

Files, options and JSON have flat keys: a field's key is its name, or the ``key`` of its metadata.
Letters in brackets are those of the formulas in `model`.
"""

from __future__ import annotations

from dataclasses import dataclass, field


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
class Attention:
    """Heads of attention, and how far back they look."""

    num_heads: int
    num_kv_heads: int
    """Heads of keys and values; fewer than num_heads is grouped-query attention."""
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    windows: tuple[int, ...] = ()
    """For each layer, how many tokens it looks back on, 0 = all; empty = all for all."""
    memory_segments: int = field(default=0, metadata={"key": "memory"})
    """Segments before its own that attention looks at, each as long, by relative positions (Dai et
    al. 2019, arXiv 1901.02860, section 3): projected anew for each step, without a gradient."""

    @property
    def width(self) -> int:
        """Width of all heads side by side (a)."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all heads of keys side by side (k)."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Ranks and widths of latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    kv_rank: int = 0
    """Width that keys and values are made from; 0: from the hidden states."""
    q_rank: int = 0
    """Width that queries are made from; 0: from the hidden states."""
    rope_dim: int = 0
    """Part of ``head_dim`` that is turned by position, one for all heads of keys."""
    value_dim: int = 0
    """Width of a head of values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayers:
    """Layers that keep a state instead of keys (Mamba-2's, the gated delta rule's).

    They are those with a window, which is how deep the state is (elements of a key).
    """

    width: int = field(default=0, metadata={"key": "state_width"})
    """Width of their values; 0: there are no such layers."""
    key_width: int = field(default=0, metadata={"key": "state_keys"})
    """Width of their queries and keys where they have matrices of their own: to queries, keys,
    values and a gate of the result, and from it; 0: attention's matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """The feed-forward network of a block."""

    width: int = field(metadata={"key": "ffn"})
    """Width inside the network; 4h in the classic ones."""
    activation: str
    gated: bool = field(default=False, metadata={"key": "gated_ffn"})
    """down(act(gate(x)) * up(x)) instead of down(act(up(x)))."""
    bias: bool = field(default=False, metadata={"key": "ffn_bias"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The experts of a mixture, and how tokens choose among them."""

    num_experts: int = 0
    """Feed-forward nets of a block (E), of width ``ffn`` each; 0: one, and no router (llama)."""
    experts_per_token: int = 0
    """Experts that a token goes through."""
    expert_ffn: int = 0
    """Width inside an expert, where the block's ``ffn`` is that of dense blocks; 0: ``ffn``."""
    shared_experts: int = 0
    """Further experts that all tokens go through."""
    dense_layers: int = 0
    """Blocks of a mixture that have one net of width ``ffn``: the first ones, or some between."""
    expert_hidden: int = 0
    """Width that tokens are narrowed to on their way through routed experts; 0: they are not."""
    expert_groups: int = 0
    """Parts of the experts; a token's are chosen within some of them (DeepSeek); 0: anywhere."""
    groups_per_token: int = 0
    """Parts that a token's experts are chosen within."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionEncoding:
    """Sizes of the encoding of positions, of whichever kind `ModelShape.positions` says."""

    max_positions: int
    """Learned positions, or the length that rotary and relative ones were meant for."""
    num_buckets: int = 0
    """Buckets of relative positions (t5)."""
    max_distance: int = 0
    """Distance that the last bucket of relative positions begins at (t5)."""
    rope_theta: float = 0.0
    rope_scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputHead:
    """The matrix that makes logits, and what they are of."""

    tied: bool = True
    """True if the logits' matrix is the token embedding."""
    scale_logits: bool = False
    """Logits are divided by √h (t5 with a tied embedding)."""
    shortlist: int = 0
    """Words that a token's logits are of on average, where the softmax is adaptive (Grave et al.
    2017, arXiv 1609.04309): those of its head, and a share of its clusters'; 0: all."""
    ahead: int = 0
    """Tokens after the next that Megatron's training predicts, too, each by a block more and logits
    of its own, of shared weights."""
