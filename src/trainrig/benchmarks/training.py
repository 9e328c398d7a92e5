"""training: how long one training step of a whole model takes, by some framework on some layout.

Definition: from a step's start to the next one's, in a training that goes on: waiting for samples,
forward, backward, clipping and update, and what lies between.  Samples are real text, weights
change from step to step.  A step's time is the mean of the middle half of the steps behind the
first ones, over all rounds on an idle machine.  Model FLOPs (`workload.model_flops`: forward and
backward, causal attention in full, nothing for recomputation) are counted per device, samples and
tokens over all ranks; T5's decoder counts with the tokens that it writes (`workload.spans`), not
with those that are read.

Here is what is counted and shown; `runner.train` trains.
"""

from __future__ import annotations

import math
import shlex

from trainrig.benchmarks import spec
from trainrig.errors import TrainrigError
from trainrig.record import Case, dtype_of
from trainrig.workload import Work, find, model_flops, step_ops
from trainrig.workload.layout import Layout
from trainrig.workload.model import ATTENTIONS
from trainrig.workload.option_words import option_of
from trainrig.workload.span_corruption import written_tokens

WARM_UP = 3
"""Steps at the beginning that are trained and not counted: memory and kernels settle."""
LAUNCH_TIME = 5.0
"""Seconds in which a process loads torch, builds the model and trains the steps of warm-up."""
MAX_OTHER = 0.05
"""Beyond this share of a step, time that belongs to no part is a finding."""

GPU_SIZES = (
    ("gpt2-medium", 16, 1024),
    ("gpt2-medium", 8, 1024),
    ("gpt2-medium", 4, 1024),
    ("gpt2", 8, 1024),
    ("gpt2", 4, 1024),
    ("gpt2", 1, 1024),
)
"""Trainings of a qualification: model, batch, tokens of a sample; the largest first."""
HOST_SIZES = tuple(("gpt2-small-cpu", batch, 256) for batch in (8, 4, 2, 1))

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
_COUNTS = ("batch_size", "seq_len", "grad_accum", "nproc")
_EXAMPLE: Case = {
    "model": "gpt2-small-cpu",
    "precision": "bf16",
    "batch_size": 8,
    "seq_len": 256,
    "grad_accum": 1,
    "optimizer": "adamw-fused",
    "recompute": "none",
    "attention": "auto",
    "compile": False,
    "data": "00000000",
    "framework": Layout().framework,
    "parallel": "auto",
    "nproc": 1,
    "zero": 0,
    "shard_size": 0,
    "offload": "none",
    "p2p": True,
    "seed": 0,
    "experiment": Layout().framework,
}
SPLITS = ("tp", "sequence_parallel", "pp", "interleave", "schedule", "cp", "ep")
"""Parallel degrees in a case; older records lack them."""
TRAINERS = (
    *("init", "liger", "loader_workers", "dropout", "unfused", "fp8_recipe", "cuda_graph"),
    *("trainer", "lora_rank", "quantize", "bind"),
)
"""Settings that make a framework faster or slower, recorded where a case has them."""
FIELDS: spec.Fields = {
    **dict.fromkeys(_EXAMPLE, ()),
    **dict.fromkeys(_COUNTS, 2**62),
    "precision": PRECISIONS,
    "recompute": ("none", "selective", "full"),
    "attention": ATTENTIONS,
}


def _numbers(case: Case) -> tuple[int, int, int]:
    batch, seq, accum = (spec.size_in(case, name) for name in _COUNTS[:3])
    return batch, seq, accum


def flops(case: Case) -> int:
    """Model FLOPs of a step, all micro-batches."""
    batch, seq, accum = _numbers(case)
    shape = find(str(case["model"]))
    return accum * model_flops(shape, batch, seq, target_seq_len=written_tokens(shape, seq))


def _work(case: Case) -> Work:
    batch, seq, _ = _numbers(case)
    shape = find(str(case["model"]))
    layout = Layout.of(
        batch_size=batch,
        seq_len=seq,
        target_seq_len=written_tokens(shape, seq),
        precision=str(case["precision"]),
        recompute=str(case["recompute"]),
    )
    moved = sum(op.num_bytes * op.count for op in step_ops(shape, layout))
    return Work(flops=flops(case), num_bytes=moved)


def data_parallel(case: Case) -> int:
    """Groups of ranks that each train on samples of their own."""
    gpus, *split = (int(str(case.get(name, 1))) for name in ("nproc", "tp", "pp", "cp"))
    return max(1, gpus // math.prod(split))


def _metrics(case: Case) -> tuple[spec.Metric, ...]:
    batch, seq, accum = _numbers(case)
    samples = batch * accum * data_parallel(case)
    samples_text = "batch_size · grad_accum · dp"
    rates = (
        ("flop_rate", "FLOP/s", flops(case), "model FLOPs of a step"),
        ("sample_rate", "sample/s", samples, samples_text),
        ("token_rate", "token/s", samples * seq, f"{samples_text} · seq_len"),
    )
    return (
        *(
            spec.Metric(
                name=name,
                unit=unit,
                amount=float(amount),
                formula=f"{text} / step time",
                is_claimed=name == "flop_rate",
            )
            for name, unit, amount, text in rates
        ),
        spec.Metric(name="time", unit="s", amount=None, formula="step time"),
    )


def layout_of(case: Case) -> Layout:
    """Return the layout of one process that trains a case."""
    batch, seq, accum = _numbers(case)
    return Layout.of(
        gpus_per_node=1,
        batch_size=batch,
        seq_len=seq,
        target_seq_len=written_tokens(find(str(case["model"])), seq),
        precision=str(case["precision"]),
        grad_accum=accum,
        recompute=str(case["recompute"]),
        kernels="compiled" if case["compile"] else "eager" if case.get("dropout") else "flash",
        optimizer=str(case["optimizer"]),
        has_dropout="yes" if case.get("dropout") else "no",
    )


def memory(case: Case) -> int:
    """Return bytes of tensors that a step needs on its device."""
    from trainrig.workload.memory import memory as needed  # numpy: no spec needs it to be read

    return int(needed(find(str(case["model"])), layout_of(case)).allocated)


def _label(case: Case) -> str:
    """Return an experiment's name, or its settings for a published one without a name."""
    if case.get("experiment"):
        return str(case["experiment"])
    named = " ".join(str(word) for word in (dtype_of(case), case.get("model")) if word)
    more = [
        *([f"{case['nproc']} ranks"] if int(case.get("nproc") or 1) > 1 else []),
        *([f"accumulation {case['grad_accum']}"] if int(case.get("grad_accum") or 1) > 1 else []),
        *(["peer access off"] if case.get("p2p") is False else []),
    ]
    return ", ".join([named or "a model without a name", *spec.sizes_text(case), *more])


_OPTIONS = (
    *("model", "batch_size", "seq_len", "precision", "optimizer", "grad_accum"),
    *("nproc", "zero", "tp", "pp", "cp"),
)
_DEFAULTS: Case = {
    "batch_size": 8,
    "seq_len": 256,
    "optimizer": "adamw-fused",
    "grad_accum": 1,
    "nproc": 1,
    "zero": 0,
    "tp": 1,
    "pp": 1,
    "cp": 1,
}
"""Defaults of ``trainrig train``, left out of a command to copy."""


def options_of(case: Case, changed: str = "") -> str | None:
    """Return options of ``trainrig train`` that train a case again, with one option ``changed``.

    None for a model that ``--model`` does not know, as other tools' logs have them.
    """
    if not _is_known(str(case.get("model"))):
        return None
    keys = [key for key in _OPTIONS if case.get(key) not in (None, _DEFAULTS.get(key))]
    options = {option_of(key): case[key] for key in keys}
    name, _, value = changed.strip().partition(" ")
    # A stranger's bundle may hold any word, and people paste commands.
    words = [f"{key} {shlex.quote(str(word))}" for key, word in options.items() if key != name]
    return " ".join(filter(None, (*words, name, value)))


def _is_known(model: str) -> bool:
    try:
        find(model)
    except (TrainrigError, ValueError, TypeError, OSError, RecursionError):
        return False  # a stranger's bundle may hold any word
    return True


BENCHMARK = spec.Benchmark(
    name="training",
    former=("step",),
    version=2,
    title="a training step of a whole model",
    order=60,
    module="",
    role=spec.Role.STEP,
    example=_EXAMPLE,
    fields=FIELDS,
    optional=dict.fromkeys((*SPLITS, *TRAINERS), ()),
    check_more=lambda case: find(str(case["model"])),
    work=_work,
    metrics=_metrics,
    memory=memory,
    # A training's model is built and its text opened; its first steps settle memory and kernels.
    cost=spec.CaseCost(fixed=1.0),
    launch_seconds=LAUNCH_TIME,
    verb="trainrig train",
    remeasure_options=options_of,
    label=_label,
    sizes=frozenset(["batch_size", "seq_len"]),
    levels=(
        spec.LevelRule(quantity=spec.COMPUTE, name="Training step", order=50),
        spec.LevelRule(
            quantity=spec.COMPUTE,
            name="Training step, all devices",
            order=60,
            fits=lambda _, count: count > 1,
        ),
    ),
    claim=spec.peak_claim,
)
