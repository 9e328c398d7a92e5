"""copy: each direction's answer, planted faults, STREAM's counting; buffers and cache sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from trainrig.benchmarks.copy import BENCHMARK
from trainrig.errors import UsageError
from trainrig.machine.snapshot import Missing
from trainrig.measure import buffers, copy
from trainrig.measure.timing import Unsupported
from trainrig.record import Case


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """A team of threads waits for its last member, which a busy test machine makes slow."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A last-level cache of 64 KiB, so that cold data is small."""
    monkeypatch.setattr(buffers, "last_level_cache_bytes", lambda device: 65536)


def case(direction: str = "copy", size: int = 80_000, memory: str = "host") -> Case:
    return {"direction": direction, "bytes": size, "memory": memory, "cache": "cold"}


@pytest.mark.parametrize("direction", copy.HOST_LOOPS)
@pytest.mark.parametrize("size", [8, 64, 4096, 80_000, 1 << 20])
def test_right_answers_raise_no_alarm(direction: str, size: int) -> None:
    if size == 8:
        with pytest.raises(Unsupported, match="headers"):
            copy.prepare(case(direction, size), "cpu")
        return
    prepared = copy.prepare(case(direction, size), "cpu")
    for _ in range(3):
        assert prepared.wrong() is None
        for _ in range(5):
            prepared.call()
    assert prepared.wrong() is None


class Fault:
    """Spoils what an operation of torch writes, when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, direction: str) -> None:
        self.on = False
        owner, name = {
            "read": (torch, "sum"),
            "write": (torch.Tensor, "fill_"),
            "copy": (torch.Tensor, "copy_"),
            "triad": (torch, "add"),
        }[direction]
        self._real = getattr(owner, name)

        def spoiled(*given: Any, **named: Any) -> Any:
            result = self._real(*given, **named)
            if self.on:
                result.view(-1)[-1] += 1.0
            return result

        monkeypatch.setattr(owner, name, spoiled)


@pytest.mark.parametrize("direction", copy.HOST_LOOPS)
def test_one_wrong_element_while_timing_is_seen(
    monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    fault = Fault(monkeypatch, direction)
    prepared = copy.prepare(case(direction), "cpu")
    assert prepared.wrong() is None
    fault.on = True
    prepared.call()
    fault.on = False
    words = {
        "read": "the sum of what was read is",
        "write": "1 elements of the written array",
        "copy": "1 of 10000 elements arrived wrong",
        "triad": "1 of 10000 elements arrived wrong",
    }
    assert words[direction] in str(prepared.wrong())


@pytest.mark.parametrize("direction", ["read", "copy", "triad"])
def test_an_operation_that_does_nothing_is_seen(
    monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    prepared = copy.prepare(case(direction), "cpu")
    assert prepared.wrong() is None
    owner, name = {
        "read": (torch, "sum"),
        "copy": (torch.Tensor, "copy_"),
        "triad": (torch, "add"),
    }[direction]
    monkeypatch.setattr(owner, name, lambda *given, **named: None)
    assert prepared.wrong() is not None


def test_a_write_of_the_value_before_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = copy.prepare(case("write"), "cpu")
    assert prepared.wrong() is None
    fill = torch.Tensor.fill_
    monkeypatch.setattr(torch.Tensor, "fill_", lambda array, value: fill(array, value - 1.0))
    prepared.call()
    monkeypatch.undo()
    assert "are not what was written" in str(prepared.wrong())


def test_the_exact_sum_needs_no_array() -> None:
    block = torch.arange(5.0).double()
    assert [copy._block_sum(block, n) for n in (0, 1, 5, 7, 12)] == [0, 0, 10, 11, 21]


def test_a_large_copy_is_checked_to_its_last_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "CHECK_ELEMENTS", 100)
    source = torch.arange(1001.0).double()
    target = source.clone()
    assert copy.wrong_copy(target, [source]) is None
    target[-1] = 0.0
    assert copy.wrong_copy(target, [source]) == "1 of 1001 elements arrived wrong"


@pytest.mark.parametrize(
    ("direction", "memory", "arrays"),
    [
        ("h2d", "pinned", 1),
        ("d2h", "pageable", 1),
        ("d2d", "device", 2),
        ("read", "host", 1),
        ("write", "host", 1),
        ("copy", "host", 2),
        ("triad", "host", 3),
    ],
)
def test_bytes_are_counted_as_stream_does(direction: str, memory: str, arrays: int) -> None:
    whole = case(direction, 8000, memory)
    BENCHMARK.check(whole)
    (metric,) = BENCHMARK.metrics(whole)
    assert (metric.name, metric.unit, metric.amount) == ("byte_rate", "B/s", arrays * 8000)
    assert BENCHMARK.memory(whole) >= arrays * 8000


@pytest.mark.parametrize("direction", ["h2d", "d2h", "d2d"])
def test_links_need_a_gpu(direction: str) -> None:
    memory = "device" if direction == "d2d" else "pinned"
    with pytest.raises(Unsupported, match="is for a GPU, not for cpu"):
        copy.prepare(case(direction, memory=memory), "cpu")


def test_host_loops_are_not_a_gpus() -> None:
    with pytest.raises(Unsupported, match="is for the host, not for cuda:0"):
        copy.prepare(case("triad"), "cuda:0")


@pytest.mark.parametrize(
    "wrong",
    [
        {"direction": "sideways"},
        {"bytes": 0},
        {"bytes": 9},
        {"bytes": 8.0},
        {"bytes": 1 << 37},
        {"memory": "pinned"},
        {"cache": "hot"},
        {"cache": None},
        {"m": 3},
    ],
)
def test_cases_that_are_none(wrong: dict[str, Any]) -> None:
    BENCHMARK.check(case())
    with pytest.raises(UsageError):
        BENCHMARK.check({**case(), **wrong})


@pytest.mark.gpu
@pytest.mark.parametrize(("direction", "memory"), [
    ("h2d", "pinned"), ("h2d", "pageable"), ("d2h", "pinned"), ("d2h", "pageable"),
    ("d2d", "device"),
])  # fmt: skip
def test_links_arrive_whole(direction: str, memory: str) -> None:
    prepared = copy.prepare(case(direction, 1 << 20, memory), "cuda:0")
    assert prepared.wrong() is None
    for _ in range(5):
        prepared.call()
    assert prepared.wrong() is None


# --- buffers ---


def test_filling_leaves_no_break_at_row_ends() -> None:
    target = buffers.rows(torch, 3, 7, torch.float32, "cpu")
    buffers.fill(target, torch.arange(5.0))
    flat = [float(i % 5) for i in range(21)]
    assert [x for row in target.tolist() for x in row] == flat


@pytest.mark.parametrize("n", [1, 63, 64, 65])
def test_rows_start_on_their_boundary(n: int) -> None:
    target = buffers.rows(torch, 3, n, torch.float32, "cpu")
    assert target.shape == (3, n)
    assert target.stride(0) % 64 == 0
    assert float(target.abs().sum()) == 0.0


@pytest.mark.parametrize(
    ("shape", "limit"), [((1, 10), 100), ((1, 1000), 100), ((7, 1000), 100), ((300, 2), 100)]
)
def test_a_sample_holds_both_ends(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], limit: int
) -> None:
    monkeypatch.setattr(buffers, "CHECK_ELEMENTS", limit)
    columns = [i for piece in buffers.pieces(shape) for i in range(*piece.indices(shape[1]))]
    assert {0, shape[1] - 1} <= set(columns)
    assert len(columns) <= max(limit / shape[0], 1) + 2


class Files:
    """A host that is nothing but files."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def read(self, path: str) -> str | Missing:
        return self._files.get(path, Missing("absent"))

    def names(self, path: str) -> tuple[str, ...] | Missing:
        found = {p[len(path) + 1 :].split("/")[0] for p in self._files if p.startswith(path + "/")}
        return tuple(sorted(found)) if found else Missing("absent")


def caches(cpu: int, *entries: tuple[int, str, str, str]) -> dict[str, str]:
    root = f"/sys/devices/system/cpu/cpu{cpu}/cache"
    return {
        f"{root}/index{i}/{name}": value
        for i, (level, kind, size, shared) in enumerate(entries)
        for name, value in (
            ("level", str(level)),
            ("type", kind),
            ("size", size),
            ("shared_cpu_list", shared),
        )
    }


def test_the_last_level_is_summed_over_its_instances() -> None:
    files = {"/sys/devices/system/cpu/cpufreq/x": "", "/sys/devices/system/cpu/online": "0-3"}
    for cpu in range(4):
        files |= caches(
            cpu,
            (1, "Data", "32K", str(cpu)),
            (1, "Instruction", "64K", str(cpu)),
            (2, "Unified", "512K", str(cpu)),
            (3, "Unified", "16384K", "0-1" if cpu < 2 else "2-3"),
        )
    assert buffers.cpu_cache_bytes(Files(files)) == 2 * 16384 * 1024


def test_without_a_third_level_the_second_is_the_last() -> None:
    files = caches(0, (1, "Data", "64K", "0"), (2, "Unified", "1M", "0-1"))
    files |= caches(1, (1, "Data", "64K", "1"), (2, "Unified", "1M", "0-1"))
    assert buffers.cpu_cache_bytes(Files(files)) == 1 << 20


def test_caches_that_cannot_be_read() -> None:
    assert isinstance(buffers.cpu_cache_bytes(Files({})), Missing)
    odd = caches(0, (3, "Unified", "large", "0"))
    assert isinstance(buffers.cpu_cache_bytes(Files(odd)), Missing)
