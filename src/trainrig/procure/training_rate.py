"""How fast a model trains on machines: by the predictor's best layout, or as a run measured it.

A predicted rate has the predictor's 80 % interval of the step; a measured one that of its record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from trainrig.benchmarks.training import BENCHMARK
from trainrig.catalog.chip import Chip
from trainrig.errors import DataError, UsageError
from trainrig.prediction.cluster import Cluster
from trainrig.prediction.prediction import Prediction, predict
from trainrig.prediction.scenario import Question, one_node, positive, space
from trainrig.prediction.search import SIMULATED, search
from trainrig.prediction.search.gpu_count import Budget, gpus_needed
from trainrig.prediction.search.space import Space
from trainrig.record import Kind, Record, Status
from trainrig.units import DAY, counted, format_count, format_share
from trainrig.workload.model import ModelShape
from trainrig.workload.model_lookup import find, note_of

TOKENS_A_STEP = 2**20
"""Tokens of a step where no global batch is given (GPT-3 1.3B; Brown et al. 2020, table 2.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRate:
    """Tokens a second of a training, with their GPUs, watts and source."""

    tokens_per_s: float
    low: float
    high: float
    gpus: int
    nodes: int
    gpu_watts: float | None
    """Watts of all GPUs; None: not known."""
    limit_watts: float | None = None
    """Predicted watts of all GPUs, where a run measured none."""
    source: str
    limits: str = ""
    """The largest part of the step beside compute."""
    prediction: Prediction | None = None
    is_measured: bool = False
    presumed: tuple[str, ...] = ()
    """Presumptions about the training that options replace, as text."""

    def days(self, tokens: float) -> tuple[float, float, float]:
        """Return the days that tokens take: middle, low and high."""
        middle, low, high = (
            tokens / speed / DAY for speed in (self.tokens_per_s, self.high, self.low)
        )
        return middle, low, high


def training_space(training_options: Mapping[str, Any]) -> tuple[Space, Cluster]:
    """Return all layouts of a model; without a global batch, about TOKENS_A_STEP tokens a step."""
    options = dict(training_options)
    if options.get("global_batch") is None:
        first, _ = space({**options, "global_batch": 1})
        options["global_batch"] = max(1, TOKENS_A_STEP // first.base.batch.seq_len)
    return space(options)


def predicted_rate(
    options: Mapping[str, Any], tokens: float | None = None, days: float | None = None
) -> TrainingRate:
    """Return the best layout's rate; with ``days`` and no ``gpus``, on the fewest machines that do.

    Raises UsageError where nothing fits.
    """
    is_counted = days is None or options.get("gpus") is not None
    slower: list[Budget] = []
    layout_space, cluster = training_space(
        options if is_counted else {**options, "gpus": one_node(options)}
    )
    if days is not None and options.get("gpus") is None:
        if tokens is None:
            raise UsageError("days for how many tokens?", "as --tokens 140e9")
        positive("days", days)
        budget = gpus_needed(layout_space, cluster, positive("tokens", tokens), days)
        batch = layout_space.global_batch
        machines = -(-budget.cluster.gpus // cluster.tray)  # they are had whole
        slower = [
            more
            for more in budget.neighbours
            if budget.is_slowed_by(batch, more) and more.cluster.gpus > machines * cluster.tray
        ]
        cluster = cluster.on(machines * cluster.tray)
    rate = rate_at(layout_space, cluster, SIMULATED)
    if rate is None:
        raise UsageError(
            f"{layout_space.shape.name} does not fit on {cluster.gpus} × {cluster.rates().device}",
            "more GPUs, or GPUs with more memory; trainrig fits says what helps",
        )
    presumed = [note_of(str(options["model"]), layout_space.shape)]
    if options.get("global_batch") is None:
        batch = layout_space.global_batch
        tokens_a_step = format_count(batch * layout_space.base.batch.seq_len)
        presumed.append(
            f"global batch of {counted(batch, 'sample')}, {tokens_a_step} tokens a step; "
            "--global-batch has another"
        )
    for more in slower[:1]:
        samples = counted(layout_space.global_batch, "sample")
        presumed.append(
            f"{more.cluster.gpus} GPUs are slower than {rate.gpus}: {samples} do not divide over "
            "them"
        )
    return replace(rate, presumed=tuple(filter(None, presumed)))


def rate_at(layout_space: Space, cluster: Cluster, simulate: int = 0) -> TrainingRate | None:
    """Return the best layout's rate at a cluster; None where nothing fits or makes the batch.

    ``simulate``: so many of the fastest are ranked by their simulation, as a plan ranks them.
    """
    try:
        ranked = search(layout_space.on(cluster), cluster.rates(), top=1, simulate=simulate)
        best = ranked.best[0]
    except UsageError:
        return None
    if not best.fits:
        return None
    question = Question(
        shape=layout_space.shape,
        layout=best.layout,
        cluster=cluster,
        presumed=layout_space.presumed_of(best.layout),
    )
    prediction = predict(question)
    low, high = prediction.interval
    waits = {name: size for name, size in best.parts_of_step.items() if name not in _COMPUTE}
    slowest = max(waits, key=lambda name: waits[name], default="")
    share = waits.get(slowest, 0.0) / best.ranked_by
    return TrainingRate(
        tokens_per_s=prediction.tokens_per_s,
        low=prediction.tokens / high,
        high=prediction.tokens / low,
        gpus=cluster.gpus,
        nodes=-(-cluster.gpus // cluster.gpus_per_node),
        gpu_watts=prediction.power,
        source="predicted, best layout, 80 % interval",
        limits=f"{_WORDS.get(slowest, slowest)}: {format_share(share)} of a step"
        if share >= 0.1
        else "compute of the GPUs",
        prediction=prediction,
    )


_COMPUTE = ("forward", "backward")
_WORDS = {
    "data_comm": "exchange of gradients",
    "tensor_comm": "tensor-parallel exchange",
    "pipeline_comm": "pipeline exchange",
    "recompute": "recomputation for want of memory",
    "gaps": "launch gaps",
    "bubble": "pipeline bubble",
}


@lru_cache(maxsize=512)
def bound_of(layout_space: Space, chip: Chip) -> float:
    """Return the tokens/s of one GPU that no layout on several exceeds per GPU.

    The fastest layout on one GPU if its memory had no end, of whichever program runs some layout.
    """
    alone = Cluster(chip=chip, gpus=1, gpus_per_node=1)
    rates = alone.rates().replace(memory_bytes=1e18)
    programs = (
        layout_space,
        *(layout_space.replace(framework=engine) for engine in layout_space.programs),
    )
    times = [
        search(program_space.on(alone), rates, top=1).best[0].time for program_space in programs
    ]
    return layout_space.global_batch * layout_space.base.batch.seq_len / min(times)


def measured_rate(records: Iterable[Record], name: str, model: str = "") -> TrainingRate:
    """Return the fastest training of a model in a run, with what its GPUs took.

    Raises DataError where it was not trained, UsageError where several were and none is named.
    """
    training_records = [
        record
        for record in records
        if record.kind is Kind.MEASURED
        and record.status is Status.OK
        and record.benchmark == BENCHMARK.name
    ]
    rates = [
        record for record in training_records if record.metric == "token_rate" and record.value
    ]
    if not rates:
        raise DataError(
            f"{name} has measured no training", "a run of trainrig train: its tokens/s are taken"
        )
    names = sorted({str(record.case.get("model", "")) for record in rates})
    if model:
        shape = find(model)
        names = [name for name in names if _is_of(shape, name)]
        rates = [record for record in rates if record.case.get("model") in names]
        if not rates:
            raise DataError(
                f"{name} did not train {model}", "a run of trainrig train of that model"
            )
    if len(names) > 1 and not model:
        raise UsageError(f"{name} trained {', '.join(names)}", "which one?  --model")
    best = max(rates, key=lambda record: record.value or 0.0)
    value = best.value or 0.0
    low, high = best.interval or (value, value)
    power_records = [
        record
        for record in training_records
        if record.case == best.case and record.metric == "power" and record.value
    ]
    watts = power_records[0].value if power_records else None
    measured_gpus = best.device_count or 1
    return TrainingRate(
        tokens_per_s=value,
        low=low,
        high=high,
        gpus=measured_gpus,
        nodes=1,
        gpu_watts=watts,
        source=f"measured, {name}",
        is_measured=True,
    )


def _is_of(shape: ModelShape, name: str) -> bool:
    """Return whether a record's model is of a shape, however it is spelled."""
    try:
        return find(name).replace(name=shape.name) == shape
    except (DataError, UsageError):  # a path of another machine
        return False
