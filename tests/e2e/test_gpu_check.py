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


def walk(folder: Path, code: int) -> list[str]:
    """What was started; the run of the 1.3B ends with ``code``, all others with a finding."""
    told = folder / "told"
    told.unlink(missing_ok=True)
    python = folder / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    env = {"PYTHON": str(python), "OUT": str(folder / "out"), "TOLD": str(told), "CODE": str(code)}
    done = subprocess.run(
        ["bash", str(ROOT / "scripts/gpu_check.sh"), "train"],
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
    first = walk(tmp_path, code=2)
    assert len(first) == 6
    assert "test_gpu_training" in first[0] and "matmul --peak" in first[-1]
    assert "--only GPT-2-medium, Trainer at --only GPT-2-medium, ours, compiled" in first[1]
    (again,) = walk(tmp_path, code=0)
    assert again == first[2] and "GPT-1.3B" in again
    assert walk(tmp_path, code=0) == []
    bundles = {path.name for path in (tmp_path / "out").glob("*.bundle")}
    assert {"train-bars-355M.bundle", "train-worth.bundle", "train-peak.bundle"} <= bundles
