"""scripts/gpu_check.sh without a GPU: what its training parts start, and that it goes on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = """#!/bin/sh
echo "$*" >> "$TOLD"
for word; do [ "$last" = --out ] && out=$word; last=$word; done
case "$*" in *bundle*) : > "$out"; exit 0 ;; *--out*) mkdir -p "$out/20270101T000000Z-run" ;; esac
case "$*" in *1.3B*) exit "${CODE:-0}" ;; esac
exit 1
"""


def walk(folder: Path, code: int, *stage: str, **settings: str) -> list[str]:
    """What was started; the run of the 1.3B ends with ``code``, all others with a finding."""
    told = folder / "told"
    told.unlink(missing_ok=True)
    python = folder / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    env = {"PYTHON": str(python), "OUT": str(folder / "out"), "TOLD": str(told), "CODE": str(code)}
    env |= settings
    done = subprocess.run(
        ["bash", str(ROOT / "scripts/gpu_check.sh"), *stage],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = told.read_text().splitlines() if told.exists() else []
    return [line for line in lines if "bundle" not in line]


def test_parts_of_train_are_done_once_and_what_broke_is_started_again(tmp_path: Path) -> None:
    first = walk(tmp_path, 2, "train")
    assert len(first) == 6
    assert "test_gpu_training" in first[0] and "matmul --peak" in first[-1]
    assert "--only GPT-2-medium, Trainer at --only GPT-2-medium, ours, compiled" in first[1]
    (again,) = walk(tmp_path, 0, "train")
    assert again == first[2] and "GPT-1.3B" in again
    assert walk(tmp_path, 0, "train") == []
    bundles = {path.name for path in (tmp_path / "out").glob("*.bundle")}
    assert {"train-bars-355M.bundle", "train-worth.bundle", "train-peak.bundle"} <= bundles


def test_the_first_look_goes_from_contact_to_trainings_and_ends_with_a_page(tmp_path: Path) -> None:
    started = walk(tmp_path, 0)
    order = ["-c", "inspect", "doctor", "-m pytest", "bench matmul", "qualify", "train", "train"]
    assert [word in line for word, line in zip(order, started, strict=False)] == [True] * 8
    page = (tmp_path / "out" / "summary.txt").read_text()
    assert "qualify: exit code 1" in page and "not started" not in page
    assert (tmp_path / "out.tar.gz").stat().st_size > 0
    assert walk(tmp_path, 0) == []


def test_the_first_look_without_time_starts_nothing_and_goes_on_later(tmp_path: Path) -> None:
    assert walk(tmp_path, 0, LIMIT="0") == []
    page = (tmp_path / "out" / "summary.txt").read_text()
    assert page.count("not started") == 9
    assert len(walk(tmp_path, 0)) == 9
