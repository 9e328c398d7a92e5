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
from functools import partial
from pathlib import Path
from typing import Any

from trainrig.analysis.judge import judge
from trainrig.analysis.judge_classes import class_rules
from trainrig.analysis.judge_sentinel import changes_of
from trainrig.analysis.watched_rules import watch_rules
from trainrig.benchmarks.layer import BENCHMARK as LAYER
from trainrig.benchmarks.matmul import BENCHMARK as MATMUL
from trainrig.benchmarks.storage import BENCHMARK as STORAGE
from trainrig.benchmarks.storage import storage_case
from trainrig.benchmarks.training import BENCHMARK as TRAINING
from trainrig.measure.aggregate import Subject, attempt_record, point_records
from trainrig.process.worker import Reply, Request
from trainrig.record import PARENT_CLOCK, WORKER_CLOCK, Case, Kind, Limit, Record, Status
from trainrig.selftest.registry import HEALTHY, Fault, named_faults, plant_seed
from trainrig.train.config import Experiment, case_of

_BAND, _HEALTHY_RATE = (150e12, 180e12), 165e12
_LIMIT = Limit(value=165.2e12, source="RTX 4090 data sheet, fp16 dense, fp32 accumulation")
_SIZES = (8192, 16384)
_HOT = {"throttle_reasons": "hw_thermal_slowdown", "temperature_c": 97.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """A worker's case: of which GPU, which size, which of its four workers."""

    gpu: int
    size: int
    worker: int


Answer = Callable[[_Question, Reply], Reply]
"""What a worker says in place of a healthy one's reply."""


def faults() -> Iterator[Fault]:
    """One for each finding of the judge."""
    answers: tuple[tuple[str, str, Answer], ...] = (
        ("a clock that was halved under load", "below-band", _slower(2.0)),
        ("one of eight cards at 92 %", "odd-device", _slower(1 / 0.92, gpu=5)),
        ("a card that slows itself down for heat", "throttled", _with(conditions=_HOT)),
        (
            "one wrong row in the product of one worker",
            "wrong-answer",
            _says("wrong answer after timing: 1 of 4096 rows of the product are wrong", 1),
        ),
        (
            "a card that falls off the bus",
            "device-failed",
            _says("AcceleratorError: CUDA error: GPU is lost"),
        ),
        ("a worker that runs out of its time", "case-failed", _timeout),
        ("a clock that is wrong: twice the data sheet", "implausible", _slower(0.4)),
        ("a worker whose clock is off by 3 %", "clock-wrong", _off_clock),
        (
            "others on the processors of every worker",
            "noisy",
            _with(disturbed="other processes used 40 % of the processors"),
        ),
    )
    rows = ((name, finds, partial(_workers, answer)) for name, finds, answer in answers)
    yield from named_faults("judge", rows, _judged, "workers")
    yield Fault(
        name="a required step of which no worker came back",
        check="judge.step-not-done",
        says="step-not-done",
        inject=partial(_workers, _none),
        observe=_judged,
        twin="workers",
    )
    yield from named_faults(
        "judge", (("a neighbour that begins and stays", "machine-changed", _looks),), _changes
    )
    others = (
        ("a disk whose writes are held by a cache", "write-held-by-cache", _disk),
        ("time of a step that belongs to none of its parts", "time-in-no-part", _step),
        ("products of fp64 far below their claim", "below-claim", _doubles),
        ("layers far below their card's products", "layers-slow", _layers),
    )
    yield from named_faults("judge", others, _judged)


def _changes(scene: Sequence[dict[str, Any]]) -> Iterable[str]:
    return [f"{one.id}: {one.evidence}" for one in changes_of(scene)]


@contextmanager
def _looks(folder: Path, variant: Any) -> Iterator[Sequence[dict[str, Any]]]:
    """Eight looks at a card that goes slower at a random one: a tenth beyond the limit."""
    share = watch_rules().sentinel["gpu"] * (0.9 if variant is HEALTHY else 1.1)
    place = random.Random(plant_seed()).randrange(1, 7)
    yield [
        {
            "t": 1.8e9 + 30.0 * look,
            "m": 30.0 * look,
            "device": "RTX 4090",
            "index": 0,
            "time_s": 1e-3 * (1.0 + share if look >= place else 1.0),
        }
        for look in range(8)
    ]


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


def _off_clock(question: _Question, reply: Reply) -> Reply:
    """The second worker of the last card, since its first request."""
    if (question.gpu, question.worker) != (7, 1):
        return reply
    clocks = {WORKER_CLOCK: 97.0 - _LATE_S, PARENT_CLOCK: 100.0}
    return dataclasses.replace(reply, conditions={**reply.conditions, **clocks})


_LATE_S = 0.3


def _timeout(question: _Question, reply: Reply) -> Reply:
    words = "no answer within 20 s; the worker was killed"
    return Reply(status=Status.TIMEOUT, reason=words, duration=20.0)


def _none(question: _Question, reply: Reply) -> Reply:
    words = "fp16 matmul does not run here: not implemented"
    return Reply(status=Status.SKIPPED, reason=words, duration=0.1)


@contextmanager
def _workers(answer: Answer, folder: Path, variant: Any) -> Iterator[Sequence[Record]]:
    """Eight cards, two sizes, four workers each."""
    records: list[Record] = []
    for gpu in range(8):
        for size in _SIZES:
            case: Case = {"dtype": "fp16", "m": size, "k": size, "n": size, "cache": "hot"}
            request = Request(benchmark=MATMUL.name, case=case, settings={}, timeout=20.0)
            subject = Subject(device="RTX 4090", index=gpu, count=1, environment="self-test")
            taken = []
            for worker in range(4):
                call = 2.0 * size**3 / (_HEALTHY_RATE * (1.0 + 0.001 * (worker - gpu % 3)))
                reply = _clean_reply(call)
                if variant is not HEALTHY:
                    reply = answer(_Question(gpu=gpu, size=size, worker=worker), reply)
                taken.append(attempt_record(request, reply, subject, worker + 1))
            points = [point.replace(limit=_LIMIT) for point in point_records(taken)]
            records += [_planned(point) for point in points] + taken + points
    yield records


def _clean_reply(call: float) -> Reply:
    return Reply(
        status=Status.OK,
        samples=tuple(call * (1.0 + 0.0001 * step) for step in range(10)),
        stop="converged",
        started="2026-11-20T00:00:00.000+00:00",
        duration=10.0 * call,
    )


def _planned(point: Record) -> Record:
    """The prediction that was written before it, of a required step."""
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
def _disk(folder: Path, variant: Any) -> Iterator[Sequence[Record]]:
    """A disk's rates as fio tells them."""
    write = 1.0e9 if variant is HEALTHY else 3.7e9
    rates = {"read": 1.2e9, "write": write, "flushed-write": 1.2e8}
    yield [
        _point(STORAGE.name, storage_case(op, "fio"), "byte_rate", "B/s", rate)
        for op, rate in rates.items()
    ]


@contextmanager
def _step(folder: Path, variant: Any) -> Iterator[Sequence[Record]]:
    """A training step of 100 ms and what its marks leave over."""
    case = case_of(Experiment.of(model="gpt2-small-cpu"), "0123456789")
    other = 0.001 if variant is HEALTHY else 0.03
    yield [
        _point(TRAINING.name, case, metric, "s", value)
        for metric, value in {"time": 0.1, "time.other": other}.items()
    ]


def _judged(records: Sequence[Record]) -> Iterable[str]:
    return [f"{one.id}: {one.evidence}" for one in judge(records).findings]


@contextmanager
def _layers(folder: Path, variant: Any) -> Iterator[Sequence[Record]]:
    """A product and a layer of one card: a tenth below the least share, or a tenth above it."""
    share = class_rules().layers.least_of_products * (1.1 if variant is HEALTHY else 0.9)
    product: Case = {"dtype": "bf16", "m": 8192, "k": 8192, "n": 8192, "cache": "hot"}
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
    rates = ((MATMUL.name, product, 1.0), (LAYER.name, layer, share))
    yield [
        dataclasses.replace(
            _point(name, case, "flop_rate", "FLOP/s", of_healthy * _HEALTHY_RATE),
            device="RTX 4090",
            device_index=0,
            interval=(0.999 * of_healthy * _HEALTHY_RATE, 1.001 * of_healthy * _HEALTHY_RATE),
        )
        for name, case, of_healthy in rates
    ]


@contextmanager
def _doubles(folder: Path, variant: Any) -> Iterator[Sequence[Record]]:
    """A type that nothing is predicted of, a tenth below its least share, or a tenth above it."""
    (rule,) = class_rules().claim
    rate = rule.least * 67e12 * (1.1 if variant is HEALTHY else 0.9)
    case: Case = {"dtype": rule.dtype, "m": 8192, "k": 8192, "n": 8192, "cache": "hot"}
    yield [
        dataclasses.replace(
            _point(MATMUL.name, case, "flop_rate", "FLOP/s", rate),
            device="H100 SXM5 80GB",
            device_index=0,
            interval=(0.999 * rate, 1.001 * rate),
            limit=Limit(value=67e12, source="data sheet"),
        )
    ]
