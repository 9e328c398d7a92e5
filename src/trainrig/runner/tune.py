"""tune: train the layouts that a plan says are best for some steps, interleaved, and rank them.

The layouts are the experiment files of a folder that ``plan --write`` made, in their order, or the
experiments of one file, in the order of their predictions on this machine.  They are trained as
`runner.train` trains any experiments: each by fresh processes, compared with one process on the
same samples, and then again in further rounds, so that each round of one meets the machine together
with a round of the others.  What this machine cannot train is passed over with its reason, and the
next one takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig.analysis import training_results
from trainrig.analysis.compare_training import LEAST_ROUNDS
from trainrig.analysis.machine_key import machine_key
from trainrig.analysis.tuning import LayoutRank, rank_layouts
from trainrig.errors import TrainrigError, UnavailableError, UsageError
from trainrig.machine import Snapshot, inspect, to_dict
from trainrig.process.supervisor import STALL_TIMEOUT
from trainrig.runner.expectations import forecast, grounds_of
from trainrig.runner.progress import Watcher, null_progress
from trainrig.runner.targets import choose, described, find_targets
from trainrig.runner.train import train
from trainrig.runner.train_prepare import lacks, placed, requested_experiments, site_of
from trainrig.runner.view import RunOutcome, view_of
from trainrig.store import read_run
from trainrig.train.config import Experiment, case_of, check
from trainrig.train.engines import Site, engine_of
from trainrig.workload import find, parameters

ROUNDS = LEAST_ROUNDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Result of a tuning."""

    outcome: RunOutcome
    ranking: tuple[LayoutRank, ...]
    left_out: tuple[str, ...]
    """Experiments that were not among the best, by prediction or by the order of their files."""
    refused: tuple[tuple[str, str], ...] = ()
    """Names of those that cannot be trained here, and why."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as the JSON document that is printed."""
        head = self.outcome.to_dict()
        return {
            "verdict_reason": head.pop("reason"),
            **head,
            "ranking": [standing.to_dict() for standing in self.ranking],
            "left_out": list(self.left_out),
            "refused": [{"name": name, "reason": reason} for name, reason in self.refused],
        }


def tune(
    plan: Path,
    keys: Mapping[str, Any],
    *,
    top: int = 5,
    out: Path = Path("runs"),
    watch: Watcher = null_progress,
    stall_timeout: float = STALL_TIMEOUT,
) -> Tuned:
    """Train the best ``top`` of a plan's folder or a file.  Raises UsageError, DataError.

    ``keys``: of the command line, as beside a file of ``trainrig train``.
    """
    if top < 2:
        raise UsageError(f"top = {top}", "2 or more: one alone has nothing to be ranked with")
    keys = {"rounds": ROUNDS, **keys}
    refused: list[tuple[str, TrainrigError]] = []
    snapshot = described(inspect())
    site = site_of(snapshot)
    if plan.is_dir():
        files = sorted(plan.glob("*.toml"))
        if not files:
            hint = f"trainrig plan ... --write {plan} writes experiment files to it"
            raise UsageError(f"{plan} has no experiment files", hint)
        every = _distinct(_read(files, keys, site, refused))
    else:
        requested = requested_experiments(plan, keys, lambda: site)
        every = _by_prediction(requested, snapshot, out)
    if keys.get("scale") == "tiny":
        every = _of_one_model(every)
    best, remaining = _trainable(every, top, site, refused)
    if not best and refused:
        raise refused[0][1]
    if len(best) < 2:
        hint = "trainrig plan --top 5 --write DIR writes several"
        if refused:
            name, error = refused[0]
            hint = f"{name}: {error.message}"
        raise UsageError(f"{plan} has 1 experiment to train: nothing to rank", hint)
    outcome = train(best, out=out, watch=watch, stall_timeout=stall_timeout)
    view = view_of(read_run(outcome.run))
    ranking = rank_layouts(training_results.results(view), training_results.predictions(view))
    return Tuned(
        outcome=outcome,
        ranking=ranking,
        left_out=tuple(experiment.name for experiment in remaining),
        refused=tuple((name, error.message) for name, error in refused),
    )


def _read(
    files: Sequence[Path],
    keys: Mapping[str, Any],
    site: Site,
    refused: list[tuple[str, TrainrigError]],
) -> list[tuple[Path, Sequence[Experiment]]]:
    """Read each file's experiments; a file that contradicts itself is added to ``refused``."""
    experiments_by_file: list[tuple[Path, Sequence[Experiment]]] = []
    for path in files:
        try:
            experiments_by_file.append((path, requested_experiments(path, keys, lambda: site)))
        except UsageError as error:
            refused.append((path.stem, error))
    return experiments_by_file


def _trainable(
    experiments: Sequence[Experiment],
    top: int,
    site: Site,
    refused: list[tuple[str, TrainrigError]],
) -> tuple[list[Experiment], list[Experiment]]:
    """Return the first ``top`` experiments trainable here, and those after them."""
    trainable: list[Experiment] = []
    for number, experiment in enumerate(experiments):
        if len(trainable) == top:
            return trainable, list(experiments[number:])
        try:
            error: TrainrigError | None = lacks(placed(experiment, site), site)
        except (UsageError, UnavailableError) as refusal:
            error = refusal
        if error is None:
            trainable.append(experiment)
        else:
            refused.append((experiment.name, error))
    return trainable, []


def _of_one_model(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Replace each family's model by one tiny model that all its layouts can split, if any.

    A tiny model has as many layers as its own layout has stages: samples of different models are
    other work, and would have no ratio.
    """
    families: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        families.setdefault(find(experiment.model).family, []).append(experiment)
    shared = {family: _shared_model(members) for family, members in families.items()}
    return [
        experiment.replace(model=model)
        if (model := shared[find(experiment.model).family])
        else experiment
        for experiment in experiments
    ]


def _shared_model(experiments: Sequence[Experiment]) -> str | None:
    """Return the smallest model that all experiments can train, or None."""
    models = sorted(
        {experiment.model for experiment in experiments},
        key=lambda model: parameters(find(model)).total,
    )
    return next(
        (model for model in models if all(_fits(experiment, model) for experiment in experiments)),
        None,
    )


def _fits(experiment: Experiment, model: str) -> bool:
    with_model = experiment.replace(model=model)
    try:
        check(with_model)
        engine_of(with_model.framework).check(with_model)
    except UsageError:
        return False
    return True


def _distinct(files: Sequence[tuple[Path, Sequence[Experiment]]]) -> list[Experiment]:
    """Merge the experiments of all files; a repeated name is prefixed with its file's."""
    by_name: dict[str, Experiment] = {}
    for path, experiments in files:
        for experiment in experiments:
            name = (
                experiment.name
                if experiment.name not in by_name
                else f"{path.stem}: {experiment.name}"
            )
            by_name[name] = experiment.replace(name=name)
    return list(by_name.values())


def _by_prediction(
    experiments: Sequence[Experiment], snapshot: Snapshot, out: Path
) -> list[Experiment]:
    """Sort by predicted time of a sample; experiments without a prediction come last."""
    targets = find_targets(snapshot)
    site = site_of(snapshot, targets)
    grounds = grounds_of(out, machine_key(to_dict(snapshot)), site.cores)
    times: list[float] = []
    for experiment in experiments:
        placed = experiment.replace(device=experiment.device or ("cuda" if site.gpus else "cpu"))
        target = choose(targets, placed.device)[0]
        predicted = forecast(placed, case_of(placed, ""), target, "", grounds)
        time = next((record.value for record in predicted if record.metric == "time"), None)
        times.append(time / experiment.global_samples if time else float("inf"))
    order = sorted(range(len(times)), key=times.__getitem__)
    return [experiments[number] for number in order]
