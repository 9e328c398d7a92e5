"""Looking at the machine: all probes at once, each of them soft.

Probes run beside each other, since most of their time is spent waiting for a
program (lscpu, lsblk, dmidecode, the driver).  Nothing is written and nothing is
loaded that was not: a look changes nothing, except that NVIDIA's driver wakes
its GPUs when it is asked.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from trainrig.machine.amd import amd_gpus
from trainrig.machine.cpu import cpu_info
from trainrig.machine.disks import disks
from trainrig.machine.memory import memory_info
from trainrig.machine.nvidia import PATIENCE_S, Driver, ask_driver
from trainrig.machine.os_info import host_info
from trainrig.machine.parse import first
from trainrig.machine.pci import pci_gpus
from trainrig.machine.snapshot import Gpu, Missing, Snapshot, Software, Topology, value_or
from trainrig.machine.software import software
from trainrig.machine.system_access import Host, ThisMachine


def inspect(host: Host | None = None, patience_s: float = PATIENCE_S) -> Snapshot:
    """What this machine is, now.

    `patience_s` bounds the wait for NVIDIA's driver; every other program has one
    second.  Never raises for what it finds: unreadable fields are Missing.
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
    return Snapshot(
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        host=about.result(),
        cpu=cpu.result(),
        memory=memory.result(),
        disks=storage.result(),
        pci_gpus=bus.result(),
        gpus=_together(driver.result().gpus, amd.result()),
        topology=Topology(links=driver.result().links),
        software=_with_driver(installed.result(), driver.result()),
    )


def _together(
    nvidia: tuple[Gpu, ...] | Missing, amd: tuple[Gpu, ...] | Missing
) -> tuple[Gpu, ...] | Missing:
    if isinstance(nvidia, Missing) and isinstance(amd, Missing):
        return nvidia
    found = (*value_or(nvidia, ()), *value_or(amd, ()))
    return tuple(dataclasses.replace(gpu, index=index) for index, gpu in enumerate(found))


def _with_driver(installed: Software, driver: Driver) -> Software:
    version = first([driver.version, installed.nvidia_driver], "driver")
    return dataclasses.replace(installed, nvidia_driver=version, cuda_driver=driver.cuda)
