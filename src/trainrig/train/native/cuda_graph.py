"""A step of one GPU as a CUDA graph: recorded once, then started by a single launch.

At small shapes the host takes longer to launch a step's kernels than the GPU to run them.  A graph
holds forward, backward, norm, clip and update of all micro-batches, for samples of one size in
memory that stays where it is; copied into it are the next samples, and the learning rate is a
number on the device.  The first steps run as usual, on a stream of their own, so that every buffer
is there before the recording (pytorch.org/docs/stable/notes/cuda.html, "CUDA Graphs").

What is recorded runs no Python any more: no marks lie inside, and all of a replay counts as
backward.  Unverified on hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trainrig.train.config import Experiment

WARM_UP = 2
"""Steps before the recording."""
Numbers = tuple[Tensor, Tensor]
"""Loss and gradient norm."""


def is_recorded(experiment: Experiment, device: str) -> bool:
    """Return whether an experiment's steps are recorded as CUDA graphs; plain SGD's never are."""
    return (
        experiment.kernels.cuda_graph
        and device.startswith("cuda")
        and experiment.optimizer != "sgd"
    )


class StepGraph:
    """``compute(micro-batches) -> numbers``, recorded after WARM_UP calls."""

    def __init__(self, compute: Callable[[Sequence[Any]], Numbers], device: str) -> None:
        self._compute, self._device = compute, device
        self._calls = 0
        self._stream = torch.cuda.Stream(device)
        self._graph: Any = None
        self._micros: Sequence[Any] = ()
        self._numbers: Numbers | None = None

    def __call__(self, micros: Sequence[Any]) -> Numbers:
        """A step; its numbers stay true until the next one."""
        self._calls += 1
        if self._calls <= WARM_UP:
            return self._run_on_side_stream(micros)
        if self._graph is None:
            self._micros = micros  # the graph reads from where they lie
            self._graph = torch.cuda.CUDAGraph()
            # the loader's thread pins memory meanwhile, which a global capture forbids
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._numbers = self._compute(micros)
        else:
            for recorded, new in zip(self._micros, micros, strict=True):
                recorded.inputs.copy_(new.inputs, non_blocking=True)
                recorded.labels.copy_(new.labels, non_blocking=True)
        self._graph.replay()  # what is recorded has not run
        assert self._numbers is not None
        return self._numbers

    def _run_on_side_stream(self, micros: Sequence[Any]) -> Numbers:
        """On another stream than the recording's memory is taken from, as torch asks for."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            numbers = self._compute(micros)
        current.wait_stream(self._stream)
        return numbers
