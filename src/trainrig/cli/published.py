"""``trainrig published``: what is normal, by figures that others published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trainrig.cli.verb import CHIPS, PATH, Pages, json_option, option, verb


@verb()
@click.argument("chip", nargs=-1, shell_complete=CHIPS.complete)
@option(
    "--kind",
    metavar="WORD",
    help="Show matmul, bandwidth, layer, training or link alone.",
    default_text="all",
)
@option("--model", metavar="NAME", help="Show a model or a layer alone.", default_text="all")
@option("--precision", metavar="TYPE", help="Show a data type alone.", default_text="all")
@option("--html", type=PATH, metavar="FILE", help="Write a page that sorts and filters, offline.")
@option("--md", type=PATH, metavar="FILE", help="Write markdown; - is stdout.")
@option("--all", "is_whole", is_flag=True, help="List all cases and sources, not a screen.")
@json_option("One JSON object: cards, and each case with its figures and their sources.")
def command(
    chip: tuple[str, ...],
    kind: str | None,
    model: str | None,
    precision: str | None,
    html: Path | None,
    md: Path | None,
    is_whole: bool,
    as_json: bool,
) -> None:
    """Is my number normal?  What others published, by card, with source, date and spread.

    \b
    trainrig published RTX 4090
    trainrig published RTX 4090 --all
    trainrig published
    trainrig published "RTX 3090 Ti" "RTX 4090"
    trainrig published --model bert-large --precision fp16
    trainrig published --html published.html

    Matmul, memory, layers, trainings and links.  Two cards are compared case by case where
    both have the very same one.  Simulators' factors and thresholds are left out.
    Exit code 2 where nothing is published of what is asked for, with the nearest cards.
    """
    from trainrig.analysis import normal
    from trainrig.cli.output import print_json, publish, say
    from trainrig.errors import unknown
    from trainrig.report import published_report as shown

    devices = normal.devices_of(chip)
    if kind is not None and kind not in normal.KINDS:
        raise unknown("kind", kind, normal.KINDS)
    wanted = normal.PublishedSelection(
        devices=devices, kind=kind or "", model=model or "", precision=(precision or "").lower()
    )
    normal.check_words(wanted)
    cases = normal.published_cases(wanted)
    if not cases:
        raise normal.nothing_published(wanted)
    known = normal.ratios(*devices, cases) if len(devices) == 2 else ()

    def content() -> dict[str, Any]:
        answer_content = {
            "cards": [normal.summary_dict(case) for case in normal.card_summaries(cases)],
            "cases": normal.cases_dict(cases),
        }
        ratios = [
            {"what": case.first.what, "case": dict(case.first.case), "ratio": case.ratio}
            for case in known
        ]
        return {**answer_content, "ratios": ratios} if len(devices) == 2 else answer_content

    if html is not None:
        from trainrig.report.published_page import published_page
        from trainrig.store import write_atomic

        write_atomic(html, published_page(cases, wanted))
        say(f"wrote {html}", err=True)
        if md is None:
            if as_json:
                print_json(content())
            return

    is_whole = is_whole or md is not None

    def document() -> Any:
        if len(devices) == 2:
            counts = [sum(case.device == name for case in cases) - len(known) for name in devices]
            return shown.ratio_document(
                *devices, known, alone=(counts[0], counts[1]), is_whole=is_whole
            )
        if len(devices) == 1:
            return shown.card_document(devices[0], cases, is_whole=is_whole)
        return shown.overview_document(cases, is_whole=is_whole)

    publish(as_json, content, document, Pages(md=md))
