"""`trainrig report`: a run, or several, as something to look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainrig.cli.verb import PATH, complete_runs, json_option, option, verb

if TYPE_CHECKING:
    from trainrig.analysis.run_view import RunView


@verb("Show a run: in the terminal, as HTML or as markdown.")
@click.argument("run", nargs=-1, required=True, type=PATH, shell_complete=complete_runs)
@option("--html", type=PATH, metavar="FILE", help="Write one offline HTML file.")
@option("--md", type=PATH, metavar="FILE", help="Write markdown; - is stdout.")
@json_option("One JSON object a run on stdout.")
def command(run: tuple[Path, ...], html: Path | None, md: Path | None, as_json: bool) -> None:
    """Show RUN: a run's folder or its bundle; several are set side by side.

    \b
    trainrig report runs/20270101T000000Z-host-qualify-1a2b3c
    trainrig report OLD NEW --html both.html

    Without options the report goes to the terminal.  A run that was cut off is
    shown as far as it was written.
    """
    views = [read_view(path) for path in run]
    write_views(views, html=html, md=md)
    if as_json:
        for view in views:
            click.echo(json.dumps(as_dict(view), ensure_ascii=False))
    elif html is None and md is None:
        show_views(views)


def read_view(path: Path) -> RunView:
    """The run at ``path``, judged as far as it goes.  Raises DataError."""
    import dataclasses

    from trainrig.runner.view import view_of
    from trainrig.store import read_run

    run = read_run(path)
    view = view_of(run)
    if view.verdict is not None:
        return view
    from trainrig.runner.session import judge_run

    return dataclasses.replace(view, verdict=judge_run(run))


def write_views(views: list[RunView], *, html: Path | None, md: Path | None) -> None:
    """Write the files that were asked for; says so on stderr.  Raises StoreError."""
    from trainrig.store import write_atomic

    if html is not None:
        from trainrig.report.render.old_html import render_html

        write_atomic(html, render_html(views))
        click.echo(f"wrote {html}", err=True)
    if md is not None:
        from trainrig.report.render.old_markdown import markdown

        text = "\n".join(markdown(view) for view in views)
        if str(md) == "-":
            click.echo(text, nl=False)
        else:
            write_atomic(md, text)
            click.echo(f"wrote {md}", err=True)


def show_views(views: list[RunView]) -> None:
    """The runs on the terminal."""
    from trainrig.cli.output import console
    from trainrig.report.render.old_terminal import print_reports

    print_reports(views, console())


def as_dict(view: RunView) -> dict[str, Any]:
    """What the report says of a run: verdict, waterfalls with gaps, findings, what is missing."""
    import dataclasses

    from trainrig.analysis.patterns import find_patterns
    from trainrig.analysis.waterfall import build_waterfalls
    from trainrig.report.words import gaps_in, headline, verdict_reason, verdict_word

    waterfalls = build_waterfalls(view)
    return {
        "run": view.name,
        "verdict": verdict_word(view),
        "reason": verdict_reason(view),
        "largest_gap": headline(view, waterfalls)[1],
        "findings": [dataclasses.asdict(f) for f in view.verdict.findings] if view.verdict else [],
        "patterns": [dataclasses.asdict(pattern) for pattern in find_patterns(view)],
        "missing": list(gaps_in(view)),
        "waterfalls": [
            {
                "device": each.device,
                "device_index": each.index,
                "quantity": each.quantity,
                "unit": each.unit,
                "levels": [_level_dict(level) for level in each.levels],
            }
            for each in waterfalls
        ],
    }


def _level_dict(level: Any) -> dict[str, Any]:
    import dataclasses

    return {
        "name": level.name,
        "kind": str(level.kind),
        "value": level.value,
        "provenance": level.provenance,
        "record": level.record.id if level.record else None,
        "note": level.note,
        "expected": level.expected,
        "gap": dataclasses.asdict(level.gap) if level.gap else None,
    }
