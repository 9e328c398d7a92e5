"""A collective as `trainrig bench collective` times it against a bare torch.distributed loop.

Two gloo ranks on this host take turns, batch by batch: ours is the benchmark's own operation and
clock (`measure.collective`), the peer meets at a barrier, calls torch.distributed's function as
often, and takes the mean of both ranks' seconds.

Target: within 5 % of the peer, the whole interval of the ratio of each operation and size.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from _shared import options, ratio_of, say_load, verdict

TARGET = 0.05
CASES = (("all_reduce", 1 << 16), ("all_reduce", 1 << 20), ("all_gather", 1 << 20))
CALLS = {1 << 16: 100, 1 << 20: 20}


def main() -> None:
    """Start two ranks, and print what they found."""
    parser = options(__doc__ or "")
    parser.add_argument("--rank", type=int, help="as this program starts itself")
    given = parser.parse_args()
    rounds = 4 if given.quick else 60
    if given.rank is not None:
        rank(given.rank, rounds)
        return
    say_load()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    env = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    words = [sys.executable, __file__, *(["--quick"] if given.quick else [])]
    ranks = [
        subprocess.Popen(
            [*words, "--rank", str(n)],
            env=env | {"RANK": str(n)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(2)
    ]
    said = [process.communicate(timeout=220)[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit("a rank failed")
    intervals = []
    for (op, size), (ours, theirs) in zip(CASES, json.loads(said[0]), strict=True):
        ratio, low, high = ratio_of(ours, theirs)
        intervals.append((low, high))
        print(
            f"ratio {ratio:.3f} of the bare loop's time over ours, {low:.3f} to {high:.3f}: "
            f"{op} of {size} bytes, ours {statistics.median(ours) * 1e6:.0f} µs, "
            f"bare {statistics.median(theirs) * 1e6:.0f} µs"
        )
    print(within(intervals))


def within(intervals: Sequence[tuple[float, float]]) -> str:
    """Met: every interval lies inside of the target; MISSED: one lies wholly outside."""
    least, most = 1.0 - TARGET, 1.0 + TARGET
    met = all(least <= low and high <= most for low, high in intervals)
    missed = any(high < least or most < low for low, high in intervals)
    return verdict(met, can_tell=met or missed)


def rank(number: int, rounds: int) -> None:
    """Both loops in turn; the first rank prints the seconds of a call of each."""
    import torch
    import torch.distributed as dist

    from trainrig.benchmarks.collective import collective_case
    from trainrig.measure.collective import AllRanks, CheckedCollective, GroupClock

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    host = dist.new_group(backend="gloo")
    group = AllRanks(torch=torch, dist=dist, host=host, rank=number, size=2, device="cpu")
    found = []
    for op, size in CASES:
        case, calls = collective_case(op, 2, size, "gloo"), CALLS[size]
        exchange = CheckedCollective(group, case)
        assert exchange.wrong() is None
        clock = GroupClock(group, lambda: None)
        bare = bare_call(torch, dist, op, size)
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(2 * rounds + 2):  # the first of each warms up
            taken = clock.time(exchange.call, calls) if turn % 2 else loop(dist, bare, calls)
            times[1 - turn % 2].append(taken / calls)
        assert exchange.wrong() is None
        found.append([own[1:] for own in times])
    if number == 0:
        print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def bare_call(torch: Any, dist: Any, op: str, size: int) -> Callable[[], object]:
    """torch.distributed's function by itself."""
    if op == "all_reduce":
        buffer = torch.ones(size // 4)
        return lambda: dist.all_reduce(buffer)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    target, source = torch.zeros(size // 4), torch.ones(size // 8)
    return lambda: gather(target, source)


def loop(dist: Any, call: Callable[[], object], calls: int) -> float:
    """Seconds of some calls, mean of the ranks."""
    import torch

    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    taken = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(taken)
    return float(taken) / 2.0


if __name__ == "__main__":
    main()
