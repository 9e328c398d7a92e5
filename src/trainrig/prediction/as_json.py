"""Predictions and fits in plain values: what ``--json`` prints, which others script against."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from trainrig.prediction.launch_lines import launch_line
from trainrig.prediction.prediction import Prediction
from trainrig.prediction.published_runs import published_runs
from trainrig.prediction.scenario import WORDS_AND_LENGTHS, Question
from trainrig.prediction.step import PARTS
from trainrig.prediction.step.communication import gradient_bytes
from trainrig.prediction.verdict import BORDERLINE, FITS
from trainrig.units import DAY
from trainrig.workload.held import held
from trainrig.workload.layout import SIZES, Layout
from trainrig.workload.memory import PARTS as MEMORY_PARTS
from trainrig.workload.memory import Memory, host_bytes
from trainrig.workload.numerics import scheme_of

if TYPE_CHECKING:  # numpy: one layout needs none
    from trainrig.prediction.fit.memory_options import OptionEffect
    from trainrig.prediction.fit.methods import FitAnswer, MethodFit

CONVENTION = (
    "model FLOPs: forward + 2 × forward for backward, causal attention in full (a window's, of the "
    "tokens in it), nothing for recomputation; hardware FLOPs add what is computed again; "
    "causal_half: of causal attention the scores that are seen; peak: claimed, dense"
)


def step_time_by(*, is_simulated: bool) -> str:
    """Return how a step's time was found: one word for a screen and for JSON."""
    return "simulation" if is_simulated else "closed form"


def prediction_dict(prediction: Prediction, tokens: float | None = None) -> dict[str, Any]:
    """Return what ``predict --json`` prints; others script against it."""
    rank_bytes = held(prediction.question.shape, prediction.layout)
    result = {
        **_subject(prediction.question, prediction.rates.device, prediction.memory),
        "step_time_s": prediction.time,
        "simulated_step_time_s": prediction.simulated,
        "step_time_by": step_time_by(is_simulated=prediction.is_simulated),
        "setting": [
            {"name": line.name, "text": line.text, "presumed": line.is_presumed}
            for line in prediction.setting
        ],
        "parts_s": {name: float(getattr(prediction.step, name)) for name in PARTS},
        "overlapped_s": float(prediction.step.overlapped),
        "data_parallel_s": prediction.data_parallel,
        "held_bytes": dataclasses.asdict(rank_bytes) if rank_bytes is not None else None,
        "gpu_memory_bytes": prediction.rates.memory_bytes,
        **verdict_dict(prediction.verdict),
        "tokens_per_step": prediction.tokens,
        "tokens_per_s": prediction.tokens_per_s,
        "tokens_per_day": prediction.tokens_per_s * DAY,
        "samples_per_s": int(prediction.layout.global_batch) / prediction.time,
        "model_flops_per_s_per_gpu": prediction.flop_rate,
        "mfu": prediction.mfu,
        "hfu": prediction.hfu,
        "mfu_causal_half": prediction.mfu_half,
        "hfu_causal_half": prediction.hfu_half,
        "convention": CONVENTION,
        "provenance": dict(prediction.rates.provenance),
        "warnings": list(prediction.warnings),
        "published": [dataclasses.asdict(run) for run in published_runs(prediction)],
    }
    result["interval"] |= {"step_time_s": prediction.interval}
    if tokens is not None:
        result |= {"tokens": tokens, "days": prediction.days(tokens), "kwh": prediction.kwh(tokens)}
        result["interval"]["days"] = [
            end / prediction.time * prediction.days(tokens) for end in prediction.interval
        ]
    return result


def fits_dict(answer: FitAnswer) -> dict[str, Any]:
    """Return what ``fits --json`` prints; others script against it."""
    fit = answer.asked_fit
    return {
        **_subject(fit.question, fit.question.cluster.rates().device, fit.memory),
        **verdict_dict(answer.verdict),
        "method": answer.method,
        "gpu_memory_bytes": fit.capacity,
        "largest_batch_size": fit.largest_batch_size,
        "sample_time_s": fit.sample_time,
        "warnings": list(fit.question.notes),
        "methods": [_method_dict(method) for method in answer.methods],
        "refused": answer.refused,
        "options": [_effect_dict(effect) for effect in fit.options],
        "sequence": [_effect_dict(effect) for effect in fit.sequence],
        "options_tried": fit.tried,
    }


def verdict_dict(verdict: str) -> dict[str, Any]:
    """Return the word, and the two that older scripts read."""
    return {"verdict": verdict, "fits": verdict == FITS, "close": verdict == BORDERLINE}


def _method_dict(method_fit: MethodFit) -> dict[str, Any]:
    layout = method_fit.question.layout
    return {
        "method": method_fit.method,
        "verdict": method_fit.verdict,
        "memory_bytes_per_gpu": int(method_fit.memory.total),
        "interval": {"memory_bytes_per_gpu": list(method_fit.interval)},
        "tokens_per_s": method_fit.tokens_per_s,
        "micro_batch": dataclasses.asdict(method_fit.micro_batch),
        "seq_len": dataclasses.asdict(method_fit.seq_len),
        "host_memory_bytes_per_node": method_fit.host_memory,
        "framework": layout.framework,
        "launch": launch_line(
            method_fit.question.program.key,
            method_fit.question.shape,
            layout,
            method_fit.question.model,
        ),
    }


def _effect_dict(effect: OptionEffect) -> dict[str, Any]:
    values = dataclasses.asdict(effect)
    del values["layout"]  # `change` says it
    return values | {"fits": effect.verdict == FITS}


def _subject(question: Question, device: str, needed: Memory) -> dict[str, Any]:
    """Return the model, the machine and the memory that is needed."""
    return {
        "model": question.shape.name,
        "on": device,
        **program_dict(question),
        "layout": layout_dict(question.layout),
        "memory_bytes_per_gpu": int(needed.total),
        "memory_allocated_bytes_per_gpu": int(needed.allocated),
        "interval": {"memory_bytes_per_gpu": [float(end) for end in needed.needed_interval]},
        "memory_parts_bytes": memory_parts(needed),
        "host_memory_bytes_per_node": int(host_bytes(question.shape, question.layout)),
        "host_memory_limit_bytes": question.cluster.host_memory,
    }


def program_dict(question: Question) -> dict[str, Any]:
    """Return the program, why it is presumed, and the values that stand for what was not given."""
    presumed = question.presumed
    values = presumed.values if presumed is not None else ()
    return {
        "program": question.program.key,
        "program_because": presumed.because or None if presumed is not None else None,
        "presumed": [presumption._asdict() for presumption in values],
    }


def memory_parts(needed: Memory) -> dict[str, int]:
    """Return bytes by part."""
    return {name: int(getattr(needed, name)) for name in MEMORY_PARTS}


def layout_dict(layout: Layout) -> dict[str, Any]:
    """Return a layout in plain values, with what follows from it."""
    values = {name: value for name, value in layout.flat().items() if name in _SHOWN}
    values |= {"parallel": layout.scheme, "states": scheme_of(layout)}
    values |= {"lora_on": layout.adapted if layout.lora.rank else "none"}
    values |= {"cp_comm": layout.context if layout.mesh.cp > 1 else "none"}
    values |= {"precision": layout.precision.number_format}
    narrow = "auto" if layout.precision.compute == "fp16" else "bf16"
    values |= {"grad_reduce": {4: "fp32", 2: narrow}[gradient_bytes(layout)]}
    return values | {"dp": int(layout.mesh.dp), "global_batch": int(layout.global_batch)}


_SHOWN = {*SIZES, "cp", "framework", *WORDS_AND_LENGTHS} - {"scaled", "target_seq_len", "experts"}
"""Fields of a layout in JSON: a format with scales is its precision; of two, most models have
none."""
