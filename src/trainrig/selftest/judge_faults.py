"""The verdict's rules, over workers that answer as those of a faulty device would.

What a worker says goes the usual way: attempts, points, the join with what was expected, the
judge.  The band is one of an RTX 4090's fp16 products; the fault is in samples, in the reply's
status or in the driver's words under load, never in a record.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from trainrig.analysis.judge import IMPLAUSIBLE, judge
from trainrig.analysis.judge_classes import class_rules
from trainrig.analysis.judge_links import link_rules
from trainrig.analysis.rows import SIBLING_MARGIN
from trainrig.analysis.watched_rules import watch_rules
from trainrig.benchmarks.copy import BENCHMARK as COPY
from trainrig.benchmarks.layer import BENCHMARK as LAYER
from trainrig.benchmarks.matmul import BENCHMARK as MATMUL
from trainrig.benchmarks.storage import BENCHMARK as STORAGE
from trainrig.benchmarks.storage import storage_case
from trainrig.benchmarks.training import BENCHMARK as TRAINING
from trainrig.benchmarks.training import MAX_OTHER
from trainrig.benchmarks.vector import BENCHMARK as VECTOR
from trainrig.benchmarks.vector import vector_case
from trainrig.measure.aggregate import Subject, attempt_record, point_records
from trainrig.process.worker import Reply, Request
from trainrig.record import (
    PARENT_CLOCK,
    TOLD_SHARE,
    WORKER_CLOCK,
    Case,
    Kind,
    Limit,
    Record,
    Scalar,
    Severity,
    Status,
)
from trainrig.selftest.outcome import verdict_lines
from trainrig.selftest.registry import (
    HEALTHY,
    TENTH,
    Fault,
    Scene,
    named_faults,
    threshold_fault,
)
from trainrig.train.config import Experiment, case_of

_CARD = "RTX 4090"
_BAND, _HEALTHY_RATE = (150e12, 180e12), 165e12
_LIMIT = Limit(value=165.2e12, source="RTX 4090 data sheet, fp16 dense, fp32 accumulation")
_SIZES = (8192, 16384)
_HOT = {"throttle_reasons": "hw_thermal_slowdown", "temperature_c": 97.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """Request to a simulated worker: GPU, matrix size, which of four workers."""

    gpu: int
    size: int
    worker: int


Answer = Callable[[_Question, Reply], Reply]
"""Function that turns a healthy worker's reply into a faulty one."""


_FAIL, _INCOMPLETE = "FAIL exit 1 error", "INCOMPLETE exit 3 error"
_NAMED, _DOUBTFUL = "PASS exit 0 warning", "INCOMPLETE exit 3 warning"


def faults() -> Iterator[Fault]:
    """Yield a fault for each finding of the judge, then one for each threshold."""
    answers: tuple[tuple[str, str, str, Answer], ...] = (
        ("a clock that was halved under load", _FAIL, "below-band", _slower(2.0)),
        ("one of eight cards at 92 %", _FAIL, "odd-device", _slower(1 / 0.92, gpu=5)),
        ("a card that slows itself down for heat", _NAMED, "throttled", _with(conditions=_HOT)),
        ("a hot card that is below its band", _FAIL, "throttled", _hot_and_slow),
        (
            "one wrong row in the product of one worker",
            _FAIL,
            "wrong-answer",
            _says("wrong answer after timing: 1 of 4096 rows of the product are wrong", 1),
        ),
        (
            "a card that falls off the bus",
            _FAIL,
            "device-failed",
            _says("AcceleratorError: CUDA error: GPU is lost"),
        ),
        ("a worker that runs out of its time", _DOUBTFUL, "case-failed", _timeout),
        ("the larger of two sizes that runs out of its time", _INCOMPLETE, "step-not-done", _late),
        ("a clock that is wrong: twice the data sheet", _FAIL, "implausible", _slower(0.4)),
        (
            "others on the processors of every worker",
            _NAMED,
            "noisy",
            _with(disturbed="other processes used 40 % of the processors"),
        ),
        (
            "a required step of which no worker came back",
            _INCOMPLETE,
            "step-not-done",
            _none,
        ),
    )
    rows = ((name, says, finds, partial(_workers, answer)) for name, says, finds, answer in answers)
    yield from named_faults("judge", rows, _judged, "workers")
    others = (
        (
            "a disk whose writes are held by a cache",
            "PASS exit 0 info",
            "write-held-by-cache",
            _disk,
        ),
    )
    yield from named_faults("judge", others, _judged)
    for name, says, finds, scene in _THRESHOLDS:
        yield threshold_fault(name, f"judge.{finds}", f"{says} {finds}:", scene, _judged, finds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Records and sentinel rows that the judge is handed."""

    records: Sequence[Record]
    sentinel: Sequence[dict[str, Any]] = ()
    least: Severity = "info"
    """Least severity of a finding that counts."""


def _neighbour(rng: random.Random, towards: float) -> _Run:
    """Eight looks at a card that goes slower, or faster, at a random one."""
    share = watch_rules().sentinel["gpu"] * (1.0 + towards * TENTH)
    place, is_slower = rng.randrange(1, 7), rng.random() < 0.5
    looks = [
        {
            "t": 1.8e9 + 30.0 * look,
            "m": 30.0 * look,
            "device": _CARD,
            "index": 0,
            "time_s": 1e-3 * (1.0 + share if (look >= place) is is_slower else 1.0),
        }
        for look in range(8)
    ]
    return _Run(records=healthy_records(), sentinel=looks)


def _slower(factor: float, gpu: int | None = None) -> Answer:
    def answer(question: _Question, reply: Reply) -> Reply:
        if gpu not in (None, question.gpu):
            return reply
        samples = tuple(sample * factor for sample in reply.samples)
        return dataclasses.replace(reply, samples=samples)

    return answer


def _with(**changes: Any) -> Answer:
    return lambda question, reply: (
        dataclasses.replace(reply, **changes) if not question.gpu else reply
    )


def _says(reason: str, worker: int | None = None) -> Answer:
    failed = Reply(status=Status.FAILED, reason=reason, duration=1.0)
    return lambda question, reply: failed if worker in (None, question.worker) else reply


def _hot_and_slow(question: _Question, reply: Reply) -> Reply:
    return _with(conditions=_HOT)(question, _slower(2.0)(question, reply))


def _late(question: _Question, reply: Reply) -> Reply:
    return _timeout(question, reply) if question.size == _SIZES[-1] else reply


def _healthy(_: _Question, reply: Reply) -> Reply:
    return reply


@cache
def healthy_records() -> tuple[Record, ...]:
    """Return the records of eight cards that reach what is expected of them."""
    return tuple(_records_of(_healthy))


def _at_rate(rate: float, gpu: int | None = None) -> Answer:
    """Cards, or one of them, at a rate."""
    return _slower(_HEALTHY_RATE / rate, gpu)


def _below_band(_: random.Random, towards: float) -> _Run:
    return _Run(records=_records_of(_at_rate(_BAND[0] * (1.0 - towards * TENTH))))


def _behind(rng: random.Random, towards: float) -> _Run:
    share = 1.0 - SIBLING_MARGIN * (1.0 + towards * TENTH)
    return _Run(records=_records_of(_at_rate(share * _HEALTHY_RATE, rng.randrange(8))))


def _too_fast(_: random.Random, towards: float) -> _Run:
    rate = _LIMIT.value * IMPLAUSIBLE * (1.0 + towards * TENTH)
    return _Run(records=_records_of(_at_rate(rate)), least="warning")


def _clock_told(rng: random.Random, towards: float) -> _Run:
    """Return a run in which one worker's clock runs off its parent's."""
    gpu, worker, parent_s = rng.randrange(8), rng.randrange(4), rng.uniform(50.0, 200.0)
    seconds_off = watch_rules().clocks_apart * (1.0 + towards * TENTH) * parent_s + _LATE_S
    worker_s = parent_s + rng.choice((-1.0, 1.0)) * seconds_off
    clocks: dict[str, Scalar] = {WORKER_CLOCK: worker_s, PARENT_CLOCK: parent_s}
    return _Run(records=_records_of(_with_conditions(gpu, worker, clocks)))


def _share_told(rng: random.Random, towards: float) -> _Run:
    """Return a run in which one worker's samples do not fill the time that they took."""
    share_off = watch_rules().samples_apart * (1.0 + towards * TENTH)
    share: dict[str, Scalar] = {TOLD_SHARE: 1.0 + rng.choice((-1.0, 1.0)) * share_off}
    answer = _with_conditions(rng.randrange(8), rng.randrange(4), share)
    return _Run(records=_records_of(answer))


def _with_conditions(gpu: int, worker: int, conditions: dict[str, Scalar]) -> Answer:
    def answer(question: _Question, reply: Reply) -> Reply:
        if (question.gpu, question.worker) != (gpu, worker):
            return reply
        return dataclasses.replace(reply, conditions={**reply.conditions, **conditions})

    return answer


_LATE_S = 0.3
"""Seconds by which a process may learn late that an event has happened."""


def _timeout(question: _Question, reply: Reply) -> Reply:
    words = "no answer within 20 s; the worker was killed"
    return Reply(status=Status.TIMEOUT, reason=words, duration=20.0)


def _none(question: _Question, reply: Reply) -> Reply:
    words = "fp16 matmul does not run here: not implemented"
    return Reply(status=Status.SKIPPED, reason=words, duration=0.1)


@contextmanager
def _workers(answer: Answer, _: Path, variant: Any) -> Iterator[_Run]:
    yield _Run(records=_records_of(_healthy if variant is HEALTHY else answer))


def _records_of(answer: Answer) -> list[Record]:
    """Eight cards, two sizes, four workers each."""
    records: list[Record] = []
    for gpu in range(8):
        for size in _SIZES:
            case: Case = {"dtype": "fp16", "m": size, "k": size, "n": size, "cache": "hot"}
            request = Request(benchmark=MATMUL.name, case=case, settings={}, timeout=20.0)
            subject = Subject(device=_CARD, index=gpu, count=1, environment="self-test")
            attempts = []
            for worker in range(4):
                call = 2.0 * size**3 / (_HEALTHY_RATE * (1.0 + 0.001 * (worker - gpu % 3)))
                question = _Question(gpu=gpu, size=size, worker=worker)
                reply = answer(question, _clean_reply(call))
                attempts.append(attempt_record(request, reply, subject, worker + 1))
            points = [point.replace(limit=_LIMIT) for point in point_records(attempts)]
            records += [_planned(point) for point in points] + attempts + points
    return records


def _clean_reply(call: float) -> Reply:
    return Reply(
        status=Status.OK,
        samples=tuple(call * (1.0 + 0.0001 * step) for step in range(10)),
        stop="converged",
        started="2026-11-20T00:00:00.000+00:00",
        duration=10.0 * call,
    )


def _planned(point: Record) -> Record:
    """Return the prediction that was written before it, of a required step."""
    low, high = _BAND
    return point.replace(
        id="p" + point.id[1:],
        kind=Kind.PREDICTED,
        value=(low + high) / 2,
        interval=_BAND,
        confidence=None,
        status=Status.OK,
        reason=None,
        disturbed=None,
        limit=None,
        source="published, n = 3",
        conditions={"step": "fp16 matmul", "required": True},
    )


def _point(benchmark: str, case: Case, metric: str, unit: str, value: float) -> Record:
    return Record(
        kind=Kind.MEASURED,
        benchmark=benchmark,
        case=case,
        metric=metric,
        unit=unit,
        value=value,
        interval=(0.98 * value, 1.02 * value),
        confidence=0.95,
        device="this machine",
    )


@contextmanager
def _disk(_: Path, variant: Any) -> Iterator[_Run]:
    """A disk's rates as fio tells them."""
    write = 1.0e9 if variant is HEALTHY else 3.7e9
    rates = {"read": 1.2e9, "write": write, "flushed-write": 1.2e8}
    yield _beside_healthy(
        _point(STORAGE.name, storage_case(op, "fio"), "byte_rate", "B/s", rate)
        for op, rate in rates.items()
    )


def _beside_healthy(records: Iterable[Record]) -> _Run:
    """Return records beside those of healthy cards: what is wrong with them decides the verdict."""
    return _Run(records=[*healthy_records(), *records])


def _judged(run: _Run) -> Iterable[str]:
    return verdict_lines(judge(run.records, sentinel=run.sentinel), run.least)


def _step(rng: random.Random, towards: float) -> _Run:
    """Return a training step of 100 ms and what its marks leave over, or count twice."""
    case = case_of(Experiment.of(model="gpt2-small-cpu"), "0123456789")
    unassigned_share = rng.choice((-1.0, 1.0)) * MAX_OTHER * (1.0 + towards * TENTH)
    return _beside_healthy(
        _point(TRAINING.name, case, metric, "s", value)
        for metric, value in {"time": 0.1, "time.other": 0.1 * unassigned_share}.items()
    )


def _layers(_: random.Random, towards: float) -> _Run:
    """Return a layer of a card that has products."""
    share = class_rules().layers.least_of_products * (1.0 - towards * TENTH)
    layer: Case = {
        "layer": "GPT-2 medium block",
        "dtype": "bf16",
        "pass": "forward+backward",
        "batch_size": 16,
        "seq_len": 1024,
        "hidden": 1024,
        "heads": 16,
        "ffn": 4096,
        "code": "trainrig",
        "attention": "sdpa",
    }
    # Only a machine whose products and memory were judged passes where layers are measured, too.
    sustained = [
        record.replace(case={**record.case, "sustained": True}) for record in healthy_records()
    ]
    slow = _point_of_card(LAYER.name, layer, share * _HEALTHY_RATE)
    return _Run(records=[*sustained, *_streams(), slow])


def _streams() -> Iterator[Record]:
    """Memory of each card that reaches what is expected of it."""
    case = vector_case("scale", 1 << 28, "cold")
    for index in range(8):
        point = _point(VECTOR.name, case, "byte_rate", "B/s", 0.9e12).replace(
            device=_CARD, device_index=index, reached=0.9e12, rounds=2
        )
        yield _planned(point).replace(interval=(0.85e12, 1.0e12), value=0.9e12)
        yield point


def _host_link(rng: random.Random, towards: float) -> _Run:
    """Copies from the host to eight cards."""
    slow, behind = rng.randrange(8), link_rules().behind_siblings * (1.0 + towards * TENTH)
    case: Case = {"direction": "h2d", "bytes": 1 << 28, "memory": "pinned", "cache": "cold"}
    request = Request(benchmark=COPY.name, case=case, settings={}, timeout=20.0)
    records: list[Record] = []
    for gpu in range(8):
        subject = Subject(device=_CARD, index=gpu, count=1, environment="self-test")
        call = 0.01 / (1.0 - behind if gpu == slow else 1.0)
        attempts = [
            attempt_record(request, _clean_reply(call * (1.0 + 0.0005 * num)), subject, num + 1)
            for num in range(4)
        ]
        records += [*attempts, *point_records(attempts)]
    return _beside_healthy(records)


def _doubles(_: random.Random, towards: float) -> _Run:
    """Products of a type that nothing is predicted of."""
    (rule,) = class_rules().claim
    rate = rule.least * 67e12 * (1.0 - towards * TENTH)
    case: Case = {"dtype": rule.dtype, "m": 8192, "k": 8192, "n": 8192, "cache": "hot"}
    limit = Limit(value=67e12, source="data sheet")
    return _beside_healthy([_point_of_card(MATMUL.name, case, rate, limit)])


def _point_of_card(benchmark: str, case: Case, rate: float, limit: Limit | None = None) -> Record:
    return dataclasses.replace(
        _point(benchmark, case, "flop_rate", "FLOP/s", rate),
        device=_CARD,
        device_index=0,
        interval=(0.999 * rate, 1.001 * rate),
        limit=limit,
    )


_THRESHOLDS: tuple[tuple[str, str, str, Scene], ...] = (
    ("cards below their band", _FAIL, "below-band", _below_band),
    ("one card behind its siblings", _FAIL, "odd-device", _behind),
    ("a rate that no chip reaches", _FAIL, "implausible", _too_fast),
    ("a worker whose clock is off", _INCOMPLETE, "clock-wrong", _clock_told),
    ("samples that do not fill their time", _INCOMPLETE, "clock-wrong", _share_told),
    ("a neighbour that begins or ends", _INCOMPLETE, "machine-changed", _neighbour),
    ("time of a step that belongs to none of its parts", _NAMED, "time-in-no-part", _step),
    ("products of fp64 far below their claim", _FAIL, "below-claim", _doubles),
    (
        "layers far below their card's products",
        "MEASURED exit 0 warning",
        "layers-slow",
        _layers,
    ),
    (
        "copies to one card behind its siblings'",
        "MEASURED exit 0 warning",
        "host-link-behind-siblings",
        _host_link,
    ),
)
