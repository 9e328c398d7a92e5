"""The summaries of a run's experiments, as its series keeps them, checked before they are read.

Whatever a file holds, what comes out is what ``train --json`` prints, or a DataError that names the
line and the field.  Fields that are not needed here may be missing, and more may be there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from trainrig.errors import DataError, first_problem

if TYPE_CHECKING:
    from trainrig.analysis.run_view import RunView

Summary = Mapping[str, Any]
Series = Mapping[str, Sequence[Mapping[str, Any]]]
SERIES = "experiments"
BENCHMARK = "training"
"""That their records are of."""

_STRICT: ConfigDict = {"strict": True, "extra": "ignore", "allow_inf_nan": False}
_LARGEST = 1e25
_SMALLEST = 1e-15


def _plausible(value: float) -> float:
    """A file may hold any number, and quotients have ends."""
    if value != 0.0 and abs(value) < _SMALLEST:
        raise ValueError(f"nearer to 0 than {_SMALLEST:g}")
    return value


_Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
_Amount = Annotated[float, Field(ge=0.0, le=_LARGEST), AfterValidator(_plausible)]
_Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parity:
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    not_comparable: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    step_times_s: list[_Amount]
    disturbed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What is shown of a layout as found; the rest of it may be anything."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    ranks: int
    zero: int
    precision: str
    grad_accum: int
    recompute: bool
    compile: bool
    offload: bool
    wrapped: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    device: str
    index: int | None = None
    name: str | None = None
    cores: list[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    allocated_bytes: _Amount | None = None
    reserved_bytes: _Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """One experiment."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    name: str
    backend: str
    model: str
    row_verdict: str
    layout_asked: dict[str, _Value]
    layout_found: _Found | None
    losses: list[_Number]
    grad_norms: list[_Number | None]
    step_time_s: _Amount | None
    samples_per_s: _Amount | None
    peak_memory_bytes: _Amount | None
    breakdown: dict[str, _Number | None]
    parity: _Parity
    reason: str | None
    batch_size: int | None = None
    settings: dict[str, _Value] = field(default_factory=dict)
    software_found: dict[str, str] = field(default_factory=dict)
    step_times_s: list[_Amount] = field(default_factory=list)
    rounds: list[_Round] = field(default_factory=list)
    tokens_per_s: _Amount | None = None
    model_flops_per_s_per_device: _Amount | None = None
    mfu: _Amount | None = None
    hfu: _Amount | None = None
    overlapped_communication_s: _Amount | None = None
    devices: list[_Device] = field(default_factory=list)
    memory_by_rank: list[_Memory] = field(default_factory=list)
    energy_per_token_j: _Amount | None = None
    mean_power_w: _Amount | None = None
    no_energy_reason: str | None = None
    disturbed: str | None = None


@cache
def _adapter() -> TypeAdapter[_Stored]:
    return TypeAdapter(_Stored)


def read(series: Series) -> tuple[Summary, ...]:
    """The experiments of a run, the last summary of each: it knows of more rounds.

    Raises DataError for a line that is not what we write.
    """
    found: dict[str, Summary] = {}
    for number, row in enumerate(series.get(SERIES, ()), 1):
        _check(number, row)
        found[row["name"]] = row
    return tuple(found.values())


def _check(number: int, row: Summary) -> None:
    """Raises DataError with line and field."""
    try:
        _adapter().validate_json(json.dumps(row))
    except ValidationError as error:
        words = first_problem(error)
        raise DataError(
            f"series/{SERIES}.jsonl:{number} is no experiment's summary: {words}",
            "was it written by another version, or changed by hand? train again",
        ) from None
    losses, norms = row["losses"], row["grad_norms"]
    if len(losses) != len(norms):
        raise DataError(
            f"series/{SERIES}.jsonl:{number} is no experiment's summary: {len(losses)} losses and "
            f"{len(norms)} gradient norms"
        )


def stored(series: Series) -> tuple[Summary, ...]:
    """The same, and nothing where a line is a stranger's: `fault` says so."""
    try:
        return read(series)
    except DataError:
        return ()


def fault(series: Series) -> str | None:
    """What is wrong with them, in words; None where nothing is."""
    try:
        read(series)
    except DataError as error:
        return error.message
    return None


def planned(view: RunView) -> tuple[str, ...]:
    """The names of the experiments that the run was made for, in their order."""
    asked = view.config.get("experiments")
    rows = asked if isinstance(asked, list | tuple) else ()
    names = [row.get("name") for row in rows if isinstance(row, Mapping)]
    return tuple(name for name in names if isinstance(name, str))
