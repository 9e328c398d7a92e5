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
    unverified.recalled = { p2p = false }

Tables under `from` are verified; under `unverified` they are recalled, or
their sources contradict each other.  A value may be given once.  Field names
carry the units that people print; this module converts to base SI.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from trainrig.catalog.chip import Chip, Peak, Provenance, Source
from trainrig.errors import DataError, first_problem

CHIPS_DIR = Path(__file__).parent / "chips"
SCHEMA_VERSION = 1

Dtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"]
Accumulate = Literal["fp64", "fp32", "fp16", "int32"]
Count = Annotated[int, Field(ge=1)]
Size = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, StringConstraints(min_length=1)]
PciId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")]

# Field of the file: field of Chip, factor to base SI.
_CONVERTED = {
    "base_mhz": ("base_clock", 1e6),
    "boost_mhz": ("boost_clock", 1e6),
    "tensor_mhz": ("tensor_clock", 1e6),
    "memory_gib": ("memory", 1024.0**3),
    "memory_gbps": ("memory_rate", 1e9),
    "memory_bits": ("memory_bus", 1),
    "bandwidth_gb_s": ("bandwidth", 1e9),
    "l2_mib": ("l2", 1024.0**2),
    "last_level_cache_mib": ("last_level_cache", 1024.0**2),
    "link_gb_s": ("link_bandwidth", 1e9),
    "tdp_w": ("tdp", 1.0),
}
_TERA = 1e12


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _SourceEntry(_Strict):
    title: Text
    url: Text | None = None
    date: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}(-\d{2})?$")]


class _Values(_Strict):
    """What one source says of one chip, in the units that people print."""

    aliases: tuple[Text, ...] | None = Field(None, strict=False)
    pci_ids: tuple[PciId, ...] | None = Field(None, strict=False)
    architecture: Text | None = None
    year: Annotated[int, Field(ge=1990, le=2100)] | None = None
    form_factor: Text | None = None
    process: Text | None = None
    transistors: Size | None = None
    num_sms: Count | None = None
    fp32_cores: Count | None = None
    fp64_cores: Count | None = None
    int32_cores: Count | None = None
    tensor_cores: Count | None = None
    tensor_generation: Count | None = None
    compute_capability: Text | None = None
    base_mhz: Size | None = None
    boost_mhz: Size | None = None
    tensor_mhz: Size | None = None
    memory_gib: Size | None = None
    memory_type: Text | None = None
    memory_gbps: Size | None = None
    memory_bits: Count | None = None
    bandwidth_gb_s: Size | None = None
    l2_mib: Size | None = None
    last_level_cache_mib: Size | None = None
    link: Text | None = None
    link_generation: Count | None = None
    link_count: Count | None = None
    link_gb_s: Size | None = None
    p2p: bool | None = None
    pcie_generation: Count | None = None
    pcie_lanes: Count | None = None
    tdp_w: Size | None = None
    slots: Count | None = None
    cooling: Literal["active", "passive", "module"] | None = None
    mig_instances: Annotated[int, Field(ge=0)] | None = None
    tensor: dict[Dtype, dict[Accumulate, Size]] | None = None
    """Tera-operations per second by data type and accumulate type, dense."""
    vector: dict[Dtype, Size] | None = None
    """Tera-operations per second of the ordinary lanes, which sum in their own type."""


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
    """Every chip of the catalog, in the files' order.

    Raises DataError if a file is broken, or if two chips share a name or PCI id.
    """
    return read_chips(sorted(CHIPS_DIR.glob("*.toml")))


def read_chips(paths: Iterable[Path]) -> tuple[Chip, ...]:
    """The chips of the given files.  Raises DataError, as `load_chips`."""
    chips = tuple(chip for path in paths for chip in _read_file(path))
    _refuse_shared(chips)
    return chips


def _read_file(path: Path) -> Iterator[Chip]:
    try:
        parsed = _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"chip file {path.name}: {error}") from None
    except ValidationError as error:
        raise DataError(f"chip file {path.name}: {first_problem(error, 'the file')}") from None
    sources = {key: Source(key=key, **entry.model_dump()) for key, entry in parsed.sources.items()}
    for entry in parsed.chip:
        try:
            yield _build(entry, sources)
        except DataError as error:
            raise DataError(f"chip file {path.name}: {entry.name}: {error.message}") from None


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
    return Chip(
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
        target, factor = _CONVERTED.get(name, (name, None))
        yield target, value if factor is None else value * factor


def _peaks(values: _Values) -> Iterator[Peak]:
    for dtype, rates in (values.tensor or {}).items():
        for accumulate, tera in rates.items():
            yield Peak(dtype=dtype, accumulate=accumulate, unit="tensor", rate=tera * _TERA)
    for dtype, tera in (values.vector or {}).items():
        yield Peak(dtype=dtype, accumulate=dtype, unit="vector", rate=tera * _TERA)


def _refuse_shared(chips: tuple[Chip, ...]) -> None:
    """A name or a PCI id leads to one chip, or the catalog cannot be trusted."""
    owners: dict[str, int] = {}
    for index, chip in enumerate(chips):
        for key in (chip.name.casefold(), *chip.pci_ids):
            owner = owners.setdefault(key, index)
            if owner != index:
                other = chips[owner].name
                raise DataError(f"catalog: {key} belongs to both {other} and {chip.name}")
