"""Training in a qualification: what is trained where, on which text, and what a fault becomes."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from in_process import launch_here
from machine_fakes import healthy
from report_views import point
from runner_fakes import EMULATED, HOST, gpu, quiet
from trainrig.analysis.judge import judge
from trainrig.analysis.judge_training import not_falling
from trainrig.analysis.time_loss import is_own_layer
from trainrig.analysis.waterfall import build_waterfalls
from trainrig.benchmarks import training as step
from trainrig.benchmarks.layer import host_cases
from trainrig.benchmarks.matmul import matmul_case
from trainrig.benchmarks.spec import PlannedCase, benchmark
from trainrig.data.prepare import prepare
from trainrig.errors import StoreError
from trainrig.process import supervisor
from trainrig.process.events import OTHER, PARTS
from trainrig.process.supervisor import Ended
from trainrig.record import WRONG_ANSWER, Case, Kind, Outcome, Record, RunView, Status
from trainrig.runner import qualified_training as training
from trainrig.runner import train
from trainrig.runner.attempts import Pace
from trainrig.runner.executor import Executor
from trainrig.runner.expectations import expectations
from trainrig.runner.plan import MEMORY_SHARE, Block, Task, is_optional, qualify_plan
from trainrig.runner.progress import null_progress
from trainrig.runner.qualified_training import (
    TIME_SHARE,
    Text,
    Trainer,
    text_to_train_on,
    with_training,
)
from trainrig.runner.train import TrainRun
from trainrig.store import create_run, read_run
from trainrig.train.config import Experiment, case_of, check
from trainrig.train.native import loop
from trainrig.train.native.loop import Engine
from trainrig.train.native.step_timer import Stopwatch

ROOT = Path(__file__).resolve().parents[3]
TINY = "gpt2:num_layers=1,hidden=32,num_heads=2,vocab=512,max_positions=32"
READY = Text(folder=Path("/somewhere"), corpus_sha256="0123456789")


def steps_of(blocks: Any) -> list[Task]:
    return [task for block in blocks for task in block.tasks if task.benchmark == "training"]


def planned(budget: float, *targets: Any, native: bool = True, text: Text = READY) -> Any:
    own = targets or (HOST if native else replace(HOST, arithmetic=EMULATED),)
    return with_training(qualify_plan(own, budget), own, budget, text)


# ---- the plan


@pytest.mark.parametrize("budget", [60.0, 120.0, 240.0, 3600.0])
def test_training_is_the_last_that_is_needed_and_takes_its_share(budget: float) -> None:
    blocks = planned(budget)
    assert sum(block.share for block in blocks) == pytest.approx(1.0)
    needed = [block for block in blocks if not is_optional(block)]
    assert blocks[: len(needed)] == tuple(needed)
    last, *further = [block for block in blocks if steps_of([block])]
    assert needed[-1] is last and all(is_optional(block) for block in further)
    assert 0.0 < last.share <= sum(block.share for block in (last, *further)) <= TIME_SHARE + 1e-9
    (first,) = last.tasks
    assert first.planned.required
    assert first.case["precision"] == "bf16"
    assert 2.0 <= first.planned.seconds <= 8.0
    for task in (first, *(task for block in further for task in block.tasks)):
        benchmark("training").check(task.case)
        shape = check(Experiment.of(**task.extra["experiment"]))
        assert shape.vocab >= 8192  # of the tokenizer that the text is prepared with


def test_without_bf16_instructions_fp32_is_what_counts() -> None:
    (task,) = steps_of(planned(240.0, native=False))
    assert task.case["precision"] == "fp32" and task.planned.required


def test_small_budgets_leave_it_out_with_one_record_and_prepare_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "_prepared", lambda *_: pytest.fail("it was prepared"))
    text = text_to_train_on(59.0, null_progress, ExitStack())
    (task,) = steps_of(planned(59.0, text=text))
    assert not task.planned.required
    assert "below one minute" in (task.planned.skip or "")
    assert planned(59.0, text=text)[-1].share == 0.0


def test_each_gpu_trains_what_fits_it_and_the_host_does_not() -> None:
    found = steps_of(planned(300.0, gpu(0), gpu(1, 80 << 30), gpu(2, 6 << 30), HOST))
    assert [task.target.index for task in found] == [0, 1, 2]
    assert all(task.planned.required and task.fits_memory for task in found)
    sizes = [(task.case["model"], task.case["batch_size"]) for task in found]
    assert sizes == [("gpt2-medium", 4), ("gpt2-medium", 16), ("gpt2", 1)]
    for task in found:
        assert step.memory(task.case) <= MEMORY_SHARE * task.target.memory_bytes


def test_the_block_of_each_step_is_measured_as_its_ceiling() -> None:
    cards = gpu(0), gpu(1, 80 << 30), gpu(2, 6 << 30)
    for blocks in (planned(300.0, *cards, HOST), planned(300.0), planned(300.0, native=False)):
        tasks = [task for block in blocks for task in block.tasks]
        for step_ in steps_of(blocks):
            own = [
                task
                for task in tasks
                if task.target is step_.target and is_own_layer(task.case, step_.case)
            ]
            assert own, step_.case
            assert not any(task.planned.required for task in own)


def test_many_gpus_and_little_time_train_one_of_each_model() -> None:
    other = replace(gpu(2), name="RTX 3080")
    blocks = planned(60.0, gpu(0), gpu(1), other, HOST)
    assert sum(block.share for block in blocks) == pytest.approx(1.0)
    found = steps_of(blocks)
    assert [(t.target.index, t.planned.required, t.planned.skip is None) for t in found] == [
        (0, True, True),
        (2, False, False),
        (1, False, False),
    ]
    assert "1 of 3 GPUs" in (found[1].planned.skip or "")
    blocks = planned(600.0, gpu(0), gpu(1), other, HOST)
    assert [t.target.index for t in steps_of(blocks) if t.planned.required] == [0, 2, 1]
    assert sum(b.share for b in blocks if b.tasks[0].benchmark == "training") <= TIME_SHARE + 1e-9
    assert all(b.share * 600.0 > 2 * b.tasks[0].planned.seconds for b in blocks[-3:])


def test_what_fits_nowhere_is_planned_and_refused_before_it_starts() -> None:
    (task, *_) = steps_of(planned(240.0, replace(HOST, memory_bytes=1 << 20)))
    assert task.case["batch_size"] == 1
    assert not task.fits_memory


def task_of(name: str, case: Case) -> Task:
    return Task(target=HOST, benchmark=name, planned=PlannedCase(case=case, step="x"))


def test_a_layer_and_a_step_are_guessed_from_the_products_of_their_dtype() -> None:
    pace = Pace()
    layer = task_of("layer", host_cases(["bf16"])[0])
    slow = pace.call_time(layer)
    (task, *_) = steps_of(planned(240.0))
    product = task_of("matmul", matmul_case("bf16", 1024))
    pace.learn(product, quiet(2 * 1024**3 / 300e9))
    assert pace.call_time(task) == pytest.approx(step.flops(task.case) / 150e9, rel=0.01)
    assert pace.call_time(layer) < slow / 2
    other = task_of("layer", host_cases(["fp32"])[0])
    assert pace.call_time(other) == pytest.approx(slow)
    pace.learn(task, quiet(5.0))
    assert pace.call_time(task) == pytest.approx(5.0, rel=0.01)


# ---- the text


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little text, in which some words are frequent: there is something to learn."""
    folder = tmp_path_factory.mktemp("text")
    words = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "and", "then", "home", "again"]
    random = np.random.default_rng(0)
    for number in range(40):
        (folder / f"{number}.txt").write_text(" ".join(random.choice(words, 400)))
    return folder


@pytest.fixture(scope="module")
def data(corpus: Path) -> Path:
    return prepare((corpus,), out=corpus.parent / f"{corpus.name}-ready", vocab_size=400).folder


@pytest.fixture
def small_corpus(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shelf's corpus is ours, which takes no seconds to prepare."""
    import trainrig.data.prepare as room

    real = room.prepare
    monkeypatch.setattr(room, "prepare", lambda **how: real((corpus,), vocab_size=400, **how))


@pytest.mark.usefixtures("small_corpus")
def test_text_is_prepared_once_into_the_users_cache(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    first = text_to_train_on(60.0, null_progress, ExitStack(), environ)
    assert first.reason is None and first.folder is not None
    assert first.folder.parent == tmp_path / "trainrig"
    before = (first.folder / "train.bin").stat().st_mtime_ns
    assert text_to_train_on(60.0, null_progress, ExitStack(), environ) == first
    assert (first.folder / "train.bin").stat().st_mtime_ns == before


@pytest.mark.usefixtures("small_corpus")
def test_without_a_home_the_text_is_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number no passwd knows."""

    def nobody(_: object) -> None:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with ExitStack() as stack:
        text = text_to_train_on(60.0, null_progress, stack, {})
        assert text.folder is not None and (text.folder / "train.bin").exists()


@pytest.mark.usefixtures("small_corpus")
def test_where_nothing_can_be_kept_the_text_is_scratch(tmp_path: Path) -> None:
    (tmp_path / "trainrig").write_text("in the way")
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    with ExitStack() as stack:
        text = text_to_train_on(60.0, null_progress, stack, environ)
        assert text.folder is not None and (text.folder / "train.bin").exists()
    assert not text.folder.exists()
    # A damaged folder in the cache is not repaired and not trusted.
    (tmp_path / "trainrig").unlink()
    kept = tmp_path / "trainrig" / text.folder.name
    kept.mkdir(parents=True)
    (kept / "train.bin").write_bytes(b"half")
    with ExitStack() as stack:
        again = text_to_train_on(60.0, null_progress, stack, environ)
        assert again.corpus_sha256 == text.corpus_sha256 and again.folder != kept


def test_without_text_the_required_step_could_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise StoreError("cannot write: No space left on device")

    monkeypatch.setattr(training, "_prepared", full)
    with ExitStack() as stack:
        text = text_to_train_on(240.0, null_progress, stack)
    (task,) = steps_of(planned(240.0, text=text))
    assert task.planned.required and "No space left" in (task.planned.skip or "")
    records = carried_out([task], tmp_path)
    verdict = judge(records)
    assert verdict.outcome is Outcome.INCOMPLETE
    assert "training step" in verdict.reason


# ---- running it


def carried_out(
    tasks: list[Task], folder: Path, earlier: Any = (), seconds: float = 90.0
) -> list[Record]:
    """The records of a run of some tasks: predictions, then what came out."""
    with create_run(folder, "test", {}) as run:
        for expected in expectations(tasks, [], [], [], "e"):
            run.append(expected)
        session = TrainRun(
            run=run,
            targets=(tasks[0].target,),
            claims=(),
            snapshot=healthy(),
            watch=null_progress,
            alone=True,
        )
        executor = Executor(
            run,
            environment="e",
            deadline=time.monotonic() + 100.0,
            watch=null_progress,
            train=Trainer(session, ()),
        )
        executor.resume_from(earlier)
        executor.run_block(Block(name="training", tasks=tuple(tasks)), seconds)
        return list(read_run(run.path).records)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "launch", launch_here)


def tiny(data: Path, seconds: float = 0.1, **changes: Any) -> Task:
    experiment = Experiment.of(
        model=TINY,
        data=str(data),
        batch_size=4,
        seq_len=16,
        steps=1000,
        warmup=2,
        precision="fp32",
        heldout_batches=0,
    ).replace(**changes)
    (planned_one, *_) = steps_of(planned(240.0))
    return replace(
        planned_one,
        planned=PlannedCase(
            case=case_of(experiment, "0123456789"),
            step=f"{experiment.precision} training step",
            required=True,
            seconds=seconds,
        ),
        extra={**planned_one.extra, "experiment": training.to_dict(experiment)},
    )


@pytest.mark.parametrize(
    "launcher", [launch_here, pytest.param(supervisor.launch, marks=pytest.mark.acceptance)]
)
def test_a_training_step_becomes_a_level_below_the_matmul(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: Any
) -> None:
    """In this process, or through real workers of the family's own program."""
    monkeypatch.setattr(train, "launch", launcher)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    records = carried_out([tiny(data)], tmp_path)
    points = {r.metric: r for r in records if r.is_point and r.kind is Kind.MEASURED}
    headline = points["flop_rate"]
    assert headline.status is Status.OK, headline.reason
    assert headline.value and headline.value > 0
    assert {f"time.{part}" for part in (*PARTS, OTHER)} <= points.keys()
    assert points["train_loss"].value < points["first_loss"].value  # type: ignore[operator]
    ceiling = headline.value * 4
    matmul = point(
        "matmul",
        matmul_case("fp32", 1024),
        ceiling,
        metric="flop_rate",
        unit="FLOP/s",
        device=headline.device,
        device_index=None,
    )
    quiet_ones = [r.replace(disturbed=None) for r in records]
    (found,) = build_waterfalls(RunView(name="run", records=(matmul, *quiet_ones)))
    assert [level.name for level in found.levels] == ["Claim", "Best matmul", "Training step"]
    gap = found.levels[-1].gap
    assert gap is not None and gap.shares
    assert sum(share.amount for share in gap.shares) == pytest.approx(-gap.amount)
    assert "optimizer" in {share.name for share in gap.shares}


@pytest.mark.usefixtures("in_process")
def test_time_in_no_part_is_a_finding(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rate, later = Engine._set_learning_rate, 0.0

    def passes(self: Engine, number: int) -> float:
        """The clock of the marks goes on by far more than a busy machine takes for a step."""
        nonlocal later
        later += 10.0
        return set_rate(self, number)

    def stopwatch(_: str) -> Stopwatch[float]:
        return Stopwatch(lambda: time.perf_counter() + later, lambda start, end: end - start)

    def findings(folder: str) -> dict[str, Any]:
        records = carried_out([tiny(data)], tmp_path / folder)
        quiet_ones = [record.replace(disturbed=None) for record in records]  # whoever else works
        return {finding.id: finding for finding in judge(quiet_ones).findings}

    monkeypatch.setattr(Engine, "_set_learning_rate", passes)
    monkeypatch.setattr(loop, "stopwatch_for", stopwatch)
    finding = findings("slow")["time-in-no-part"]
    assert finding.severity == "warning"
    assert "belongs to none of its parts" in finding.evidence
    assert finding.records


def test_other_is_judged_against_its_share_and_only_where_undisturbed() -> None:
    case = dict(tiny(Path("/x")).case)

    def found(other: float, **more: Any) -> set[str]:
        points = [
            point("training", case, value, metric=metric, unit="s", **more)
            for metric, value in {"time": 0.1, "time.other": other}.items()
        ]
        return {finding.id for finding in judge(points).findings}

    assert "time-in-no-part" in found(0.0051)
    assert "time-in-no-part" not in found(0.0049)
    assert "time-in-no-part" not in found(0.05, disturbed="busy")


@pytest.mark.usefixtures("in_process")
def test_a_loss_that_does_not_fall_is_a_wrong_answer(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uphill(self: Engine, number: int) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = -1e-3
        return -1e-3

    monkeypatch.setattr(Engine, "_set_learning_rate", uphill)
    records = carried_out([tiny(data)], tmp_path)
    (settled,) = [r for r in records if r.is_point and r.kind is Kind.MEASURED]
    assert (settled.reason or "").startswith(f"{WRONG_ANSWER}: the loss does not fall")
    assert judge(records).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("losses", "falls"),
    [
        ([9.0, 8.5, 8.0, 7.9], True),
        ([9.0, 8.9], True),
        ([9.0], True),
        ([9.0, 9.3, 9.4, 9.2], False),
        ([9.0, 9.0], False),
        ([9.0, 8.0, 7.0, 9.9, 9.9, 9.9], False),
        ([9.0, 9.9, 9.9, 8.5, 8.6, 9.1], True),
    ],
)
def test_a_loss_falls_when_the_last_ones_lie_below_the_first(
    losses: list[float], falls: bool
) -> None:
    assert (not_falling(losses) is None) is falls


@pytest.mark.usefixtures("in_process")
def test_nan_in_the_loss_is_a_wrong_answer_and_fails_the_machine(
    data: Path, tmp_path: Path
) -> None:
    wild = tiny(data, lr=1e30, clip=0.0, warmup=0, weight_decay=0.0)
    records = carried_out([wild], tmp_path)
    verdict = judge(records)
    assert verdict.outcome is Outcome.FAIL
    (finding,) = [f for f in verdict.findings if f.id == "wrong-answer"]
    assert "training stopped" in finding.evidence
    assert "trainrig train" in finding.fix


@pytest.mark.usefixtures("in_process")
def test_a_training_stops_when_its_time_is_over_and_writes_its_steps(
    data: Path, tmp_path: Path
) -> None:
    carried_out([tiny(data, seconds=0.05)], tmp_path)
    (run,) = tmp_path.iterdir()
    rows = read_run(run).series["steps-experiment"]
    first = [row for row in rows if row["round"] == 1]
    assert 4 <= len(first) < 1000
    assert {row["round"] for row in rows} >= {1, 2}
    assert first[0].keys() >= {"step", "loss", "grad_norm", "time", "tokens_per_s"}


@pytest.mark.usefixtures("in_process")
def test_a_training_is_predicted_before_it_is_measured(data: Path, tmp_path: Path) -> None:
    kinds = [r.kind for r in carried_out([tiny(data)], tmp_path) if r.metric == "time"]
    assert kinds.index(Kind.PREDICTED) < kinds.index(Kind.MEASURED)


@pytest.mark.usefixtures("in_process")
def test_what_was_trained_when_the_time_was_over_counts(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process trained a few steps, and the end of the budget broke it off."""
    now = time.monotonic()

    def cut_off(command: Any, folder: Path, **how: Any) -> Ended:
        ended = launch_here(command, folder, **how)
        monkeypatch.setattr(train, "time", SimpleNamespace(monotonic=lambda: now + 1000.0))
        return replace(ended, status=Status.TIMEOUT, reason="no time")

    monkeypatch.setattr(train, "launch", cut_off)
    records = carried_out([tiny(data)], tmp_path)
    (settled,) = [r for r in records if r.kind is Kind.MEASURED and r.metric == "time"]
    assert settled.status is Status.OK and settled.value
    assert settled.disturbed == "only 1 of 2 workers measured it"
    assert judge(records).outcome is Outcome.MEASURED


@pytest.mark.usefixtures("in_process")
@pytest.mark.acceptance
def test_a_resumed_run_does_not_train_what_was_trained(data: Path, tmp_path: Path) -> None:
    task = tiny(data)
    before = [record.replace(disturbed=None) for record in carried_out([task], tmp_path / "one")]
    left_out = replace(
        task, planned=replace(task.planned, skip="left out of budgets below one minute")
    )
    after = carried_out([left_out], tmp_path / "two", before)
    assert not [r for r in after if r.kind is Kind.MEASURED]
