"""A package of its own adds a benchmark, an importer, a verb and a chip: examples/plugin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainrig.errors import EXIT_INCOMPLETE, EXIT_OK, EXIT_USAGE
from trainrig.store import read_run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "plugin"

Trainrig = Callable[..., "subprocess.CompletedProcess[str]"]


def run_in(folder: Path, packages: Path) -> Trainrig:
    """Return a function that runs trainrig in ``folder`` where ``packages`` is installed, too."""
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT / "src")]),
        "XDG_CONFIG_HOME": str(folder / "config"),
    }

    def trainrig(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trainrig", *words]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=folder, env=environ
        )

    return trainrig


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Trainrig:
    """The example as pip installs it, and its chip in the user's folder."""
    folder = tmp_path_factory.mktemp("plugin")
    copy = shutil.copytree(EXAMPLE, folder / "source")  # a build leaves files in its folder
    packages = folder / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", f"--target={packages}", str(copy)], check=True)
    chips = folder / "config" / "trainrig" / "chips"
    chips.mkdir(parents=True)
    shutil.copy(EXAMPLE / "chips" / "example.toml", chips)
    return run_in(folder, packages)


def test_its_verb_runs_and_an_unknown_one_is_refused_as_before(installed: Trainrig) -> None:
    assert installed("hello").stdout == "hello from trainrig-example\n"
    done = installed("helo")
    assert done.returncode == EXIT_USAGE and "unknown verb" in done.stderr


def test_its_benchmark_is_measured_by_its_own_half(installed: Trainrig, tmp_path: Path) -> None:
    """On a busy machine one worker may be all that the time is enough for: INCOMPLETE."""
    words = ("--size", "4Ki", "--device", "cpu", "--budget", "6s", "--out", str(tmp_path))
    done = installed("bench", "sort", *words)
    assert done.returncode in (EXIT_OK, EXIT_INCOMPLETE), done.stderr
    points = [record for record in read_run(tmp_path).records if record.metric == "element_rate"]
    assert points[-1].benchmark == "sort" and (points[-1].value or 0.0) > 0.0


@pytest.mark.parametrize("words", [(), ("--as", "sortlog")])
def test_its_importer_recognises_its_file(
    installed: Trainrig, tmp_path: Path, words: tuple[str, ...]
) -> None:
    log = tmp_path / "sorted.log"
    log.write_text("sorted 1000000 fp32 elements in 50 ms on Example One\n")
    done = installed("import", str(log), *words)
    assert done.returncode == EXIT_OK, done.stderr
    assert "20.0 Melement/s" in done.stdout and "Example One" in done.stdout
    log.write_text("sorted 1000000 fp32 elements in\n")
    done = installed("import", str(log), "--as", "sortlog")
    assert done.returncode == EXIT_USAGE and "sorted.log:1: " in done.stderr


def test_its_chip_is_in_the_catalog(installed: Trainrig) -> None:
    done = installed("catalog", "Example One", "--json")
    assert done.returncode == EXIT_OK, done.stderr
    assert "Example One, data sheet" in done.stdout


def test_a_broken_chip_of_the_user_is_named_in_one_line(tmp_path: Path) -> None:
    chips = tmp_path / "config" / "trainrig" / "chips"
    chips.mkdir(parents=True)
    (chips / "mine.toml").write_text('schema = 1\n[[chip]]\nname = "Mine"\nbandwith_gb_s = 1\n')
    done = run_in(tmp_path, tmp_path)("catalog", "Mine")
    assert done.returncode == EXIT_USAGE and "mine.toml" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("body", "reason"),
    [("import nothing_like_this\n", "ModuleNotFoundError"), ("command = 1\n", "not a Command")],
)
def test_a_broken_package_is_named_in_one_line(tmp_path: Path, body: str, reason: str) -> None:
    (tmp_path / "bad.py").write_text(body)
    info = tmp_path / "bad-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[trainrig.verbs]\nbad = bad:command\n")
    done = run_in(tmp_path, tmp_path)("bad")
    assert done.returncode == EXIT_USAGE and "Traceback" not in done.stderr
    assert "package bad" in done.stderr and reason in done.stderr
    assert run_in(tmp_path, tmp_path)("catalog", "RTX 4090").returncode == EXIT_OK  # not loaded
