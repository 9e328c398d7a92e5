"""Faults of ranks, planted in torch.distributed, below the check that is to find them.

Started in the place of ``trainrig.measure.collective``, with the fault's name before the folder:
``python -m trainrig.measure.collective_faults flip FOLDER``.  The rank's program runs as it is;
what it calls of torch.distributed does, in the last rank, what a sick machine would.  `trainrig
selftest` and the tests start it; nothing else does.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from trainrig.measure import collective
from trainrig.process.child import leave

WRONG = ("flip", "stale", "swapped", "warm")
"""The answer is wrong: a lowest bit; a part that was not written; parts in each other's place; a
bit that flips in the fiftieth call and later alone, as of a device that is hot."""
LOST = ("stop", "hang", "leave", "kill")
"""The last rank is stopped, does not come out of an operation, ends without a word or is killed, in
case 2."""
SLOW = "slow"
"""Fault: the last rank's messages arrive late, as over a slowed link."""
HEALTHY = "none"
NAMES = (*WRONG, *LOST, SLOW, HEALTHY)

_OPERATIONS = ("all_reduce", "broadcast")
_INTO = tuple(name for names in collective.TORCH_NAMES.values() for name in names)
_WARM = 50
_LATE = 0.02


def main() -> None:
    """Plant the fault that the command line names, and be a rank."""
    name = sys.argv.pop(1)
    if os.environ.get("RANK") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1):
        _plant(name)
    collective.main()


def _plant(name: str) -> None:
    import torch.distributed as dist

    if name in WRONG:
        for operation in (*_OPERATIONS, *_INTO):
            if hasattr(dist, operation):
                setattr(dist, operation, _spoiled(name, getattr(dist, operation)))
        dist.batch_isend_irecv = _received(name, dist.batch_isend_irecv)
    elif name in LOST:
        for operation in (*_OPERATIONS, *_INTO, "batch_isend_irecv"):
            if hasattr(dist, operation):
                setattr(dist, operation, _lost(name, getattr(dist, operation)))
    elif name == SLOW:
        dist.batch_isend_irecv = _delayed(dist.batch_isend_irecv)


def _spoiled(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an operation so that its result, its first tensor, is spoiled."""
    spoil = _spoiler(name)

    @functools.wraps(call)
    def run(result: Any, *args: Any, **kwargs: Any) -> Any:
        if "group" in kwargs or not result.is_floating_point():  # what ranks tell each other
            return call(result, *args, **kwargs)
        before = result.clone() if name == "stale" else None
        done = call(result, *args, **kwargs)
        spoil(result, before)
        return done

    return run


def _received(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a receive so that received tensors are spoiled on arrival."""
    import torch.distributed as dist

    spoil = _spoiler(name)

    def run(operations: Any) -> Any:
        targets = [tensor.tensor for tensor in operations if tensor.op is dist.irecv]
        before = [tensor.clone() for tensor in targets]
        for work in call(operations):
            work.wait()
        for tensor, old in zip(targets, before, strict=True):
            spoil(tensor, old)
        return []

    return run


def _spoiler(name: str) -> Callable[[Any, Any], None]:
    calls = 0

    def spoil(result: Any, before: Any) -> None:
        nonlocal calls
        calls += 1
        import torch

        middle = result.numel() // 2
        if name == "stale":
            result[middle:].copy_(before[middle:])
        elif name == "swapped":
            result.copy_(result.roll(1))
        elif name == "flip" or calls >= _WARM:
            result.view(torch.int32)[middle] ^= 1

    return spoil


def _lost(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    sizes: set[int] = set()

    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        is_case = "group" not in kwargs and (isinstance(first, list) or first.is_floating_point())
        if is_case:
            sizes.add(first[0].tensor.numel() if isinstance(first, list) else first.numel())
        if len(sizes) > 1:
            if name == "leave":
                leave(0)
            if name == "stop":
                signal.raise_signal(signal.SIGSTOP)
            if name == "kill":
                signal.raise_signal(signal.SIGKILL)
            time.sleep(3600.0)
        return call(*args, **kwargs)

    return run


def _delayed(call: Callable[..., Any]) -> Callable[..., Any]:
    import torch.distributed as dist

    def run(operations: Any) -> Any:
        if any(operation.op is dist.isend for operation in operations):
            time.sleep(_LATE)
        return call(operations)

    return run


if __name__ == "__main__":
    main()
