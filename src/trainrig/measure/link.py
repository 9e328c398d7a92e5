"""The copies between GPUs that `benchmarks.link` times, and the check of what arrived.

With peer access torch copies, which switches the access on; without it the driver's own copy from
device to device is called after the access was switched off: it goes through the host.  Sources
hold numbers that depend on place and round, targets NaN before each check.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from trainrig.benchmarks.link import size_of
from trainrig.measure.timing import Prepared, Unsupported
from trainrig.record import Case

_PERIOD = 8191
"""Numbers repeat after so many elements: exact in fp32, and no part of a page."""


def prepare(case: Case, device: str) -> Prepared:
    """Arrays on both GPUs, the copy to time, and its check."""
    import torch

    ends = [f"cuda:{case['from']}", f"cuda:{case['to']}"]
    count = torch.cuda.device_count()
    if device == "cpu" or max(int(end[5:]) for end in ends) >= count:
        raise Unsupported(f"a link needs both GPUs, and torch sees {count} here")
    if case["peer_access"] and not torch.cuda.can_device_access_peer(*ends):
        raise Unsupported(f"GPU {case['from']} has no peer access to GPU {case['to']}")
    directions = [ends, ends[::-1]] if case.get("ways") == 2 else [ends]
    copies = [_Copy(torch, first, second, case) for first, second in directions]
    if len(copies) == 1:
        call = copies[0].run
    else:
        call = _at_once(torch, copies)
    number = 0

    def wrong() -> str | None:
        nonlocal number
        number += 1
        for copy in copies:
            copy.fill(number)
        _wait(torch, ends)
        call()
        _wait(torch, ends)
        return next((error for copy in copies if (error := copy.wrong())), None)

    return Prepared(call=call, wrong=wrong)


def _wait(torch: Any, ends: list[str]) -> None:
    for end in ends:
        torch.cuda.synchronize(end)


class _Copy:
    """One direction: where from, where to."""

    def __init__(self, torch: Any, first: str, second: str, case: Case) -> None:
        self._torch, self.first = torch, first
        elements = size_of(case) // 4
        self.source = torch.zeros(elements, dtype=torch.float32, device=first)
        self.target = torch.zeros(elements, dtype=torch.float32, device=second)
        self._numbers = torch.arange(elements, device=first).remainder(_PERIOD).float()
        self.run: Callable[[], object] = self._by_torch
        if not case["peer_access"]:
            driver = runtime()
            switch_off(torch, driver, first, second)
            self.run = lambda: _by_driver(torch, driver, self)

    def _by_torch(self) -> None:
        self.target.copy_(self.source, non_blocking=True)

    def fill(self, number: int) -> None:
        """Other numbers in the source, nothing right in the target."""
        self.source.copy_(self._numbers).add_(float(number))
        self.target.fill_(self._torch.nan)

    def wrong(self) -> str | None:
        """Return how many received numbers differ from those sent, as a sentence, or None."""
        received = self.target.cpu()
        bad = int((received != self.source.cpu()).sum())
        return f"{bad} of {received.numel()} numbers arrived wrong" if bad else None


def _at_once(torch: Any, copies: list[_Copy]) -> Callable[[], None]:
    """Return a call copying in both directions at once, with streams that wait for each other."""
    first, second = copies
    own, other = (torch.cuda.current_stream(copy.first) for copy in copies)
    begin, end = torch.cuda.Event(), torch.cuda.Event()

    def run() -> None:
        begin.record(own)
        other.wait_event(begin)
        first.run()
        with torch.cuda.device(second.first):
            second.run()
        end.record(other)
        own.wait_event(end)

    return run


def runtime() -> Any:
    """CUDA's runtime library that torch has loaded, for what torch does not offer."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = [line.split(maxsplit=5)[-1].strip() for line in maps if "libcudart" in line]
    if not paths:
        raise Unsupported("CUDA's runtime library is not a file of its own in this torch")
    return ctypes.CDLL(paths[0])


_NOT_ENABLED = 705
"""cudaErrorPeerAccessNotEnabled: it was off already."""


def switch_off(torch: Any, driver: Any, first: str, second: str) -> None:
    """Switch off peer access between two GPUs, both ways.  Raises Unsupported if CUDA refuses."""
    for device, peer in ((first, second), (second, first)):
        with torch.cuda.device(device):
            code = driver.cudaDeviceDisablePeerAccess(int(peer[5:]))
            driver.cudaGetLastError()
        if code not in (0, _NOT_ENABLED):
            raise Unsupported(f"peer access of {device} to {peer} stays on: CUDA error {code}")


def _by_driver(torch: Any, driver: Any, copy: _Copy) -> None:
    source, target = copy.source, copy.target
    code = driver.cudaMemcpyPeerAsync(
        ctypes.c_void_p(target.data_ptr()),
        ctypes.c_int(target.device.index),
        ctypes.c_void_p(source.data_ptr()),
        ctypes.c_int(source.device.index),
        ctypes.c_size_t(source.numel() * 4),
        ctypes.c_void_p(torch.cuda.current_stream(copy.first).cuda_stream),
    )
    if code:
        raise RuntimeError(f"CUDA error {code} of cudaMemcpyPeerAsync")
