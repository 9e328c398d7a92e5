"""The seconds that a step is composed of, before anything overlaps: arrays over layouts.

Answers, for each layout: what a stage computes for a micro-batch (`compute`, once for each
unique share), what each collective takes by itself, and how often; which of them an engine starts
early enough to hide.  Does not answer what is hidden: `step` does, with the fitted constants.

Ranks: tensor parallel is innermost (ranks of one node), then data parallel, then stages, as in
Megatron-LM and DeepSpeed.  A group's members in a node are min(ranks, gpus_per_node / inner);
groups in one node share its fabric.

Which engine does what with gradients (docs/definitions.md):
ddp        all-reduce in buckets beside the last micro-batch's backward
dataparallel  weights, samples, outputs and gradients of each micro-batch from and to GPU 0, beside
           nothing; one interpreter launches for all of them
fsdp       weights gathered a block ahead, gradients scattered a block behind, each micro-batch; in
           a pipeline with zero 2 gathered once a step (torchtitan's fsdp_reshard_after_forward,
           which is zero 3 where it says always), and by torch's schedules scattered once, behind
megatron   one all-reduce (zero 1: reduce-scatter, then all-gather) after the last micro-batch;
           where its options for it are on (`Layout.overlaps`), beside its backward, and the gather
           beside the next step's first forward
           zero 2 and 3 are Megatron-FSDP (optim_grads, optim_grads_params): beside backward and,
           zero 3, beside forward with each micro-batch, which its gradients add up after
deepspeed  zero 0 and 1 as megatron; zero 2 and 3 beside backward, each micro-batch
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainrig.prediction.rates import Rates
from trainrig.prediction.step.communication import (
    MeshSizes,
    all_to_all_overlap,
    exchanges,
    optimized,
    reserved_sm_share,
)
from trainrig.prediction.step.compute import DeviceTimes, device_times, launch_seconds
from trainrig.prediction.step.offload import NOTHING, Offload, offloaded
from trainrig.workload.arrays import choose, is_not, is_plain, larger, smaller
from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape, matrices
from trainrig.workload.numerics import FROZEN
from trainrig.workload.operators import dtype_bytes

Array = Any
"""A float for one layout, or an array of floats with one for each of many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """Seconds that one device computes.

    DeviceTimes are four each: products, attention, streams, launches.

    Times of passes are those of an average block and one micro-batch.
    """

    forward: Array
    backward: Array
    recompute: Array
    first: Array
    """The embedding, both directions."""
    last: Array
    """Final norm, logits and loss, both directions."""
    weights: Array
    """Streams over the weights for each micro-batch: casts, accumulation."""
    optimizer: Array
    tensor_cores: Array
    """1: products run in tensor cores, which share the chip's power; 0: in fp32 lanes."""
    untuned: Array
    """Share of tensor cores' rate that products reach where nobody tunes them (`Rates`)."""
    newest_attention: Array
    """1: attention kernels of later software (flash+fused, compiled)."""
    recomputes: Array
    """1: blocks are run again in backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStages:
    """Sizes of pipeline stages, and micro-batches that pass through them."""

    layers: Array
    stage_layers: Array
    """Layers of the longest stage."""
    fewer_first: Array
    """Layers that the first stage lacks of those, in the embedding's place."""
    fewer_last: Array
    """Layers that the last stage lacks of those, in the head's place."""
    stages: Array
    virtual: Array
    micro_batches: Array
    send: Array
    """One message between two stages."""
    splits_weight_grad: Array
    """1: gradients of weights are computed apart, where the pipeline would wait (ZB-H1, ZB-V)."""
    v_schedule: Array
    """Share of micro-batches that begin and end on the first rank: ZB-V 1, DualPipe 1/2, else 0."""
    dual: Array
    """1: micro-batches come from both ends (DualPipe)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """Collectives, and which of them may run beside computation."""

    tensor: Array
    """Collectives of a block, forward and backward and what is recomputed."""
    tensor_ends: Array
    tensor_overlap: Array
    """Collectives of a block that backward starts early: gathered inputs, scattered gradients."""
    all_to_all: Array
    """Exchanges of a block's tokens with their experts, both ways and again."""
    all_to_all_overlap: Array
    """Share of `all_to_all` that may run beside computation."""
    reserved_sm_share: Array
    """Share by which a block's computation is longer where tokens are exchanged beside it; 0: none
    of its processors is set aside for that."""
    gather_forward: Array
    """Weights of one block."""
    gather_backward: Array
    scatter: Array
    """Gradients of one block."""
    every_micro_batch: Array
    """1: gradients are exchanged with every micro-batch, 0: with the last."""
    overlaps_backward: Array
    """1: gradients are exchanged beside backward, 0: after it."""
    bucket: Array
    """Share of a micro-batch's gradients in one bucket: before the first is full nothing leaves,
    and nothing is beside the last."""
    ends: Array
    """Weights and gradients of a stage's ends, once."""
    after: Array
    """Exchanged after backward, with nothing beside it."""
    ahead: Array
    """Updated weights, gathered beside the first micro-batch's forward."""
    contention: Array
    """Share of what collectives usually take from computation beside them (`Link.contention`);
    where nothing runs beside anything (`Overlap.collectives`), all that there is."""
    link_unsure: Array
    """Uncertainty of exchanges by the link inside a node (`Link.unsure`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork:
    """Seconds of the host's work in a step besides launching kernels."""

    grad_accum_launch: Array
    """Seconds for each layer: its gradients are added to the accumulated ones, one by one."""
    zero3_gather_launch: Array
    """Seconds for each layer and pass: weights are gathered module by module."""
    threads: Array
    """GPUs that one interpreter launches for: their threads pass its lock to each other."""
    offload: Array
    """An `Offload`: seconds of its pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Unhidden, unscaled seconds; every field of a part is a number, or an array over layouts."""

    compute: Computation
    pipeline: PipelineStages
    communication: Exchanges
    host: HostWork
    unsure: Array
    """Addition of the chip's class to the half width of the interval (natural logarithm)."""

    @classmethod
    def of(cls, *, unsure: Array, **values: Array) -> Profile:
        """Return the profile of values by their names, which no two parts share."""
        parts = {
            part: kind(**{item.name: values.pop(item.name) for item in dataclasses.fields(kind)})
            for part, kind in _PARTS.items()
        }
        if values:
            raise TypeError(f"a profile has no {next(iter(values))}")
        return cls(**parts, unsure=unsure)

    def flat(self) -> dict[str, Array]:
        """Return all values by their names."""
        values = {
            item.name: getattr(getattr(self, part), item.name)
            for part, kind in _PARTS.items()
            for item in dataclasses.fields(kind)
        }
        return values | {"unsure": self.unsure}


_PARTS: dict[str, Any] = {
    "compute": Computation,
    "pipeline": PipelineStages,
    "communication": Exchanges,
    "host": HostWork,
}


def _bucket(mesh: MeshSizes) -> Array:
    """Return the share of a step in ZeRO 2's last bucket.

    Those of ZeRO 3 are as small as blocks.
    """
    share = smaller(mesh.layout.traits.ranks.bucket / larger(mesh.trained, 1), 1.0)
    return choose(mesh.zero == 2, share, 0.0)


def _in_lanes(precision: str, rates: Rates) -> bool:
    """Return whether products are fp32's.

    TF32's are, too, where the library has nothing quicker for them (ROCm).
    """
    sustained = rates.matmuls.sustained
    is_same = precision == "tf32" and sustained.get("tf32") == sustained.get("fp32")
    return precision == "fp32" or is_same


def profile(
    shape: ModelShape,
    layout: Layout,
    rates: Rates,
    head: float = 1.0,
    computed: Computed | None = None,
) -> Profile:
    """Return the parts of each layout's step; ``head``: share of tokens with logits.

    Numbers for one layout whose sizes are, arrays for many; ``computed``: of these, where it is
    known already (`price_blocks`).
    """
    mesh = MeshSizes(shape, layout)
    parts = exchanges(mesh, rates, head) | {
        "layers": mesh.layers,
        "stage_layers": mesh.stage_layers,
        "fewer_first": mesh.fewer_first,
        "fewer_last": mesh.fewer_last,
        "stages": mesh.pp,
        "virtual": mesh.virtual,
        "micro_batches": mesh.micro_batches,
        "reserved_sm_share": reserved_sm_share(mesh, rates),
        "all_to_all_overlap": all_to_all_overlap(mesh),
        "tensor_cores": float(not _in_lanes(layout.precision.compute, rates)),
        "untuned": rates.untuned if layout.precision.compute not in ("fp32", "tf32") else 1.0,
        "newest_attention": float(_is_newest(layout, rates)),
        "unsure": rates.unsure,
        "contention": choose(mesh.gpus > mesh.per_node, 1.0, rates.links.inside.contention)
        + (math.inf if layout.overlap.collectives == "none" else 0.0),
        "link_unsure": choose(mesh.per_node > 1, rates.links.inside.unsure, 0.0),
        "splits_weight_grad": _splits_weight_grad(mesh),
        "v_schedule": (layout.pipeline.v_schedule / layout.pipeline.stage_copies) * (mesh.pp > 1),
        "dual": float(layout.pipeline.schedule == "dualpipe") * (mesh.pp > 1),
        "grad_accum_launch": _grad_accum_launch(mesh, rates),
        "zero3_gather_launch": _zero3_gather_launch(mesh, rates),
        "recomputes": float(layout.memory.recompute == "full"),
        "threads": mesh.dp if layout.scheme == "dataparallel" else 1,
        "weights": _over_weights(mesh, rates),
        "optimizer": optimized(mesh, rates),
        "offload": offloaded(mesh, rates),
        "bucket": _bucket(mesh),
    }
    if is_plain(mesh.tp):
        device = device_times(shape, layout, rates, head)
        times = {name: getattr(device, name) for name in _COMPUTED}
        times["recompute"] = tuple(
            layout.memory.recomputed_share * seconds for seconds in times["recompute"]
        )
        return Profile.of(**times, **parts)
    import numpy as np

    num = (len(layout),)
    times = _dealt(layout, computed or price_blocks(shape, layout, rates, head))
    offload: Any = parts.pop("offload")
    if offload is not NOTHING:
        offload = Offload(*(np.broadcast_to(piece * 1.0, num) for piece in offload))
    arrays = {name: np.asarray(value, dtype=float) for name, value in parts.items()}
    spread = {
        name: array if array.shape == num else np.broadcast_to(array, num)
        for name, array in arrays.items()
    }
    return Profile.of(**times, **spread, offload=offload)


_COMPUTED = ("forward", "backward", "recompute", "first", "last")
"""Fields that `device_times` prices."""


class Computed(NamedTuple):
    """Device times of many layouts: blocks are priced once for each unique share."""

    times: DeviceTimes
    """Device times of unique shares."""
    num: int
    """Unique shares."""
    where: Array
    """Each layout's place among them."""

    def part(self, where: slice) -> Computed:
        """Return the device times of some of the layouts."""
        return self._replace(where=self.where[where])


def price_blocks(shape: ModelShape, layout: Layout, rates: Rates, head: float = 1.0) -> Computed:
    """DeviceTimes of each of many layouts."""
    import numpy as np

    whole = np.asarray(layout.mesh.expert_tp) == layout.mesh.tp
    sizes = [layout.mesh.tp, layout.batch.micro, layout.mesh.sequence_parallel, layout.mesh.ep]
    tp, batch, split, ep, whole = np.broadcast_arrays(*map(np.atleast_1d, [*sizes, whole]))
    _, place = np.unique(ep, return_inverse=True)  # few, and the key is one whole number
    key = (tp.astype(np.int64) << 32) + (batch.astype(np.int64) << 2) + 2 * (split > 0) + whole
    key = key * (1 + place.max()) + place.reshape(-1)
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    spread = layout.replace(tp=tp, batch_size=batch, sequence_parallel=split, ep=ep)
    return Computed(
        times=device_times(shape, spread.part(first), rates, head),
        num=len(first),
        where=np.broadcast_to(inverse.reshape(-1), (len(layout),)),
    )


def _dealt(layout: Layout, computed: Computed) -> dict[str, Array]:
    """Return seconds of each layout, by the field of DeviceTimes."""
    import numpy as np

    def dealt(seconds: Any) -> Array:  # what costs the same for all is one number
        return np.broadcast_to(seconds, (computed.num,)).take(computed.where)

    times = {name: tuple(map(dealt, getattr(computed.times, name))) for name in _COMPUTED}
    times["recompute"] = tuple(
        layout.memory.recomputed_share * again for again in times["recompute"]
    )
    return times


def _is_newest(layout: Layout, rates: Rates) -> bool:
    """Return whether fused attention is no older software's."""
    is_current = layout.kernels.stack == "flash" and rates.attentions.is_current
    return is_current or layout.kernels.stack in ("flash+fused", "compiled")


def _splits_weight_grad(mesh: MeshSizes) -> Array:
    """Interleaved stages of other schedules are taken for 1F1B's."""
    schedule = mesh.layout.pipeline.schedule
    is_alone = choose(mesh.virtual == 1, 1.0, 0.0) if schedule == "zb" else 0.0
    return 1.0 if schedule in ("zbv", "dualpipe") else is_alone


def _grad_accum_launch(mesh: MeshSizes, rates: Rates) -> Array:
    """A launch for each tensor of a block and micro-batch, but where a product does it itself.

    A first micro-batch's gradients stay as they are, but where there is a buffer for them.
    """
    tensors = 12 if mesh.shape.attention.qkv_bias else 9
    layout, traits = mesh.layout, mesh.layout.traits
    if traits.models.own_models:
        return 0.0
    adds = (traits.ranks.grad_buffer | (mesh.micro_batches > 1)) & is_not(_adds_inside(mesh))
    return choose(adds, tensors * launch_seconds(layout, rates), 0.0)


def _zero3_gather_launch(mesh: MeshSizes, rates: Rates) -> Array:
    """Return ZeRO 3's gather calls; each expert has its own where they are modules.

    Norms and adapters are small, and stay (DeepSpeed's `stage3_param_persistence_threshold` of 1e5
    numbers): their hooks find nothing to gather.
    """
    calls, layout = mesh.layout.traits.host.fetch_calls, mesh.layout
    if not calls:
        return 0.0
    in_turn = layout.moe.experts == "modules"
    num = sum(matrix.copies if in_turn else 1 for matrix in matrices(mesh.shape))
    small = 2 + 2 * num * (layout.lora.rank > 0)
    several = mesh.gpus > mesh.tp * mesh.pp
    seconds = calls * (num + _PERSISTENT * small) * launch_seconds(layout, rates)
    return choose((mesh.zero == 3) & several, seconds, 0.0)


_PERSISTENT = 0.25
"""Share of gather calls for weights that are never sharded: presumed."""


def _adds_inside(mesh: MeshSizes) -> Array:
    """Megatron-FSDP is run without it (its guide: no gradient accumulation fusion)."""
    layout = mesh.layout
    return (layout.traits.models.own_kernels and layout.kernels.stack == "flash+fused") & (
        mesh.zero < 2
    )


def _added(mesh: MeshSizes) -> Array:
    """Return how often a gradient is read or written for each micro-batch that is added up.

    A first one's stays as it is; torch 1 zeroed in place what lay there, and added to that.  Into a
    buffer each is added; of a single micro-batch Megatron's products write it (since 2022).
    """
    num, traits = mesh.micro_batches, mesh.layout.traits
    if mesh.layout.kernels.software == "torch1" and traits.models.autocasts:
        return 3.0 + 1.0 / num
    return choose(num > 1, 3.0 if traits.ranks.grad_buffer else 3.0 * (num - 1.0) / num, 0.0)


def _over_weights(mesh: MeshSizes, rates: Rates) -> Array:
    """Casting weights and gradients under autocast, and adding to what is accumulated.

    Megatron's products of weights' gradients add to the accumulated ones as they are written, which
    large products hide (its gradient accumulation fusion, with Transformer Engine's layers).
    """
    layout = mesh.layout
    widened: Any = 0.0
    if layout.lora.quantize != "none":  # each pass reads what is stored and writes it widened
        stored = (mesh.stage_parameters - mesh.ends) * (FROZEN[layout.lora.quantize] + 2.0)
        widened = rates.stream((2.0 + (layout.memory.recompute == "full")) * stored, kernels=1)
    wide = dtype_bytes(layout.precision.compute) >= 4
    is_whole = layout.scheme in ("none", "ddp", "dataparallel")
    is_autocast = is_whole and layout.kernels.stack in ("eager", "flash", "compiled")
    casts = 12.0 if is_autocast and not wide else 0.0
    # What is frozen lies there as it is used, and has no gradient.
    counted = (
        mesh.trained / layout.pipeline.stage_copies * (casts + mesh.gradient_bytes * _added(mesh))
    )
    return widened + choose(_adds_inside(mesh), 0.0, rates.stream(counted, kernels=1))
