"""Rule and probe that decide whether two trainings compute the same.

Adam divides by the gradient's own size and clipping shortens it, so both hide a gradient of a wrong
scale.  Compared are the first step's loss and gradient norm, within 1e-3, and the losses of five
steps of plain gradient descent without clipping, within 1e-4 in fp32 and 2e-2 in bf16, fp16 and
fp8; all relative.  A reference trains in one process, on the same samples, in the same precision;
in smaller micro-batches where a device has not the memory for a step's activations at
once, and with fewer layers (on both sides) where it has not the memory for the model.  In fp16
the first step may overflow in both, which is equal: compared is the norm of the first that has one.

fp8 is compared with one process in fp8 of the same recipe.  Scales of rows do not depend on how a
step is cut (norms were 4e-5 apart, emulated); those of whole tensors do (1.5e-3 over four
micro-batches): a row of recipe tensorwise that is cut otherwise declares it (``comparable``).

Two recipes for bf16 (bf16 weights, or fp32 weights under autocast) round in other places.  Where
backward begins with a mean over N targets (Trainer, DeepSpeed), the gradient of the logits is
narrowed to bf16, and with it 1/N, for all targets alike: up to 4e-3 too much or too little (N = 36:
2e-3 too much; N a power of two: nothing), and the norm with it.  That factor is known before: a
driver states it (``narrowing``), the first norm is compared without it, and the row says so.
What is more than rounding can be is not taken out, whatever a driver states.
And fp32 weights under autocast are no bf16 weights: which of a step's tensors are rounded differs,
weights that all tokens share among them.  One rounding of a shared factor, 2^-9, moves a norm by no
more than that, and so much is tolerated there (``autocast``).  Of 24 draws of three small BERTs the
two recipes' norms were up to 1.0e-3 apart, and each from fp32's as far (docs/log.md, 2026-11-23).
Where N divides last, in fp32 (ours, Megatron with per-token loss), it is 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.benchmarks.training import SPLITS
from trainrig.train.config import Experiment
from trainrig.train.trainer_arguments import LIBRARY_TRAINER
from trainrig.workload import find
from trainrig.workload.layout import Layout
from trainrig.workload.model_lookup import with_layers

FIRST = 1e-3
"""Relative tolerance of the first step's loss and gradient norm."""
LATER = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 2e-2, "fp16": 2e-2, "fp8": 2e-2}
"""Relative tolerances of later losses; TF32 has fp16's mantissa (unverified on hardware)."""
ONE_ROUNDING = 2**-9
"""Tolerance of the first norm where one side has fp32 weights under autocast: bf16's rounding."""
MOST_NARROWING = 2**-8 * 1.01
"""Largest relative effect of rounding 1/N to bf16, on both sides of a comparison."""
STEPS = 5
RATE = 0.05
REFERENCE = Layout().framework
"""The framework that is trained with where none is named: ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Losses and gradient norms of the probe's five steps."""

    losses: tuple[float | None, ...]
    """Loss of each step; None where it was not a number."""
    grad_norms: tuple[float | None, ...]
    only_first: bool = False
    """Adapters were trained: its first loss is the whole model's, its gradients are of others."""
    narrowing: float = 1.0
    """Factor by which rounding 1/N at the logits enlarges the gradients."""
    autocast: bool = False
    """Weights are fp32 and rounded to bf16 where they are used; else they are bf16."""

    @property
    def without(self) -> list[float | None]:
        """Return the gradient norms without the narrowing."""
        return [norm and norm / self._by_rounding for norm in self.grad_norms]

    @property
    def _by_rounding(self) -> float:
        return self.narrowing if abs(self.narrowing - 1) <= MOST_NARROWING else 1.0

    @property
    def rounding(self) -> str | None:
        """Return in words what rounding keeps from being compared; None: nothing."""
        if self.only_first:
            return (
                "its first loss alone is compared: adapters begin as no change, and their "
                "gradients are of other weights"
            )
        notes = []
        if abs(self._by_rounding - 1) >= FIRST / 10:
            notes.append(
                f"the 1/N of a mean over N targets is {self.narrowing:.4f} times itself in half "
                "precision, and all gradients with it: their first norm is compared without that"
            )
        if self.autocast:
            notes.append(
                "its weights are fp32 under autocast, the reference's bf16: their first norms are "
                "compared within one rounding of bf16, 2.0e-3"
            )
        return "; ".join(notes) or None


def probe_of(experiment: Experiment) -> Experiment:
    """Return the five steps of plain gradient descent that are compared."""
    return experiment.replace(
        steps=STEPS,
        optimizer="sgd",
        lr=RATE,
        **{key: _USUAL.get(key) for key in _SCHEDULE},
        warmup=0,
        weight_decay=0.0,
        clip=0.0,
        heldout_every=0,
    )


_USUAL = Experiment.of()
_SCHEDULE = ("lr_schedule", "warmup_tokens", "decay_steps", "decay_tokens", "min_lr_factor")


def reference_of(experiment: Experiment) -> Experiment:
    """Return one process that trains on the same samples: micro-batches instead of ranks."""
    usual = Experiment.of()
    return experiment.replace(
        **{name: usual.get(name) for name in SPLITS},
        name="one-process reference",
        framework=reference_framework(experiment.model),
        parallel="auto",
        python="",
        nproc=1,
        devices=experiment.placement.devices.split(",")[0],
        zero=0,
        shard_size=0,
        offload="none",
        compile=False,
        unfused="",
        cuda_graph=False,
        liger=False,
        trainer="",
        lora_rank=0,
        quantize="none",
        loader_workers=0,
        bind=False,
        recompute="none",
        grad_accum=experiment.grad_accum * experiment.mesh.dp,
        optimizer="adamw-fused",
    )


def reference_framework(model: str) -> str:
    """Return the framework of a model's one-process reference: ours, where it builds the model."""
    return LIBRARY_TRAINER if find(model).is_only_predicted else REFERENCE


def in_parts(reference: Experiment, largest: int) -> Experiment:
    """A reference whose samples are computed in equal parts of at most ``largest`` at a time.

    Its step has the same samples and, but for the order of sums, the same gradients.
    """
    size = reference.batch_size
    part = next((n for n in range(min(size, largest), 0, -1) if size % n == 0), 1)
    return reference.replace(batch_size=part, grad_accum=reference.grad_accum * (size // part))


def shortened(experiment: Experiment) -> Experiment:
    """Return the layout of ``experiment`` with a model as wide of two layers a pipeline stage.

    For what one process cannot hold whole: each layer is computed as in the whole model, from fresh
    weights, since ``init`` has those of all layers.
    """
    layers = 2 * experiment.mesh.pp * int(experiment.layout.pipeline.interleave)
    return experiment.replace(model=with_layers(experiment.model, layers), init="", steps=1)


def is_alone(experiment: Experiment) -> bool:
    """Return whether one process of the reference's framework trains it."""
    if experiment.mesh.ranks > 1:
        return False
    is_ours = experiment.framework == REFERENCE  # which trains no model of the library's alone
    return is_ours or experiment.framework == reference_framework(experiment.model)


def is_reference(experiment: Experiment, other: Experiment) -> bool:
    """Return whether ``experiment`` is ``other``'s samples and precision in one process."""
    other_kernels = (
        experiment.compile or experiment.kernels.unfused or experiment.kernels.cuda_graph
    )
    if not is_alone(experiment) or experiment.recompute != "none" or other_kernels:
        return False
    return all(experiment.get(key) == other.get(key) for key in _SAME) and (
        experiment.global_samples == other.global_samples
    )


_SAME = ("model", "data", "init", "seq_len", "precision", "fp8_recipe", "seed", "device", "dropout")


def disagreement(probe: Probe, reference: Probe, dtype: str) -> str | None:
    """Return why the two are not comparable; None if they are."""
    if probe.only_first and probe.losses and reference.losses:
        return _difference("loss", 0, probe.losses, reference.losses, FIRST)
    if len(probe.losses) != STEPS or len(reference.losses) != STEPS:
        return f"{len(probe.losses)} of {STEPS} steps were trained"
    # Where fp16 overflows there is no norm and no update: the next step has the same gradients.
    overflown = 0
    norms = list(zip(probe.grad_norms, reference.grad_norms, strict=True))
    while dtype == "fp16" and overflown < STEPS and norms[overflown] == (None, None):
        overflown += 1
    if overflown == STEPS:
        return "every step overflowed, in the one-process reference too: nothing was compared"
    within = FIRST if probe.autocast == reference.autocast else ONE_ROUNDING
    first = _difference("gradient norm", overflown, probe.without, reference.grad_norms, within)
    difference = _difference("loss", 0, probe.losses, reference.losses, FIRST) or first
    for step in range(1, STEPS):
        difference = difference or _difference(
            "loss", step, probe.losses, reference.losses, LATER[dtype]
        )
    return difference


def gaps(probe: Probe, reference: Probe) -> tuple[float, float | None] | None:
    """Return largest relative gap of a loss, and that of the first gradient norm that both have.

    None in its place: the norm is not compared, as `Probe.rounding` says.
    """
    count = 1 if probe.only_first else len(probe.losses)
    pairs = (probe.losses[:count], reference.losses), (probe.without, reference.grad_norms)
    losses, norms = (
        [abs(a - b) / abs(b) for a, b in zip(*pair, strict=False) if a is not None and b]
        for pair in pairs
    )
    if probe.only_first and losses:
        return losses[0], None
    return (max(losses), norms[0]) if losses and norms else None


def _difference(
    quantity: str,
    step: int,
    values: Sequence[float | None],
    reference: Sequence[float | None],
    tolerance: float,
) -> str | None:
    a, b = (math.nan if (x := series[step]) is None else x for series in (values, reference))
    gap = abs(a - b) / abs(b) if b else math.inf
    if gap <= tolerance:  # no NaN is
        return None
    ratio = a / b if b else math.nan
    return (
        f"{quantity} of step {step}: {a:.6g}, the one-process reference has {b:.6g} "
        f"({ratio:.4g} times; tolerance {tolerance:.0e})"
    )
