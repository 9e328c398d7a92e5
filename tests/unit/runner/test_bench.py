"""bench: what is asked for is what is measured; nonsense is refused before anything is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainrig.errors import UsageError
from trainrig.runner.bench import BenchRequest, bench
from trainrig.store import find_runs, read_run


def bench_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainrig", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["tensor"], "benchmark"),
        (["step"], "step"),
        (["matmul", "--dtype", "fp12"], "fp12"),
        (["matmul", "--size", "0"], "size"),
        (["matmul", "--size", "-4"], "size"),
        (["matmul", "--size", "9999999"], "size"),
        (["matmul", "--size", "12x12"], "size"),
        (["matmul", "--size", "big"], "size"),
        (["matmul", "--op", "scale"], "--op"),
        (["vector", "--op", "sin"], "sin"),
        (["vector", "--size", "1e6"], "size"),
        (["vector", "--dtype", "int8"], "int8"),
        (["copy", "--op", "sideways"], "sideways"),
        (["copy", "--dtype", "fp32"], "--dtype"),
        (["matmul", "--device", "cuda:99", "--size", "128"], "cuda:99"),
        (["matmul", "--budget", "1s"], "budget"),
        (["vector", "--peak"], "peak"),
        ([], "BENCHMARK"),
    ],
    ids=" ".join,
)
def test_nonsense_is_one_line_and_leaves_nothing(trainrig, tmp_path: Path, arguments, word):
    code, out, err = trainrig("bench", *arguments, "--out", str(tmp_path))
    assert (code, out) == (2, ""), err
    lines = [line for line in err.splitlines() if not line.startswith("== ")]
    assert lines[0].startswith("trainrig: ")
    assert word.lower() in lines[0].lower()
    assert all(line.startswith("  hint: ") for line in lines[1:])
    assert find_runs(tmp_path) == ()


def test_what_is_asked_for_is_measured(tmp_path: Path):
    sizes = ["--size", "64", "--size", "48x32x16"]
    done = bench_process(
        "matmul", "--dtype", "fp32", *sizes, "--budget", "6s", "--json", "--out", str(tmp_path)
    )
    assert done.returncode in (0, 1, 3), done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    cases = [point["case"] for point in summary["points"]]
    shape = {"m": 48, "k": 32, "n": 16, "dtype": "fp32", "cache": "hot"}
    assert shape in cases
    assert {case["m"] for case in cases} == {64, 48}
    (folder,) = find_runs(tmp_path)
    run = read_run(folder)
    assert run.verdict is not None
    assert run.config["options"] == ["--dtype=fp32", *(f"--size={size}" for size in sizes[1::2])]


def test_a_device_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match="no such device"):
        bench(BenchRequest(benchmark="matmul", device="cuda:7"), budget=5.0, out=tmp_path)


def test_a_run_keeps_the_options_that_ask_for_it_again(tmp_path: Path):
    request = BenchRequest(benchmark="vector", sizes=("4096",), ops=("scale",), device="cpu")
    assert request.options() == ["--size=4096", "--op=scale", "--device=cpu"]
    assert (
        "--path=" + str(tmp_path.absolute())
        in BenchRequest(benchmark="storage", path=tmp_path).options()
    )
