"""What each trained parameter holds: weight, gradient, master copy, optimizer's moments, in bytes.

One table for all engines.  A number is bytes for a parameter; beside it stands the ZeRO stage from
which it is sharded over data parallel (Rajbhandari et al. 2020): 1 optimizer and masters, 2
gradients, 3 weights.  The sum for AdamW in mixed precision without sharding is 16 (fp16 gradients)
to 18 bytes (fp32 gradients).

Gradients are of two kinds: those that stay allocated from step to step, and those that come into
being during backward and are gone after the update, so that they do not meet all activations.
torch frees them since its version 2 (`zero_grad(set_to_none=True)` became the default, release
notes of 2.0); before, they were filled with zeros and stayed.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainrig.workload.layout import Layout
from trainrig.workload.style import Style

MOMENTS = {"adamw": 2.0, "adamw-fused": 2.0, "adamw-8bit": 2.0, "sgd": 0.0, "adafactor": 0.0}
"""Numbers that an optimizer keeps for each parameter; Adafactor's rows and columns are nothing
beside it (Shazeer and Stern 2018)."""

_BLOCK_8BIT = 1.0 + 4.0 / 256
"""Bytes of an 8-bit moment: a byte, and an fp32 scale for each block of 256 (Dettmers 2022)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes for a parameter."""

    weight: float
    frozen: float
    """A weight that is not trained, where adapters are."""
    weight_copies: float
    """Narrow copies that autocast keeps until backward has used them."""
    lasting_grad: float
    """A gradient that stays from step to step."""
    passing_grad: float
    """A gradient that is gone after the update, or after each micro-batch."""
    master: float
    moments: float
    update: float
    """What the update itself needs besides, at its worst."""
    grads_add_up: bool
    """The passing gradients stay through the micro-batches of a step."""


def states_of(layout: Layout, style: Style) -> States:
    """The table's row for a layout."""
    narrow, masters = style.compute < 4, style.scheme == "masters" and style.compute < 4
    own = float(style.compute if masters or style.scheme == "pure" else 4)
    lasting, passing = _gradients(layout, style, own)
    copies = style.autocast and layout.recompute != "full" and not layout.lora_rank
    kept_wide = 4.0 if masters or style.scheme == "autocast" or not narrow else own
    return States(
        weight=own,
        frozen=float(style.compute),
        weight_copies=float(style.compute) if copies else 0.0,
        lasting_grad=lasting,
        passing_grad=passing,
        master=4.0 if masters else 0.0,
        moments=_moments(layout.optimizer, kept_wide),
        update=_update(layout, masters, lasting, kept_wide),
        grads_add_up=not (layout.engine == "plain" and masters),
    )


def _gradients(layout: Layout, style: Style, own: float) -> tuple[float, float]:
    """(lasting, passing): one of them is 0 but in our engine with masters, which has both."""
    wide = float(layout.reduce_bytes)
    if layout.engine == "megatron":  # one flat buffer, as long as the model lives
        return wide or (2.0 if layout.precision == "fp16" else 4.0), 0.0
    if layout.engine == "deepspeed":
        return wide or own, 0.0
    if layout.engine == "plain" and style.scheme == "masters" and style.compute < 4:
        return 4.0, own
    return (wide or own, 0.0) if layout.software == "torch1" else (0.0, wide or own)


def _moments(optimizer: str, width: float) -> float:
    return MOMENTS[optimizer] * (_BLOCK_8BIT if optimizer == "adamw-8bit" else width)


def _update(layout: Layout, masters: bool, lasting: float, width: float) -> float:
    """Gradients widened for the masters; torch's unfused AdamW holds √v of all parameters."""
    widened = 4.0 if masters and layout.engine in ("megatron", "deepspeed") and lasting < 4 else 0.0
    unfused = width if layout.optimizer == "adamw" and layout.engine != "megatron" else 0.0
    return widened + unfused
