"""How an engine and its kernels hold numbers: bytes of each, and what is written out or fused.

`Layout` says precision, engine, kernel stack and optimizer in words; this says what follows from
the words for memory.  Three schemes of mixed precision:

    masters    weights in the narrow type, fp32 copies of them for the optimizer
               (Megatron, DeepSpeed, our own engine)
    autocast   weights in fp32, narrowed when they are used (torch's amp); norms, softmax and the
               residual stream stay in fp32; each product narrows its inputs anew
    pure       all in the narrow type, the optimizer's moments too

Sources: Micikevicius et al. 2018 (masters); torch's autocast op lists; Rajbhandari et al. 2020,
section 3.1 (16 bytes a parameter); Megatron-Core's table for its distributed optimizer (18 and 20).
"""

from __future__ import annotations

from dataclasses import dataclass

from trainrig.workload.layout import Layout
from trainrig.workload.shapes import ModelShape

_WIDTH = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2}
"""Bytes of an activation; fp8 is what products read, what is kept is bf16."""

_WITH_DROPOUT = ("gpt2", "bert", "t5")
"""Families whose published configurations train with dropout."""
_WIDE_LOSS = {"current": ("gpt2", "gpt-neo", "llama"), "torch1": ("gpt-neo", "llama")}
"""Families whose code widens the logits to fp32 before the loss (Hugging Face's models: all causal
ones since its version 4.46, of the older ones those that were published later)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What follows from a layout's words; bytes are those of one number."""

    compute: int
    """What products read and write."""
    residual: int
    """The stream between the blocks."""
    softmax: int
    """The softmax's result, where scores are kept."""
    autocast: bool
    scheme: str
    flash: bool
    fused: bool
    """Norms, softmax, rotary positions and gated activations are single kernels.  A compiler makes
    the same: what a product reads is written out, and kept, what lies between is not."""
    compiled: bool
    native: bool
    """Attention reads grouped heads, and heads side by side, as they are."""
    norm_written_out: bool
    """RMSNorm is several operations on an fp32 copy, each of which keeps what it needs."""
    gelu_written_out: bool
    repeats_keys: bool
    """Grouped heads of keys are copied for each head of queries."""
    dropout: bool
    chunked_loss: bool
    """The logits never exist whole: `models.loss`, Liger's fused linear cross-entropy."""
    wide_loss: bool
    """The model itself widens its logits to fp32 before the loss."""


def style_of(shape: ModelShape, layout: Layout) -> Style:
    """What the layout's words mean for a model."""
    compute, scheme = _WIDTH[layout.precision], scheme_of(layout)
    autocast = scheme == "autocast" and compute < 4 and layout.engine != "fsdp"
    ours, compiled = layout.engine == "plain", layout.kernels == "compiled"
    kernels = "fused" in layout.kernels or layout.engine == "megatron"
    fused, flash = kernels or compiled, compiled or "flash" in layout.kernels
    grouped = shape.num_kv_heads != shape.num_heads
    return Style(
        compute=compute,
        residual=4 if autocast else compute,
        softmax=compute if fused else _softmax(shape, compute, wide=ours or autocast),
        autocast=autocast,
        scheme=scheme,
        flash=flash,
        fused=fused,
        compiled=compiled,
        native=kernels,
        norm_written_out=not (ours or fused),
        gelu_written_out=not (ours or fused),
        repeats_keys=grouped and not kernels and not (ours and flash),
        dropout=has_dropout(shape, layout),
        chunked_loss=ours or (kernels and flash and layout.engine != "megatron"),
        wide_loss=shape.family in _WIDE_LOSS[layout.software],
    )


def _softmax(shape: ModelShape, compute: int, *, wide: bool) -> int:
    """GPT-2 and BERT, as published, have the softmax in the type of the scores."""
    return compute if shape.family in ("gpt2", "bert") and not wide else 4


def scheme_of(layout: Layout) -> str:
    """masters, autocast or pure: as the layout says, or as its engine does."""
    if layout.states != "auto":
        return layout.states
    return "autocast" if layout.engine in ("ddp", "fsdp") else "masters"


def has_dropout(shape: ModelShape, layout: Layout) -> bool:
    """As the layout says; otherwise where it was usual: with the older kernels and families."""
    if layout.dropout != "auto":
        return layout.dropout == "yes"
    if layout.kernels not in ("eager", "fused") or layout.engine == "plain":
        return False
    families = (*_WITH_DROPOUT, "gpt-neo") if layout.engine == "megatron" else _WITH_DROPOUT
    return shape.family in families
