"""The public functions: what the verbs of the command line do, for Python.

Each asks the same question as the verb of its name and ends in the same function.  Paths are
``str`` or `pathlib.Path`, durations seconds or words (``"4m"``).  What a user can get wrong raises
`trainrig.errors.TrainrigError`, whose ``message`` and ``hint`` are the lines that the verb prints.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, get_args, get_type_hints

from trainrig.errors import UsageError, unknown
from trainrig.units import parse_duration

if TYPE_CHECKING:
    from trainrig.analysis.compare import RunComparison
    from trainrig.prediction.fit.methods import FitAnswer
    from trainrig.prediction.prediction import Prediction
    from trainrig.prediction.scenario import Measured
    from trainrig.record import RunView
    from trainrig.runner.layout_search import Planned
    from trainrig.runner.view import RunOutcome

AnyPath = str | Path


class TrainingOptions(TypedDict, total=False):
    """Options of ``trainrig predict``, with underscores; ``trainrig predict --help`` has all."""

    model: AnyPath
    """Name of a model, ``"gpt2:num_layers=4,hidden=256"``, or a config.json."""
    on: AnyPath
    """Chip or server of the catalog, or the TOML file of a chip or cluster of one's own."""
    gpus: int
    gpus_per_node: int
    link: str
    host_memory: float
    """GiB of a server's processors, for what is offloaded."""
    fabric_gbps: float
    """Network of a server, in Gb/s."""
    p2p: bool
    framework: str
    method: str
    seq_len: int
    """Tokens of a sample."""
    target_seq_len: int
    """Tokens of a sample on the decoder's side, of a model with an encoder."""
    precision: str
    kernels: str
    experts: str
    flash_version: str
    optimizer: str
    recompute: str
    offload: str
    offload_overlap: str
    lora_rank: int
    lora_on: str
    quantize: str
    parallel: str
    states: str
    moments: str
    grad_reduce: str
    fp8_params: bool
    optimizer_in_backward: bool
    offload_checkpoints: bool
    software: str
    loss: str
    overlap: str
    cuda_graphs: str
    router_spread: float
    cp_comm: str
    batch_size: int
    """Samples of a micro-batch on a data-parallel rank."""
    grad_accum: int
    """Micro-batches of a step."""
    global_batch: int
    """Samples of a step over all GPUs."""
    tp: int
    pp: int
    cp: int
    ep: int
    interleave: int
    schedule: str
    zero: int
    shard_size: int
    sequence_parallel: bool


def predict(*, rates: AnyPath | None = None, **options: Unpack[TrainingOptions]) -> Prediction:
    """Predict the time and the memory of a training step.

    Args:
        rates: Run whose measured rates stand for the catalog's.
        **options: The model, the machine and the layout; ``model`` and ``on`` (or ``rates``) are
            needed.

    Returns:
        The prediction: ``time`` (seconds of a step), ``interval`` (80 %), ``memory`` (bytes by
        part), ``tokens`` of a step, ``mfu``.

    Raises:
        UsageError: An option is unknown, or its value cannot be.
        DataError: A file cannot be read.

    Example:
        >>> step = trainrig.predict(model="llama-7B", on="H100 SXM5 80GB", gpus=8, zero=3)
        >>> print(f"{step.time:.2f} s a step, {step.mfu:.0%} MFU")
    """
    from trainrig.prediction.prediction import predict as predict_question
    from trainrig.prediction.scenario import question

    return predict_question(question(_checked(options), _measured(rates)))


def fits(*, rates: AnyPath | None = None, **options: Unpack[TrainingOptions]) -> FitAnswer:
    """Say whether a training fits in memory: all weights, LoRA and QLoRA.

    Args:
        rates: Run whose measured rates stand for the catalog's.
        **options: As `predict` takes them.

    Returns:
        The answer: ``verdict`` of the method that was asked about ("fits", "borderline" or "does
        not fit"), ``methods`` with bytes, tokens a second and largest batch of each.

    Raises:
        UsageError: An option is unknown, or its value cannot be.
    """
    from trainrig.prediction.fit.methods import fits as answer

    return answer(_checked(options), _measured(rates))


def plan(
    *,
    rates: AnyPath | None = None,
    top: int = 10,
    tokens: float | None = None,
    days: float | None = None,
    **options: Unpack[TrainingOptions],
) -> Planned:
    """Rank every legal layout of a model by the time of a step.

    Args:
        rates: Run whose measured rates stand for the catalog's.
        top: How many of the best layouts are kept.
        tokens: Tokens of the training.
        days: Days in which it must be done; the number of GPUs is searched then.
        **options: As `predict` takes them; ``global_batch`` is needed.

    Returns:
        The ranking: ``search.best`` has the layouts, fastest first; ``to_dict()`` is the JSON of
        ``trainrig plan --json``.

    Raises:
        UsageError: An option is unknown, or its value cannot be.
    """
    from trainrig.runner.layout_search import plan as search

    run = None if rates is None else Path(rates)
    return search(_checked(options), rates=run, top=top, tokens=tokens, days=days)


def qualify(
    *,
    budget: float | str = "4m",
    out: AnyPath = "runs",
    devices: Iterable[str] = (),
    only: Iterable[str] = (),
) -> RunOutcome:
    """Measure this machine, hold it against what is expected, and judge it.

    Args:
        budget: Time limit for all of it, in seconds or in words.
        out: Folder in which the run's folder is made.
        devices: GPUs by the driver's numbers; all of them without.
        only: Names of benchmarks, and ``links``; all of them without.

    Returns:
        The outcome: ``run`` (its folder), ``verdict``, ``answer`` (normal, slow, faulty or cannot
        tell).

    Raises:
        UsageError: The budget is out of range, or a device or benchmark is unknown.
        StoreError: The run cannot be written.
    """
    from trainrig.runner.session import qualify as measure

    return measure(budget=_seconds(budget), out=Path(out), devices=tuple(devices), only=tuple(only))


def bench(
    benchmark: str,
    *,
    budget: float | str = "1m",
    out: AnyPath = "runs",
    dtypes: Iterable[str] = (),
    sizes: Iterable[str | int] = (),
    ops: Iterable[str] = (),
    device: str | None = None,
) -> RunOutcome:
    """Run one benchmark; without choices, its usual dtypes, sizes and operations.

    Args:
        benchmark: ``matmul``, ``vector``, ``copy``, ``layer``, ... (``trainrig bench -h``).
        budget: Time limit, in seconds or in words.
        out: Folder in which the run's folder is made.
        dtypes: Data types: ``bf16``.
        sizes: Sizes, as the benchmark counts them: ``4096``, ``"16Mi"``.
        ops: Operations of the benchmark.
        device: ``cpu``, ``gpu`` or ``cuda:1``; every device without it.

    Returns:
        The outcome; `read_run` of its ``run`` has the records.

    Raises:
        UsageError: The benchmark, or a choice, is unknown.
    """
    from trainrig.runner.bench import BenchRequest
    from trainrig.runner.bench import bench as measure

    request = BenchRequest(
        benchmark=benchmark,
        dtypes=tuple(dtypes),
        sizes=tuple(map(str, sizes)),
        ops=tuple(ops),
        device=device,
    )
    return measure(request, budget=_seconds(budget), out=Path(out))


def read_run(run: AnyPath) -> RunView:
    """Read a run from its folder or its bundle.

    Args:
        run: Path of either.

    Returns:
        Its ``records``, ``config``, ``machine``, ``series`` and ``verdict``, with published
        figures beside.  A run that was cut off is judged by what it has.

    Raises:
        DataError: It is not a run, or of another version.
    """
    from trainrig.runner.view import judged_view
    from trainrig.store import read_run as read

    return judged_view(read(Path(run)))


def compare(old: AnyPath | RunView, new: AnyPath | RunView) -> RunComparison:
    """Compare two runs case by case: better, worse or cannot tell, with the ratio's interval.

    Args:
        old: The baseline, as a path or as `read_run` gives it.
        new: The run that is judged.

    Raises:
        DataError: A path is not a run.
    """
    from trainrig.analysis.compare import compare_runs
    from trainrig.runner.history import earlier_runs_of

    first, second = (read_run(run) if isinstance(run, str | Path) else run for run in (old, new))
    return compare_runs(first, second, earlier_runs_of(second, first))


def render_html(*runs: AnyPath | RunView) -> str:
    """Return the page of one run, or of several together, as one HTML file without links outside.

    Args:
        *runs: Paths, or what `read_run` gives.
    """
    from trainrig.report.run_report import render_html as render

    return render([read_run(run) if isinstance(run, str | Path) else run for run in runs])


def pack(run: AnyPath, bundle: AnyPath, *, full: bool = False) -> str:
    """Pack a run's folder into one file and return the hash of its content.

    Args:
        run: The folder.
        bundle: The file that is made; it must not exist.
        full: Keep the names of hosts, users and folders; without it they are taken out.

    Raises:
        DataError: It is not a run, or too large.
        StoreError: The file exists or cannot be written.
    """
    from trainrig.store import pack as pack_run

    return pack_run(Path(run), Path(bundle), redact=not full)


def _checked(options: TrainingOptions) -> dict[str, Any]:
    """Return the options as the question takes them.

    Raises UsageError for an unknown one, and for a value of another type than its own.
    """
    types = get_type_hints(TrainingOptions)
    values_given: dict[str, Any] = {}
    for name, value in options.items():
        if name not in types:
            raise unknown("option", name, types)
        if value is None:
            continue
        kinds = get_args(types[name]) or (types[name],)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not isinstance(value, (*kinds, int) if float in kinds and is_number else kinds) or (
            isinstance(value, bool) and bool not in kinds
        ):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise UsageError(f"{name} = {value!r}", f"a value of type {names}")
        if isinstance(value, bool) and name != "p2p":
            values_given[name] = int(value)
        else:
            values_given[name] = str(value) if name in ("model", "on") else value
    return values_given


def _measured(run: AnyPath | None) -> Measured:
    from trainrig.prediction.scenario import NOTHING

    if run is None:
        return NOTHING
    from trainrig.runner.view import rates_of_run

    return rates_of_run(Path(run))


def _seconds(budget: float | str) -> float:
    return parse_duration(budget, "budget") if isinstance(budget, str) else float(budget)
