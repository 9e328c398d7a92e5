"""Every block in every renderer: nothing is cut, everything is escaped, widths are kept."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from trainrig.report.charts.svg import Axis, Chart, Point, Series
from trainrig.report.document import (
    Badge,
    Bar,
    Cell,
    Column,
    Document,
    Facts,
    Figure,
    Findings,
    Group,
    Item,
    Line,
    Paragraph,
    Section,
    Stack,
    Strip,
    Table,
    WaterfallBars,
    Whisker,
)
from trainrig.report.render.html import to_html
from trainrig.report.render.markdown import to_markdown
from trainrig.report.render.terminal import print_document

OPTIONS = "--pp 8 --grad-accum 8 --zero 1 --framework megatron"
WIDE = Table(
    (
        Column("turn", "code"),
        Column("GiB"),
        Column("saves", optional=1),
        Column("time"),
        Column("of a sample", optional=2),
        Column("", "words"),
    ),
    ((OPTIONS, "27.12", "14.03", "× 1.91", "257 ms", "fits"),),
    title="less memory",
)
CHART = Chart(
    title="loss",
    x=Axis(title="step"),
    y=Axis(title="loss"),
    series=(Series(label="a", points=(Point(x=0, y=2.0), Point(x=1, y=1.0)), colour="c0"),),
)
ALL = Document(
    title="every block",
    names=("run-1",),
    banner="Published figures.",
    foot=("A footnote.",),
    blocks=(
        Group(
            "card",
            (
                Badge("2 × RTX 4090", "FAIL", "a card is slow", "bad"),
                Paragraph("bf16 reaches half", label="Largest gap"),
                Facts((("CPU", "EPYC"), ("Memory", "64 GiB"))),
            ),
        ),
        Section(
            "From claim to measurement",
            (
                WaterfallBars(
                    title="bf16 compute",
                    subtitle="RTX 4090",
                    bars=(
                        Bar(name="Claim", value="165 TFLOPS", length=1.0, kind="claimed"),
                        Bar(
                            name="Best matmul",
                            value="82.5 TFLOPS",
                            length=0.5,
                            kind="measured",
                            lost=0.5,
                            band=(0.8, 0.9),
                            expected="Below the expected 140 to 150 TFLOPS",
                            is_below=True,
                            gap="−82.5 TFLOPS",
                            share="−50 %",
                            direction="down",
                            cause="clocks",
                            fix="trainrig inspect",
                            source="6 workers",
                            details=(("Samples", "12"),),
                        ),
                    ),
                ),
            ),
            note="Each bar is a level.",
        ),
        Findings((Item(label="Error", text="too hot", fix="trainrig inspect", tone="bad"),)),
        Section("Curves", (Figure(chart=CHART, caption="smooth"),)),
        Group("beside", (WIDE,)),
        Table(
            (Column("experiment", "words"), Column("samples/s"), Column("", "drawing", 1)),
            (
                ("DDP", "12.5 /s", Cell("", drawing=Strip(0.0, 1.0))),
                ("FSDP", Cell("6.0 /s", "bad"), Cell("", drawing=Strip(0.0, 0.5, muted=True))),
                ("parts", "1", Cell("", drawing=Stack((("fwd", 0.3), ("bwd", 0.7)), 0.1))),
                ("ratio", "2", Cell("2 ×", drawing=Whisker(0.3, 0.4, 0.5, 0.6, "good"))),
            ),
        ),
        Table(
            (Column("batch"), Column("512")),
            (("1", Cell("80", shade=3, small="45 %", marked=True)),),
            notes=("*: launch-bound",),
        ),
        Section(
            "All points",
            (
                Table(
                    (Column("case", "words"), Column("value"), Column("nothing")),
                    (Line(("a", "1 TFLOPS", ""), "dim", "noisy: 3 %", (("Source", "me"),)),),
                ),
            ),
            fold="closed",
        ),
        Group("text", (Paragraph("41 points"),)),
        Group("page", (Paragraph("for the page"),)),
    ),
)


def terminal(document: Document, width: int = 80, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    print_document(document, Console(file=stream, width=width))
    stream.seek(0)
    return stream.read()


def document(*blocks: object) -> Document:
    return Document(title="t", blocks=blocks)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_number_heading_or_option_is_cut(width: int) -> None:
    text = terminal(document(WIDE), width)
    for whole in (OPTIONS, "27.12", "× 1.91", "GiB", "time", "fits"):
        assert whole in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_optional_columns_go_first_the_highest_number_before_the_others() -> None:
    assert "of a sample" in terminal(document(WIDE), 120)
    text = terminal(document(WIDE), 81)
    assert "of a sample" not in text
    assert "saves" in text
    assert "saves" not in terminal(document(WIDE), 72)


def test_what_is_still_too_wide_goes_on_below_with_its_first_column() -> None:
    numbers = Table(
        (Column("name", "words"), *(Column(f"number {n}") for n in range(6))),
        (("first", *("1,234,567.8" for _ in range(6))),),
    )
    text = terminal(document(numbers), 40)
    assert text.count("1,234,567.8") == 6
    assert text.count("first") > 1


def test_what_goes_on_below_repeats_as_many_words_as_tell_its_rows_apart() -> None:
    heads = ("device", "part", *(f"number {n}" for n in range(6)))
    columns = tuple(Column(head, "words" if n < 2 else "number") for n, head in enumerate(heads))
    rows = tuple((("same card", part, *["1,234.5"] * 6)) for part in ("matmul", "memory"))
    lines = terminal(document(Table(columns, rows)), 60).splitlines()
    assert sum("same card" in line for line in lines) >= 4
    assert all(("matmul" in line) != ("memory" in line) for line in lines if "same card" in line)


def test_a_long_head_of_a_column_of_numbers_takes_lines_and_not_a_table_of_its_own() -> None:
    head = "fp16 BERT-large layer, batch {}, seq 128, forward + backward, TFLOPS"
    numbers = Table(
        (Column("node", "code"), *(Column(head.format(n)) for n in range(4))),
        (("node00", *("61.8" for _ in range(4))),),
    )
    text = terminal(document(numbers), 80)
    assert text.count("node00") == 1 and text.count("61.8") == 4
    words = text.split()
    assert words.count("BERT-large") == words.count("TFLOPS") == 4


def test_a_column_without_text_is_left_out_everywhere() -> None:
    fold = Section(
        "points", (Table((Column("case"), Column("nothing")), (("a", ""),)),), fold="open"
    )
    assert "nothing" not in to_html(document(fold))
    assert "nothing" not in terminal(document(*fold.blocks))
    assert "nothing" not in to_markdown(document(*fold.blocks))


def test_every_block_is_on_the_page_and_what_text_can_hold_in_text() -> None:
    page, text, markdown = to_html(ALL), terminal(ALL), to_markdown(ALL)
    for words in ("Published figures", "FAIL", "Largest gap", "EPYC", "−82.5", "12.5", "too hot"):
        assert words in page
    for words in ("FAIL", "Largest gap", "EPYC", "Best matmul", "12.5", "too hot", "41 points"):
        assert words in text
        assert words in markdown
    assert "<svg" in page
    assert "for the page" in page
    for out in (text, markdown):
        assert "for the page" not in out
    assert "41 points" not in page


def test_a_terminal_without_unicode_gets_plain_letters() -> None:
    assert "#######" in terminal(ALL, encoding="ascii")


HOSTILE = "<script>alert(1)</script>\x1b[2J|`_\u202e"


def test_text_is_escaped_in_every_block() -> None:
    text = document(
        Badge(HOSTILE, HOSTILE, HOSTILE),
        Section(HOSTILE, (Paragraph(HOSTILE, label=HOSTILE),), HOSTILE),
        Facts(((HOSTILE, HOSTILE),), HOSTILE),
        Findings((Item(text=HOSTILE, fix=HOSTILE, label=HOSTILE),)),
        Table((Column(HOSTILE, "words"),), (Line((HOSTILE,), note=HOSTILE),), HOSTILE, (HOSTILE,)),
        WaterfallBars(
            title=HOSTILE,
            subtitle=HOSTILE,
            bars=(Bar(name=HOSTILE, value=HOSTILE, length=1.0, kind="measured", note=HOSTILE),),
        ),
    )
    assert "<script>" not in to_html(text)
    assert "\x1b[2J" not in terminal(text)
    markdown = to_markdown(text)
    for out in (to_html(text), terminal(text), markdown):
        assert "\u202e" not in out, "what follows would read backwards"
    assert "<script>" not in markdown.replace(r"\<", "")
    assert "\x1b" not in markdown
