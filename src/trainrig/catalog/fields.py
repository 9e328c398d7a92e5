"""A chip as labelled values: what the catalog's tables and JSON are made of.

`Chip` says which fields there are, in which order, under which label and in which unit;
everything that reads or shows a chip goes through this list of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainrig.catalog.chip import CHIP_KEYS, Chip, Peak

_SUFFIX = {"Hz": "_hz", "B": "_bytes", "B/s": "_bytes_per_s", "bit/s": "_bits_per_s"}
_SUFFIX |= {"bit": "_bits", "W": "_w"}
# Data sheets keep to one prefix, so that chips can be compared by eye.
_PRINTED = {
    "Hz": (1e6, "MHz"),
    "B": (1024.0**3, "GiB"),
    "B/s": (1e9, "GB/s"),
    "bit/s": (1e9, "Gbit/s"),
    "bit": (1, "bit"),
    "W": (1, "W"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of `Chip` as people read it."""

    name: str
    """Flat key of the field."""
    label: str
    unit: str
    """Unit: ``Hz``, ``B``, ``B/s``, ``bit/s``, ``bit``, ``W``, ``count``, or none for words."""
    printed: Mapping[str, float]
    """Name in a data file and factor to base SI, where these are not the key and 1."""

    @property
    def json_name(self) -> str:
        """Name of the field in JSON, with its unit: ``tdp_w``."""
        return self.name + _SUFFIX.get(self.unit, "")


FIELDS = tuple(
    Field(name=key, **{name: field.metadata[name] for name in ("label", "unit", "printed")})
    for key, field in CHIP_KEYS.fields().items()
    if "label" in field.metadata
)
_DTYPE_ORDER = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")


def known_fields(chip: Chip) -> Iterator[tuple[Field, object]]:
    """Return the fields that are known of ``chip``, with their values."""
    for field in FIELDS:
        value = CHIP_KEYS.get(chip, field.name)
        if value not in (None, ()):
            yield field, value


def sorted_peaks(chip: Chip) -> list[Peak]:
    """Return peaks from wide types to narrow ones; ordinary lanes before tensor units."""
    return sorted(
        chip.peaks, key=lambda p: (_DTYPE_ORDER.index(p.dtype), p.unit != "vector", p.accumulate)
    )


def peak_label(peak: Peak) -> str:
    """Return a peak's name for tables: ``fp16, fp32 accumulate (tensor)``."""
    if peak.unit == "vector":
        return f"{peak.dtype} (vector)"
    return f"{peak.dtype}, {peak.accumulate} accumulate (tensor)"


def shown(field: Field, value: object) -> str:
    """Return a value with the digits and the unit of a data sheet: ``24 GiB``, ``yes``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value)
    if not isinstance(value, int | float) or not field.unit:
        return str(value)
    if field.unit == "count":
        return f"{value / 1e9:.4g} billion" if value >= 1e9 else f"{value:,}"
    if field.unit == "B" and value < 1024**3:
        return f"{value / 1024**2:.4g} MiB"
    divisor, unit = _PRINTED[field.unit]
    return f"{value / divisor:.5g} {unit}"


def peak_text(peak: Peak) -> str:
    """Return a rate as data sheets print it: ``165.2 TFLOPS``."""
    return f"{peak.rate / 1e12:.5g} {'TOPS' if peak.rate_unit == 'OP/s' else 'TFLOPS'}"


def chip_dict(chip: Chip) -> dict[str, object]:
    """Return a chip for JSON: base SI values with their units in the names, and sources.

    Fields that are not known are null.
    """
    values = {}
    for field in FIELDS:
        value = CHIP_KEYS.get(chip, field.name)
        values[field.json_name] = list(value) if isinstance(value, tuple) else value
    names = {field.name: field.json_name for field in FIELDS}
    return {
        "name": chip.name,
        "vendor": chip.vendor,
        "short_names": list(chip.short_names),
        **values,
        "computed_bandwidth_bytes_per_s": chip.memory.computed_bandwidth,
        "pcie_bandwidth_bytes_per_s": chip.pcie.bandwidth,
        "peaks": [
            {"field": peak.field, **dataclasses.asdict(peak), "rate_unit": peak.rate_unit}
            for peak in sorted_peaks(chip)
        ],
        "notes": chip.notes,
        "sources": {
            names.get(name, name): {
                "title": origin.source.title,
                "url": origin.source.url,
                "date": origin.source.date,
                "verified": origin.verified,
            }
            for name, origin in chip.provenance.items()
        },
    }
