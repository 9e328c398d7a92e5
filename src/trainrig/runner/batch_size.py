"""Which batch size ``auto`` becomes: the largest that fits, by formula or by trying.

Where a device's memory is known, the formula that `fits` uses gives the first guess; else sizes
are doubled from 1 on until one does not fit.  Both end at a bound, for beyond it a step takes
longer and says nothing new.  Either way the training itself is the proof: where it runs out of
memory, half of it is next (`smaller`).
"""

from __future__ import annotations

from collections.abc import Callable

from trainrig.prediction.fit.memory_options import largest_batch_size
from trainrig.train.config import Experiment
from trainrig.train.parity import in_parts
from trainrig.units import format_memory
from trainrig.workload import ModelShape, find, parameters
from trainrig.workload.memory import memory

MOST = {"cpu": 16, "cuda": 4096}
"""Samples at once beyond which ``auto`` does not look."""
TRIAL_STEPS = 2
"""Steps that show whether a size fits: in the second the optimizer's states are there too."""
MARGIN = 2.0
"""The formula is a GPU's: on the host it was seen to say 1.6 times what was needed."""
_AHEAD = 3
"""Steps whose samples are there at once: the loader's two, and the one that is trained."""


def smaller(batch: int) -> int | None:
    """What is tried where ``batch`` did not fit; None where nothing is left."""
    return batch // 2 if batch > 1 else None


def bound_of(own: Experiment) -> int:
    """The largest size that ``auto`` becomes."""
    return MOST["cuda" if own.device.startswith("cuda") else "cpu"]


def guess(own: Experiment, free: float) -> int:
    """The largest size that fits in ``free`` bytes of a device by the formula, 1 at the least."""
    room = free / own.mesh.ranks if own.device == "cpu" else free  # ranks share the host's memory
    found = largest_batch_size(find(own.model), own.predicted_layout, room)
    return max(1, min(found, bound_of(own)))


def split_to_fit(reference: Experiment, free: float) -> Experiment:
    """A one-process reference in micro-batches that fit ``free`` bytes by the formula; 0: unknown.

    The formula leaves out what other processes and the allocator's rounding take: a tenth.
    """
    if not free:
        return reference
    room = SAFE * free
    return in_parts(reference, largest_batch_size(find(reference.model), reference.layout, room))


SAFE = 0.9


def by_doubling(own: Experiment, fits: Callable[[Experiment], bool]) -> int:
    """The largest power of two that ``fits``, up to the bound; 1 where even that does not."""
    batch = 1
    while batch <= bound_of(own) and fits(own.replace(batch_size=batch, steps=TRIAL_STEPS)):
        batch *= 2
    return max(1, batch // 2)


def state_bytes(own: Experiment) -> int:
    """Bytes of a rank that no batch size changes: the least that it needs."""
    shape: ModelShape = find(own.model)
    found = memory(shape, own.predicted_layout)
    states = found.weights + found.gradients + found.master + found.optimizer
    if (
        own.layout.traits.ranks.composes and own.layout.sharding.zero
    ):  # a rank never holds more than its part
        return int(states)
    return max(int(states), 4 * parameters(shape).total)  # a rank begins with all weights in fp32


def host_bytes(own: Experiment) -> float:
    """Bytes that all ranks on the host need, about: a step's, and the samples read ahead."""
    step = float(memory(find(own.model), own.predicted_layout).allocated)
    return own.mesh.ranks * (step + _AHEAD * 16.0 * own.samples * own.seq_len)


def states_do_not_fit(own: Experiment, free: float) -> str | None:
    """Why not even what no batch size changes fits in ``free`` bytes, or None; 0: not known."""
    needed = state_bytes(own) * (own.mesh.ranks if own.device == "cpu" else 1)
    if not free or needed <= free:
        return None
    return f"weights, gradients and optimizer alone need {_not_started(needed, free)}"


def swapping(own: Experiment, free: float) -> str | None:
    """Why a step on the host would swap for long before it failed, or None."""
    needed = host_bytes(own)
    if own.device != "cpu" or not free or needed <= MARGIN * free:
        return None
    return f"a step needs about {_not_started(needed, free)}"


def _not_started(needed: float, free: float) -> str:
    return f"{format_memory(needed)}, and {format_memory(free)} are free: not started"
