"""Layouts that split the model, on two real ranks: they compute what one process does."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import mesh_ranks
import rank_program
from trainrig import models
from trainrig.errors import UsageError
from trainrig.train.native import pipeline, tensor_parallel
from trainrig.workload import find
from trainrig.workload.layout import Layout, check_layout

Cases = dict[str, dict[str, Any]]
FAMILIES = ("gpt2", "gpt-neo", "llama", "bert", "t5")
SEQUENCE = {"tp": 2, "sequence_parallel": True}
PIPELINES: Cases = {
    "1f1b": {},
    "interleaved": {"interleave": 2},
    "zb": {"schedule": "zb", "interleave": 2},
    "zbv": {"schedule": "zbv", "interleave": 2},
}
MORE_PIPELINES: Cases = {"gpipe": {"schedule": "gpipe"}, "zb-one": {"schedule": "zb"}}


def cases(families: tuple[str, ...], layouts: Cases, **common: Any) -> Cases:
    """Each family in each layout; llama with fewer heads of keys than of queries."""
    grouped = {"shape": {"num_kv_heads": 2} | common.get("shape", {})}
    return {
        f"{family}-{name}": {"family": family, **common, **how}
        | (grouped if family == "llama" else {})
        for family in families
        for name, how in layouts.items()
    }


EXPERTS = {"num_experts": 4, "num_kv_heads": 2}
TWO = {
    **cases(FAMILIES, {"tp+sp": SEQUENCE}),
    **cases(("gpt2", "t5"), {"tp": {"tp": 2}}),
    **cases(
        ("llama",),
        {"local": SEQUENCE | {"local": True}},
    ),
    **cases(("gpt2",), PIPELINES, pp=2, micro=4),
    "gpt2-uneven": {
        "family": "gpt2",
        "pp": 2,
        "micro": 2,
        "interleave": 2,
        "shape": {"num_layers": 5},
    },
    **cases(("gpt2", "llama"), {"cp": {"cp": 2}}),
    **cases(("llama",), {"ep": {"dp": 2, "ep": 2}}, shape=EXPERTS),
    "gpt2-odd-vocabulary": {"family": "gpt2", "tp": 2, "shape": {"vocab": 161}},
}
TWO_MORE = {
    **cases(("gpt-neo", "llama", "bert"), {"tp": {"tp": 2}}),
    **cases(("gpt-neo",), {"cp": {"cp": 2}}),
    **cases(("llama",), {"recomputed": {"recompute": "full"} | SEQUENCE}),
    **cases(("gpt2",), MORE_PIPELINES, pp=2, micro=4),
    **cases(("llama",), PIPELINES | MORE_PIPELINES, pp=2, micro=4),
    **cases(("bert", "gpt-neo"), {"1f1b": {}, "zb": PIPELINES["zb"]}, pp=2, micro=4),
}
FOUR = {
    **cases(
        ("gpt2", "llama"),
        {
            "dp-tp": {"dp": 2, "tp": 2},
            "pp-dp": {"pp": 2, "dp": 2, "micro": 4},
            "pp-dp-zbv": {"pp": 2, "dp": 2, "micro": 4, **PIPELINES["zbv"]},
            "pp-tp": {"pp": 2, "micro": 4, "tp": 2},
            "pp-tp+sp": {"pp": 2, "micro": 4, **SEQUENCE},
            "pp-zb-tp+sp": {"pp": 2, "micro": 4, **PIPELINES["zb"], **SEQUENCE},
            "pp4": {"pp": 4, "micro": 8},
            "dp-cp": {"dp": 2, "cp": 2},
            "cp-tp": {"cp": 2, "tp": 2},
            "cp-tp+sp": {"cp": 2, **SEQUENCE},
            "pp-cp": {"pp": 2, "cp": 2, "micro": 4},
        },
    ),
    **cases(
        ("llama",),
        {
            "dp-ep": {"dp": 4, "ep": 2},
            "ep4": {"dp": 4, "ep": 4, "recompute": "full"},
            "pp-ep": {"pp": 2, "dp": 2, "ep": 2, "micro": 4},
        },
        shape=EXPERTS,
    ),
    **cases(FAMILIES, {"dp-tp+sp": {"dp": 2, **SEQUENCE}}),
    **cases(("llama",), {"recomputed": {"recompute": "selective"}}, pp=2, dp=2, micro=4),
    **cases(
        ("gpt2",),
        {"dp-odd": {"dp": 2}, "pp-odd": {"pp": 2, "micro": 2}},
        tp=2,
        shape={"vocab": 161},
    ),
}
EIGHT = cases(
    ("gpt2", "llama"),
    {"1f1b": {}, "interleaved": {"interleave": 2}, "zb": PIPELINES["zb"]},
    **{"pp": 2, "dp": 2, "micro": 4, **SEQUENCE},
)
Found = Mapping[str, Any]


def run(ranks: int, asked: Cases, folder: Path) -> Found:
    """What the ranks wrote, one launch for all cases."""
    return rank_program.run(mesh_ranks.__file__, asked, folder, ranks=ranks, patience=300.0)[0]


def check(case: dict[str, Any], found: Mapping[str, Any]) -> None:
    """Five steps in fp32: losses within 2e-6, gradient norms within 1e-5; equal first weights."""
    for got, exact in zip(found["rows"], mesh_ranks.alone(case), strict=True):
        assert got[0] == pytest.approx(exact[0], rel=2e-6)
        assert got[1] == pytest.approx(exact[1], rel=1e-5)
    whole = models.build(mesh_ranks.shape_of(case), seed=1).state_dict()
    assert found["digests"] == {
        name: hashlib.sha256(weight.numpy().tobytes()).hexdigest() for name, weight in whole.items()
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run(2, TWO, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", TWO)
def test_two_ranks_compute_what_one_process_does(name: str, found: Found) -> None:
    check(TWO[name], found[name])


def test_tensor_parallel_sums_four_times_a_block(found: Found) -> None:
    """And once for the embedding and the head; hidden states are 32,768 bytes."""
    sent = found["gpt2-tp"]
    assert (sent["count"]["all_reduce"], sent["bytes"]["all_reduce"]) == (18, 18 * 32768)
    assert sent["count"]["allreduce"] == 2  # the loss: largest logits, then sums
    assert sent["bytes"]["allreduce"] == 3 * 256 * 4


def test_gradients_lie_as_their_weights_but_those_of_norms(found: Found) -> None:
    """A token embedding's, of the rows of this rank alone, is never whole on each rank."""
    assert found["gpt2-tp"]["moved"] == found["t5-tp"]["moved"] == []
    norms = {name.split(".")[-2][:4] for name in found["gpt2-tp+sp"]["moved"]}
    assert norms == {"norm"}


def test_sequence_parallel_scatters_what_it_sums(found: Found) -> None:
    """All-reduces are those of norms' gradients, 128 bytes each; the planted trap has larger ones.

    Hidden states that enter attention and the net as local tensors give the same losses: their
    gradients are summed too early, by an all-reduce, and for queries, keys and values apart.
    """
    sent, trap = found["llama-tp+sp"], found["llama-local"]
    assert sent["count"]["reduce_scatter_tensor"] == sent["count"]["all_gather_into_tensor"] == 18
    assert (sent["count"]["all_reduce"], sent["bytes"]["all_reduce"]) == (9, 9 * 128)
    assert trap["count"]["reduce_scatter_tensor"] == 10
    assert trap["bytes"]["all_reduce"] == 9 * 128 + 5 * 4 * 32768


@pytest.mark.acceptance
@pytest.mark.parametrize(("ranks", "asked"), [(2, TWO_MORE), (4, FOUR), (8, EIGHT)])
def test_layouts_of_several_axes_compute_what_one_process_does(
    ranks: int, asked: Cases, tmp_path: Path
) -> None:
    found = run(ranks, asked, tmp_path)
    for name, case in asked.items():
        check(case, found[name])


def test_uneven_stages_have_fewer_blocks_at_the_ends() -> None:
    """The first stage has the embedding, the last one the head."""
    assert [len(cut) for cut in pipeline.blocks_of_stages(10, 4)] == [2, 3, 3, 2]
    assert [len(cut) for cut in pipeline.blocks_of_stages(11, 4)] == [3, 3, 3, 2]
    assert [*pipeline.blocks_of_stages(5, 4)[1]] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_heads": 3, "hidden": 48}, "3 heads"),
        ({"ffn": 63}, "63 columns"),
        ({"vocab": 3}, "vocabulary of 3"),
    ],
)
def test_what_has_no_equal_shares_is_refused(changes: dict[str, int], words: str) -> None:
    class Two:
        def size(self) -> int:
            return 2

    shape = mesh_ranks.shape_of({"family": "gpt2", "shape": changes})
    model: Any = models.build(shape, device="meta")
    with pytest.raises(UsageError, match=words):
        tensor_parallel.apply(model, shape, Two(), sequence_parallel=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"recompute": "selective"}, {"kernels": "compiled"}])
@pytest.mark.parametrize(("schedule", "interleave"), [("zb", 1), ("zbv", 2)])
def test_zero_bubble_takes_no_graphs_of_one_backward_pass(
    schedule: str, interleave: int, change: dict[str, str]
) -> None:
    """Seen on ranks: torch raises in the first backward pass of such blocks."""
    layout = Layout.of(
        gpus=2, pp=2, grad_accum=4, schedule=schedule, interleave=interleave, **change
    )
    with pytest.raises(UsageError, match="two backward passes"):
        check_layout(find("gpt2"), layout)
    check_layout(find("gpt2"), layout.replace(schedule="1f1b"))
