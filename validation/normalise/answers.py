"""Step time and memory of each row of a table of training runs, or why there are none.

Answers `trainrig predict --cases`: for each row of a CSV with the published table's columns,
seconds of a step and bytes a GPU, of the kind that the row prints, with an 80 % interval each.
What a row means is `case`'s, what a layout needs `workload.memory`'s.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

from trainrig.errors import TrainrigError
from trainrig.prediction.step import StepTime, predict_step, stage_seconds
from trainrig.workload.flops import model_flops
from trainrig.workload.layout import Layout
from trainrig.workload.memory import Memory, memory
from trainrig.workload.memory.overheads import loss_bytes
from trainrig.workload.model import ModelShape, expert_parameters, parameters
from trainrig.workload.numerics import numerics_of
from validation.normalise.case import Case, case_of
from validation.normalise.cells import Row
from validation.normalise.columns import READ
from validation.normalise.feasible import NOT_HELD

Three = tuple[float, float, float]
"""Low, predicted, high."""


def predict_rows(rows: Iterable[Row], *, simulate: bool = False) -> Iterator[dict[str, Any]]:
    """One object for each row, in order; ``simulate`` as for `predict_row`."""
    from trainrig.process.pool import ordered_map  # one answer needs no processes, and no numpy

    ask = partial(_answers, simulate=simulate)
    for number, answer in enumerate(ordered_map(ask, rows, at_least=500 if simulate else 2000)):
        yield {"row": number} | answer


def predict_row(row: Row, *, simulate: bool = False) -> dict[str, Any]:
    """Step time and memory of a row with 80 % intervals, or the reason why there are none.

    ``tokens_per_s_per_gpu``: of a row whose batch is presumed, all that may be compared.
    ``presumed``: columns whose cells a default stands for, or another reading than the printed;
    ``remark``: what is odd about the answer, as a layout that needs more memory than there is.
    ``simulate``: beside the closed form's seconds (``step_time_s``) those of the step's pipeline
    event by event, ``simulated_step_time_s``; without a pipeline they are the same.
    """
    return _answers([row], simulate=simulate)[0]


def _answers(rows: Sequence[Row], *, simulate: bool) -> list[dict[str, Any]]:
    """`predict_row` of each; pipelines of one form run together."""
    known_rows = [_known(tuple(row.get(name) or "" for name in READ), simulate) for row in rows]
    if not simulate:
        return [_answer(known_row) for known_row in known_rows]
    from trainrig.prediction.step.simulate import simulated_together

    try:
        seconds = iter(
            simulated_together(
                [known_row.stages for known_row in known_rows if known_row.stages is not None]
            )
        )
    except Exception as error:  # noqa: BLE001 - likewise: each by itself, to find whose fault it is
        if len(rows) > 1:
            return [_answers([row], simulate=True)[0] for row in rows]
        known_rows, seconds = [_Known(reason=_mistake(error))], iter(())
    return [
        _answer(
            known_row, simulated_step_time_s=None if known_row.stages is None else next(seconds)
        )
        for known_row in known_rows
    ]


def _answer(known_row: _Known, **more: float | None) -> dict[str, Any]:
    answer = {"step_time_s": known_row.time, "memory_bytes_per_gpu": known_row.memory}
    middles = {name: None if three is None else three[1] for name, three in answer.items()}
    rate = None if known_row.time is None else known_row.tokens / known_row.time[1]
    ends = {name: None if three is None else three[::2] for name, three in answer.items()}
    words = {
        "presumed": list(known_row.presumed),
        "remark": known_row.remark,
        "reason": known_row.reason,
    }
    return {**middles, **more, "tokens_per_s_per_gpu": rate, "interval": ends, **words}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is known of a row."""

    time: Three | None = None
    memory: Three | None = None
    tokens: float = 0.0
    """Of a GPU's step: what a rate counts, whether the batch is stated or presumed."""
    presumed: tuple[str, ...] = ()
    remark: str | None = None
    reason: str | None = None
    """Reason that there is no answer."""
    stages: tuple[Layout, StepTime, Mapping[str, float]] | None = None
    """What a simulation starts from."""


@lru_cache(maxsize=1 << 14)
def _known(row: tuple[str, ...], simulate: bool) -> _Known:
    """Return what is known of a row, which may come again."""
    try:
        case = case_of(dict(zip(READ, row, strict=True)))
        questions = case.shape, case.timed, case.rates
        if simulate:
            step, seconds = stage_seconds(*questions, head=case.head)
        else:
            step, seconds = predict_step(*questions, head=case.head), {}
        return _Known(
            time=interval_of(case, step),
            memory=memory_of(case),
            tokens=float(case.timed.global_batch * case.timed.batch.seq_len / case.timed.mesh.gpus),
            presumed=case.presumed,
            remark=_remark(case),
            stages=(case.timed, step, seconds) if simulate else None,
        )
    except (TrainrigError, OverflowError) as error:
        return _Known(reason=str(error))
    except Exception as error:  # noqa: BLE001 - whatever one row hits, the others are answered
        return _Known(reason=_mistake(error))


def _mistake(error: Exception) -> str:
    """The reason why there is no answer, where the fault is ours: what was raised, and where."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).stem}.{place.name}, line {place.lineno}"
    return f"an error of trainrig itself: {type(error).__name__} in {where} ({str(error)[:80]})"


def _remark(case: Case) -> str | None:
    """That the layout needs more than the card has, where it does by more than the model errs."""
    share = memory(case.shape, case.layout, head=case.head).total / case.rates.memory_bytes
    if share <= NOT_HELD:
        return None
    words = f"{share:.2g} times the memory of {case.chip.name} by our count"
    open_cells = [name for name in ("recompute", "zero_stage", "offload") if name in case.presumed]
    return words + (f"; not stated: {', '.join(open_cells)}" if open_cells else "")


def time_of(case: Case) -> Three:
    """Low, predicted, high seconds of a step."""
    return interval_of(case, predict_step(case.shape, case.timed, case.rates, head=case.head))


def interval_of(case: Case, step: StepTime) -> Three:
    """Low, predicted, high seconds of a step that is predicted already.

    Its lower end is no shorter than the step's products take at what the chip claims, where the row
    states all that decides them.
    """
    low, high = step.interval_with(*case.spreads)
    return min(max(low, least_seconds(case)), step.total), step.total, high


def least_seconds(case: Case) -> float:
    """Seconds that no run of a row is shorter than: its products at the claimed rate; 0: not known.

    Products with weights alone, each token by itself: of attention's scores some kernels leave out
    those that are masked, or far away.  Not known where a blank cell decides the products or their
    format, of adapters (frozen weights have no gradients), of logits of a few tokens, and of
    decoders, which write fewer tokens than are read.
    """
    x, shape = case.timed, case.shape
    is_part = x.lora.rank or case.head < 1.0 or shape.num_decoder_layers
    claimed = case.rates.peaks.get(x.precision.compute)
    if claimed is None or is_part or not _DECIDES_PRODUCTS.isdisjoint(case.presumed):
        return 0.0
    tokens = float(x.global_batch * x.batch.seq_len)
    return tokens * _flops_of_a_token(shape) / (_ABOVE_CLAIM * claimed * float(x.mesh.gpus))


@lru_cache(maxsize=1024)
def _flops_of_a_token(shape: ModelShape) -> int:
    """Of both passes, of a token that is a sequence by itself."""
    return model_flops(shape, 1, 1)


_DECIDES_PRODUCTS = {
    *("chip", "precision", "num_gpus", "nodes", "dp", "global_batch", "micro_batch", "grad_accum"),
    *("seq", "seq_len", "mean_seq", "kind", "model", "params_b", "layers", "heads", "ffn", "vocab"),
    "num_experts",
}
"""Columns that say how many FLOPs a step has, and in what."""
_ABOVE_CLAIM = 1.12
"""Of the claim, what products reach at the most: a claim is at a clock that cards may exceed (RTX
5090, catalog/published/squares.csv; no chip of a data center reaches 1)."""


def memory_of(case: Case) -> Three:
    """Low, predicted, high bytes on each GPU, of the kind that the row states.

    Where it states none it is the allocator's, and the interval is from the least to the most.  No
    run prints more than its card has: of what may be needed, as far as is known, the median of what
    ends counts.  A program that takes most of a card at once has the driver show that.
    """
    layout, kind = case.layout, case.memory_kind
    if case.offloads_checkpoints:  # a block's alone are here
        layout = layout.replace(recompute="full", offload_checkpoints=1)
    if case.states_away:  # an update without moments
        layout = layout.replace(offload="none", optimizer="sgd")
    if case.states_away == "gradients":  # and without masters: each leaves as it comes
        layout = layout.replace(states="pure", optimizer_in_backward=1)
    memory_use = memory(case.shape, layout, head=case.head)
    memory_use = _without_experts(memory_use, case.shape) if case.sends_experts else memory_use
    more = _of_other_lengths(case, layout) if case.varies and kind != "allocated" else 0.0
    low, high = _ends(case, layout, memory_use)
    unsure = (name for name in case.presumed if name not in case.by_program)
    wider = math.exp(math.hypot(*(_MEMORY_UNSURE.get(name, 0.0) for name in unsure)))
    low, high = low / wider, (high + _MOST * more) * wider
    middles = {
        "allocated": memory_use.allocated,
        "reserved": memory_use.reserved + more,
        "device": memory_use.shown + more,
    }
    if case.allocates_once:
        middles |= {
            "reserved": memory_use.allocated,
            "device": memory_use.allocated + memory_use.context,
        }
    middle, most = middles[kind or "reserved"], float(case.rates.memory_bytes)
    if case.preallocates and kind in ("device", ""):
        preallocated = _TAKEN_AHEAD * most
        high = max(high, preallocated + memory_use.context)
        middle = max(middle, preallocated) if kind else middle
    most -= 0.0 if kind == "device" else memory_use.context
    if middle > most:
        low = min(low, _LEAST_IN_USE * most)
    high = min(high, max(float(case.rates.memory_bytes), low))
    spread = NormalDist(math.log(max(middle, most)), math.hypot(math.log(wider), _STATED))
    ended = max(spread.cdf(math.log(most)), 1e-12)
    middle = min(middle, math.exp(spread.inv_cdf(ended / 2.0)), most)
    return min(low, middle), middle, max(middle, high)


def _ends(case: Case, layout: Layout, memory_use: Memory) -> tuple[float, float]:
    """80 % interval of the bytes, from the least to the most that what is presumed leaves open."""
    kind = case.memory_kind
    low, high = _interval(memory_use, kind)
    if "offload" in case.presumed:
        away = memory(case.shape, layout.replace(offload="host"), head=case.head)
        low = min(low, _interval(away, kind)[0])
    if layout.kernels.stack == "compiled" and layout.kernels.loss == "auto":
        # Some compile their blocks alone (torchtitan, until 2025).
        apart = memory(case.shape, layout.replace(loss="whole"), head=case.head)
        high = max(high, _interval(apart, kind)[1])
    return low, high


_MEMORY_UNSURE = {
    "kernel_stack": 0.18,
    "recompute": 0.35,
    "micro_batch": 0.2,
    "precision": 0.2,
    "zero_stage": 0.2,
    "ffn": 0.07,
    "vocab": 0.07,
    "layers": 0.15,
    "seq_len": 0.3,
    "num_gpus": 0.15,
    "global_batch": 0.15,
    "ep": 0.15,
}
"""What a cell that is not stated adds to the uncertainty of memory (natural logarithm).  Presumed;
what programs do by default is known of most: eight of ten rows of the third table with several such
cells are within 0.25."""
_TAKEN_AHEAD = 0.75
"""Of a GPU's memory, what JAX takes with its first operation (its documentation, GPU memory
allocation)."""
_OTHER_LENGTHS, _MOST = 0.9, 2.0
"""Of the loss' bytes of the longest batch, what shorter ones hold besides, and how many times that
at the most: forty batches of lengths as examples have them, the longest anywhere, replayed through
torch's rules (`validation.allocator --varied`: 0.65 to 1.1 on average, 0 to 2 each)."""
_LEAST_IN_USE = 0.5
"""Of a card, the least that is presumed of a run that should not fit: most of it is in use."""
_STATED = 0.07
"""What memory errs by where all cells are stated (natural logarithm, one deviation): the cells of
training-2.csv are 5 % off, half of all."""


def _without_experts(memory_use: Memory, shape: ModelShape) -> Memory:
    """Memory without a mixture's experts, whose weights and states are on the host."""
    num = parameters(shape)
    mixed = shape.num_layers - shape.moe.dense_layers
    left = 1.0 - mixed * expert_parameters(shape) / num.total
    names = ("weights", "gradients", "master", "optimizer")
    here = {name: left * getattr(memory_use, name) for name in names}
    away = sum(getattr(memory_use, name) - here[name] for name in names)
    return replace(memory_use, **here, reserved=memory_use.reserved - away)


def _of_other_lengths(case: Case, layout: Layout) -> float:
    """Bytes that the allocator holds of batches of other lengths, beside those of the longest.

    Whole logits are blocks of their own, and those of a shorter batch are of no use to a longer
    one: they stay.  What is packed or fused has none of it.
    """
    numerics = numerics_of(case.shape, layout)
    if numerics.loss.fused or numerics.loss.chunked or layout.traits.models.splits_vocabulary:
        return 0.0
    written = layout.batch.written if case.shape.family == "t5" else layout.part_of_sequence
    rows = case.head * layout.batch.micro * written
    return float(_OTHER_LENGTHS * loss_bytes(case.shape, layout, numerics, rows))


def _interval(memory_use: Memory, kind: str) -> tuple[float, float]:
    """80 % interval of one kind, or of all where nobody says which."""
    if kind:
        return memory_use.interval(kind)
    return memory_use.interval("allocated")[0], memory_use.interval("device")[1]
