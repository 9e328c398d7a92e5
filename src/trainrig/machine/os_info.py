"""The computer as a whole: name, operating system, kernel, container or not.

The container's kind comes from the marker files that the engines leave, then
from systemd-detect-virt.  The virtual machine's kind comes from
systemd-detect-virt, then from the CPU's hypervisor flag.
"""

from __future__ import annotations

import platform
import re
import shlex

from trainrig.machine.parse import number, text
from trainrig.machine.snapshot import HostInfo, Missing
from trainrig.machine.system_access import Host
from trainrig.record import digest

_CONTAINER_MARKS = (("/run/.containerenv", "podman"), ("/.dockerenv", "docker"))
_CONTAINER_VARIABLES = (
    ("KUBERNETES_SERVICE_HOST", "kubernetes"),
    ("APPTAINER_CONTAINER", "apptainer"),
    ("SINGULARITY_CONTAINER", "singularity"),
)
_DMI = "/sys/class/dmi/id"


def host_info(host: Host) -> HostInfo:
    """Read name, operating system, kernel and maker of this computer."""
    return HostInfo(
        hostname=text(host.read("/proc/sys/kernel/hostname"), "host name"),
        machine=_machine(host),
        os=_os_name(host),
        kernel=text(host.read("/proc/sys/kernel/osrelease"), "kernel release"),
        architecture=text(platform.machine(), "architecture"),
        container=_container(host),
        virtualization=_virtualization(host),
        uptime_s=number(host.read("/proc/uptime"), "uptime"),
        vendor=text(host.read(f"{_DMI}/sys_vendor"), "vendor"),
        product=text(host.read(f"{_DMI}/product_name"), "product name"),
        board=text(host.read(f"{_DMI}/board_name"), "board name"),
    )


def _machine(host: Host) -> str | Missing:
    """Return a digest of the machine's id; systemd asks not to hand the id itself on."""
    machine_id = host.read("/etc/machine-id")
    if isinstance(machine_id, str) and not re.fullmatch(r"[0-9a-f]{32}", machine_id.strip()):
        return Missing("/etc/machine-id holds no id")
    return machine_id if isinstance(machine_id, Missing) else digest(machine_id.strip())


def _os_name(host: Host) -> str | Missing:
    release = host.read("/etc/os-release")
    if isinstance(release, Missing):
        return text(platform.system(), "operating system")
    for line in release.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "PRETTY_NAME":
            try:
                value = " ".join(shlex.split(value))
            except ValueError:
                value = value.strip("\"' ")
            return text(value, "operating system name")
    return Missing("/etc/os-release has no PRETTY_NAME")


def _container(host: Host) -> str | Missing:
    for variable, kind in _CONTAINER_VARIABLES:
        if host.environment.get(variable):
            return kind
    for path, kind in _CONTAINER_MARKS:
        if not isinstance(host.read(path), Missing):
            return kind
    return _detected(host, "--container")


def _virtualization(host: Host) -> str | Missing:
    version = host.read("/proc/version")
    if not isinstance(version, Missing) and "microsoft" in version.lower():
        return "wsl"
    kind = _detected(host, "--vm")
    if not isinstance(kind, Missing):
        return kind
    cpuinfo = host.read("/proc/cpuinfo")
    if isinstance(cpuinfo, Missing):
        return kind
    return "unknown hypervisor" if "hypervisor" in cpuinfo.split() else "none"


def _detected(host: Host, kind: str) -> str | Missing:
    """Ask systemd-detect-virt, which exits with 1 when it prints ``none``."""
    output = host.run("systemd-detect-virt", kind)
    if isinstance(output, Missing):
        return "none" if output.reason.endswith(": none") else output
    return text(output, "answer of systemd-detect-virt") if output.strip() != "none" else "none"
