"""``trainrig plan``: which layout is best, of every one that can be run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from trainrig.cli.predict_options import BATCH, COMMON, FRAMEWORK, WHAT, WHAT_IF, WHERE, one_machine
from trainrig.cli.verb import (
    PAGES,
    PATH,
    TOKENS,
    Pages,
    json_option,
    names_in,
    option,
    options,
    rows,
    verb,
)

_search = partial(option, group="Search")
_result = partial(option, group="Result")


@verb(common=(*COMMON, "--tokens", "--days", "--top", "--write"))
@options(WHAT, WHERE, FRAMEWORK)
@options(
    rows(
        "Search",
        *BATCH,
        (
            *("--schedule", names_in("workload.layout.groups", "SCHEDULES")),
            *("the best but dualpipe", "Pipeline schedule: {words}."),
        ),
    )
)
@_search("--tokens", type=TOKENS, help="Tokens of the whole training.")
@_search("--days", type=float, help="With --tokens: find how many GPUs it takes.")
@_result("--top", type=int, default=10, help="Layouts that are shown.")
@WHAT_IF
@_result("--write", type=PATH, metavar="DIR", help="Write the best ones as experiment files.")
@options(PAGES)
@json_option()
def command(
    rates: Path | None,
    top: int,
    tokens: float | None,
    days: float | None,
    what_if: str | None,
    write: Path | None,
    pages: Pages,
    as_json: bool,
    **keys: Any,
) -> int:
    """Search every legal layout; rank those that fit by time, and say what the best ones cost.

    \b
    trainrig plan --model gpt3-175B --on "A100 SXM4 80GB" --gpus 1024 --global-batch 1536
    trainrig plan --model llama-7B --on "RTX 4090" --gpus 8 --global-batch 64 --write plans
    trainrig plan --model llama-7B --on "H100 SXM5 80GB" --global-batch 1024 \\
        --tokens 140e9 --days 60

    Exit code 1 where nothing fits.
    """
    from trainrig.cli import progress
    from trainrig.cli.output import publish
    from trainrig.errors import EXIT_FINDING, EXIT_OK
    from trainrig.report.prediction_report import plan_document
    from trainrig.runner.layout_search import plan

    planned = plan(
        one_machine(**keys),
        rates=rates,
        top=top,
        tokens=tokens,
        days=days,
        what_if=what_if,
        write=write,
        watch=progress.on_stderr(),
    )
    progress.clear()
    if planned.unwritten is not None and as_json:  # one JSON value, which is the error's
        raise planned.unwritten
    publish(
        as_json,
        planned.to_dict,
        lambda: plan_document(
            planned.space,
            planned.search,
            planned.answer,
            families=planned.families,
            budget=planned.budget,
            tokens=planned.tokens,
            upgrades=planned.upgrades,
            notes=planned.notes(),
            written=planned.written,
            files_text=planned.files_text,
        ),
        pages,
    )
    if planned.unwritten is not None:
        raise planned.unwritten
    return EXIT_OK if planned.fits else EXIT_FINDING
