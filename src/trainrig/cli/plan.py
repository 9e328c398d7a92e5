"""``trainrig plan``: which layout is best, of every one that can be run."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainrig.cli.predict_options import FRAMEWORK, LATER, WHAT, WHAT_IF, WHERE, given
from trainrig.cli.verb import PATH, json_option, option, options, verb

if TYPE_CHECKING:
    from trainrig.runner.layout_search import Planned

_TOP = 10
_search = partial(option, group="Search")
_result = partial(option, group="Result")


@verb("Every layout of a model on so many GPUs, ranked; or how many GPUs.")
@options(WHAT, WHERE, FRAMEWORK, LATER)
@_search("--global-batch", type=int, help="Samples of a step.")
@_search("--tokens", type=float, help="Tokens of the whole training.")
@_search("--days", type=float, help="With --tokens: find how many GPUs it takes.")
@_result("--top", type=int, default=_TOP, help="Layouts that are shown.")
@WHAT_IF
@_result("--write", type=PATH, metavar="DIR", help="Write the best ones as experiment files.")
@json_option()
def command(
    rates: Path | None,
    top: int,
    tokens: float | None,
    days: float | None,
    what_if: str | None,
    write: Path | None,
    as_json: bool,
    **keys: Any,
) -> int:
    """Search every legal layout; rank those that fit by time, and say what the best ones cost.

    \b
    trainrig plan --model gpt3-175B --on "A100 SXM4 80GB" --gpus 1024 --global-batch 1536
    trainrig plan --model llama-7B --on "RTX 4090" --gpus 4 --global-batch 64 --write plans
    trainrig plan --model llama-7B --on "H100 SXM5 80GB" --global-batch 1024 \\
        --tokens 140e9 --days 60

    Exit code 1 where nothing fits.
    """
    from trainrig.errors import EXIT_FINDING, EXIT_OK
    from trainrig.runner.layout_search import plan

    found = plan(
        given(**keys), rates=rates, top=top, tokens=tokens, days=days, what_if=what_if, write=write
    )
    if as_json:
        click.echo(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        _show(found)
    return EXIT_OK if found.fits else EXIT_FINDING


def _show(found: Planned) -> None:
    from trainrig.cli.output import console
    from trainrig.report.planning import (
        best_table,
        front_table,
        gap_line,
        headline,
        tight_line,
    )
    from trainrig.report.prediction_report import count, duration, upgrade_table, where

    out = console()
    layout = found.search.best[0].layout
    out.print(headline(found.space, found.search, where(layout, found.device)), style="bold")
    if not found.fits:
        out.print("Nothing fits in memory; the smallest layout is shown.", style="red")
        out.print("More GPUs, --offload host, --optimizer adamw-8bit, or a smaller model.")
    out.print()
    limit = found.answer.rates.memory_bytes
    out.print(best_table(found.space, found.search, limit))
    if (tight := tight_line(found.search, limit)) is not None:
        out.print(tight, style="dim")
    if len(found.search.best) > 1:
        out.print()
        out.print(gap_line(*found.search.best[:2]), markup=False)
    if len(found.search.front) > 1:
        out.print()
        out.print(front_table(found.space, found.search, limit))
    if found.tokens is not None:
        out.print()
        words = duration(found.answer, found.tokens)
        out.print(f"{count(found.tokens)} tokens: {words}", markup=False)
    if found.upgrades:
        out.print()
        out.print(upgrade_table(found.upgrades))
    for path in found.written:
        out.print(f"wrote {path}", markup=False, soft_wrap=True)
