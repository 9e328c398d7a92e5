"""Predictions, searches and the ledger as people see them: nothing is cut."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from training_summaries import printed
from trainrig.analysis.prediction_error import Ledger
from trainrig.catalog.lookup import require_chip
from trainrig.prediction.cluster import Cluster
from trainrig.prediction.prediction import predict
from trainrig.prediction.scenario import Question, question
from trainrig.prediction.search import families, search
from trainrig.prediction.search.space import Space
from trainrig.prediction.verdict import BORDERLINE
from trainrig.report.document import Table
from trainrig.report.prediction_report import (
    gap_text,
    layout_text,
    ledger_document,
    place_text,
    plan_document,
)
from trainrig.units import format_count, format_time
from trainrig.workload.layout import Layout
from trainrig.workload.model_lookup import find

TWO = {"model": "gpt2-medium", "on": "RTX 3090 Ti", "gpus": 2, "batch_size": 5}


def test_layouts_places_and_counts_in_words() -> None:
    layout = question(TWO | {"tp": 2, "sequence_parallel": 1}).layout
    assert layout_text(layout) == (
        "megatron, tp 2, sequence parallel, batch 5, bf16 with fp32 masters, flash+fused"
    )
    assert place_text(layout, "RTX 3090 Ti") == "2 × RTX 3090 Ti"
    assert place_text(layout.replace(gpus=16, gpus_per_node=8), "H") == "16 × H in 2 nodes"
    assert [format_count(n) for n in (0.5, 12, 999.9, 2.7e9, 1.4e11)] == [
        "0.500", "12.0", "1.00k", "2.70B", "140B",
    ]  # fmt: skip


# ---- plan


def searched(model: str, gpus: int, batch: int, top: int = 3) -> tuple[Space, Any, Any]:
    cluster = Cluster(chip=require_chip("A100 SXM4 80GB"), gpus=gpus)
    space = Space(shape=find(model), base=Layout.of(gpus=gpus, seq_len=1024), global_batch=batch)
    found = search(space, cluster.rates(), top=top)
    best = predict(Question(shape=space.shape, layout=found.best[0].layout, cluster=cluster))
    return space, found, best


def tables_of(*asked: Any, **more: Any) -> list[Table]:
    return [b for b in plan_document(*asked, **more).blocks if isinstance(b, Table)]


def column(table: Table, head: str) -> list[str]:
    place = [column.head for column in table.columns].index(head)
    return [cells[place] for cells in table.rows]  # type: ignore[index]


def test_the_mfu_of_each_layout_is_the_one_definition_s() -> None:
    space, found, best = searched("gpt2-xl", 8, 64)
    shown = column(tables_of(space, found, best)[0], "MFU")
    cluster = Cluster(chip=require_chip("A100 SXM4 80GB"), gpus=8)
    for text, candidate in zip(shown, found.best, strict=True):
        one = predict(Question(shape=space.shape, layout=candidate.layout, cluster=cluster))
        assert one.mfu is not None and text == f"{100 * one.mfu:.0f} %"


def test_a_layout_of_a_plan_is_borderline_where_predict_says_so() -> None:
    space, found, best = searched("gpt2-xl", 4, 8, top=1)
    for room in (2.0, 1.1, 1.04):
        rates = best.rates.replace(memory_bytes=found.best[0].memory * room)
        own = dataclasses.replace(best, rates=rates)
        is_borderline = own.verdict == BORDERLINE
        assert is_borderline is (room < 2.0)
        text = printed(plan_document(space, found, own))
        assert ("borderline: its interval of memory has the" in text) is is_borderline
        (words,) = column(tables_of(space, found, own)[0], "fastest")
        assert words.endswith(", borderline") is is_borderline


def test_a_front_shows_rows_that_save_and_are_not_slower_beyond_use() -> None:
    """A row of 111 s beside one of 7 s helps nobody, nor one that saves a hundredth."""
    space, found, best = searched("gpt2-xl", 64, 256, top=1)
    first = dataclasses.replace(found.front[0], time=1.0, memory=64e9)
    sizes = ((1.0, 64e9), (1.1, 63.5e9), (1.2, 40e9), (1.3, 39e9), (1.9, 30e9), (2.1, 3e9))
    front = tuple(dataclasses.replace(first, time=time, memory=size) for time, size in sizes)
    thinned = dataclasses.replace(found, front=front)
    shown = tables_of(space, thinned, best)[1]
    assert column(shown, "step s") == ["1.00", "1.20", "1.90"]
    many = tuple(
        dataclasses.replace(first, time=1.0 + n / 100, memory=64e9 * 0.8**n) for n in range(30)
    )
    rows = column(tables_of(space, dataclasses.replace(found, front=many), best)[1], "step s")
    assert len(rows) == 10


def test_a_family_stands_once_with_what_ties_with_it() -> None:
    space, found, best = searched("gpt2-xl", 8, 64, top=400)
    shown = families(found.best, 5)
    splits = [
        (one.best.layout.framework, one.best.layout.mesh.tp, one.best.layout.mesh.pp)
        for one in shown
    ]
    assert shown[0].best is found.best[0]
    assert [one.best.time for one in shown] == sorted(one.best.time for one in shown)
    assert len({str(split) for split in splits}) > 1
    twice = families([found.best[0], dataclasses.replace(found.best[0], time=best.time * 1.005)], 5)
    assert [one.ties for one in twice] == [1]
    (table, *_) = tables_of(space, found, best, families=twice)
    assert column(table, "ties") == ["1"]
    (peak,) = {float(rate) for rate in column(table, "TFLOPS")}
    assert peak == pytest.approx(best.flop_rate / 1e12, rel=0.01)


def test_a_gap_is_explained_by_its_parts() -> None:
    _, found, _ = searched("gpt2-xl", 8, 64)
    first, second = found.best[:2]
    assert gap_text(first, second).startswith("The next best takes ")
    assert gap_text(first, first) == "The next best takes as long."
    queued = dataclasses.replace(first, simulated=1.5 * first.time)
    told = gap_text(dataclasses.replace(first, simulated=None), queued)
    gap = format_time(0.5 * first.time)
    assert told == f"The next best takes {gap} more: what the simulation adds +{gap}."


# ---- ledger


def test_an_empty_ledger_is_a_sentence_and_its_unread_runs() -> None:
    ledger = Ledger(host="", machine="", entries=(), num_runs=2, others=1, unread=("a: torn",))
    text = printed(ledger_document(ledger, ()))
    assert text.startswith("a machine without a name: nothing was predicted and measured yet in 2")
    assert "1 run of other machines left out" in text and "not read: a: torn" in text
    assert "Nothing to fit: a part needs 4 runs" in text


def test_the_gib_of_a_plan_that_does_not_fit_are_whole_and_its_refusal_stands_first() -> None:
    """1,124 GiB once read 1.1: the prefix of the next unit was stripped with the unit."""
    space, found, best = searched("gpt2-xl", 8, 64, top=1)
    huge = dataclasses.replace(found.best[0], memory=1124.0 * 2**30, fits=False)
    ranking = dataclasses.replace(found, best=(huge,), front=())
    document = plan_document(space, ranking, best)
    assert column(tables_of(space, ranking, best)[0], "GiB") == ["1124.0"]
    assert printed(document).lstrip().startswith("Nothing fits in memory")
