"""The search for the fastest shape, on made-up surfaces: what it finds, costs and keeps."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import report_views as made
from runner_fakes import HOST, FakeWorker, gpu, quiet
from trainrig.benchmarks.matmul import shape
from trainrig.errors import UnavailableError, UsageError
from trainrig.machine import inspect
from trainrig.process.worker import Reply, Request
from trainrig.record import Kind, Record, Status
from trainrig.runner import matmul_search
from trainrig.runner.bench import BenchRequest, bench
from trainrig.runner.matmul_search import FastestShape, Shape, find_fastest, flops
from trainrig.runner.progress import null_progress
from trainrig.runner.session import Scene
from trainrig.store import RunWriter, create_run, read_run

WIDE, DEEP = matmul_search._USUAL_SIZES[True]
SHAPES = tuple(product(WIDE, DEEP, WIDE))
GRID = tuple(product(range(512, 16384 + 1, 512), repeat=3))
Rate = Callable[[Shape], float]


def waves(num_processors: int = 132, tile: tuple[int, int] = (128, 256)) -> Rate:
    """A GPU: tiles fill its processors in waves, a short k does not pay, a large one throttles."""

    def rate(mkn: Shape) -> float:
        m, k, n = mkn
        tiles = math.ceil(m / tile[0]) * math.ceil(n / tile[1])
        full = tiles / (math.ceil(tiles / num_processors) * num_processors)
        throttled = 1.0 - 0.06 * min(1.0, flops(mkn) / 6e12)
        compute = flops(mkn) / (8e14 * full * k / (k + 600) * throttled)
        moved = 2 * (m * k + k * n + m * n) / 4e12
        return flops(mkn) / (max(compute, moved) + 6e-6)

    return rate


def hump(peak_at: Shape) -> Rate:
    """One smooth summit."""

    def rate(mkn: Shape) -> float:
        away = (math.log2(a / b) for a, b in zip(mkn, peak_at, strict=True))
        return 1e12 * math.exp(-0.1 * sum(x * x for x in away))

    return rate


class Machine:
    """Measures shapes of a surface; a look costs 30 ms and eight calls."""

    def __init__(self, rate: Rate, noise: float = 0.0) -> None:
        self.rate = rate
        self.noise = noise
        self.random = random.Random(1)
        self.seen: list[Shape] = []
        self.now = 0.0

    def cost(self, mkn: Shape) -> float:
        return 0.03 + 8 * flops(mkn) / self.rate(mkn)

    def look(self, mkn: Shape) -> float:
        self.seen.append(mkn)
        self.now += self.cost(mkn)
        return self.rate(mkn) * math.exp(-abs(self.random.gauss(0.0, self.noise)))

    def search(self, shapes: tuple[Shape, ...] = SHAPES, seconds: float = 1e9) -> FastestShape:
        found = find_fastest(shapes, self.look, seconds=seconds, clock=lambda: self.now)
        assert found is not None
        assert found.seconds == self.now
        return found


@pytest.mark.parametrize(
    "rate",
    [
        waves(),
        waves(132, (128, 128)),
        waves(114),
        waves(108, (128, 128)),
        waves(128),
        waves(84, (128, 128)),
        waves(72),
        waves(148, (256, 256)),
        waves(228, (256, 256)),
        waves(304, (256, 256)),
        waves(170, (128, 128)),
        waves(46, (128, 128)),
    ],
)
def test_the_written_list_comes_near_the_best_of_a_fine_grid(rate: Rate) -> None:
    assert 40 <= len(SHAPES) <= 64
    assert max(map(rate, SHAPES)) >= 0.97 * max(map(rate, GRID))


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_finds_the_fastest_of_the_list(noise: float) -> None:
    machine = Machine(waves(), noise)
    found = machine.search()
    assert machine.rate(found.shape) >= (1.0 - noise) * max(map(machine.rate, SHAPES))
    assert found.num_measured == len(set(machine.seen)) == len(SHAPES)


def test_keeps_to_its_seconds_the_cheapest_first() -> None:
    machine = Machine(waves())
    found = machine.search(seconds=1.5)
    # The finals measure four shapes once, whatever is left.
    assert found.seconds <= 1.5 + 4 * max(map(machine.cost, machine.seen))
    assert 5 < found.num_measured < len(SHAPES)
    assert machine.seen[: found.num_measured] == sorted(SHAPES, key=flops)[: found.num_measured]


def test_one_lucky_look_does_not_win() -> None:
    """The finals rank by their own measurements, not by the first sight of a shape."""
    true, lucky = hump((8192, 8192, 8192)), (4096, 4096, 4096)
    looks: Counter[Shape] = Counter()

    def look(mkn: Shape) -> float:
        looks[mkn] += 1
        return true(mkn) * (3.0 if mkn == lucky and looks[mkn] == 1 else 1.0)

    found = find_fastest(SHAPES, look, seconds=1e9)
    assert found is not None
    assert looks[lucky] > 1  # it came to the finals
    assert found.shape == (8192, 8192, 8192)


def test_finalists_are_measured_in_turn() -> None:
    machine = Machine(waves())
    machine.search()
    last = machine.seen[-12:]
    assert last == last[:4] * 3
    assert len(set(last)) == 4


def test_shapes_that_do_not_run_are_passed_over() -> None:
    rate = hump((14336, 16384, 14336))
    found = find_fastest(SHAPES, lambda s: None if s[1] > 4096 else rate(s), seconds=1e9)
    assert found is not None and found.shape == (14336, 4096, 14336)
    assert found.num_measured == len(SHAPES)


def test_nothing_runs() -> None:
    seen: list[Shape] = []
    assert find_fastest(SHAPES, seen.append, seconds=5.0) is None  # type: ignore[arg-type]
    assert len(seen) == 1
    assert find_fastest((), lambda _: 1.0, seconds=5.0) is None


def test_a_list_of_one() -> None:
    found = Machine(waves()).search(((512, 256, 128),))
    assert found.shape == (512, 256, 128) and found.num_measured == 1


def test_a_processor_is_held_against_a_reference_and_not_a_claim(tmp_path: Path) -> None:
    found = FastestShape(shape=(512, 256, 128), rate=1e11, num_measured=3, seconds=2.0)
    claim = made.claimed("fp32", 2e11, HOST.name)
    with create_run(tmp_path, "bench", {}) as run:
        task = matmul_search._task(HOST, "fp32", found.shape, {"peak_of": 3})
        text = matmul_search._text_of(replace(scene(run), claims=(claim,)), task, found)
    assert "50 % of the reference" in text


def scene(run: RunWriter, seconds: float = 1000.0) -> Scene:
    return Scene(
        run=run,
        snapshot=inspect(),
        targets=(HOST,),
        environment="test",
        claims=(),
        deadline=matmul_search.time.monotonic() + seconds,
        watch=null_progress,
    )


def searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[str, Request], Reply]
) -> tuple[list[matmul_search.Block], list[Record]]:
    """What a search on a fake worker plans and leaves behind."""
    monkeypatch.setattr(
        matmul_search, "Worker", lambda device, log: FakeWorker(device, log, answer, [])
    )
    with create_run(tmp_path, "bench", {}) as run:
        blocks = matmul_search.plan_search(scene(run), (HOST,), wanted("256", "512", "1024"))
    return list(blocks), list(read_run(run.path).records)


def wanted(*sizes: str) -> BenchRequest:
    return BenchRequest(benchmark="matmul", dtypes=("fp32",), sizes=sizes, peak=True)


def answer_by(rate: Rate) -> Callable[[str, Request], Reply]:
    def answer(_: str, request: Request) -> Reply:
        mkn = shape(request.case)
        return quiet(flops(mkn) / rate(mkn))

    return answer


def test_every_look_leaves_a_marked_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,), records = searched(tmp_path, monkeypatch, answer_by(hump((512, 1024, 256))))
    (task,) = block.tasks
    assert shape(task.case) == (512, 1024, 256)
    assert (
        task.planned.notes["peak_of"] == 27
        and task.planned.notes["peak_axes"] == "m and n: 256 512 1024; k: 256 512 1024"
    )
    assert records and all(r.kind is Kind.MEASURED and r.samples for r in records)
    assert all(r.conditions["search"] is True and not r.is_point for r in records)
    measured = {tuple(r.case.items()) for r in records}
    assert len(measured) == task.planned.notes["peak_measured"]


def test_a_dtype_that_does_not_run_is_told_by_an_ordinary_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(_: str, request: Request) -> Reply:
        return Reply(status=Status.SKIPPED, reason="no such type here", started="x", duration=0.0)

    (block,), records = searched(tmp_path, monkeypatch, answer)
    assert [shape(task.case) for task in block.tasks] == [(256, 256, 256)]
    assert block.tasks[0].planned.required and not block.tasks[0].planned.notes
    assert len(records) == 1


def test_a_worker_that_does_not_come_up_costs_the_search_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dead(FakeWorker):
        def wait_ready(self, timeout: float = 1.0) -> dict[str, object]:
            raise UnavailableError("no torch")

    monkeypatch.setattr(
        matmul_search, "Worker", lambda device, log: Dead(device, log, answer_by(waves()), [])
    )
    with create_run(tmp_path, "bench", {}) as run:
        (block,) = matmul_search.plan_search(scene(run), (HOST,), wanted("256", "512"))
    assert [shape(task.case) for task in block.tasks] == [(256, 256, 256)]


def test_a_wrong_answer_in_the_search_becomes_a_failed_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = answer_by(hump((512, 512, 512)))

    def answer(device: str, request: Request) -> Reply:
        if shape(request.case) == (512, 512, 512):
            reason = "wrong answer after timing: off"
            return Reply(status=Status.FAILED, reason=reason, started="x", duration=0.1)
        return good(device, request)

    _, records = searched(tmp_path, monkeypatch, answer)
    (bad,) = [r for r in records if r.is_point]
    assert bad.status is Status.FAILED and (bad.reason or "").startswith("wrong answer")


def test_a_gpu_has_its_own_list_within_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        matmul_search, "Worker", lambda device, log: FakeWorker(device, log, answer_by(waves()), [])
    )
    request = BenchRequest(benchmark="matmul", dtypes=("fp16",), peak=True)
    with create_run(tmp_path, "bench", {}) as run:
        (block,) = matmul_search.plan_search(scene(run), (gpu(0, memory_bytes=2 << 30),), request)
    (task,) = block.tasks
    assert str(task.planned.notes["peak_axes"]).startswith("m and n: 4096 7168")
    looked_at = [shape(record.case) for record in read_run(run.path).records]
    assert (4096, 4096, 4096) in looked_at and (14336, 16384, 14336) not in looked_at


@pytest.mark.parametrize(
    ("request_", "budget", "words"),
    [
        (BenchRequest(benchmark="vector", peak=True), 60.0, "vector has no --peak"),
        (BenchRequest(benchmark="matmul", peak=True, ops=("add",)), 60.0, "no --op"),
        (BenchRequest(benchmark="matmul", peak=True, dtypes=("fp12",)), 60.0, "unknown --dtype"),
        (BenchRequest(benchmark="matmul", peak=True, sizes=("-4",)), 60.0, "not a size"),
        (BenchRequest(benchmark="matmul", peak=True), 6.0, "does not fit"),
    ],
)
def test_what_cannot_be_searched_is_said_before_a_run_is_made(
    request_: BenchRequest, budget: float, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        bench(request_, budget=budget, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
