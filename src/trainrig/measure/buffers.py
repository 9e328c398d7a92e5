"""Buffers of the memory-bound benchmarks: how many make data cold, what fills and checks them.

Cold means that a call finds none of its data in any cache.  Flushing between
calls would have to be timed or subtracted, so the calls rotate instead through
sets of buffers whose total exceeds four times the last-level cache: by the time
a set comes round again, three caches' worth of other data has passed.  A single
set that is larger than that is cold by itself.

Sources: STREAM (McCalpin) asks for arrays of four times the sum of all
last-level caches; cache sizes come from /sys/devices/system/cpu (the kernel's
sysfs-devices-system-cpu) and from torch's device properties (L2_cache_size).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import cycle
from typing import TYPE_CHECKING, Any

from trainrig.benchmarks.spec import CHECK_ELEMENTS
from trainrig.machine.cgroup import memory_limit
from trainrig.machine.memory import meminfo_sizes
from trainrig.machine.parse import integer, size_bytes
from trainrig.machine.snapshot import Missing, value_or
from trainrig.machine.system_access import Host, ThisMachine
from trainrig.measure.timing import Unsupported
from trainrig.record import Case
from trainrig.units import format_memory

if TYPE_CHECKING:
    import torch

COLD_FACTOR = 4

# Half of what is free: the answer's check and the rest of the machine need room too.
_MEMORY_SHARE = 0.5
# Beyond this many sets the tensors' own headers, cold as well, would be what is measured.
_MAX_SETS = 8192
# Rows start on 256 bytes, as separate allocations would; also what vector loads want.
_ROW_BYTES = 256
# AMD's Infinity Cache lies behind the L2 and torch does not report it: 256 MiB on the MI300.
_LARGE_GPU_CACHE_BYTES = 256 << 20
# Of a processor whose caches the system does not list (gVisor, many Arm guests), for a package.
_PACKAGE_CACHE_BYTES = 64 << 20

# Elements of the random block that is repeated to fill a buffer: odd, so that no two rows agree.
BLOCK_ELEMENTS = (1 << 18) - 5
# A buffer is filled by copies of so many elements.
_FILL_ELEMENTS = 1 << 22
# Elements of a row that are looked at first for what was written.
_SAMPLED_ELEMENTS = 64


def num_sets(case: Case, set_bytes: int, device: str, most_bytes: int | None = None) -> int:
    """Return the number of buffer sets of ``set_bytes`` that calls rotate through; 1 if hot.

    ``most_bytes``: no more sets than fit in so much.  Raises Unsupported where the data cannot be
    made cold.
    """
    if case["cache"] == "hot":
        return 1
    llc = value_or(last_level_cache_bytes(device), _assumed_cache_bytes(device))
    needed = COLD_FACTOR * llc if most_bytes is None else min(COLD_FACTOR * llc, most_bytes)
    count = max(1, -(-needed // set_bytes))
    room = int(_free_bytes(device) * _MEMORY_SHARE)
    if count * set_bytes > room:
        raise Unsupported(
            f"cold data needs {format_memory(count * set_bytes)} (four times the last-level "
            f"cache of {format_memory(llc)}); half of the free memory is {format_memory(room)}"
        )
    if count > _MAX_SETS:
        raise Unsupported(
            f"{format_memory(set_bytes)} a call would need {count} buffers to be cold; "
            f"their headers would cost more than their data (at most {_MAX_SETS})"
        )
    return count


def conditions(case: Case, device: str) -> Case:
    """Return the assumed cache size in bytes for a record of cold data, where none is listed."""
    if case["cache"] == "hot" or not isinstance(last_level_cache_bytes(device), Missing):
        return {}
    return {"assumed_cache_bytes": _assumed_cache_bytes(device)}


def _assumed_cache_bytes(device: str) -> int:
    if device != "cpu":
        return _LARGE_GPU_CACHE_BYTES
    cpuinfo = value_or(ThisMachine().read("/proc/cpuinfo"), "")
    packages = {line for line in cpuinfo.splitlines() if line.startswith("physical id")}
    return _PACKAGE_CACHE_BYTES * max(1, len(packages))


def rotation(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """Return one call that makes the calls in turn; a single call is returned as it is."""
    if len(calls) == 1:
        return calls[0]
    turn = cycle(calls)

    def call_next() -> object:
        return next(turn)()

    return call_next


def last_level_cache_bytes(device: str) -> int | Missing:
    """Return the total size of a torch device's last-level caches in bytes."""
    if device == "cpu":
        return _cpu_cache_bytes()
    import torch

    reported_bytes = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
    if torch.version.hip:
        return max(reported_bytes, _LARGE_GPU_CACHE_BYTES)
    return (
        reported_bytes
        if reported_bytes > 0
        else Missing("torch does not report the GPU's L2 cache")
    )


@cache
def _cpu_cache_bytes() -> int | Missing:
    return cpu_cache_bytes(ThisMachine())


def cpu_cache_bytes(machine: Host) -> int | Missing:
    """Return the bytes of the highest level of data cache in sysfs, summed over its instances."""
    root = "/sys/devices/system/cpu"
    names = machine.names(root)
    if isinstance(names, Missing):
        return names
    instances: dict[tuple[int, str], int] = {}
    for cpu in names:
        if cpu.startswith("cpu") and cpu[3:].isdigit():
            instances.update(_caches_of(machine, f"{root}/{cpu}/cache"))
    if not instances:
        return Missing("sysfs lists no CPU caches")
    highest = max(level for level, _ in instances)
    return sum(size for (level, _), size in instances.items() if level == highest)


def _caches_of(host: Host, folder: str) -> dict[tuple[int, str], int]:
    """Return the data caches of one CPU: (level, list of CPUs that share it) → bytes."""
    bytes_by_cache: dict[tuple[int, str], int] = {}
    names = host.names(folder)
    for name in () if isinstance(names, Missing) else names:
        if not name.startswith("index") or host.read(f"{folder}/{name}/type") == "Instruction":
            continue
        level = integer(host.read(f"{folder}/{name}/level"), "level")
        size = size_bytes(host.read(f"{folder}/{name}/size"), "size")
        shared = host.read(f"{folder}/{name}/shared_cpu_list")
        if isinstance(level, int) and isinstance(size, int) and size > 0:
            bytes_by_cache[level, folder if isinstance(shared, Missing) else shared] = size
    return bytes_by_cache


def _free_bytes(device: str) -> int:
    """Return the bytes that can be allocated on the GPU, or on the host within its cgroup."""
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    host = ThisMachine()
    sizes = meminfo_sizes(host.read("/proc/meminfo"))
    free = 0 if isinstance(sizes, Missing) else sizes.get("MemAvailable", 0)
    limit = memory_limit(host)
    return min(free, limit) if isinstance(limit, int) else free


def rows(
    torch: Any, count: int, num_elements: int, dtype: Any, device: str, *, pinned: bool = False
) -> torch.Tensor:
    """Return (count, num_elements), each row on its own 256-byte boundary, all pages touched.

    The first touch goes through torch's own parallel loop, so that on a machine
    with several memory nodes each thread's share lies near it.
    """
    step = max(1, _ROW_BYTES // dtype.itemsize)
    stride = -(-num_elements // step) * step
    options = {"dtype": dtype, "device": device, "pin_memory": pinned}
    return torch.empty(count, stride, **options).zero_()[:, :num_elements]


def fill(target: torch.Tensor, block: torch.Tensor) -> None:
    """Repeat ``block`` over ``target`` (count, n), row after row, without a break at row ends.

    Copies are long, because each waits once for all threads of torch: beside a busy neighbour
    a thousand short ones take seconds.
    """
    period = block.numel()
    longest = min(target.shape[1], max(_FILL_ELEMENTS, period))
    repeated = block.repeat(-(-longest // period) + 1)
    offset = 0
    for row in target:
        done = 0
        while done < row.numel():
            size = min(row.numel() - done, longest)
            row[done : done + size].copy_(repeated[offset : offset + size])
            done += size
            offset = (offset + size) % period


def written_rows(target: torch.Tensor) -> list[int]:
    """Return the rows of a poisoned ``target`` (count, n) that any call has written to since.

    Most rows show it in a few elements; only of the others is every element looked at.
    """
    sample = target[:, :: -(-target.shape[1] // _SAMPLED_ELEMENTS)]
    is_written = (~sample.isnan().all(dim=1)).tolist()
    return [
        row
        for row, is_shown in enumerate(is_written)
        if is_shown or not bool(target[row].isnan().all())
    ]


def pieces(shape: tuple[int, int]) -> Iterator[slice]:
    """Column slices that a check of (count, n) looks at: all, or a stride and the last column.

    The stride starts at the first column and is odd, so that it meets every
    lane of a vector unit and every element of a tile.
    """
    count, n = shape
    step = -(-count * n // CHECK_ELEMENTS)
    if step > 1:
        yield slice(0, None, step + 1 - step % 2)
        yield slice(n - 1, n)
    else:
        yield slice(0, n)
