"""What is trained, and how: the description that a whole training follows from.

An Experiment contains the layout that a prediction reads; in files, options and stored runs its
keys are flat, each the name of its field.  `from_dict` checks types and names where a description
enters; `check` refuses what contradicts itself or the model, in one line, before anything is
started.  Where the tokens lie is in it, which tokens they are is their hash, in the case.

The learning rate of a step: a linear warm-up, then half a cosine down to a tenth.

    step < warmup    peak · (step + 1) / warmup
    after            floor + (peak − floor) · (1 + cos(π · x)) / 2,
                     x = (step − warmup) / (steps − warmup), floor = peak / 10

The warm-up's last step runs at the peak, and the last step a little above the floor: no step is
wasted on a rate of zero.  Beyond the planned steps the rate stays at the floor.  The cosine is
that of Loshchilov and Hutter 2017 (arXiv 1608.03983), the tenth that of Hoffmann et al. 2022.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from trainrig.errors import DataError, UnavailableError, UsageError, unknown
from trainrig.record import Case
from trainrig.units import one_line
from trainrig.workload import ModelShape, find
from trainrig.workload.layout import Layout, Mesh
from trainrig.workload.model import ATTENTIONS
from trainrig.workload.span_corruption import written_tokens

FLOOR = 0.1
"""The lowest rate as a share of the highest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine:
    """A warm-up of ``warmup`` steps, a descent until ``steps``."""

    peak: float
    steps: int
    warmup: int = 0

    def __call__(self, step: int) -> float:
        """The learning rate of ``step``, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        share = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        floor = FLOOR * self.peak
        return floor + (self.peak - floor) * (1.0 + math.cos(math.pi * share)) / 2.0


KEYS_OF_LAYOUT = (
    "framework",
    "parallel",
    "batch_size",
    "seq_len",
    "grad_accum",
    "precision",
    "recompute",
    "optimizer",
    "zero",
    "shard_size",
    "offload",
)
"""Keys of the layout; besides, ``nproc`` are its GPUs, and ``compile`` says its kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One training, in one process or in several; made of flat keys by `of`."""

    layout: Layout
    """How the step is spread and what it is run with: the layout that is predicted, too."""
    name: str = ""
    """What a table calls it."""
    python: str = ""
    """The interpreter it runs in, if it is another project's; empty: see `interpreters`."""
    model: str = "gpt2-small-cpu"
    """A name, numbers, or a path to a config.json: see `workload.find`."""
    data: str = ""
    """The prepared folder."""
    auto_batch: bool = False
    """``batch_size`` is not known yet: the largest that fits is looked for."""
    steps: int = 20
    attention: str = "auto"
    """How attention is computed: see `workload.model.ATTENTIONS`."""
    lr: float = 1e-3
    """The highest of the schedule."""
    warmup: int | None = None
    """Steps until then; a tenth of all, at most 100, unless given."""
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    clip: float = 1.0
    """Gradients of a larger norm are shortened to it; 0: never."""
    seed: int = 0
    """Of the first weights and of the samples' order."""
    heldout_batches: int = 8
    """Batches of the held-out part that the loss is taken of at the end; 0: none."""
    checkpoint_every: int = 100
    """Steps between checkpoints; 0: none."""
    device: str = ""
    """cpu or cuda; empty: a GPU where there is one."""
    devices: str = ""
    """GPUs of the ranks, by the driver's numbers: ``0,1``; empty: the first that may be used."""
    threads: int = 0
    """Of each process on a CPU; 0: as many as there are cores."""
    p2p: bool = True
    """Whether GPUs copy to each other directly."""
    rounds: int = 1
    """How often it is trained, by fresh processes, in turns with the others of its run."""

    @classmethod
    def of(cls, **keys: Any) -> Experiment:
        """The experiment of flat keys; what is not given is as usual."""
        own = {name: keys.pop(name) for name in tuple(keys) if name in _OWN}
        return cls(layout=_layout_of_keys(_USUAL, keys), **own)

    def replace(self, **changes: Any) -> Experiment:
        """A copy with some keys changed."""
        own = {name: changes.pop(name) for name in tuple(changes) if name in _OWN}
        layout = _layout_of_keys(self.layout, changes) if changes else self.layout
        return dataclasses.replace(self, layout=layout, **own)

    # A layout's sizes may be arrays; a training's are numbers.

    @property
    def framework(self) -> str:
        """Whose program trains."""
        return self.layout.framework

    @property
    def parallel(self) -> str:
        """The wrapper that was asked for; auto: as the sizes say."""
        return self.layout.parallel

    @property
    def nproc(self) -> int:
        """Devices of the training: the key of its file; what is computed asks the mesh."""
        return int(self.layout.gpus)

    @property
    def mesh(self) -> Mesh:
        """How its ranks are arranged, and how many share the data."""
        return self.layout.mesh

    @property
    def processes(self) -> int:
        """Processes that are started: one a rank, or one for all devices."""
        return 1 if self.parallel == "dataparallel" else self.mesh.ranks

    @property
    def batch_size(self) -> int:
        """Samples of a rank that go through the model at once."""
        return int(self.layout.batch_size)

    @property
    def seq_len(self) -> int:
        """Tokens of a sample."""
        return self.layout.seq_len

    @property
    def grad_accum(self) -> int:
        """Micro-batches of a step."""
        return int(self.layout.grad_accum)

    @property
    def precision(self) -> str:
        """What is computed in; weights are updated in fp32 (`train.native.precision`)."""
        return self.layout.precision

    @property
    def recompute(self) -> str:
        """What backward computes a second time: nothing, all but matrix products, or all."""
        return self.layout.recompute

    @property
    def compile(self) -> bool:
        """torch.compile for each block."""
        return self.layout.kernels == "compiled"

    @property
    def optimizer(self) -> str:
        """adamw: kernel by kernel; adamw-fused: torch's fused kernel; see `native.optimizers`."""
        return self.layout.optimizer

    @property
    def zero(self) -> int:
        """What is spread over ranks: 1 optimizer states, 2 gradients too, 3 weights too."""
        return int(self.layout.zero)

    @property
    def shard_size(self) -> int:
        """Ranks that share one copy when zero is 2 or 3 (hybrid sharding); 0: all."""
        return int(self.layout.shard_size)

    @property
    def offload(self) -> str:
        """Where sharded weights and optimizer states live: none (on the device) or host."""
        return self.layout.offload

    @property
    def warmup_steps(self) -> int:
        """Steps of the warm-up, the usual ones if none are given."""
        return min(100, self.steps // 10) if self.warmup is None else self.warmup

    @property
    def schedule(self) -> Cosine:
        """Step → learning rate."""
        return Cosine(peak=self.lr, steps=self.steps, warmup=self.warmup_steps)

    @property
    def device_numbers(self) -> tuple[int, ...]:
        """The driver's number of each rank's GPU; UsageError for what is no list of numbers."""
        words = self.devices.split(",") if self.devices else []
        if not all(word.strip().isdecimal() and len(word) < 6 for word in words):
            raise UsageError(f"{field_text('devices', self.devices)}", "numbers of GPUs, as 0,1")
        return tuple(int(word) for word in words)

    @property
    def samples(self) -> int:
        """Samples of a step on one rank."""
        return self.batch_size * self.grad_accum

    @property
    def global_samples(self) -> int:
        """Samples of a step on all data-parallel ranks."""
        return self.samples * self.mesh.dp

    @property
    def predicted_layout(self) -> Layout:
        """The layout with the tokens that the model's decoder writes, where it has one."""
        return self.layout.replace(target_seq_len=written_tokens(find(self.model), self.seq_len))


_USUAL = Layout(batch_size=8, seq_len=256, gpus_per_node=1, dropout="no")
_OWN = {field.name for field in dataclasses.fields(Experiment)} - {"layout"}


def _layout_of_keys(layout: Layout, keys: Mapping[str, Any]) -> Layout:
    """``layout`` with the flat keys of an experiment that speak of it.  Raises UsageError."""
    for (name, word), other in RETIRED_WORDS.items():
        if keys.get(name) == word:
            raise UsageError(f"{name} {word}: it is called {other} now", f"{name} = {other!r}")
    changes = {name: keys[name] for name in KEYS_OF_LAYOUT if name in keys}
    if "nproc" in keys:
        changes |= {"gpus": keys["nproc"], "gpus_per_node": max(1, keys["nproc"])}
    if "compile" in keys:
        changes["kernels"] = "compiled" if keys["compile"] else "flash"
    for name in keys.keys() - {*KEYS_OF_LAYOUT, "nproc", "compile"}:
        raise no_key(name, KEYS)
    return layout.replace(**changes)


def to_dict(experiment: Experiment) -> dict[str, Any]:
    """The flat keys, as they are stored; what is None is left out."""
    found = {name: getattr(experiment, name) for name in KEYS}
    return {name: value for name, value in found.items() if value is not None}


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """What was resolved, by the keys of an experiment file; the text by its folder's name.

    Left out is what tells one training from another and changes nothing in it.
    """
    found = {name: each for name, each in to_dict(experiment).items() if name not in _NO_SETTING}
    return {**found, "data": os.path.basename(experiment.data)}


_NO_SETTING = {"name", "data", "auto_batch", "python", "rounds"}


def from_dict(content: Mapping[str, Any]) -> Experiment:
    """The experiment in a mapping of flat keys.  UsageError names the first key that is wrong."""
    for name in content:
        if name not in _KINDS:
            raise no_key(name, KEYS)
    try:
        # What JSON has no word for, a date, becomes a list: no key takes one.
        text = json.dumps(dict(content), default=lambda other: [str(other)])
        keys = _keys().model_validate_json(text).model_dump(exclude_unset=True)
    except ValidationError as error:
        name = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
        raise UsageError(field_text(name, content[name]), _WORDS[_KINDS[name]]) from None
    return Experiment.of(**keys)


KEYS = (
    *("name", "framework", "parallel", "python", "model", "data", "batch_size", "auto_batch"),
    *(
        "seq_len",
        "grad_accum",
        "steps",
        "precision",
        "recompute",
        "attention",
        "compile",
        "optimizer",
    ),
    *("lr", "warmup", "weight_decay", "beta1", "beta2", "eps", "clip", "seed", "heldout_batches"),
    *("checkpoint_every", "device", "devices", "nproc", "zero", "shard_size", "offload", "p2p"),
    *("threads", "rounds"),
)
"""Every flat key, in the order in which a file has them."""

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
"""Likewise of values."""


def no_key(key: str, known: Sequence[str]) -> UsageError:
    """The error for a key that no experiment has."""
    short = key if len(key) < _MOST_SHOWN else key[:_MOST_SHOWN] + "…"
    if key in RETIRED:
        return UsageError(f"an experiment has no {short!r}", f"it is called {RETIRED[key]} now")
    return UsageError(f"an experiment has no {short!r}", unknown("key", key, known).hint)


def from_run(content: Mapping[str, Any], run: str) -> Experiment:
    """The experiment that a run was made for.  DataError where an older version wrote it."""
    if RETIRED.keys() & content.keys():
        raise DataError(
            f"{run} was trained by an older trainrig, whose keys had other names",
            "train it anew; trainrig report shows what is there",
        )
    return from_dict(content)


def _kinds() -> dict[str, str]:
    """The type of each key, as a word."""
    own = {f.name: str(f.type).removesuffix(" | None") for f in dataclasses.fields(Experiment)}
    kinds = {name: "int" if name == "nproc" else own.get(name, "") for name in KEYS}
    kinds |= {name: type(getattr(_USUAL, name)).__name__ for name in KEYS_OF_LAYOUT}
    return {**kinds, "compile": "bool"}


_KINDS = _kinds()
_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
_MOST_SHOWN = 60


def field_text(name: str, value: Any) -> str:
    """A field and its value as a person wrote them, short enough for a line."""
    text = one_line(repr(value) if isinstance(value, str) else str(value))
    short = text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"
    return f"{name} = {short}"


@cache
def _keys() -> type[BaseModel]:
    """The flat keys as a model; none of them has to be there."""
    fields: dict[str, Any] = {
        name: (_TYPES[kind] | None if name == "warmup" else _TYPES[kind], None)
        for name, kind in _KINDS.items()
    }
    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return create_model("Keys", __config__=config, **fields)


def case_of(experiment: Experiment, data_hash: str) -> Case:
    """What decides the numbers: the case of benchmark ``training``."""
    return {
        "model": experiment.model,
        "precision": experiment.precision,
        "batch_size": experiment.batch_size,
        "seq_len": experiment.seq_len,
        "grad_accum": experiment.grad_accum,
        "optimizer": experiment.optimizer,
        "recompute": experiment.recompute,
        "attention": experiment.attention,
        "compile": experiment.compile,
        "data": data_hash[:8],
        **{name: getattr(experiment, name) for name in _LAYOUT},
        "experiment": experiment.name,
    }


_LAYOUT = ("framework", "parallel", "nproc", "zero", "shard_size", "offload", "p2p", "seed")


def objective_of(shape: ModelShape) -> str:
    """What a family learns, by the name that `data.objective` knows."""
    return {"bert": "masked", "t5": "spans"}.get(shape.family, "causal")


def check(experiment: Experiment) -> ModelShape:
    """The model's shape, once nothing speaks against the experiment.  Raises UsageError."""
    for name in ("batch_size", "seq_len", "grad_accum", "steps"):
        _check_range(experiment, name, 1, 2**31)
    _check_range(experiment, "rounds", 1, 1001)
    for name in ("heldout_batches", "checkpoint_every", "seed", "threads"):
        _check_range(experiment, name, 0, 2**63)
    if experiment.warmup is not None:
        _check_range(experiment, "warmup", 0, 2**63)
    if experiment.attention not in ATTENTIONS:
        raise unknown("attention", experiment.attention, ATTENTIONS)
    _check_optimizer(experiment)
    shape = find(experiment.model)
    if experiment.seq_len > shape.max_positions and shape.positions == "learned":
        raise UsageError(
            f"seq_len = {experiment.seq_len}: {shape.name} knows {shape.max_positions} positions",
            f"--seq-len {shape.max_positions} at most, or a shape with more max_positions",
        )
    return shape


def _check_range(experiment: Experiment, name: str, least: int, most: int) -> None:
    value = getattr(experiment, name)
    if not least <= value < most:
        raise UsageError(field_text(name, value), f"a whole number from {least} to {most - 1}")


def _check_optimizer(experiment: Experiment) -> None:
    for name in ("lr", "eps"):
        if not 0.0 < getattr(experiment, name) < math.inf:
            raise UsageError(field_text(name, getattr(experiment, name)), "a number above 0")
    for name in ("beta1", "beta2"):
        if not 0.0 <= getattr(experiment, name) < 1.0:
            raise UsageError(
                field_text(name, getattr(experiment, name)), "a number from 0 to below 1"
            )
    for name in ("weight_decay", "clip"):
        if not 0.0 <= getattr(experiment, name) < math.inf:
            raise UsageError(field_text(name, getattr(experiment, name)), "a number from 0")


def check_compiler(experiment: Experiment) -> None:
    """Raise UnavailableError where torch.compile is asked for and nothing can compile.

    It builds C++ for the host and, for a GPU, a launcher in C; any of these does both.  Going on
    without would be another case under this one's name.
    """
    names = [os.environ.get("CXX", "g++"), "c++", "clang++"]
    if experiment.compile and not any(shutil.which(name) for name in names):
        raise UnavailableError(
            "torch.compile needs a compiler, and none of these is on PATH: " + ", ".join(names),
            "install g++, or leave --compile out",
        )
