"""The experiments of a run as terminal, markdown and HTML show them."""

from __future__ import annotations

import dataclasses
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiment_views import experiments_view
from reports import markdown, print_report
from training_summaries import printed, summary, training_view
from trainrig.analysis.training_baselines import PublishedFigure, published_figures
from trainrig.catalog.published.training import baselines, baselines_of_case
from trainrig.record import Kind, Record, RunView, Status, new_id
from trainrig.report.document import Findings, Paragraph, Section, Table
from trainrig.report.published_trainings import published_outliers
from trainrig.report.render.markdown import to_markdown
from trainrig.report.run_report import render_html
from trainrig.report.training_report import (
    training_blocks,
    training_document,
)
from trainrig.train.config import Experiment, case_of
from trainrig.train.config_file import read_file

ROOT = Path(__file__).resolve().parents[3]


def shown(*rows: dict[str, Any], width: int = 120, **fields: Any) -> str:
    return printed(training_document(training_view(*rows, **fields)), width)


def blocks_of(view: RunView) -> tuple[Any, ...]:
    (section,) = training_blocks(view)
    assert isinstance(section, Section)
    return section.blocks


def table_of(view: RunView, title: str) -> Table | None:
    tables = [block for block in blocks_of(view) if isinstance(block, Table)]
    return next((table for table in tables if table.title.startswith(title)), None)


def remarks_of(view: RunView) -> list[str]:
    (found,) = [b for b in blocks_of(view) if isinstance(b, Findings)] or [Findings(())]
    return [item.text for item in found.items]


# ---- speedups


def in_rounds(name: str, rates: list[float]) -> dict[str, Any]:
    """Trained in as many quiet rounds, each of ten steps."""
    rounds = [{"step_times_s": [8 / rate] * 10, "disturbed": None} for rate in rates]
    return summary(name, 8 / rates[0], rounds=rounds)


def test_what_would_decide_more_is_said_where_nothing_is_decided() -> None:
    assert "rounds = 3 in the file" in shown(summary("a", 1.0), summary("b", 1.01))
    rates = [100.0, 104.0, 96.0]
    text = shown(in_rounds("a", rates), in_rounds("b", rates[::-1]))
    assert "More rounds would decide more." in text and "in the file" not in text
    assert "would decide more" not in shown(summary("a", 1.0), summary("b", 0.5))


def test_the_conclusion_is_one_sentence_for_each_base() -> None:
    rows = [summary("a", 1.0), summary("b", 0.5), summary("c", 2.0)]
    (section,) = training_blocks(training_view(*rows))
    assert isinstance(section, Section)
    first = section.blocks[0]
    assert isinstance(first, Paragraph) and first.text.startswith("b is 2.00 × as fast as a (")
    assert "a is the fastest." in shown(summary("a", 1.0), summary("b", 2.0))
    undecided = shown(summary("a", 1.0), summary("b", 1.01))
    assert "None is clearly faster than a." in undecided
    assert undecided.count("would decide more") == 1, "the table's note says it"


def test_the_observed_layout_is_said_in_words() -> None:
    alone = dict.fromkeys(("recompute", "compile", "offload"), False) | {
        "ranks": 1,
        "zero": 0,
        "precision": "bf16",
        "grad_accum": 1,
        "wrapped": "Model",
        "attention": "tiles",
    }
    sharded = dict.fromkeys(("recompute", "compile", "offload"), True) | {
        "ranks": 2,
        "zero": 3,
        "precision": "bf16",
        "grad_accum": 2,
        "wrapped": "FSDPModel",
    }
    rows = (summary("a", 1.0, layout_found=alone), summary("b", 1.0, layout_found=sharded))
    text = shown(*rows, width=200)
    assert "1 rank, bf16, attention in tiles " in text
    assert "2 ranks, ZeRO-3, bf16, 2 micro-batches a step, recomputed, compiled, offloaded" in text
    assert "as FSDPModel" in text and "(Model)" not in text


# ---- devices, memory, energy


def used(**changes: Any) -> dict[str, Any]:
    gpus = [{"rank": n, "device": f"cuda:{n}", "index": n + 2, "name": "RTX 4090"} for n in (0, 1)]
    memory = [{"allocated_bytes": held, "reserved_bytes": 3 * 2**30} for held in (2**30, 2**31)]
    energy = {"energy_per_token_j": 0.0123, "mean_power_w": 312.3, "no_energy_reason": None}
    return summary("b", 1.0, devices=gpus, memory_by_rank=memory, **(energy | changes))


def test_devices_memory_and_energy_stand_in_a_table() -> None:
    view = training_view(summary("a", 1.0, no_energy_reason="needs root"), used())
    table = table_of(view, "Devices and energy")
    assert table is not None
    heads = ["experiment", "devices", "allocated", "reserved", "J/token", "power"]
    assert [column.head for column in table.used()] == heads
    assert table.rows == (
        ("a", "-", "-", "-", "-", "-"),
        ("b", "GPU 2, 3 (RTX 4090)", "1.0 GiB to 2.0 GiB", "3.0 GiB", "0.0123 J", "312 W"),
    )
    assert "Energy of a was not read: needs root" in remarks_of(view)


def test_where_nothing_was_read_there_is_a_line_and_no_column() -> None:
    dry = used(energy_per_token_j=None, mean_power_w=None, no_energy_reason="needs root")
    view = training_view(dry, dry | {"name": "c"})
    table = table_of(view, "Devices and energy")
    assert table is not None
    heads = [column.head for column in table.used()]
    assert heads == ["experiment", "devices", "allocated", "reserved"]
    assert remarks_of(view) == ["Energy was not read: needs root"]
    bare = training_view(summary("a", 1.0))
    assert table_of(bare, "Devices and energy") is None and remarks_of(bare) == []
    for wrong in ({"devices": "two"}, {"memory_by_rank": [{"allocated_bytes": "much"}]}):
        assert training_blocks(training_view(dry | wrong)) == ()


# ---- predictions


def record(name: str, metric: str, value: float | None, kind: Kind, **more: Any) -> Record:
    unit = "s" if metric == "time" else "B"
    case = {"experiment": name, "batch": more.pop("batch", 4)}
    return Record(
        kind=kind, benchmark="training", case=case, metric=metric, unit=unit, value=value, **more
    )


def test_predicted_and_measured_stand_in_one_row() -> None:
    records = (
        record("a", "time", 0.3, Kind.PREDICTED, batch=8, interval=(0.2, 0.4)),  # did not fit
        record("a", "time", 1.5, Kind.PREDICTED, interval=(1.2, 2.0), source="matmul"),
        record("a", "peak_memory", 2.0 * 2**30, Kind.PREDICTED),
        record("a", "time", 1.0, Kind.MEASURED),
        record("b", "time", None, Kind.PREDICTED, status=Status.MISSING, reason="no rates"),
        record("c", "time", None, Kind.PREDICTED, status=Status.MISSING, reason="no rates"),
    )
    rows = [summary(name, 1.0, peak_memory_bytes=2.0**30) for name in "abc"]
    view = training_view(*rows, records=records)
    table = table_of(view, "Predicted before it was trained")
    assert table is not None
    assert table.rows == (
        ("a", "1.50 s", "1.20 s to 2.00 s", "1.00 s", "+50 %", "2.0 GiB", "1.0 GiB"),
    )
    assert "b: not predicted: no rates" in remarks_of(view)
    assert not any(text.startswith("c: not predicted") for text in remarks_of(view))
    assert table_of(training_view(*rows), "Predicted before") is None


# ---- others' figures


def published_records() -> list[Record]:
    """The classic file's experiments on cards that are fastest in bf16, with others' figures."""
    known = tuple(baselines())
    return [
        found.replace(id=new_id(), conditions={**found.conditions, "experiment": own.name})
        for own in read_file(ROOT / "experiments" / "classic.toml", {}, lambda *_: "bf16")
        for found in baselines_of_case(case_of(own, ""), known)
    ]


def figures() -> tuple[PublishedFigure, ...]:
    return published_figures(RunView(name="r", records=tuple(published_records())))


def test_published_figures_stand_beside_the_classic_rows() -> None:
    found = {(one.experiment, round(one.tokens_per_s_per_device)) for one in figures()}
    both = {
        "BERT, fp32": {12530},
        "BERT, batch 11": {12254, 20197},
        "BERT, fused optimizer": {12975, 21143},
        "BERT, accumulation": {14077, 22138},
        "BERT, checkpointing": {12823, 17395},
        "BERT, Hugging Face, fp32": {12530},
        "BERT, Hugging Face, bf16": {12254, 20197},
        "BERT, Hugging Face, 8-bit optimizer": {12975, 21143},
        "BERT, tf32": {8008},
        "BERT, Hugging Face, tf32": {8008},
        "GPT-2, one device": {17403, 25234},
        "GPT-2, data parallel": {15710, 9379},
        "GPT-2, Megatron, data parallel": {15710, 9379},
        "GPT-2, without P2P": {10947, 9382},
        "GPT-2, accumulation": {18105, 18796},
        "GPT-2, accumulation without P2P": {16127, 18786},
    }
    assert found == {(name, rate) for name, rates in both.items() for rate in rates}
    assert {one.device for one in figures()} == {"RTX 3090 Ti", "RTX 4090"}
    assert len(figures()) == sum(map(len, both.values()))


def test_two_published_figures_of_the_faster_card_lie_below_the_slower_ones() -> None:
    parallel, without = published_outliers(figures())
    assert parallel.startswith("GPT-2, data parallel: the RTX 4090 is published at 9.38 ktoken/s")
    assert "below the slower RTX 3090 Ti's 15.7 ktoken/s" in parallel and "2.1 times" in parallel
    assert "PCIe only (PHB), no peer access; the other's over NVLink bridge (NV4)" in parallel
    assert without.startswith("GPT-2, without P2P: the RTX 4090 is published at 9.38 ktoken/s")
    assert "below the slower RTX 3090 Ti's 10.9 ktoken/s" in without


def test_a_faster_card_below_a_slower_one_is_noticed_once() -> None:
    rows = [one for one in figures() if one.experiment == "GPT-2, one device"]
    assert list(published_outliers(rows)) == []
    slow = [
        replace(one, tokens_per_s_per_device=15000.0 + 3e4 * (n == 0)) for n, one in enumerate(rows)
    ]
    (text,) = published_outliers(slow)
    assert "RTX 4090 is published at 15.0 ktoken/s" in text and "another link" in text
    again = [replace(one, experiment="another") for one in slow]
    assert list(published_outliers([*slow, *again])) == [text]
    assert list(published_outliers([slow[0], again[1]])) == []


def test_every_page_shows_ratios_and_published_figures() -> None:
    rows = (summary("a", 1.0), summary("b", 0.5))
    view = training_view(*rows, records=tuple(published_records()))
    for page in (render_html([view]), markdown(view), shown(*rows, records=view.records)):
        assert "2.00 ×" in page.replace("\u00a0", " ") and "8008" in page
        assert "published at 9.38 ktoken/s" in " ".join(page.split())


def test_figures_of_an_older_run_are_read_from_its_series() -> None:
    row = {"experiment": "a", "device": "RTX 4090", "dtype": "fp32", "tokens_per_s_per_device": 9.0}
    row |= {"memory_bytes": None, "software": "HF Transformers 4.2", "source": "q/r@4a8daeb"}
    view = training_view(summary("a", 1.0))
    view = replace(view, series={**view.series, "published": (row,)})
    text = printed(training_document(view))
    assert "HF Transformers, fp32" in text and "@4a8daeb" in text
    for wrong in ({"device": 3}, {"source": None}, {"tokens_per_s_per_device": "fast"}):
        series = {**view.series, "published": (row | wrong,)}
        assert published_figures(replace(view, series=series)) == ()


def test_the_published_table_has_a_column_for_each_card() -> None:
    view = training_view(summary("a", 1.0), records=tuple(published_records()))
    table = table_of(view, "Published by others")
    assert table is not None
    heads = [column.head for column in table.columns]
    assert heads == ["experiment", "published case", "RTX 4090", "RTX 3090 Ti"]
    found = {cells[0]: cells[1:] for cells in table.rows}  # type: ignore[index]
    assert found["BERT, fp32"] == (
        "HF Transformers, bert-large, fp32, 8 of 512",
        "12530, 19.4 GiB",
        "-",
    )
    assert found["BERT, tf32"][1:] == ("-", "8008, 20.3 GiB")
    assert found["GPT-2, accumulation"][0] == "Megatron-LM, gpt2-medium, bf16, 5 × 4 of 1024"
    assert found["BERT, checkpointing"][0].endswith("66 × 4 of 512, recomputed")
    newer, older = table.notes
    assert older.startswith("RTX 3090 Ti: mli/") and "cards over PCIe only, P2P off" in older
    assert newer.startswith("RTX 4090: qhduan/") and "no peer access" in newer


# ---- every renderer


def test_a_name_ends_neither_a_cell_nor_the_page() -> None:
    rows = [summary("a", 1.0), summary("b|```\n| c |", 0.5, breakdown={"forward": 0.4})]
    document = training_document(training_view(*rows))
    lines = [line for line in to_markdown(document).splitlines() if line.startswith("|")]
    assert all(line.endswith("|") and line.count("|") >= 2 for line in lines)
    assert "```" not in to_markdown(document) and "\x1b" not in printed(document)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_line_fits_the_terminal_and_nothing_is_cut(width: int) -> None:
    view = replace(experiments_view(), records=tuple(published_records()))
    text = printed(training_document(view), width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("2.22 ×", "88.9 TFLOPS", "15.8 GiB", "450 ms", "9.0000", "out of memory", "133 %"):
        assert word in text, word


def test_short_names_leave_room_for_a_drawing_in_one_piece() -> None:
    rows = [summary("a", 1.0, breakdown={"forward": 0.6, "backward": 0.3}), summary("b", 0.5)]
    lines = shown(*rows, width=80).splitlines()
    assert [line for line in lines if "fffff" in line and line.endswith("125 ms")]
    assert [line for line in lines if "sample/s" in line and line.startswith("a ")]


def test_a_plain_terminal_gets_plain_letters() -> None:
    document = training_document(training_view(summary("a", 1.0), summary("b", 0.5)))
    assert printed(document, encoding="ascii").isascii()


def test_a_report_of_experiments_says_of_each_once_why_it_is_not_judged() -> None:
    busy = Record(
        kind=Kind.MEASURED,
        benchmark="training",
        case=case_of(Experiment.of(name="our DDP", framework="native"), "a5027ba6"),
        metric="time",
        unit="s",
        value=1.0,
        disturbed="others used 82 %",
    )
    view = training_view(summary("our DDP", 1.0), records=(busy,))
    stream = io.StringIO()
    print_report(view, Console(file=stream, width=100))
    assert "at 8.00 samples/s." in stream.getvalue()
    assert "training: 1 point, 1 noisy" in stream.getvalue()
    assert "others used" not in stream.getvalue() and "Largest gap" not in stream.getvalue()
    assert "our DDP, time" in render_html([view]) and "a5027ba6" not in markdown(view)
    print_report(dataclasses.replace(view, series={}), Console(file=stream, width=100))
    assert "our DDP, unknown device: noisy: others used 82 %" in stream.getvalue()


def test_the_page_of_two_runs_holds_one_against_the_other() -> None:
    old, new = (
        training_view(
            summary("x", seconds), name=name, config={"name": name, "experiments": [{"name": "x"}]}
        )
        for name, seconds in (("a", 1.0), ("b", 0.5))
    )
    page = render_html([old, new])
    assert "Old run against new run" in page and "1 better" in page
    unlike = [{"cpu": {"model": model}} for model in ("EPYC 7763", "EPYC 9655")]
    sides = [
        replace(each, machine=machine) for each, machine in zip((old, new), unlike, strict=True)
    ]
    page = render_html(sides)
    assert page.index("Setup differences") < page.index("new over old")
    assert "Old run against new run" not in render_html([old, old])
    assert "Old run against new run" not in render_html([old, RunView(name="c")])
