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
    """How a step's time was found: one word for a screen and for JSON."""
    return "simulation" if is_simulated else "closed form"


def prediction_dict(found: Prediction, tokens: float | None = None) -> dict[str, Any]:
    """What ``predict --json`` prints; others script against it."""
    own = held(found.question.shape, found.layout)
    result = {
        **_subject(found.question, found.rates.device, found.memory),
        "step_time_s": found.time,
        "simulated_step_time_s": found.simulated,
        "step_time_by": step_time_by(is_simulated=found.is_simulated),
        "setting": [
            {"name": one.name, "text": one.text, "presumed": one.is_presumed}
            for one in found.setting
        ],
        "parts_s": {name: float(getattr(found.step, name)) for name in PARTS},
        "overlapped_s": float(found.step.overlapped),
        "data_parallel_s": found.data_parallel,
        "held_bytes": dataclasses.asdict(own) if own is not None else None,
        "gpu_memory_bytes": found.rates.memory_bytes,
        **verdict_dict(found.verdict),
        "tokens_per_step": found.tokens,
        "tokens_per_s": found.tokens_per_s,
        "tokens_per_day": found.tokens_per_s * DAY,
        "samples_per_s": int(found.layout.global_batch) / found.time,
        "model_flops_per_s_per_gpu": found.flop_rate,
        "mfu": found.mfu,
        "hfu": found.hfu,
        "mfu_causal_half": found.mfu_half,
        "hfu_causal_half": found.hfu_half,
        "convention": CONVENTION,
        "provenance": dict(found.rates.provenance),
        "warnings": list(found.warnings),
        "published": [dataclasses.asdict(run) for run in published_runs(found)],
    }
    result["interval"] |= {"step_time_s": found.interval}
    if tokens is not None:
        result |= {"tokens": tokens, "days": found.days(tokens), "kwh": found.kwh(tokens)}
        result["interval"]["days"] = [
            end / found.time * found.days(tokens) for end in found.interval
        ]
    return result


def fits_dict(found: FitAnswer) -> dict[str, Any]:
    """What ``fits --json`` prints; others script against it."""
    asked = found.asked
    return {
        **_subject(asked.question, asked.question.cluster.rates().device, asked.memory),
        **verdict_dict(found.verdict),
        "method": found.method,
        "gpu_memory_bytes": asked.capacity,
        "largest_batch_size": asked.largest_batch_size,
        "sample_time_s": asked.sample_time,
        "warnings": list(asked.question.notes),
        "methods": [_method_dict(one) for one in found.methods],
        "refused": found.refused,
        "options": [_effect_dict(effect) for effect in asked.options],
        "sequence": [_effect_dict(effect) for effect in asked.sequence],
        "options_tried": asked.tried,
    }


def verdict_dict(verdict: str) -> dict[str, Any]:
    """The word, and the two that older scripts read."""
    return {"verdict": verdict, "fits": verdict == FITS, "close": verdict == BORDERLINE}


def _method_dict(found: MethodFit) -> dict[str, Any]:
    layout = found.question.layout
    return {
        "method": found.method,
        "verdict": found.verdict,
        "memory_bytes_per_gpu": int(found.memory.total),
        "interval": {"memory_bytes_per_gpu": list(found.interval)},
        "tokens_per_s": found.tokens_per_s,
        "micro_batch": dataclasses.asdict(found.micro_batch),
        "seq_len": dataclasses.asdict(found.seq_len),
        "host_memory_bytes_per_node": found.host_memory,
        "framework": layout.framework,
        "launch": launch_line(
            found.question.program.key, found.question.shape, layout, found.question.model
        ),
    }


def _effect_dict(effect: OptionEffect) -> dict[str, Any]:
    found = dataclasses.asdict(effect)
    del found["layout"]  # `change` says it
    return found | {"fits": effect.verdict == FITS}


def _subject(question: Question, device: str, needed: Memory) -> dict[str, Any]:
    """What was asked about, and the memory that it needs."""
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
    """The program, why it is presumed, and the values that stand for what was not given."""
    presumed = question.presumed
    values = presumed.values if presumed is not None else ()
    return {
        "program": question.program.key,
        "program_because": presumed.because or None if presumed is not None else None,
        "presumed": [one._asdict() for one in values],
    }


def memory_parts(needed: Memory) -> dict[str, int]:
    """Bytes by part."""
    return {name: int(getattr(needed, name)) for name in MEMORY_PARTS}


def layout_dict(layout: Layout) -> dict[str, Any]:
    """A layout in plain values, with what follows from it."""
    found = {name: value for name, value in layout.flat().items() if name in _SHOWN}
    found |= {"parallel": layout.scheme, "states": scheme_of(layout)}
    found |= {"lora_on": layout.adapted if layout.lora.rank else "none"}
    found |= {"cp_comm": layout.context if layout.mesh.cp > 1 else "none"}
    found |= {"precision": layout.precision.number_format}
    narrow = "fp16" if layout.precision.compute == "fp16" else "bf16"
    found |= {"grad_reduce": {4: "fp32", 2: narrow}[gradient_bytes(layout)]}
    return found | {"dp": int(layout.mesh.dp), "global_batch": int(layout.global_batch)}


_SHOWN = {*SIZES, "cp", "framework", *WORDS_AND_LENGTHS} - {"scaled", "target_seq_len", "experts"}
"""Of a layout's fields: a format with scales is its precision; of two, most models have none."""
