"""One data file of chips, as pydantic reads it; `load` explains its notation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

from trainrig.catalog.chip import CHIP_KEYS, Chip, Peak, Provenance, Size, Source, Text
from trainrig.catalog.fields import FIELDS
from trainrig.errors import DataError
from trainrig.record import read_toml

Dtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"]
Accumulate = Literal["fp64", "fp32", "fp16", "int32"]
_FIELDS = {name: field for field in FIELDS for name in (*field.printed, field.name)[:1]}
"""Chip fields by their names in a data file."""
_TERA = 1e12


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _SourceEntry(_Strict):
    title: Text
    url: Text | None = None
    date: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}(-\d{2})?$")]


class _Peaks(_Strict):
    tensor: dict[Dtype, dict[Accumulate, Size]] | None = None
    """Tera-operations per second by data type and accumulate type, dense."""
    vector: dict[Dtype, Size] | None = None
    """Tera-operations per second of the ordinary lanes: sums in their own type, int8's in int32."""


_TYPES = CHIP_KEYS.types()
KNOWN: dict[str, Any] = {name: (_TYPES[field.name] | None, None) for name, field in _FIELDS.items()}
"""Fields of a chip in the units that people print, as pydantic types."""
if TYPE_CHECKING:
    _Values = _Peaks
else:  # by one source
    _Values = create_model("_Values", __base__=_Peaks, **KNOWN)


class _ChipEntry(_Strict):
    name: Text
    vendor: Text
    short_names: tuple[Text, ...] = Field((), strict=False)
    notes: Text | None = None
    from_: dict[str, _Values] = Field(default_factory=dict, alias="from")
    unverified: dict[str, _Values] = Field(default_factory=dict)


class _File(_Strict):
    schema_: Literal[1] = Field(alias="schema")
    sources: dict[str, _SourceEntry]
    chip: list[_ChipEntry]


def read_file(path: Path, label: str, hint: str | None) -> Iterator[Chip]:
    """Yield the chips of a data file.

    Args:
        path: Where it lies.
        label: Its name in messages.
        hint: What to do about a file that cannot be read.

    Raises:
        DataError: Unreadable, or not as data files of chips are.
    """
    try:
        parsed = read_toml(path, _File, label)
    except DataError as error:
        raise DataError(error.message, error.hint or hint) from None
    sources = {key: Source(key=key, **entry.model_dump()) for key, entry in parsed.sources.items()}
    for entry in parsed.chip:
        try:
            yield _build(entry, sources)
        except DataError as error:
            message = f"{label}: {entry.name}: {error.message}"
            raise DataError(message, error.hint or hint) from None


def _build(entry: _ChipEntry, sources: dict[str, Source]) -> Chip:
    fields: dict[str, Any] = {}
    peaks: list[Peak] = []
    provenance: dict[str, Provenance] = {}
    for verified, tables in ((True, entry.from_), (False, entry.unverified)):
        for key, values in tables.items():
            if key not in sources:
                raise DataError(f"unknown source {key!r}")
            plain_fields, source_peaks = dict(_plain_fields(values)), list(_peaks(values))
            for name in (*plain_fields, *(peak.field for peak in source_peaks)):
                if name in provenance:
                    raise DataError(f"{name} is given twice")
                provenance[name] = Provenance(source=sources[key], verified=verified)
            fields |= plain_fields
            peaks += source_peaks
    return Chip.of(
        name=entry.name,
        vendor=entry.vendor,
        short_names=entry.short_names,
        notes=entry.notes,
        peaks=tuple(peaks),
        provenance=provenance,
        **fields,
    )


def _plain_fields(values: _Values) -> Iterator[tuple[str, object]]:
    for name, value in values.model_dump(exclude_none=True, exclude={"tensor", "vector"}).items():
        field = _FIELDS[name]
        yield field.name, value * field.printed[name] if field.printed else value


def _peaks(values: _Values) -> Iterator[Peak]:
    for dtype, rates in (values.tensor or {}).items():
        for accumulate, tera in rates.items():
            yield Peak(dtype=dtype, accumulate=accumulate, unit="tensor", rate=tera * _TERA)
    for dtype, tera in (values.vector or {}).items():
        summed = "int32" if dtype == "int8" else dtype  # DP4A
        yield Peak(dtype=dtype, accumulate=summed, unit="vector", rate=tera * _TERA)
