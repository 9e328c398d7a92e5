"""What only a GPU can show; skipped, and counted, where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainrig.benchmarks.copy import copy_case
from trainrig.benchmarks.matmul import DTYPES, matmul_case
from trainrig.benchmarks.vector import vector_case
from trainrig.machine import inspect
from trainrig.measure import copy, matmul, vector
from trainrig.measure.clock import CudaClock
from trainrig.measure.matmul import wrong_answer
from trainrig.measure.timing import Settings, Unsupported, sample
from trainrig.runner.targets import find_targets
from trainrig.store import find_runs, read_run

pytestmark = pytest.mark.gpu
DEVICE = "cuda:0"


def test_the_gpu_is_found_named_and_a_target():
    targets = [target for target in find_targets(inspect()) if target.is_gpu]
    assert targets
    assert targets[0].memory_bytes > 1 << 30


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_right_or_said_to_be_unsupported(dtype):
    try:
        prepared = matmul.prepare(matmul_case(dtype, 1024), DEVICE)
    except Unsupported as error:
        pytest.skip(f"this GPU: {error.message}")
    assert prepared.wrong() is None


def test_one_wrong_element_in_a_million_is_caught():
    import torch

    left = torch.randn(1024, 1024, dtype=torch.float16, device=DEVICE)
    right = torch.randn(1024, 1024, dtype=torch.float16, device=DEVICE)
    product = left @ right
    assert wrong_answer(left, right, product, "fp16") is None
    product[513, 77] += 200.0
    assert wrong_answer(left, right, product, "fp16") is not None


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("vector", vector_case("scale", 1 << 20, "hot")),
        ("vector", vector_case("gelu", 1 << 22, "cold")),
        ("copy", copy_case("h2d", 1 << 26, "pinned")),
        ("copy", copy_case("d2h", 1 << 26, "pageable")),
        ("copy", copy_case("d2d", 1 << 26, "device")),
    ],
)
def test_benchmarks_run_and_check_their_answers(name, case):
    prepared = {"vector": vector, "copy": copy}[name].prepare(case, DEVICE)
    assert prepared.wrong() is None
    samples = sample(CudaClock(DEVICE), prepared.call, Settings(max_time=0.2))
    assert samples.median > 0.0
    assert prepared.wrong() is None


def test_events_agree_with_the_wall_clock_on_long_work():
    """A kernel's event time is within the wall time of the synchronised batch."""
    import time

    import torch

    matrix = torch.randn(4096, 4096, device=DEVICE)
    clock = CudaClock(DEVICE)
    clock.time(lambda: matrix @ matrix, 3)
    start = time.perf_counter()
    seconds = clock.time(lambda: matrix @ matrix, 50)
    assert 0.0 < seconds <= time.perf_counter() - start


def test_qualify_measures_the_gpu(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "trainrig", "qualify", "--budget", "60s", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1, 3), done.stderr
    (folder,) = find_runs(tmp_path)
    points = [record for record in read_run(folder).records if record.is_point]
    assert any(p.device_index == 0 and p.value and p.benchmark == "matmul" for p in points)


def test_first_weights_are_those_of_a_cpu():
    import torch

    from trainrig import models, workload

    shape = workload.custom("llama", num_layers=2, hidden=64, num_heads=4, vocab=96)
    on_cpu, on_gpu = (models.build(shape, device=d, seed=3).state_dict() for d in ("cpu", DEVICE))
    assert all(torch.equal(on_gpu[name].cpu(), on_cpu[name]) for name in on_cpu)
