"""What an offloaded training copies to the host and back, and what of it the device waits for.

Besides the device's own there are four pieces of work: gradients cross the host link, the host's
Adam reads and writes its states at its memory's rate (on disk: the disk's, if slower), updated
weights cross back, and FSDP's shards cross for each pass that gathers them.  By
`Overlap.offload`:

none       nothing runs beside anything: copies when the device is done, the update, weights back
copies     copies run beside computation, both ways at once: gradients beside the backward pass that
           makes them, FSDP's weights beside the passes before; then the update, and weights back
update     and gradients' way, update and way back take each other's pieces, a block at a time, once
           the last gradient is there (its norm comes first): the longest, and a block of the others
delayed    as copies, and the update runs beside the next step's computation, of weights that are
           a step older (Ren et al. 2021, section 4.3: one-step delayed parameter update)
auto       as the framework does (`RankTraits.offload_overlap`): DeepSpeed copies beside backward
           with ZeRO 2 and 3 (section 4.2), FSDP2 from pinned memory (torch's CPUOffloadPolicy);
           Trainer and Megatron do nothing beside (Megatron-Core: --overlap-cpu-optimizer-d2h-h2d is
           off)

DeepSpeed adds micro-batches up on the host by way of the device: from the second on (ZeRO 3: the
first) what is there is read back, added to and written in 16 bit, the last one sent in fp32 (its
stage_1_and_2, async_accumulate_grad_in_cpu_via_gpu).  With ZeRO 2 that is in the stream that sums
buckets on their owners, which copy in turn (`RankTraits.reduces_to_owner`).

Not modelled: processors that the host's Adam takes from the threads which launch, links that copies
share with collectives, and a delayed update's effect on what is learnt.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from trainrig.prediction.rates import Rates
from trainrig.prediction.step.calibration import HOST_ADAM_BYTES, HOST_CLIP_BYTES, Constants
from trainrig.prediction.step.communication import MeshSizes
from trainrig.workload.arrays import choose, larger, smaller

Array = Any
_DISK_BYTES = 24.0
"""Read and written on disk for a parameter: master and two moments in fp32, both ways."""


class Offload(NamedTuple):
    """Seconds of each piece by itself; fields are numbers, or arrays over layouts."""

    forward: Array = 0.0
    """Weights of a micro-batch's forward pass, to the device."""
    backward: Array = 0.0
    """Weights of its backward pass, to the device."""
    gradients: Array = 0.0
    """Gradients of each micro-batch, to the host."""
    once: Array = 0.0
    """Gradients of a step, to the host, when its last micro-batch is over."""
    update: Array = 0.0
    """The host's Adam, once a step, over this rank's share of the parameters."""
    back: Array = 0.0
    """Updated weights, once a step, to the device."""
    copies: Array = 0.0
    """1: copies run beside computation."""
    pieces: Array = 0.0
    """Blocks that copies and update are cut into, where they take turns; 0: they are not."""
    delayed: Array = 0.0
    """1: the update runs beside the next step."""


NOTHING = Offload()


def offloaded(mesh: MeshSizes, rates: Rates) -> Offload:
    """Gradients to the host, its Adam over this rank's share, weights back.

    FSDP's shards are on the host, frozen ones too: they cross the link for each forward pass, and
    with ZeRO 3 for each backward pass as well, as gradients do for each micro-batch.  Pages of
    paged optimizers cross for each update, and nothing is beside them.  Adam's time is its bytes
    (`HOST_ADAM_BYTES` a parameter, of all devices of the node) at the host memory's rate; where
    states are on disk, the longer of that and of their way there and back, or both in turn where
    nothing overlaps.
    """
    layout, shards, devices = mesh.layout, larger(mesh.shards, 1), mesh.per_node
    state_bytes = mesh.states
    if layout.memory.offload == "none":
        paged = state_bytes.paged
        return Offload(update=rates.offload(2.0 * paged * mesh.owned)) if paged else NOTHING
    mine = mesh.trained / shards
    gradients = rates.offload(mine * mesh.gradient_bytes, devices=devices)
    owners = layout.traits.ranks.reduces_to_owner
    touched = HOST_ADAM_BYTES + HOST_CLIP_BYTES * owners
    adam = mine * touched * mesh.per_node / rates.host_memory
    how = layout.overlap.offload
    if layout.memory.offload == "disk":
        states = rates.offload(mine * _DISK_BYTES * mesh.per_node, to="disk")
        adam = adam + states if how == "none" else larger(adam, states)
    is_usual = how == "auto"
    how = layout.traits.ranks.offload_overlap if is_usual else how
    # What nobody asked for is done where gradients leave during backward alone.
    copies = choose(mesh.zero >= 2, 1.0, 0.0) if is_usual else 1.0
    ways = {
        "update": adam,
        "copies": copies if how != "none" else 0.0,
        "pieces": mesh.stage_layers if how == "update" else 0.0,
        "delayed": float(how == "delayed"),
    }
    if layout.scheme == "fsdp":
        inner = mesh.stored_bytes if layout.lora.quantize != "none" else state_bytes.frozen
        frozen = inner * (mesh.stage_parameters - mesh.ends) + state_bytes.frozen_ends * mesh.ends
        frozen = frozen / shards if layout.lora.rank else 0.0
        weights = rates.offload(state_bytes.weight * mine + frozen, devices=devices)
        again = choose(mesh.zero >= 3, weights, 0.0)
        return Offload(forward=weights, backward=again, gradients=gradients, **ways)
    back = rates.offload(mine * mesh.weight_bytes, devices=devices)
    if not owners:
        return Offload(once=gradients, back=back, **ways)
    turns = choose(mesh.zero < 3, _turns(mesh, mine), 1.0)
    more = mesh.micro_batches - choose(mesh.zero < 3, 1, 0)  # are read, and written
    added = choose(mesh.zero >= 2, 2.0 * more / mesh.micro_batches, 0.0) * turns * gradients
    wide = turns * rates.offload(4.0 * mine, devices=devices)
    return Offload(gradients=added, once=wide, back=back, **ways)


def _turns(mesh: MeshSizes, mine: Array) -> Array:
    """Return the factor by which copies take longer where owners of buckets take turns.

    1 where all of a rank's ``mine`` parameters are in one bucket, which all ranks copy at once; up
    to the number of ranks, where buckets are so small that each has one owner, who copies alone.
    """
    buckets = larger(1.0, mesh.trained / mesh.layout.traits.ranks.bucket)
    return buckets * smaller(mesh.trained / buckets, mine) / mine


def waited_for(
    o: Offload, micro_batches: Array, window: tuple[Array, Array], c: Constants
) -> Array:
    """Return seconds of a step that the device waits for the host.

    ``window``: seconds of a micro-batch's forward and backward, as far as nothing else moves beside
    them.  A copy beside computation takes no more of the pass than `Constants.hidden`, and slows
    what it is beside by `Constants.sliced`.
    """
    forward, backward = window

    def beside(copied: Array, computed: Array) -> Array:
        hidden = o.copies * smaller(copied, c.hidden * computed)
        return copied - hidden + c.sliced * hidden

    # Beside computation the link carries both ways at once.
    both = choose(o.copies > 0, larger(o.backward, o.gradients), o.backward + o.gradients)
    copies = beside(o.forward, forward) + beside(both, backward)
    in_turn = larger(larger(o.once, o.update), o.back)
    lasts = o.once + o.update + o.back
    pieced = in_turn + (lasts - in_turn) / larger(o.pieces, 1.0)
    hidden = o.delayed * smaller(o.update, c.hidden * micro_batches * (forward + backward))
    plain = beside(o.once, larger(backward - both, 0.0)) + o.update - hidden + o.back
    return micro_batches * copies + choose(o.pieces > 0, smaller(pieced, plain), plain)
