"""Every layout trains, and agrees with one process: experiments/mesh.toml's, and plan's winners."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainrig.runner.layout_search import plan

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
    if row["status"] == "skipped":  # no row waits for instructions that this processor lacks
        assert "is emulated here" in row["reason"], (name, row["reason"])
        return
    assert row["row_verdict"] == "agreed", (name, row["row_verdict"])
    if parity["is_reference"] and parity["loss_gap"] is None:
        return  # it is what others are compared with
    loss, norm = (2e-6, 1e-5) if row["settings"]["precision"] == "fp32" else (2e-2, 1e-3)
    assert parity["loss_gap"] <= loss, (name, parity["loss_gap"])
    assert parity["norm_gap"] <= norm, (name, parity["norm_gap"])
    first = abs(parity["losses"][0] / row["reference_loss"] - 1.0)
    assert first <= 1e-3, (name, first)
    assert found["recompute"] in (row["layout_asked"].get("recompute", "none"), None), name


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


QUESTIONS = (
    ("gpt-neo-1.3B", "RTX 4090", 2, 16),
    ("gpt2", "RTX 4090", 1, 32),
    ("gpt2-medium", "RTX 3090", 2, 32),
    ("gpt2-xl", "A100 SXM4 80GB", 4, 64),
    ("llama-1B", "RTX 4090", 4, 64),
    ("llama-7B", "H100 SXM5 80GB", 8, 128),
    ("llama-7B", "RTX 4090", 8, 64),
    ("llama-13B", "A100 SXM4 80GB", 8, 64),
    ("bert-large", "V100 SXM2 32GB", 8, 256),
    ("t5-large", "A100 SXM4 40GB", 4, 64),
    ("llama-8B", "MI300X", 8, 64),
    ("llama-70B", "GB200", 64, 256),
)
DEEP_RANKS = 16


@pytest.mark.acceptance
@pytest.mark.parametrize(("model", "chip", "gpus", "samples"), QUESTIONS)
def test_the_winner_of_a_plan_trains(
    model: str, chip: str, gpus: int, samples: int, tmp_path: Path
) -> None:
    """Its file as it was written, at tiny scale, on ranks of this host."""
    if model == "llama-70B" and len(os.sched_getaffinity(0)) < DEEP_RANKS:
        pytest.skip(f"fewer than {DEEP_RANKS} cores here")  # too many weights to share one
    asked = {"model": model, "on": chip, "gpus": gpus, "global_batch": samples}
    asked |= {"gpus_per_node": gpus, "framework": "native"}
    winner, *_ = plan(asked, write=tmp_path / "plans").written
    (row,) = train(winner, tmp_path / "runs", "--device", "cpu")
    check(row)
    assert ("16 of 64 ranks" in row["name"]) == (gpus == 64)
