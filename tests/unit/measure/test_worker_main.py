"""The real worker with the real torch: one of each family, from request to reply."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainrig.process.worker import Reply, Request, Worker
from trainrig.record import Status

QUICK = {"max_time": 0.02}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """One for the module: it loads torch."""
    source = str(Path(__file__).resolve().parents[3] / "src")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", source)
        with Worker("cpu", tmp_path_factory.mktemp("worker") / "log") as started:
            yield started


def run(worker: Worker, name: str, **case: Any) -> Reply:
    return worker.run(
        Request(
            benchmark=name,
            module=f"trainrig.measure.{name}",
            case=case,
            settings=QUICK,
            timeout=60.0,
        )
    )


def test_it_says_what_it_runs_on(worker: Worker) -> None:
    ready = worker.wait_ready()
    assert ready["torch"].startswith("2.")
    assert ready["threads"] >= 1


@pytest.mark.parametrize(
    ("family", "case"),
    [
        ("matmul", {"dtype": "fp32", "m": 33, "k": 65, "n": 17, "cache": "hot"}),
        ("vector", {"op": "gelu", "dtype": "bf16", "num_elements": 999, "cache": "hot"}),
        ("copy", {"direction": "triad", "bytes": 1 << 22, "memory": "host", "cache": "cold"}),
    ],
)
def test_each_family_runs(worker: Worker, family: str, case: dict[str, Any]) -> None:
    reply = run(worker, family, **case)
    assert reply.status is Status.OK, reply.reason
    assert reply.samples
    assert reply.conditions["clock"] == "host perf_counter"
    assert reply.conditions["threads"] == worker.wait_ready()["threads"]
    assert "main_thread_share" in reply.conditions


@pytest.mark.parametrize(
    ("family", "case", "words"),
    [
        ("matmul", {"dtype": "tf32", "m": 8, "k": 8, "n": 8, "cache": "hot"}, "tensor cores"),
        (
            "copy",
            {"direction": "h2d", "bytes": 64, "memory": "pinned", "cache": "cold"},
            "is for a GPU",
        ),
    ],
)
def test_what_does_not_run_here_is_skipped(
    worker: Worker, family: str, case: dict[str, Any], words: str
) -> None:
    reply = run(worker, family, **case)
    assert reply.status is Status.SKIPPED
    assert words in str(reply.reason)


def test_a_family_that_there_is_not_fails_with_its_reason(worker: Worker) -> None:
    reply = run(worker, "matmull")
    assert reply.status is Status.FAILED
    assert "No module named 'trainrig.measure.matmull'" in str(reply.reason)


def test_process_one_is_a_parent_like_any_other() -> None:
    """In a container the program is process 1, and its workers are not orphans."""
    program = (
        "import os; os.getppid = lambda: 1\n"
        "from trainrig.process import child\n"
        "child.die_with_parent(); print('alive')\n"
    )
    source = str(Path(__file__).resolve().parents[3] / "src")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "alive\n"
