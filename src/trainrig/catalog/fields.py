"""A chip as labelled values: what the catalog's tables and JSON are made of.

One list says which fields there are, in which order, under which label and in
which unit; everything that shows a chip goes through it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from trainrig.catalog.chip import Chip, Peak

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


@dataclass(frozen=True, slots=True)
class Field:
    """A field of `Chip` as people read it."""

    name: str
    label: str
    unit: str = ""
    """``Hz``, ``B``, ``B/s``, ``bit/s``, ``bit``, ``W``, ``count``, or none for words."""

    @property
    def json_name(self) -> str:
        """The name with its unit: ``tdp_w``."""
        return self.name + _SUFFIX.get(self.unit, "")


FIELDS = (
    Field("architecture", "architecture"),
    Field("year", "year"),
    Field("form_factor", "form factor"),
    Field("process", "process"),
    Field("transistors", "transistors", "count"),
    Field("num_sms", "SMs, CUs or GPU cores", "count"),
    Field("fp32_cores", "FP32 cores", "count"),
    Field("fp64_cores", "FP64 cores", "count"),
    Field("int32_cores", "INT32 cores", "count"),
    Field("tensor_cores", "tensor cores", "count"),
    Field("tensor_generation", "tensor generation"),
    Field("compute_capability", "compute capability"),
    Field("base_clock", "base clock", "Hz"),
    Field("boost_clock", "boost clock", "Hz"),
    Field("tensor_clock", "clock of the tensor peaks", "Hz"),
    Field("memory", "memory", "B"),
    Field("memory_type", "memory type"),
    Field("memory_rate", "data rate per pin", "bit/s"),
    Field("memory_bus", "bus width", "bit"),
    Field("bandwidth", "bandwidth", "B/s"),
    Field("l2", "L2 cache", "B"),
    Field("last_level_cache", "last-level cache", "B"),
    Field("link", "link"),
    Field("link_generation", "link generation"),
    Field("link_count", "links", "count"),
    Field("link_bandwidth", "link bandwidth, both ways", "B/s"),
    Field("p2p", "peer access"),
    Field("pcie_generation", "PCIe generation"),
    Field("pcie_lanes", "PCIe lanes", "count"),
    Field("tdp", "TDP", "W"),
    Field("slots", "slots", "count"),
    Field("cooling", "cooling"),
    Field("mig_instances", "MIG instances", "count"),
    Field("pci_ids", "PCI ids"),
    Field("aliases", "reported as"),
)
_DTYPE_ORDER = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")


def known_fields(chip: Chip) -> Iterator[tuple[Field, object]]:
    """The fields that are known of ``chip``, with their values."""
    for field in FIELDS:
        value = getattr(chip, field.name)
        if value not in (None, ()):
            yield field, value


def sorted_peaks(chip: Chip) -> list[Peak]:
    """Peaks from wide types to narrow ones; ordinary lanes before tensor units."""
    return sorted(
        chip.peaks, key=lambda p: (_DTYPE_ORDER.index(p.dtype), p.unit != "vector", p.accumulate)
    )


def peak_label(peak: Peak) -> str:
    """``fp16, fp32 accumulate (tensor)``."""
    if peak.unit == "vector":
        return f"{peak.dtype} (vector)"
    return f"{peak.dtype}, {peak.accumulate} accumulate (tensor)"


def shown(field: Field, value: object) -> str:
    """A value with the digits and the unit of a data sheet: ``24 GiB``, ``1008 GB/s``, ``yes``."""
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
    """A rate as data sheets print it: ``165.2 TFLOPS``."""
    return f"{peak.rate / 1e12:.5g} {'TOPS' if peak.rate_unit == 'OP/s' else 'TFLOPS'}"


def chip_dict(chip: Chip) -> dict[str, object]:
    """A chip for JSON: values in base SI under names with their unit, and each one's source.

    Fields that are not known are null.
    """
    values = {}
    for field in FIELDS:
        value = getattr(chip, field.name)
        values[field.json_name] = list(value) if isinstance(value, tuple) else value
    names = {field.name: field.json_name for field in FIELDS}
    return {
        "name": chip.name,
        "vendor": chip.vendor,
        "short_names": list(chip.short_names),
        **values,
        "computed_bandwidth_bytes_per_s": chip.computed_bandwidth,
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
