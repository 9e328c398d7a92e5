"""The record: the one noun that comes out of everything trainrig does.

A record says one thing about one number: what a vendor claims, what the model
predicts, what was measured here, what others published.  All four share this
schema, so that they stand side by side; `Record.key` is what they meet by.
Values are in base SI units (s, B, FLOP/s, B/s, W, Hz).

How a measured point is stored.  Each fresh worker process appends one record
with an `attempt` number, metric ``time`` and its raw samples in seconds.  When
the attempts are in, the point itself is appended: `attempt` is null, and its
value names the attempts it is derived from and the formula.

Findings and verdicts live here too, since every room above produces or shows
them.  The JSON schema in docs/record.schema.json is generated from this file.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform, get_args

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from trainrig.errors import DataError, first_problem, invalid
from trainrig.safe_read import parse_toml, read_settings

SCHEMA_VERSION = 1
T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def read_by(config: ConfigDict) -> Callable[[type[T]], type[T]]:
    """Return a frozen, slotted, keyword-only dataclass, which pydantic reads as ``config`` says."""

    def made(kind: type[T]) -> type[T]:
        kind.__pydantic_config__ = config  # type: ignore[attr-defined]
        return dataclass(frozen=True, slots=True, kw_only=True)(kind)

    return made


# Whole numbers that every reader of JSON has; a longer one is an attack or an accident.
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Scalar = str | Whole | float | bool | None
Case = Mapping[str, Scalar]
Severity = Literal["error", "warning", "info"]
"""The gravest first."""


def _finite(value: float) -> float:
    if value - value != 0.0:  # inf and nan have no place in JSON
        raise ValueError("not a finite number")
    return value


Finite = Annotated[float, AfterValidator(_finite)]


def read_toml(path: Path, kind: type[T], called: str, key: str | None = None) -> T:
    """Return a data file of ours, or what stands under ``key`` in it, as pydantic reads ``kind``.

    Raises DataError that begins with ``called``.
    """
    try:
        content = parse_toml(read_settings(path))
        return TypeAdapter(kind).validate_python(content if key is None else content.get(key))
    except ValidationError as error:
        raise invalid(error, called, kind if key is None else None) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{called}: {error}") from None


class Kind(StrEnum):
    """Origin of a number."""

    CLAIMED = "claimed"
    PREDICTED = "predicted"
    MEASURED = "measured"
    BASELINE = "baseline"


class Status(StrEnum):
    """Result of a case."""

    OK = "ok"
    FAILED = "failed"
    OOM = "oom"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"
    MISSING = "missing"


WORKER_CLOCK, PARENT_CLOCK, TOLD_SHARE = "worker_clock_s", "parent_clock_s", "told_share"
"""Conditions of an attempt: seconds since its worker's first request by the worker's own clock and
by the parent's, and the share of its samples' time that they tell."""
WRONG_ANSWER = "wrong answer"
"""Beginning of the reason of a failed record when the device computed something else."""


UNNAMED, UNNAMED_HOST = "GPU", "host"
"""Devices of records that other tools made of a GPU, or of a host, whose model no file states."""


class Outcome(StrEnum):
    """The verdict on a run."""

    PASS = "PASS"
    """All that has to run did, targets were judged, and nothing fell short."""
    MEASURED = "MEASURED"
    """All that has to run did and answered right; there was no target to judge it by."""
    FAIL = "FAIL"
    """A fault was found."""
    INCOMPLETE = "INCOMPLETE"
    """Something that has to run gave no right answer, or a number that decides nothing."""


def new_id() -> str:
    """Return a fresh record id: twelve hex digits, unique within a run."""
    return uuid.uuid4().hex[:12]


# Strict: a number in quotes, a float for a count or an infinity is a fault of the writer, and
# is not to be repaired in silence.
_STRICT: ConfigDict = {
    "strict": True,
    "extra": "forbid",
    "allow_inf_nan": False,
}
_AtLeastOne = Annotated[int, Field(ge=1)]


@read_by(_STRICT)
class Derivation:
    """Records and formula that a value was computed from."""

    ids: tuple[str, ...]
    """Ids of the records it is derived from, in the same run."""
    formula: str
    """Formula: ``2·m·k·n / median of the attempts' median times``."""


@read_by(_STRICT)
class Limit:
    """The ceiling of a number: the level below it on the waterfall."""

    value: Finite
    """In the unit of the record that carries it."""
    source: str
    """Source of the ceiling: ``RTX 4090 data sheet, fp16 dense, fp32 accumulation``."""


@read_by(_STRICT)
class Record:
    """One number, with everything needed to trace it."""

    schema: int = SCHEMA_VERSION
    """Version of this schema."""
    id: str = field(default_factory=new_id)
    """Unique within the run."""
    run: str = ""
    """Name of the run it belongs to; empty for catalogue and baseline records."""
    kind: Kind
    benchmark: str
    """``matmul``, ``vector``, ``copy``; its definition stands in docs/definitions.md."""
    version: _AtLeastOne = 1
    """Version of the benchmark: different versions are never compared."""
    case: Case
    """Settings of the benchmark: flat, sorted by name where order matters; without tuned values."""
    metric: str
    """``time``, ``flop_rate``, ``byte_rate``."""
    unit: str
    """Base SI: ``s``, ``FLOP/s``, ``OP/s``, ``B/s``, ``B``, ``W``, ``Hz``."""
    value: Finite | None = None
    """None unless status is ok."""
    samples: tuple[Finite, ...] | None = None
    """Raw samples in `unit`, in the order they were taken."""
    derived: Annotated[Derivation | None, Field(alias="from")] = None
    """Records that `value` was computed from, where it has no samples; ``from`` in JSON."""
    interval: tuple[Finite, Finite] | None = None
    """Low and high end of the interval of `value`, in `unit`."""
    confidence: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Confidence of the interval, 0 to 1; None for a band that has no stated confidence."""
    reached: Finite | None = None
    """Value that two workers reached, each at the slow end of its interval: despite noise, the
    device does at least that.  None where fewer measured it."""
    rounds: _AtLeastOne | None = None
    """Rounds of fresh workers that the value is from; None in a run of before."""
    attempt: _AtLeastOne | None = None
    """Number of the fresh worker that took these samples, from 1; None for the point itself."""
    stop: str | None = None
    """Why sampling stopped: ``converged``, ``time``, ``samples``; ``spread`` for a point whose
    workers converged on values that differ by more than the target allows."""
    limit: Limit | None = None
    """The ceiling of this number."""
    status: Status = Status.OK
    reason: str | None = None
    """Reason that status is not ok, in words."""
    disturbed: str | None = None
    """Reason that the device may do better than the value, which it does at least; or None."""
    device: str | None = None
    """Device model: a name of the catalog where one fits, else what the machine reports."""
    device_count: _AtLeastOne | None = 1
    """Devices that worked at the same time; None: an imported file does not say."""
    device_index: Annotated[int, Field(ge=0)] | None = None
    """Index of the device in its machine; not part of the key."""
    environment: str | None = None
    """Digest of the software and settings it ran under; spelled out in machine.json."""
    conditions: Case = field(default_factory=dict)
    """Clocks, power, temperature, load around the measurement: flat, base SI units."""
    source: str | None = None
    """Origin of the value of claimed, predicted and baseline records; of imported ones the
    tool, its version and the file."""
    started: str | None = None
    """UTC, ISO 8601."""
    duration: Finite | None = None
    """Wall seconds spent on it."""

    @property
    def key(self) -> tuple[object, ...]:
        """Return the key by which records of different kinds and runs are matched."""
        return (
            self.benchmark,
            self.version,
            tuple(sorted(self.case.items())),
            self.metric,
            self.device,
            self.device_count,
        )

    @property
    def num_devices(self) -> int:
        """Return the devices known to have worked at the same time: at least one."""
        return self.device_count or 1

    @property
    def is_point(self) -> bool:
        """Return a measured point, not one worker's attempt at it."""
        return self.kind is Kind.MEASURED and self.attempt is None

    @property
    def is_usable(self) -> bool:
        """It has a value, and no noise makes it less than what the device does."""
        return self.status is Status.OK and self.disturbed is None and self.value is not None

    @property
    def band(self) -> tuple[float, float] | None:
        """Return the interval that a point is judged by: one without a stated confidence."""
        return self.interval if self.confidence is None else None

    def is_below(self, band: tuple[float, float] | None) -> bool:
        """Clearly below a band: the whole interval of the value lies under it."""
        if band is None or self.value is None:
            return False
        return (self.interval[1] if self.interval else self.value) < band[0]

    @property
    def is_wrong_answer(self) -> bool:
        """Return the device answered, and the answer was wrong."""
        return self.status is Status.FAILED and (self.reason or "").startswith(WRONG_ANSWER)

    def replace(self, **changes: Any) -> Record:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)


@read_by(_STRICT)
class Finding:
    """Something the user should know, what was seen, and the next thing to do."""

    id: str
    """Stable and scriptable: ``gpu-without-driver``, ``below-band``."""
    severity: Severity
    """error decides the verdict; warning and info do not."""
    evidence: str
    """Observation, with its numbers."""
    fix: str
    """The next command or action."""
    records: tuple[str, ...] = ()
    """Ids of the records it rests on."""
    cause: str = ""
    """Reason that it is so, in one sentence; empty where the evidence says it."""
    risk: str = ""
    """Consequence of leaving it."""
    undo: str = ""
    """Command or step that takes the fix back."""
    reboot: bool = False
    """True where the fix needs a reboot."""


_GRAVEST_FIRST: tuple[Severity, ...] = get_args(Severity)


def by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings, the gravest first; equal ones stay in their order."""
    return tuple(sorted(findings, key=lambda finding: _GRAVEST_FIRST.index(finding.severity)))


@read_by(_STRICT)
class Verdict:
    """The outcome, why, and what was found."""

    schema: int = SCHEMA_VERSION
    """Version of this schema."""
    outcome: Outcome
    reason: str
    """One sentence."""
    findings: tuple[Finding, ...] = ()
    num_records: int | None = None
    """Records that the run held when it was judged; None in a run of before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run as it was read, as far as it was written."""

    name: str
    path: Path = Path()
    """Its folder or bundle."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """run.toml."""
    machine: Mapping[str, Any] | None = None
    """machine.json: a Snapshot as a dict; None when the run was cut off before it."""
    records: tuple[Record, ...] = ()
    series: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    verdict: Verdict | None = None
    """None when the run was not judged."""
    problems: tuple[str, ...] = ()
    """Missing or torn parts of the run, in words."""
    lost: str | None = None
    """The problem that cost records: they were once written and are not here."""
    baselines: Sequence[Record] = ()
    """Published figures of any machine."""


@read_by({"strict": True})
class _Head:
    """Head of a record, read first so that another version is told from damage."""

    schema: int | None = None
    id: str | None = None


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)  # when it is first needed: to build one takes time


def began(config: Mapping[str, Any], name: str) -> tuple[str, str]:
    """When a run began, to be ordered by: by its run.toml, to the microsecond, else by its name."""
    started = config.get("started")
    is_time = isinstance(started, datetime.datetime)
    return f"{started:%Y%m%dT%H%M%S.%f}" if is_time else name, name


def less_is_better(unit: str) -> bool:
    """Return whether smaller values of this unit are better."""
    return unit in ("s", "W", "J")


def to_json(record: Record) -> str:
    """Return one line of JSON; fields that are None or empty by default are left out."""
    whole = _adapter(Record).dump_python(record, mode="json", by_alias=True)
    written = {
        name: value for name, value in whole.items() if value is not None or name in _ALWAYS_WRITTEN
    }
    line = json.dumps(written, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Half a surrogate pair (an undecodable byte in what some tool printed) is no UTF-8.
    return line.encode("utf-8", "replace").decode("utf-8")


# Others script against these (the interface of `qualify`): they are present even when null.
_ALWAYS_WRITTEN = frozenset(
    ["kind", "benchmark", "case", "metric", "unit", "value", "interval", "limit"]
    + ["device_count"]
    + ["status", "reason", "disturbed"]
)


def from_json(line: str | bytes) -> Record:
    """Return the record in one line of JSON.

    Raises DataError if it is not JSON, misses a field, has an unknown one, or
    was written under another schema version.
    """
    begins_as_written = _BEGINNING.match(line if isinstance(line, bytes) else line.encode())
    try:
        head = None if begins_as_written else _check_head(line, "the record")
        record: Record = _adapter(Record).validate_json(line)
    except ValidationError as error:
        raise DataError(f"not a record: {first_problem(error)}") from None
    if head and head.id is None:  # it has a default for those who make records, not for readers
        raise DataError("not a record: id: Field required")
    return record


_BEGINNING = re.compile(rb'\{"schema":%d,"id":"' % SCHEMA_VERSION)
"""Beginning of a record of this schema in JSON: its head need not be read by itself."""


def verdict_to_json(verdict: Verdict) -> str:
    """Return the verdict as an indented JSON object."""
    return _adapter(Verdict).dump_json(verdict, indent=1).decode()


def verdict_from_json(data: str | bytes) -> Verdict:
    """Return the verdict in a JSON object.  Raises DataError for anything else."""
    try:
        _check_head(data, "the verdict")
        verdict: Verdict = _adapter(Verdict).validate_json(data)
    except ValidationError as error:
        raise DataError(f"not a verdict: {first_problem(error)}") from None
    return verdict


def _check_head(data: str | bytes, what: str) -> _Head:
    head: _Head = _adapter(_Head).validate_json(data)
    check_schema(head.schema, what)
    return head


def check_schema(found: object, what: str, current: int = SCHEMA_VERSION) -> None:
    """Refuse what an older or newer trainrig wrote, and say what to run instead."""
    if type(found) is not int or not 0 <= found < 2**31:  # True is no version, nor is 1.0
        raise DataError(f"{what} has no schema version", "is it a trainrig run?")
    if found == current:
        return
    age, hint = "a newer", "upgrade: pip install --upgrade trainrig"
    if found < current:
        age = "an older"
        hint = "read it with the version named in its run.toml, or measure again: trainrig qualify"
    versions = f"(schema {found}; this one reads {current})"
    raise DataError(f"{what} was written by {age} trainrig {versions}", hint)


def dtype_of(case: Case) -> str | None:
    """Return a case's data type: ``precision`` of a training, ``dtype`` of a micro-benchmark."""
    dtype = case.get("precision", case.get("dtype"))
    return None if dtype is None else str(dtype)


def case_label(case: Case) -> str:
    """Return a case in one line for people: ``bf16 4096×4096×4096 hot``."""
    parts = {name: str(value) for name, value in sorted(case.items()) if value is not None}
    dtype = dtype_of(case)
    words = [dtype] if dtype else []
    if {"m", "k", "n"} <= parts.keys():
        words.append("×".join(parts.pop(axis) for axis in ("m", "k", "n")))
    return " ".join(
        [*words, *(parts[name] for name in parts if name not in ("precision", "dtype"))]
    )


def digest(value: object) -> str:
    """Sixteen hex digits that name a JSON-able value; equal values, equal names."""
    text = json.dumps(value, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a record, with each field's documentation."""
    _STRICT["use_attribute_docstrings"] = True  # it reads our source, which costs every other use
    try:
        schema = TypeAdapter(Record).json_schema(by_alias=True)
    finally:
        del _STRICT["use_attribute_docstrings"]
    schema["required"] = ["schema", "id", *schema["required"]]  # see `from_json`
    return schema
