"""Layers in plans and in bench; published rows that meet them, their bands, their flat rows."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from report_views import claimed, point
from runner_fakes import EMULATED, HOST, gpu, quiet
from trainrig.analysis.waterfall import build_waterfalls
from trainrig.benchmarks.layer import (
    OPS,
    PARTS,
    gpu_cases,
    host_cases,
    layer_case,
    layer_work,
    part_case,
)
from trainrig.benchmarks.spec import PlannedCase, Selection, benchmark, case_text
from trainrig.catalog.published import published_for
from trainrig.errors import UsageError
from trainrig.prediction.expected import expect
from trainrig.record import Case, Kind, Limit, Record, RunView, Status
from trainrig.runner.attempts import Pace
from trainrig.runner.plan import Task, qualify_plan
from trainrig.runner.targets import Target
from trainrig.stats import launch_bound

BOTH = "forward+backward"
CARD = "RTX 4090"
THEIRS = [record for record in published_for("layer") if "code" in record.case]


def published_rate(wanted: Case, device: str = CARD) -> list[float]:
    found = [r for r in THEIRS if r.device == device and dict(r.case) == dict(wanted)]
    return [record.value for record in found if record.value is not None]


def test_every_published_layer_of_theirs_can_be_measured() -> None:
    assert len(THEIRS) > 250
    for record in THEIRS:
        benchmark("layer").check(record.case)
        assert record.case["code"] == "huggingface"
    others = {r.case["layer"] for r in published_for("layer") if "code" not in r.case}
    assert all(
        "MoE" in str(name) or "attention" in str(name) or "_" in str(name) for name in others
    )


def test_planned_cases_meet_published_ones() -> None:
    theirs = [case for case in gpu_cases() if case["code"] == "huggingface"]
    met = [case for case in theirs if published_rate(case)]
    assert {case["layer"] for case in met} >= {"BERT-large layer", "T5-large decoder block", *PARTS}
    assert published_rate(part_case("dense h->4h", "fp16", 8192, "huggingface")) == [
        165.356e12,
        160.980e12,
    ]
    assert published_rate(part_case("attention block", "fp16", 8192, "huggingface")) == [
        83.601e12,
        81.950e12,
    ]
    ours = [case for case in gpu_cases() if case["code"] == "trainrig"]
    assert not any(published_rate(case) for case in ours)


def test_the_published_rows_of_equal_times_are_launch_bound() -> None:
    """A 4090's BERT layer, forward and backward: 128 tokens take 6.2 to 6.4 ms up to batch 64."""
    prints = [r for r in THEIRS if r.device == CARD and "two RTX 4090s" in (r.source or "")]

    def row(seq: int, how: str) -> dict[int, float]:
        times = {}
        for record in prints:
            case = record.case
            if (case["layer"], case["pass"], case.get("seq_len")) == ("BERT-large layer", how, seq):
                assert record.value
                times[int(str(case["batch_size"]))] = layer_work(case).flops / record.value
        return times

    times = row(128, BOTH)
    assert launch_bound(times) == (2, 64)
    assert all(6.2e-3 < times[batch] < 6.4e-3 for batch in (2, 4, 8, 16, 32, 64))
    assert times[128] > 12e-3
    # At 512 tokens batches 2 to 8 take 6.3 ms too: what launches cost does not know the work.
    assert launch_bound(row(512, BOTH)) == (2, 8)
    assert launch_bound(row(512, "forward")) is None


# ---------------------------------------------------------------- plans


def layers_of(blocks: Any) -> list[Task]:
    return [task for block in blocks for task in block.tasks if task.benchmark == "layer"]


def test_one_telling_case_is_required() -> None:
    host = layers_of(qualify_plan([HOST], 240.0))
    required = [task for task in host if task.planned.required]
    assert required == host[:2]
    assert [task.case["dtype"] for task in required] == ["fp32", "bf16"]
    slow = replace(HOST, arithmetic=EMULATED)
    emulated = [t for t in layers_of(qualify_plan([slow], 240.0)) if t.planned.required]
    assert [task.case["dtype"] for task in emulated] == ["fp32"]
    on_gpu = layers_of(qualify_plan([gpu(0), HOST], 240.0))
    assert {task.target.is_gpu for task in on_gpu} == {True}
    assert on_gpu[0].planned.required
    assert {t.case["dtype"] for t in on_gpu if t.planned.required} == {"fp16"}
    steps = {task.planned.step for task in on_gpu if task.planned.required}
    assert steps == {"fp16 BERT-large layer"}
    assert not any(
        "Hugging Face" not in t.planned.step for t in on_gpu if t.case["code"] == "huggingface"
    )
    cases = [json.dumps(task.case, sort_keys=True) for task in on_gpu]
    assert len(cases) == len(set(cases))
    for task in on_gpu + host:
        benchmark("layer").check(task.case)


def test_small_budgets_and_hosts_of_gpus_go_without() -> None:
    assert layers_of(qualify_plan([HOST], 30.0)) == []
    assert layers_of(qualify_plan([gpu(0)], 30.0)) == []


def task_of(case: Case, target: Target = HOST) -> Task:
    return Task(target=target, benchmark="layer", planned=PlannedCase(case=case, step="x"))


def test_what_does_not_fit_is_refused_before_it_starts() -> None:
    def fits(batch: int, memory: int) -> bool:
        case = layer_case("BERT-large layer", "fp16", BOTH, batch, 512, "huggingface")
        return task_of(case, gpu(0, memory)).fits_memory

    assert fits(32, 24 << 30)
    assert not fits(128, 24 << 30)
    assert fits(128, 80 << 30)


def test_the_pace_of_a_layer_is_learned_by_code() -> None:
    pace = Pace()
    ours = task_of(host_cases(["fp32"])[0])
    theirs = task_of({**ours.case, "code": "huggingface", "attention": "plain"})
    before = pace.call_time(theirs)
    pace.learn(ours, quiet(5.0))
    assert pace.call_time(ours) == pytest.approx(5.0, rel=0.01)
    assert pace.call_time(theirs) == before
    assert pace.overhead(theirs) > 2.0  # their import


# ---------------------------------------------------------------- expectations


def wanted(case: Case, device: str = CARD) -> Record:
    return Record(
        kind=Kind.PREDICTED,
        benchmark="layer",
        case=case,
        metric="flop_rate",
        unit="FLOP/s",
        device=device,
        device_index=0,
    )


def expected(case: Case, device: str = CARD) -> Record:
    limit = Limit(value=165e12, source="data sheet")
    return expect(wanted(case, device), limit, [], published_for("layer"))


def test_published_layers_are_a_target_for_the_same_case_and_card_alone() -> None:
    large = layer_case("BERT-large layer", "bf16", BOTH, 64, 128, "huggingface")
    found = expected(large)
    assert found.interval is not None
    assert found.interval[0] < 99.831e12 < found.interval[1]
    assert "published for RTX 4090" in (found.source or "")
    for other in (
        layer_case("BERT-large layer", "bf16", BOTH, 64, 128),
        layer_case("BERT-large layer", "bf16", BOTH, 32, 128, "huggingface"),  # waits for launches
        layer_case("BERT-large layer", "fp32", BOTH, 64, 128, "huggingface"),
        layer_case("Llama-7B block", "bf16", BOTH, 64, 128, "huggingface"),
    ):
        assert expected(other).status is Status.MISSING
    assert expected(large, "RTX 3080").status is Status.MISSING


# ---------------------------------------------------------------- bench


def selected(ops: list[str], sizes: list[str], dtypes: list[str]) -> list[Case]:
    selection = Selection(ops=ops, sizes=sizes, dtypes=dtypes)
    return [planned.case for planned in benchmark("layer").select(selection)]


def test_what_is_asked_for_is_planned() -> None:
    cases = selected(["gpt2-medium", "ffn"], ["4x64", "2×32"], ["bf16"])
    assert len(cases) == 2 * (2 * 2 + 2)
    assert {(c["batch_size"], c["seq_len"]) for c in cases if "batch_size" in c} == {
        (4, 64),
        (2, 32),
    }
    assert {c["m"] for c in cases if "m" in c} == {256, 64}
    assert {c["code"] for c in cases} == {"trainrig", "huggingface"}
    for op in OPS:
        for case in selected([op], ["3x40"], ["fp32"]):
            benchmark("layer").check(case)


@pytest.mark.parametrize("size", ["64", "x", "64x", "0x5", "2x2x2", "1x99999999", "axb", "-1x5"])
def test_sizes_that_are_none_are_refused(size: str) -> None:
    with pytest.raises(UsageError):
        selected([], [size], [])


@pytest.mark.acceptance
def test_bench_measures_a_layer(tmp_path: Path) -> None:
    asked = ["--op", "ffn", "--size", "1x32", "--dtype", "fp32", "--budget", "18s"]
    done = subprocess.run(
        [sys.executable, "-m", "trainrig", "bench", "layer", *asked, "--json", "--out", tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1, 3), done.stderr
    points = json.loads(done.stdout.splitlines()[-1])["points"]
    mine = [point for point in points if point["case"]["code"] == "trainrig"]
    assert mine
    assert mine[0]["value"] > 0.0
    assert mine[0]["unit"] == "FLOP/s"


def test_theirs_is_called_theirs() -> None:
    case = layer_case("BERT-large layer", "fp16", BOTH, 64, 128, "huggingface")
    assert "Hugging Face" in case_text("layer", case)
    assert "Hugging Face" not in case_text("layer", {**case, "code": "trainrig"})


def test_a_layer_is_explained_by_parts_of_its_own_kind() -> None:
    """Not by the other code's, another dtype's or disturbed ones."""
    code, dtype = "huggingface", "bf16"
    rate = {"metric": "flop_rate", "unit": "FLOP/s"}
    rows = [
        point("layer", part_case("FFN", dtype, 256, code), 360e9, **rate),
        point("layer", part_case("dense+GELU", dtype, 256, code), 200e9, **rate),
        point("layer", part_case("attention block", dtype, 256, "trainrig"), 10e9, **rate),
        point("layer", part_case("attention block", "fp32", 256, code), 20e9, **rate),
        point(
            "layer", part_case("attention block", dtype, 256, code), 3e9, disturbed="busy", **rate
        ),
        point("layer", layer_case("Llama-7B block", dtype, BOTH, 2, 128, code), 330e9, **rate),
    ]
    claim = claimed(dtype, 665e9, rows[0].device or "")
    waterfalls = build_waterfalls(RunView(name="run", records=(claim, *rows)))
    (compute,) = [found for found in waterfalls if dtype in found.quantity]
    gap = compute.levels[-1].gap
    assert gap is not None
    assert "dense+GELU runs at 200 GFLOPS, FFN at 360 GFLOPS" in gap.cause


def test_planning_layers_loads_no_torch() -> None:
    code = "import sys, trainrig.runner.bench as b; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_gpu_s_grid_is_whole_where_the_time_allows() -> None:
    """Each model forward and with backward, both codes; products up to 32768 in 16 bit."""
    from trainrig.benchmarks.layer import CODES, gpu_cases
    from trainrig.benchmarks.matmul import BENCHMARK
    from trainrig.benchmarks.spec import Scope

    models = ("BERT-large layer", "GPT-2 medium block", "T5-large encoder block")
    seen = {(c["layer"], c["pass"], c["code"]) for c in gpu_cases() if c.get("batch_size") == 2}
    assert {
        (name, how, code)
        for name in (*models, "T5-large decoder block")
        for how in ("forward", "forward+backward")
        for code in CODES
    } <= seen
    long, short = (BENCHMARK.qualify(Scope(is_gpu=True, budget=b)) for b in (240.0, 30.0))
    assert {p.case["dtype"] for p in long if p.case["m"] == 32768} == {"bf16", "fp16", "tf32"}
    assert not any(p.required for p in long if p.case["m"] == 32768)
    assert not [p for p in short if p.case["m"] == 32768]
