"""Looking at the machine: all probes at once, each of them soft.

Probes run beside each other, since most of their time is spent waiting for a
program (lscpu, lsblk, dmidecode, the driver).  Nothing is written and nothing is
loaded that was not: a look changes nothing, except that NVIDIA's driver wakes
its GPUs when it is asked.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

from trainrig.machine.amd import amd_gpus
from trainrig.machine.cpu import cpu_info
from trainrig.machine.disks import disks
from trainrig.machine.health import Health
from trainrig.machine.host_state import health
from trainrig.machine.memory import memory_info
from trainrig.machine.nvidia import PATIENCE_S, ask_driver
from trainrig.machine.os_info import host_info
from trainrig.machine.parse import first
from trainrig.machine.pci import pci_gpus
from trainrig.machine.snapshot import NOT_READ, Missing, Snapshot, Topology, value_or
from trainrig.machine.software import software
from trainrig.machine.system_access import Host, ThisMachine


def inspect(
    host: Host | None = None, patience_s: float = PATIENCE_S, *, with_health: bool = False
) -> Snapshot:
    """Return a snapshot of this machine.

    `patience_s` bounds the wait for NVIDIA's driver; every other program has about one second.
    ``with_health`` also reads what a doctor looks at.  Never raises for what it finds: unreadable
    fields are Missing.
    """
    seen = host if host is not None else ThisMachine()
    with ThreadPoolExecutor(max_workers=8) as pool:
        driver = pool.submit(ask_driver, seen, patience_s)
        amd = pool.submit(amd_gpus, seen)
        about = pool.submit(host_info, seen)
        cpu = pool.submit(cpu_info, seen)
        memory = pool.submit(memory_info, seen)
        storage = pool.submit(disks, seen)
        bus = pool.submit(pci_gpus, seen)
        installed = pool.submit(software, seen)
    nvidia, other, packages = driver.result(), amd.result(), installed.result()
    gpus = (*value_or(nvidia.gpus, ()), *value_or(other, ()))
    is_known = not (isinstance(nvidia.gpus, Missing) and isinstance(other, Missing))
    gpus = tuple(replace(gpu, index=index) for index, gpu in enumerate(gpus))
    state: Health | Missing = NOT_READ
    if with_health:
        state = health(seen, value_or(storage.result(), ()), bus.result(), gpus)
    version = first([nvidia.version, packages.nvidia_driver], "driver")
    return Snapshot(
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        host=about.result(),
        cpu=cpu.result(),
        memory=memory.result(),
        disks=storage.result(),
        pci_gpus=bus.result(),
        gpus=gpus if is_known else nvidia.gpus,
        topology=Topology(links=nvidia.links),
        software=replace(packages, nvidia_driver=version, cuda_driver=nvidia.cuda),
        health=state,
    )
