"""What is normal as documents and as a page: one card, two cards, nothing; tables of notebooks."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from report_views import gpu_view, matmul_case, point
from trainrig.analysis.normal import PublishedSelection, devices_of, published_cases
from trainrig.catalog.published import published_records
from trainrig.errors import UsageError
from trainrig.report import document as doc
from trainrig.report.notebook_tables import notebook_tables
from trainrig.report.published_page import published_page
from trainrig.report.published_report import card_document, case_range
from trainrig.report.run_report import run_document


def text_of(table: doc.Table) -> list[list[str]]:
    return [[cell.text for cell in cells] for _, cells in table.lines()]


def test_a_notebook_s_table_of_products() -> None:
    sizes = {("fp16", 8192): 160e12, ("fp16", 128): 1e12, ("fp32", 8192): 50e12}
    records = [point("matmul", matmul_case(d, n), rate) for (d, n), rate in sizes.items()]
    records.append(point("matmul", matmul_case("fp16", 8192, sustained=True), 90e12))
    (table,) = notebook_tables(records)
    assert [one.head for one in table.used()] == ["type", "128", "8192"]
    assert text_of(table) == [["fp32", "-", "50.0"], ["fp16", "1.00", "160"]]
    assert table.title.endswith("TFLOPS")


def test_published_layers_stand_by_batch_and_part() -> None:
    own = [one for one in published_records() if one.device == "RTX 3090 Ti"]
    tables = {table.title: table for table in notebook_tables(own)}
    (title,) = (name for name in tables if "sequences of 128" in name)
    rows = {row[0]: row[1:] for row in text_of(tables[title])}
    assert {"FFN, forward", "attention block, forward"} <= rows.keys()
    assert "BERT-large layer, with backward" in rows


def test_figures_above_a_chip_s_peak_say_how_they_are_counted() -> None:
    cases = published_cases(PublishedSelection(devices=("B200 SXM",)))
    document = card_document("B200 SXM", cases)
    notes = [note for b in document.blocks if isinstance(b, doc.Table) for note in b.notes]
    assert any("counted in full" in note for note in notes)
    flash = [one for one in cases if "flash attention" in one.what]
    assert flash and all("counted in full" in one.what for one in flash)


def test_rates_of_trainings_say_that_they_are_of_one_gpu() -> None:
    cases = published_cases(PublishedSelection(devices=("A100 SXM4 80GB",)))
    rates = [case_range(case) for case in cases if case.unit == "token/s"]
    assert rates and all(text.endswith(" tokens/s per GPU") for text in rates)
    other = [case_range(case) for case in cases if case.unit != "token/s"]
    assert other and not any("per GPU" in text for text in other)


@pytest.mark.parametrize("word", ["", " ", "-"])
def test_an_empty_name_is_no_short_name_of_every_card(word: str) -> None:
    with pytest.raises(UsageError, match=f"^no card is named '{word}'$"):
        devices_of([word])


def test_a_noisy_cell_is_marked_and_nothing_makes_no_table() -> None:
    noisy = point("matmul", matmul_case("fp16", 512), 5e12).replace(disturbed="busy")
    (table,) = notebook_tables([noisy])
    assert text_of(table) == [["fp16", "≥ 5.00"]]
    assert any("noisy" in note for note in table.notes)
    assert notebook_tables([]) == ()


def test_a_report_sets_the_run_among_published_figures() -> None:
    import dataclasses

    own = point("matmul", matmul_case("fp16", 8192), 120e12)
    view = dataclasses.replace(gpu_view(), records=(own,), baselines=published_records())
    sections = {b.title: b for b in run_document([view]).blocks if isinstance(b, doc.Section)}
    (table,) = sections["Among published figures"].blocks
    assert isinstance(table, doc.Table)
    assert text_of(table) == [
        ["fp16 8192 × 8192 × 8192", "120 TFLOPS", "156 to 172 TFLOPS", "3", "below"]
    ]
    assert "By size" in sections


def test_the_page_is_one_small_file_that_asks_for_nothing() -> None:
    page = published_page(published_cases(), PublishedSelection())
    assert len(page.encode()) < 2_000_000
    assert page.count("<script") == 1
    assert "script-src 'sha256-" in page
    assert not re.search(r'(?:src|href)="(?:http|//)[^"]*\.(?:js|css|png|woff)', page)
    rows = page.partition('id="cases"')[2].partition("</table>")[0].count("<tr data-card")
    assert rows == len(published_cases())


def test_the_page_of_an_empty_selection_says_so() -> None:
    wanted = PublishedSelection(model="<b>none</b>")
    page = published_page((), wanted)
    assert "No published figure fits: model &lt;b&gt;none&lt;/b&gt;." in page


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("RTX", "4090"), 0, "n = 3"),
        (("RTX 3090 Ti", "RTX 4090"), 0, "×1.99"),
        ((), 0, "16 bit (n)"),
        (("RTX 4090", "--model", "GPT-175B"), 2, "trainrig published RTX 4090"),
        (("T4",), 2, "nothing published for T4 here"),
        (("T4",), 2, "nearest: "),
        (("TPU v5e", "--kind", "link"), 2, "nothing published for TPU v5e, kind link here"),
        (("--model", "bert-lage"), 2, "did you mean BERT-large"),
        (("RTX 40900",), 2, "did you mean"),
        (("RTX 4090", "--kind", "layers"), 2, "did you mean layer"),
    ],
)
def test_the_verb(trainrig: Any, words: tuple[str, ...], code: int, part: str) -> None:
    found, out, err = trainrig("published", *words)
    assert found == code
    assert part in out + err
    assert max(map(len, out.splitlines()), default=0) <= 80


def test_json_has_figures_with_source_and_date(trainrig: Any) -> None:
    _, out, _ = trainrig("published", "RTX 4090", "--kind", "matmul", "--json")
    content = json.loads(out)
    (card,) = content["cards"]
    assert card["device"] == "RTX 4090"
    one = next(case for case in content["cases"] if case["what"] == "fp16 8192³")
    assert (one["n"], one["low"] <= one["median"] <= one["high"]) == (3, True)
    assert all(figure["source"] and figure["date"] for figure in one["figures"])


# ---- a screen, and the rest


@pytest.mark.parametrize(
    "words", [("RTX 4090",), ("B200 SXM",), (), ("RTX 3090 Ti", "RTX 4090"), ("H100 SXM5 80GB",)]
)
def test_published_ends_after_a_screen_and_names_the_way_on(trainrig: Any, words: tuple) -> None:
    """It was 523 lines of the RTX 4090."""
    _, out, _ = trainrig("published", *words)
    _, whole, _ = trainrig("published", *words, "--all")
    assert len(out.splitlines()) <= 80 and len(whole.splitlines()) > len(out.splitlines())
    assert "--all" in out and "--all" not in whole


def test_a_screen_says_how_causal_attention_is_counted(trainrig: Any) -> None:
    _, out, _ = trainrig("published", "B200 SXM")
    assert "counted in full: half of these FLOPs are executed" in " ".join(out.split())


def test_links_stand_apart(trainrig: Any) -> None:
    _, out, _ = trainrig("published", "RTX 3090 Ti", "--kind", "link", "--all")
    titles = ("Within a card", "peer access on", "peer access off: through the host")
    tables = {title: out[out.index(f"{title}\n") :].partition("\n\n")[0] for title in titles}
    assert "901 GB/s" in tables["Within a card"]
    assert "52.9 GB/s" in tables["peer access on"]
    assert "52.9" not in tables["peer access off: through the host"]
    assert "6.23 GB/s" in tables["peer access off: through the host"]
