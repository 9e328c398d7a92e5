"""Snapshot of a machine at one moment, as frozen values.

A field that could not be read is `Missing(reason)`, never a zero and never a
guess.  None means a fact: "there is no limit".  Quantities are in base SI units
(bytes, hertz, watts, seconds), temperatures in degrees Celsius, memory speeds in
transfers per second.

This module does not look at anything: the probes beside it do.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import (
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)

from trainrig.errors import DataError, KeyPath, first_problem
from trainrig.flat_keys import FlatKeys, keyed, part
from trainrig.machine.fact import FAULTY_REASONS as FAULTY_REASONS
from trainrig.machine.fact import NOT_IN_FILE as NOT_IN_FILE
from trainrig.machine.fact import NOT_READ as NOT_READ
from trainrig.machine.fact import Missing as Missing
from trainrig.machine.fact import fact
from trainrig.machine.fact import if_known as if_known
from trainrig.machine.fact import value_or as value_or
from trainrig.machine.health import Health
from trainrig.record import Finite, check_schema

SNAPSHOT_SCHEMA = 1
ONLY_TORCH = Missing("only torch tells of it")


@fact
class HostInfo:
    """The computer as a whole and its operating system."""

    hostname: str | Missing
    machine: str | Missing = Missing("not read by the version that wrote this")
    """Digest of /etc/machine-id."""
    os: str | Missing
    """Pretty name: ``Debian GNU/Linux 12 (bookworm)``."""
    kernel: str | Missing
    architecture: str | Missing
    container: str | Missing
    """``docker``, ``podman``, …, or ``none``."""
    virtualization: str | Missing
    """``kvm``, ``vmware``, ``wsl``, …, or ``none``."""
    uptime_s: Finite | Missing
    vendor: str | Missing
    product: str | Missing
    board: str | Missing


@fact
class Cache:
    """Level of the CPU's caches."""

    name: str
    """``L1d``, ``L1i``, ``L2``, ``L3``."""
    total_bytes: int
    """Size of all instances together, in bytes."""
    instance_bytes: int
    """Size of one instance, in bytes."""


@fact
class Cpu:
    """The processors, and how much of them this process may use."""

    model: str | Missing
    vendor: str | Missing
    family: str | Missing
    model_number: str | Missing
    stepping: str | Missing
    sockets: int | Missing
    cores: int | Missing
    """Physical cores, all sockets together."""
    threads: int | Missing
    """Logical processors, all sockets together."""
    numa_nodes: int | Missing
    flags: tuple[str, ...] | Missing
    caches: tuple[Cache, ...] | Missing
    base_clock_hz: Finite | Missing
    max_clock_hz: Finite | Missing
    clock_hz: Finite | Missing
    """Median over the logical processors when it was looked at."""
    usable_threads: int | Missing
    """Logical processors this process may run on (its affinity)."""
    quota_cpus: Finite | None | Missing
    """CPU time the control group allows, in processors; None: no limit."""


@fact
class Dimm:
    """Memory module, as the firmware describes it."""

    locator: str | Missing
    bank: str | Missing
    size_bytes: int | Missing
    type: str | Missing
    """``DDR4``, ``DDR5``."""
    rated_mt_per_s: Finite | Missing
    """Rate that the module is made for, in megatransfers a second."""
    speed_mt_per_s: Finite | Missing
    """The rate that the module runs at."""
    part_number: str | Missing


@fact
class NumaNode:
    """Memory and processors that are close to each other."""

    index: int
    total_bytes: int | Missing
    cpus: str | Missing
    """Processors of the node, as the kernel writes them: ``0-31,64-95``."""


@fact
class MemoryInfo:
    """Main memory, and how much of it this process may use."""

    total_bytes: int | Missing
    available_bytes: int | Missing
    swap_total_bytes: int | Missing
    swap_free_bytes: int | Missing
    limit_bytes: int | None | Missing
    """Memory in bytes that the control group allows; None: no limit."""
    shm_bytes: int | Missing
    """Size of /dev/shm, through which data loaders and NCCL pass buffers."""
    dimms: tuple[Dimm, ...] | Missing
    speed_mt_per_s: Finite | Missing
    """Rate of the slowest module, in megatransfers a second."""
    channels: int | Missing
    """Channels with at least one module, all sockets together."""
    nodes: tuple[NumaNode, ...] | Missing


@fact
class Mount:
    """Mount point of a disk, or of a part of it."""

    path: str
    filesystem: str | Missing
    size_bytes: int | Missing
    available_bytes: int | Missing


@fact
class Disk:
    """Block device that holds data."""

    name: str
    model: str | Missing
    size_bytes: int | Missing
    rotational: bool | Missing
    transport: str | Missing
    """``nvme``, ``sata``, ``usb``."""
    mounts: tuple[Mount, ...]
    """Mount points of the disk and of everything that lies on it."""


@fact
class PcieLink:
    """A PCI Express link, as it runs and at its most."""

    generation: int | Missing
    """1 to 6; an idle device may run its link slower than it can."""
    width: int | Missing
    """Lanes."""
    max_generation: int | Missing
    max_width: int | Missing


def unknown_link(why: str) -> PcieLink:
    """Return a link of which nothing is known."""
    none = Missing(why)
    return PcieLink(generation=none, width=none, max_generation=none, max_width=none)


@fact
class PciGpu:
    """A GPU or accelerator as the PCI bus shows it, with or without a driver."""

    address: str
    """``0000:01:00.0``."""
    pci_id: str
    """``10de:2684``: vendor and device."""
    subsystem_id: str | Missing
    pci_class: str
    """``0300`` display, ``0302`` 3D, ``0380`` other display, ``1200`` accelerator."""
    name: str | Missing
    """From the system's pci.ids; the catalog has its own names."""
    driver: str | None | Missing
    """The kernel driver bound to it; None: no driver."""
    numa_node: int | Missing
    link: PcieLink
    """The device's own link, and what the device can do."""
    slot: PcieLink
    """The link from the port above: what the slot can do."""


@fact
class GpuMemory:
    """A GPU's memory."""

    total_bytes: int | Missing = keyed("memory_total_bytes")
    used_bytes: int | Missing = keyed("memory_used_bytes")
    bus_bits: int | Missing = keyed("memory_bus_bits")
    bar1_bytes: int | Missing = NOT_READ
    """Window through which the host sees its memory: all of it with resizable BAR, else 256 MiB."""


@fact
class GpuPower:
    """Power that a GPU draws, and the limits that it is kept to."""

    draw_w: Finite | Missing = keyed("power_w")
    limit_w: Finite | Missing = keyed("power_limit_w")
    limit_default_w: Finite | Missing = keyed("power_limit_default_w")
    limit_min_w: Finite | Missing = keyed("power_limit_min_w")
    limit_max_w: Finite | Missing = keyed("power_limit_max_w")
    energy_j: Finite | Missing = NOT_READ
    """Energy used since the driver was loaded, in joules."""


@fact
class GpuEcc:
    """Error correction of a GPU's memory, and the repairs that it led to."""

    enabled: bool | Missing = keyed("ecc")
    uncorrected_volatile: int | Missing = keyed("ecc_uncorrected_volatile")
    """Uncorrected errors since the driver was loaded."""
    uncorrected_aggregate: int | Missing = keyed("ecc_uncorrected_aggregate")
    """Uncorrected errors since the card was made."""
    corrected_volatile: int | Missing = keyed("ecc_corrected_volatile")
    corrected_aggregate: int | Missing = keyed("ecc_corrected_aggregate")
    retired_pages: int | Missing
    retirement_pending: bool | Missing
    remapped_rows: int | Missing
    """Rows replaced after uncorrectable errors."""
    remap_pending: bool | Missing
    remap_failed: bool | Missing


@fact
class GpuClocks:
    """Clocks of a GPU, and what holds them down."""

    sm_hz: Finite | Missing = keyed("sm_clock_hz")
    memory_hz: Finite | Missing = keyed("memory_clock_hz")
    max_sm_hz: Finite | Missing = keyed("max_sm_clock_hz")
    max_memory_hz: Finite | Missing = keyed("max_memory_clock_hz")
    application_sm_hz: Finite | Missing = keyed("application_sm_clock_hz")
    throttle_reasons: tuple[str, ...] | Missing
    """Reasons why the clocks are held down now: ``hw_thermal_slowdown``, ``sw_power_cap``, …"""
    slowed_by_heat_s: Finite | Missing = NOT_READ
    """Seconds since the driver was loaded in which heat held the clocks down."""
    slowed_by_board_s: Finite | Missing = NOT_READ
    """Seconds since the driver was loaded in which the board's power supply or cable held the
    clocks down."""


@fact
class GpuCooling:
    """Temperature of a GPU, and its fans."""

    temperature_c: Finite | Missing
    slowdown_temperature_c: Finite | Missing = NOT_READ
    """Temperature at which the hardware begins to slow down."""
    fan: Finite | Missing = NOT_READ
    """Speed that its fans are set to, 0 to 1; a card that is cooled by its case has none."""


@fact
class GpuMode:
    """Modes that an administrator sets on a GPU."""

    mig: bool | Missing
    persistence: bool | Missing
    compute: str | Missing = keyed("compute_mode")
    """Who may compute on it: ``default``, ``exclusive process``, …"""


@fact
class GpuActivity:
    """Programs that run on a GPU."""

    utilization: Finite | Missing
    """Share of the last sample period in which a kernel ran, 0 to 1."""
    others_utilization: Finite | Missing = NOT_READ
    """Share of the time in which other programs' kernels ran, 0 to 1; around a measurement only."""
    num_processes: int | Missing
    """Processes with a compute context on it."""
    process_ids: tuple[int, ...] | Missing = NOT_READ
    """Numbers of the processes with a compute context on it."""


@fact
class Nvlinks:
    """NVLinks of a GPU, counted."""

    active: int | Missing = keyed("nvlinks_active")
    inactive: int | Missing = keyed("nvlinks_inactive")


@fact
class Gpu:
    """A GPU as its driver describes it (NVML; amd-smi or rocm-smi for AMD).

    machine.json has the flat keys of its parts, in the order of GPU_KEYS.
    """

    index: int
    """The driver's number, in PCI order; CUDA_VISIBLE_DEVICES may renumber it."""
    vendor: str
    """``nvidia`` or ``amd``."""
    name: str | Missing
    uuid: str | Missing
    pci_address: str | Missing
    """``0000:01:00.0``."""
    pci_id: str | Missing
    num_cores: int | Missing
    compute_capability: str | Missing
    """``8.9``."""
    vbios: str | Missing
    link: PcieLink
    pcie_replays: int | Missing = NOT_READ
    """Packets that its link sent again since the driver was loaded."""
    memory: GpuMemory = part(GpuMemory)
    power: GpuPower = part(GpuPower)
    ecc: GpuEcc = part(GpuEcc)
    clocks: GpuClocks = part(GpuClocks)
    cooling: GpuCooling = part(GpuCooling)
    mode: GpuMode = part(GpuMode)
    activity: GpuActivity = part(GpuActivity)
    nvlinks: Nvlinks = part(Nvlinks)

    @classmethod
    def of(cls, **keys: Any) -> Gpu:
        """Return the GPU of flat keys."""
        return GPU_KEYS.make(**keys)

    @classmethod
    def unknown(cls, missing: Missing, **keys: Any) -> Gpu:
        """Return a GPU of which nothing is known but the given flat keys.

        Args:
            missing: Why the rest is not known.
            keys: What is known; `index` and `vendor` at least.
        """
        blank = dict.fromkeys(GPU_KEYS.places, missing) | {"link": unknown_link(missing.reason)}
        return cls.of(**blank | keys)

    def replace(self, **keys: Any) -> Gpu:
        """Return a copy with the values of some flat keys changed."""
        return GPU_KEYS.replace(self, **keys)

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, value: Any) -> Any:
        return GPU_KEYS.nest(value) if isinstance(value, Mapping) else value

    @model_serializer(mode="wrap")
    def _flatten(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return GPU_KEYS.flatten(write(self))


GPU_KEYS = FlatKeys(
    Gpu,
    (
        *("index", "vendor", "name", "uuid", "pci_address", "pci_id", "memory_total_bytes"),
        *("memory_used_bytes", "memory_bus_bits", "num_cores", "compute_capability", "vbios"),
        *("link", "power_w", "power_limit_w", "power_limit_default_w", "power_limit_min_w"),
        *("power_limit_max_w", "ecc", "ecc_uncorrected_volatile", "ecc_uncorrected_aggregate"),
        *("ecc_corrected_volatile", "ecc_corrected_aggregate", "retired_pages"),
        *("retirement_pending", "remapped_rows", "remap_pending", "remap_failed"),
        *("sm_clock_hz", "memory_clock_hz", "max_sm_clock_hz", "max_memory_clock_hz"),
        *("application_sm_clock_hz", "temperature_c", "throttle_reasons", "utilization", "mig"),
        *("persistence", "compute_mode", "num_processes", "nvlinks_active", "nvlinks_inactive"),
        *("slowed_by_heat_s", "slowed_by_board_s", "pcie_replays", "energy_j"),
        *("others_utilization", "process_ids", "fan", "bar1_bytes", "slowdown_temperature_c"),
    ),
)
"""The flat keys of a GPU, in the order that machine.json has."""


@fact
class GpuLink:
    """Path between two GPUs."""

    a: int
    b: int
    path: str | Missing
    """``NV4`` (four NVLinks), ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS``."""
    p2p_read: str | Missing
    """``ok``, or why one cannot read the other's memory directly."""
    p2p_write: str | Missing


@fact
class Topology:
    """Links between GPUs, each pair once with a < b."""

    links: tuple[GpuLink, ...] | Missing


@fact
class Software:
    """Software that measurements run on, read without importing it."""

    python: str
    torch: str | Missing
    torch_cuda: str | None | Missing
    """CUDA version torch was built for; None: built without."""
    torch_hip: str | None | Missing
    """ROCm's HIP version torch was built for; None: built without."""
    nvidia_driver: str | Missing
    cuda_driver: str | Missing
    """The newest CUDA version the driver speaks."""
    cuda_toolkit: str | Missing
    cudnn: str | Missing
    nccl: str | Missing
    rocm: str | Missing
    packages: Mapping[str, str]
    """Installed packages that bear on speed: name, version."""
    environment: Mapping[str, str]
    """Environment variables that bear on speed; no others are read."""


@fact
class Snapshot:
    """A machine at one moment: hardware, software, and what a doctor needs."""

    schema: int = SNAPSHOT_SCHEMA
    taken: str
    """UTC, ISO 8601."""
    host: HostInfo
    cpu: Cpu
    memory: MemoryInfo
    disks: tuple[Disk, ...] | Missing
    pci_gpus: tuple[PciGpu, ...] | Missing
    gpus: tuple[Gpu, ...] | Missing
    topology: Topology
    software: Software
    gpus_after: tuple[Gpu, ...] | Missing = NOT_READ
    """GPUs as they were when everything was measured."""
    health: Health | Missing = NOT_READ
    """Facts for the doctor; read where `inspect` is asked for them."""


# ---- as JSON: machine.json, which is checked when it is read


@cache
def _adapter() -> TypeAdapter[Snapshot]:
    return TypeAdapter(Snapshot)


def to_dict(snapshot: Snapshot) -> dict[str, Any]:
    """Return the snapshot as JSON-able values; the form of machine.json."""
    whole: dict[str, Any] = _adapter().dump_python(snapshot, mode="json", by_alias=True)
    return whole


def from_dict(value: object) -> Snapshot:
    """Return the snapshot in the parsed text of a machine.json.

    Raises DataError if it is not one, or was written under another schema version.
    """
    schema = value.get("schema") if isinstance(value, dict) else None
    check_schema(schema, "the machine description", SNAPSHOT_SCHEMA)
    try:
        return _adapter().validate_python(value)
    except ValidationError as error:
        problem = first_problem(error, place=_flat_place)
        raise DataError(f"not a machine description: {problem}") from None


def _flat_place(place: KeyPath) -> KeyPath:
    """Return where machine.json has what stands in a part of a GPU."""
    of_gpu = len(place) > _AT_GPU and place[0] in ("gpus", "gpus_after")
    return (*place[:_AT_GPU], *GPU_KEYS.flat_place(place[_AT_GPU:])) if of_gpu else place


_AT_GPU = 3
"""Parts of a place that lead to a GPU: the list's key, its type and the GPU's number."""
