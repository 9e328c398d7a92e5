"""Rows of a table: what they mean, what they do not depend on, and what is wrong with bad ones."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validation.normalise.answers import least_seconds, predict_row, predict_rows, time_of
from validation.normalise.case import case_of
from validation.normalise.columns import READ, read_rows
from validation.normalise.row_errors import TIMED

from trainrig.catalog.published import training
from trainrig.errors import DataError, UsageError
from trainrig.prediction.step import simulate
from trainrig.workload.model import parameters

ROW = {
    "chip": "A100 SXM4 80GB",
    "num_gpus": "8",
    "gpus_per_node": "8",
    "link": "nvlink",
    "framework": "PyTorch FSDP",
    "model": "MPT-1b",
    "layers": "24",
    "hidden": "2048",
    "heads": "16",
    "kv_heads": "16",
    "ffn": "8192",
    "vocab": "50368",
    "seq": "2048",
    "global_batch": "128",
    "micro_batch": "8",
    "dp": "8",
    "tp": "1",
    "pp": "1",
    "zero_stage": "3",
    "grad_accum": "2",
    "precision": "bf16",
    "kernel_stack": "flash",
    "recompute": "none",
    "kind": "pretrain",
}
TABLE = list(itertools.islice(training.read(), 0, None, 12))


def row(**changes: str) -> dict[str, str]:
    return ROW | changes


def test_a_row_is_simulated_beside_its_closed_form() -> None:
    uneven = {"layers": "22", "num_gpus": "64", "pp": "8", "tp": "1", "dp": "8"}
    piped = row(**uneven, grad_accum="8", global_batch="")
    found = predict_row(piped, simulate=True)
    plain = predict_row(piped)
    assert found["simulated_step_time_s"] == pytest.approx(plain["step_time_s"], rel=0.05)
    assert found["simulated_step_time_s"] != plain["step_time_s"]
    assert {name: found[name] for name in plain} == plain


def test_rows_are_simulated_together_as_each_alone() -> None:
    rows = [one for one in TABLE if one["pp"] not in ("", "1")][:24] + TABLE[:4]
    rows += [row(layers="22", num_gpus="64", pp="8", dp="8", grad_accum=n) for n in ("8", "50")]
    name = "simulated_step_time_s"
    together = [found.pop(name) for found in predict_rows(rows, simulate=True)]
    alone = [predict_row(one, simulate=True)[name] for one in rows]
    assert len({seconds for seconds in alone if seconds}) > 20
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, rel=1e-12)


def test_a_row_whose_pipeline_breaks_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    piped = {"num_gpus": "64", "pp": "8", "dp": "8", "global_batch": ""}
    rows = [row(**piped, layers=layers, grad_accum="8") for layers in ("22", "24", "26")]
    plain = [predict_row(one) for one in rows]
    through = simulate.run_pipeline

    def broken(stages: Any, *form: Any) -> Any:
        if len(stages.forward) > 1 or stages.forward[0, 0, 0] > longest:
            raise AssertionError("waits for ever")
        return through(stages, *form)

    monkeypatch.setattr(simulate, "run_pipeline", through)
    alone = [predict_row(one, simulate=True)["simulated_step_time_s"] for one in rows]
    longest = math.inf
    monkeypatch.setattr(simulate, "run_pipeline", broken)
    found = list(predict_rows(rows, simulate=True))
    assert [one["simulated_step_time_s"] for one in found] == pytest.approx(alone, rel=1e-12)
    longest = 0.0
    for one, before in zip(predict_rows(rows[:2], simulate=True), plain, strict=False):
        assert one["simulated_step_time_s"] is None and one["step_time_s"] is None
        assert "AssertionError" in one["reason"] and before["reason"] is None


def test_a_simulated_row_may_have_no_logits() -> None:
    encoder = {"model": "bert-large", "kind": "finetune", "layers": "", "hidden": "", "heads": ""}
    blank = dict.fromkeys(("kv_heads", "ffn", "vocab", "seq"), "")
    found = predict_row(row(**encoder, **blank), simulate=True)
    assert found["reason"] is None
    assert found["simulated_step_time_s"] == pytest.approx(found["step_time_s"], rel=1e-12)
    refused = predict_row(row(chip="no such"), simulate=True)
    assert refused["simulated_step_time_s"] is None and refused["reason"]


def test_a_row_is_read_as_it_stands() -> None:
    case = case_of(ROW)
    assert (case.shape.family, case.shape.num_layers, case.shape.ffn.width) == ("gpt2", 24, 8192)
    one = case.layout
    assert (one.mesh.gpus, one.batch.micro, one.batch.grad_accum, one.sharding.zero) == (8, 8, 2, 3)
    assert (one.scheme, one.kernels.stack, one.memory.recompute, one.precision.compute) == (
        *("fsdp", "flash", "none", "bf16"),
    )
    assert case.presumed == ()


def test_the_answer_has_the_agreed_fields_and_is_json() -> None:
    (found,) = predict_rows([ROW])
    names = ["row", "step_time_s", "memory_bytes_per_gpu", "tokens_per_s_per_gpu", "interval"]
    names += ["presumed", "remark", "reason"]
    assert list(found) == names
    again = json.loads(json.dumps(found))
    for name in ("step_time_s", "memory_bytes_per_gpu"):
        low, high = again["interval"][name]
        assert 0.0 < low <= again[name] * 1.2 and again[name] <= high * 1.2
    assert again["reason"] is None and again["row"] == 0
    case = case_of(ROW)
    tokens = case.layout.global_batch * case.layout.batch.seq_len / case.layout.mesh.gpus
    assert again["tokens_per_s_per_gpu"] == pytest.approx(tokens / again["step_time_s"])


def test_no_prediction_knows_where_a_row_came_from() -> None:
    """Nor what was measured."""
    shuffled = [dict(one) for one in TABLE]
    for column in ("source", "group", "grade", "step_time_s", "tokens_per_s_per_gpu"):
        cells = [one.get(column, "") for one in TABLE]
        for at, one in enumerate(shuffled):
            one[column] = cells[at - 7]
    assert [predict_row(one) for one in shuffled] == [predict_row(one) for one in TABLE]
    assert any(a != b for a, b in zip(shuffled, TABLE, strict=True))


def test_only_the_declared_columns_are_read() -> None:
    few = [{name: one.get(name, "") for name in READ} for one in TABLE[::3]]
    assert [predict_row(one) for one in few] == [predict_row(one) for one in TABLE[::3]]
    assert not {"group", "grade", *TIMED} & set(READ)


def test_without_the_columns_that_state_a_sources_ways_only_those_rows_change() -> None:
    """Refusals stay; nobody else's row depends on them; no source is known by its name."""
    ways = ("states", "mean_seq", "masked_share")
    plain = [{**one, **dict.fromkeys(ways, "")} for one in TABLE]
    pairs = list(zip(TABLE, map(predict_row, TABLE), map(predict_row, plain), strict=True))
    assert all(stated["reason"] == blank["reason"] for _, stated, blank in pairs)
    changed = {one["group"] for one, stated, blank in pairs if stated != blank}
    assert {"dle-bert", "lambda"} <= changed <= {"dle-bert", "dle-bart", "lambda", "litgpt"}
    assert all(stated == blank for one, stated, blank in pairs if not any(one[n] for n in ways))


def test_an_offloaded_optimizer_takes_time_and_leaves_memory() -> None:
    here, away = predict_row(ROW), predict_row(row(offload="host"))
    assert away["memory_bytes_per_gpu"] < here["memory_bytes_per_gpu"]
    assert away["step_time_s"] > here["step_time_s"]


def test_deepspeed_that_does_not_say_where_its_optimizer_was_may_have_had_it_on_the_host() -> None:
    blank, here, away = (
        predict_row(row(framework="DeepSpeed", zero_stage="2", offload=word))
        for word in ("", "none", "host")
    )
    assert blank["memory_bytes_per_gpu"] == here["memory_bytes_per_gpu"]
    lows, highs = zip(
        *(one["interval"]["memory_bytes_per_gpu"] for one in (blank, here, away)), strict=True
    )
    assert lows[0] == lows[2] < lows[1] and highs[0] == highs[1]
    assert case_of(row()).presumed == (), "FSDP says nothing, and did nothing"


def test_kinds_of_memory_are_told_apart() -> None:
    kinds = ("allocated", "reserved", "device")
    found = [predict_row(row(memory_kind=kind))["memory_bytes_per_gpu"] for kind in kinds]
    assert 1.06 * found[0] <= found[1] < 1.2 * found[0], "blocks that the allocator holds"
    assert found[2] - found[1] > 1e9, "the context and communicators"


def test_what_is_not_stated_widens_the_interval() -> None:
    stated, blank = predict_row(ROW), predict_row(row(kernel_stack="", recompute=""))

    def width(found: dict[str, Any]) -> float:
        low, high = found["interval"]["step_time_s"]
        return float(high / low)

    assert width(blank) > 1.1 * width(stated)
    mixture = predict_row(row(model="our MoE"))  # of nobody knows how many experts
    assert mixture["presumed"] == ["num_experts"] and width(mixture) > 1.3 * width(stated)
    assert case_of(row(kernel_stack="")).presumed == ("kernel_stack",)
    assert case_of(row(precision="")).layout.precision.compute == "bf16"
    assert case_of(row(precision="", chip="V100 SXM2 16GB")).layout.precision.compute == "fp16"
    assert case_of(row(precision="bf16-mixed")).layout.precision.compute == "bf16"


def test_no_interval_begins_below_what_stated_products_take_at_the_claimed_rate() -> None:
    card = {"chip": "RTX 5090", "num_gpus": "1", "dp": "1", "zero_stage": "0", "kind": "pretrain"}
    card |= {"model": "Qwen2.5-1.5B", "framework": "LLMQ (C++/CUDA)", "seq": "1024"}
    card |= {"global_batch": "512", "micro_batch": "8", "grad_accum": "64", "precision": "bf16"}
    card |= {"kernel_stack": "CUDA graphs", "states": "pure", "recompute": "none"}
    low, middle, high = time_of(case_of(card))
    products = 6 * parameters(case_of(card).shape).total * 512 * 1024
    assert low == least_seconds(case_of(card)) == pytest.approx(products / 1.12 / 209.5e12, rel=0.1)
    assert low < middle < high
    for changes in ({"precision": ""}, {"global_batch": "", "grad_accum": ""}, {"kind": "lora"}):
        assert least_seconds(case_of(card | changes)) == 0.0, changes
    fp4 = row(chip="B200 SXM", precision="nvfp4")
    assert least_seconds(case_of(fp4)) < least_seconds(case_of(fp4 | {"precision": "fp8"}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"chip": ""}, "chip: not stated"),
        ({"chip": "RTX 9999"}, "not in the catalog"),
        ({"layers": "", "model": "ours"}, "layers: not stated"),
        ({"layers": "-3"}, "whole number from 0"),
        ({"layers": "0"}, "whole number from 1"),
        ({"hidden": "2048.5"}, "whole number"),
        ({"hidden": "1e400"}, "whole number"),
        ({"seq": "two thousand"}, "not a number"),
        ({"num_gpus": "8", "tp": "3"}, "no multiple of tp 3"),
        ({"zero_stage": "4"}, "0 to 3"),
        ({"tp": "3", "num_gpus": "24"}, "16 heads cannot be split over 3"),
        ({"pp": "32", "num_gpus": "256", "zero_stage": "0"}, "24 layers are too few for 32"),
        ({"fabric_gbps_per_node": "-1"}, "fabric_gbps_per_node"),
        ({"fabric_gbps_per_node": "fast"}, "not a number"),
        ({"chip": "", "hardware": "GTX 970M Laptop GPU"}, "chip: not stated"),
        ({"chip": "", "hardware": "A100 MIG 1g.10gb"}, "chip: not stated"),
        ({"chip": "", "hardware": "a GPU of 80 GB"}, "chip: not stated"),
    ],
)
def test_a_row_that_lacks_something_says_what(changes: dict[str, str], reason: str) -> None:
    found = predict_row(row(**changes))
    assert found["step_time_s"] is None and found["memory_bytes_per_gpu"] is None
    assert reason in found["reason"]
    assert "\n" not in found["reason"] and len(found["reason"]) < 200


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": "7", "kv_heads": "7"},
        {"num_gpus": "8", "dp": "4"},
        {"heads": "6", "kv_heads": "6", "tp": "4", "dp": "2", "framework": "Megatron-LM"},
        {"pp": "2", "num_gpus": "16"},
        {"global_batch": "100"},
        {"cp": "3"},
        {"seq": ""},
        {"precision": "int3"},
        {"kernel_stack": "magic"},
        {"recompute": "some"},
        {"offload": "elsewhere"},
        {"states": "half"},
        {"link": "string"},
        {"vpp": "5", "pp": "4", "num_gpus": "32", "zero_stage": "0"},
        {"num_experts": "12", "topk": "2", "ep": "5"},
        {"layers": "", "hidden": "", "model": "ours 3B"},
        {"layers": "", "hidden": "", "model": "ours", "params_b": "3"},
    ],
)
def test_what_contradicts_itself_is_answered_and_said_to_be_unsure(
    changes: dict[str, str],
) -> None:
    found = predict_row(row(**changes))
    assert found["reason"] is None
    low, high = found["interval"]["step_time_s"]
    stated = predict_row(ROW)["interval"]["step_time_s"]
    assert high / low > 1.005 * stated[1] / stated[0]


@given(
    st.dictionaries(
        st.sampled_from(READ),
        st.one_of(
            st.text(max_size=12),
            st.integers(-5, 2**40).map(str),
            st.sampled_from(["nan", "inf", "1e308", "0", "-0.0", "true", "\uff14", "1_000"]),
        ),
        max_size=6,
    )
)
@settings(max_examples=150)
def test_no_cell_makes_it_crash(cells: dict[str, str]) -> None:
    found = predict_row(ROW | cells)
    assert (found["step_time_s"] is None) == (found["reason"] is not None)
    if found["step_time_s"] is not None:
        assert 0.0 < found["step_time_s"] < float("inf")


@pytest.mark.parametrize(
    ("framework", "changes", "known"),
    [
        ("Megatron-DeepSpeed", {"tp": "2", "num_gpus": "16", "zero_stage": "1"}, "megatron"),
        ("HF + DeepSpeed 0.19", {}, "deepspeed"),
        ("torchtitan (FSDP2)", {}, "huggingface"),
        ("something of our own", {"zero_stage": "3"}, "huggingface"),
        ("something of our own", {"zero_stage": "1"}, "megatron"),
        ("something of our own", {"zero_stage": "0", "tp": "2", "num_gpus": "16"}, "megatron"),
        ("something of our own", {"zero_stage": "0"}, "huggingface"),
    ],
)
def test_the_framework_follows_from_its_name_or_the_split(
    framework: str, changes: dict[str, str], known: str
) -> None:
    assert case_of(row(framework=framework, **changes)).layout.framework == known


@pytest.mark.parametrize(
    ("changes", "family"),
    [
        ({"model": "BERT-large"}, "bert"),
        ({"model": "T5-base"}, "t5"),
        ({"model": "ours", "ffn": "5632"}, "llama"),
        ({"model": "ours", "kv_heads": "4"}, "llama"),
        ({"model": "ours"}, "gpt2"),
    ],
)
def test_the_family_follows_from_the_name_or_the_numbers(
    changes: dict[str, str], family: str
) -> None:
    assert case_of(row(**changes)).shape.family == family


def test_a_mean_length_makes_the_printed_one_the_longest() -> None:
    phase_two = row(model="BERT-large", seq="512", zero_stage="0", kernel_stack="fused")
    binned = case_of(phase_two | {"mean_seq": "320"})
    assert (
        binned.mean_seq == 320 and binned.layout.batch.seq_len == 512 and "seq" in binned.presumed
    )
    assert case_of(phase_two).mean_seq == 0
    shorter, whole = (predict_row(phase_two | {"mean_seq": mean}) for mean in ("320", ""))
    assert shorter["step_time_s"] < 0.75 * whole["step_time_s"]
    assert "more than seq" in predict_row(phase_two | {"mean_seq": "640"})["reason"]


def test_states_and_the_masked_share_are_read_as_stated() -> None:
    assert case_of(row(states="pure")).layout.precision.states == "pure"
    bert = row(model="BERT-large", seq="512")
    assert case_of(bert | {"masked_share": "0.156"}).head == 0.156
    assert case_of(bert).head == 1.0 and case_of(bert | {"kind": "pre-training"}).head == 1.0
    assert {case_of(bert | {"kind": kind}).head for kind in ("finetune", "fine-tuning")} == {0.0}
    assert "a share" in predict_row(bert | {"masked_share": "15 %"})["reason"]


def test_heads_that_are_not_stated_suit_the_split() -> None:
    case = case_of(row(hidden="14400", heads="", kv_heads="", ffn="57600", tp="8", num_gpus="64"))
    assert case.shape.attention.num_heads == 200 and case.shape.attention.num_heads % 8 == 0


def test_deepspeed_deals_layers_that_do_not_divide() -> None:
    changes = {"layers": "26", "pp": "4", "num_gpus": "32", "zero_stage": "1"}
    found = predict_row(row(framework="Megatron-DeepSpeed", **changes))
    assert found["reason"] is None


def test_no_gpus_are_no_blank_cell() -> None:
    """Other columns write a zero for what there is none of; a run has a GPU."""
    with pytest.raises(UsageError, match="num_gpus = 0: a whole number from 1"):
        case_of(row(num_gpus="0"))


def test_batches_follow_from_each_other() -> None:
    by_accum = case_of(row(global_batch="", grad_accum="2")).layout
    by_batch = case_of(row(grad_accum="")).layout
    assert by_accum.batch.grad_accum == by_batch.batch.grad_accum == 2
    assert case_of(row(micro_batch="")).layout.batch.micro == 8


def test_a_table_without_what_is_needed_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text("notes,seq\nA100 SXM4 80GB,24\n", encoding="utf-8")
    with pytest.raises(DataError, match="no column chip or hardware, layers or model"):
        list(read_rows(path))
    with pytest.raises(DataError, match="cannot read"):
        list(read_rows(tmp_path / "absent.csv"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00chip")
    with pytest.raises(DataError):
        list(read_rows(tmp_path / "binary.csv"))


def test_rows_stream_and_ragged_ones_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ragged.csv"
    header = ",".join(ROW)
    whole = ",".join(ROW.values())
    path.write_text(f"\ufeff{header}\n{whole}\n{whole},more,and more\nA10\n", encoding="utf-8")
    first, second, third = read_rows(path)
    assert predict_row(first) == predict_row(second)
    assert predict_row(third)["reason"] is not None
    endless = predict_rows(itertools.repeat(ROW))
    assert [next(endless)["row"] for _ in range(3)] == [0, 1, 2]


def test_a_case_that_means_nothing_is_an_error_of_use() -> None:
    with pytest.raises(UsageError):
        case_of({})


NEMOTRON = {
    "model": "Nemotron4-15B",
    "layers": "32",
    "hidden": "6144",
    "heads": "48",
    "kv_heads": "8",
    "ffn": "24576",
    "vocab": "256000",
}


@pytest.mark.parametrize(
    ("printed", "gated", "tied"),
    [("15.6", False, False), ("", False, False), ("14.1", False, True), ("20.5", True, False)],
)
def test_printed_parameters_say_what_is_gated_and_tied(
    printed: str, gated: bool, tied: bool
) -> None:
    shape = case_of(row(**NEMOTRON, params_b=printed)).shape
    assert (shape.ffn.gated, shape.head.tied) == (gated, tied)
    if printed:
        assert parameters(shape).total / 1e9 == pytest.approx(float(printed), rel=0.03)


def test_parameters_that_fit_no_shape_make_it_unsure() -> None:
    known, wrong = (case_of(row(**NEMOTRON, params_b=b)) for b in ("15.6", "40"))
    assert "params_b" in wrong.presumed and "params_b" not in known.presumed
    assert wrong.spread > known.spread


def test_a_rack_that_its_link_joins_is_one_node() -> None:
    words = {"num_gpus": "128", "gpus_per_node": "4", "tp": "8", "fabric_gbps_per_node": "1600"}
    words |= {"dp": "", "grad_accum": ""}
    rack, trays = (case_of(row(chip=chip, **words)) for chip in ("GB200", "B200 SXM"))
    assert rack.layout.mesh.gpus_per_node == 64 and trays.layout.mesh.gpus_per_node == 4
    assert rack.rates.links.between.bandwidth == 16 * trays.rates.links.between.bandwidth


def test_todays_megatron_overlaps_and_interleaves_where_nobody_says() -> None:
    words = {"framework": "Megatron-Core", "num_gpus": "64", "dp": "", "tp": "8", "pp": "4"}
    words |= {"global_batch": "64", "micro_batch": "1", "grad_accum": "", "zero_stage": "1"}
    words |= {"layers": "48", "chip": "H100 SXM5 80GB"}
    new, old = (case_of(row(**words, kernel_stack=stack)) for stack in ("flash+fused", "fused"))
    assert new.layout.overlaps == "tensor" and new.layout.pipeline.interleave == 6
    assert "vpp" in new.presumed
    assert old.layout.overlaps == "none" and old.layout.pipeline.interleave == 1
    assert (
        case_of(row(**words, kernel_stack="flash+fused", vpp="1")).layout.pipeline.interleave == 1
    )
    ways = [new.layout.replace(overlap=how) for how in ("tensor", "data", "none")]
    exposed = [time_of(dataclasses.replace(new, layout=way))[1] for way in ways]
    assert exposed == sorted(exposed)
