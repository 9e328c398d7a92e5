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
FIELDS = (
    *("model", "reference_loss", "status", "reason", "losses", "layout_found"),
    *("tokens_per_s", "breakdown"),
)


def train(file: Path, folder: Path, *options: str) -> list[dict[str, Any]]:
    """The rows that were trained at tiny scale on this host's cores."""
    command = (sys.executable, "-m", "trainrig", "train", str(file), "--scale", "tiny", "--json")
    ended = subprocess.run(
        (*command, "--out", str(folder), *options), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(ended.stdout)["experiments"]
    return found


def check(row: dict[str, Any]) -> None:
    """It agrees: fp32 to rounding, in every precision its first step within 1e-3."""
    name, parity, found = row["name"], row["parity"], row["layout_found"]
    assert row.keys() >= set(FIELDS), name
    assert row["row_verdict"] == "agreed", (name, row["row_verdict"])
    loss, norm = (2e-6, 1e-5) if row["settings"]["precision"] == "fp32" else (2e-2, 1e-3)
    assert parity["loss_gap"] <= loss, (name, parity["loss_gap"])
    assert parity["norm_gap"] <= norm, (name, parity["norm_gap"])
    first = abs(parity["losses"][0] / row["reference_loss"] - 1.0)
    assert first <= 1e-3, (name, first)
    assert found["recompute"] in (row["layout_asked"].get("recompute"), None), name


@pytest.mark.smoke
def test_some_layouts_agree_with_one_process(tmp_path: Path) -> None:
    chosen = [word for name in FEW for word in ("--only", name)]
    rows = train(FILE, tmp_path, *chosen)
    assert len(rows) >= len(FEW)
    for row in rows:
        check(row)


@pytest.mark.acceptance
def test_all_layouts_agree_with_one_process(tmp_path: Path) -> None:
    rows = train(FILE, tmp_path)
    assert len(rows) >= LEAST
    for row in rows:
        check(row)
