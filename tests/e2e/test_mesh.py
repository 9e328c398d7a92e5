"""experiments/mesh.toml: every layout trains, and agrees with one process of its model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "experiments" / "mesh.toml"
FEW = ("TP 2, SP, bf16", "CP 2, ZeRO-3", "PP 2 x DP 2, ZeRO-1")
LEAST = 32


def rows(folder: Path, *options: str) -> list[dict[str, Any]]:
    """The rows that were trained at tiny scale on this host's cores."""
    command = (sys.executable, "-m", "trainrig", "train", str(FILE), "--scale", "tiny", "--json")
    ended = subprocess.run(
        (*command, "--out", str(folder), *options), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(ended.stdout)["experiments"]
    return found


@pytest.mark.smoke
def test_some_layouts_agree_with_one_process(tmp_path: Path) -> None:
    chosen = [word for name in FEW for word in ("--only", name)]
    assert len(rows(tmp_path, *chosen)) >= len(FEW)


@pytest.mark.acceptance
def test_all_layouts_agree_with_one_process(tmp_path: Path) -> None:
    assert len(rows(tmp_path)) >= LEAST
