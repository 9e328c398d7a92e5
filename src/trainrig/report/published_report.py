"""Published figures as documents: every card in a line, one card, two cards side by side.

And for a report of a run: where its own numbers lie among those that others published of the same
card.  The page that sorts and filters is `published_page`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from trainrig.analysis.best import value_text as value_with_bound
from trainrig.analysis.judge_imported import is_imported
from trainrig.analysis.normal import (
    KINDS,
    CardSummary,
    PublishedCase,
    PublishedRange,
    PublishedRatio,
    card_summaries,
    placed_cases,
)
from trainrig.analysis.rows import Row, name_devices
from trainrig.benchmarks.spec import case_text
from trainrig.catalog.chip import peak
from trainrig.catalog.published import PublishedKind, published_source
from trainrig.catalog.published.tables import COUNTED_IN_FULL
from trainrig.record import Record, RunView
from trainrig.report import document as doc
from trainrig.report.document import column, table, words
from trainrig.report.notebook_tables import has_place, notebook_tables
from trainrig.stats import grouped
from trainrig.units import (
    capital,
    counted,
    format_count,
    format_memory,
    format_quantity,
    range_text,
)

MAX_ROWS = 40
"""Most rows of a table in the terminal; the page and JSON have all."""
TITLES = {
    PublishedKind.MATMUL: "Matmul",
    PublishedKind.BANDWIDTH: "Memory and host links",
    PublishedKind.LAYER: "Layers",
    PublishedKind.TRAINING: "Trainings",
    PublishedKind.LINK: "Between cards",
}
_PER_GPU = "Trainings, tokens/s per GPU"
RULE = (
    "n: sources; the range is from the lowest to the highest of each source's best. Other people's "
    "numbers, under other software and clocks."
)


_COUNTED = {"token/s": "tokens/s", "sample/s": "samples/s"}


def value_text(value: float, unit: str) -> str:
    """Return ``161 TFLOPS``, ``12.3k tokens/s``, ``19.5 GiB``."""
    if unit in _COUNTED:
        return f"{format_count(value)} {_COUNTED[unit]}"
    return format_memory(value) if unit == "B" else format_quantity(value, unit)


def range_of(low: float, high: float, unit: str) -> str:
    """Return ``156 to 174 TFLOPS``; one value where both read the same."""
    if value_text(low, unit) == value_text(high, unit):
        return value_text(high, unit)
    if unit in _COUNTED:
        return f"{format_count(low)} to {value_text(high, unit)}"
    if unit == "B":
        return f"{value_text(low, unit)} to {value_text(high, unit)}"
    return range_text(low, high, unit)


def case_range(case: PublishedCase) -> str:
    """Return the range that others reached in one case: ``89.9 to 95.9 tokens/s per GPU``."""
    text = range_of(case.best[0], case.best[-1], case.unit)
    return f"{text} per GPU" if case.unit in _COUNTED else text


def _others_text(published_range: PublishedRange | None, unit: str) -> str | None:
    if published_range is None:
        return None
    return f"{range_of(published_range.low, published_range.high, unit)} ({published_range.num})"


# ---- every card


def overview_document(cases: Sequence[PublishedCase], *, is_whole: bool = True) -> doc.Document:
    """Return one line a card: best matmul, memory, how much else is known.

    Args:
        cases: Published cases of all cards.
        is_whole: Whether all cards are listed, or a screen of those with most figures.
    """
    cards = card_summaries(cases)
    most = len(cards) if is_whole else SCREEN_CARDS
    shown_cards = sorted(cards, key=lambda card: -card.num_figures)[:most]
    num_hidden = len(cards) - len(shown_cards)
    cards = tuple(card for card in cards if card in shown_cards)
    blocks: tuple[doc.Block, ...] = (
        doc.Paragraph("What others published, card by card", "strong"),
        cards_table(cards),
        *_hidden_note(num_hidden, "card", "trainrig published"),
        doc.Paragraph(
            "16 bit: the best product of each source in fp16 or bf16; memory: the best cold stream "
            "or copy; (n): sources. All of a card: trainrig published CHIP; two cards: name both.",
            "dim",
        ),
        doc.Paragraph(RULE, "dim"),
    )
    return doc.Document(title="published figures", blocks=blocks)


def cards_table(cards: Iterable[CardSummary]) -> doc.Table:
    """Return one line a card."""

    def claim(card: CardSummary) -> str | None:
        known = card.chip and (peak(card.chip, "bf16") or peak(card.chip, "fp16"))
        return format_quantity(known.rate, known.rate_unit) if known else None

    return table(
        cards,
        words("card", lambda card: card.device),
        column("16 bit (n)", lambda card: _others_text(card.matmul, "FLOP/s")),
        column("claim", claim, optional=3),
        column("memory (n)", lambda card: _others_text(card.memory, "B/s")),
        column("layer (n)", lambda card: _others_text(card.layer, "FLOP/s"), optional=4),
        column("trainings", lambda card: card.num_trainings or None, optional=1),
        column("links", lambda card: card.num_links or None, optional=2),
        column("year", lambda card: card.dates or None, optional=5),
    )


# ---- one card


def card_document(
    device: str, cases: Sequence[PublishedCase], *, is_whole: bool = True
) -> doc.Document:
    """Show what is published of one card.

    Args:
        device: The card.
        cases: Its published cases.
        is_whole: Whether all cases, the notebooks' tables and all sources are listed, or a screen:
            of each kind the first, those of several sources before others.
    """
    (summary,) = card_summaries(cases)
    sources = dict.fromkeys(name for case in cases for name in case.sources)
    years = f", {summary.dates}" if summary.dates else ""
    head = f"{device}: {counted(summary.num_figures, 'figure')} of "
    head += f"{counted(len(sources), 'source')}{years}"
    blocks: list[doc.Block] = [doc.Paragraph(head, "strong")]
    if best := tuple(_best(summary)):
        blocks.append(doc.Facts(best, "Best of each source"))
    if not is_whole:
        blocks += _first_screen(device, cases)
        return doc.Document(title=f"{device}, published", blocks=tuple(blocks))
    blocks += notebook_tables(map(as_record, cases))
    kinds = grouped(cases, lambda case: case.kind)
    for kind in KINDS:
        # One source's figures of the notebooks' cases stand in the tables above.
        if kind_cases := [
            case for case in kinds.get(kind, ()) if case.num > 1 or not has_place(as_record(case))
        ]:
            several = ", several sources" if all(o.num > 1 for o in kind_cases) else ""
            for title, members in _by_link(kind, kind_cases).items():
                blocks.append(_cases_table(title + several, members))
    blocks.append(doc.Facts(tuple(_source_lines(cases)), "Sources"))
    blocks.append(doc.Paragraph(RULE, "dim"))
    return doc.Document(title=f"{device}, published", blocks=tuple(blocks))


def _by_link(kind: PublishedKind, cases: Sequence[PublishedCase]) -> dict[str, list[PublishedCase]]:
    """Cases by the title of their table: links are apart, by what joins the two ends."""
    return grouped(cases, _link_title if kind is PublishedKind.LINK else lambda _: TITLES[kind])


def _link_title(link_case: PublishedCase) -> str:
    case = link_case.case
    if link_case.what.startswith("within a card"):
        return "Within a card"
    if case.get("direction") != "p2p":
        return TITLES[PublishedKind.LINK]
    if case.get("peer_access"):
        return "Card to card, peer access on"
    return "Card to card, peer access off: through the host"


SCREEN_CARDS, SCREEN_ROWS = 24, 3
"""Cards of the overview, and cases of each kind, that a screen holds; --all has the rest."""


def _first_screen(device: str, cases: Sequence[PublishedCase]) -> Iterator[doc.Block]:
    """The first cases of each kind and link, how attention is counted, and the way to the rest."""
    kinds = grouped(cases, lambda case: case.kind)
    num_hidden = 0
    for kind in KINDS:
        for title, link_cases in _by_link(kind, kinds.get(kind, ())).items():
            ranked = sorted(link_cases, key=lambda case: (-case.num, case.unit, -abs(case.value)))
            shown_cases = ranked[:SCREEN_ROWS]
            num_hidden += len(link_cases) - len(shown_cases)
            yield table(
                shown_cases,
                words("case", lambda case: case.what),
                column("reached", case_range),
                column("n", lambda case: case.num),
                column("date", lambda case: case.dates or None, optional=1),
                title=title
                if len(link_cases) == len(shown_cases)
                else f"{title}, {len(shown_cases)} of {len(link_cases)} cases",
            )
    causal = [case for case in cases if "causal" in case.what]
    if any(COUNTED_IN_FULL in case.what for case in causal):
        yield doc.Paragraph(f"Counting: a product is 2mkn; {COUNTED_IN_FULL}", "dim")
    elif causal:
        text = "Counting: a product is 2mkn; of causal attention the scores that are seen"
        yield doc.Paragraph(text, "dim")
    yield from _hidden_note(num_hidden, "case", f'trainrig published "{device}"')
    yield doc.Paragraph(RULE, "dim")


def _hidden_note(num_hidden: int, noun: str, command: str) -> Iterator[doc.Paragraph]:
    if num_hidden:
        yield doc.Paragraph(f"{counted(num_hidden, noun)} more: {command} --all")


def _best(card: CardSummary) -> Iterator[tuple[str, str]]:
    for name, best_case, unit in (
        ("matmul, 16 bit", card.matmul, "FLOP/s"),
        ("memory bandwidth", card.memory, "B/s"),
        ("layer, forward + backward", card.layer, "FLOP/s"),
    ):
        if best_case is not None:
            yield name, f"{range_of(best_case.low, best_case.high, unit)}, n = {best_case.num}"


def as_record(case: PublishedCase) -> Record:
    """Return a case with the median over its sources as its value."""
    spread = (case.best[0], case.best[-1]) if case.num > 1 else None
    return case.figures[-1].replace(value=case.value, interval=spread)


def _cases_table(title: str, cases: Sequence[PublishedCase]) -> doc.Table:
    shown_cases = sorted(cases, key=lambda case: -case.value if case.unit != "s" else case.value)[
        :MAX_ROWS
    ]
    num_hidden = len(cases) - len(shown_cases)
    more = (
        f"and {num_hidden} slower ones: --html and --json have all, --model and --precision select"
    )
    return table(
        shown_cases,
        words("case", lambda case: case.what),
        column("reached", case_range),
        column("n", lambda case: case.num),
        column("date", lambda case: case.dates or None, optional=1),
        words("software", lambda case: "; ".join(case.software)[:_SOFTWARE]),
        title=title,
        notes=[more] if num_hidden else (),
    )


_SOFTWARE = 60
"""Characters; JSON has the rest."""


def _source_lines(cases: Sequence[PublishedCase]) -> Iterator[tuple[str, str]]:
    counts: dict[str, int] = {}
    for case in cases:
        for figure in case.figures:
            counts[str(figure.source)] = counts.get(str(figure.source), 0) + 1
    for name, count in sorted(counts.items(), key=lambda pair: -pair[1])[:MAX_ROWS]:
        known = published_source(name)
        when = known.date or "no date stated, read 2026-11"
        yield counted(count, "figure"), f"{name} ({when})"


# ---- two cards


def ratio_document(
    first: str,
    second: str,
    ratios: Sequence[PublishedRatio],
    *,
    alone: tuple[int, int],
    is_whole: bool = True,
) -> doc.Document:
    """Case by case where both have the very same one: the second card over the first.

    Args:
        first: The card that is 1.
        second: The card that is compared with it.
        found: Cases that both have.
        alone: How many cases each has that the other lacks.
        is_whole: Whether all cases are listed, or a screen of each kind.
    """
    most = len(ratios) if is_whole else 2 * SCREEN_ROWS
    kinds = grouped(ratios, lambda ratio: ratio.first.kind)
    blocks: list[doc.Block] = [doc.Paragraph(f"{second} against {first}, published", "strong")]
    blocks += (
        table(
            kinds[kind][:most],
            words("case", lambda ratio: ratio.first.what),
            column(first, lambda ratio: value_text(ratio.first.value, ratio.first.unit)),
            column(second, lambda ratio: value_text(ratio.second.value, ratio.second.unit)),
            column("ratio", lambda ratio: ratio.ratio, _ratio_cell),
            column("n", lambda ratio: f"{ratio.first.num}, {ratio.second.num}", optional=1),
            title=_PER_GPU if kind is PublishedKind.TRAINING else TITLES[kind],
        )
        for kind in KINDS
        if kind in kinds
    )
    if not ratios:
        text = f"Nobody published one and the same case of {first} and of {second}."
        blocks.append(doc.Paragraph(text))
    hidden = sum(max(0, len(kind_ratios) - most) for kind_ratios in kinds.values())
    blocks += _hidden_note(hidden, "case", f'trainrig published "{first}" "{second}"')
    alone_text = f"Figures of one card alone: {alone[0]} cases of {first}, {alone[1]} of {second}."
    blocks.append(doc.Paragraph(alone_text, "dim"))
    text = f"ratio: {second} over {first}, medians over sources; times count the other way round."
    blocks.append(doc.Paragraph(text, "dim"))
    return doc.Document(title=f"{second} against {first}", blocks=tuple(blocks))


def _ratio_cell(ratio: float) -> doc.Cell:
    tone: doc.Tone = "good" if ratio >= _CLEARLY else "bad" if ratio <= 1.0 / _CLEARLY else ""
    return doc.Cell(f"×{ratio:.2f}", tone)


_CLEARLY = 1.1


# ---- nothing


# ---- a run among them


def normal_section(view: RunView, everything: Sequence[Row]) -> Iterator[doc.Block]:
    """Yield a run's numbers among published ones of its card, and as the tables of notebooks.

    Of several equal devices the first is tabled; how they differ is another section's.  Numbers of
    other tools have their published ones beside them where they are tabled.
    """
    if placed_rows := [] if is_imported(view.config) else list(placed_cases(view)):
        names = name_devices(
            (placed_row.row.device, placed_row.row.index) for placed_row in placed_rows
        )
        several = len(names) > 1
        case_table = table(
            placed_rows[:MAX_ROWS],
            words(
                "case",
                lambda placed_row: capital(
                    case_text(placed_row.row.benchmark, placed_row.row.case)
                ),
            ),
            words(
                "device",
                lambda placed_row: (
                    names[placed_row.row.device, placed_row.row.index] if several else ""
                ),
            ),
            column(
                "yours",
                lambda placed_row: (
                    placed_row.row.measured and value_with_bound(placed_row.row.measured)
                ),
            ),
            column(
                "others",
                lambda placed_row: range_of(
                    placed_row.others.low, placed_row.others.high, placed_row.row.unit
                ),
            ),
            column("n", lambda placed_row: placed_row.others.num),
            column(
                "",
                lambda placed_row: doc.Cell(placed_row.place, _PLACES[placed_row.place]),
                kind="code",
            ),
        )
        card = placed_rows[0].row.device or "the card"
        yield doc.Section("Among published figures", (case_table,), f"Others' {card}. {RULE}")
    devices = grouped(
        (row for row in everything if row.measured is not None and row.value),
        lambda row: row.device,
    )
    tables: list[doc.Block] = []
    for device, device_rows in devices.items():
        first = min((row.index for row in device_rows if row.index is not None), default=None)
        known = [
            row.measured for row in device_rows if row.index == first and row.measured is not None
        ]
        for block in notebook_tables(known):
            title = block.title if len(devices) == 1 else f"{device}: {block.title}"
            tables.append(dataclasses.replace(block, title=title))
    if tables:
        yield doc.Section("By size", tuple(tables), "Each case once, in the unit of its table.")


_PLACES: dict[str, doc.Tone] = {"below": "warn", "among": "", "above": "good", "cannot tell": "dim"}
