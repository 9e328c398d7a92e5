"""NUMA nodes and their processors, and which of them each rank of a training is given.

A rank beside a GPU gets every processor of that GPU's node: its host memory is then on that node,
too, as the kernel puts a page where it is first touched.  Ranks without GPUs are spread over the
nodes in turn, and those on one node divide its cores, threads of one core never between two ranks.

Source: the kernel's ABI/stable/sysfs-devices-node and sysfs-devices-system-cpu.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from trainrig.machine.memory import NODES
from trainrig.machine.parse import cpu_numbers
from trainrig.machine.snapshot import Missing, Snapshot, value_or
from trainrig.machine.system_access import Host

_CPU = "/sys/devices/system/cpu"
_T = TypeVar("_T")

NodeCpus = Mapping[int, frozenset[int]]
"""Number of a node → its processors."""


def node_cpus(host: Host, usable: Collection[int]) -> NodeCpus | Missing:
    """Return the nodes that have some of the ``usable`` processors, each with those.

    Nodes of memory alone (CXL, a GPU's) are left out: nothing runs there.
    """
    names = host.names(NODES)
    if isinstance(names, Missing):
        return names
    nodes = {}
    for number in sorted(int(name[4:]) for name in names if re.fullmatch(r"node\d{1,5}", name)):
        text = host.read(f"{NODES}/node{number}/cpulist")
        cpus = cpu_numbers(text) if isinstance(text, str) and text else frozenset[int]()
        if isinstance(cpus, frozenset) and (usable_here := cpus & frozenset(usable)):
            nodes[number] = usable_here
    return nodes or Missing(f"{NODES} names no node with a processor of this process")


def usable_cpus() -> frozenset[int]:
    """Return the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def spread(host: Host, nodes: NodeCpus, ranks: int) -> tuple[frozenset[int], ...]:
    """Return the processors of each rank on a host without GPUs.

    Fewer ranks than nodes divide the nodes; more of them stand on a node in a row, as they talk to
    their neighbours most, and divide its cores, or share all of them where they are too few.
    """
    order = list(nodes)
    if ranks <= len(order):
        parts = (_part(order, rank, ranks) for rank in range(ranks))
        return tuple(frozenset().union(*(nodes[node] for node in part)) for part in parts)
    places = [rank * len(order) // ranks for rank in range(ranks)]
    cpus_by_rank = []
    for rank, place in enumerate(places):
        cores, ranks_here = _cores(host, nodes[order[place]]), places.count(place)
        cores_of_rank = (
            _part(cores, rank - places.index(place), ranks_here)
            if len(cores) >= ranks_here
            else cores
        )
        cpus_by_rank.append(frozenset[int]().union(*cores_of_rank))
    return tuple(cpus_by_rank)


def _part(whole: Sequence[_T], number: int, parts: int) -> Sequence[_T]:
    return whole[number * len(whole) // parts : (number + 1) * len(whole) // parts]


def _cores(host: Host, cpus: Collection[int]) -> list[frozenset[int]]:
    """Return the logical processors of each core, in order."""
    cores: dict[frozenset[int], None] = {}
    for cpu in sorted(cpus):
        text = host.read(f"{_CPU}/cpu{cpu}/topology/thread_siblings_list")
        siblings = cpu_numbers(text) if isinstance(text, str) else frozenset([cpu])
        core = siblings if isinstance(siblings, frozenset) else frozenset([cpu])
        cores[(core & frozenset(cpus)) | {cpu}] = None
    return list(cores)


def beside_gpus(
    snapshot: Snapshot, nodes: NodeCpus, numbers: Sequence[int]
) -> tuple[frozenset[int], ...]:
    """Return the processors of the node of each GPU, by the driver's numbers.

    Of a GPU whose node is not known: nothing, which binds nowhere.
    """
    places = {gpu.address: gpu.numa_node for gpu in value_or(snapshot.pci_gpus, ())}
    at = {gpu.index: value_or(gpu.pci_address, "") for gpu in value_or(snapshot.gpus, ())}
    node_numbers = (places.get(at.get(number, "")) for number in numbers)
    return tuple(
        nodes.get(node, frozenset()) if isinstance(node, int) else frozenset()
        for node in node_numbers
    )
