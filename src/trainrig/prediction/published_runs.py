"""What others measured of the very step that is asked about, beside its prediction.

A published run (`catalog.published.training`) is of the same step where chip, number of GPUs,
model, lengths, batch, precision, parallelism and the link between devices are the same; a row that
does not state the link of cards that may have a bridge is left out.  Kernels and framework may
differ, and are named.  Where it took much longer than predicted, the step is solved for a host that
would explain it: seconds for each call that the framework makes, with which the predicted step
takes as long as the measured one.  Owners of one card differ by that much: a slow or busy processor
leaves the device waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainrig.catalog.published import training
from trainrig.prediction.step import predict_step
from trainrig.workload.model import SHAPE_KEYS

if TYPE_CHECKING:
    from trainrig.catalog.published.tables import Row
    from trainrig.prediction.prediction import Prediction
    from trainrig.workload.model import ModelShape

MOST = 6
SLOW = 1.5
"""Times the predicted step, from which on a run's host is asked for."""
SLOWEST_CALL = 1e-3
"""s of the host for one call: beyond it, something else is wrong."""
SAME = (
    *("gpus", "tp", "pp", "cp", "ep", "zero", "batch_size", "grad_accum", "seq_len", "precision"),
    *("recompute", "offload", "lora_rank", "quantize", "interleave", "schedule"),
)
"""Fields that two layouts of one step have in common."""
SAME_MODEL = (
    *("family", "num_layers", "hidden", "num_heads", "num_kv_heads", "ffn"),
    *("num_experts", "experts_per_token", "expert_ffn"),
)
"""Fields that two spellings of one model have in common; a Llama 3 8B has a Llama 2 7B's layers and
width."""
PADDED = 0.02
"""By so much of it a vocabulary differs from one program to another, which pad it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One published step of the layout that is predicted."""

    source: str
    framework: str
    kernels: str
    step_time_s: float
    ratio: float
    """Times the predicted step."""
    host_call_s: float | None
    """s of the host for each call that would explain a slow run; None: not slow, or none does."""


def published_runs(prediction: Prediction) -> tuple[PublishedRun, ...]:
    """Published runs of what is predicted, nearest first; none where the catalog lacks its chip."""
    chip = prediction.question.cluster.chip
    if chip is None:
        return ()
    runs = [
        run
        for row in training.steps()
        if row["on"] == chip.name and (run := _run(row, prediction)) is not None
    ]
    return tuple(sorted(runs, key=lambda run: abs(run.ratio - 1.0))[:MOST])


def _run(row: Row, prediction: Prediction) -> PublishedRun | None:
    layout, shape = prediction.layout, prediction.question.shape
    is_same = all(row[name] in ("", str(layout.get(name))) for name in SAME)
    if not is_same or not _is_same_model(row, shape):
        return None
    if layout.mesh.gpus > 1 and row["link_name"] != prediction.rates.links.inside.name:
        return None
    seconds = float(row["step_time_s"])
    return PublishedRun(
        source=row["source"],
        framework=row["program"],
        kernels=row["kernels"],
        step_time_s=seconds,
        ratio=seconds / prediction.time,
        host_call_s=_slow_host(prediction, seconds) if seconds > SLOW * prediction.time else None,
    )


def _is_same_model(row: Row, shape: ModelShape) -> bool:
    same = all(row[name] == str(SHAPE_KEYS.get(shape, name)) for name in SAME_MODEL)
    return same and abs(int(row["vocab"]) - shape.vocab) <= PADDED * shape.vocab


def _slow_host(prediction: Prediction, seconds: float) -> float | None:
    """s of the host for a call with which the predicted step takes ``seconds``."""
    shape, layout, rates = prediction.question.shape, prediction.layout, prediction.rates

    def step(call: float) -> float:
        return float(predict_step(shape, layout, rates.replace(launch=call)).total)

    low, high = rates.launch, SLOWEST_CALL
    if step(high) < seconds:
        return None
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if step(middle) < seconds else (low, middle)
    return high
