"""Facts for the doctor besides the machine's parts: driver, kernel log, sockets, disks, settings.

Facts alone, as frozen values; `trainrig.doctor` judges them.  They are stored in machine.json and
travel in bundles, so nothing here holds a command line, a password, a token or a user's name.
"""

from __future__ import annotations

from typing import Literal

from trainrig.machine.fact import NOT_READ, Missing, fact
from trainrig.record import Finite


@fact
class DriverState:
    """NVIDIA's driver as the kernel, the disk and the package manager know it."""

    modules: tuple[str, ...] | Missing
    """Loaded kernel modules that drive or could hold a GPU: ``nvidia``, ``nouveau``, …"""
    loaded: str | Missing
    """Version of the kernel module that runs."""
    on_disk: str | Missing
    """Version of the kernel module that the next boot would load."""
    library: str | Missing
    """Version of the userland library (libnvidia-ml.so.X, libcuda.so.X)."""
    builds: tuple[str, ...] | Missing
    """Kernels that DKMS has built the module for: ``6.8.0-47-generic``."""
    secure_boot: bool | Missing
    upgraded: str | None | Missing
    """Date of the newest unattended upgrade of NVIDIA's packages; None: none in the log."""
    fabric_manager: str | Missing
    """Version of NVIDIA's fabric manager, which machines with NVSwitch need."""
    fabric_active: bool | Missing


@fact
class PciState:
    """State of one GPU on the bus, besides its identity."""

    address: str
    answers: bool | Missing
    """False: its configuration reads as all ones, as that of a card that fell off the bus."""
    bar_bytes: int | Missing
    """Largest memory window that the firmware gave it."""
    errors_corrected: int | Missing
    """Link errors that PCIe corrected since boot (AER)."""
    errors_fatal: int | Missing
    acs_redirect: bool | Missing
    """True where a port above it sends traffic between GPUs through the root (ACS); needs root."""


@fact
class KernelEvent:
    """A line of the kernel's log that bears on training, read into its parts."""

    kind: str
    """``xid``, ``pcie``, ``disk``: as kernel_log.toml calls it."""
    text: str
    """The line, without its time."""
    code: int | None = None
    """The Xid or SXid."""
    pci_address: str | None = None
    program: str | None = None
    library: str | None = None
    """Library in which a segmentation fault happened: ``libnccl.so.2``."""
    device: str | None = None
    """A disk, a processor, a memory module, a slot."""
    severity: str | None = None
    """In the kernel's words: ``corrected``, ``uncorrected (fatal)``."""
    count: int = 1
    """Number of errors of this kind, code, device and program; ``text`` is the latest."""


Protection = Literal["token", "password", "none", "unknown"]


@fact
class Listener:
    """A TCP port that something waits on."""

    address: str
    """``0.0.0.0`` and ``::`` are every interface."""
    port: int
    program: str | Missing
    service: str
    """``jupyter``, ``frps``, ``tensorboard``, ``ray``, ``redis``, ``ssh`` …; empty: not known."""
    protection: Protection
    """Protection by its command line and configuration; the secret itself is not kept."""


@fact
class Tunnel:
    """A client that makes a local port reachable from elsewhere (frpc, cloudflared, ngrok)."""

    service: str
    local_ports: tuple[int, ...]
    authenticated: bool | Missing
    """True where the client's configuration names a token or user to the server."""


@fact
class DiskHealth:
    """A disk by its own report (SMART)."""

    name: str
    passed: bool | Missing
    used: Finite | Missing
    """Share of its rated life that is used up, 0 to 1 and beyond."""
    spare_low: bool | Missing
    media_errors: int | Missing
    reallocated: int | Missing
    """Sectors that were replaced (SATA)."""
    pending: int | Missing
    """Sectors that wait to be replaced (SATA)."""
    temperature_c: Finite | Missing


@fact
class FileSystem:
    """A mounted file system that holds data."""

    path: str
    filesystem: str
    read_only: bool
    options: tuple[str, ...]
    errors: int | Missing
    """Errors that ext4 counted since it was checked."""


@fact
class NetworkPort:
    """A network card's port."""

    name: str
    kind: Literal["ethernet", "infiniband"]
    up: bool | Missing
    speed_bits_per_s: Finite | Missing
    link_now: int | Missing
    """PCIe generation × lanes of the card, as it runs."""
    link_most: int | Missing
    """PCIe generation × lanes that it can."""
    firmware: str | Missing
    virtual: bool
    is_ethernet: bool = False
    """An InfiniBand device whose link is Ethernet (RoCE)."""
    is_usb: bool = False
    """Behind USB, as the port to a server's management chip."""
    link_downs: int | Missing = NOT_READ
    """Number of times that the link was lost since the counters began (InfiniBand)."""


@fact
class Sensor:
    """A temperature or fan of the host (hwmon, which lm-sensors reads)."""

    chip: str
    label: str
    kind: Literal["temperature", "fan"]
    value: Finite
    """Degrees Celsius, or turns a minute."""
    limit: Finite | Missing
    """The critical temperature, or the fan's least speed."""


@fact
class GpuProcess:
    """A process with a context on a GPU."""

    gpu: int
    pid: int
    program: str | Missing


@fact
class Toolchain:
    """Versions of the tools that build extensions and run containers."""

    gcc: str | Missing
    ninja: str | Missing
    containers: str | Missing
    """Version of Docker or Podman."""
    container_toolkit: str | Missing
    """Version of NVIDIA's container toolkit."""


@fact
class HostSettings:
    """Settings of the host's firmware and kernel."""

    governors: tuple[str, ...] | Missing
    """Policies of the processors' clocks, with their drivers: ``acpi-cpufreq/schedutil``."""
    clock_synchronised: bool | Missing
    iommu: Literal["off", "passthrough", "translated"] | Missing
    memlock_bytes: int | None | Missing
    """Memory in bytes that a process may lock; None: no limit."""
    open_files: int | None | Missing
    memory_errors_corrected: int | Missing
    """Errors that the memory controller corrected since boot (EDAC)."""
    memory_errors_uncorrected: int | Missing
    raid_degraded: tuple[str, ...] | Missing
    """Sets of /proc/mdstat with a disk missing."""
    peer_memory: bool | Missing
    """True where a module for GPUDirect RDMA is loaded."""


@fact
class EarlierGpu:
    """A GPU that a run on this machine had."""

    name: str
    pci_address: str
    uuid: str
    run: str


@fact
class Crash:
    """Process that died, as the newest run's logs show it."""

    run: str
    log: str
    signal: str
    """``SIGSEGV``, ``SIGILL``, ``SIGKILL``, ``SIGBUS``, ``SIGABRT``."""
    frames: tuple[str, ...]
    """faulthandler's stack, the innermost first: ``File "x.py", line 3 in f``."""


@fact
class Health:
    """Everything a doctor looks at besides the machine's parts."""

    driver: DriverState
    bus: tuple[PciState, ...] | Missing
    kernel_log: tuple[KernelEvent, ...] | Missing
    listeners: tuple[Listener, ...] | Missing
    tunnels: tuple[Tunnel, ...] | Missing
    disks: tuple[DiskHealth, ...] | Missing
    filesystems: tuple[FileSystem, ...] | Missing
    network: tuple[NetworkPort, ...] | Missing
    sensors: tuple[Sensor, ...] | Missing
    gpu_processes: tuple[GpuProcess, ...] | Missing
    toolchain: Toolchain
    settings: HostSettings
    earlier_gpus: tuple[EarlierGpu, ...] | Missing = NOT_READ
    """GPUs of the newest run on this machine that had any; filled in by the runner."""
    readable_secrets: tuple[str, ...] | Missing = NOT_READ
    """Files with a secret in this user's home that others may read: ``~/.netrc``."""
    crash: Crash | None | Missing = NOT_READ
    """Crash in the newest run; None: it shows none."""
