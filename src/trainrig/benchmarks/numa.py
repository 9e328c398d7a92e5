"""numa: what memory gives by the NUMA node that the threads, and the memory, are bound to.

Definition: ``copy`` is a = b on the host, by a thread for each processor of ``cpus``; each copies
its own part `TURNS` times in a call, and read plus written bytes are counted, as STREAM does.
``memory`` is the node whose processors touched both arrays first, which is where Linux puts them.
``any``: not bound; the threads are those of the whole process, and one thread touched all memory,
as a program without binding does.  ``all`` and ``own``: every node at once, each thread on memory
of its own node.  ``h2d`` and ``d2h`` are one copy between registered host memory of that node and
a GPU, whose bytes are counted once; the processor only starts it.

Each array is at least twice the last-level caches: a part was pushed out before its turn comes.

Source: STREAM, J. D. McCalpin, https://www.cs.virginia.edu/stream/ref.html; the kernel's
Documentation/admin-guide/mm/numa_memory_policy.rst: memory goes to the node that touches it first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainrig.benchmarks import spec
from trainrig.benchmarks.copy import LINKS, MAX_BYTES
from trainrig.errors import UsageError
from trainrig.record import Case
from trainrig.units import binary
from trainrig.workload import Work

DIRECTIONS = ("copy", *LINKS)
ANY, ALL, OWN = "any", "all", "own"
TURNS = 4
USUAL_BYTES = 1 << 28
"""Bytes of an array, unless caches are larger."""
_NODE = re.compile(r"node (\d{1,5})")
_WAYS = {"copy": "copy", "h2d": "host to GPU", "d2h": "GPU to host"}


def node_text(number: int) -> str:
    """Return the name of a node in a case."""
    return f"node {number}"


def node_in(word: object) -> int | None:
    """Return the NUMA node number in a case's word; None for ``any``, ``all`` and ``own``."""
    match = _NODE.fullmatch(str(word))
    return int(match[1]) if match else None


def numa_case(direction: str, num_bytes: int, cpus: str, memory: str) -> Case:
    """Build a case; its data is always cold."""
    placement: Case = {"direction": direction, "bytes": num_bytes, "cpus": cpus, "memory": memory}
    return {**placement, "cache": "cold"}


def placements(nodes: Sequence[int], num_bytes: int, *, is_gpu: bool) -> Iterator[spec.PlannedCase]:
    """Return the cases of a machine's nodes: unbound, bound, and each node from each."""
    names = [node_text(node) for node in nodes]
    places = [(ANY, ANY), *((name, name) for name in names)]
    if not is_gpu and len(nodes) > 1:
        places += [(ALL, OWN), *((a, b) for a in names for b in names if a != b)]
    for cpus, memory in places:
        for direction in LINKS if is_gpu else ("copy",):
            case = numa_case(direction, num_bytes, cpus, memory)
            yield spec.PlannedCase(case=case, step=_label(case), required=True, shared=True)


def _check_more(case: Case) -> None:
    size = spec.size_in(case, "bytes")
    if size % 4096:
        raise UsageError(f"numa size {size}", "whole pages of 4096 bytes")
    pair = (case["cpus"], case["memory"])
    nodes = [node_in(word) for word in pair]
    is_bound = None not in nodes
    fits = is_bound or pair == (ANY, ANY) or (pair == (ALL, OWN) and case["direction"] == "copy")
    if not fits or (case["direction"] in LINKS and nodes[0] != nodes[1]):
        raise UsageError(
            f"processors of {pair[0]} and memory of {pair[1]} are no binding of {case['direction']}"
        )


def _work(case: Case) -> Work:
    times = 1 if case["direction"] in LINKS else 2 * TURNS
    return Work(flops=0, num_bytes=times * spec.size_in(case, "bytes"))


def _label(case: Case) -> str:
    cpus, memory = case.get("cpus"), case.get("memory")
    words = [_WAYS.get(str(case.get("direction")), "")]
    if isinstance(size := case.get("bytes"), int):
        words.append(f"{binary(size)}B")
    if (cpus, memory) == (ANY, ANY):
        words.append("unbound")
    elif (cpus, memory) == (ALL, OWN):
        words.append("all nodes, each on its own memory")
    elif cpus == memory and cpus is not None:
        words.append(f"bound to {cpus}")
    elif cpus is not None and memory is not None:
        words.append(f"processors of {cpus}, memory of {memory}")
    return ", ".join(filter(None, words))


BENCHMARK = spec.Benchmark(
    name="numa",
    version=1,
    title="memory by NUMA node, bound and unbound, and which binding to use",
    order=35,
    module="trainrig.measure.numa",
    role=spec.Role.NUMA,
    example=numa_case("copy", 4096, "node 0", "node 0"),
    fields={
        "direction": DIRECTIONS,
        "bytes": MAX_BYTES,
        "cpus": (),
        "memory": (),
        "cache": ("cold",),
    },
    check_more=_check_more,
    work=_work,
    metrics=lambda case: (spec.byte_rate(_work(case)),),
    memory=lambda case: 2 * spec.size_in(case, "bytes"),
    options={"size": "bytes of an array: 256MiB", "device": ""},
    label=_label,
    sizes=frozenset(["bytes"]),
    nature=lambda case: tuple(case.get(name) for name in ("direction", "cpus", "memory")),
)
