"""bench link on GPUs that are not there: copies land, and a copy that spoils them is seen."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch

from trainrig.benchmarks import link as benchmark
from trainrig.benchmarks.link import BENCHMARK, pair_case, pairs
from trainrig.errors import UsageError
from trainrig.measure import link
from trainrig.measure.timing import Unsupported


class Driver:
    """CUDA's runtime: copies where it is told; ``fault`` loses the last byte."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.switched_off: list[int] = []

    def cudaDeviceDisablePeerAccess(self, other: int) -> int:  # noqa: N802
        self.switched_off.append(other)
        return 1 if self.fault == "stays on" else 705

    def cudaGetLastError(self) -> int:  # noqa: N802
        return 0

    def cudaMemcpyPeerAsync(self, target, _to, source, _from, size, _stream) -> int:  # noqa: N802
        lost = 4 if self.fault == "short" else 0
        ctypes.memmove(target.value, source.value, size.value - lost)
        return 0


class Array(torch.Tensor):
    """A tensor that says which GPU it is on."""

    gpu = 0

    @property
    def device(self):
        return SimpleNamespace(index=self.gpu)


class Nothing:
    """A context, a stream or an event that does nothing."""

    cuda_stream = 0

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    record = wait_event = lambda *_: None


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_gpu(make):
        def made(*given, device="cpu", **more):
            array = make(*given, **more).as_subclass(Array)
            array.gpu = int(str(device).partition(":")[2] or 0)
            return array

        return made

    for name in ("zeros", "arange"):
        monkeypatch.setattr(torch, name, on_gpu(getattr(torch, name)))
    monkeypatch.setattr(benchmark, "SIZE", 1 << 14)
    values = {
        "device_count": lambda: 2,
        "can_device_access_peer": lambda *_: True,
        "synchronize": lambda *_: None,
        "current_stream": Nothing,
        "Event": Nothing,
        "device": Nothing,
    }
    for name, value in values.items():
        monkeypatch.setattr(torch.cuda, name, value)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("ways", [1, 2, None])
@pytest.mark.parametrize("peer_access", [True, False])
def test_what_is_sent_arrives(
    monkeypatch: pytest.MonkeyPatch, ways: int | None, *, peer_access: bool
) -> None:
    driver = Driver()
    monkeypatch.setattr(link, "runtime", lambda: driver)
    prepared = link.prepare(pair_case(0, 1, peer_access=peer_access, ways=ways), "cuda:0")
    assert prepared.wrong() is None
    prepared.call()
    assert prepared.wrong() is None
    assert bool(driver.switched_off) is not peer_access


@pytest.mark.usefixtures("two_gpus")
def test_a_copy_that_stops_short_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "runtime", lambda: Driver("short"))
    prepared = link.prepare(pair_case(0, 1, peer_access=False, ways=1), "cuda:0")
    assert prepared.wrong() == f"1 of {benchmark.SIZE // 4} numbers arrived wrong"


@pytest.mark.usefixtures("two_gpus")
def test_what_cannot_be_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    case = pair_case(0, 1, peer_access=True, ways=1)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: False)
    with pytest.raises(Unsupported, match="GPU 0 has no peer access to GPU 1"):
        link.prepare(case, "cuda:0")
    with pytest.raises(Unsupported, match="torch sees 2 here"):
        link.prepare(pair_case(0, 5, peer_access=False, ways=1), "cuda:0")
    monkeypatch.setattr(link, "runtime", lambda: Driver("stays on"))
    with pytest.raises(Unsupported, match="stays on"):
        link.prepare(pair_case(0, 1, peer_access=False, ways=1), "cuda:0")


def test_every_pair_is_planned_once_each_way() -> None:
    planned = [one.case for first in range(4) for one in pairs(first, 4)]
    for case in planned:
        BENCHMARK.check(case)
    one_way = [c for c in planned if c.get("ways") == 1 and c["peer_access"]]
    both = [c for c in planned if c.get("ways") == 2 and c["peer_access"]]
    assert (len(one_way), len(both), len(planned)) == (12, 6, 2 * (12 + 6 + 12))
    with pytest.raises(UsageError):
        BENCHMARK.check(pair_case(1, 1, peer_access=True, ways=1))
