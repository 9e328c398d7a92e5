"""plan: search the layouts, ask what upgrades bring or how many GPUs are needed, write the winners.

A winner that can be trained here is written as an experiment file that `trainrig train` takes; its
prediction is in its comment, so that what is measured later can be held against it.  One that no
framework trains yet is marked ``predict only``, with the reason; then the best that can be trained
is searched for, and written too, with how much longer it takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from trainrig.benchmarks.training import SPLITS
from trainrig.catalog.arithmetic import HALF
from trainrig.catalog.servers import find_server
from trainrig.errors import StoreError, UsageError
from trainrig.prediction.as_json import layout_dict, prediction_dict, program_dict, step_time_by
from trainrig.prediction.cluster import Cluster
from trainrig.prediction.prediction import Prediction, predict
from trainrig.prediction.rates import Rates
from trainrig.prediction.scenario import (
    NOTHING,
    Question,
    notes_of,
    one_node,
    positive,
    space,
)
from trainrig.prediction.search import (
    SIMULATED,
    TIE,
    Candidate,
    LayoutFamily,
    Ranking,
    families,
    search,
)
from trainrig.prediction.search.gpu_count import Budget, gpus_needed
from trainrig.prediction.search.space import Space
from trainrig.prediction.search.upgrades import Ranked, upgrades_of_search
from trainrig.prediction.step.simulate import simulated
from trainrig.prediction.verdict import FITS, verdict_of_layout
from trainrig.report.prediction_report import layout_text
from trainrig.runner.progress import Progress, Watcher, null_progress
from trainrig.runner.view import rates_of_run
from trainrig.store import store_errors, write_atomic
from trainrig.train.config import KEYS_OF_LAYOUT, Experiment
from trainrig.train.config_file import AUTO
from trainrig.train.engines import ENGINES, engine_of
from trainrig.units import DAY, counted, format_memory, format_time
from trainrig.workload import ModelShape, find
from trainrig.workload.layout import Layout

MOST_SHOWN = 10_000
_RANKED = 400
"""Layouts among which distinct families are looked for."""
STEPS = 50
"""Steps of a written experiment: enough to measure one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Result of a plan: ranked layouts, and files written."""

    space: Space
    cluster: Cluster
    search: Ranking
    families: tuple[LayoutFamily, ...]
    """The best layout of each way to split the model; what ties with it is counted."""
    answer: Prediction
    """Answer for the best layout."""
    tokens: float | None
    budget: Budget | None
    upgrades: tuple[Ranked, ...]
    trains: Candidate | None
    """The best layout that fits and can be trained here; None where none can."""
    written: tuple[Path, ...]
    asked_to_write: bool = False
    """True if files were asked for."""
    unwritten: StoreError | None = None
    """Reason that the requested files could not be written; the search still stands."""

    @property
    def fits(self) -> bool:
        """Return whether any layout fits."""
        return self.search.best[0].fits

    @property
    def device(self) -> str:
        """Whose rates were taken."""
        return self.answer.rates.device

    @property
    def slower(self) -> float | None:
        """Return the step time of the best trainable layout over that of the best one."""
        best = self.search.best[0]
        return None if self.trains in (None, best) else self.trains.ranked_by / best.ranked_by

    def notes(self) -> tuple[str, ...]:
        """Return notes on which layouts are predicted only, and which can be trained."""
        if not self.fits:
            return ()
        several = self.cluster.gpus > self.cluster.gpus_per_node
        reasons: dict[str, list[str]] = {}
        for number, candidate in enumerate(self.families, 1):
            if (reason := predict_only(candidate.best.layout, self.space.shape)) is not None:
                reasons.setdefault(reason, []).append(str(number))
        notes = [f"predict only: {', '.join(n)}: {reason}" for reason, n in reasons.items()]
        if several and self.trains is not None:
            nodes = -(-self.cluster.gpus // self.cluster.gpus_per_node)
            notes.append(
                f"over {nodes} nodes: trainrig train FILE --write launch --nodes {nodes}, then "
                "sbatch launch/*/job.sbatch; several nodes are unverified on hardware"
            )
        if self.written and (left_out := self._left_out()):
            notes = [note for note in notes if not note.startswith("predict only: ")]
            notes += [f"not written: layouts {listed}" for listed in left_out]
        if self.trains is None:
            notes.append("none of them can be trained here yet")
        elif self.slower is not None:
            layout = layout_text(self.trains.layout, fixed=False)
            notes.append(f"the best that can be trained: {layout}: {self.slower:.2f} × the time")
        return tuple(notes)

    @property
    def files_text(self) -> str:
        """Number of files that were written, and where; empty where none was asked for."""
        if not self.asked_to_write or not self.fits or self.unwritten is not None:
            return ""
        if not self.written:
            return "no file is written: no engine here runs any of these layouts"
        trainable = [
            family
            for family in self.families
            if predict_only(family.best.layout, self.space.shape) is None
        ]
        shown, folder = len(self.families), self.written[0].parent
        if not trainable:
            return f"No layout below can be trained here; one that can is written to {folder}"
        return f"{len(trainable)} of the {shown} layouts below are written to {folder}"

    def _left_out(self) -> list[str]:
        """Return the numbers of the shown layouts that have no file, the reason and the way out."""
        numbers_by_reason: dict[str, list[str]] = {}
        for number, family in enumerate(self.families, 1):
            if (refusal := _refusal(family.best.layout, self.space.shape)) is not None:
                reason = f"{refusal.message}; to train it: {refusal.hint}"
                numbers_by_reason.setdefault(reason, []).append(f"{number:02d}")
        return [f"{', '.join(numbers)}: {reason}" for reason, numbers in numbers_by_reason.items()]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as the JSON document that is printed."""
        best, answer = self.search.best, self.answer
        document = {
            "model": self.space.shape.name,
            "on": self.device,
            **program_dict(answer.question),
            "gpus": self.cluster.gpus,
            "gpus_per_node": self.cluster.gpus_per_node,
            "global_batch": self.space.global_batch,
            "layouts_considered": self.search.considered,
            "layouts_fitting": self.search.fitting,
            "seconds": self.search.seconds + self.search.simulation_seconds,
            "search_seconds": self.search.seconds,
            "simulation_seconds": self.search.simulation_seconds,
            "verdict": self.answer.verdict,
            "fits": self.answer.verdict == FITS,
            "mfu": answer.mfu,
            "mfu_causal_half": answer.mfu_half,
            "best": [
                self._candidate(candidate)
                | {"predict_only": predict_only(candidate.layout, self.space.shape)}
                for candidate in best
            ],
            "families": [
                self._candidate(candidate.best)
                | {
                    "ties_within_1_percent": candidate.ties,
                    "predict_only": predict_only(candidate.best.layout, self.space.shape),
                }
                for candidate in self.families
            ],
            "front": [self._candidate(candidate) for candidate in self.search.front],
            "gap_to_next": None,
            "best_that_trains": None,
            "prediction": prediction_dict(answer, self.tokens),
        }
        if len(best) > 1:
            gap = best[1].ranked_by - best[0].ranked_by
            document["gap_to_next"] = {"step_time_s": gap, "parts_s": best[0].gap(best[1])}
        if self.trains is not None:
            document["best_that_trains"] = self._candidate(self.trains) | {"slower": self.slower}
        if self.budget is not None:
            document["budget"] = {
                "gpus": self.cluster.gpus,
                "nodes": -(-self.cluster.gpus // self.cluster.gpus_per_node),
                "days": self.budget.days,
                "counts_tried": self.budget.tried,
                "neighbours": [
                    {"gpus": candidate.cluster.gpus, "days": candidate.days}
                    for candidate in self.budget.neighbours
                ],
            }
        if self.upgrades:
            document["upgrades"] = [asdict(candidate) for candidate in self.upgrades]
        if self.written:
            document["written"] = [str(path) for path in self.written]
        if self.asked_to_write:
            document["not_written"] = self._left_out()
        return document

    def _candidate(self, candidate: Candidate) -> dict[str, Any]:
        """Describe a layout; one search shares a step's FLOPs, so MFU goes as one over the time."""
        tokens_per_s = self.answer.tokens / candidate.ranked_by
        mfu = self.answer.mfu
        verdict = verdict_of_layout(
            self.space.shape,
            candidate.layout,
            self.answer.rates.memory_bytes,
            self.space.host_memory,
        )
        return {
            "step_time_s": candidate.ranked_by,
            "simulated_step_time_s": candidate.simulated,
            "step_time_by": step_time_by(
                is_simulated=candidate.is_pipeline and candidate.simulated is not None
            ),
            "memory_bytes_per_gpu": candidate.memory,
            "verdict": verdict,
            "fits": verdict == FITS,
            "tokens_per_s": tokens_per_s,
            "tokens_per_day": tokens_per_s * DAY,
            "mfu": None if mfu is None else mfu * self.answer.time / candidate.ranked_by,
            "parts_s": candidate.parts_of_step,
            "layout": layout_dict(candidate.layout),
        }


def plan(
    options: Mapping[str, Any],
    *,
    rates: Path | None = None,
    top: int = 10,
    tokens: float | None = None,
    days: float | None = None,
    what_if: str | None = None,
    write: Path | None = None,
    watch: Watcher = null_progress,
) -> Planned:
    """Search for the best layouts of what is asked.  Raises UsageError for what cannot be."""
    if not 1 <= top <= MOST_SHOWN:
        raise UsageError(f"top = {top}", f"a whole number from 1 to {MOST_SHOWN}")
    _check_budget(options, tokens, days)
    every, cluster = space(
        _with_gpus(options, days), NOTHING if rates is None else rates_of_run(rates)
    )
    budget = None
    if days is not None and tokens is not None:
        watch(Progress(text="searching for the number of GPUs", level="stage"))

        def searching(gpus: int) -> None:
            watch(Progress(text=f"searching layouts on {counted(gpus, 'GPU')}", level="running"))

        budget = gpus_needed(every, cluster, tokens, days, searching)
        cluster = budget.cluster
        every = every.on(cluster)
    result = search(every, cluster.rates(), top=max(top, _RANKED), simulate=SIMULATED)
    distinct = families(result.best, top)
    result = replace(result, best=result.best[:top])
    trains = None
    if result.best[0].fits:
        shape = every.shape
        trains = next(
            (
                candidate
                for candidate in result.best
                if predict_only(candidate.layout, shape) is None
            ),
            None,
        )
        if trains is not result.best[0]:
            trains = best_that_trains(every, cluster.rates()) or trains
    fastest = result.best[0]
    if (
        trains is not None and (1.0 + TIE) * trains.ranked_by < fastest.ranked_by
    ):  # by another framework than usual
        smaller = tuple(candidate for candidate in result.front if candidate.memory < trains.memory)
        result = replace(result, best=(trains, *result.best)[:top], front=(trains, *smaller))
        distinct = (LayoutFamily(best=trains, ties=0), *distinct)[:top]
    best = result.best[0]
    shown = tuple(family.best for family in distinct) or result.best
    chosen, before = (shown, best.ranked_by) if best.fits else ((), None)
    ranked = () if what_if is None else upgrades_of_search(every, cluster, before, what_if)
    written: tuple[Path, ...] = ()
    unwritten = None
    if write is not None and chosen:
        try:
            written = write_experiments(chosen, trains, str(options["model"]), write)
        except StoreError as error:
            unwritten = error
    return Planned(
        space=every,
        cluster=cluster,
        search=result,
        families=distinct,
        answer=predict(
            Question(
                shape=every.shape,
                layout=best.layout,
                cluster=cluster,
                notes=notes_of(
                    str(options["model"]), every.shape, cluster, every.base.batch.seq_len
                ),
                presumed=every.presumed_of(best.layout),
                model=str(options["model"]),
            )
        ),
        tokens=tokens,
        budget=budget,
        upgrades=ranked,
        trains=trains,
        written=written,
        asked_to_write=write is not None,
        unwritten=unwritten,
    )


def _check_budget(options: Mapping[str, Any], tokens: float | None, days: float | None) -> None:
    if tokens is not None:
        positive("tokens", tokens)
    if days is None:
        if "gpus" not in options and _node_of(options) is None:
            raise UsageError(
                "missing --gpus", "--gpus 8; or --tokens 140e9 --days 60 to compute it"
            )
        return
    positive("days", days)
    if tokens is None:
        raise UsageError("how many tokens in these days?", "as --tokens 140e9")
    if "gpus" in options:
        raise UsageError(
            "--days asks how many GPUs are needed, and --gpus says it",
            "leave one of them out; --gpus with --tokens gives the days",
        )


def _node_of(options: Mapping[str, Any]) -> int | None:
    """GPUs to a node of the machine that is named, where it says so."""
    return find_server(options["on"]).gpus if "on" in options else None


def _with_gpus(options: Mapping[str, Any], days: float | None) -> Mapping[str, Any]:
    """Return the layout with a number of GPUs; one node stands in while it is being sought."""
    if days is None:
        return options
    return {**options, "gpus": one_node(options)}


def predict_only(layout: Layout, shape: ModelShape) -> str | None:
    """Return why no framework here trains this layout of a model, or None."""
    refusal = _refusal(layout, shape)
    return None if refusal is None else refusal.message


def _refusal(layout: Layout, shape: ModelShape) -> UsageError | None:
    """Return the error that its framework gives for a layout of a model, or None."""
    try:
        return engine_of(layout.framework).supports(layout, shape)
    except UsageError as error:
        return error


def best_that_trains(space: Space, rates: Rates) -> Candidate | None:
    """Return the fastest layout that fits and can be trained here, or None.

    It is looked for among the layouts that were searched, then among those of each framework.
    """
    for framework in (space.framework, *ENGINES):
        with suppress(UsageError):  # it has no layout of this global batch
            ranked = search(space.replace(framework=framework), rates, top=MOST_SHOWN).best
            for candidate in ranked:
                if candidate.fits and predict_only(candidate.layout, space.shape) is None:
                    seconds, _ = simulated(space.shape, candidate.layout, rates)
                    return replace(candidate, simulated=float(seconds[0]))
    return None


def write_experiments(
    best: Sequence[Candidate], trains: Candidate | None, model: str, folder: Path
) -> tuple[Path, ...]:
    """Write an experiment file for each trainable layout, in order.  Raises StoreError.

    ``trains``: the best one that can, where it is none of them.
    """
    files = {
        f"{number:02d}-{_slug(candidate)}.toml": experiment_text(candidate, model)
        for number, candidate in enumerate(best, 1)
        if predict_only(candidate.layout, find(model)) is None
    }
    if trains is not None and all(trains.layout != candidate.layout for candidate in best):
        times = trains.ranked_by / best[0].ranked_by
        slower = f"# {times:.2f} times as long as the best, predict only: "
        note = f"{slower}{_slug(best[0])}.\n"
        files[f"trains-{_slug(trains)}.toml"] = note + experiment_text(trains, model)
    if not files:  # no empty folder: what cannot be trained is told
        return ()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot write {folder}: {error.strerror}", "name another folder"
        ) from None
    for name, text in files.items():
        write_atomic(folder / name, text)
    listed = {
        f"{number:02d}-{_slug(candidate)}.toml": candidate
        for number, candidate in enumerate(best, 1)
    }
    listed |= {f"trains-{_slug(trains)}.toml": trains} if trains is not None else {}
    for name in files:
        _write_launch_files(listed[name], model, folder / name)
    return tuple(folder / name for name in files)


def _write_launch_files(candidate: Candidate, model: str, file: Path) -> None:
    """Write other projects' launch files for a layout, in a folder beside its experiment.

    Each framework's that trains the layout, and torchrun's line.  Raises StoreError.
    """
    keys = {key: value for key, value in experiment_keys(candidate, model).items() if key != "tiny"}
    experiment, shape = Experiment.of(**keys), find(model)
    texts = {"torchrun.sh": _torchrun(experiment, file, candidate.layout)}
    for name, engine in ENGINES.items():
        if engine.supports(candidate.layout.replace(framework=name), shape) is None:
            texts |= engine.files(experiment)
    nodes = -(-candidate.layout.mesh.gpus // candidate.layout.mesh.gpus_per_node)
    if nodes > 1 and (text := texts.get(_ACCELERATE)) is not None:
        several = {"num_machines": nodes, "main_process_port": 29500}
        texts[_ACCELERATE] = json.dumps(json.loads(text) | several, indent=2) + "\n"
    folder = file.with_suffix("")
    with store_errors(folder):
        folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        if "-probe" not in name:  # of the comparison's steps
            write_atomic(folder / name, text)


_ACCELERATE = "accelerate_config.json"


def _torchrun(experiment: Experiment, file: Path, layout: Layout) -> str:
    """Return a script that starts a layout's ranks by torchrun, or by Slurm on several nodes.

    What starts several nodes is unverified on hardware.
    """
    mesh, name, ranks = layout.mesh, experiment.name, experiment.processes
    nodes = -(-mesh.gpus // mesh.gpus_per_node)
    if nodes > 1:
        return f"""#!/bin/sh
# {name}: its {ranks} ranks on {nodes} nodes of {mesh.gpus_per_node} GPUs.
# trainrig writes a folder with what they read, with node.sh (torchrun's line on each node) and with
# job.sbatch, which Slurm runs.  Several nodes are unverified on hardware.
set -eu
cd "$(dirname "$0")"
ls ranks/01-*/job.sbatch >/dev/null 2>&1 ||
    trainrig train ../{file.name} --write ranks --nodes {nodes}
exec sbatch ranks/01-*/job.sbatch
"""
    return f"""#!/bin/sh
# {name}: its {ranks} ranks by torchrun.  trainrig writes a folder with what they read
# and with node.sh, which is torchrun's line with its environment; job.sbatch lies there, too.
set -eu
cd "$(dirname "$0")"
ls ranks/01-*/node.sh >/dev/null 2>&1 || trainrig train ../{file.name} --write ranks
NPROC_PER_NODE={ranks} exec sh ranks/01-*/node.sh
"""


def experiment_text(candidate: Candidate, model: str) -> str:
    """Return an experiment file's text: its prediction as a comment, then its keys."""
    mesh = candidate.layout.mesh
    comment = (
        f"# Predicted: {format_time(candidate.ranked_by)} a step, "
        f"{format_memory(candidate.memory)} a GPU, on "
        f"{mesh.gpus} GPUs in nodes of {mesh.gpus_per_node}.\n"
    )
    return comment + tomli_w.dumps(experiment_keys(candidate, model))


def experiment_keys(candidate: Candidate, model: str) -> dict[str, Any]:
    """Return the keys of an experiment file, without those at their defaults."""
    layout, experiment, default = (
        candidate.layout,
        Experiment(layout=candidate.layout),
        Experiment.of(),
    )
    keys = {name: experiment.get(name) for name in KEYS_OF_LAYOUT}
    usual = {
        name: default.get(name) for name in ("parallel", "zero", "shard_size", "offload", *SPLITS)
    }
    return {
        "name": _slug(candidate),
        "model": model,
        "device": "cuda",
        "nproc": layout.mesh.gpus,
        "steps": STEPS,
        **{name: value for name, value in keys.items() if usual.get(name) != value},
        **({"compile": True} if layout.kernels.stack == "compiled" else {}),
        "tiny": _tiny(layout),
    }


def _tiny(layout: Layout) -> dict[str, int | str]:
    """Return the changes of ``--scale tiny``: few short samples, on the same mesh.

    It may be trained on another device, in what that is fastest in.
    """
    sharing = int(layout.mesh.tp) * layout.mesh.cp
    return {
        "steps": 5,
        "seq_len": min(layout.batch.seq_len, -(-64 // sharing) * sharing),
        "batch_size": min(2, int(layout.batch.micro)),
        "grad_accum": min(max(2, int(layout.mesh.pp)), int(layout.batch.grad_accum)),
        **({"precision": AUTO} if layout.precision.compute in HALF else {}),
    }


def _slug(candidate: Candidate) -> str:
    """Return a layout's short name, such as ``megatron-tp8-pp4-b2``."""
    layout = candidate.layout
    words = [layout.framework]
    words += [layout.scheme] if layout.scheme not in ("none", "own") else []
    sizes = {
        "tp": layout.mesh.tp,
        "pp": layout.mesh.pp,
        "ep": layout.mesh.ep,
        "v": layout.pipeline.interleave,
    }
    for name, value in sizes.items():
        words += [f"{name}{value}"] if value > 1 else []
    words += [f"zero{layout.sharding.zero}"] if layout.sharding.zero else []
    words += [f"shard{layout.sharding.shard_size}"] if layout.sharding.shard_size else []
    words += ["sp"] if layout.mesh.sequence_parallel else []
    words += [f"b{layout.batch.micro}"]
    words += [layout.memory.recompute] if layout.memory.recompute != "none" else []
    words += ["gpipe"] if layout.pipeline.schedule == "gpipe" else []
    return "-".join(words)
