"""How much memory a training step needs on each GPU, by part.

A step has a few moments at which memory can be at its highest: at the loss, when every activation
waits for its backward pass and the logits exist; in the backward pass of the last block, which may
have to be computed again; at the end of the backward pass, when all gradients exist; in the
optimizer.  Each is summed up by itself and the worst one is the answer, as is the worst of the
first and the last pipeline stage: the first keeps most micro-batches, the last has the logits; and
of the one behind the first, where the ends have fewer layers than the others.

`blocks` says what a block keeps, `numerics` what a layout's words mean and what a parameter holds;
here they are put together.  Sizes may be arrays, one number for each layout.

Pipeline: with 1F1B the first of p stages keeps p micro-batches, with v interleaved groups
p + (p - 1)/v of them (Korthikanti et al. 2022, section 4.2.3; Narayanan et al. 2021), with GPipe
all; with ZB-H1 each stage as many as the first of 1F1B (Qi et al. 2023, table 2), with ZB-V too, of
which the first rank has both ends; with DualPipe each p + 1, beside weights and gradients of two
stages, whose optimizer both their ranks share (DeepSeek-V3, arXiv 2412.19437, table 2).  Not
modelled: what kernels allocate and free within one call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from trainrig.workload.arrays import choose, is_any, is_plain, larger, smaller
from trainrig.workload.layout import Layout
from trainrig.workload.memory import overheads
from trainrig.workload.memory.pipeline_stage import Bytes, Stage, places, stage_of
from trainrig.workload.model import ModelShape
from trainrig.workload.numerics import Numerics, States, numerics_of

Parts = dict[str, Bytes]


def memory_peaks(stage: Stage) -> Iterator[Parts]:
    """Yield bytes by part, one moment of a step after another."""
    shape, layout, states = stage.shape, stage.layout, stage.states
    # What a chunked loss holds until the step's end; that of the micro-batch before stays until
    # the loss's name means the new one.
    rests = stage.has_loss * overheads.loss_rests(shape, layout, stage.numerics, stage.rows)
    before = choose(layout.batch.grad_accum > 1, rests, 0)
    logits = overheads.loss_bytes(shape, layout, stage.numerics, stage.rows)
    adding_up = stage.grads_add_up * 1.0
    at_end = stage.last_gradients

    # At the loss every activation waits, and the logits exist.
    yield _parts(
        stage,
        passing=adding_up,
        copies=stage.copies(at_loss=True) + stage.narrowed_head,
        activations=stage.waiting + stage.early + stage.late,
        logits=stage.has_loss * (logits + stage.collected) + before,
        is_moving=True,
    )
    if _copies_all(layout, states):
        # Before: autocast forgets its copies where forward ends, with a gradient's numbers less.
        width = overheads.narrow_bytes(shape, layout, stage.numerics, stage.rows)
        yield _parts(
            stage,
            passing=adding_up,
            copies=states.weight_copies * stage.num_parameters,
            activations=stage.waiting + stage.early + stage.late,
            logits=stage.has_loss * (logits - width) + before,
            is_moving=True,
        )
    # The last block's backward.
    yield _parts(
        stage,
        passing=adding_up,
        copies=stage.copies(at_loss=False),
        activations=stage.waiting
        + stage.early
        + stage.in_block(decoder=shape.num_decoder_layers > 0),
        logits=rests,
        is_moving=True,
    )
    if shape.num_decoder_layers:
        # Backward of the last plain block, when those with cross-attention are done.
        of_plain = stage.blocks[0] * stage.block_parameters() / stage.num_parameters
        yield _parts(
            stage,
            passing=smaller(1 - of_plain, at_end),
            activations=stage.of_one[0] * stage.in_flight + stage.early + stage.in_block(),
            logits=rests,
            is_moving=True,
        )
    # The end of backward: all gradients, and the activations of a pipeline's other micro-batches.
    others = stage.waiting * (1 - 1 / stage.in_flight)
    activations = others + stage.in_first_block()
    activations = activations + stage.embedding_gradient
    ending = _parts(stage, passing=at_end, activations=activations, logits=rests, is_moving=True)
    if layout.scheme == "dataparallel":  # GPU 0's own gradients beside the sums of all
        ending["buffers"] = ending["buffers"] + states.weight * stage.num_trained
    yield ending
    # The optimizer.
    parts = _parts(stage, passing=at_end, activations=0, logits=rests)
    if layout.memory.offload == "none":
        at_once = stage.owned(1)
        if layout.traits.ranks.sub_group:
            some = smaller(layout.traits.ranks.sub_group, at_once)
            at_once = choose(layout.sharding.zero >= 3, some, at_once)
        update = states.update * at_once
        if layout.traits.ranks.flattens_gradients:
            is_flat = (layout.sharding.zero >= 1) & (layout.sharding.zero < 3)
            narrow = states.persistent_grad * stage.owned(1)
            update = update + choose(is_flat & (states.update > 0), narrow, 0.0)
        parts["optimizer"] = parts["optimizer"] + update * at_end
    yield parts


def _copies_all(layout: Layout, states: States) -> bool:
    """Return whether forward holds copies of weights that backward makes anew."""
    return layout.memory.recompute == "full" and states.weight_copies > 0


def _parts(
    stage: Stage,
    *,
    passing: Bytes,
    activations: Bytes,
    logits: Bytes,
    copies: Bytes = 0.0,
    is_moving: bool = False,
) -> Parts:
    """Return the bytes by part at one moment of a step.

    ``passing``: the share of passing gradients that exist; ``copies``: bytes of narrow copies of
    weights; ``is_moving``: forward or backward, where weights are gathered and gradients leave.
    """
    states, (master, moments) = stage.states, stage.masters
    grads: Any = states.persistent_grad
    if states.transient_grad:
        grads = grads + states.transient_grad * passing
    return {
        "weights": stage.weights + copies if is_any(copies != 0.0) else stage.weights,
        "gradients": grads * stage.num_gradients,
        "master": master,
        "optimizer": moments,
        "activations": activations,
        "logits": logits,
        "buffers": stage.moving if is_moving else stage.buffers,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the GPU that needs most, at its worst moment, by part."""

    weights: Bytes
    """Bytes of weights that are computed with, their narrow copies included."""
    gradients: Bytes
    master: Bytes
    """fp32 copies of narrow weights."""
    optimizer: Bytes
    """Moments, and what the update needs besides."""
    activations: Bytes
    """Bytes that wait for backward, are computed again, or are gradients on their way."""
    logits: Bytes
    """Logits and loss, or what a chunked loss holds."""
    buffers: Bytes
    """Communication: buckets, gathered weights."""
    framework: Bytes
    """The context, libraries' workspaces, what the allocator cannot use; an estimate."""
    reserved: Bytes
    """Bytes that the framework's allocator holds: without the context and what libraries take."""
    context: Bytes
    """Besides the allocator: the context, libraries, communicators."""

    @property
    def allocated(self) -> Bytes:
        """Return bytes that the framework's allocator hands out at its peak."""
        return sum(getattr(self, name) for name in PARTS if name != "framework")

    @property
    def total(self) -> Bytes:
        """Return bytes that a card must have for a step to end."""
        return self.allocated + self.framework

    @property
    def shown(self) -> Bytes:
        """Return bytes that the driver shows.

        With blocks that the allocator would give back if it had to.
        """
        return self.reserved + self.context + overheads.CACHED * self.allocated

    @property
    def needed_interval(self) -> tuple[Bytes, Bytes]:
        """80 % interval of `total`, in bytes: the one that verdicts are about."""
        states = self.weights + self.gradients + self.master + self.optimizer
        others = self.activations + self.logits + self.buffers
        return overheads.needed_interval(self.total, states * 1.0, others * 1.0)

    def interval(self, kind: str = "allocated") -> tuple[Bytes, Bytes]:
        """80 % interval of one ``kind``: allocated, reserved (by the allocator) or device."""
        return overheads.interval(self.allocated if kind == "allocated" else self.reserved, kind)


PARTS = tuple(f.name for f in fields(Memory) if f.name not in ("reserved", "context"))
_CHUNK = 1 << 14
"""Layouts that are summed up at once: what stays in the cache."""


def memory(shape: ModelShape, layout: Layout, *, head: float = 1.0) -> Memory:
    """Return bytes per GPU of the worst stage; arrays where the layout has arrays.

    ``head``: share of the tokens that logits are computed for (0 for a small head of fine-tuning).
    """
    if layout.is_one:
        return _of_one(shape, layout, head)
    num, numerics = len(layout), numerics_of(shape, layout)
    if num <= _CHUNK:
        return _whole(_fullest(shape, layout, head), layout, numerics)
    import numpy as np

    pieces = []
    for start in range(0, num, _CHUNK):
        piece = layout.part(slice(start, start + _CHUNK))
        parts = _fullest(shape, piece, head)
        pieces.append({n: np.broadcast_to(v, (len(piece),)) for n, v in parts.items()})
    return _whole({n: np.concatenate([p[n] for p in pieces]) for n in pieces[0]}, layout, numerics)


@lru_cache(maxsize=256)
def _of_one(shape: ModelShape, layout: Layout, head: float) -> Memory:
    """Return one layout's, which is asked for more than once while it is chosen and shown."""
    numerics = stage_of(shape, layout, "last", head).numerics
    return _whole(_fullest(shape, layout, head), layout, numerics)


def host_bytes(shape: ModelShape, layout: Layout) -> Bytes:
    """Return bytes of one node's memory that its ranks keep there: the stage that has most, on all.

    With the optimizer on the host its masters and moments lie there, what ZeRO 2 shards of the
    gradients, and FSDP's shards of weights (`pipeline_stage`); on disk the optimizer's states do
    not.  DeepSpeed updates from gradients in fp32 there, and its ZeRO 3 keeps narrow ones besides.
    Pages of paged optimizers and offloaded checkpoints are the host's, too.
    """
    most: Bytes = 0.0
    for place in places(shape, layout):
        stage = stage_of(shape, layout, place)
        states, optimized = stage.states, stage.owned(1)
        size = states.paged * optimized + stage.offloaded_checkpoints
        if layout.memory.offload != "none":
            on_host = states.master + states.moments if layout.memory.offload == "host" else 0.0
            grads: Any = states.persistent_grad + states.transient_grad
            if (wide := layout.traits.ranks.host_gradient) > grads:
                grads = wide + choose(layout.sharding.zero >= 3, grads, 0.0)
            size = (
                size
                + on_host * optimized
                + choose(layout.sharding.zero >= 2, grads * stage.owned(2), 0.0)
            )
        if layout.memory.offload != "none" and layout.scheme == "fsdp":
            frozen = stage.frozen_bytes / stage.sharded(2) if layout.lora.rank else 0.0
            size = size + choose(
                layout.sharding.zero >= 2, states.weight * stage.owned(2) + frozen, 0.0
            )
        most = larger(most, size)
    return most * smaller(layout.mesh.gpus_per_node, layout.mesh.gpus)


def host_interval(shape: ModelShape, layout: Layout) -> tuple[Bytes, Bytes]:
    """Return the least and the most bytes of one node's memory that its ranks need there."""
    least = host_bytes(shape, layout)
    is_away = layout.memory.offload != "none"
    return least, least * (layout.traits.ranks.host_buffers if is_away else 1.0)


def peak_moment(shape: ModelShape, layout: Layout) -> str:
    """When a step of one layout needs most: ``the loss``, ``the optimizer's update``, …"""
    peaks = [
        (float(sum(peak.values())), name)
        for place in places(shape, layout)
        for stage in [stage_of(shape, layout, place)]
        for name, peak in zip(_moments(stage), memory_peaks(stage), strict=True)
    ]
    return max(peaks, key=lambda peak: peak[0])[1]


def _moments(stage: Stage) -> tuple[str, ...]:
    """Return the names of the moments that `memory_peaks` sums up, in its order."""
    plain = ("backward of the last plain block",) if stage.shape.num_decoder_layers else ()
    copied = ("the end of forward",) if _copies_all(stage.layout, stage.states) else ()
    return (
        "the loss, when all activations and logits exist",
        *copied,
        "backward of the last block",
        *plain,
        "the end of backward, when all gradients exist",
        "the optimizer's update",
    )


def _fullest(shape: ModelShape, layout: Layout, head: float) -> Parts:
    """Return bytes by part at the worst moment of the worst stage, for each layout."""
    worst: Parts = {}
    most: Bytes = -1
    for place in places(shape, layout):
        for peak in memory_peaks(stage_of(shape, layout, place, head)):
            size = sum(peak.values())
            higher = size > most
            if is_plain(higher) and not higher:
                continue
            if is_plain(higher) or higher.all():
                worst, most = peak, size
            elif higher.any():
                worst = {  # what stands all the time is one array
                    name: part if part is worst[name] else choose(higher, part, worst[name])
                    for name, part in peak.items()
                }
                most = choose(higher, size, most)
    return worst


def _whole(parts: Parts, layout: Layout, numerics: Numerics) -> Memory:
    """Return whole bytes: ints for one layout, arrays for many."""
    allocated, context = sum(parts.values()), overheads.context(layout)
    parts = parts | {
        "framework": context + overheads.unused(allocated, parts["logits"], layout, numerics),
        "reserved": overheads.reserved(
            allocated, parts["activations"], parts["logits"], layout, numerics
        ),
        "context": context,
    }
    many = not all(map(is_plain, parts.values()))
    if not many:
        return Memory(**{name: round(float(value)) for name, value in parts.items()})
    import numpy as np

    def whole(value: Bytes) -> Bytes:
        return np.broadcast_to(np.rint(value).astype(np.int64), (len(layout),))

    return Memory(**{name: whole(value) for name, value in parts.items()})
