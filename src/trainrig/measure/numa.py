"""The copies that `benchmarks.numa` times, by threads that are bound, on memory of known nodes.

Each thread sets its own affinity.  Memory is fresh from the kernel (a block that was used before
lies where it was first touched) and is touched by threads on the processors of its node; where
/proc/self/numa_maps says that it came to lie elsewhere, the case is skipped with that reason.
Sources hold numbers of place and round, targets NaN before a check; all that arrived is compared.
"""

from __future__ import annotations

import bisect
import itertools
import mmap
import os
import re
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainrig.benchmarks.numa import ALL, ANY, TURNS, node_in
from trainrig.benchmarks.spec import size_in
from trainrig.machine.cgroup import cpu_quota
from trainrig.machine.numa_nodes import NodeCpus, node_cpus
from trainrig.machine.snapshot import Missing
from trainrig.machine.system_access import Host, ThisMachine
from trainrig.measure import buffers
from trainrig.measure.timing import Prepared, Unsupported
from trainrig.record import Case

if TYPE_CHECKING:
    import numpy as np

_PERIOD = 8191
"""Numbers repeat after so many elements: exact in fp64, and no part of a page."""
_PIECE = 4096
_WHOLE = 0.9
"""Share of the pages that must lie on the node; the kernel may have moved a few."""
_MAPS = "/proc/self/numa_maps"


def prepare(case: Case, device: str) -> Prepared:
    """Prepare the threads and their memory; return the call to time and its check."""
    on_gpu = case["direction"] != "copy"
    if on_gpu != device.startswith("cuda"):
        raise Unsupported(f"{case['direction']} is not for {device}")
    host = ThisMachine()
    # This process may have been bound to the node beside its GPU; the program itself was not.
    usable = os.sched_getaffinity(os.getppid())
    nodes = node_cpus(host, usable)
    if isinstance(nodes, Missing):
        raise Unsupported(nodes.reason)
    runs, touches = _threads(case, nodes, frozenset(usable), host)
    block = _Block(size_in(case, "bytes"), 1 if on_gpu else 2, len(runs))
    if case["cpus"] == ANY:  # one thread touches all of it, wherever it runs

        def fill_all(_: int) -> None:
            for number in range(len(runs)):
                block.fill_first(number)

        _in_threads(touches[:1], fill_all)
    else:
        _in_threads(touches, block.fill_first)
        numbers = {cpus: node for node, cpus in nodes.items()}
        _check_place(host, block, [numbers[cpus] for cpus in touches])
    return _gpu_copy(case, device, block) if on_gpu else _host_copy(block, runs)


def _threads(
    case: Case, nodes: NodeCpus, usable: frozenset[int], host: Host
) -> tuple[list[frozenset[int]], list[frozenset[int]]]:
    """Return the processors of each copying thread and of each thread that first touches memory."""
    cpu_node, memory_node = node_in(case["cpus"]), node_in(case["memory"])
    for node in (cpu_node, memory_node):
        if node is not None and node not in nodes:
            raise Unsupported(f"node {node} has no processor that this process may use")
    thread_cpus = usable if cpu_node is None else nodes[cpu_node]
    if case["direction"] != "copy":
        return [thread_cpus], [thread_cpus]
    runs = [thread_cpus for _ in thread_cpus]
    if case["cpus"] == ALL:
        runs = [node_cpus for node_cpus in nodes.values() for _ in node_cpus]
    touches = runs if memory_node is None else [nodes[memory_node]] * len(runs)
    # More threads than a quota allows only wait for each other.
    quota = cpu_quota(host)
    max_threads = max(1, int(quota)) if isinstance(quota, float) else len(runs)
    step = max(1, -(-len(runs) // max_threads))
    return runs[::step], touches[::step]


class _Block:
    """Fresh memory: a part for each thread, with one or two arrays of equal length in it."""

    def __init__(self, size: int, arrays: int, count: int) -> None:
        import numpy as np

        ends = [size // _PIECE * number // count * _PIECE for number in range(count + 1)]
        self.lengths = [last - first for first, last in itertools.pairwise(ends)]
        maps = [mmap.mmap(-1, max(arrays * length, _PIECE)) for length in self.lengths]
        views: list[np.ndarray[Any, Any]] = [
            np.frombuffer(mapping, dtype=np.float64) for mapping in maps
        ]
        pairs = [(view, length // 8) for view, length in zip(views, self.lengths, strict=True)]
        self.sources = [view[:length] for view, length in pairs]
        self.targets = [view[length : 2 * length] for view, length in pairs] if arrays == 2 else []
        self.arrays = arrays
        self.round = 0

    def fill_first(self, number: int) -> None:
        """Touch a part."""
        import numpy as np

        self.sources[number][:] = 0.0
        if self.targets:
            self.targets[number][:] = np.nan

    def renew(self, number: int) -> None:
        """Write new numbers to the source and wrong ones to the target."""
        import numpy as np

        source = self.sources[number]
        pattern = np.arange(_PERIOD, dtype=np.float64) + (self.round + number)
        whole_periods = source.size // _PERIOD * _PERIOD
        source[:whole_periods].reshape(-1, _PERIOD)[:] = pattern
        source[whole_periods:] = pattern[: source.size - whole_periods]
        if self.targets:
            self.targets[number][:] = np.nan

    def wrong(self, number: int) -> int:
        """Elements of a part that did not arrive."""
        return int((self.targets[number] != self.sources[number]).sum())


def _in_threads(cpus: Sequence[Collection[int]], work: Callable[[int], object]) -> None:
    """Call ``work(number)`` on each of these processors in turn; raise the first error."""
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            os.sched_setaffinity(0, cpus[number])  # of this thread alone
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            failures.append(error)

    for number in range(len(cpus)):
        thread = threading.Thread(target=run, args=(number,))
        thread.start()
        thread.join()
        if failures:
            raise failures[0]


def _check_place(host: Host, block: _Block, nodes: Sequence[int]) -> None:
    """Raise Unsupported where the kernel put a part elsewhere than on its node, as when it is full.

    A kernel that does not say where memory lies is taken at its word.
    """
    text = host.read(_MAPS)
    if isinstance(text, Missing):
        return
    pages_on_node = pages_by_node(text, [source.ctypes.data for source in block.sources])
    expected: dict[int, int] = dict.fromkeys(nodes, 0)
    for node, length in zip(nodes, block.lengths, strict=True):
        expected[node] += block.arrays * length // mmap.PAGESIZE
    for node, pages in expected.items():
        if pages_on_node and pages_on_node.get(node, 0) < _WHOLE * pages:
            actual_nodes = ", ".join(f"node {number}" for number in sorted(pages_on_node))
            raise Unsupported(
                f"memory that node {node} touched first lies on {actual_nodes}: the node is full, "
                "or a policy (numactl, a cpuset) binds this process"
            )


def pages_by_node(maps: str, addresses: Sequence[int]) -> dict[int, int]:
    """Pages of the mappings that hold these addresses, by node, of /proc/self/numa_maps.

    Neighbours may be joined in one line; the mapping of an address is the last that begins before.
    """
    lines = sorted((int(line.split()[0], 16), line) for line in maps.splitlines() if line.strip())
    starts = [start for start, _ in lines]
    mapping_indices = {bisect.bisect_right(starts, address) - 1 for address in addresses}
    total_by_node: dict[int, int] = {}
    for number in mapping_indices - {-1}:
        for node, pages in re.findall(r" N(\d+)=(\d+)", lines[number][1]):
            total_by_node[int(node)] = total_by_node.get(int(node), 0) + int(pages)
    return total_by_node


# ---- on the host


@dataclass(slots=True)
class _Orders:
    """Barrier and stop flag of a case's threads, which hold no other reference to the case."""

    gate: threading.Barrier
    is_over: bool = False
    failures: list[BaseException] = field(default_factory=list)

    def stop(self) -> None:
        """Let the threads end."""
        self.is_over = True
        self.gate.abort()


class _Team:
    """A thread on each of the given processors; a call has each of them do its work once."""

    def __init__(self, cpus: Sequence[frozenset[int]], work: Callable[[int], object]) -> None:
        self._orders = orders = _Orders(threading.Barrier(len(cpus) + 1))

        def serve(number: int) -> None:
            try:
                os.sched_setaffinity(0, cpus[number])
                while True:
                    orders.gate.wait()
                    work(number)
                    orders.gate.wait()
            except threading.BrokenBarrierError:
                return
            except BaseException as error:  # noqa: BLE001 - raised by `call`
                orders.failures.append(error)
                orders.gate.abort()

        for number in range(len(cpus)):
            threading.Thread(target=serve, args=(number,), daemon=True).start()
        weakref.finalize(self, orders.stop)

    def call(self) -> None:
        """Run one copy on all threads and wait for them."""
        try:
            self._orders.gate.wait()
            self._orders.gate.wait()
        except threading.BrokenBarrierError:
            raise self._orders.failures[0] from None


def _host_copy(block: _Block, runs: Sequence[frozenset[int]]) -> Prepared:
    import numpy as np

    def copy(number: int) -> None:
        source, target = block.sources[number], block.targets[number]
        for _ in range(TURNS):
            np.copyto(target, source)

    team = _Team(runs, copy)
    every = range(len(runs))

    def wrong() -> str | None:
        block.round += 1
        for number in every:
            block.renew(number)
        team.call()
        bad = sum(map(block.wrong, every))
        return f"{bad} elements of the copy are not those of its source" if bad else None

    conditions: Case = {"threads": len(runs), **buffers.conditions({"cache": "cold"}, "cpu")}
    return Prepared(call=team.call, wrong=wrong, conditions=conditions)


# ---- to and from a GPU


def _gpu_copy(case: Case, device: str, block: _Block) -> Prepared:
    """Return a copy from registered host memory to a GPU.  Unverified on hardware."""
    import numpy as np
    import torch

    (source,) = block.sources
    on_host = torch.from_numpy(source)
    runtime: Any = torch.cuda.cudart()
    if int(runtime.cudaHostRegister(on_host.data_ptr(), source.nbytes, 0)):
        raise Unsupported("CUDA does not register this memory")
    on_gpu = torch.empty_like(on_host, device=device)
    weakref.finalize(on_gpu, runtime.cudaHostUnregister, on_host.data_ptr())
    target, origin = (on_gpu, on_host) if case["direction"] == "h2d" else (on_host, on_gpu)

    def call() -> None:
        target.copy_(origin, non_blocking=True)

    def wrong() -> str | None:
        block.round += 1
        block.renew(0)
        expected = source.copy()
        if target is on_host:
            on_gpu.copy_(on_host)
            source.fill(np.nan)
        else:
            on_gpu.fill_(torch.nan)
        torch.cuda.synchronize(device)
        call()
        torch.cuda.synchronize(device)
        bad = int((target.cpu().numpy() != expected).sum())
        return f"{bad} elements arrived wrong" if bad else None

    return Prepared(call=call, wrong=wrong)
