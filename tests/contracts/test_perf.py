"""The programs in perf/: each runs by itself, prints a ratio, and is documented."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "perf"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))
TRAINING = {
    *("checkpoint_stall", "collective_vs_bare", "layouts_vs_bare", "step_breakdown"),
    "train_vs_hf",
}
"""They start ranks or two engines, for up to a minute."""
SLOW = {"burn_checked", "ddp_vs_hf", "sampler_cost"} | {
    "loop_vs_blocked_autorange",
    "measuring_cost",
    "peak_vs_sweep",
    "worker_overhead",
}
"""Torch is imported and something is timed for seconds, or it is beside one of TRAINING's."""


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.smoke) for name in sorted(TRAINING)),
        *(pytest.param(name, marks=pytest.mark.acceptance) for name in sorted(SLOW)),
        *(name for name in PROGRAMS if name not in TRAINING | SLOW),
    ],
)
def test_it_runs_and_prints_a_ratio(name: str) -> None:
    # One thread: several tests share the processors, and nothing here is timed in earnest.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER.parent / "src")}
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--quick"]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"^ratio \d+\.\d+ of ", done.stdout, re.MULTILINE), done.stdout


def test_each_is_documented_and_nothing_else() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert re.findall(r"^\| `(\w+)\.py` \|", readme, re.MULTILINE) == PROGRAMS


def test_make_bench_runs_the_programs_and_not_their_helpers() -> None:
    makefile = (FOLDER.parent / "Makefile").read_text()
    assert "perf/[!_]*.py" in makefile
    assert {path.name for path in FOLDER.glob("_*.py")}  # there are helpers to be left out


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((0.97, 1.04), "met"),
        ((0.986, 1.338), "cannot tell"),  # reaches into 5 %, and far beyond
        ((1.06, 1.10), "MISSED"),
    ],
)
def test_within_means_the_whole_interval(
    interval: tuple[float, float], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    collective = importlib.import_module("collective_vs_bare")
    assert collective.within([(0.99, 1.01), interval]) == words
