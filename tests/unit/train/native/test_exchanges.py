"""Collectives that were counted in a real step are those of the formula, as whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import exchange_ranks
import rank_program
from trainrig.models.loss import chunk_rows
from trainrig.train.layout_check import exchange_differences
from trainrig.workload.exchanges import Exchange, exchanges
from trainrig.workload.layout import Layout

RANKS = 4
LAYOUTS: dict[str, dict[str, Any]] = {
    "replicas × tp": {"tp": 2},
    "zero-1, accumulated": {"zero": 1, "grad_accum": 2},
    "zero-2, accumulated": {"zero": 2, "grad_accum": 2},
    "zero-3": {"zero": 3},
    "hybrid": {"zero": 3, "shard_size": 2, "grad_accum": 2},
    "tp": {"tp": 4, "grad_accum": 2},
    "tp+sp": {"tp": 4, "sequence_parallel": 1, "grad_accum": 2},
    "tp, recomputed": {"tp": 4, "recompute": "full"},
    "tp+sp, recomputed": {"tp": 4, "sequence_parallel": 1, "recompute": "full"},
    "tp+sp, recomputed but products": {"tp": 4, "sequence_parallel": 1, "recompute": "selective"},
    "zero-3 × tp+sp": {"tp": 2, "sequence_parallel": 1, "zero": 3},
    **{
        f"{data}, {dtype} × tp+sp": keys
        | {"tp": 2, "sequence_parallel": 1, "grad_accum": 2, "precision": dtype}
        for data, keys in {
            "replicas": {},
            "zero-1": {"zero": 1},
            "zero-2": {"zero": 2},
            "zero-3": {"zero": 3},
        }.items()
        for dtype in ("fp32", "bf16")
    },
    "replicas, bf16 × tp+sp, at once": {"tp": 2, "sequence_parallel": 1, "precision": "bf16"},
}
BASE = {"gpus": RANKS, "batch_size": 2, "seq_len": 16, "precision": "fp32"}
CASES: dict[str, dict[str, Any]] = {
    f"{model}, {name}": {"model": model, "layout": BASE | layout}
    for model in exchange_ranks.SHAPES
    for name, layout in LAYOUTS.items()
    if model == "gpt2" or "tp" in name
}
QUICK = {
    "gpt2, replicas × tp",
    "gpt2, zero-1, accumulated",
    "gpt2, hybrid",
    "gpt2, tp+sp",
    "gpt2, tp+sp, recomputed but products",
    "gpt2, replicas, bf16 × tp+sp",
    "gpt2, zero-2, fp32 × tp+sp",
    "llama, tp",
    "llama, zero-2, bf16 × tp+sp",
    "llama, replicas, bf16 × tp+sp, at once",
    "bert, tp+sp",
    "t5, tp+sp, recomputed",
}
"""What is run each time; the others are the gate's that takes long."""
TRAPS = {
    "all-reduce for reduce-scatter": "gpt2, tp+sp",
    "a layer left out": "llama, tp",
    "an all-reduce ZeRO-1": "gpt2, zero-1, accumulated",
}


def run(asked: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    return rank_program.run(exchange_ranks.__file__, asked, folder, ranks=RANKS)[0]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    quick = {name: CASES[name] for name in sorted(QUICK)}
    planted = {trap: CASES[name] | {"trap": trap} for trap, name in TRAPS.items()}
    return run(quick | planted, tmp_path_factory.mktemp("ranks"))


def apart(case: Mapping[str, Any], found: Any) -> list[str]:
    shape, layout = exchange_ranks.SHAPES[case["model"]], Layout.of(**case["layout"])
    rows = chunk_rows(-(-shape.vocab // int(layout.mesh.tp)), "cpu")
    expected = exchanges(shape, layout, chunk_rows=rows)
    assert expected
    return exchange_differences(expected, [Exchange(**each) for each in found])


@pytest.mark.parametrize("name", sorted(QUICK))
def test_what_is_exchanged_is_what_the_formula_says(name: str, found: Mapping[str, Any]) -> None:
    assert apart(CASES[name], found[name]) == []


@pytest.mark.acceptance
def test_so_it_is_in_every_layout_of_every_family(tmp_path: Path) -> None:
    asked = {name: case for name, case in CASES.items() if name not in QUICK}
    found = run(asked, tmp_path)
    differing = {name: apart(case, found[name]) for name, case in asked.items()}
    assert not any(differing.values()), differing


@pytest.mark.parametrize("trap", TRAPS)
def test_a_planted_fault_that_changes_no_loss_is_found(trap: str, found: Mapping[str, Any]) -> None:
    assert apart(CASES[TRAPS[trap]], found[trap]) != []
