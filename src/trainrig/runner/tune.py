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
from trainrig.analysis.tuning import Standing, standings
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
    """What a tuning came to."""

    outcome: RunOutcome
    ranking: tuple[Standing, ...]
    left_out: tuple[str, ...]
    """Experiments that were not among the best, by prediction or by the order of their files."""
    refused: tuple[tuple[str, str], ...] = ()
    """Names of those that cannot be trained here, and why."""

    def to_dict(self) -> dict[str, Any]:
        """As others script against it."""
        head = self.outcome.to_dict()
        return {
            "verdict_reason": head.pop("reason"),
            **head,
            "ranking": [each.to_dict() for each in self.ranking],
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
    best, rest = _trainable(every, top, site, refused)
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
    found = standings(training_results.results(view), training_results.predictions(view))
    return Tuned(
        outcome=outcome,
        ranking=found,
        left_out=tuple(own.name for own in rest),
        refused=tuple((name, error.message) for name, error in refused),
    )


def _read(
    files: Sequence[Path],
    keys: Mapping[str, Any],
    site: Site,
    refused: list[tuple[str, TrainrigError]],
) -> list[tuple[Path, Sequence[Experiment]]]:
    """The experiments of each file; what contradicts itself is added to ``refused``."""
    found: list[tuple[Path, Sequence[Experiment]]] = []
    for path in files:
        try:
            found.append((path, requested_experiments(path, keys, lambda: site)))
        except UsageError as error:
            refused.append((path.stem, error))
    return found


def _trainable(
    experiments: Sequence[Experiment],
    top: int,
    site: Site,
    refused: list[tuple[str, TrainrigError]],
) -> tuple[list[Experiment], list[Experiment]]:
    """The first ``top`` that can be trained here, and those behind them, which nobody asked."""
    found: list[Experiment] = []
    for number, own in enumerate(experiments):
        if len(found) == top:
            return found, list(experiments[number:])
        try:
            error: TrainrigError | None = lacks(placed(own, site), site)
        except (UsageError, UnavailableError) as refusal:
            error = refusal
        if error is None:
            found.append(own)
        else:
            refused.append((own.name, error))
    return found, []


def _of_one_model(experiments: Sequence[Experiment]) -> list[Experiment]:
    """With one tiny model a family, where there is one that all layouts of it can split.

    A tiny model has as many layers as its own layout has stages: samples of different models are
    other work, and would have no ratio.
    """
    families: dict[str, list[Experiment]] = {}
    for own in experiments:
        families.setdefault(find(own.model).family, []).append(own)
    shared = {family: _shared_model(members) for family, members in families.items()}
    return [
        own.replace(model=model) if (model := shared[find(own.model).family]) else own
        for own in experiments
    ]


def _shared_model(experiments: Sequence[Experiment]) -> str | None:
    """The smallest of their models that each of them can train; None: no one can be."""
    models = sorted(
        {own.model for own in experiments}, key=lambda model: parameters(find(model)).total
    )
    return next((model for model in models if all(_fits(own, model) for own in experiments)), None)


def _fits(own: Experiment, model: str) -> bool:
    other = own.replace(model=model)
    try:
        check(other)
        engine_of(other.framework).check(other)
    except UsageError:
        return False
    return True


def _distinct(files: Sequence[tuple[Path, Sequence[Experiment]]]) -> list[Experiment]:
    """The experiments of all files; a name that is there already gets its file before it."""
    found: dict[str, Experiment] = {}
    for path, experiments in files:
        for own in experiments:
            name = own.name if own.name not in found else f"{path.stem}: {own.name}"
            found[name] = own.replace(name=name)
    return list(found.values())


def _by_prediction(
    experiments: Sequence[Experiment], snapshot: Snapshot, out: Path
) -> list[Experiment]:
    """The fastest by its predicted time of a sample first; what has no prediction stays behind."""
    targets = find_targets(snapshot)
    site = site_of(snapshot, targets)
    grounds = grounds_of(out, machine_key(to_dict(snapshot)), site.cores)
    times: list[float] = []
    for own in experiments:
        here = own.replace(device=own.device or ("cuda" if site.gpus else "cpu"))
        target = choose(targets, here.device)[0]
        found = forecast(here, case_of(here, ""), target, "", grounds)
        time = next((each.value for each in found if each.metric == "time"), None)
        times.append(time / own.global_samples if time else float("inf"))
    order = sorted(range(len(times)), key=times.__getitem__)
    return [experiments[number] for number in order]
