"""What a vendor claims about one chip.

Answers: the data-sheet figures of a chip, each with where it was read.  Does
not answer what a chip achieves (published/ and records do) nor what the
machine contains (machine/).  Everything here is in base SI units; the data
files under chips/ use the units people print, and load.py converts.

A peak is dense and keyed by data type *and accumulate type*: an RTX 4090 does
165.2 TFLOPS on fp16 with fp32 accumulation and 330.3 with fp16's, and a ratio
that mixes the two means nothing.  Peaks with structured sparsity are not kept.
None means unknown: nothing here is a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

PeakUnit = Literal["tensor", "vector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A document that values were read from."""

    key: str
    """Its name in the data file."""
    title: str
    url: str | None
    date: str
    """When it was read, ISO 8601; the document's own date or version is in the title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where one value of one chip comes from."""

    source: Source
    verified: bool
    """False where the value was recalled or its sources contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A dense peak rate."""

    dtype: str
    """``fp64``, ``fp32``, ``tf32``, ``bf16``, ``fp16``, ``fp8``, ``fp4``, ``int8``."""
    accumulate: str
    """The type that products are summed in: ``fp32``, ``fp16``, ``fp64``, ``int32``."""
    unit: PeakUnit
    """``tensor``: tensor, matrix or systolic units; ``vector``: ordinary lanes."""
    rate: float
    """FLOP/s; OP/s for integer types.  One multiply-add counts as two."""

    @property
    def field(self) -> str:
        """Its name in `Chip.provenance`: ``tensor.fp16.fp32``."""
        return f"{self.unit}.{self.dtype}.{self.accumulate}"

    @property
    def rate_unit(self) -> str:
        """``FLOP/s`` or ``OP/s``."""
        return "OP/s" if self.dtype.startswith("int") else "FLOP/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One product of one vendor.  A field that is None is not known."""

    name: str
    """Unique in the catalog: ``RTX 4090``, ``A100 SXM4 80GB``."""
    vendor: str
    provenance: Mapping[str, Provenance] = field(hash=False)
    """By field name; peaks by `Peak.field`.  A mapping has no hash, and a chip must have one."""
    short_names: tuple[str, ...] = ()
    """What people call it where only one chip can be meant: ``4090``."""
    aliases: tuple[str, ...] = ()
    """Names that drivers and frameworks report, exactly."""
    pci_ids: tuple[str, ...] = ()
    """``vendor:device``, lower-case hexadecimal: ``10de:2684``."""
    architecture: str | None = None
    year: int | None = None
    """Of the announcement."""
    form_factor: str | None = None
    process: str | None = None
    """Foundry and node: ``TSMC 5 nm``."""
    transistors: float | None = None
    """Per package."""
    num_sms: int | None = None
    """Streaming multiprocessors (NVIDIA), compute units (AMD), GPU cores (Apple)."""
    fp32_cores: int | None = None
    fp64_cores: int | None = None
    int32_cores: int | None = None
    tensor_cores: int | None = None
    tensor_generation: int | None = None
    compute_capability: str | None = None
    """CUDA's, ``8.9``; AMD's LLVM target, ``gfx942``."""
    base_clock: float | None = None
    """Hz."""
    boost_clock: float | None = None
    """Hz."""
    tensor_clock: float | None = None
    """Hz: what the tensor peaks are printed for, where it is not the boost clock."""
    memory: float | None = None
    """B.  Data sheets print GB and mean GiB."""
    memory_type: str | None = None
    memory_rate: float | None = None
    """bit/s per pin."""
    memory_bus: int | None = None
    """Bits."""
    bandwidth: float | None = None
    """B/s, as claimed."""
    l2: float | None = None
    """B."""
    last_level_cache: float | None = None
    """B, where there is a level between L2 and memory."""
    link: str | None = None
    """The fabric between chips: ``NVLink``, ``Infinity Fabric``, ``none``."""
    link_generation: int | None = None
    link_count: int | None = None
    link_bandwidth: float | None = None
    """B/s, all links, both directions together, as vendors print it."""
    p2p: bool | None = None
    """Whether one chip can read another's memory directly (over link or PCIe)."""
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    tdp: float | None = None
    """W."""
    slots: int | None = None
    """Width of a PCIe card."""
    cooling: str | None = None
    """``active``, ``passive`` (needs the chassis' fans), ``module`` (the server's)."""
    mig_instances: int | None = None
    """Most instances that one chip can be cut into; 0 where it cannot."""
    peaks: tuple[Peak, ...] = ()
    notes: str | None = None

    @property
    def computed_bandwidth(self) -> float | None:
        """Data rate × bus width / 8, B/s: what `bandwidth` should be."""
        if self.memory_rate is None or self.memory_bus is None:
            return None
        return self.memory_rate * self.memory_bus / 8.0


# What torch.matmul sums in by default.  cuBLAS and hipBLASLt accumulate fp16,
# bf16, fp8 and tf32 in fp32 (torch's reduced-precision switches concern the
# reduction between split-k parts, not the multiply-add); integers sum in int32.
DEFAULT_ACCUMULATE: Mapping[str, str] = {
    "fp64": "fp64",
    "fp32": "fp32",
    "tf32": "fp32",
    "bf16": "fp32",
    "fp16": "fp32",
    "fp8": "fp32",
    "fp4": "fp32",
    "int8": "int32",
}


def peak(chip: Chip, dtype: str, accumulate: str | None = None) -> Peak | None:
    """The ceiling of a matmul in ``dtype``, or None where the catalog has none.

    ``accumulate`` defaults to what torch.matmul uses (DEFAULT_ACCUMULATE).
    Where both kinds of unit can do it (fp64 on an A100), the faster one counts,
    since that is what the vendor's library picks.
    """
    wanted = accumulate or DEFAULT_ACCUMULATE.get(dtype)
    found = [p for p in chip.peaks if p.dtype == dtype and p.accumulate == wanted]
    return max(found, key=lambda p: p.rate, default=None)


def vector_peak(chip: Chip, dtype: str) -> Peak | None:
    """The ceiling of elementwise arithmetic in ``dtype``: the ordinary lanes alone."""
    found = [p for p in chip.peaks if p.dtype == dtype and p.unit == "vector"]
    return max(found, key=lambda p: p.rate, default=None)
