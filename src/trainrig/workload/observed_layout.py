"""A layout as a rank of a training found it, read from live objects: `train.layout_check` makes it.

Stored with a run's results; the predictor's and an experiment's is `layout.Layout`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainrig.workload.exchanges import Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLayout:
    """The layout that a rank found itself in; None: not read, as in runs of earlier versions."""

    ranks: int
    zero: int
    precision: str
    grad_accum: int
    recompute: str | None
    """none, selective or full: what backward computed again; None: cannot be told apart.  Where
    blocks are compiled, full is seen by its products, none and selective by their wrapping."""
    compile: bool
    offload: bool | None
    """Whether the optimizer's weights wait in the host's memory; None: the host computes."""
    wrapped: str
    tp: int | None = None
    """Ranks that every matrix of a block is split over."""
    sequence_parallel: bool | None = None
    """What tensor parallelism does not split is split along the sequence; None: no such group."""
    pp: int | None = None
    interleave: int | None = None
    """Stages that this rank holds."""
    cp: int | None = None
    ep: int | None = None
    replicas: int | None = None
    """Copies of the weights, or of their shards."""
    fp8_recipe: str | None = None
    """How torchao scales what the blocks' matrices multiply; None: no 8-bit layers."""
    attention: str | None = None
    attention_kernel: str | None = None
    """The kernels that torch chose for scaled_dot_product_attention."""
    liger: bool | None = None
    """Whether modules run Liger's code; None: not of a framework that has the option."""
    kernels: str | None = None
    """Of another project, in place of a module's own: ``LigerRMSNorm, LigerSwiGLUMLP``."""
    loader_workers: int | None = None
    """Processes that read for another framework."""
    lora_rank: int | None = None
    """Of the adapters that were found in the live modules; None: there are none."""
    tf32: bool | None = None
    """Whether products of fp32 numbers round them to TF32; None: no GPU."""
    p2p: bool | None = None
    """Whether the first GPU reaches the others directly; None: there is none, or no other."""
    pinned: bool | None = None
    """Whether samples come from memory that a GPU copies from by itself; None: no GPU."""
    allocator: str | None = None
    """Options of torch's allocator."""
    cores: int | None = None
    """That a rank with a GPU may run on: those beside it, where it is bound; None: no GPU."""
    exchanges: tuple[Exchange, ...] | None = None
    """Collectives and messages of a step; None: not counted."""
    threads: int | None = None
    transport: str | None = None
    state_precision: str | None = None
    num_parameters: int | None = None
    """Of this rank's stages, before any is shared."""
    shard_ranks: int | None = None
    micro_tokens: int | None = None
    gradient_precision: str | None = None
    master_precision: str | None = None
    optimizer: str | None = None
    fused_optimizer: bool | None = None
    device: str | None = None
    placements: str | None = None
    held_weights: float | None = None
    held_weights_in_backward: float | None = None
    held_gradients: float | None = None
    held_states: float | None = None
    gradient_collectives: int | None = None
