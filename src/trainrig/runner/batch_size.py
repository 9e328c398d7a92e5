"""Choose the batch size for ``auto``: the largest that fits, by formula or by trying.

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
    """Return the next smaller size to try where ``batch`` did not fit; None if there is none."""
    return batch // 2 if batch > 1 else None


def bound_of(experiment: Experiment) -> int:
    """Return the largest size that ``auto`` may choose."""
    return MOST["cuda" if experiment.device.startswith("cuda") else "cpu"]


def guess(experiment: Experiment, free: float) -> int:
    """Return the largest size, at least 1, that fits in ``free`` bytes by the formula."""
    room = (
        free / experiment.mesh.ranks if experiment.device == "cpu" else free
    )  # ranks share the host's memory
    largest = largest_batch_size(find(experiment.model), experiment.predicted_layout, room)
    return max(1, min(largest, bound_of(experiment)))


def split_to_fit(reference: Experiment, free: float) -> Experiment:
    """Split a one-process reference into micro-batches that fit ``free`` bytes (0: unknown).

    The formula leaves out what other processes and the allocator's rounding take: a tenth.
    """
    if not free:
        return reference
    room = SAFE * free
    return in_parts(reference, largest_batch_size(find(reference.model), reference.layout, room))


SAFE = 0.9


def by_doubling(experiment: Experiment, fits: Callable[[Experiment], bool]) -> int:
    """Return the largest power of two that ``fits``, up to the bound; 1 if none does."""
    batch = 1
    while batch <= bound_of(experiment) and fits(
        experiment.replace(batch_size=batch, steps=TRIAL_STEPS)
    ):
        batch *= 2
    return max(1, batch // 2)


def state_bytes(experiment: Experiment) -> int:
    """Return the bytes of a rank that do not depend on batch size: its least need."""
    shape: ModelShape = find(experiment.model)
    memory_use = memory(shape, experiment.predicted_layout)
    states = memory_use.weights + memory_use.gradients + memory_use.master + memory_use.optimizer
    if (
        experiment.layout.traits.ranks.composes and experiment.layout.sharding.zero
    ):  # a rank never holds more than its part
        return int(states)
    return max(int(states), 4 * parameters(shape).total)  # a rank begins with all weights in fp32


def host_bytes(experiment: Experiment) -> float:
    """Return about how many bytes all ranks on the host need: a step's, and prefetched samples."""
    step = float(memory(find(experiment.model), experiment.predicted_layout).allocated)
    return experiment.mesh.ranks * (step + _AHEAD * 16.0 * experiment.samples * experiment.seq_len)


def states_do_not_fit(experiment: Experiment, free: float) -> str | None:
    """Return why not even the batch-independent bytes fit in ``free`` (0: unknown), or None."""
    needed = state_bytes(experiment) * (experiment.mesh.ranks if experiment.device == "cpu" else 1)
    if not free or needed <= free:
        return None
    return f"weights, gradients and optimizer alone need {_not_started(needed, free)}"


def swapping(experiment: Experiment, free: float) -> str | None:
    """Return why a step on the host would swap long before it failed, or None."""
    needed = host_bytes(experiment)
    if experiment.device != "cpu" or not free or needed <= MARGIN * free:
        return None
    return f"a step needs about {_not_started(needed, free)}"


def _not_started(needed: float, free: float) -> str:
    return f"{format_memory(needed)}, and {format_memory(free)} are free: not started"
