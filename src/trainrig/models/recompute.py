"""Recomputation: what a block's backward pass needs is kept, or computed a second time.

    none        everything is kept
    selective   the results of matrix products and of attention are kept; norms, activations and
                what else is cheap are computed again
    full        only the block's arguments are kept

Megatron's "selective" (Korthikanti et al. 2022, arXiv 2205.05198) is another policy: it computes
the core of attention again and keeps all else.  Ours costs no product at all.

`apply` lies inside of what `torch.compile` compiles and of what shards a block: outside of a
compiled block the choice of operations would be lost, and all of it would be computed again.

Source of the selective form: torch.utils.checkpoint.create_selective_checkpoint_contexts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

_ATEN = torch.ops.aten
_SAVED = frozenset(
    {
        _ATEN.mm.default,
        _ATEN.addmm.default,
        _ATEN.bmm.default,
        _ATEN.baddbmm.default,
        _ATEN._scaled_mm.default,
        _ATEN._scaled_dot_product_flash_attention.default,
        _ATEN._scaled_dot_product_efficient_attention.default,
        _ATEN._scaled_dot_product_cudnn_attention.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    }
)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model, or of the stage of one that has some of them."""
    parts: list[Any] = [getattr(model, name, []) for name in ("blocks", "decoder_blocks")]
    return [
        block
        for part in parts
        for block in (part.values() if isinstance(part, nn.ModuleDict) else part)
    ]


def apply(model: nn.Module, recompute: str) -> None:
    """Let each block keep what ``recompute`` says, in place; its name and weights stay.

    After tensor parallel, before torch.compile and sharding.
    """
    if recompute == "none":
        return
    for block in blocks_of(model):
        block.forward = partial(_run, block.forward, recompute)


def policy_of(block: nn.Module) -> str:
    """Return the recomputation that `apply` gave a block: none, selective or full."""
    forward: Any = block.forward
    wrapped = isinstance(forward, partial) and forward.func is _run
    return str(forward.args[1]) if wrapped else "none"


def _run(forward: Callable[..., Any], recompute: str, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    # No generator's state to repeat: dropout is a function of its arguments.
    again = partial(checkpoint, forward, *args, use_reentrant=False, preserve_rng_state=False)
    if recompute == "selective":
        return again(context_fn=partial(create_selective_checkpoint_contexts, _policy), **kwargs)
    return again(**kwargs)


def _policy(_ctx: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    if operation in _SAVED:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
