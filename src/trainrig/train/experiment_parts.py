"""The small types that an `Experiment` is made of, each about one idea of training.

    lr           the learning rate of each step
    update       the optimizer's numbers, and clipping
    heldout      losses over held-out text
    checkpoints  how often a training is saved
    recovery     when it ends early, and how it goes on after a rank was lost
    placement    interpreter, devices, threads and cores
    kernels      implementations of operations that a framework is told to run
    expected     what a training is held against

A field's type says what its key may be: `train.config` checks files and options by it.  A field's
key is its name, or the ``key`` of its metadata.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from trainrig.workload.layout.groups import check_words
from trainrig.workload.model import ATTENTIONS

LR_SCHEDULES = ("cosine", "linear", "constant", "wsd")
"""Names of learning-rate schedules; the first is the default."""

Text = Annotated[str, Field(description="text")]
Switch = Annotated[bool, Field(description="true or false")]
Above0 = Annotated[float, Field(gt=0.0, description="a number above 0")]
From0 = Annotated[float, Field(ge=0.0, description="a number from 0")]
Share = Annotated[float, Field(ge=0.0, lt=1.0, description="a number from 0 to below 1")]


def whole(least: int, most: int) -> Any:
    """Return the annotation of whole numbers from ``least`` to below ``most``."""
    words = f"a whole number from {least} to {most - 1}"
    return Field(ge=least, lt=most, description=words)


Count = Annotated[int, whole(1, 2**31)]
Whole = Annotated[int, whole(0, 2**63)]
Ranks = Annotated[int, whole(1, 4097)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRate:
    """The learning rate's peak, and how it rises to it and goes down from there."""

    peak: Above0 = field(default=1e-3, metadata={"key": "lr"})
    warmup: Annotated[int | None, whole(0, 2**63)] = None
    """Steps until the peak; a tenth of all, at most 100, unless given."""
    warmup_tokens: Whole = 0
    """Tokens of the warm-up, in place of ``warmup``."""
    shape: Text = field(default=LR_SCHEDULES[0], metadata={"key": "lr_schedule"})
    """One of LR_SCHEDULES."""
    decay_steps: Whole = 0
    """Steps that the schedule is planned for, warm-up included; 0: as many as are trained."""
    decay_tokens: Whole = 0
    """Tokens that it is planned for, in place of ``decay_steps``."""
    decay_ratio: Annotated[float, Field(gt=0.0, le=1.0, description="a number above 0 to 1")] = 0.1
    """Share of the planned length in which wsd decays, at its end."""
    min_factor: Share = field(default=0.1, metadata={"key": "min_lr_factor"})
    """The lowest rate as a share of the highest."""

    def __post_init__(self) -> None:
        check_words(self, {"shape": LR_SCHEDULES})


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdate:
    """Numbers of the optimizer, and the norm that gradients are clipped to."""

    weight_decay: From0 = 0.1
    decay_embeddings: Switch = True
    """True where weight decay applies to embeddings as to other matrices."""
    beta1: Share = 0.9
    beta2: Share = 0.95
    eps: Above0 = 1e-8
    clip: From0 = 1.0
    """Gradients of a larger norm are shortened to it; 0: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutLosses:
    """Losses over the held-out part of the text."""

    batches: Whole = field(default=8, metadata={"key": "heldout_batches"})
    """Batches of the held-out part that the loss is taken of; 0: none."""
    every: Whole = field(default=0, metadata={"key": "heldout_every"})
    """Steps between held-out losses; 0: one at the end.  There is one at the end in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Intervals between checkpoints, and the number that is kept."""

    every: Whole = field(default=100, metadata={"key": "checkpoint_every"})
    """Steps between checkpoints; 0: none by steps."""
    interval: From0 = field(default=600.0, metadata={"key": "checkpoint_interval"})
    """Seconds between checkpoints, at the step in which they are over; 0: none by time."""
    keep: Count = field(default=2, metadata={"key": "keep_checkpoints"})
    """The newest of them that stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """When a training ends early, and how it goes on after a rank was lost."""

    divergence: From0 = 2.0
    """Losses above so many times the usual one end the training (`divergence`); 0: none does."""
    max_restarts: Annotated[int, whole(0, 1001)] = 0
    """Most restarts of all ranks from the newest checkpoint after one was lost."""
    min_nproc: Annotated[int, whole(0, 4097)] = 0
    """The fewest ranks that it goes on with where one stays lost; 0: as many as there were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """Processes of a training on the machine: interpreter, devices, threads and cores."""

    python: Text = ""
    """The interpreter it runs in, if it is another project's; empty: see `interpreters`."""
    devices: Text = ""
    """GPUs of the ranks, by the driver's numbers: ``0,1``; empty: the first that may be used."""
    threads: Whole = 0
    """Threads of each process on a CPU; 0: as many as there are cores."""
    emulate: Switch = True
    """True: train in a precision that the device only emulates; false: skip the experiment."""
    p2p: Switch = True
    """True where GPUs copy to each other directly (NCCL's P2P)."""
    bind: Switch = False
    """True: keep each rank on processors of its own, beside its GPU or a part of a CPU's."""
    loader_workers: Annotated[int, whole(0, 257)] = 0
    """Processes that read for another framework; 0: its own process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKernels:
    """Implementations of operations that a framework is told to run."""

    attention: Text = "auto"
    """Attention implementation, one of `workload.model.ATTENTIONS`."""
    fp8_recipe: Text = ""
    """One of FP8_RECIPES; empty: the first."""
    liger: Switch = False
    """Liger's kernels in another framework's models."""
    trainer: Text = ""
    """Arguments of Hugging Face's Trainer by their own names (`trainer_arguments`)."""
    unfused: Text = ""
    """Words of UNFUSED that are left out, to see their worth: ``norm,gelu``."""
    cuda_graph: Switch = False
    """True: record a GPU's step once as a CUDA graph and replay it."""

    def __post_init__(self) -> None:
        check_words(self, {"attention": ATTENTIONS})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedOutcome:
    """Expectations of a training: one process's losses, a speed, its own repetition."""

    comparable: Switch = True
    """True where its losses should equal those of one process; else ``why`` is the reason."""
    why: Text = ""
    """Reason that it is known not to be comparable."""
    bar: From0 = 0.0
    """What ours should reach: of another framework's row so many times its speed, of a row of ours
    such a share of the matrix product measured beside it; 0: nothing."""
    rounds: Annotated[int, whole(1, 1001)] = 1
    """Number of trainings by fresh processes, interleaved with the run's other experiments."""
