"""The chips' data files, read, checked and converted.

A file under chips/ holds named sources and a list of chips.  A chip's values
stand in tables named after the source that they were read from, so a value
without a source cannot be written down:

    [sources.ada]
    title = "NVIDIA Ada GPU architecture, whitepaper v2.1, appendix A"
    url = "https://..."
    date = "2026-11-20"

    [[chip]]
    name = "RTX 4090"
    vendor = "NVIDIA"
    from.ada = { boost_mhz = 2520, tensor = { fp16 = { fp32 = 165.2 } } }
    unverified.line = { p2p = false }

Tables under `from` are verified; under `unverified` they are
computed, presumed, or their sources contradict each other; one source is named for what it is,
`unsourced`: no document was found.  A value may be given once.  Field names
carry the units that people print; this module converts to base SI.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

from trainrig.catalog.chip import CHIP_KEYS, Chip, Peak, Provenance, Size, Source, Text
from trainrig.catalog.fields import FIELDS
from trainrig.errors import DataError
from trainrig.plugins import user_files
from trainrig.record import read_toml

CHIPS_DIR = Path(__file__).parent / "chips"
SCHEMA_VERSION = 1

Dtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"]
Accumulate = Literal["fp64", "fp32", "fp16", "int32"]
_FIELDS = {name: field for field in FIELDS for name in (*field.printed, field.name)[:1]}
"""By the name in a data file."""
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
"""What may be said of a chip, in the units that people print: `Chip`'s own fields, for pydantic."""
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


@cache
def load_chips() -> tuple[Chip, ...]:
    """Every chip of the catalog, in the files' order, then those of the user's own files.

    Raises DataError if a file is broken, or if two chips share a name or PCI id.
    """
    return read_chips(chip_files())


def chip_files() -> tuple[Path, ...]:
    """The catalog's files, then those of the user's own."""
    return (*sorted(CHIPS_DIR.glob("*.toml")), *user_files("chips"))


def read_chips(paths: Iterable[Path]) -> tuple[Chip, ...]:
    """The chips of the given files.  Raises DataError, as `load_chips`."""
    chips = tuple(chip for path in paths for chip in chips_of_file(path))
    _refuse_shared(chips)
    return chips


@cache
def chips_of_file(path: Path) -> tuple[Chip, ...]:
    """The chips of one file.  Raises DataError, as `load_chips`."""
    return tuple(_read_file(path))


def names_in_file(path: Path) -> Iterator[str]:
    """Every name of the chips in a file; of the catalog's own without reading all that it says."""
    if path.parent != CHIPS_DIR:
        yield from (
            name
            for chip in chips_of_file(path)
            for name in (chip.name, *chip.short_names, *chip.aliases)
        )
        return
    for line in _NAMES.findall(path.read_text(encoding="utf-8")):
        yield from _QUOTED.findall(line)


_NAMES = re.compile(r"^(?:name|short_names|aliases) = (\".*\"|\[[^\]]*\])", re.MULTILINE)
_QUOTED = re.compile(r'"([^"]*)"')


def _read_file(path: Path) -> Iterator[Chip]:
    parsed = read_toml(path, _File, f"chip file {path.name}")
    sources = {key: Source(key=key, **entry.model_dump()) for key, entry in parsed.sources.items()}
    for entry in parsed.chip:
        try:
            yield _build(entry, sources)
        except DataError as error:
            where = f"chip file {path.name}: {entry.name}"
            raise DataError(f"{where}: {error.message}", error.hint) from None


def _build(entry: _ChipEntry, sources: dict[str, Source]) -> Chip:
    fields: dict[str, Any] = {}
    peaks: list[Peak] = []
    provenance: dict[str, Provenance] = {}
    for verified, tables in ((True, entry.from_), (False, entry.unverified)):
        for key, values in tables.items():
            if key not in sources:
                raise DataError(f"unknown source {key!r}")
            plain, found = dict(_plain_fields(values)), list(_peaks(values))
            for name in (*plain, *(peak.field for peak in found)):
                if name in provenance:
                    raise DataError(f"{name} is given twice")
                provenance[name] = Provenance(source=sources[key], verified=verified)
            fields |= plain
            peaks += found
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


def _refuse_shared(chips: tuple[Chip, ...]) -> None:
    """A name or a PCI id leads to one chip, or the catalog cannot be trusted."""
    owners: dict[str, int] = {}
    for index, chip in enumerate(chips):
        for key in (chip.name.casefold(), *chip.pci_ids):
            owner = owners.setdefault(key, index)
            if owner != index:
                other = chips[owner].name
                raise DataError(f"catalog: {key} belongs to both {other} and {chip.name}")
