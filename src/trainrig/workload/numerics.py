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

from trainrig.workload.families import FamilyFacts, facts_of
from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape
from trainrig.workload.operators import dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """Bytes of one number, by what it is."""

    compute: int
    """Bytes of a number that products read and write."""
    product_input: float
    """Bytes of a number that a product keeps of its input: a byte with Transformer Engine's fp8,
    whose linear layers save what they have quantised (its documentation; DeepSeek-V3's report,
    section 3.3.3), with scales of blocks their share of it."""
    residual: int
    """The stream between the blocks."""
    softmax: int
    """The softmax's result, where scores are kept."""
    norm_input: int
    """Bytes of a number that a written-out RMSNorm's weights multiply: the stream's type, fp32 in
    Gemma."""
    head_norm_input: int
    """Bytes of a number that written-out norms of heads multiply, which read a product's result."""
    autocast: bool
    scheme: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """Norms of a block, and their kernels."""

    rms: bool
    """Norms are RMSNorm."""
    written_out: bool
    """RMSNorm is several operations on an fp32 copy, each of which keeps what it needs."""
    shared: bool
    """Attention and feed-forward net lie side by side behind one norm."""
    outer: bool
    """Each branch has a norm behind it, too."""
    heads: bool
    """Heads of queries and of keys have a norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKernels:
    """Kernels of a block's operations."""

    stack: str
    """One of `kernels.STACKS`: what is run where a framework brings kernels of its own."""
    flash: bool
    fused: bool
    """Norms, softmax, rotary positions and gated activations are single kernels.  A compiler makes
    the same: what a product reads is written out, and kept, what lies between is not."""
    compiled: bool
    native: bool
    """Attention reads grouped heads, and heads side by side, as they are."""
    caps_scores: bool
    """Scores pass a tanh before the softmax."""
    unmasked: bool
    """Scores are neither masked nor dropped: images', all of whose patches are there."""
    joins_products: bool
    """Queries, keys and values come from one product, gate and up from another."""
    merges_heads: bool
    """A part of each head is turned and put together with the rest, head by head; so lies
    attention's result, which is copied."""
    repeats_keys: bool
    """Grouped heads of keys are copied for each head of queries."""
    gelu_written_out: bool
    """The tanh form of GELU is run line by line, as in Hugging Face's GPT-2."""
    dropout: bool
    sorts: bool
    """Tokens are sorted by expert in torch's operations, one by one."""
    permuted_probs: bool
    """A token's share of an expert multiplies its activation, so that no derivative needs the
    expert's results (Megatron-Core since 0.12: `permuted_probs`); elsewhere it multiplies these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossKernels:
    """Return the kernels of a language model's loss."""

    fused: bool
    """The logits never exist whole: `models.loss`, Liger's fused linear cross-entropy."""
    chunked: bool
    """They exist narrow, and are widened some rows at a time."""
    compiled: bool
    """One kernel from narrow logits to their gradient."""
    wide: bool
    """The model itself widens its logits to fp32 before the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Adapters that are trained beside frozen weights."""

    frozen: bool
    """Weights have no gradients (LoRA)."""
    widens: bool
    """Frozen matrices are stored narrower than they are multiplied."""
    rank: int
    """Rank of the adapters; each keeps what lies between its two matrices."""
    targets: str
    """Beside which matrices adapters lie, one of `groups.LORA_ON` but auto."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Formats and kernels that follow from a layout's words for a model."""

    formats: Formats
    norms: Norms
    kernels: BlockKernels
    loss: LossKernels
    adapters: Adapters


def numerics_of(shape: ModelShape, layout: Layout) -> Numerics:
    """Return what the layout's words mean for a model."""
    facts, kernels = facts_of(shape), _block_kernels(shape, layout)
    written_out = facts.rms_norm and not (layout.traits.models.own_models or kernels.fused)
    return Numerics(
        formats=_formats(shape, layout, is_fused=kernels.fused),
        norms=Norms(
            rms=facts.rms_norm,
            written_out=written_out,
            shared=facts.one_norm,
            outer=facts.outer_norms,
            heads=facts.head_norms,
        ),
        kernels=kernels,
        loss=_loss_kernels(facts, layout, kernels),
        adapters=Adapters(
            frozen=layout.lora.rank > 0,
            widens=layout.lora.quantize != "none",
            rank=layout.lora.rank,
            targets=layout.adapted,
        ),
    )


def _formats(shape: ModelShape, layout: Layout, *, is_fused: bool) -> Formats:
    """Return bytes of numbers, by what they are."""
    compute, scheme = max(2, dtype_bytes(layout.precision.compute)), scheme_of(layout)
    has_fused_adapters = layout.lora.rank > 0 and layout.lora.code == "fused"
    is_wide = layout.scheme != "fsdp" and not has_fused_adapters
    autocast = scheme == "autocast" and compute < 4 and is_wide
    # Adapters lie beside weights that were loaded narrow; of quantised ones norms and ends are
    # widened (peft's `prepare_model_for_kbit_training`).  BERT's stream is LayerNorm's wide result.
    is_loaded = layout.lora.rank > 0 and layout.lora.quantize == "none" and shape.family != "bert"
    residual = 4 if autocast and not is_loaded else compute
    facts = facts_of(shape)
    is_published = not (layout.traits.models.own_models or autocast)
    narrow_softmax = layout.kernels.software in facts.narrow_softmax and is_published
    # Scores beside fused kernels are Megatron's fused softmax, or transformers' eager attention.
    is_eager = layout.kernels.plain_attention and not layout.traits.models.own_kernels
    has_fused_softmax = is_fused and not is_eager
    return Formats(
        compute=compute,  # fp8 saves bf16
        product_input=_SCALED[layout.precision.scaled] if in_eight_bits(layout) else compute,
        residual=residual,
        softmax=compute if has_fused_softmax or narrow_softmax else 4,
        norm_input=4 if facts.wide_norm_weights else residual,
        head_norm_input=4 if facts.wide_norm_weights else compute,
        autocast=autocast,
        scheme=scheme,
    )


def _block_kernels(shape: ModelShape, layout: Layout) -> BlockKernels:
    """Return the kernels of a block's operations."""
    facts, traits, choices = facts_of(shape), layout.traits, layout.kernels
    brings_kernels = "fused" in choices.stack or traits.models.own_kernels
    fused = brings_kernels or choices.stack == "compiled"
    keeps_no_scores = choices.is_flash or choices.efficient_attention > 0
    flash = keeps_no_scores and not shape.attention.memory_segments
    as_published = not (traits.models.own_models or fused)
    grouped = shape.attention.num_kv_heads != shape.attention.num_heads
    return BlockKernels(
        stack=_stack(layout, is_fused=fused),
        flash=flash,
        fused=fused,
        compiled=choices.stack == "compiled",
        native=brings_kernels,
        caps_scores=facts.caps_scores,
        unmasked=facts.unmasked,
        joins_products=facts.joins_products,
        merges_heads=facts.merges_heads and as_published,
        repeats_keys=grouped and not brings_kernels and not flash,
        gelu_written_out=as_published and shape.ffn.activation == "gelu_tanh",
        dropout=has_dropout(shape, layout),
        sorts=layout.moe.experts == "grouped" and not brings_kernels,
        permuted_probs=traits.models.own_kernels and fused,
    )


def _stack(layout: Layout, *, is_fused: bool) -> str:
    """Return one of `kernels.STACKS`: a framework's own kernels make a plain stack a fused one."""
    stack, is_plain = layout.kernels.stack, layout.kernels.plain_attention
    rules = (
        (is_fused and (stack == "eager" or is_plain), "fused"),
        (is_fused and stack == "flash", "flash+fused"),
        (True, stack),
    )
    return next(name for holds, name in rules if holds)


def _loss_kernels(facts: FamilyFacts, layout: Layout, kernels: BlockKernels) -> LossKernels:
    """Return the kernels of a language model's loss."""
    traits, loss = layout.traits, layout.kernels.loss
    is_liger = kernels.native and kernels.flash and not traits.models.splits_vocabulary
    usually_fused = traits.models.own_models or is_liger
    return LossKernels(
        fused=usually_fused if loss == "auto" else loss == "fused",
        chunked=loss == "chunked",
        compiled=kernels.compiled and loss in ("auto", "chunked"),
        wide=layout.kernels.software in facts.wide_loss and loss != "narrow",
    )


def in_eight_bits(layout: Layout) -> bool:
    """Return whether Transformer Engine's linear layers run it.

    Inputs and weights wait in fp8, too.
    """
    return layout.precision.compute == "fp8" and layout.traits.models.own_kernels


def scheme_of(layout: Layout) -> str:
    """masters, autocast or pure: as the layout says, or as its framework does."""
    if layout.precision.states != "auto":
        return layout.precision.states
    return "autocast" if layout.scheme == "fsdp" or layout.autocasts else "masters"


def has_dropout(shape: ModelShape, layout: Layout) -> bool:
    """Return whether there is dropout: as the layout says, else where it was usual."""
    usual, traits, kernels = facts_of(shape).dropout, layout.traits, layout.kernels
    is_older = kernels.stack in ("eager", "fused") or bool(kernels.plain_attention)
    rules = (
        (kernels.dropout != "auto", kernels.dropout == "yes"),
        (traits.models.own_models or usual == "none", False),
        (not is_older and kernels.stack not in traits.models.drops_with, False),
        (usual == "own-kernels", traits.models.own_kernels),
        (True, usual == "published"),
    )
    return next(answer for holds, answer in rules if holds)


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
    """Bytes of a frozen number of embedding, final norm and head: beside quantised blocks fp32
    under autocast (peft's `prepare_model_for_kbit_training` widens what is not quantised)."""
    weight_copies: float
    """Narrow copies that autocast keeps until backward has used them (`Stage.copies`)."""
    eight_bits: float
    """Bytes that a block's weight takes besides `weight` because it is multiplied in 8 bits or
    less; below 0 where it is held so alone (`_quantised`)."""
    persistent_grad: float
    """A gradient that stays from step to step."""
    transient_grad: float
    """A gradient that is gone after the update, or after each micro-batch."""
    master: float
    moments: float
    update: float
    """Bytes for a parameter that the update itself needs besides, at its worst."""
    paged: float
    """Moments that lie in pages of the host and pass the link for each update (bitsandbytes' paged
    optimizers; they stay where there is room, and there is none where it matters)."""
    grads_add_up: bool
    """The passing gradients stay through the micro-batches of a step."""


def states_of(layout: Layout, numerics: Numerics) -> States:
    """Return the table's row for a layout."""
    narrow, masters = (
        numerics.formats.compute < 4,
        numerics.formats.scheme == "masters" and numerics.formats.compute < 4,
    )
    width = float(numerics.formats.compute if masters or numerics.formats.scheme == "pure" else 4)
    lasting, passing = _gradients(layout, numerics, width)
    copies = numerics.formats.autocast and not layout.lora.rank
    state_width = 4.0 if masters or numerics.formats.scheme == "autocast" or not narrow else width
    state_width = {"bf16": 2.0, "fp32": 4.0}.get(layout.precision.moments, state_width)
    state_width = _BLOCK_8BIT if "8bit" in layout.memory.optimizer else state_width
    frozen = 4.0 if layout.precision.states == "autocast" else float(numerics.formats.compute)
    moments, paged = (
        MOMENTS[layout.memory.optimizer] * state_width,
        "paged" in layout.memory.optimizer,
    )
    return States(
        weight=width,
        frozen=frozen,
        frozen_ends=_frozen_ends(layout, numerics, frozen),
        weight_copies=float(numerics.formats.compute) if copies else 0.0,
        eight_bits=_quantised(layout, width),
        persistent_grad=lasting,
        transient_grad=passing,
        master=4.0 if masters else 0.0,
        moments=0.0 if paged else moments,
        paged=moments if paged else 0.0,
        update=_update(layout, masters, lasting, state_width),
        grads_add_up=not (layout.traits.models.own_models and masters),
    )


def _frozen_ends(layout: Layout, numerics: Numerics, frozen: float) -> float:
    """Return bytes of a number of embedding and head beside adapters."""
    if layout.lora.code == "mlx" and layout.lora.quantize != "none":
        return FROZEN[layout.lora.quantize]
    return 4.0 if numerics.adapters.widens and numerics.formats.autocast else frozen


_SCALED = {"": 1.0, "mxfp8": 1 + 1 / 32, "nvfp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32}
"""Bytes of a number that products multiply in eight bits or less, by `Precision.scaled`: with one
of a scale for each 32 numbers, 16 of NVFP4's (OCP's Microscaling Formats 1.0; NVIDIA's NVFP4)."""


def _quantised(layout: Layout, width: float) -> float:
    """Return bytes of a block's weight as products read it, where Transformer Engine runs them.

    Less the ``own`` ones that it has elsewhere, where it is held in these alone.

    Its quantizers keep a weight over the micro-batches of a step: as it is and transposed, which
    its products on both ways need (on Hopper of any format; float8_tensor.py).  Where they take
    either (`is_non_tn_fp8_gemm_supported`), a scale of the whole tensor needs one copy; scales of
    blocks run along the rows of one or of the other, and need two (mxfp8_tensor.py).
    """
    if not in_eight_bits(layout):
        return 0.0
    copies = 1 if layout.precision.supports_non_tn_fp8 and not layout.precision.scaled else 2
    return copies * _SCALED[layout.precision.scaled] - (
        width if layout.precision.fp8_params else 0.0
    )


def _gradients(layout: Layout, numerics: Numerics, width: float) -> tuple[float, float]:
    """Return (lasting, passing): one of them is 0 but in our own with masters, which has both."""
    wide = float(layout.precision.reduce_bytes)
    if layout.traits.ranks.grad_buffer:
        narrow = layout.precision.compute == "fp16" or numerics.formats.scheme == "pure"
        return wide or (width if narrow else 4.0), 0.0
    if layout.traits.ranks.persistent_grads:
        return wide or width, 0.0
    if (
        layout.traits.models.own_models
        and numerics.formats.scheme == "masters"
        and numerics.formats.compute < 4
    ):
        return 4.0, width
    return (wide or width, 0.0) if layout.kernels.software == "torch1" else (0.0, wide or width)


def _update(layout: Layout, masters: bool, lasting: float, width: float) -> float:
    """Gradients widened for the masters; torch's unfused AdamW holds √v of all parameters.

    Megatron-Core's precision-aware optimizer, which alone has narrow moments, reads gradients as
    they are (`decoupled_grad` of its distrib_optimizer).
    """
    reads_narrow = layout.traits.ranks.grad_buffer and layout.precision.moments == "bf16"
    is_narrow = layout.traits.ranks.persistent_grads and lasting < 4 and not reads_narrow
    widened = 4.0 if masters and is_narrow else 0.0
    unfused = (
        width
        if layout.memory.optimizer == "adamw" and not layout.traits.models.own_kernels
        else 0.0
    )
    return widened + unfused
