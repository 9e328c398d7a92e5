"""The page of what is normal: every published case in one table that sorts and filters.

One offline file, under 2 MB; without its script all rows are there.  The script's digest stands in
the page's policy, so that no other script can run.  Sources are numbered, and listed below.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from trainrig.analysis.normal import (
    KINDS,
    CardSummary,
    PublishedCase,
    PublishedRange,
    PublishedSelection,
    card_summaries,
)
from trainrig.catalog.chip import peak
from trainrig.catalog.published import published_source
from trainrig.language import tag, translate
from trainrig.report.published_report import RULE, TITLES, case_range, range_of
from trainrig.report.render.html import page_template
from trainrig.units import counted, format_quantity, ranges

CASE_HEADS = (
    ("card", "words"),
    ("kind", "words"),
    ("case", "words"),
    ("reached", "number"),
    ("n", "number"),
    ("date", "words"),
    ("source", "words"),
)
CARD_HEADS = (
    ("card", "words"),
    ("16 bit", "number"),
    ("claim", "number"),
    ("memory", "number"),
    ("layer", "number"),
    ("trainings", "number"),
    ("links", "number"),
    ("figures", "number"),
)


def published_page(cases: Sequence[PublishedCase], wanted: PublishedSelection) -> str:
    """Return the whole page."""
    from markupsafe import Markup

    folder = files("trainrig.report.render").joinpath("templates")
    script = folder.joinpath("published.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    cards = card_summaries(cases)
    widest = max([max(_reached_and_claimed(card)) for card in cards], default=0.0)
    names = list(dict.fromkeys(name for case in cases for name in case.sources))
    places = {name: n for n, name in enumerate(names, start=1)}
    wanted_words = wanted.words()
    figures = sum(card.num_figures for card in cards)
    lede = (
        f"{counted(figures, 'figure')} of {counted(len(names), 'source')} on "
        f"{counted(len(cards), 'card')}: what others measured and printed. "
        "Look up your card to see whether your own number is normal."
    )
    return page_template("published.html.j2").render(
        title=translate("What is normal")
        + (f": {translate(wanted_words)}" if wanted_words else ""),
        version=version("trainrig"),
        lede=translate(lede if cases else f"No published figure fits: {wanted_words}."),
        cards=[
            {"device": card.device, "cells": list(_card_cells(card)), "bar": _bar(card, widest)}
            for card in cards
        ],
        card_heads=CARD_HEADS,
        cards_note=translate(
            "16 bit: the best product of each source in fp16 or bf16, beside the vendor's claim; "
            "memory: the best cold stream or copy; layer: forward and backward. In brackets: "
            "how many sources."
        )
        + " "
        + translate("Bar: the best in 16 bit, in the outline of the claim."),
        cases=[_case(case, places) for case in cases],
        case_heads=CASE_HEADS,
        cases_note=translate(RULE + " Trainings: tokens a second of one GPU."),
        filters=list(_filters(cases)),
        shown=translate("{shown} of {all} cases"),
        sources=list(_sources(places)),
        foot=(
            translate(
                "TFLOPS are 10¹² operations a second, a multiply-add counted as two; GB/s are 10⁹ "
                "bytes a second. Numbers are facts of their sources; collected in November 2026."
            ),
            translate(
                "Left out: efficiency factors of simulators, thresholds of health checks, rates of "
                "single instructions."
            ),
        ),
        # The page's own file, whose digest the policy names.
        script=Markup(script),  # noqa: S704
        digest=f"sha256-{digest}",
        tag=tag(),
        _=translate,
    )


def _case(case: PublishedCase, places: dict[str, int]) -> dict[str, Any]:
    return {
        "device": case.device,
        "kind": case.kind,
        "kind_text": translate(TITLES[case.kind]),
        "dtype": case.dtype,
        "what": translate(case.what),
        "value": f"{case.value:.4g}",
        "reached": translate(case_range(case)),
        "num": case.num,
        "dates": case.dates,
        "source": f"[{ranges(sorted(places[name] for name in case.sources))}]",
    }


def _reached_and_claimed(card: CardSummary) -> tuple[float, float]:
    """FLOP/s in 16 bit: the best that was published, and the vendor's claim; 0 where unknown."""
    known = card.chip and (peak(card.chip, "bf16") or peak(card.chip, "fp16"))
    return card.matmul.high if card.matmul else 0.0, known.rate if known else 0.0


def _bar(card: CardSummary, widest: float) -> tuple[str, str]:
    """Widths of a card's bar, reached and claimed: ``62.5 %`` of the column."""
    reached, claimed = (100.0 * rate / (widest or 1.0) for rate in _reached_and_claimed(card))
    return f"{reached:.1f}%", f"{claimed:.1f}%"


def _card_cells(card: CardSummary) -> Iterator[tuple[str, float | None, str]]:
    """Text, sort key and name of each cell behind the card's name."""
    known = card.chip and (peak(card.chip, "bf16") or peak(card.chip, "fp16"))
    names = [name for name, _ in CARD_HEADS[1:]]
    yield _range_cell(card.matmul, "FLOP/s", names[0])
    claim = format_quantity(known.rate, known.rate_unit) if known else ""
    yield claim, known.rate if known else None, names[1]
    yield _range_cell(card.memory, "B/s", names[2])
    yield _range_cell(card.layer, "FLOP/s", names[3])
    counts = (card.num_trainings, card.num_links, card.num_figures)
    for name, count in zip(names[4:], counts, strict=True):
        yield str(count) if count else "", count or None, name


def _range_cell(
    published_range: PublishedRange | None, unit: str, name: str
) -> tuple[str, float | None, str]:
    if published_range is None:
        return "", None, name
    return (
        translate(
            f"{range_of(published_range.low, published_range.high, unit)} ({published_range.num})"
        ),
        published_range.high,
        name,
    )


def _filters(cases: Sequence[PublishedCase]) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    cards = sorted({case.device for case in cases}, key=str.lower)
    kinds = [kind for kind in KINDS if any(case.kind == kind for case in cases)]
    types = sorted({case.dtype for case in cases if case.dtype})
    yield translate("Card"), "card", [(name, name) for name in cards]
    yield translate("Kind"), "kind", [(kind, translate(TITLES[kind])) for kind in kinds]
    yield translate("Type"), "type", [(name, name) for name in types]


def _sources(places: dict[str, int]) -> Iterator[tuple[str, str, str, str]]:
    for name, place in places.items():
        known = published_source(name)
        yield f"[{place}]", name, known.url, known.date
