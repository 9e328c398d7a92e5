"""What a run's trainings came to: one typed result for each experiment, checked before it is read.

They come from the run's records and steps (`analysis.training_facts`).  An older run wrote all of
it once more, as the series ``experiments``, and is read from there.

Whatever a file holds, what comes out is a `TrainingResult` or a DataError that names the place and
the field.  Fields that an older run did not write have defaults, and fields that are not known here
are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from trainrig.analysis.rows import rows
from trainrig.analysis.training_facts import LARGEST, summary_of_records, trainings
from trainrig.benchmarks.training import BENCHMARK as TRAINING
from trainrig.errors import DataError, KeyPath, first_problem
from trainrig.flat_keys import FlatKeys, part
from trainrig.process.lost_ranks import Restart
from trainrig.record import Record, RunView, read_by
from trainrig.units import ranges
from trainrig.workload.rank_layout import RANK_KEYS, RankLayout

BENCHMARK = TRAINING.name
"""Benchmark of trainings' records."""
AGREED = ("agreed", "PASS")
"""The second is what earlier versions wrote."""
_OLDER = "experiments"
"""The series of an older run."""
_STRICT: ConfigDict = {"strict": True, "extra": "ignore", "allow_inf_nan": False}
_SMALLEST = 1e-15


def _plausible(value: float) -> float:
    """Return a number, none beyond what quotients can be made of."""
    if value != 0.0 and abs(value) < _SMALLEST:
        raise ValueError(f"nearer to 0 than {_SMALLEST:g}")
    return value


def _core_text(value: object) -> object:
    """Return processor cores as text; older runs stored the numbers."""
    return ranges(map(int, value)) if isinstance(value, list) else value


_Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Amount = Annotated[float, Field(ge=0.0, le=LARGEST), AfterValidator(_plausible)]
_Value = str | int | float | bool | None


@read_by(_STRICT)
class Parity:
    """Comparison of a training's losses with those of one process on the same samples."""

    not_comparable: str | None = None
    """Reason that the losses differ too much; None where they agree."""
    compared: bool = False
    loss_gap: Amount | None = None
    """Relative, to one process's: the largest of the steps that are compared."""
    norm_gap: Amount | None = None
    """Relative difference of the first gradient norm; None: not compared, and `rounding` says why.
    """
    losses: tuple[_Number | None, ...] = ()
    """Losses of the steps that are compared; None: no number."""
    grad_norms: tuple[_Number | None, ...] = ()
    is_reference: bool = False
    """True where this training is itself one process of ours, with nothing that changes the
    results."""
    no_reference: str | None = None
    """Reason that the reference failed, so that nothing could be compared; None where it did not.
    """
    declared: str | None = None
    """Reason, declared beforehand, that the training cannot be compared."""
    compared_with: str | None = None
    """The shorter model that was compared in its place, and why; None: itself."""
    rounding: str | None = None
    """Reason, known beforehand, that the first gradient norm is not compared."""


@read_by(_STRICT)
class TrainingRound:
    """One training of an experiment by fresh processes."""

    step_times_s: tuple[Amount, ...]
    disturbed: str | None = None


@read_by(_STRICT)
class UsedDevice:
    """A device that a rank ran on."""

    device: str
    rank: int = 0
    index: int | None = None
    name: str | None = None
    uuid: str | None = None
    cores: Annotated[str | None, BeforeValidator(_core_text)] = None
    """``0-3,8``."""


@read_by(_STRICT)
class RankMemory:
    """The peak of memory of one rank's device."""

    rank: int = 0
    device: str | None = None
    allocated_bytes: Amount | None = None
    reserved_bytes: Amount | None = None
    outside_bytes: Amount | None = None
    """Bytes of device memory beside torch's allocator: context, NCCL, other processes."""
    alloc_retries: Amount | None = None
    """Requests before which the allocator gave back what it held: the device was full."""
    ooms: Amount | None = None


@read_by(_STRICT)
class EnergyUsed:
    """Energy that one device used."""

    device: str
    energy_j: Amount
    uuid: str | None = None


@read_by(_STRICT)
class ProfiledStep:
    """Seconds of a step under torch's profiler, the mean of its ranks."""

    step_s: Amount
    own_s: Amount
    """All but the two below: kernels, the host's time between them, samples."""
    communication_s: Amount
    """Exposed: a rank waited for a collective."""
    bubble_s: Amount
    """A rank waited for other stages of the pipeline."""
    overlapped_s: Amount
    """Communication beside a rank's own work: no part of the sum."""
    idle_s: Amount | None = None
    """Part of ``own_s`` without an operation, on a GPU without a kernel. None: predicted, or of an
    older run."""


@read_by(_STRICT)
class HeldOut:
    """The loss over the held-out part, taken while a model was trained or behind it."""

    step: int
    """Steps that were trained before."""
    loss: _Number
    """The mean over its targets, in nats."""


@read_by(_STRICT)
class LayoutCheck:
    """The layout that was asked for, the one that was observed, and the devices that ran it."""

    requested: dict[str, _Value] = field(metadata={"key": "layout_asked"})
    found: RankLayout | None = field(metadata={"key": "layout_found"})
    differences: tuple[str, ...] = field(default=(), metadata={"key": "wrong_layout"})
    """Settings that were asked for and not observed, in words."""
    batch_size: int | None = None
    requested_batch_size: int | str | None = field(
        default=None, metadata={"key": "batch_size_asked"}
    )
    """``auto``, or what the first training was to have."""
    devices: tuple[UsedDevice, ...] = ()
    cuda_visible_devices: str | None = None


@read_by(_STRICT)
class StepTiming:
    """Seconds of a step, and what disturbed them."""

    step_time_s: Amount | None
    """Mean of the middle half of the steps that count."""
    step_times_s: tuple[Amount, ...] = ()
    rounds: tuple[TrainingRound, ...] = ()
    breakdown: dict[str, _Number | None]
    """Seconds of a step by part; they add up to it."""
    no_breakdown_reason: str | None = None
    profiled: ProfiledStep | None = None
    """None: of one process without a GPU, whose step is its own work."""
    straggler: str | None = None
    """Rank that the others wait for, and where it is; None where they are even."""
    load_average: Amount | None = None
    """The machine's when it began."""
    disturbed: str | None = None
    """Reason that the speed must not be judged; None where it may be."""


@read_by(_STRICT)
class Throughput:
    """Work a second, and its share of what the device could do."""

    samples_per_s: Amount | None
    tokens_per_s: Amount | None = None
    model_flops_per_s_per_device: Amount | None = None
    hardware_flops_per_s_per_device: Amount | None = None
    mfu: Amount | None = None
    hfu: Amount | None = None
    mfu_of_measured_matmul: Amount | None = None
    peak_flops_per_s_claimed: Amount | None = None
    peak_source: str | None = None
    no_mfu_reason: str | None = None


@read_by(_STRICT)
class LossHistory:
    """Losses in nats, gradient norms, and whether they are those of one process."""

    losses: tuple[_Number, ...]
    """Loss of each step."""
    grad_norms: tuple[_Number | None, ...]
    parity: Parity
    reference_loss: _Number | None = None
    """Loss in one process of the first of the compared steps; None: compared with nothing."""
    heldout_loss: _Number | None = None
    """The last of ``heldout``."""
    heldout: tuple[HeldOut, ...] = ()
    unigram_entropy: _Number | None = None
    """Nats of the text's token frequencies, where the held-out loss can be compared with them."""

    def __post_init__(self) -> None:
        if len(self.losses) != len(self.grad_norms):
            raise ValueError(f"{len(self.losses)} losses and {len(self.grad_norms)} gradient norms")


@read_by(_STRICT)
class MemoryUse:
    """Peaks of device memory in bytes."""

    peak_bytes: Amount | None = field(metadata={"key": "peak_memory_bytes"})
    reserved_bytes: Amount | None = field(default=None, metadata={"key": "reserved_memory_bytes"})
    by_rank: tuple[RankMemory, ...] = field(default=(), metadata={"key": "memory_by_rank"})


@read_by(_STRICT)
class EnergyUse:
    """Energy of the steps that count, in joules."""

    total_j: Amount | None = field(default=None, metadata={"key": "energy_j"})
    interval_j: tuple[Amount, Amount] | None = field(
        default=None, metadata={"key": "energy_interval_j"}
    )
    per_token_j: Amount | None = field(default=None, metadata={"key": "energy_per_token_j"})
    time_s: Amount | None = field(default=None, metadata={"key": "energy_s"})
    """Seconds that the energy was used in."""
    source: str | None = field(default=None, metadata={"key": "energy_source"})
    devices: tuple[EnergyUsed, ...] = field(default=(), metadata={"key": "energy_devices"})
    mean_power_w: Amount | None = None
    missing_reason: str | None = field(default=None, metadata={"key": "no_energy_reason"})


@read_by(_STRICT)
class TrainingResult:
    """One experiment: what was asked for, what was observed, how fast it was, and its verdict.

    Flat keys (RESULT_KEYS) are those of ``train --json``.
    """

    name: str
    framework: str
    model: str
    row_verdict: str
    """agreed, DIFFERS, NOT COMPARABLE, skipped, FAIL, not compared."""
    reason: str | None
    status: str = ""
    settings: dict[str, _Value] = field(default_factory=dict)
    """Everything that was resolved, by its name in an experiment file."""
    software_found: dict[str, str] = field(default_factory=dict)
    """Versions that its ranks reported."""
    weight_decay: dict[str, Amount] = field(default_factory=dict)
    """Weights of the whole model that decay (``decayed``) and that do not (``not_decayed``)."""
    restarts: tuple[Restart, ...] = ()
    """After each rank that was lost, in the round that says what it computes."""
    needs_gpu: bool = False
    """Skipped for what only GPUs have: on a processor nothing is lacking without it."""
    record: str = ""
    """Id of the record of its time."""
    layout: LayoutCheck = part(LayoutCheck)
    timing: StepTiming = part(StepTiming)
    throughput: Throughput = part(Throughput)
    loss: LossHistory = part(LossHistory)
    memory: MemoryUse = part(MemoryUse)
    energy: EnergyUse = part(EnergyUse)

    @property
    def problem(self) -> str | None:
        """Reason that the losses do not agree; None where they do."""
        parity = self.loss.parity
        declared = parity.declared if self.row_verdict == "NOT COMPARABLE" else None
        problem = "; ".join(self.layout.differences) or parity.not_comparable or parity.no_reference
        return self.reason or (declared and f"as declared, {declared}: {problem}") or problem

    @property
    def is_on_cpu(self) -> bool:
        """True where it trained on processors, whose peak is a reference and no ceiling."""
        return self.layout.requested.get("device") == "cpu"

    @property
    def passed(self) -> bool:
        """True where it trained as asked, with the losses of one process."""
        return self.row_verdict in AGREED


RESULT_KEYS = FlatKeys(
    TrainingResult,
    (
        *("name", "framework", "model", "row_verdict", "layout_asked", "layout_found", "losses"),
        *("grad_norms", "step_time_s", "samples_per_s", "peak_memory_bytes", "breakdown"),
        *("parity", "reason", "status", "reference_loss", "batch_size", "batch_size_asked"),
        *("settings", "software_found", "step_times_s", "rounds", "tokens_per_s"),
        *("model_flops_per_s_per_device", "hardware_flops_per_s_per_device", "mfu", "hfu"),
        *("mfu_of_measured_matmul", "peak_flops_per_s_claimed", "peak_source", "no_mfu_reason"),
        *("no_breakdown_reason", "profiled", "heldout_loss", "heldout", "weight_decay"),
        *("reserved_memory_bytes", "devices", "cuda_visible_devices", "memory_by_rank"),
        *("energy_j", "energy_interval_j", "energy_per_token_j", "energy_s", "energy_source"),
        *("energy_devices", "mean_power_w", "no_energy_reason", "load_average", "disturbed"),
        *("wrong_layout", "restarts", "straggler", "unigram_entropy", "needs_gpu", "record"),
    ),
)
_OLDER_KEYS = {"backend": "framework", "requested_layout": "layout_asked"}
"""Keys of earlier versions, with what they are called now."""


@cache
def _adapter() -> TypeAdapter[TrainingResult]:
    return TypeAdapter(TrainingResult)


def results(view: RunView) -> tuple[TrainingResult, ...]:
    """Return the experiments of a run; of what was written of one several times the last counts.

    Raises DataError for what is not as we write it.
    """
    latest = {
        result.name: result
        for number, row in enumerate(view.series.get(_OLDER, ()), 1)
        for result in [_result(row, f"series/{_OLDER}.jsonl:{number}")]
    }
    known = trainings(view)
    names = [str(records["time"].case.get("experiment")) for records in known]
    for name, records in zip(names, known, strict=True):
        time = records["time"]
        unique_name = name if names.count(name) == 1 else f"{name} on GPU {time.device_index}"
        row = {**summary_of_records(view, records), "name": unique_name}
        latest[unique_name] = _result(row, f"the record {time.id}")
    return tuple(latest.values())


def has_results(view: RunView) -> bool:
    """Return whether a run has a training that was written."""
    return bool(trainings(view)) or _OLDER in view.series


def _result(row: Mapping[str, Any], where: str) -> TrainingResult:
    """Return the result of one stored row.  Raises DataError with place and field."""
    try:
        renamed = {new: row[old] for old, new in _OLDER_KEYS.items() if old in row}
        flat = {**renamed, **row, "layout_found": _nested_layout(row.get("layout_found"))}
        return _adapter().validate_json(json.dumps(RESULT_KEYS.nest(flat)))
    except ValidationError as error:
        raise DataError(
            f"{where} is no experiment's summary: {first_problem(error, place=_flat_place)}",
            "was it written by another version, or changed by hand? train again",
        ) from None


def _flat_place(place: KeyPath) -> KeyPath:
    """Return where a stored row has what stands at a place of a result."""
    flat = RESULT_KEYS.flat_place(place)
    is_layout = flat[:1] == ("layout_found",)
    return (flat[0], *RANK_KEYS.flat_place(flat[1:])) if is_layout else flat


def _nested_layout(flat: object) -> object:
    """Return a stored layout in its parts; older ones say whether blocks were recomputed as yes."""
    if not isinstance(flat, dict):
        return flat
    older: dict[object, str] = {True: "yes", False: "none"}
    recompute = flat.get("recompute")
    return RANK_KEYS.nest({**flat, "recompute": older.get(recompute, recompute)})


def as_json(result: TrainingResult) -> dict[str, Any]:
    """Return the object that ``train --json`` prints; others script against it."""
    row = RESULT_KEYS.flatten(_adapter().dump_python(result, mode="json"))
    if row["layout_found"] is not None:
        row["layout_found"] = RANK_KEYS.flatten(row["layout_found"])
    return row


def readable_results(view: RunView) -> tuple[TrainingResult, ...]:
    """Return the results, or none if a line is invalid; `fault` returns the reason."""
    try:
        return results(view)
    except DataError:
        return ()


def fault(view: RunView) -> str | None:
    """Return what is invalid about the stored experiments; None where nothing is."""
    try:
        results(view)
    except DataError as error:
        return error.message
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPrediction:
    """Prediction of an experiment's step, written before it was trained."""

    name: str
    parts: ProfiledStep | None = None
    """Parts of a step like those of a profiled one; None: of one process."""
    step_time_s: float | None = None
    step_time_interval_s: tuple[float, float] | None = None
    peak_memory_bytes: float | None = None
    peak_memory_interval_bytes: tuple[float, float] | None = None
    source: str | None = None
    reason: str | None = None
    """Reason that nothing is predicted."""


def _predicted_parts(time: Record) -> ProfiledStep | None:
    named = {part.name: time.conditions.get(f"parts.{part.name}") for part in fields(ProfiledStep)}
    known = {name: float(part) for name, part in named.items() if isinstance(part, float | int)}
    return ProfiledStep(**known) if named.keys() - known.keys() <= {"idle_s"} else None


def predictions(view: RunView) -> tuple[TrainingPrediction, ...]:
    """Return the predictions of the run's experiments, at their final batch size."""
    records_by_name: dict[str, dict[str, Record]] = {}
    for row in rows(view):
        if row.benchmark == BENCHMARK and row.predicted is not None:
            name = str(row.case.get("experiment"))
            if row.metric == "time":
                records_by_name[name] = {}  # another batch size
            records_by_name.setdefault(name, {})[row.metric] = row.predicted
    return tuple(
        TrainingPrediction(
            name=name,
            step_time_s=time.value,
            parts=_predicted_parts(time),
            step_time_interval_s=time.interval,
            peak_memory_bytes=memory.value if memory else None,
            peak_memory_interval_bytes=memory.interval if memory else None,
            source=time.source,
            reason=time.reason,
        )
        for name, records in records_by_name.items()
        if (time := records.get("time")) is not None
        for memory in [records.get("peak_memory")]
    )


def planned(view: RunView) -> tuple[str, ...]:
    """Return the names of the experiments that the run was made for, in their order."""
    experiments = view.config.get("experiments")
    named = experiments if isinstance(experiments, list | tuple) else ()
    names = [row.get("name") for row in named if isinstance(row, Mapping)]
    return tuple(name for name in names if isinstance(name, str))
