"""A report on a run of 10,000 records, the whole process, beside reading them with json.loads.

Peer: a process that reads the same lines with json.loads and does nothing else:
the least that any report on them costs.  Target: under 1 s of processor time, with
the HTML file.
"""

from __future__ import annotations

import datetime
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from _shared import cost_of, in_turns, middle, options, say_load, verdict

from trainrig.benchmarks.spec import benchmark
from trainrig.machine import inspect, to_dict
from trainrig.measure.aggregate import Subject, attempt_record, point_records
from trainrig.process.worker import Reply, Request
from trainrig.record import Case, Kind, Record, Status, to_json
from trainrig.store import create_run

TARGET_S = 1.0
_DTYPES = ("fp32", "bf16", "fp16", "fp64")
_SIZES = tuple(range(128, 4096 + 1, 128))
_READ = "import json,sys\nfor line in open(sys.argv[1], 'rb'): json.loads(line)"


def main() -> None:
    """Write a run, report on it in turns with the peer, print the ratio."""
    arguments = options(__doc__).parse_args()
    say_load()
    count, rounds = (500, 1) if arguments.quick else (10_000, 7)
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder), count)
        records = run / "records.jsonl"
        lines = sum(1 for _ in records.open("rb"))
        print(f"{lines} records, {records.stat().st_size / 1e6:.1f} MB")
        html = Path(folder) / "report.html"
        trainrig = [sys.executable, "-m", "trainrig", "report", str(run)]
        found = in_turns(
            rounds,
            {
                "report --html": lambda: cost_of([*trainrig, "--html", str(html)]).cpu_s,
                "report (terminal)": lambda: cost_of(trainrig).cpu_s,
                "json.loads": lambda: cost_of([sys.executable, "-c", _READ, str(records)]).cpu_s,
            },
        )
        print(f"the HTML file has {html.stat().st_size / 1e6:.2f} MB")
    for name, values in found.items():
        print(f"{name:18s} {middle(values)} CPU")
    ours, _, peer = (statistics.median(values) for values in found.values())
    print(
        f"ratio {ours / peer:.1f} of json.loads alone; "
        f"{ours:.2f} s CPU, target under {TARGET_S:.0f} s: {verdict(ours < TARGET_S)}"
    )


def write_run(parent: Path, count: int) -> Path:
    """A run of ``count`` records: predictions, two attempts a case with raw samples, points."""
    with create_run(parent, "qualify", {"trainrig": "benchmark", "budget_s": 240.0}) as run:
        run.write_machine(to_dict(inspect()))
    lines = []
    for record in records_of(run.name):
        if len(lines) == count:
            break
        lines.append(to_json(record) + "\n")
    (run.path / "records.jsonl").write_text("".join(lines), encoding="utf-8")
    return run.path


def records_of(run: str) -> Iterator[Record]:
    """Case after case, without end for any use here."""
    chance = random.Random(7)
    subject = Subject(device="RTX 4090", index=0, count=1, environment="0123456789abcdef")
    for case in cases():
        metric = benchmark("matmul").metrics(case)[0]
        yield Record(
            run=run,
            kind=Kind.PREDICTED,
            benchmark="matmul",
            case=case,
            metric=metric.name,
            unit=metric.unit,
            value=1.5e14,
            interval=(1.3e14, 1.7e14),
            source="published for RTX 4090, n = 3",
            device="RTX 4090",
            device_index=0,
            conditions={"step": f"{case['dtype']} matmul", "required": False},
        )
        request = Request(benchmark="matmul", case=case, settings={"max_time": 0.4}, timeout=10.0)
        seconds = metric.amount / 1.5e14
        attempts = [
            attempt_record(request, reply(chance, seconds), subject, number).replace(run=run)
            for number in (1, 2)
        ]
        yield from attempts
        yield from point_records(attempts)


def cases() -> Iterator[Case]:
    """Matmul cases of every type and many shapes."""
    for m in _SIZES:
        for k in _SIZES:
            for dtype in _DTYPES:
                yield {"dtype": dtype, "m": m, "k": k, "n": m, "cache": "hot"}


def reply(chance: random.Random, seconds: float) -> Reply:
    """Twenty samples around ``seconds``, as a quiet machine gives them."""
    samples = tuple(seconds * chance.uniform(1.0, 1.01) for _ in range(20))
    return Reply(
        status=Status.OK,
        samples=samples,
        stop="converged",
        conditions={"clock": "CUDA events", "calls_per_sample": 4, "sm_clock_hz": 2.52e9},
        started=datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC).isoformat(),
        duration=0.3,
    )


if __name__ == "__main__":
    main()
