"""Running a plan: two workers a point, the budget, repeats, faults; with workers that are fakes."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from runner_fakes import HOST, DeadWorker, FakeWorker, gpu, ids, quiet
from trainrig.analysis.judge import judge
from trainrig.benchmarks.copy import copy_case
from trainrig.benchmarks.matmul import BENCHMARK as MATMUL
from trainrig.benchmarks.matmul import matmul_case
from trainrig.benchmarks.spec import PlannedCase, benchmark
from trainrig.errors import UnavailableError
from trainrig.process.worker import Reply
from trainrig.record import Status
from trainrig.runner.attempts import Attempts
from trainrig.runner.executor import Executor
from trainrig.runner.plan import Block, Task, at_once, is_optional, qualify_plan, tasks_of
from trainrig.store import create_run, read_run

PRODUCT = PlannedCase(case=matmul_case("fp16", 512), step="fp16 matmul")


def task(size=256, target=HOST, *, benchmark="matmul", **changes):
    planned = PlannedCase(case=matmul_case("fp32", size), step="fp32 matmul")
    return Task(target=target, benchmark=benchmark, planned=replace(planned, **changes))


def block(*tasks):
    return Block(name="test", tasks=tasks)


class Bench:
    """An executor in a real run with fake workers."""

    def __init__(self, folder, answer, worker=FakeWorker, seconds=60.0, clock=time):
        self.run = create_run(folder, "test", {})
        self.asked = []
        self.made = []

        def make(device, log):
            self.made.append(worker(device, log, answer, self.asked))
            return self.made[-1]

        self.heard = []
        self.executor = Executor(
            self.run,
            environment="env",
            deadline=clock.monotonic() + seconds,
            watch=self.heard.append,
            make_worker=make,
        )

    def points(self):
        return [record for record in read_run(self.run.path).records if record.is_point]

    def attempts(self):
        return [record for record in read_run(self.run.path).records if record.attempt]


def by_flops(device, request):
    flops = benchmark(request.benchmark).work(request.case).flops
    return quiet(flops / 1e12)


def test_each_point_rests_on_two_fresh_workers(tmp_path):
    bench = Bench(tmp_path, by_flops)
    bench.executor.run_block(block(task(256), task(512)), 30.0)
    assert len(bench.made) == 2
    assert all(worker.stopped for worker in bench.made)
    assert [record.attempt for record in bench.attempts()] == [1, 2, 1, 2]
    first = bench.points()[0]
    assert first.value == pytest.approx(1e12, rel=1e-3)
    assert first.derived is not None
    assert first.derived.ids == tuple(record.id for record in bench.attempts()[:2])


def test_what_would_not_fit_the_time_is_skipped_with_a_record(tmp_path):
    bench = Bench(tmp_path, lambda device, request: quiet(request.case["m"] ** 3 * 1e-8))
    bench.executor.run_block(block(task(128), task(4096)), 5.0)
    small, large = bench.points()
    assert small.status is Status.OK
    assert large.status is Status.SKIPPED
    assert "of the budget left" in (large.reason or "")
    assert len(bench.asked) == 2


def test_what_does_not_fit_the_memory_is_skipped(tmp_path):
    tiny = replace(HOST, memory_bytes=1 << 20)
    bench = Bench(tmp_path, by_flops)
    bench.executor.run_block(block(task(4096, target=tiny)), 30.0)
    assert bench.points()[0].status is Status.SKIPPED
    assert "half of the memory" in (bench.points()[0].reason or "")


def test_disagreeing_workers_are_repeated_in_fresh_ones(tmp_path):
    times = iter([1e-3, 50e-3, 1e-3, 1e-3])
    bench = Bench(tmp_path, lambda device, request: quiet(next(times)))
    tasks = [task()]
    bench.executor.run_block(block(*tasks), 30.0)
    assert "disagree" in (bench.points()[0].disturbed or "")
    bench.executor.use_time_left()
    assert len(bench.made) == 4
    final = bench.points()[-1]
    assert final.disturbed is None
    assert final.derived is not None
    assert len(final.derived.ids) == 2
    assert len(bench.asked) == 3  # the third settled it: the fourth is not asked


def test_a_noisy_point_on_a_catalogued_gpu_is_repeated(tmp_path):
    times = iter([1e-3, 50e-3, 1e-3, 1e-3])
    bench = Bench(tmp_path, lambda device, request: quiet(next(times)))
    tasks = [task(target=gpu(0))]
    assert tasks[0].target.chip is not None
    bench.executor.run_block(block(*tasks), 30.0)
    bench.executor.use_time_left()
    assert len(bench.made) == 4


def test_of_noisy_points_what_is_quick_comes_first(tmp_path):
    def answer(device, request):
        return replace(quiet(request.case["m"] ** 3 * 1e-11), disturbed="busy")

    bench = Bench(tmp_path, answer)
    bench.executor.run_block(block(task(512), task(128), task(256)), 30.0)
    del bench.asked[:]
    bench.executor.use_time_left()
    assert [request.case["m"] for _, request in bench.asked[:6:2]] == [128, 256, 512]


def test_what_is_required_and_stays_undecided_has_ten_workers(tmp_path):
    """Where noise hides a slow machine, four quiet workers are what it takes to find it."""
    bench = Bench(tmp_path, lambda *_: replace(quiet(1e-3), disturbed="busy"))
    needed = task(256, required=True)
    bench.executor.run_block(block(needed), 30.0)
    point = bench.points()[0]
    band = (1.5 * point.value, 2.0 * point.value)
    bench.executor._attempts.expected = {(point.key, None): point.replace(interval=band)}
    bench.executor.use_time_left()
    assert len(bench.asked) == 10


def test_certainty_comes_before_breadth(tmp_path):
    """What is noisy is measured again before what was skipped, and what was skipped still is."""
    is_late = False

    def answer(device, request):
        noisy = request.case["m"] == 128 and not is_late
        return replace(quiet(1e-4), disturbed="busy" if noisy else None)

    bench = Bench(tmp_path, answer)
    bench.executor.run_block(block(task(128)), 30.0)
    bench.executor.run_block(block(task(256)), 0.0)
    assert bench.points()[-1].status is Status.SKIPPED
    del bench.asked[:]
    is_late = True
    bench.executor.use_time_left()
    assert [request.case["m"] for _, request in bench.asked] == [128, 128, 256, 256]


def test_points_are_settled_by_what_their_class_has_shown(tmp_path):
    """The first point knows nothing of its class; the run's last word on it does."""
    times = {size: iter([1e-3, 1.01e-3]) for size in (64, 128, 192, 256, 320)}
    bench = Bench(tmp_path, lambda device, request: quiet(next(times[request.case["m"]])))
    bench.executor.run_block(block(*map(task, times)), 30.0)
    first = bench.points()[0]
    assert first.confidence is None
    bench.executor.use_time_left()
    last = [point for point in bench.points() if point.key == first.key][-1]
    assert last.confidence == 0.95
    assert last.value == first.value
    assert len(bench.asked) == 10


def test_what_is_measured_again_is_counted_as_that(tmp_path):
    bench = Bench(tmp_path, lambda *_: replace(quiet(1e-3), disturbed="busy"))
    bench.executor.total = 2
    bench.executor.run_block(block(task(256), task(512)), 30.0)
    bench.executor.use_time_left()
    results = [event for event in bench.heard if event.level == "point"]
    counts = [(event.done, event.retry, event.retries) for event in results]
    assert counts == [(1, 0, 0), (2, 0, 0), (2, 1, 2), (2, 2, 2), (2, 1, 2), (2, 2, 2)]


def test_quiet_points_are_not_repeated(tmp_path):
    bench = Bench(tmp_path, by_flops)
    bench.executor.run_block(block(task()), 30.0)
    bench.executor.use_time_left()
    assert len(bench.made) == 2


def test_a_matmul_that_a_layer_exceeds_is_measured_again(tmp_path):
    """Two quiet workers agreed on a slow matmul; the layer of its products is twice as fast."""
    rates = iter([1e12, 1e12, 2e12, 2e12, 3e12, 3e12])

    def answer(device, request):
        return quiet(benchmark(request.benchmark).work(request.case).flops / next(rates))

    bench = Bench(tmp_path, answer)
    layer = Task(
        benchmark="layer",
        target=HOST,
        planned=PlannedCase(case=benchmark("layer").example | {"dtype": "fp32"}, step="layer"),
    )
    bench.executor.run_block(block(task()), 30.0)
    bench.executor.run_block(block(layer), 30.0)
    bench.executor.use_time_left()
    matmuls = [point for point in bench.points() if point.benchmark == "matmul"]
    assert matmuls[0].value == pytest.approx(1e12, rel=1e-3)
    assert matmuls[-1].value == pytest.approx(3e12, rel=1e-3)


def test_repeating_ends_when_the_machine_stays_busy(tmp_path):
    bench = Bench(tmp_path, lambda *_: replace(quiet(1e-3), disturbed="busy"))
    bench.executor.run_block(block(task()), 30.0)
    bench.executor.use_time_left()
    assert bench.points()[-1].disturbed == "busy"
    assert len(bench.made) == 6


def test_a_crash_costs_one_case(tmp_path):
    def answer(device, request):
        if request.case["m"] == 256:
            return Reply(status=Status.FAILED, reason="the worker died with signal SIGSEGV")
        return by_flops(device, request)

    bench = Bench(tmp_path, answer)
    bench.executor.run_block(block(task(256), task(512)), 30.0)
    assert [record.status for record in bench.points()] == [Status.FAILED, Status.OK]


def test_a_device_that_does_not_come_up_fails_its_steps(tmp_path):
    bench = Bench(tmp_path, by_flops, worker=DeadWorker)
    bench.executor.run_block(block(task(target=gpu(0)), task(512, target=gpu(0))), 30.0)
    assert [record.status for record in bench.points()] == [Status.FAILED] * 2
    assert "no CUDA" in (bench.points()[0].reason or "")


def test_a_resumed_run_measures_only_what_is_missing(tmp_path):
    first = Bench(tmp_path, by_flops)
    first.executor.run_block(block(task(256)), 30.0)
    second = Bench(tmp_path, by_flops)
    second.executor.resume_from(read_run(first.run.path).records)
    second.executor.run_block(block(task(256), task(512)), 30.0)
    assert {request.case["m"] for _, request in second.asked} == {512}


def test_a_device_that_stays_down_takes_nothing_back(tmp_path):
    first = Bench(tmp_path, by_flops)
    first.executor.run_block(block(task(256)), 30.0)
    later = Bench(tmp_path, by_flops, worker=DeadWorker)
    later.executor.resume_from(read_run(first.run.path).records)
    later.executor.run_block(block(task(256), task(512)), 30.0)
    assert [(r.case["m"], r.status) for r in later.points()] == [(512, Status.FAILED)]


@pytest.mark.parametrize("status", [Status.FAILED, Status.TIMEOUT, Status.OOM])
def test_what_failed_is_tried_again_by_a_resumed_run(tmp_path, status):
    first = Bench(tmp_path, lambda *_: Reply(status=status, reason="then"))
    first.executor.run_block(block(task(256)), 30.0)
    later = Bench(tmp_path, by_flops)
    later.executor.resume_from(read_run(first.run.path).records)
    later.executor.run_block(block(task(256)), 30.0)
    assert [record.status for record in later.points()] == [Status.OK]


def test_a_wrong_answer_is_not_asked_again_until_it_is_right(tmp_path):
    first = Bench(tmp_path, lambda *_: Reply(status=Status.FAILED, reason="wrong answer: a row"))
    first.executor.run_block(block(task(256)), 30.0)
    later = Bench(tmp_path, by_flops)
    later.executor.resume_from(read_run(first.run.path).records)
    later.executor.run_block(block(task(256)), 30.0)
    assert later.asked == []


def test_a_resumed_run_measures_first_what_has_no_value(tmp_path):
    first = Bench(tmp_path, lambda *_: replace(quiet(1e-3), disturbed="busy"))
    first.executor.run_block(block(task(256)), 30.0)
    later = Bench(tmp_path, by_flops)
    later.executor.resume_from(read_run(first.run.path).records)
    later.executor.run_block(block(task(256), task(512)), 30.0)
    assert [request.case["m"] for _, request in later.asked] == [512, 512, 256, 256]


class WoundClock:
    """time.monotonic for the executor; the fake workers wind it."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


def wind(monkeypatch, clock):
    for module in ("executor", "crew"):
        monkeypatch.setattr(f"trainrig.runner.{module}.time", clock)


def test_a_case_that_the_budgets_end_cut_short_is_no_fault(tmp_path, monkeypatch):
    clock = WoundClock()
    wind(monkeypatch, clock)

    def hang(device, request):
        clock.now += request.timeout
        return Reply(status=Status.TIMEOUT, reason="no answer")

    bench = Bench(tmp_path, hang, clock=clock, seconds=8.0)
    bench.executor.run_block(block(task(256)), 8.0)
    assert bench.points()[0].status is Status.SKIPPED
    assert bench.points()[0].reason == "the budget ended while it ran"


@pytest.mark.parametrize("budget", [5.0, 30.0, 240.0])
@pytest.mark.parametrize("speed", [1e9, 1e11, 1e13])
def test_a_budget_is_kept_whatever_the_speed(tmp_path, monkeypatch, budget, speed):
    clock = WoundClock()
    wind(monkeypatch, clock)

    def run(device, request):
        work = benchmark(request.benchmark).work(request.case)
        call = max(work.flops, work.num_bytes) / speed
        clock.now += min(max(request.settings["max_time"], 4.0 * call), request.timeout)
        if 4.0 * call > request.timeout:
            return Reply(status=Status.TIMEOUT, reason="no answer")
        return quiet(call)

    bench = Bench(tmp_path, run, clock=clock, seconds=budget)
    start = clock.now
    blocks = qualify_plan([HOST], budget)
    for one in blocks:
        bench.executor.run_block(one, (start + budget - clock.now) * one.share)
    bench.executor.use_time_left()
    is_empty = not any(point.status is Status.OK for point in bench.points())
    assert clock.now - start <= 1.1 * budget + (6.0 if is_empty else 0.0)


@pytest.mark.parametrize("ready", [5.5, 8.0, 13.0])
def test_a_busy_machine_has_one_number_however_late_its_workers_come(tmp_path, monkeypatch, ready):
    """In a bench of 8 s; for 6 s more at most, and only where there is no number yet."""
    clock = WoundClock()
    wind(monkeypatch, clock)

    class Late(FakeWorker):
        def wait_ready(self, timeout=1.0):
            there = max(1000.0 + ready + 0.3 * self.log.stem.endswith("2") - clock.now, 0.0)
            clock.now += min(timeout, there)
            if there > timeout:
                raise UnavailableError("the worker for cpu did not start: not within 1 s")
            return {}

    def run(device, request):
        clock.now += 0.4
        return quiet(1e-3)

    bench = Bench(tmp_path, run, worker=Late, clock=clock, seconds=8.0)
    bench.executor.run_block(block(task(512), task(256)), 8.0)
    bench.executor.use_time_left()
    assert [p.status for p in bench.points() if p.value] != []
    assert clock.now <= 1014.0


def test_several_devices_start_together_and_are_marked_so(tmp_path):
    cards = (gpu(0), gpu(1))
    bench = Bench(tmp_path, by_flops)
    bench.executor.run_block(block(*at_once(MATMUL, cards, [PRODUCT])), 30.0)
    assert all(request.hold for _, request in bench.asked)
    assert [(record.device_index, record.device_count) for record in bench.points()] == [
        (0, 2),
        (1, 2),
    ]


def test_one_dead_device_does_not_hold_up_the_others(tmp_path):
    def answer(device, request):
        if device == "cuda:1":
            return Reply(status=Status.FAILED, reason="fell off the bus")
        return by_flops(device, request)

    bench = Bench(tmp_path, answer)
    bench.executor.run_block(block(*at_once(MATMUL, (gpu(0), gpu(1)), [PRODUCT])), 30.0)
    assert [record.status for record in bench.points()] == [Status.OK, Status.FAILED]


def test_progress_counts_every_case_once(tmp_path):
    bench = Bench(tmp_path, by_flops)
    bench.executor.total = 2
    bench.executor.run_block(block(task(256), task(512)), 30.0)
    results = [event for event in bench.heard if event.level == "point"]
    assert [event.done for event in results] == [1, 2]


def test_a_small_budget_spends_itself_on_required_steps_first():
    (only,) = qualify_plan([HOST], 5.0)
    required = [task.planned.required for task in only.tasks]
    assert required == sorted(required, reverse=True)
    assert {task.benchmark for task in only.tasks if task.planned.required} == {
        "matmul",
        "vector",
        "copy",
    }


def test_shares_of_a_plan_add_up_to_the_whole():
    blocks = qualify_plan([gpu(0), gpu(1), HOST], 240.0)
    assert sum(block.share for block in blocks) == pytest.approx(1.0)
    assert any(len(block.targets) == 2 for block in blocks)


def test_a_machine_with_gpus_measures_the_hosts_memory_and_not_its_arithmetic():
    host = [t for b in qualify_plan([gpu(0), HOST], 240.0) for t in b.tasks if t.target == HOST]
    assert {task.benchmark for task in host} == {"copy"}


def test_every_planned_case_is_one_of_its_familys():
    for planned in (b for b in qualify_plan([gpu(0), HOST], 240.0)):
        for one in planned.tasks:
            benchmark(one.benchmark).check(one.case)
    for one in qualify_plan([HOST], 240.0)[0].tasks:
        benchmark(one.benchmark).check(one.case)


def test_sustained_load_comes_first_in_one_worker_that_is_warm(tmp_path):
    first = qualify_plan([gpu(0), HOST], 240.0)[0]
    sustained = next(t for t in first.tasks if t.case.get("sustained"))
    assert first.tasks[0] is sustained
    assert sustained.planned.required
    bench = Bench(tmp_path, by_flops, seconds=240.0)
    bench.executor.run_block(block(sustained), 120.0)
    ((_, request),) = bench.asked
    assert request.settings["warmup_time"] == pytest.approx(0.6 * sustained.planned.seconds)
    assert request.settings["max_time"] == pytest.approx(sustained.planned.seconds)
    assert bench.points()[0].is_usable


def test_a_processor_has_no_sustained_load_to_be_left_out():
    tasks = [task for block in qualify_plan([HOST], 240.0) for task in block.tasks]
    assert not any(task.case.get("sustained") for task in tasks)


def test_the_first_case_of_every_required_step_comes_before_its_others():
    needed = qualify_plan([HOST], 240.0)[0].tasks
    steps = [task.planned.step for task in needed]
    assert len(set(steps)) < len(steps)
    assert steps[: len(set(steps))] == list(dict.fromkeys(steps))


def test_what_is_required_of_any_device_comes_before_all_that_is_not():
    needed = [not is_optional(b) for b in qualify_plan([gpu(0), gpu(1), HOST], 240.0)]
    assert needed == [True, True, False, False, False]
    gpus, host, *others = qualify_plan([gpu(0), gpu(1), HOST], 240.0)
    assert {t.target for t in gpus.tasks} == {gpu(0), gpu(1)}
    assert {t.target for t in host.tasks} == {HOST}
    assert {(gpu(0), 2)} in [{(t.target, t.count) for t in block.tasks} for block in others]


def test_gpus_work_side_by_side_but_for_what_they_share(tmp_path):
    cards = (gpu(0), gpu(1))
    both = threading.Barrier(2)
    at_work = []
    most = []

    def answer(device, request):
        if request.benchmark == "matmul":
            both.wait(10.0)  # broken unless the other card is at it too
        at_work.append(device)
        most.append(len(at_work))
        time.sleep(0.01 if request.benchmark == "copy" else 0.0)
        at_work.remove(device)
        return quiet(1e-3)

    bench = Bench(tmp_path, answer)
    link = copy_case("h2d", memory="pinned")
    tasks = [task(target=card) for card in cards]
    tasks += [task(target=c, benchmark="copy", case=link, shared=True) for c in cards]
    bench.executor.run_block(block(*tasks), 60.0)
    assert [p.status for p in bench.points()] == [Status.OK] * 4
    assert [request.benchmark for _, request in bench.asked[4:]] == ["copy"] * 4
    assert most[4:] == [1] * 4
    assert len(bench.made) == 4


def test_a_noisy_point_of_all_at_once_is_not_measured_alone(tmp_path):
    bench = Bench(tmp_path, lambda *_: replace(quiet(1e-3), disturbed="busy"))
    tasks = at_once(MATMUL, (gpu(0), gpu(1)), [PRODUCT])
    bench.executor.run_block(block(*tasks), 30.0)
    bench.executor.use_time_left()
    assert all(request.hold for _, request in bench.asked)
    assert len(bench.asked) == 4


def test_what_is_unverified_or_of_all_at_once_cannot_block_a_verdict():
    (one,) = tasks_of(MATMUL, gpu(0), [replace(PRODUCT, required=True)])
    (caveat,) = tasks_of(MATMUL, gpu(0), [replace(PRODUCT, required=True, notes={"caveat": "?"})])
    many = at_once(MATMUL, (gpu(0), gpu(1)), [replace(PRODUCT, required=True)])
    assert [t.planned.required for t in (one, caveat, *many)] == [True, False, False, False]


def test_time_that_is_left_goes_to_what_was_skipped_for_lack_of_it(tmp_path):
    bench = Bench(tmp_path, lambda device, request: quiet(request.case["m"] ** 3 * 1e-11))
    tasks = (task(128), task(2048))
    bench.executor.run_block(block(*tasks), 2.5)
    assert [p.status for p in bench.points()] == [Status.OK, Status.SKIPPED]
    bench.executor.use_time_left()
    assert [p.status for p in bench.points()] == [Status.OK, Status.SKIPPED, Status.OK]
    assert bench.executor.done == 2


def test_of_noisy_points_the_required_are_repeated_first(tmp_path):
    bench = Bench(tmp_path, lambda *_: replace(quiet(1e-3), disturbed="busy"))
    tasks = [task(128), task(256, required=True)]
    bench.executor.run_block(block(*tasks), 30.0)
    del bench.asked[:]
    bench.executor.use_time_left()
    sizes = [request.case["m"] for _, request in bench.asked]
    assert sizes == [256, 256] * 2 + [128, 128] * 2


def test_a_required_point_that_decides_nothing_is_repeated_before_what_was_skipped(tmp_path):
    """Quiet, and below the band with two workers of one round: that is no proof yet."""
    bench = Bench(tmp_path, by_flops)
    tasks = [task(128), task(256, required=True)]
    bench.executor.run_block(block(tasks[1]), 30.0)
    bench.executor.run_block(block(tasks[0]), 0.0)
    point, skipped = bench.points()
    assert skipped.status is Status.SKIPPED
    band = (1.1 * point.value, 1.2 * point.value)
    bench.executor._attempts.expected = {(point.key, None): point.replace(interval=band)}
    del bench.asked[:]
    bench.executor.use_time_left()
    assert [request.case["m"] for _, request in bench.asked] == [256, 256, 128, 128]


@pytest.mark.parametrize("stays", [False, True])
def test_a_card_behind_its_siblings_is_measured_again_before_it_is_called_odd(tmp_path, stays):
    def answer(device, request):
        is_first = len(bench.made) == 4 * 2
        share = 0.85 if device == "cuda:3" and (is_first or stays) else 1.0
        flops = benchmark(request.benchmark).work(request.case).flops
        return quiet(flops / 1e14 / share * (1.0 + 0.001 * (len(bench.asked) % 3)))

    bench = Bench(tmp_path, answer, seconds=600.0)
    tasks = [task(size, target=gpu(number)) for size in (16384, 8192) for number in range(4)]
    bench.executor.run_block(block(*tasks), 100.0)
    assert "odd-device" in ids(judge(bench.points() + bench.attempts()).findings)
    del bench.asked[:]
    bench.executor.decide()
    assert {device for device, _ in bench.asked} == {"cuda:3"}
    assert len(bench.asked) == 4
    bench.executor.decide()
    assert len(bench.asked) == 4
    found = ids(judge(bench.points() + bench.attempts()).findings)
    assert ("odd-device" in found) is stays


def test_a_card_that_did_not_come_up_is_not_waited_for_again(tmp_path):
    bench = Bench(tmp_path, by_flops, worker=DeadWorker)
    tasks = [task(target=gpu(0))]
    bench.executor.run_block(block(*tasks), 30.0)
    bench.executor.run_block(block(task(512, target=gpu(0))), 30.0)
    bench.executor.use_time_left()
    assert [p.status for p in bench.points()] == [Status.FAILED] * 2
    assert len(bench.made) == 4  # two tries


def test_a_card_that_comes_up_at_the_second_try_is_measured(tmp_path):
    class Shy(FakeWorker):
        tries = 0

        def wait_ready(self, timeout=1.0):
            Shy.tries += 1
            if Shy.tries == 1:
                raise UnavailableError("the worker for cuda:0 did not start: CUDA busy")
            return {}

    bench = Bench(tmp_path, by_flops, worker=Shy)
    bench.executor.run_block(block(task(target=gpu(0))), 30.0)
    assert [p.status for p in bench.points()] == [Status.OK]


def test_a_worker_that_is_not_ready_in_its_time_is_no_fault_of_the_device(tmp_path, monkeypatch):
    clock = WoundClock()
    wind(monkeypatch, clock)

    class Slow(FakeWorker):
        def wait_ready(self, timeout=1.0):
            if clock.now < 1010.0:
                clock.now += timeout
                raise UnavailableError("the worker for cpu did not start: not within 2 s")
            return {}

    bench = Bench(tmp_path, by_flops, worker=Slow, clock=clock)
    bench.executor.run_block(block(task()), 10.0)
    assert bench.points()[0].status is Status.SKIPPED
    assert "before its worker was ready" in bench.points()[0].reason
    bench.executor.use_time_left()
    assert bench.points()[-1].status is Status.OK


def test_a_card_that_torch_counts_otherwise_is_refused(tmp_path):
    class Swapped(FakeWorker):
        def wait_ready(self, timeout=1.0):
            return {"uuid": "GPU-1"}

    bench = Bench(tmp_path, by_flops, worker=Swapped)
    bench.executor.run_block(block(task(target=replace(gpu(0), uuid="GPU-0"))), 30.0)
    assert "is GPU-1" in (bench.points()[0].reason or "")
    bench.executor.run_block(block(task(target=replace(gpu(1), uuid="GPU-1"))), 30.0)
    assert bench.points()[1].status is Status.OK


def test_only_what_was_chosen_is_planned():
    def planned(*only):
        blocks = qualify_plan([gpu(0), gpu(1), HOST], 240.0, only=only)
        assert sum(block.share for block in blocks) == pytest.approx(1.0)
        return [task for block in blocks for task in block.tasks]

    chosen = planned("matmul", "links")
    assert {t.benchmark for t in chosen} == {"matmul", "copy", "collective"}
    assert {t.case["direction"] for t in chosen if t.benchmark == "copy"} == {"h2d", "d2h"}
    assert any(t.count > 1 for t in chosen)
    assert {t.benchmark for t in planned("vector")} == {"vector"}


def test_what_a_missing_card_was_needed_for_is_skipped_on_the_others(tmp_path):
    class SecondDead(FakeWorker):
        def wait_ready(self, timeout=1.0):
            if self.device == "cuda:1":
                raise UnavailableError("no CUDA")
            return {}

    bench = Bench(tmp_path, by_flops, worker=SecondDead)
    cards = (gpu(0), gpu(1))
    alone = [task(target=card) for card in cards]
    bench.executor.run_block(block(*alone, *at_once(MATMUL, cards, [PRODUCT])), 60.0)
    came = {(p.device_index, p.device_count): p.status for p in bench.points()}
    assert came == {
        (0, 1): Status.OK,
        (1, 1): Status.FAILED,
        (0, 2): Status.SKIPPED,
        (1, 2): Status.FAILED,
    }


def test_a_point_is_combined_while_another_device_s_worker_reports(tmp_path):
    """Devices are measured side by side: what is known of the workers' scatter may change."""
    bench = Bench(tmp_path, by_flops)
    bench.executor.run_block(block(task(256)), 30.0)
    first, second = bench.attempts()

    class Interrupted(Attempts):
        """Another device's thread adds an attempt while a point is combined."""

        def at(self, task):
            found = super().at(task)
            if len(found) == 1:
                self.add(task, second)
            return found

    attempts = Interrupted({})
    attempts.add(task(256), first)
    (point, *_) = attempts.points(task(256))
    assert point.derived.ids == (first.id, second.id)
