"""Layouts that split the model, on two real ranks: they compute what one process does."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest

import mesh_ranks
from trainrig import models
from trainrig.process.supervisor import Command, launch
from trainrig.record import Status

FAMILIES = ("gpt2", "gpt-neo", "llama", "bert", "t5")
LLAMA = {"num_kv_heads": 2}
CASES: dict[str, dict[str, Any]] = {
    f"{family}-{name}": {"family": family, "shape": LLAMA if family == "llama" else {}} | how
    for family in FAMILIES
    for name, how in {"tp": {"tp": 2}, "tp+sp": {"tp": 2, "sequence_parallel": True}}.items()
}
CASES["gpt2-odd-vocabulary"] = {"family": "gpt2", "tp": 2, "shape": {"vocab": 161}}
CASES["llama-recomputed"] = CASES["llama-tp+sp"] | {"recompute": "full"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What two ranks wrote, one launch for all cases."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "cases.json").write_text(json.dumps(CASES))
    command = Command(
        argv=(sys.executable, mesh_ranks.__file__, str(folder)),
        ranks=2,
        env={"OMP_NUM_THREADS": "1"},
    )
    ended = launch(command, folder, stall_timeout=120.0)
    assert ended.status is Status.OK, ended.reason
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_a_layout_computes_what_one_process_does(name: str, found: Mapping[str, Any]) -> None:
    """Five steps in fp32: losses within 2e-6, gradient norms within 1e-5."""
    for got, exact in zip(found[name]["rows"], mesh_ranks.alone(CASES[name]), strict=True):
        assert got[0] == pytest.approx(exact[0], rel=2e-6)
        assert got[1] == pytest.approx(exact[1], rel=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_every_layout_begins_with_the_weights_of_one_process(
    name: str, found: Mapping[str, Any]
) -> None:
    whole = models.build(mesh_ranks.shape_of(CASES[name]), seed=1).state_dict()
    assert found[name]["digests"] == {
        key: hashlib.sha256(weight.numpy().tobytes()).hexdigest() for key, weight in whole.items()
    }
