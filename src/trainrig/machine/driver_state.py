"""NVIDIA's driver as the kernel, the disk and the package manager know it, and GPUs on the bus.

A card that fell off the bus answers every read of its configuration with ones, which lspci shows
as ``rev ff``; sysfs hands out the first 64 bytes of that configuration without root.  The library's
version is in its file's name.  Secure Boot is the last byte of an EFI variable.

Sources: the kernel's Documentation/ABI/testing/sysfs-bus-pci and -aer_stats; NVIDIA's driver
README, chapter "Installed Components"; the UEFI specification for SecureBoot's variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainrig.machine.health import DriverState, PciState
from trainrig.machine.parse import first, integer
from trainrig.machine.snapshot import Missing, PciGpu, value_or
from trainrig.machine.software import driver_version
from trainrig.machine.system_access import Host

_DEVICES = "/sys/bus/pci/devices"
_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
)
_LIBRARY = re.compile(r"lib(?:nvidia-ml|cuda)\.so\.(\d{2,4}\.\d+(?:\.\d+)?)")
_VERSION = re.compile(r"\d{2,4}\.\d+(?:\.\d+)?")
_OF_INTEREST = re.compile(r"nvidia\w*|nouveau|nova_core|amdgpu|vfio_pci|gdrdrv|ib_peer_mem")
_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_HISTORY = ("/var/log/apt/history.log", "/var/log/dnf.rpm.log")
# A byte that is no text is read as this character; so is each 0xff.
_ALL_ONES = "\ufffd" * 16
_RESOURCE = re.compile(r"0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16}) 0x[0-9a-f]{1,16}")


def driver_state(host: Host) -> DriverState:
    """Read which driver is loaded and installed, and what an upgrade changed."""
    return DriverState(
        modules=_modules(host),
        loaded=first(
            [_version_in(host.read("/sys/module/nvidia/version")), _from_proc(host)], "driver"
        ),
        on_disk=_version_in(host.run("modinfo", "-F", "version", "nvidia")),
        library=_library(host),
        builds=_builds(host.run("dkms", "status")),
        secure_boot=_secure_boot(host),
        upgraded=_upgraded(host),
        fabric_manager=_fabric_manager(host),
        fabric_active=_is_active(host, "nvidia-fabricmanager"),
    )


def _modules(host: Host) -> tuple[str, ...] | Missing:
    listed = host.read("/proc/modules")
    if isinstance(listed, Missing):
        return listed
    names = [line.split()[0] for line in listed.splitlines() if line.split()]
    return tuple(sorted(name for name in names if _OF_INTEREST.fullmatch(name)))


def _from_proc(host: Host) -> str | Missing:
    return driver_version(host.read("/proc/driver/nvidia/version"))


def _version_in(output: str | Missing) -> str | Missing:
    if isinstance(output, Missing):
        return output
    match = _VERSION.search(output)
    return match[0] if match else Missing(f"no version in {output[:40]!r}")


def _library(host: Host) -> str | Missing:
    for folder in _LIBRARIES:
        # The link says which one programs load; others may be left from earlier versions.
        for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
            target = value_or(host.link_text(f"{folder}/{name}"), "").rpartition("/")[2]
            if match := _LIBRARY.fullmatch(target):
                return match[1]
        versions = [
            match[1]
            for name in value_or(host.names(folder), ())
            if (match := _LIBRARY.fullmatch(name))
        ]
        if versions:
            return max(versions, key=lambda text: [int(part) for part in text.split(".")])
    return Missing("no libnvidia-ml.so in the system's folders")


def _builds(output: str | Missing) -> tuple[str, ...] | Missing:
    """Read the kernels in ``nvidia/570.86.15, 6.8.0-47-generic, x86_64: installed``."""
    if isinstance(output, Missing):
        return output
    lines = re.findall(r"^nvidia\S*, ([^,\s]+),[^:]*: installed", output, re.MULTILINE)
    return tuple(sorted(set(lines)))


def _secure_boot(host: Host) -> bool | Missing:
    """Read SecureBoot's variable: four bytes of attributes and one of value."""
    value = host.read(_SECURE_BOOT)
    if isinstance(value, str) and value:
        return value[-1] == "\x01"
    if isinstance(host.names("/sys/firmware/efi"), Missing):
        names = host.names("/sys/firmware")
        return Missing("the firmware shows nothing") if isinstance(names, Missing) else False
    return value if isinstance(value, Missing) else Missing("SecureBoot's variable is empty")


def _upgraded(host: Host) -> str | None | Missing:
    """Return the date of the newest unattended upgrade of NVIDIA's packages."""
    log = host.read(_HISTORY[0])
    if isinstance(log, Missing):
        return log
    newest = None
    for block in re.split(r"\n\s*\n", log):
        unattended = "unattended-upgrade" in block
        date = re.search(r"^Start-Date: (\S+)", block, re.MULTILINE)
        if (
            unattended
            and date
            and re.search(r"^Upgrade: .*(?:nvidia|libcuda)", block, re.MULTILINE)
        ):
            newest = date[1]
    return newest


def _fabric_manager(host: Host) -> str | Missing:
    return _version_in(host.run("nv-fabricmanager", "--version"))


def _is_active(host: Host, unit: str) -> bool | Missing:
    output = host.run("systemctl", "is-active", unit)
    if isinstance(output, Missing):
        word = output.reason.rpartition(": ")[2]
        return False if word in ("inactive", "failed", "unknown", "activating") else output
    return output.strip() == "active"


# ---- each GPU on the bus


def pci_states(host: Host, gpus: Iterable[PciGpu]) -> tuple[PciState, ...]:
    """Read from the bus whether GPUs answer, their window, and their link's errors."""
    redirects = _acs(host)
    return tuple(_state(host, gpu, redirects) for gpu in gpus)


def _state(host: Host, gpu: PciGpu, redirects: frozenset[str] | Missing) -> PciState:
    folder = f"{_DEVICES}/{gpu.address}"
    config = host.read(f"{folder}/config")
    redirect: bool | Missing
    place = host.resolve(folder)
    if isinstance(redirects, Missing) or isinstance(place, Missing):
        redirect = redirects if isinstance(redirects, Missing) else place  # type: ignore[assignment]
    else:
        redirect = any(port in redirects for port in place.split("/")[:-1])
    return PciState(
        address=gpu.address,
        answers=config if isinstance(config, Missing) else not config.startswith(_ALL_ONES),
        bar_bytes=_largest_window(host.read(f"{folder}/resource")),
        errors_corrected=_total(host.read(f"{folder}/aer_dev_correctable"), "TOTAL_ERR_COR"),
        errors_fatal=_total(host.read(f"{folder}/aer_dev_fatal"), "TOTAL_ERR_FATAL"),
        acs_redirect=redirect,
    )


def _largest_window(content: str | Missing) -> int | Missing:
    """Return the largest memory window; each line has its first and last address and flags."""
    if isinstance(content, Missing):
        return content
    ends = [(int(a, 16), int(b, 16)) for a, b in _RESOURCE.findall(content)]
    sizes = [last - start + 1 for start, last in ends if last > start]
    return max(sizes) if sizes else Missing("the firmware gave it no memory window")


def _total(content: str | Missing, name: str) -> int | Missing:
    if isinstance(content, Missing):
        return content
    for line in content.splitlines():
        word, _, number = line.rpartition(" ")
        if word.strip() == name:
            return integer(number, "count of errors")
    return Missing(f"no {name}")


def _acs(host: Host) -> frozenset[str] | Missing:
    """Return the bridges whose ACS control redirects requests, which lspci shows to root."""
    output = host.run("lspci", "-D", "-vvv")
    if isinstance(output, Missing):
        return output
    if "ACSCtl:" not in output:
        hidden = "<access denied>" in output
        return Missing("lspci shows capabilities to root alone") if hidden else frozenset()
    bridges = set()
    for block in re.split(r"\n\s*\n", output):
        control = re.search(r"ACSCtl:.*\bReqRedir\+", block)
        if control and "bridge" in block.partition("\n")[0].lower():
            bridges.add(block.split(None, 1)[0])
    return frozenset(bridges)
