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
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from trainrig.catalog.host_parts import pcie_bandwidth
from trainrig.flat_keys import FlatKeys, part

PeakUnit = Literal["tensor", "vector"]
Count = Annotated[int, Field(ge=1)]
Size = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, StringConstraints(min_length=1)]
PciId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A document that values were read from."""

    key: str
    """Name of the source in the data file."""
    title: str
    url: str | None
    date: str
    """Date of reading, ISO 8601; the document's own date or version is in the title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Origin of one value of one chip."""

    source: Source
    verified: bool
    """False where the value is computed or presumed, or its sources contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A dense peak rate."""

    dtype: str
    """Data type: ``fp64``, ``fp32``, ``tf32``, ``bf16``, ``fp16``, ``fp8``, ``fp4``, ``int8``."""
    accumulate: str
    """The type that products are summed in: ``fp32``, ``fp16``, ``fp64``, ``int32``."""
    unit: PeakUnit
    """Execution unit: ``tensor`` (matrix or systolic units) or ``vector`` (ordinary lanes)."""
    rate: float
    """Rate in FLOP/s, OP/s for integer types; one multiply-add counts as two."""

    @property
    def field(self) -> str:
        """Name of the peak in `Chip.provenance`: ``tensor.fp16.fp32``."""
        return f"{self.unit}.{self.dtype}.{self.accumulate}"

    @property
    def rate_unit(self) -> str:
        """Unit of the rate: ``FLOP/s`` or ``OP/s``."""
        return "OP/s" if self.dtype.startswith("int") else "FLOP/s"


def known(
    label: str, unit: str = "", *, key: str | None = None, default: Any = None, **printed: float
) -> Any:
    """Declare a field that a source may state.

    Args:
        label: What people call it.
        unit: ``count``, an SI unit, or none for words.
        key: Its flat key, where this is not its name.
        default: Its value where no source states one.
        printed: Its name in a data file, with the factor that makes base SI of it.
    """
    metadata = {"label": label, "unit": unit, "printed": printed}
    return field(default=default, metadata=metadata if key is None else metadata | {"key": key})


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The design that is sold: its architecture, its age and its form."""

    architecture: Text | None = known("architecture")
    year: Annotated[int, Field(ge=1990, le=2100)] | None = known("year")
    """Year of the announcement."""
    form_factor: Text | None = known("form factor")
    process: Text | None = known("process")
    """Foundry and node: ``TSMC 5 nm``."""
    transistors: Size | None = known("transistors", "count")
    """Transistors of one package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeUnits:
    """Processors, their lanes and their clocks."""

    num_sms: Count | None = known("SMs, CUs or GPU cores", "count")
    """Streaming multiprocessors (NVIDIA), compute units (AMD), GPU cores (Apple)."""
    fp32_cores: Count | None = known("FP32 cores", "count")
    fp64_cores: Count | None = known("FP64 cores", "count")
    int32_cores: Count | None = known("INT32 cores", "count")
    tensor_cores: Count | None = known("tensor cores", "count")
    tensor_generation: Count | None = known("tensor generation")
    rt_cores: Count | None = known("RT cores", "count")
    """Ray-tracing units; a training does not use them."""
    sparsity: Text | None = known("structured sparsity")
    """Pattern of zeros that doubles the tensor peaks, ``2:4``; the peaks here are dense."""
    capability: Text | None = known("compute capability", key="compute_capability")
    """CUDA's compute capability, ``8.9``; AMD's LLVM target, ``gfx942``."""
    base_clock: Size | None = known("base clock", "Hz", base_mhz=1e6)
    boost_clock: Size | None = known("boost clock", "Hz", boost_mhz=1e6)
    tensor_clock: Size | None = known("clock of the tensor peaks", "Hz", tensor_mhz=1e6)
    """Clock that the tensor peaks are printed for, where it is not the boost clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of the chip and the caches before it."""

    size: Size | None = known("memory", "B", key="memory", memory_gib=1024.0**3)
    """Capacity in bytes; data sheets print GB and mean GiB."""
    type: Text | None = known("memory type", key="memory_type")
    pin_rate: Size | None = known("data rate per pin", "bit/s", key="memory_rate", memory_gbps=1e9)
    bus: Count | None = known("bus width", "bit", key="memory_bus", memory_bits=1)
    bandwidth: Size | None = known("bandwidth", "B/s", bandwidth_gb_s=1e9)
    """Bandwidth as claimed, in bytes per second."""
    l2: Size | None = known("L2 cache", "B", l2_mib=1024.0**2)
    last_level_cache: Size | None = known("last-level cache", "B", last_level_cache_mib=1024.0**2)
    """Capacity of a level between L2 and memory, in bytes."""

    @property
    def computed_bandwidth(self) -> float | None:
        """Data rate × bus width / 8 in bytes per second: what `bandwidth` should be."""
        if self.pin_rate is None or self.bus is None:
            return None
        return self.pin_rate * self.bus / 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipLink:
    """The fabric between chips, and how far it reaches."""

    name: Text | None = known("link", key="link")
    """Name of the link: ``NVLink``, ``Infinity Fabric``, ``none``."""
    generation: Count | None = known("link generation", key="link_generation")
    count: Count | None = known("links", "count", key="link_count")
    bandwidth: Size | None = known(
        "link bandwidth, both ways", "B/s", key="link_bandwidth", link_gb_s=1e9
    )
    """Bytes per second of all links, both directions together, as vendors print it."""
    domain: Count | None = known("chips that the link joins", "count", key="link_domain")
    """Chips that the link joins, where these are more than a node's: a rack's."""
    p2p: bool | None = known("peer access")
    """Peer access: one chip can read another's memory directly, over link or PCIe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieSlot:
    """The chip's own PCI Express link."""

    generation: Count | None = known("PCIe generation", key="pcie_generation")
    lanes: Count | None = known("PCIe lanes", "count", key="pcie_lanes")

    @property
    def bandwidth(self) -> float | None:
        """Bandwidth of the link each way in B/s, before packet headers."""
        if self.generation is None or self.lanes is None:
            return None
        return pcie_bandwidth(self.generation, self.lanes).high


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardNeeds:
    """Power, slots and cooling that the machine around the chip provides."""

    tdp: Size | None = known("TDP", "W", tdp_w=1.0)
    slots: Count | None = known("slots", "count")
    """Width of a PCIe card, in slots."""
    cooling: Literal["active", "passive", "module"] | None = known("cooling")
    """Cooling: ``active``, ``passive`` (the chassis' fans) or ``module`` (the server's)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One product of one vendor.  A field that is None is not known.

    The one list of these fields: files, tables and JSON are made of their flat keys, CHIP_KEYS
    (`catalog.fields`).
    """

    name: str
    """Name of the chip, unique in the catalog: ``RTX 4090``, ``A100 SXM4 80GB``."""
    vendor: str
    provenance: Mapping[str, Provenance] = field(hash=False)
    """Origins by flat key; peaks by `Peak.field`.  A mapping has no hash, and a chip must have
    one."""
    short_names: tuple[str, ...] = ()
    """Names that people use where only one chip can be meant: ``4090``."""
    product: Product = part(Product)
    compute: ComputeUnits = part(ComputeUnits)
    memory: DeviceMemory = part(DeviceMemory)
    link: ChipLink = part(ChipLink)
    pcie: PcieSlot = part(PcieSlot)
    board: BoardNeeds = part(BoardNeeds)
    mig_instances: Annotated[int, Field(ge=0)] | None = known("MIG instances", "count")
    """Most instances that one chip can be cut into; 0 where it cannot."""
    mig_profiles: Annotated[tuple[Text, ...], Field(strict=False)] = known(
        "MIG profiles", default=()
    )
    """MIG profiles as nvidia-smi names them: ``1g.10gb``."""
    pci_ids: Annotated[tuple[PciId, ...], Field(strict=False)] = known("PCI ids", default=())
    """PCI ids, vendor and device in lower-case hexadecimal: ``10de:2684``."""
    aliases: Annotated[tuple[Text, ...], Field(strict=False)] = known("reported as", default=())
    """Names that drivers and frameworks report, exactly."""
    peaks: tuple[Peak, ...] = ()
    notes: str | None = None

    @classmethod
    def of(cls, **keys: Any) -> Chip:
        """Return the chip of flat keys; what is not given is not known."""
        return CHIP_KEYS.make(**keys)

    def replace(self, **keys: Any) -> Chip:
        """Return a copy with the values of some flat keys changed."""
        return CHIP_KEYS.replace(self, **keys)


CHIP_KEYS = FlatKeys(Chip)


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
    """Return the ceiling of a matmul in ``dtype``, or None where the catalog has none.

    ``accumulate`` defaults to what torch.matmul uses (DEFAULT_ACCUMULATE).
    Where both kinds of unit can do it (fp64 on an A100), the faster one counts,
    since that is what the vendor's library picks.
    """
    accumulate_type = accumulate or DEFAULT_ACCUMULATE.get(dtype)
    peaks = [p for p in chip.peaks if p.dtype == dtype and p.accumulate == accumulate_type]
    return max(peaks, key=lambda p: p.rate, default=None)


_SCALES_BLOCKS = ("Blackwell", "CDNA4", "NeuronCore-v4")
"""Architectures whose units multiply blocks of numbers by scales of theirs: their makers' papers
(Blackwell's brief, CDNA 4's white paper, Trainium3's page) name MXFP8."""


def has_block_scales(chip: Chip) -> bool:
    """Return whether products take a scale for each block of numbers, as MXFP8 and fp4 do."""
    is_named = (chip.product.architecture or "").startswith(_SCALES_BLOCKS)
    return is_named or peak(chip, "fp4") is not None
