"""A row asks what the same flags ask, and its answer is theirs."""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from trainrig.cli.predict_options import case_columns, one_machine
from trainrig.errors import UsageError
from trainrig.prediction import cases
from trainrig.prediction.cases.answers import answer, errors_of, predict_rows
from trainrig.prediction.cases.columns import CaseRow, read_rows
from trainrig.prediction.cases.complete import Case, check_row, complete
from trainrig.prediction.cluster import FLASH_VERSIONS
from trainrig.prediction.prediction import Prediction, predict
from trainrig.prediction.scenario import question
from trainrig.process import pool
from trainrig.workload.layout import groups
from trainrig.workload.programs import FRAMEWORKS

ROOT = Path(__file__).resolve().parents[4]
VALUES: dict[str, tuple[Any, ...]] = {
    "model": ("gpt2", "llama-7B", "mixtral-8x7B", "bert-large", "gpt2:num_layers=4,hidden=256"),
    "on": ("RTX 4090", "8x H100 SXM", "A100 SXM4 80GB", "DGX H100"),
    "gpus": (1, 2, 8, 16, 64),
    "gpus_per_node": (4, 8),
    "link": ("nvlink", "pcie"),
    "fabric_gbps": (100, 400.5),
    "host_memory": (64, 512),
    "seq_len": (128, 512, 1024),
    "precision": ("bf16", "fp16", "fp8", "fp32", "mxfp8"),
    "kernels": groups.KERNELS,
    "optimizer": groups.OPTIMIZERS,
    "recompute": groups.RECOMPUTE,
    "offload": groups.OFFLOAD,
    "lora_rank": (0, 8),
    "framework": tuple(FRAMEWORKS),
    "states": groups.STATES,
    "loss": groups.LOSS,
    "overlap": groups.OVERLAP,
    "batch_size": (1, 2, 4),
    "grad_accum": (1, 4),
    "global_batch": (64, 256),
    "tp": (1, 2, 8),
    "pp": (1, 2),
    "ep": (1, 8),
    "zero": (0, 1, 2, 3),
    "sequence_parallel": (True, False),
    "p2p": (True, False),
    "target_seq_len": (64, 128),
    "experts": groups.EXPERTS,
    "flash_version": tuple(FLASH_VERSIONS),
}


def random_cells(chance: random.Random) -> dict[str, Any]:
    """Cells of a model, a machine and a few options."""
    names = chance.sample([name for name in VALUES if name not in ("model", "on")], 5)
    return {name: chance.choice(VALUES[name]) for name in ("model", "on", *names)}


def row_of(cells: dict[str, Any], folder: Path) -> CaseRow:
    path = folder / "cases.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(cells))
        writer.writeheader()
        writer.writerow(cells)
    (row,) = read_rows(path, case_columns())
    return row


def refusal_or(ask: Callable[[], Prediction]) -> tuple[str | None, Prediction | None]:
    """Return why there is no prediction, or the prediction."""
    try:
        return None, ask()
    except UsageError as error:
        return error.message, None


def test_random_rows_are_answered_as_the_same_flags(tmp_path) -> None:
    chance, answered = random.Random(40), 0
    for _ in range(150):
        cells = random_cells(chance)
        row = row_of(cells, tmp_path)
        given = {name: value for name, value in cells.items() if name != "on"}
        flags = one_machine(on=(cells["on"],), chip=(), cluster=(), **given)
        asked, expected = refusal_or(lambda flags=flags: predict(question(flags)))
        told, found = refusal_or(lambda row=row: answer(complete(row)))
        assert (asked, expected) == (told, found)
        answered += found is not None
    assert answered >= 40


def test_the_command_line_s_flags_and_a_row_are_one_answer(trainrig, tmp_path) -> None:
    cells = {"model": "llama-7B", "on": "8x H100 SXM", "zero": 3, "global_batch": 64, "p2p": True}
    row_of(cells, tmp_path)
    _, told, _ = trainrig("predict", "--cases", str(tmp_path / "cases.csv"), "--json")
    words = ("--model", "llama-7B", "--on", "8x H100 SXM", "--zero", "3", "--global-batch", "64")
    _, out, _ = trainrig("predict", *words, "--p2p", "--json")
    row, flags = json.loads(told), json.loads(out)
    for key in ("step_time_s", "memory_bytes_per_gpu", "layout", "model", "on", "fits", "mfu"):
        assert row[key] == flags[key], key
    assert row["interval"] == flags["interval"]


def test_other_rows_and_the_order_of_columns_change_no_answer(tmp_path) -> None:
    chance = random.Random(41)
    table = [random_cells(chance) for _ in range(20)]
    alone = [next(predict_rows([row_of(cells, tmp_path)])) | {"row": 0} for cells in table]
    shuffled = [dict(chance.sample(list(cells.items()), len(cells))) for cells in table]
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(map(json.dumps, shuffled)))
    together = predict_rows(read_rows(path, case_columns()))
    assert [found | {"row": 0} for found in together] == alone


def seconds(**options: Any) -> float:
    return answer(complete(CaseRow(line=1, name="", options=options))).time


def test_the_version_of_flash_attention_is_that_of_the_kernels() -> None:
    long = {"model": "llama-7B", "seq_len": 32768, "recompute": "full"}
    ampere, hopper = long | {"on": "A100 SXM4 80GB"}, long | {"on": "H100 SXM5 80GB"}
    assert seconds(**ampere, flash_version="1") > 1.05 * seconds(**ampere)
    assert seconds(**hopper, flash_version="latest") < 0.95 * seconds(**hopper)
    fused = hopper | {"kernels": "flash+fused"}
    assert seconds(**fused, flash_version="latest") == seconds(**fused)
    assert seconds(**fused, flash_version="2") > 1.02 * seconds(**fused)


def test_a_decoder_writes_as_many_tokens_as_are_stated() -> None:
    t5 = {"model": "t5-large", "on": "RTX 4090", "seq_len": 512, "batch_size": 8}
    assert seconds(**t5, target_seq_len=512) == seconds(**t5) > seconds(**t5, target_seq_len=128)


def test_experts_in_turn_take_longer_than_grouped_ones() -> None:
    moe = {"model": "qwen3-30B-A3B", "on": "8x H100 SXM", "zero": 3}
    assert seconds(**moe, experts="modules") > seconds(**moe, experts="grouped") == seconds(**moe)


def test_windows_of_a_model_s_layers_are_numbers_of_it(tmp_path) -> None:
    plain = "llama:num_layers=5,hidden=512,num_heads=8"
    shape = complete(row_of({"model": f"{plain},windows=128/64/0", "on": "RTX 4090"}, tmp_path))
    assert shape.question.shape.attention.windows == (128, 64, 0, 128, 64)
    with pytest.raises(UsageError, match="windows"):
        complete(row_of({"model": f"{plain},windows=a", "on": "RTX 4090"}, tmp_path))


def test_each_option_of_predict_is_a_column() -> None:
    from trainrig.cli.predict import command

    others = {"tokens", "what_if", "price", "cases", "simulate", "as_json", "html", "pdf", "md"}
    declared = {str(one.name) for one in command.params} - others
    columns = case_columns()
    assert declared == {
        column.name if column.name in ("chip", "cluster") else column.option for column in columns
    }
    (micro,) = [column for column in columns if column.option == "batch_size"]
    assert micro.name == "micro_batch" and "batch_size" in micro.aliases


def test_a_word_that_no_model_makes_valid_is_refused_before_any_answer(trainrig, tmp_path) -> None:
    path = tmp_path / "cases.csv"
    for cells, near in (("gpt22,RTX 4090,", "gpt2"), ("gpt2,RTX 4091,", "RTX 4090")):
        path.write_text(f"model,on,kernels\ngpt2,RTX 4090,\n{cells}\n")
        code, out, err = trainrig("predict", "--cases", str(path))
        assert (code, out) == (2, "") and "cases.csv:3: " in err and near in err
    path.write_text("model,on,kernels\ngpt2,RTX 4090,flsh\n")
    code, _, err = trainrig("predict", "--cases", str(path))
    assert code == 2 and "cases.csv:2: unknown kernels 'flsh'" in err and "flash" in err


def test_a_layout_that_cannot_be_run_has_a_reason_and_the_others_an_answer(tmp_path) -> None:
    rows = [
        CaseRow(line=2, name="", options={"model": "gpt2", "on": "RTX 4090", "gpus": 3, "tp": 2}),
        CaseRow(line=3, name="ours", options={"model": "gpt2", "on": "RTX 4090", "lora_rank": 4}),
    ]
    for row in rows:
        check_row(row)
    first, second = predict_rows(rows)
    assert first["reason"] and first["step_time_s"] is None and first["id"] is None
    assert second["reason"] is None and second["id"] == "ours" and second["row"] == 1
    assert first.keys() == second.keys()


@pytest.mark.parametrize("at_least", [2000, 4], ids=["here", "in other processes"])
def test_a_mistake_in_one_row_is_its_reason(monkeypatch: pytest.MonkeyPatch, at_least: int) -> None:
    num, divided = 5, partial(pool.ordered_map, at_least=at_least, together=2)
    monkeypatch.setattr(pool, "ordered_map", divided)
    real = cases.answers.complete

    def broken(row: CaseRow) -> Case:
        if row.name == "broken":
            raise StopIteration
        return real(row)

    monkeypatch.setattr(cases.answers, "complete", broken)
    options = {"model": "gpt2", "on": "RTX 4090"}
    rows = [
        CaseRow(line=n, name="broken" if n == num else "", options=options) for n in range(num + 1)
    ]
    *others, last = predict_rows(rows)
    assert all(one["reason"] is None and one["step_time_s"] for one in others)
    assert last["step_time_s"] is None and "StopIteration in test_cases" in last["reason"]


def test_what_is_presumed_is_named(tmp_path) -> None:
    row = row_of({"model": "gpt2", "on": "RTX 4090", "precision": "bf16"}, tmp_path)
    presumed = complete(row).presumed
    assert {"seq_len", "kernels", "framework"} <= set(presumed)
    assert not {"precision", "tp", "offload", "link"} & set(presumed)
    several = row_of({"model": "gpt2", "on": "RTX 4090", "gpus": 16}, tmp_path)
    assert {"link", "fabric_gbps"} <= set(complete(several).presumed)


def test_errors_stand_beside_what_was_measured(trainrig, tmp_path) -> None:
    cells = {"model": "gpt2-medium", "on": "RTX 4090", "gpus": 2, "batch_size": 4}
    found = answer(complete(row_of(cells, tmp_path)))
    samples = 8 / found.time
    for name, value in (
        ("measured_step_s", found.time),
        ("measured_samples_per_s", samples),
        ("measured_tokens_per_s", samples * 1024),
        ("measured_tokens_per_s_per_gpu", samples * 512),
    ):
        errors = errors_of(found, {name: value * 2.0})
        off = -0.5 if name == "measured_step_s" else 1.0
        assert errors.time == pytest.approx(off), name
        assert errors.is_inside is False
        assert errors_of(found, {name: value}).is_inside is True
    assert errors_of(found, {}).time is None
    used = float(found.memory.total)
    assert errors_of(found, {"measured_memory_bytes": used * 2}).memory == pytest.approx(-0.5)
    row_of(cells | {"id": "mine", "measured_step_s": found.time * 2}, tmp_path)
    code, out, _ = trainrig("predict", "--cases", str(tmp_path / "cases.csv"))
    text = " ".join(out.split())
    assert code == 0 and "mine" in text and "−50 %" in text and "RTX 4090" in text


def test_simulated_times_stand_beside_the_closed_form_s(trainrig, tmp_path) -> None:
    cells = {"model": "llama-7B", "on": "8x H100 SXM", "pp": 4, "tp": 2, "grad_accum": 16}
    row_of(cells, tmp_path)
    asked = ("predict", "--cases", str(tmp_path / "cases.csv"), "--simulate", "--json")
    _, out, _ = trainrig(*asked)
    told = json.loads(out)
    words = [word for name, value in cells.items() for word in (f"--{name}", str(value))]
    words = [word.replace("_", "-") if word.startswith("--") else word for word in words]
    _, out, _ = trainrig("predict", *words, "--json")
    flags = json.loads(out)["simulated_step_time_s"]
    assert told["simulated_step_time_s"] == pytest.approx(flags, rel=1e-12)


def test_the_page_of_columns_is_that_of_the_declarations() -> None:
    tool = ROOT / "tools" / "cases_table.py"
    done = subprocess.run([sys.executable, tool], capture_output=True, text=True, check=True)
    page = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
    assert done.stdout == page, "python tools/cases_table.py --write"


def test_the_page_s_examples_are_answered(tmp_path) -> None:
    lines = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("    id,model"))
    path = tmp_path / "cases.csv"
    path.write_text("\n".join(line.strip() for line in lines[start : start + 4]) + "\n")
    found = list(predict_rows(read_rows(path, case_columns())))
    assert len(found) == 3 and all(row["reason"] is None for row in found)
    example = next(line for line in lines if line.startswith("    {"))
    (tmp_path / "cases.jsonl").write_text(example.strip())
    (row,) = predict_rows(read_rows(tmp_path / "cases.jsonl", case_columns()))
    assert row["layout"]["global_batch"] == 64
