"""The Makefile: what it says when something is missing, and that it mends what was interrupted.

Nothing is installed here: python is a stand-in that makes an environment of stand-ins.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainrig.process.python_env import LEAST_TORCH

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.needs("make")


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A clone that has not been set up."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    return tmp_path


def make(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **env},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def fake_python(folder: Path, *, fails_on: str) -> Path:
    """A python that fails where its arguments match a pattern, as an unfit one would."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\ncase "$*" in *{fails_on}*) echo noise >&2; exit 1;; esac\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("fails_on", "hint"),
    [("version_info", "is older than 3.11"), ("ensurepip", "sudo apt install python3-venv")],
)
def test_an_unfit_python_gets_one_line(fresh: Path, fails_on: str, hint: str) -> None:
    result = make(fresh, "qualify", f"PYTHON={fake_python(fresh, fails_on=fails_on)}")
    assert result.returncode == 2
    ours = [line for line in result.stderr.splitlines() if line.startswith("trainrig: ")]
    assert len(ours) == 1
    assert hint in ours[0]
    assert not (fresh / ".venv").exists()


def test_a_python_that_is_not_there_gets_one_line(fresh: Path) -> None:
    result = make(fresh, "setup", "PYTHON=python-of-nowhere")
    assert "there is no python-of-nowhere" in result.stderr
    assert result.returncode == 2


def test_an_existing_torch_that_is_not_there_gets_one_line(fresh: Path) -> None:
    """-S leaves site-packages out: a python without torch."""
    python = fresh / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    result = make(fresh, "qualify", "TORCH=existing", f"PYTHON={python}")
    assert "has no torch" in result.stderr
    assert "Error 3" in result.stderr
    assert not (fresh / ".venv-existing.txt").exists()


def test_an_existing_torch_that_is_too_old_gets_one_line(fresh: Path) -> None:
    """A python whose torch is of before the floor, by its metadata."""
    old = fresh / "old"
    (old / "torch-2.6.0.dist-info").mkdir(parents=True)
    (old / "torch-2.6.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n"
    )
    (old / "torch.py").write_text("")
    python = fresh / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={old} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    result = make(fresh, "qualify", "TORCH=existing", f"PYTHON={python}")
    assert f"torch 2.6.0 is older than {LEAST_TORCH}, which trainrig needs" in result.stderr
    assert not (fresh / ".venv-existing.txt").exists()


def test_make_alone_lists_the_targets(fresh: Path) -> None:
    listed = re.findall(r"^make ([a-z]+) {2,}", make(fresh).stdout, re.MULTILINE)
    set_up, gates = ["setup", "engines"], ["test", "smoke", "acceptance", "mutate", "lint"]
    assert listed == ["help", *set_up, "qualify", *gates, "docs", "messages", "bench", "clean"]


# `-m venv DIR` makes DIR with a copy of this script, `-m pip` notes what it is asked for.
STAND_IN = """#!/bin/sh
case "$*" in
    *existing_torch*) ;;
    *torch_wheel*) echo "$3" >>wheels; echo "$TORCH_INDEX" >>wheels;;
    "-m venv"*)
        for folder; do :; done
        mkdir -p "$folder/bin"
        cp "$0" "$folder/bin/python"
        printf '#!/bin/sh\\necho "trainrig $1"; exit 3\\n' >"$folder/bin/trainrig"
        chmod +x "$folder/bin/trainrig"
        echo venv >>log;;
    "-m pip"*torch*) echo full >>log; exit ${FULL_STATUS:-0};;
    "-m pip"*) echo light >>log;;
esac
"""


@pytest.fixture
def python(fresh: Path) -> str:
    path = fresh / "stand-in"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return f"PYTHON={path}"


def took(folder: Path) -> list[str]:
    """The steps since the last look."""
    log = folder / "log"
    steps = log.read_text().split() if log.exists() else []
    log.write_text("")
    return steps


WHOLE = ["venv", "light", "light", "full"]


def test_the_second_time_there_is_nothing_to_do(fresh: Path, python: str) -> None:
    first = make(fresh, "setup", python)
    assert first.returncode == 0, first.stderr
    assert took(fresh) == WHOLE
    make(fresh, "setup", python)
    assert took(fresh) == []


def test_a_torch_that_was_asked_for_is_installed_and_stays(fresh: Path, python: str) -> None:
    """Given another TORCH the environment changes; given none it stays as it is."""
    make(fresh, "setup", python, "TORCH_INDEX=file:///builds")
    make(fresh, "setup", python, "TORCH=2.9.1")
    took(fresh)
    make(fresh, "setup", python)
    assert took(fresh) == []
    asked = (fresh / "wheels").read_text().splitlines()
    assert asked == ["auto", "file:///builds", "2.9.1", ""]
    assert [path.name for path in (fresh / ".venv").glob(".torch-*")] == [".torch-2.9.1"]


def test_the_first_look_comes_before_torch(fresh: Path, python: str) -> None:
    result = make(fresh, "setup", python)
    assert result.stdout.splitlines() == ["trainrig inspect"]
    assert "inspect failed" in result.stderr  # it says so and goes on


def test_a_failed_stage_is_taken_up_again(fresh: Path, python: str) -> None:
    failed = make(fresh, "setup", python, FULL_STATUS="1")
    assert failed.returncode == 2
    took(fresh)
    assert make(fresh, "setup", python).returncode == 0
    assert took(fresh) == ["full"]


def test_an_interrupted_stage_means_a_new_environment(fresh: Path, python: str) -> None:
    make(fresh, "setup", python)
    took(fresh)
    (fresh / ".venv" / ".light").rename(fresh / ".venv" / ".held")  # as a killed stage leaves it
    make(fresh, "setup", python)
    assert took(fresh) == WHOLE


def test_a_python_that_is_gone_means_a_new_environment(fresh: Path, python: str) -> None:
    make(fresh, "setup", python)
    took(fresh)
    link = fresh / ".venv" / "bin" / "python"
    link.unlink()
    link.symlink_to("/python-of-nowhere")
    assert make(fresh, "setup", python).returncode == 0
    assert took(fresh) == WHOLE


def test_a_changed_requirement_is_installed_into_what_is_there(fresh: Path, python: str) -> None:
    make(fresh, "setup", python)
    took(fresh)
    now = (fresh / ".venv" / ".full").stat().st_mtime_ns + 10**9
    os.utime(fresh / "pyproject.toml", ns=(now, now))
    make(fresh, "setup", python)
    assert took(fresh) == ["light", "light", "full"]


def test_the_exit_code_of_qualify_is_told(fresh: Path, python: str) -> None:
    result = make(fresh, "qualify", python, "ARGS=--budget 5s")
    assert result.stdout.splitlines()[-1] == "trainrig qualify"
    assert result.returncode == 2
    assert "Error 3" in result.stderr


def test_bench_runs_every_benchmark_and_nothing_else(fresh: Path, python: str) -> None:
    folder = fresh / "perf"
    folder.mkdir()
    for name in ("_shared.py", "one.py", "two.py"):
        (folder / name).touch()
    make(fresh, "setup", python)
    (fresh / ".venv" / "bin" / "python").write_text('#!/bin/sh\ntest "$1" = perf/two.py\n')
    os.utime(fresh / ".venv" / "bin" / "python", ns=(0, 0))
    result = make(fresh, "bench", python)
    assert result.stdout.splitlines() == ["== perf/one.py", "== perf/two.py"]
    assert result.returncode == 2  # the first one failed, the second one ran all the same
