"""What a training has besides gradients is on ranks what it is in one process.

Held-out losses, a global clip that shortens every step's gradients, a schedule, weight decay and
its groups, dropout: five steps on two real ranks in each layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import rank_program
import train_ranks
from trainrig.train.config import Experiment, to_dict

BASE = Experiment.of(**train_ranks.USUAL, nproc=2, model="gpt2")
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {"batch_size": 4},
    "ddp, bert": {"model": "bert", "batch_size": 2, "grad_accum": 2},
    "zero 2": {"batch_size": 4, "zero": 2},
    "zero 3, recomputed": {"batch_size": 4, "zero": 3, "recompute": "full"},
    "tp, bert": {"model": "bert", "tp": 2},
    "tp, sp": {"tp": 2, "sequence_parallel": True, "recompute": "selective"},
    "pp, tied": {"pp": 2, "batch_size": 2, "grad_accum": 4, "recompute": "full"},
    "zbv": {"pp": 2, "interleave": 2, "schedule": "zbv", "batch_size": 2, "grad_accum": 4},
    "cp": {"model": "llama", "cp": 2},
    "ep": {"model": "mixture", "batch_size": 4, "ep": 2},
}
MODELS = sorted({keys.get("model", "gpt2") for keys in LAYOUTS.values()})
Found = Mapping[str, Any]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """What each rank found, by layout."""
    folder = tmp_path_factory.mktemp("ranks")
    asked = {name: to_dict(BASE.replace(**keys)) for name, keys in LAYOUTS.items()}
    return rank_program.run(train_ranks.__file__, asked, folder)


@pytest.fixture(scope="module")
def alone() -> Mapping[str, Found]:
    """One process on the same samples, for each model."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    one = BASE.replace(nproc=1)
    found = {model: train_ranks.train(one.replace(model=model)) for model in MODELS}
    torch.set_num_threads(before)
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_clip_schedule_decay_and_dropout_move_every_layout_alike(
    name: str, ranks: list[Found], alone: Mapping[str, Found]
) -> None:
    """Plain gradient descent: a norm that misses a shard, or counts one twice, is another step.

    A mask that is not that of one process, or not repeated where blocks are recomputed, is another
    loss.
    """
    expected = alone[LAYOUTS[name].get("model", "gpt2")]
    assert min(expected["grad_norms"]) > 5 * train_ranks.USUAL["clip"]
    for found in ranks:
        assert found[name]["losses"] == pytest.approx(expected["losses"], rel=2e-6)
        assert found[name]["grad_norms"] == pytest.approx(expected["grad_norms"], rel=1e-5)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_held_out_loss_of_ranks_is_that_of_one_process(
    name: str, ranks: list[Found], alone: Mapping[str, Found]
) -> None:
    """After steps 2, 4 and 5; all ranks have the mean over the samples of all."""
    expected = alone[LAYOUTS[name].get("model", "gpt2")]["heldout"]
    assert len(expected) == 3
    for found in ranks:
        assert found[name]["heldout"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_same_weights_decay_in_every_layout(
    name: str, ranks: list[Found], alone: Mapping[str, Found]
) -> None:
    """Of the whole model, a tied weight once."""
    expected = alone[LAYOUTS[name].get("model", "gpt2")]["decayed"]
    assert [tuple(found[name]["decayed"]) for found in ranks] == [expected, expected]


@pytest.mark.parametrize(
    "changes", [{"clip": 0.0}, {"weight_decay": 0.0}, {"warmup": 0}, {"dropout": 0.0}]
)
def test_each_of_them_changes_the_losses(
    changes: dict[str, Any], alone: Mapping[str, Found]
) -> None:
    """So that the tests above see it."""
    own = BASE.replace(nproc=1, model="gpt2", **changes)
    without = train_ranks.train(own)["losses"]
    assert without[-1] != pytest.approx(alone["gpt2"]["losses"][-1], rel=2e-5)


@pytest.mark.acceptance
def test_dropout_has_one_process_s_masks_where_heads_and_tokens_are_shared(
    tmp_path: Path, alone: Mapping[str, Found]
) -> None:
    """Tensor by context parallel: a rank has some heads of some, and of those a part of tokens."""
    both = {"model": "llama", "tp": 2, "cp": 2, "nproc": 4}
    layouts = {"tp, cp": both, "tp, sp, cp": both | {"sequence_parallel": True}}
    asked = {name: to_dict(BASE.replace(**keys)) for name, keys in layouts.items()}
    expected = alone["llama"]
    for found in rank_program.run(train_ranks.__file__, asked, tmp_path, ranks=4):
        for name in layouts:
            assert found[name]["losses"] == pytest.approx(expected["losses"], rel=2e-6), name
            assert found[name]["grad_norms"] == pytest.approx(expected["grad_norms"], rel=1e-5)
