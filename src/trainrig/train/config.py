"""The description of one training: model, data, layout, schedule and settings.

An Experiment contains the layout that a prediction reads; in files, options and stored runs its
keys are flat, each the name of its field.  `Experiment.of` checks names, types and ranges; `check`
refuses what contradicts itself or the model, in one line, before anything is started.  Where the
tokens lie is in it, which tokens they are is their hash, in the case.

The learning rate of a step: a linear warm-up, then by ``lr_schedule`` down to a floor, a tenth of
the peak unless ``min_lr_factor`` says otherwise.  Lengths are in steps or in tokens, of which every
step has equally many: u = 1, or the tokens of a step.

    done = u · step < warmup    peak · min(1, (done + u) / warmup)
    after                       floor + (peak − floor) · f(x),  x = (done − warmup) / (all − warmup)
    constant                    f = 1
    linear                      f = 1 − x
    cosine                      f = (1 + cos(π · x)) / 2
    wsd                         f = 1, then linear to 0 over the last ``decay_ratio`` of ``all``

The warm-up's last step runs at the peak, and the last step a little above the floor: no step is
wasted on a rate of zero.  Beyond the planned length the rate stays at the floor.  The cosine is
that of Loshchilov and Hutter 2017 (arXiv 1608.03983), the tenth that of Hoffmann et al. 2022; wsd,
warm-up, stable, decay, of Hu et al. 2024 (MiniCPM, arXiv 2404.06395).  min_lr_factor and
decay_ratio are torchtitan's words.
"""

from __future__ import annotations

import math
import os
import shutil
import sysconfig
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from trainrig.benchmarks.training import SPLITS, TRAINERS
from trainrig.errors import DataError, NeedsCompilerError, UsageError, unknown
from trainrig.flat_keys import FlatKeys, part
from trainrig.record import Case
from trainrig.train.experiment_parts import (
    Checkpoints,
    Count,
    EngineKernels,
    ExpectedOutcome,
    HeldOutLosses,
    LearningRate,
    RankPlacement,
    Ranks,
    Recovery,
    Share,
    Switch,
    Text,
    WeightUpdate,
    Whole,
    whole,
)
from trainrig.units import one_line
from trainrig.workload import ModelShape, find
from trainrig.workload.layout import PLACES, Layout, check_layout
from trainrig.workload.layout.groups import RankMesh
from trainrig.workload.layout_rules import usual_interleave
from trainrig.workload.model import FP8_RECIPES, UNFUSED, WRITTEN_OUT
from trainrig.workload.option_words import usual_word
from trainrig.workload.span_corruption import written_tokens

LOGS = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy")}
"""Further logs of steps, with the packages that each needs (`runner.train_logs`)."""

T = TypeVar("T")


class _LayoutKey(Generic[T]):
    """A key of an experiment that its layout holds; sizes, which may be arrays there, are one."""

    def __init__(self, kind: Callable[[Any], T], key: str, key_type: Any) -> None:
        self._kind, self._key, self.key_type = kind, key, key_type

    def __get__(self, experiment: Experiment, _: type) -> T:
        return self._kind(experiment.layout.get(self._key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One training, in one process or in several; made of flat keys by `of`."""

    layout: Layout
    """Parallel layout, batch, precision and kernels of the step: the one that is predicted, too."""
    name: Text = ""
    """Name of the experiment in tables."""
    model: Text = "gpt2-small-cpu"
    """A name, numbers, or a path to a config.json: see `workload.find`."""
    data: Text = ""
    """The prepared folder."""
    init: Text = ""
    """Source of the first weights, instead of the seed: see `native.weight_source`."""
    auto_batch: Switch = False
    """``batch_size`` is not known yet: the largest that fits is looked for."""
    steps: Count = 20
    dropout: Share = 0.0
    """Share of hidden states and of attention's probabilities that is dropped in training."""
    seed: Whole = 0
    """Seed of the first weights and of the samples' order."""
    log: Text = ""
    """Further logs of steps: names of LOGS, separated by commas."""
    device: Text = ""
    """cpu or cuda; empty: a GPU where there is one."""
    lr: LearningRate = part(LearningRate)
    update: WeightUpdate = part(WeightUpdate)
    heldout: HeldOutLosses = part(HeldOutLosses)
    checkpoints: Checkpoints = part(Checkpoints)
    recovery: Recovery = part(Recovery)
    placement: RankPlacement = part(RankPlacement)
    kernels: EngineKernels = part(EngineKernels)
    expected: ExpectedOutcome = part(ExpectedOutcome)

    framework = _LayoutKey(str, "framework", Text)
    parallel = _LayoutKey(str, "parallel", Text)
    nproc = _LayoutKey(int, "gpus", Ranks)
    """Devices of the training: the key of its file; what is computed asks the mesh."""
    batch_size = _LayoutKey(int, "batch_size", Count)
    seq_len = _LayoutKey(int, "seq_len", Count)
    grad_accum = _LayoutKey(int, "grad_accum", Count)
    precision = _LayoutKey(str, "precision", Text)
    """What is computed in; weights are updated in fp32 (`train.native.precision`).  fp32, which
    every device has, unless it is given: files and command line choose the device's fastest."""
    recompute = _LayoutKey(str, "recompute", Text)
    compile = _LayoutKey(lambda kernels: bool(kernels == "compiled"), "kernels", Switch)
    """torch.compile for each block."""
    optimizer = _LayoutKey(str, "optimizer", Text)
    zero = _LayoutKey(int, "zero", Annotated[int, whole(0, 4)])
    shard_size = _LayoutKey(int, "shard_size", Annotated[int, whole(0, 4097)])
    tp = _LayoutKey(int, "tp", Ranks)
    sequence_parallel = _LayoutKey(bool, "sequence_parallel", Switch)
    pp = _LayoutKey(int, "pp", Ranks)
    interleave = _LayoutKey(int, "interleave", Ranks)
    schedule = _LayoutKey(str, "schedule", Text)
    cp = _LayoutKey(int, "cp", Ranks)
    ep = _LayoutKey(int, "ep", Ranks)
    offload = _LayoutKey(str, "offload", Text)
    lora_rank = _LayoutKey(int, "lora_rank", Annotated[int, whole(0, 1 << 16)])
    """Rank of the adapters that are trained in place of the weights; 0: the weights are."""
    quantize = _LayoutKey(str, "quantize", Text)
    """Number format of frozen weights beneath adapters."""

    @classmethod
    def of(cls, **keys: Any) -> Experiment:
        """Return the experiment of flat keys; what is not given is as usual.

        Raises:
            UsageError: A key is unknown, or its value is of another type or out of its range.
        """
        return cls(layout=_USUAL).replace(**keys)

    def replace(self, **keys: Any) -> Experiment:
        """Return a copy with the values of some flat keys changed.

        Raises:
            UsageError: A key is unknown, or its value is of another type or out of its range.
        """
        keys = _checked(keys)
        plain_fields = {name: keys[name] for name in _OWN & keys.keys()}
        changes = {name: keys[name] for name in KEYS_OF_LAYOUT if name in keys}
        if "nproc" in keys:
            changes |= {"gpus": keys["nproc"], "gpus_per_node": keys["nproc"]}
        if {"compile", "dropout"} & keys.keys():
            drops = keys.get("dropout", self.dropout) > 0
            usual = "eager" if drops else "flash"  # scores exist whole where some are dropped
            changes["kernels"] = "compiled" if keys.get("compile", self.compile) else usual
            changes["has_dropout"] = "yes" if drops else "no"
        if "sequence_parallel" in changes:  # a size among the others
            changes["sequence_parallel"] = int(changes["sequence_parallel"])
        layout = self.layout.replace(**changes) if changes else self.layout
        if {"schedule", "pp"} & changes.keys() and "interleave" not in changes:
            groups = max(
                layout.pipeline.interleave,
                usual_interleave(layout.pipeline.schedule, int(layout.mesh.pp)),
            )
            layout = layout.replace(interleave=groups)
        return _FLAT.replace(self, layout=layout, **plain_fields)

    def get(self, key: str) -> Any:
        """Return the value of a flat key."""
        return _FLAT.get(self, key) if key in _OWN else getattr(self, key)

    @property
    def mesh(self) -> RankMesh:
        """Mesh of the ranks, with the number of data-parallel ones."""
        return self.layout.mesh.of_one

    @property
    def processes(self) -> int:
        """Processes that are started: one a rank, or one for all devices."""
        return 1 if self.parallel == "dataparallel" else self.mesh.ranks

    @property
    def tokens_per_step(self) -> int:
        """Return tokens that all ranks read in a step."""
        return self.global_samples * self.seq_len

    @property
    def warmup_steps(self) -> int:
        """Steps of the warm-up, the usual ones if none are given."""
        if self.lr.warmup_tokens:
            return math.ceil(self.lr.warmup_tokens / self.tokens_per_step)
        return min(100, self.planned_steps // 10) if self.lr.warmup is None else self.lr.warmup

    @property
    def planned_steps(self) -> int:
        """Steps of the learning rate's schedule; behind them it stays at its lowest."""
        if self.lr.decay_tokens:
            return math.ceil(self.lr.decay_tokens / self.tokens_per_step)
        return self.lr.decay_steps or self.steps

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of ``step``, counted from 0."""
        unit = self.tokens_per_step if self.lr.warmup_tokens or self.lr.decay_tokens else 1
        warmup = self.lr.warmup_tokens or self.warmup_steps * unit
        planned = self.lr.decay_tokens or self.planned_steps * unit
        done = step * unit
        if done < warmup:
            return self.lr.peak * min(1.0, (done + unit) / warmup)
        floor = self.lr.min_factor * self.lr.peak
        share = min(1.0, (done - warmup) / max(1, planned - warmup))
        if self.lr.shape == "wsd":
            begin = planned - max(1, self.lr.decay_ratio * planned)
            share = min(1.0, max(0.0, (done - begin) / (planned - begin)))
        decay_factor = {"constant": 1.0, "cosine": (1.0 + math.cos(math.pi * share)) / 2.0}
        return floor + (self.lr.peak - floor) * decay_factor.get(self.lr.shape, 1.0 - share)

    @property
    def device_numbers(self) -> tuple[int, ...]:
        """Return driver's number of each rank's GPU; UsageError for what is no list of numbers."""
        words = self.placement.devices.split(",") if self.placement.devices else []
        if not all(word.strip().isdecimal() and len(word) < 6 for word in words):
            raise UsageError(
                f"{field_text('devices', self.placement.devices)}", "numbers of GPUs, as 0,1"
            )
        return tuple(int(word) for word in words)

    @property
    def logs(self) -> tuple[str, ...]:
        """Return the names of its logs."""
        return tuple(dict.fromkeys(word.strip() for word in self.log.split(",") if word.strip()))

    @property
    def unfused_parts(self) -> tuple[str, ...]:
        """Return the words of ``unfused``.  UsageError for others than UNFUSED."""
        words = tuple(word.strip() for word in self.kernels.unfused.split(",") if word.strip())
        for word in words:
            if word not in UNFUSED:
                raise unknown("unfused", word, UNFUSED)
        return words

    @property
    def samples(self) -> int:
        """Return samples of a step on one rank."""
        return self.batch_size * self.grad_accum

    @property
    def global_samples(self) -> int:
        """Return samples of a step on all data-parallel ranks."""
        return self.samples * self.mesh.dp

    @property
    def predicted_layout(self) -> Layout:
        """Return the layout with the tokens that the model's decoder writes, where it has one."""
        return self.layout.replace(target_seq_len=written_tokens(find(self.model), self.seq_len))


_USUAL = Layout.of(batch_size=8, seq_len=256, gpus_per_node=1, has_dropout="no", precision="fp32")
_FLAT = FlatKeys(Experiment)
_OWN = _FLAT.places.keys() - {"layout"}
_TYPES = _FLAT.types()
KEYS: dict[str, Any] = {
    name: _TYPES[name] if name in _OWN else vars(Experiment)[name].key_type
    for name in (
        *("name", "framework", "parallel", "python", "model", "data", "batch_size", "auto_batch"),
        *("seq_len", "grad_accum", "steps", "precision", "recompute", "attention", "compile"),
        *("dropout", "optimizer", "lr", "lr_schedule", "warmup", "warmup_tokens"),
        *("init", "decay_steps", "decay_tokens", "decay_ratio", "min_lr_factor", "weight_decay"),
        *("decay_embeddings", "beta1", "beta2", "eps", "clip", "divergence", "seed"),
        *(
            "heldout_batches",
            "heldout_every",
            "log",
            "checkpoint_every",
            "checkpoint_interval",
            "keep_checkpoints",
        ),
        *("max_restarts", "min_nproc", "device", "devices", "nproc", "zero"),
        *("shard_size", "tp", "sequence_parallel", "pp", "interleave", "schedule", "cp", "ep"),
        *("offload", "p2p", "bind", "threads", "liger", "loader_workers", "comparable", "why"),
        *("trainer", "lora_rank", "quantize", "unfused", "fp8_recipe"),
        *("emulate", "cuda_graph", "bar", "rounds"),
    )
}
"""Every flat key and what it may be, in the order in which a file has them."""
KEYS_OF_LAYOUT = tuple(name for name in KEYS if name in PLACES and name not in _OWN)
"""Keys of the layout; besides, ``nproc`` are its GPUs, and ``compile`` says its kernels."""

RETIRED = {
    "backend": "framework (DataParallel: parallel)",
    "engine": "framework (DDP and FSDP: parallel)",
    "batch": "batch_size",
    "micro_batch": "batch_size",
    "seq": "seq_len",
    "dtype": "precision",
    "learning_rate": "lr",
    "ranks": "nproc",
}
"""Keys of earlier versions, refused, with what they are called now."""
RETIRED_WORDS = {("optimizer", "adamw-plain"): "adamw"}
"""Retired values of keys, with the values that replace them."""


@cache
def _model() -> type[BaseModel]:
    """Return the flat keys; none of them has to be there."""
    config = ConfigDict(strict=True, allow_inf_nan=False)
    fields: Any = {name: (kind, None) for name, kind in KEYS.items()}
    return create_model("Keys", __config__=config, **fields)


def _checked(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that there are, each of its type and within its range.  Raises UsageError."""
    for name in keys:
        if name not in KEYS:
            raise no_key(name)
    for (name, word), other in RETIRED_WORDS.items():
        if keys.get(name) == word:
            raise UsageError(f"{name} {word}: it is called {other} now", f"{name} = {other!r}")
    keys = {name: usual_word(name, value) for name, value in keys.items()}
    try:
        return _model().model_validate(keys).model_dump(exclude_unset=True)
    except ValidationError as error:
        name = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
        hint = _model().model_fields[name].description
        raise UsageError(field_text(name, keys[name]), hint) from None


def to_dict(experiment: Experiment) -> dict[str, Any]:
    """Return the flat keys, as they are stored; what is None is left out."""
    values = {name: experiment.get(name) for name in KEYS}
    return {name: value for name, value in values.items() if value is not None}


def no_key(key: str, tables: Collection[str] = ()) -> UsageError:
    """Return error for a key that no experiment has; ``tables`` may stand in its place as well."""
    short = key if len(key) < _MOST_SHOWN else key[:_MOST_SHOWN] + "…"
    if key in RETIRED:
        return UsageError(f"an experiment has no {short!r}", f"it is called {RETIRED[key]} now")
    return UsageError(f"an experiment has no {short!r}", unknown("key", key, (*KEYS, *tables)).hint)


def from_run(content: Mapping[str, Any], run: str) -> Experiment:
    """Return the experiment that a run was made for.  DataError where an older version wrote it."""
    if RETIRED.keys() & content.keys():
        raise DataError(
            f"{run} was trained by an older trainrig, whose keys had other names",
            "train it anew; trainrig report shows what is there",
        )
    return Experiment.of(**content)


_MOST_SHOWN = 60


def field_text(name: str, value: Any) -> str:
    """Return a field and its value as a person wrote them, short enough for a line."""
    text = one_line(repr(value) if isinstance(value, str) else str(value))
    short = text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"
    return f"{name} = {short}"


def case_of(experiment: Experiment, data_hash: str) -> Case:
    """Return the case of benchmark ``training``: all keys that decide its numbers."""
    values = {name: experiment.get(name) for name in _OF_CASE}
    for name in SPLITS:  # older cases have none of these: what is whole says nothing
        if (value := experiment.get(name)) != _USUAL.get(name):
            values[name] = value
    trainer_values = {name: experiment.get(name) for name in TRAINERS}
    values |= {
        name: value for name, value in trainer_values.items() if value not in ("", "none", 0)
    }
    return {**values, "data": data_hash[:8], "experiment": experiment.name}


_OF_CASE = (
    *("model", "precision", "batch_size", "seq_len", "grad_accum", "optimizer", "recompute"),
    *("attention", "compile", "framework", "parallel", "nproc", "zero", "shard_size", "offload"),
    *("p2p", "seed"),
)


def objective_of(shape: ModelShape) -> str:
    """Return the training objective of a model's family, by its name in `data.objective`."""
    return {"bert": "masked", "t5": "spans"}.get(shape.family, "causal")


def check(experiment: Experiment) -> ModelShape:
    """Return the model's shape, once nothing speaks against the experiment.  Raises UsageError."""
    shape = find(experiment.model)
    check_layout(shape, experiment.predicted_layout)
    if experiment.kernels.fp8_recipe and experiment.kernels.fp8_recipe not in FP8_RECIPES:
        raise unknown("fp8_recipe", experiment.kernels.fp8_recipe, FP8_RECIPES)
    for name in experiment.logs:
        if name not in LOGS:
            raise unknown("log", name, LOGS)
    rules = (
        *_schedule_rules(experiment),
        *_rank_rules(experiment),
        *_kernel_rules(experiment, shape),
    )
    for is_broken, words, hint in rules:
        if is_broken:
            raise UsageError(words, hint)
    return shape


_Rule = tuple[bool, str, str]
"""A rule of an experiment: True where it is broken, the message, the hint."""


def _schedule_rules(experiment: Experiment) -> tuple[_Rule, ...]:
    """Return the rules about lengths, intervals and comparability."""
    return (
        (
            experiment.lr.warmup is not None and experiment.lr.warmup_tokens > 0,
            "warmup and warmup_tokens both say how long the learning rate rises",
            "leave one of them out",
        ),
        (
            experiment.lr.decay_steps > 0 and experiment.lr.decay_tokens > 0,
            "decay_steps and decay_tokens both say how long the schedule is planned for",
            "leave one of them out",
        ),
        (
            experiment.heldout.every > 0 and experiment.heldout.batches == 0,
            "heldout_every, and heldout_batches is 0: of nothing",
            "heldout_batches = 8",
        ),
        (
            experiment.expected.comparable == bool(experiment.expected.why),
            "comparable = false and why go together",
            "why = what sets it apart from one process on the same samples",
        ),
    )


def _rank_rules(experiment: Experiment) -> tuple[_Rule, ...]:
    """Devices and ranks."""
    device_numbers = experiment.device_numbers
    return (
        (
            bool(device_numbers) and experiment.device == "cpu",
            f"devices {experiment.placement.devices} are GPUs, and device is cpu",
            "leave one of them out",
        ),
        (
            bool(device_numbers) and len(device_numbers) != experiment.mesh.ranks,
            f"devices {experiment.placement.devices}: {len(device_numbers)} of them "
            f"for nproc = {experiment.nproc}",
            "a device for each rank",
        ),
        (
            len(set(device_numbers)) != len(device_numbers),
            f"devices {experiment.placement.devices}: one of them twice",
            "each rank needs one of its own",
        ),
        (
            experiment.zero > 0 and experiment.mesh.dp * experiment.mesh.cp == 1,
            f"zero {experiment.zero} spreads over ranks, and there is one",
            "--nproc 2 or more, or --zero 0",
        ),
        (
            experiment.recovery.min_nproc > experiment.nproc,
            f"min_nproc = {experiment.recovery.min_nproc} of nproc = {experiment.nproc}",
            "as many ranks as there are, or fewer",
        ),
    )


def _kernel_rules(experiment: Experiment, shape: ModelShape) -> tuple[_Rule, ...]:
    """Kernels, and what cannot be put together."""
    attention = experiment.kernels.attention
    return (
        (
            experiment.dropout > 0 and (shape.family == "t5" or experiment.compile),
            f"dropout {'beside compile' if experiment.compile else 'of t5'} comes in "
            "a later version",
            "leave one of them out" if experiment.compile else "dropout 0",
        ),
        (
            experiment.dropout > 0 and attention in ("sdpa", "tiles"),
            f"dropout drops of attention's scores, which attention = {attention} never has",
            "attention = plain or auto",
        ),
        (
            bool({*WRITTEN_OUT} & {*experiment.unfused_parts})
            and (experiment.compile or experiment.tp > 1),
            "unfused takes apart what a compiler, or tensor parallelism, puts together",
            "leave compile and tp out",
        ),
        (
            "chunk" in experiment.unfused_parts and not experiment.compile,
            "unfused = chunk leaves the loss's chunk out of what is compiled, and nothing is",
            "compile = true",
        ),
        (
            experiment.kernels.cuda_graph and not _is_one_graph(experiment, shape),
            "cuda_graph records the same work for each step of one process: not fp16's skipped "
            "updates, not micro-batches of masked tokens, which weigh differently, not dropout",
            "nproc 1, adamw or adamw-fused, grad_accum 1 for a masked model",
        ),
        (
            attention == "tiles" and experiment.device.startswith("cuda"),
            "attention = tiles: only the native engine has it, on a CPU",
            "attention sdpa, plain or auto",
        ),
    )


def _is_one_graph(experiment: Experiment, shape: ModelShape) -> bool:
    weighed = objective_of(shape) == "masked" and experiment.grad_accum > 1
    plain = (
        experiment.precision != "fp16"
        and not experiment.dropout
        and experiment.optimizer in ("adamw", "adamw-fused", "sgd")
    )
    return experiment.nproc == 1 and plain and not weighed


def check_compiler(experiment: Experiment) -> None:
    """Raise NeedsCompilerError where torch.compile is asked for and nothing can compile.

    It builds C++ for the host and, for a GPU, a launcher in C that includes Python.h (triton); any
    of these does both.  Going on without would be another case under this one's name.
    """
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    if experiment.compile and experiment.device.startswith("cuda") and not os.path.exists(header):
        raise NeedsCompilerError(
            f"torch.compile on a GPU needs Python's header, and there is no {header}",
            "sudo apt install python3-dev, or leave --compile out",
        )
    names = [os.environ.get("CXX", "g++"), "c++", "clang++"]
    if experiment.compile and not any(shutil.which(name) for name in names):
        raise NeedsCompilerError(
            "torch.compile needs a compiler, and none of these is on PATH: " + ", ".join(names),
            "install g++, or leave --compile out",
        )
