"""`trainrig report`: a run, or several, as something to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainrig.cli.output import say
from trainrig.cli.verb import FILE, PAGES, PATH, complete_runs, json_option, options, rows, verb

if TYPE_CHECKING:
    from trainrig.record import RunView

_GATHER = rows(
    "For programs that gather",
    ("--csv", FILE, "", "Write each node's values as CSV."),
    ("--junit", FILE, "", "Write a test suite a node."),
    ("--prometheus", FILE, "", "Write gauges as text."),
)


@verb()
@click.argument("run", nargs=-1, required=True, type=PATH, shell_complete=complete_runs)
@options(PAGES, _GATHER)
@json_option("One JSON object a run on stdout.")
def command(
    run: tuple[Path, ...], html: Path | None, md: Path | None, as_json: bool, **gather: Path | None
) -> None:
    """Show RUN: a run's folder or its bundle; several are set side by side.

    \b
    trainrig report runs/20270101T000000Z-host-qualify-1a2b3c
    trainrig report OLD NEW --html both.html
    trainrig report runs/*-qualify-* --html rack.html --junit rack.xml

    Four or more are nodes of a rack: which of them is behind the others, by the median
    and the median absolute deviation over nodes.  A test of JUnit fails where one is.

    Without options the report goes to the terminal.  A run that was cut off is
    shown as far as it was written.
    """
    views = [read_view(path) for path in run]
    wrote = _gather(views, gather)
    if not wrote or html is not None or md is not None or as_json:
        show(views, html=html, md=md, as_json=as_json)


def _gather(views: list[RunView], files: dict[str, Path | None]) -> bool:
    """Write what other programs gather; whether anything was asked for.  Raises StoreError."""
    from trainrig.analysis.rack import rack_of
    from trainrig.report.gather import to_csv, to_junit, to_prometheus
    from trainrig.store import write_atomic

    forms = {"csv": to_csv, "junit": to_junit, "prometheus": to_prometheus}
    wanted = {name: path for name, path in files.items() if path is not None}
    rack = rack_of(views) if wanted else None
    for name, path in wanted.items():
        assert rack is not None
        write_atomic(path, forms[name](rack))
        say(f"wrote {path}", err=True)
    return bool(wanted)


def read_view(path: Path) -> RunView:
    """The run at ``path``, judged as far as it goes.  Raises DataError."""
    from trainrig.runner.view import judged_view
    from trainrig.store import read_run

    return judged_view(read_run(path))


def show(views: list[RunView], *, html: Path | None, md: Path | None, as_json: bool) -> None:
    """Write the files that were asked for, else print.  Raises StoreError."""
    from dataclasses import asdict

    from trainrig.analysis.run_summary import summarise
    from trainrig.cli.output import print_json, print_text, write_pages
    from trainrig.report.run_report import run_document

    wrote = write_pages(lambda: run_document(views), html, md)
    if as_json:
        for view in views:
            print_json(asdict(summarise(view)), "report")
    elif not wrote:
        print_text(run_document(views))
