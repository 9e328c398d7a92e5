"""What the host launches as graphs, and tokens' way to experts beside computation."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from validation.normalise.answers import time_of
from validation.normalise.case import case_of

from trainrig.catalog import load_chips, require_chip
from trainrig.errors import UsageError
from trainrig.prediction.prediction import predict
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_chip import class_of, is_graphed, rates_of_chip
from trainrig.prediction.scenario import question
from trainrig.prediction.step import StepTime, _exposed_all_to_all, predict_step
from trainrig.prediction.step.calibration import Constants
from trainrig.prediction.step.compute import CHECKPOINT_CALLS, device_times
from trainrig.prediction.step.simulate import simulated
from trainrig.workload.layout import Layout, is_legal
from trainrig.workload.presets import named
from trainrig.workload.programs import FRAMEWORKS

MODELS = (
    "qwen3-30B-A3B",
    "qwen3-235B-A22B",
    "mixtral-8x7B",
    "deepseek-v3",
    "llama-8B",
    "gpt3-13B",
)
NVIDIA = ("A100 SXM4 80GB", "H100 SXM5 80GB", "H200 SXM 141GB", "B200 SXM", "B300 SXM")
RACKS = ("GB200", "GB300")
STACKS = (  # each fuses all that the one before does, and more
    ("eager", "flash"),
    ("eager", "fused"),
    ("fused", "flash+fused"),
    ("flash", "flash+fused"),
    ("flash", "compiled"),
)
ALIKE = 1.0 + 1e-9


@cache
def rates(chip: str) -> Rates:
    return rates_of_chip(require_chip(chip))


@st.composite
def settings_of(draw: st.DrawFn, **fixed: Any) -> tuple[str, dict[str, Any]]:
    """A model and sizes of a layout of it: 64 or 512 GPUs, with few samples or many."""
    chosen = {
        "gpus": draw(st.sampled_from((64, 512))),
        "pp": draw(st.sampled_from((1, 2, 4, 8))),
        "tp": draw(st.sampled_from((1, 2, 4))),
        "ep": draw(st.sampled_from((1, 8, 32))),
        "batch_size": draw(st.sampled_from((1, 2, 4))),
        "grad_accum": draw(st.sampled_from((8, 32))),
        "seq_len": draw(st.sampled_from((1024, 4096, 8192))),
        "zero": draw(st.sampled_from((0, 1))),
        "precision": draw(st.sampled_from(("bf16", "fp8"))),
        "recompute": draw(st.sampled_from(("none", "selective", "full"))),
        "framework": "megatron",
        "kernels": "flash+fused",
    }
    return draw(st.sampled_from(MODELS)), chosen | fixed


def seconds(model: str, chosen: dict[str, Any], chip: str) -> float | None:
    """Of a step, None where the layout cannot be run; racks are domains of 64 GPUs."""
    layout = Layout.of(**{"gpus_per_node": 64 if chip in RACKS else 8} | chosen)
    if chosen["precision"] == "fp8" and chip.startswith("A100"):
        layout = layout.replace(precision="bf16")
    if not is_legal(named(model), layout):
        return None
    return float(predict_step(named(model), layout, rates(chip)).total)


@settings(max_examples=150, deadline=None)
@given(settings_of(), st.sampled_from((*NVIDIA, *RACKS)), st.sampled_from(("none", "auto")))
def test_overlap_never_costs_more_than_it_hides(
    asked: tuple[str, dict[str, Any]], chip: str, graphs: str
) -> None:
    model, chosen = asked
    ways = ("none", "data", "tensor", "experts", "all")
    found = [seconds(model, chosen | {"overlap": o, "cuda_graphs": graphs}, chip) for o in ways]
    assume(found[0] is not None)
    for less, more in pairwise(found):
        assert more is not None and less is not None and more <= less * ALIKE
    assert found[3] == found[4], "all has the way to experts, too"


@settings(max_examples=150, deadline=None)
@given(
    settings_of(),
    st.sampled_from(NVIDIA + RACKS),
    st.sampled_from(STACKS),
    st.sampled_from(("native", "huggingface", "torchtitan", "megatron")),
)
def test_more_fused_stacks_are_not_slower_where_the_host_is_not_waited_for(
    asked: tuple[str, dict[str, Any]], chip: str, stacks: tuple[str, str], framework: str
) -> None:
    """Launched as one graph: kernels by themselves of Transformer Engine cost the host more."""
    model, chosen = asked
    fixed = {"cuda_graphs": "iteration", "overlap": "data", "framework": framework}
    less, more = (seconds(model, chosen | fixed | {"kernels": k}, chip) for k in stacks)
    assume(less is not None and more is not None)
    assert less is not None and more is not None and more <= less * ALIKE


@settings(max_examples=150, deadline=None)
@given(
    settings_of(),
    st.sampled_from(NVIDIA + RACKS),
    st.sampled_from(("fused", "flash", "flash+fused", "compiled")),
)
def test_graphs_spare_the_host_and_never_cost_time(
    asked: tuple[str, dict[str, Any]], chip: str, kernels: str
) -> None:
    model, chosen = asked
    words = ("none", "layers", "iteration")
    found = [seconds(model, chosen | {"cuda_graphs": w, "kernels": kernels}, chip) for w in words]
    assume(found[0] is not None)
    assert found == sorted(found, reverse=True)


@settings(max_examples=150, deadline=None)
@given(settings_of(), st.sampled_from(("auto", "tensor", "experts")))
def test_a_rack_of_72_is_not_slower_than_nodes_of_8_from_graphs(
    asked: tuple[str, dict[str, Any]], overlap: str
) -> None:
    """Of whole iterations: by itself Grace takes longer for a launch than the hosts of nodes do."""
    model, chosen = asked
    fixed = {"overlap": overlap, "cuda_graphs": "iteration"}
    pairs = (("B200 SXM", "GB200"), ("B300 SXM", "GB300"))
    found = [[seconds(model, chosen | fixed, chip) for chip in pair] for pair in pairs]
    assume(not any(each is None for pair in found for each in pair))
    for apart, joined in found:
        assert apart is not None and joined is not None and joined <= apart * ALIKE


@settings(max_examples=150, deadline=None)
@given(
    settings_of(), st.sampled_from(("auto", "data", "experts")), st.sampled_from(("none", "auto"))
)
def test_a_gb300_is_not_slower_than_a_gb200(
    asked: tuple[str, dict[str, Any]], overlap: str, graphs: str
) -> None:
    model, chosen = asked
    fixed = {"overlap": overlap, "cuda_graphs": graphs}
    old, new = (seconds(model, chosen | fixed, chip) for chip in RACKS)
    assume(old is not None and new is not None)
    assert old is not None and new is not None and new <= old * ALIKE


QWEN = {"model": "qwen3-235B-A22B", "gpus": 256, "pp": 4, "ep": 64, "grad_accum": 32, "zero": 1}
QWEN |= {"framework": "megatron", "precision": "mxfp8"}


def step(**more: Any) -> StepTime:
    return predict(question(QWEN | {"on": "GB200", "kernels": "flash+fused"} | more)).step


def test_by_themselves_passes_of_nvidias_recipes_are_graphs_on_blackwell_alone() -> None:
    times = [step(kernels=k).total for k in ("fused", "flash", "flash+fused")]
    assert times == sorted(times, reverse=True)
    assert step().gaps < 0.05 * step().total < 0.3 * step(cuda_graphs="none").gaps
    assert step() == step(cuda_graphs="layers")
    assert step(kernels="flash") == step(kernels="flash", cuda_graphs="none")
    for chip in ("H100 SXM5 80GB", "H200 SXM 141GB", "H200 NVL 141GB", "H20 141GB"):
        hopper = {"on": chip, "precision": "bf16", "gpus_per_node": 8}
        assert step(**hopper) == step(**hopper, cuda_graphs="none")


def test_flags_and_tables_know_the_chips_that_have_graphs_by_one_rule() -> None:
    for chip in load_chips():
        usual = Layout.of(framework="megatron", kernels="flash+fused").launched_as(is_graphed(chip))
        assert usual == ("layers" if class_of(chip) == "blackwell" else "none")
    row = ROW | {"model": "llama3-8b", "num_gpus": "8", "precision": "bf16"}
    rows = [case_of(row | {"chip": chip}) for chip in ("B200", "H200 SXM 141GB", "RTX 5090")]
    assert [each.layout.kernels.cuda_graphs for each in rows] == ["layers", "none", "none"]


def test_flags_stand_for_todays_recipes_and_a_row_for_its_programs_of_its_time() -> None:
    row = ROW | {"model": "qwen3-30B-A3B", "num_gpus": "8", "ep": "8", "chip": "B200"}
    programs = {"Megatron-Bridge 26.06": "2026-08", "Megatron-Bridge 25.09": "2025-11"}
    programs["Megatron-LM"] = "2026-08"
    found = [
        case_of(row | {"framework": name, "date": date}).layout.kernels.cuda_graphs
        for name, date in programs.items()
    ]
    assert found == ["layers", "none", "none"]
    asked = question(SAME | {"model": "qwen3-30B-A3B", "gpus": 8, "ep": 8, "on": "B200 SXM"})
    layout = asked.layout.replace(kernels="flash+fused")
    assert layout.launched_as(asked.cluster.rates().graphed) == found[0]


def test_graphs_of_layers_hold_neither_optimizer_nor_fetching_nor_calls_of_checkpointing() -> None:
    asked = {"model": "gpt2-medium", "on": "B200 SXM", "gpus": 1, "batch_size": 1}
    asked |= {"framework": "megatron", "kernels": "flash+fused"}
    each, layers, all_ = (
        predict(question(asked | {"cuda_graphs": word})).step
        for word in ("none", "layers", "runtime")
    )
    assert layers.optimizer == each.optimizer > all_.optimizer
    assert each.gaps > layers.gaps > all_.gaps
    shape, chip = named("gpt2-medium"), rates("B200 SXM")
    whole = Layout.of(framework="megatron", kernels="flash+fused", recompute="full")
    none, some = (
        device_times(shape, whole.replace(cuda_graphs=word), chip) for word in ("none", "layers")
    )
    calls = CHECKPOINT_CALLS * chip.launch
    assert some.recompute[3] - calls == pytest.approx(0.3 * (none.recompute[3] - calls))
    assert some.forward[3] == pytest.approx(0.3 * none.forward[3])
    assert (some.first, some.last) == (none.first, none.last)


@pytest.mark.parametrize("chip", ["TPU v5p", "Gaudi 3", "Apple M4 Max (40-core)", "Ascend 910B"])
@pytest.mark.parametrize("graphs", ["layers", "iteration"])
def test_there_are_no_cuda_graphs_without_cuda_or_rocm(chip: str, graphs: str) -> None:
    asked = {"model": "gpt2-medium", "on": chip, "gpus": 1, "kernels": "eager"}
    with pytest.raises(UsageError, match="has no CUDA graphs") as caught:
        question(asked | {"cuda_graphs": graphs})
    assert "--cuda-graphs none" in str(caught.value.hint)
    assert question(asked | {"cuda_graphs": "none"}).layout.kernels.cuda_graphs == "none"


def test_rocm_has_graphs_of_its_own() -> None:
    asked = {"model": "gpt2-medium", "on": "MI300X", "gpus": 1, "cuda_graphs": "iteration"}
    assert question(asked).layout.kernels.cuda_graphs == "iteration"


@pytest.mark.parametrize(
    ("reserved", "adds", "hidden"), [(0.0, 2.0, 8.0), (0.3, 5.0, 8.0), (0.8, 10.0, 0.0)]
)
def test_nothing_is_hidden_where_giving_up_processors_costs_as_much(
    reserved: float, adds: float, hidden: float
) -> None:
    exchanges = SimpleNamespace(all_to_all_overlap=0.8, reserved_sm_share=reserved)
    profile: Any = SimpleNamespace(communication=exchanges)
    found = _exposed_all_to_all(profile, 10.0, (10.0, 0.0), Constants(hidden=1.0))
    assert found == pytest.approx((adds, hidden))


def test_dualpipe_is_there_to_hide_the_way_to_experts() -> None:
    asked = QWEN | {"model": "deepseek-v3", "on": "H800 SXM5 80GB", "precision": "fp8", "pp": 16}
    asked |= {"gpus": 2048, "kernels": "flash+fused", "recompute": "selective", "grad_accum": 120}

    def total(**more: str) -> float:
        return float(predict(question(asked | {"schedule": "dualpipe"} | more)).step.total)

    assert total() == total(overlap="experts") == total(overlap="all") < 0.6 * total(overlap="data")


ROW = {"framework": "Megatron-Bridge 26.06", "chip": "GB200", "seq": "4096", "zero_stage": "1"}
ROW |= {"precision": "mxfp8", "kernel_stack": "flash+fused"}
SAME = {"on": "GB200", "seq_len": 4096, "precision": "mxfp8", "framework": "megatron", "zero": 1}


@pytest.mark.parametrize(
    ("model", "sizes", "micro_batches"),
    [
        ("qwen3-235B-A22B", {"gpus": 256, "pp": 8, "interleave": 3, "ep": 32}, 256),
        ("qwen3-30B-A3B", {"gpus": 8, "ep": 8, "batch_size": 4}, 16),
        ("deepseek-v3", {"gpus": 256, "pp": 4, "interleave": 4, "ep": 64}, 64),
    ],
)
def test_flags_and_a_table_agree_where_they_say_the_same(
    model: str, sizes: dict[str, int], micro_batches: int
) -> None:
    names = {"gpus": "num_gpus", "interleave": "vpp", "batch_size": "micro_batch"}
    row = ROW | {"model": model, "grad_accum": str(micro_batches)}
    row |= {names.get(name, name): str(size) for name, size in sizes.items()}
    asked = SAME | {"model": model, "grad_accum": micro_batches, "kernels": "flash+fused"} | sizes
    by_flags, case = question(asked), case_of(row)
    assert case.layout.kernels.cuda_graphs == "layers"
    flags = simulated(by_flags.shape, by_flags.layout, by_flags.cluster.rates())[0].item()
    table = simulated(case.shape, case.layout, case.rates)[0].item()
    assert flags == pytest.approx(table, rel=0.12), "but for tokens that leave once for each rank"
    once = by_flags.layout.replace(
        dedup_internode_dispatch=case.layout.moe.dedup_internode_dispatch
    )
    same = simulated(by_flags.shape, once, by_flags.cluster.rates())[0].item()
    assert same == pytest.approx(table, rel=0.02)


@pytest.mark.parametrize(
    ("words", "graphs"),
    [
        ({"kernel_stack": "flash+fused, CUDA graphs"}, "layers"),
        ({"kernel_stack": "flash+fused cudagraph"}, "layers"),
        ({"kernel_stack": "flash+fused; cuda_graph_impl=transformer_engine"}, "layers"),
        ({"kernel_stack": "flash+fused; full-iteration CUDA graph"}, "iteration"),
        ({"kernel_stack": "TE, cuda_graph_scope=full_iteration"}, "iteration"),
        ({"kernel_stack": "flash+fused, no CUDA graphs"}, "none"),
        ({"kernel_stack": "flash+fused; --cuda-graph-impl none"}, "none"),
        ({"kernel_stack": "flash+fused; CUDA graphs, no recompute"}, "layers"),
        ({"kernel_stack": "flash+fused; CUDA graphs (no dropout)"}, "layers"),
        ({"kernel_stack": "flash+fused; no graph breaks, cudagraphs"}, "layers"),
        (
            {"kernel_stack": "flash+fused; no full-iteration CUDA graphs; CUDA graphs of layers"},
            "layers",
        ),
        ({"kernel_stack": "flash+fused; full-iteration graph, paged stash; no CUDA graph"}, "none"),
        ({"kernel_stack": "flash+fused; cuda_graph_impl=none"}, "none"),
        ({"kernel_stack": "flash+fused; cuda_graphs=false"}, "none"),
        ({"kernel_stack": "flash+fused; use_cuda_graph=0"}, "none"),
        ({"kernel_stack": "flash+fused; enable_cuda_graph: false"}, "none"),
        ({"kernel_stack": "flash+fused; CUDA graphs not used"}, "none"),
        ({"kernel_stack": "flash+fused; CUDA graphs (off)"}, "none"),
        ({"kernel_stack": "flash+fused, without full iteration CUDA graphs"}, "none"),
        ({"kernel_stack": "flash+fused; without graph kernel fusion"}, "none"),
        ({"kernel_stack": "flash+fused"}, "none"),
    ],
)
def test_a_tables_words_say_what_is_launched_as_graphs(words: dict[str, str], graphs: str) -> None:
    row = ROW | {"framework": "Megatron-LM", "model": "llama3-8b", "num_gpus": "8"} | words
    case = case_of(row)
    assert case.layout.kernels.cuda_graphs == graphs
    bare = case_of(row | {"kernel_stack": "flash+fused"})
    assert time_of(case)[0] <= time_of(bare)[0]
    recipe = case_of(row | {"framework": "Megatron-Bridge 26.06"})
    assert recipe.layout.kernels.cuda_graphs == (
        graphs if "cuda" in str(words).lower() else "layers"
    )


def test_an_update_of_adapters_takes_the_host_two_tensors_for_each() -> None:
    asked = {"model": "llama-8B", "on": "B200 SXM", "gpus": 1, "batch_size": 1, "lora_rank": 16}
    asked |= {"framework": "megatron", "kernels": "flash+fused"}
    qkv, every = (
        predict(question(asked | {"lora_on": on})).step.optimizer for on in ("qkv", "all")
    )
    layers = named("llama-8B").num_layers
    call = FRAMEWORKS["megatron"].host.tensor_calls * rates("B200 SXM").launch
    assert qkv == pytest.approx(2 * layers * call, rel=0.01), "one of Megatron's joined matrix"
    assert every == pytest.approx(5 * qkv, rel=0.01), "with output, gate, up and down"
