"""The layout of one rank of a training: as an experiment asks for it, or as the rank found it.

`train.layout_check` makes both and compares them; what was found is read from live objects and
stored with a run's results.  The layout that a prediction reads is `layout.Layout`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from trainrig.flat_keys import FlatKeys, part
from trainrig.workload.exchanges import Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAxes:
    """Ranks that train one model, and the axes that they share it along."""

    ranks: int
    tp: int | None = None
    """Ranks that every matrix of a block is split over."""
    sequence_parallel: bool | None = None
    """True if the sequence is split where tensors are not; None: no tensor parallelism."""
    pp: int | None = None
    interleave: int | None = None
    """Pipeline stages that this rank holds."""
    cp: int | None = None
    ep: int | None = None
    replicas: int | None = None
    """Copies of the weights, or of their shards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShare:
    """The part of weights, gradients and optimizer states that one rank holds."""

    zero: int
    shard_ranks: int | None = None
    """Ranks that share one copy of what is sharded."""
    num_parameters: int | None = None
    """Parameters of this rank's stages, before any is shared."""
    placements: str | None = None
    held_weights: float | None = None
    held_weights_in_backward: float | None = None
    held_gradients: float | None = None
    held_states: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBatch:
    """Tokens that one rank works on."""

    grad_accum: int
    micro_tokens: int | None = None
    """Tokens of one micro-batch on this rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPrecision:
    """Number formats that one rank computes, accumulates and updates in."""

    compute: str = field(metadata={"key": "precision"})
    fp8_recipe: str | None = None
    """torchao's scaling of the blocks' 8-bit products; None: no 8-bit layers."""
    tf32: bool | None = None
    """True if products of fp32 numbers round them to TF32; None: no GPU."""
    gradient: str | None = field(default=None, metadata={"key": "gradient_precision"})
    master: str | None = field(default=None, metadata={"key": "master_precision"})
    state: str | None = field(default=None, metadata={"key": "state_precision"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptimizer:
    """The optimizer of one rank, and where its weights wait."""

    name: str | None = field(default=None, metadata={"key": "optimizer"})
    """The optimizer's class; None: it is named in its framework's own words."""
    fused: bool | None = field(default=None, metadata={"key": "fused_optimizer"})
    """True if its kernels are fused; None: its framework fuses wherever they are installed."""
    offload: bool | None = None
    """True if the optimizer's weights wait in the host's memory; None: the host computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankKernels:
    """Implementations of operations that one rank runs."""

    compile: bool
    attention: str | None = None
    attention_kernel: str | None = None
    """The kernels that torch chose for scaled_dot_product_attention."""
    liger: bool | None = None
    """True if modules run Liger's code; None: not of a framework that has the option."""
    replaced: str | None = field(default=None, metadata={"key": "kernels"})
    """Another project's in place of a module's own: ``LigerRMSNorm, LigerSwiGLUMLP``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCommunication:
    """Collectives and messages of a step, and what carries them."""

    transport: str | None = None
    p2p: bool | None = None
    """True if the first GPU reaches the others directly; None: there is none, or no other."""
    gradient_collectives: int | None = None
    """Collectives that sum gradients over data-parallel ranks in a step."""
    exchanges: tuple[Exchange, ...] | None = None
    """Collectives and messages of a step; None: not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHost:
    """The device that a rank computes on, and how the host feeds it."""

    device: str | None = None
    threads: int | None = None
    cores: int | None = None
    """Cores that a rank with a GPU may run on: those beside it, where it is bound; None: no GPU."""
    loader_workers: int | None = None
    """Processes that read for another framework."""
    pinned: bool | None = None
    """True if samples come from memory that a GPU copies from by itself; None: no GPU."""
    allocator: str | None = None
    """Options of torch's allocator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """The layout of one rank; None: not asked for, or not read, as in runs of earlier versions."""

    mesh: RankAxes = part(RankAxes)
    sharding: HeldShare = part(HeldShare)
    batch: RankBatch = part(RankBatch)
    precision: RankPrecision = part(RankPrecision)
    optimizer: RankOptimizer = part(RankOptimizer)
    kernels: RankKernels = part(RankKernels)
    communication: RankCommunication = part(RankCommunication)
    host: RankHost = part(RankHost)
    wrapped: str
    """Class of the module that wraps the model; empty in what is asked for."""
    recompute: str | None
    """none, selective or full: what backward computed again; None: cannot be told apart.  Where
    blocks are compiled, full is seen by its products, none and selective by their wrapping."""
    lora_rank: int | None = None
    """Rank of the adapters that were found in the live modules; None: there are none."""

    def to_dict(self) -> dict[str, Any]:
        """Return all values by their flat keys, in plain types."""
        return RANK_KEYS.flatten(dataclasses.asdict(self))


RANK_KEYS = FlatKeys(
    RankLayout,
    (
        *("ranks", "zero", "precision", "grad_accum", "recompute", "compile", "offload"),
        *("wrapped", "tp", "sequence_parallel", "pp", "interleave", "cp", "ep", "replicas"),
        *("fp8_recipe", "attention", "attention_kernel", "liger", "kernels", "loader_workers"),
        *("lora_rank", "tf32", "p2p", "pinned", "allocator", "cores", "exchanges", "threads"),
        *("transport", "state_precision", "num_parameters", "shard_ranks", "micro_tokens"),
        *("gradient_precision", "master_precision", "optimizer", "fused_optimizer", "device"),
        *("placements", "held_weights", "held_weights_in_backward", "held_gradients"),
        *("held_states", "gradient_collectives"),
    ),
)
REQUESTED = (
    *("ranks", "tp", "sequence_parallel", "pp", "interleave", "cp", "ep", "zero", "shard_ranks"),
    *("grad_accum", "micro_tokens", "precision", "fp8_recipe", "gradient_precision"),
    *("master_precision", "recompute", "optimizer", "fused_optimizer", "compile", "offload"),
    *("device", "attention", "liger", "loader_workers", "lora_rank"),
)
"""Flat keys that an experiment can ask for, in the order in which differences are told."""
