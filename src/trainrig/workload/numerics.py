"""How a framework and its kernels hold numbers: bytes of each, and what is written out or fused.

`Layout` says precision, framework, kernel stack and optimizer in words; this says what follows from
the words for memory.  Three schemes of mixed precision:

    masters    weights in the narrow type, fp32 copies of them for the optimizer
               (Megatron, DeepSpeed, our own)
    autocast   weights in fp32, narrowed when they are used (torch's amp); norms, softmax and the
               residual stream stay in fp32; each product narrows its inputs anew
    pure       all in the narrow type, the optimizer's moments too

Sources: Micikevicius et al. 2018 (masters); torch's autocast op lists; Rajbhandari et al. 2020,
section 3.1 (16 bytes a parameter); Megatron-Core's table for its distributed optimizer (18 and 20).

A trained parameter holds weight, gradient, master copy and the optimizer's moments.  One table for
all frameworks.  A number is bytes for a parameter; beside it stands the ZeRO stage from which it is
sharded over data parallel (Rajbhandari et al. 2020): 1 optimizer and masters, 2 gradients, 3
weights.  The sum for AdamW in mixed precision without sharding is 16 (fp16 gradients) to 18 bytes
(fp32 gradients).

Gradients are of two kinds: those that stay allocated from step to step, and those that come into
being during backward and are gone after the update, so that they do not meet all activations.
torch frees them since its version 2 (`zero_grad(set_to_none=True)` became the default, release
notes of 2.0); before, they were filled with zeros and stayed.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape
from trainrig.workload.operators import dtype_bytes

_WITH_DROPOUT = ("gpt2", "bert", "t5")
"""Families whose published configurations train with dropout."""
_OF_IMAGES = ("vit", "ViT", "deit", "DeiT")
_WITHOUT_DROPOUT = ("pythia", "gpt-neox", "gpt-j", "bloom", "mpt", *_OF_IMAGES)
"""Names of published models of families with dropout that were trained without."""
_WIDE_LOSS = {"current": ("gpt2", "gpt-neo", "llama"), "torch1": ("gpt-neo", "llama")}
"""Families whose code widens the logits to fp32 before the loss (Hugging Face's models: all causal
ones since its version 4.46, of the older ones those that were published later)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What follows from a layout's words; bytes are those of one number."""

    compute: int
    """What products read and write."""
    product_input: float
    """What a product keeps of its input: a byte with Transformer Engine's fp8, whose linear layers
    save what they have quantised (its documentation; DeepSeek-V3's report, section 3.3.3), with
    scales of blocks their share of it."""
    residual: int
    """The stream between the blocks."""
    softmax: int
    """The softmax's result, where scores are kept."""
    autocast: bool
    scheme: str
    flash: bool
    stack: str
    """One of `kernels.STACKS`: what is run where a framework brings kernels of its own."""
    fused: bool
    """Norms, softmax, rotary positions and gated activations are single kernels.  A compiler makes
    the same: what a product reads is written out, and kept, what lies between is not."""
    compiled: bool
    native: bool
    """Attention reads grouped heads, and heads side by side, as they are."""
    norm_written_out: bool
    """RMSNorm is several operations on an fp32 copy, each of which keeps what it needs."""
    rms: bool
    """Norms are RMSNorm."""
    scaled: int
    """Of RMSNorm written out, what its weights multiply: the stream's type, fp32 in Gemma."""
    scaled_heads: int
    """What the weights of written-out norms of heads multiply, which read a product's result."""
    one_norm: bool
    """Attention and feed-forward net lie side by side behind one norm."""
    outer_norms: bool
    """Each branch has a norm behind it, too."""
    head_norms: bool
    """Heads of queries and of keys have a norm."""
    caps_scores: bool
    """Scores pass a tanh before the softmax."""
    joins_products: bool
    """Queries, keys and values come from one product, gate and up from another."""
    merges_heads: bool
    """A part of each head is turned and put together with the rest, head by head; so lies
    attention's result, which is copied."""
    gelu_written_out: bool
    """The tanh form of GELU is run line by line, as in Hugging Face's GPT-2."""
    repeats_keys: bool
    """Grouped heads of keys are copied for each head of queries."""
    dropout: bool
    unmasked: bool
    """Scores are neither masked nor dropped: images', all of whose patches are there."""
    fused_loss: bool
    """The logits never exist whole: `models.loss`, Liger's fused linear cross-entropy."""
    chunked_loss: bool
    """They exist narrow, and are widened some rows at a time."""
    compiled_loss: bool
    """One kernel from narrow logits to their gradient."""
    wide_loss: bool
    """The model itself widens its logits to fp32 before the loss."""
    frozen: bool
    """Weights have no gradients (LoRA)."""
    widens: bool
    """Frozen matrices are stored narrower than they are multiplied."""
    rank: int
    """Of the adapters beside them; each keeps what lies between its two matrices."""
    adapts: str
    """Beside which matrices adapters lie, one of `layout.LORA_ON` but auto."""
    sorts: bool
    """Tokens are sorted by expert in torch's operations, one by one."""
    weighs_activations: bool
    """A token's share of an expert multiplies its activation, so that no derivative needs the
    expert's results (Megatron-Core since 0.12: `permuted_probs`); elsewhere it multiplies these."""


def numerics_of(shape: ModelShape, layout: Layout) -> Numerics:
    """What the layout's words mean for a model."""
    compute, scheme = (
        max(2, dtype_bytes(layout.precision.compute)),
        scheme_of(layout),
    )  # fp8 saves bf16
    autocast = scheme == "autocast" and compute < 4 and layout.scheme != "fsdp"
    traits, compiled = layout.traits, layout.kernels.stack == "compiled"
    native, kernels = traits.own_models, "fused" in layout.kernels.stack or traits.own_kernels
    fused, flash = kernels or compiled, layout.kernels.is_flash and not shape.memory
    is_plain = layout.kernels.stack == "eager" or layout.kernels.plain_attention
    stack = "fused" if fused and is_plain else layout.kernels.stack
    grouped = shape.num_kv_heads != shape.num_heads
    # GPT-2 and BERT, as published, have the softmax in the type of the scores.
    narrow = fused or (shape.family in ("gpt2", "bert") and not (native or autocast))
    is_later = shape.variant == "falcon" or (
        shape.family == "t5" and layout.kernels.software == "current"
    )
    narrow = narrow or (is_later and not (native or autocast))
    is_phi3 = shape.variant == "phi3" or shape.name.startswith(("phi-3", "phi-4"))
    rms, outer = _has_rms(shape), shape.variant.startswith("gemma") and shape.vectors > shape.hidden
    fused_loss = native or (kernels and flash and not traits.splits_vocabulary)
    # Adapters lie beside weights that were loaded narrow; of quantised ones norms and ends are
    # widened (peft's `prepare_model_for_kbit_training`).  BERT's stream is LayerNorm's wide result.
    is_loaded = layout.lora.rank > 0 and layout.lora.quantize == "none" and shape.family != "bert"
    residual = 4 if autocast and not is_loaded else compute
    return Numerics(
        compute=compute,
        product_input=_SCALED[layout.precision.scaled] if in_eight_bits(layout) else compute,
        residual=residual,
        softmax=compute if narrow else 4,
        autocast=autocast,
        scheme=scheme,
        flash=flash,
        stack="flash+fused" if fused and stack == "flash" else stack,
        fused=fused,
        compiled=compiled,
        native=kernels,
        norm_written_out=rms and not (native or fused),
        rms=rms,
        scaled=4 if shape.variant.startswith("gemma") else residual,
        scaled_heads=4 if shape.variant.startswith("gemma") else compute,
        one_norm=shape.variant in _ONE_NORM,
        outer_norms=outer,
        head_norms=shape.vectors - outer * 2 * shape.hidden == 2 * shape.head_dim,
        caps_scores=outer and shape.vectors == 2 * shape.hidden,
        joins_products=is_phi3 or shape.variant == "falcon",
        merges_heads=(is_phi3 or shape.variant == "phi") and not (native or fused),
        gelu_written_out=not (native or fused) and shape.activation == "gelu_tanh",
        repeats_keys=grouped and not kernels and not flash,
        dropout=has_dropout(shape, layout),
        unmasked=shape.name.startswith(_OF_IMAGES),
        fused_loss=fused_loss if layout.kernels.loss == "auto" else layout.kernels.loss == "fused",
        chunked_loss=layout.kernels.loss == "chunked",
        compiled_loss=compiled and layout.kernels.loss in ("auto", "chunked"),
        wide_loss=shape.family in _WIDE_LOSS[layout.kernels.software]
        and layout.kernels.loss != "narrow",
        frozen=layout.lora.rank > 0,
        widens=layout.lora.quantize != "none",
        rank=layout.lora.rank,
        adapts=layout.adapted,
        sorts=layout.moe.experts == "grouped" and not kernels,
        weighs_activations=layout.traits.own_kernels and fused,
    )


_LAYER_NORM = ("phi", "falcon", "nemotron", "starcoder", "starcoder2", "phi3small")
"""Variants of Llama that have LayerNorm."""
_ONE_NORM = ("phi", "falcon")


def _has_rms(shape: ModelShape) -> bool:
    """Whether norms are RMSNorm."""
    return not (shape.norm_bias or is_bart(shape) or shape.variant in _LAYER_NORM)


def in_eight_bits(layout: Layout) -> bool:
    """Whether Transformer Engine's linear layers run it: inputs and weights wait in fp8, too."""
    return layout.precision.compute == "fp8" and layout.traits.own_kernels


def is_bart(shape: ModelShape) -> bool:
    """BART, told from T5 by its name alone: it has LayerNorm and no bias of positions."""
    return shape.family == "t5" and "bart" in shape.name.lower()


def scheme_of(layout: Layout) -> str:
    """masters, autocast or pure: as the layout says, or as its framework does."""
    if layout.precision.states != "auto":
        return layout.precision.states
    return "autocast" if layout.scheme == "fsdp" or layout.autocasts else "masters"


def has_dropout(shape: ModelShape, layout: Layout) -> bool:
    """As the layout says; otherwise where it was usual: with the older kernels and families."""
    if layout.kernels.dropout != "auto":
        return layout.kernels.dropout == "yes"
    if layout.traits.own_models or shape.name.startswith(_WITHOUT_DROPOUT):
        return False
    is_older = layout.kernels.stack in ("eager", "fused") or layout.kernels.plain_attention
    if not is_older and layout.kernels.stack not in layout.traits.drops_with:
        return False
    families = (*_WITH_DROPOUT, "gpt-neo") if layout.traits.own_kernels else _WITH_DROPOUT
    is_gpt = layout.traits.own_kernels and shape.name.startswith("gpt") and shape.num_experts > 0
    return shape.family in families or is_gpt  # Megatron's default, which Llama's scripts turn off


MOMENTS = {
    "adamw": 2.0,
    "adamw-fused": 2.0,
    "adamw-8bit": 2.0,
    "sgd": 0.0,
    "adafactor": 0.0,
    "adamw-paged": 2.0,
    "adamw-8bit-paged": 2.0,
    "muon": 1.0,
    "galore": 0.75,
}
"""Numbers that an optimizer keeps for each parameter; Adafactor's rows and columns are nothing
beside it (Shazeer and Stern 2018).  Muon's is of matrices: AdamW's second one of the embedding and
head is left out.  GaLore's two are of gradients projected to a quarter of the width, ½, and beside
them lies the projection, ¼ of a square matrix (Zhao et al. 2024, arXiv 2403.03507, table 1, rank
h/4); its decompositions, each few hundred steps, are not timed, and embedding and head are taken to
be projected, too."""
_FOUR_BITS = 0.5 + 4 / 64
FROZEN = {
    "none": 0.0,
    "int8": 1.0,
    "nf4": _FOUR_BITS,
    "fp4": _FOUR_BITS,
    "nf4-double": 0.5 + (1 + 4 / 256) / 64,
}
"""Bytes of a stored weight that is not trained: a scale in fp32 for each block of 64, itself in a
byte with one fp32 for 256 of them where it is quantised twice (Dettmers et al. 2023, section 3)."""

_BLOCK_8BIT = 1.0 + 4.0 / 256
"""Bytes of an 8-bit moment: a byte, and an fp32 scale for each block of 256 (Dettmers 2022)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes for a parameter."""

    weight: float
    frozen: float
    """A weight that is not trained, where adapters are: narrow, but where all are said wide."""
    frozen_ends: float
    """Likewise of embedding, final norm and head: beside quantised blocks fp32 under autocast
    (peft's `prepare_model_for_kbit_training` widens what is not quantised)."""
    weight_copies: float
    """Narrow copies that autocast keeps until backward has used them (`Stage.copies`)."""
    eight_bits: float
    """Bytes that a block's weight takes besides `weight` because it is multiplied in 8 bits or
    less; below 0 where it is held so alone (`_quantised`)."""
    lasting_grad: float
    """A gradient that stays from step to step."""
    passing_grad: float
    """A gradient that is gone after the update, or after each micro-batch."""
    master: float
    moments: float
    update: float
    """What the update itself needs besides, at its worst."""
    paged: float
    """Moments that lie in pages of the host and pass the link for each update (bitsandbytes' paged
    optimizers; they stay where there is room, and there is none where it matters)."""
    grads_add_up: bool
    """The passing gradients stay through the micro-batches of a step."""


def states_of(layout: Layout, numerics: Numerics) -> States:
    """The table's row for a layout."""
    narrow, masters = numerics.compute < 4, numerics.scheme == "masters" and numerics.compute < 4
    own = float(numerics.compute if masters or numerics.scheme == "pure" else 4)
    lasting, passing = _gradients(layout, numerics, own)
    copies = numerics.autocast and not layout.lora.rank
    state_width = 4.0 if masters or numerics.scheme == "autocast" or not narrow else own
    state_width = {"bf16": 2.0, "fp32": 4.0}.get(layout.precision.moments, state_width)
    state_width = _BLOCK_8BIT if "8bit" in layout.memory.optimizer else state_width
    frozen = 4.0 if layout.precision.states == "autocast" else float(numerics.compute)
    moments, paged = (
        MOMENTS[layout.memory.optimizer] * state_width,
        "paged" in layout.memory.optimizer,
    )
    return States(
        weight=own,
        frozen=frozen,
        frozen_ends=4.0 if numerics.widens and numerics.autocast else frozen,
        weight_copies=float(numerics.compute) if copies else 0.0,
        eight_bits=_quantised(layout, own),
        lasting_grad=lasting,
        passing_grad=passing,
        master=4.0 if masters else 0.0,
        moments=0.0 if paged else moments,
        paged=moments if paged else 0.0,
        update=_update(layout, masters, lasting, state_width),
        grads_add_up=not (layout.traits.own_models and masters),
    )


_SCALED = {"": 1.0, "mxfp8": 1 + 1 / 32, "nvfp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32}
"""Bytes of a number that products multiply in eight bits or less, by `Layout.scaled`: with one of a
scale for each 32 numbers, 16 of NVFP4's (OCP's Microscaling Formats 1.0; NVIDIA's NVFP4)."""


def _quantised(layout: Layout, own: float) -> float:
    """Bytes of a block's weight as products read it, where Transformer Engine runs them.

    Less the ``own`` ones that it has elsewhere, where it is held in these alone.

    Its quantizers keep a weight over the micro-batches of a step: as it is and transposed, which
    its products on both ways need (on Hopper of any format; float8_tensor.py).  Where they take
    either (`is_non_tn_fp8_gemm_supported`), a scale of the whole tensor needs one copy; scales of
    blocks run along the rows of one or of the other, and need two (mxfp8_tensor.py).
    """
    if not in_eight_bits(layout):
        return 0.0
    copies = 1 if layout.precision.supports_non_tn_fp8 and not layout.precision.scaled else 2
    return copies * _SCALED[layout.precision.scaled] - (own if layout.precision.fp8_params else 0.0)


def _gradients(layout: Layout, numerics: Numerics, own: float) -> tuple[float, float]:
    """(lasting, passing): one of them is 0 but in our own with masters, which has both."""
    wide = float(layout.precision.reduce_bytes)
    if layout.traits.grad_buffer:
        narrow = layout.precision.compute == "fp16" or numerics.scheme == "pure"
        return wide or (own if narrow else 4.0), 0.0
    if layout.traits.lasting_grads:
        return wide or own, 0.0
    if layout.traits.own_models and numerics.scheme == "masters" and numerics.compute < 4:
        return 4.0, own
    return (wide or own, 0.0) if layout.kernels.software == "torch1" else (0.0, wide or own)


def _update(layout: Layout, masters: bool, lasting: float, width: float) -> float:
    """Gradients widened for the masters; torch's unfused AdamW holds √v of all parameters.

    Megatron-Core's precision-aware optimizer, which alone has narrow moments, reads gradients as
    they are (`decoupled_grad` of its distrib_optimizer).
    """
    reads_narrow = layout.traits.grad_buffer and layout.precision.moments == "bf16"
    is_narrow = layout.traits.lasting_grads and lasting < 4 and not reads_narrow
    widened = 4.0 if masters and is_narrow else 0.0
    unfused = width if layout.memory.optimizer == "adamw" and not layout.traits.own_kernels else 0.0
    return widened + unfused
