"""Other predictors beside ours: what they are asked, what it comes to, what is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from validation.normalise.case import Case, case_of
from validation.peer_adapters import PEERS, Answer, imported, quantity, unlike_all
from validation.peer_answers import (
    LATER,
    REFUSED,
    First,
    Line,
    Told,
    kept,
    met,
    read_lines,
    stayed,
    table_rows,
    write_lines,
)
from validation.peers import (
    SCOPES,
    Entry,
    _cells_of,
    entries,
    nearer_peer,
    page_table,
    reasons,
    standing,
)

from trainrig.errors import DataError

ROOT = Path(__file__).resolve().parents[2]
CALCULON, LLM_ANALYSIS, SIMUMAX = PEERS


def case(**cells: str) -> Case:
    """GPT-175B of Megatron on 128 A100: nodes share tensors, eight stages, two ranks of data."""
    row = {
        "chip": "A100 SXM4 80GB",
        "num_gpus": "128",
        "layers": "96",
        "hidden": "12288",
        "heads": "96",
        "ffn": "49152",
        "vocab": "51200",
        "seq": "2048",
        "micro_batch": "1",
        "global_batch": "64",
        "tp": "8",
        "pp": "8",
        "vpp": "3",
        "precision": "fp16",
        "recompute": "selective",
        "seq_parallel": "1",
        "zero_stage": "0",
        "kernel_stack": "fused",
        "framework": "Megatron-LM",
    }
    return case_of(row | cells)


# -- the file ------------------------------------------------------------------------------------


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "peers.csv"
    lines = [
        Line(
            table=3,
            row=7,
            group="g",
            chip="B200 SXM",
            cell="g B200 SXM",
            measured=1.5,
            first=2.25,
            answers={"simumax": 1.25},
            held=8e9,
            first_bytes=9e9,
            needs={"simumax": 7e9},
        ),
        Line(
            table=4,
            row=0,
            group="h",
            chip="A10",
            cell="h A10",
            measured=0.5,
            is_refused=True,
            answers={"llm_analysis": 0.25},
        ),
    ]
    told = {
        "SimuMax": Told(commit="4dcaae", unanswered={"chip": 12, "refused by itself: a, b": 3}),
        "Calculon": Told(commit="caa4b1", unanswered={}),
    }
    write_lines(lines, told, path)
    assert read_lines(path) == (lines, told)
    assert f",{REFUSED}," in path.read_text(encoding="utf-8")
    assert kept(lines) == {
        (3, 7): First(ratio=1.5, memory_bytes=9e9),
        (4, 0): First(is_refused=True),
    }
    path.write_text("table,row\n3,7\n", encoding="utf-8")
    with pytest.raises(DataError, match="columns"):
        read_lines(path)


def test_first_contacts_meet_rows_by_what_is_printed() -> None:
    then = [{"group": "a", "seq": "1"}, {"group": "a", "seq": "2"}, {"group": "b", "seq": "1"}]
    now = [
        {"group": "b", "seq": "1", "date": "2026"},
        {"group": "a", "seq": "1", "date": ""},
        {"group": "a", "seq": "3", "date": ""},  # mended since: nothing was said of it
    ]
    said = [
        {"n": 0, "time": [1.0, 3.0, 9.0], "meas": 2.0, "memory": [1.0, 5.0, 9.0]},
        {"n": 1, "time": [1.0, 3.0, 9.0], "meas": 2.0},
        {"n": 2, "refused": "no such chip"},
    ]
    assert met(then, now, said) == {
        1: First(ratio=1.5, memory_bytes=5.0),
        0: First(is_refused=True),
    }
    # Of two rows that print the same each has its own answer.
    assert len(met(then[:1] * 2, now[1:2] * 2, [said[0], said[1]])) == 2


def test_the_file_is_of_the_tables_as_they_are() -> None:
    lines, told = read_lines()
    assert len(lines) > 2500 and set(told) == {peer.name for peer in PEERS}
    assert len({one.key for one in lines}) == len(lines)
    for one in lines:
        assert table_rows(one.table)[one.row]["group"] == one.group
        assert one.answers and (one.table in LATER or one.first is None)
        assert one.cell.startswith(one.group)
    for peer in PEERS:
        chips = {one.chip for one in lines if peer.column in one.answers}
        assert chips and chips <= set(peer.systems)


# -- the scorer ----------------------------------------------------------------------------------


def test_cells_count_alike_and_are_bounded() -> None:
    found = standing(
        [
            Entry(cell="a", peer=0.1, ours=-0.2, flat=0.5),
            Entry(cell="a", peer=-0.3, ours=0.2, flat=0.7),
            Entry(cell="b", peer=3.0, ours=-0.4, flat=None),
            Entry(cell="c", peer=0.1, ours=0.1, flat=-0.4),
        ]
    )
    assert found is not None and (found.rows, found.cells, found.nearer) == (4, 3, 1)
    assert found.peer.mean == pytest.approx((0.2 + 3.0 + 0.1) / 3)
    assert found.peer.bounded == pytest.approx((0.2 + 1.0 + 0.1) / 3)
    assert found.peer.middle == pytest.approx(0.2)
    assert found.ours.mean == pytest.approx(0.7 / 3)
    assert found.flat is not None and found.flat.mean == pytest.approx(0.5)
    assert standing([]) is None
    assert nearer_peer({"all": found}) == []
    worse = standing([Entry(cell="a", peer=0.1, ours=0.5, flat=None)])
    assert worse is not None and worse.flat is None
    assert nearer_peer({"table 3": worse, "all, ours of today": worse}) == [
        "table 3 (1 cells): mean 10.0% to ours 50.0%; at most 100 % 10.0% to ours 50.0%;"
        " median cell 10.0% to ours 50.0%"
    ]


def test_reasons_are_counted() -> None:
    told = {
        "X": Told(commit="abc", unanswered={"chip": 9, "encoder": 4, "ZeRO 3": 2, "experts": 1})
    }
    assert reasons(told, most=2) == ["X (abc): 9 chip; 4 encoder; 3 for other reasons"]


def test_a_common_row_has_both_answers() -> None:
    lines = [one for one in read_lines()[0] if one.table == 6]
    common = entries(lines, SIMUMAX)
    assert len(common) == sum("simumax" in one.answers and one.first is not None for one in lines)
    assert not entries([Line(**_without_answers(lines[0]))], SIMUMAX)


def test_answers_of_who_is_not_asked_stay() -> None:
    line = next(one for one in read_lines()[0] if "simumax" in one.answers and one.needs)
    found = stayed(line, {"group": line.group}, {"Calculon", "llm-analysis"})
    assert found == {
        "simumax": Answer(time_s=line.answers["simumax"], memory_bytes=line.needs.get("simumax"))
    }
    assert not stayed(line, {"group": line.group}, {peer.name for peer in PEERS})
    assert not stayed(line, {"group": "another row now"}, set())
    assert not stayed(None, {"group": line.group}, set())


def _without_answers(line: Line) -> dict[str, Any]:
    return {name: getattr(line, name) for name in Line.__slots__} | {"answers": {}}


# -- what peers are asked ------------------------------------------------------------------------


class Calculon:
    """A stand-in: takes executions as the real one does, and keeps the last."""

    class Application:
        def __init__(self, cfg: dict[str, Any]) -> None:
            self.cfg = cfg

    class Execution:
        @staticmethod
        def from_json(cfg: dict[str, Any]) -> dict[str, Any]:
            sizes = cfg["tensor_par"] * cfg["pipeline_par"] * cfg["data_par"]
            assert cfg["num_procs"] == sizes, "sizes do not multiply to 128"
            return cfg

    last: Calculon
    seconds = 2.0

    def __init__(self, application: Application, log: object) -> None:
        self.app, Calculon.last = application.cfg, self

    def compile(self, system: Any, execution: dict[str, Any]) -> None:
        self.system, self.exe = system, execution

    def run(self, system: Any) -> None:
        assert system is self.system

    def get_stats_json(self, layers: bool) -> dict[str, float]:
        return {"total_time": self.seconds, "proc_mem_tier1_cap_req": 5e10}


class Wrong(Calculon):
    """Its twin, which asserts what no layout meets."""

    class Execution:
        @staticmethod
        def from_json(cfg: dict[str, Any]) -> dict[str, Any]:
            assert cfg["num_procs"] == 1, "128 processors, and 1 is all there is; 3"
            return cfg


def calculon(folder: Path, model: type[Calculon]) -> dict[str, Any]:
    """Its modules, around a stand-in, with a system file of its own."""
    (folder / "systems").mkdir()
    (folder / "systems" / "a100_80g.json").write_text('{"mem1": {"GiB": 80}}', encoding="utf-8")
    package = SimpleNamespace(__file__=str(folder / "calculon" / "__init__.py"), System=dict)
    return {"calculon": package, "calculon.llm": SimpleNamespace(Llm=model)}


def test_calculon_is_asked_for_the_layout_as_it_is_read(tmp_path: Path) -> None:
    modules = calculon(tmp_path, Calculon)
    asked = case()
    assert CALCULON.answer(modules, asked) == Answer(time_s=2.0, memory_bytes=5e10)
    exe, app = Calculon.last.exe, Calculon.last.app
    assert (app["hidden"], app["feedforward"], app["num_blocks"]) == (12288, 49152, 96)
    assert (exe["tensor_par"], exe["pipeline_par"], exe["data_par"]) == (8, 8, 2)
    assert (exe["pipeline_interleaving"], exe["batch_size"], exe["microbatch_size"]) == (3, 64, 1)
    # A node has eight places, which tensor parallelism fills.
    nets = [exe[f"{name}_par_net"] for name in ("tensor", "data", "pipeline")]
    assert nets == [0, 1, 1]
    assert exe["tensor_par_comm_type"] == "rs_ag" and exe["seq_par_ag_redo"]
    assert exe["activation_recompute"] == "attn_only" and not exe["optimizer_sharding"]
    assert Calculon.last.system["mem1"]["GiB"] > 1e9  # the row was run: it fits
    CALCULON.answer(modules, case(recompute="full", seq_parallel="0", zero_stage="1"))
    exe = Calculon.last.exe
    assert exe["tensor_par_comm_type"] == "ar" and not exe["seq_par_ag_redo"]
    assert exe["activation_recompute"] == "full" and exe["optimizer_sharding"]


def test_what_a_peer_refuses_is_its_refusal(tmp_path: Path) -> None:
    found = CALCULON.answer(calculon(tmp_path, Wrong), case())
    assert found == "refused by itself: n processors"


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"chip": "RTX 4090", "tp": "1", "pp": "1", "vpp": "", "num_gpus": "8"}, "chip"),
        ({"precision": "fp8", "chip": "H100 SXM5 80GB"}, "precision"),
        ({"kernel_stack": "flash"}, "flash attention"),
        ({"zero_stage": "3", "pp": "1", "vpp": "", "framework": "DeepSpeed"}, "ZeRO 3"),
    ],
)
def test_what_a_peer_cannot_express_it_is_not_asked(cells: dict[str, str], why: str) -> None:
    assert CALCULON.answer(None, case(**cells)) == why  # without a module: nothing is called


def test_words_that_no_peer_has() -> None:
    bert = {"model": "BERT-large", "num_gpus": "1", "chip": "A100 SXM4 80GB", "seq": "128"}
    assert unlike_all(case_of({**bert, "micro_batch": "8", "precision": "fp16"})) == "encoder"
    assert unlike_all(case(precision="tf32")) == "precision"
    assert unlike_all(case()) == ""


class Analysis:
    """A stand-in of llm-analysis: seconds are waits for weights over its ranks, bytes likewise."""

    def __init__(self, model: Any, gpu: Any, dtype: Any, parallel: Any, **shares: float) -> None:
        self.model, self.parallel, self.shares = model, parallel, shares

    def training(self, **how: Any) -> dict[str, float]:
        Analysis.how, Analysis.asked = how, self
        ranks = self.parallel.dp_size
        return {"latency_per_iter": float(ranks), "estimated_peak_memory_per_gpu": 1e9 / ranks}


def llm_analysis() -> dict[str, Any]:
    config = SimpleNamespace(
        gpu_configs={"a100-sxm-80gb": 1},
        ModelConfig=SimpleNamespace,
        ParallelismConfig=SimpleNamespace,
        get_gpu_config_by_name=lambda name: name,
        get_dtype_config_by_name=lambda name: name,
    )
    analysis = SimpleNamespace(
        LLMAnalysis=Analysis,
        ActivationRecomputation=int,
        DSZeRO=int,
        logger=SimpleNamespace(setLevel=lambda level: None),
    )
    return {"llm_analysis.config": config, "llm_analysis.analysis": analysis}


def test_llm_analysis_waits_for_weights_where_they_are_sharded_alone() -> None:
    modules = llm_analysis()
    whole = LLM_ANALYSIS.answer(modules, case(zero_stage="1"))
    assert whole == Answer(time_s=1.0, memory_bytes=5e8)  # two ranks share the states
    assert Analysis.how["activation_recomputation"] == 2 and Analysis.how["ds_zero"] == 1
    assert not Analysis.how["flash_attn"] and Analysis.how["gradient_accumulation_steps"] == 32
    assert Analysis.asked.shares == {"flops_efficiency": 0.5, "hbm_memory_efficiency": 0.9}
    assert (Analysis.asked.parallel.tp_size, Analysis.asked.parallel.sp_size) == (8, 8)
    sharded = case(zero_stage="3", pp="1", vpp="", framework="DeepSpeed", kernel_stack="flash")
    found = LLM_ANALYSIS.answer(modules, sharded)
    assert isinstance(found, Answer) and found.time_s == int(sharded.layout.mesh.dp) > 1
    assert LLM_ANALYSIS.answer(modules, case(tp="16", pp="8", vpp="")) == (
        "refused by itself: tensor parallelism beyond a node"
    )


class Simulator:
    """A stand-in of SimuMax: keeps what it is configured with, and prints as the real one does."""

    seconds = "843.0000 ms"

    def configure(self, **configs: Any) -> None:
        Simulator.configs = configs

    def run_estimate(self) -> None: ...

    def analysis_mem(self) -> Any:
        stages = {"first_stage": {"peak_mem": "2.0000 GB", "peak_mem_with_reserved": "4.0000 GB"}}
        return SimpleNamespace(data={**stages, "last_stage": {**stages["first_stage"]}})

    def analysis_cost(self) -> Any:
        return SimpleNamespace(data={"duration_time_per_iter": self.seconds})


class Odd(Simulator):
    """Its twin, which answers in a unit that the real one does not print."""

    seconds = "14.05 minutes"


def simumax(model: type[Simulator]) -> dict[str, Any]:
    system = SimpleNamespace(init_from_config_file=lambda path: path)
    config = SimpleNamespace(
        StrategyConfig=SimpleNamespace, ModelConfig=SimpleNamespace, SystemConfig=system
    )
    return {
        "simumax": SimpleNamespace(__file__="/peer/simumax/__init__.py"),
        "simumax.core.config": config,
        "simumax.core.perf_llm": SimpleNamespace(PerfLLM=model),
    }


def test_simumax_is_asked_for_megatron_with_its_own_system() -> None:
    cells = {"chip": "B200 SXM", "precision": "bf16", "kernel_stack": "flash+fused"}
    asked = case(**cells, recompute="full", zero_stage="1", memory_kind="allocated")
    found = SIMUMAX.answer(simumax(Simulator), asked)
    assert found == Answer(time_s=0.843, memory_bytes=2.0 * 2**30)
    configs = Simulator.configs
    assert configs["system_config"] == "/peer/configs/system/b200_bf16_ceperm.json"
    strategy, model = configs["strategy_config"], configs["model_config"]
    assert (strategy.tp_size, strategy.pp_size, strategy.world_size) == (8, 8, 128)
    assert (strategy.interleaving_size, strategy.micro_batch_num) == (3, 32)
    assert strategy.zero_state == 1 and strategy.cross_entropy_loss_fusion
    assert strategy.recompute_granularity == "full_block" and strategy.recompute_layer_num == 96
    assert (model.hidden_size, model.use_swiglu, model.model_type) == (12288, False, "dense")
    odd = SIMUMAX.answer(simumax(Odd), asked)
    assert odd == "refused by itself: unit 'minutes'"
    assert SIMUMAX.answer(None, case(**cells, zero_stage="2", pp="1", vpp="")) == "ZeRO 2 and 3"


def test_quantities_and_peers_that_are_not_there(tmp_path: Path) -> None:
    assert quantity("1.5 s", {"s": 1.0}) == 1.5
    with pytest.raises(ValueError, match="unit"):
        quantity("1.5 KB", {"s": 1.0})
    absent = type(CALCULON)(
        **{name: getattr(CALCULON, name) for name in type(CALCULON).__slots__}
        | {"modules": ("no_such_peer_anywhere",)}
    )
    assert imported(absent) is None


# -- the page ------------------------------------------------------------------------------------


def test_the_page_has_what_the_file_gives() -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    lines, told = read_lines()
    later = [one for one in lines if one.table in SCOPES["tables 3 to 8"]]
    for peer in PEERS:
        found = standing(entries(later, peer))
        assert found is not None
        assert f"| {peer.name}, tables 3 to 8 {_cells_of(found)}\n" in page
    assert all(f"- {words}\n" in page for words in reasons(told))


@pytest.mark.acceptance
def test_the_whole_of_the_page_has() -> None:
    assert page_table() in (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
