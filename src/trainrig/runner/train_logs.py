"""A training's steps told to TensorBoard or MLflow as well: optional packages, in the parent.

    train/loss, train/grad_norm, train/lr, train/tokens_per_s    each step of the first round
    heldout/loss                                                 after so many steps

tensorboard: event files in RUN/tensorboard/NAME (``tensorboard --logdir RUN/tensorboard``).
mlflow: a run of the experiment "trainrig" at MLFLOW_TRACKING_URI; without it in RUN/mlflow.db
(``mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db``).  Rows come from rank 0's events: every
framework is logged alike, and no rank waits for it.  What cannot be written to any more is said
once, and the training goes on; the run's own records and series have all of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainrig.errors import UnavailableError
from trainrig.process.supervisor import OnEvent
from trainrig.runner.progress import Progress, Watcher
from trainrig.runner.train_records import slug_of
from trainrig.train.config import LOGS, Experiment, to_dict

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Log:
    """An open log."""

    write: Callable[[int, Values], None]
    close: Callable[[], None]


def check_logs(experiment: Experiment) -> None:
    """Raise UnavailableError where a package is missing that a log needs."""
    for name in experiment.logs:
        if any(find_spec(package) is None for package in LOGS[name]):
            hint = f"pip install {name}, or leave --log {name} out"
            raise UnavailableError(f"log {name}: missing: {' and '.join(LOGS[name])}", hint)


@contextmanager
def opened(
    experiment: Experiment, run: Path, number: int, watch: Watcher
) -> Iterator[Callable[[OnEvent], OnEvent]]:
    """Put around what is told of a training's events in round ``number`` of the run ``run``."""
    slug, logs = slug_of(experiment.name), dict[str, _Log]()

    def trying(name: str, act: Callable[[], object]) -> None:
        try:
            act()
        except _failures(name) as error:
            logs.pop(name, None)
            words = str(error).splitlines() or [type(error).__name__]
            watch(Progress(text=f"log {name}: {words[0]}: nothing is logged there any more"))

    def begin(name: str) -> None:
        logs[name] = _OPENED[name](experiment, run, slug)

    for name in experiment.logs if number == 1 else ():
        trying(name, partial(begin, name))

    def logged(on_event: OnEvent) -> OnEvent:
        def observe(rank: int, event: Mapping[str, Any]) -> None:
            on_event(rank, event)
            if rank == 0 and (values := _values(event)):
                for name, log in list(logs.items()):
                    trying(name, partial(log.write, int(event["step"]), values))

        return observe

    try:
        yield logged
    finally:
        for name, log in list(logs.items()):
            trying(name, log.close)


def _values(event: Mapping[str, Any]) -> Values:
    """Return the numbers of a step, or of a held-out loss."""
    values = {}
    if event["event"] == "heldout":
        values = {"heldout/loss": event["loss"]}
    elif event["event"] == "row":
        values = {f"train/{name}": event.get(name) for name in ("loss", "grad_norm", "lr")}
        if event.get("time") and "tokens" in event:
            values["train/tokens_per_s"] = event["tokens"] / event["time"]
    return {name: value for name, value in values.items() if value is not None}


def _failures(name: str) -> tuple[type[Exception], ...]:
    if name != "mlflow":
        return (OSError,)
    return (OSError, import_module("mlflow.exceptions").MlflowException)


def _tensorboard(_: Experiment, run: Path, slug: str) -> _Log:
    protos = "tensorboard.compat.proto"
    event_of = import_module(f"{protos}.event_pb2").Event
    summary_of = import_module(f"{protos}.summary_pb2").Summary
    module = import_module("tensorboard.summary.writer.event_file_writer")
    writer = module.EventFileWriter(str(run / "tensorboard" / slug))

    def write(step: int, values: Values) -> None:
        pairs = [summary_of.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        writer.add_event(
            event_of(wall_time=time.time(), step=step, summary=summary_of(value=pairs))
        )

    return _Log(write=write, close=writer.close)


def _mlflow(experiment: Experiment, run: Path, slug: str) -> _Log:
    from_env = os.environ.get("MLFLOW_TRACKING_URI")
    uri = from_env or f"sqlite:///{(run / 'mlflow.db').resolve()}"
    mlflow, entities = import_module("mlflow"), import_module("mlflow.entities")
    client = mlflow.MlflowClient(tracking_uri=uri)
    mlflow_experiment = client.get_experiment_by_name("trainrig")
    number = (
        mlflow_experiment.experiment_id
        if mlflow_experiment
        else client.create_experiment("trainrig")
    )
    run_id = client.create_run(number, run_name=f"{run.name}/{slug}").info.run_id
    params = [entities.Param(key, str(value)) for key, value in to_dict(experiment).items()]
    client.log_batch(run_id, params=params)

    def write(step: int, values: Values) -> None:
        now = int(time.time() * 1000)
        metrics = [entities.Metric(tag, value, now, step) for tag, value in values.items()]
        client.log_batch(run_id, metrics=metrics)

    return _Log(write=write, close=lambda: client.set_terminated(run_id))


_OPENED: Mapping[str, Callable[[Experiment, Path, str], _Log]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
}
