"""`trainrig report`: a run, or several, as something to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainrig.cli.output import say
from trainrig.cli.verb import PATH, complete_runs, json_option, option, verb

if TYPE_CHECKING:
    from trainrig.analysis.run_view import RunView


@verb()
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
    show([read_view(path) for path in run], html=html, md=md, as_json=as_json)


def read_view(path: Path) -> RunView:
    """The run at ``path``, judged as far as it goes.  Raises DataError."""
    from trainrig.runner.view import judged_view
    from trainrig.store import read_run

    return judged_view(read_run(path))


def show(views: list[RunView], *, html: Path | None, md: Path | None, as_json: bool) -> None:
    """Write the files that were asked for, else print.  Raises StoreError."""
    from dataclasses import asdict

    from trainrig.analysis.run_summary import summarise
    from trainrig.cli.output import print_json, print_text
    from trainrig.report.render.html import to_html
    from trainrig.report.render.markdown import to_markdown
    from trainrig.report.run_report import run_document
    from trainrig.store import write_atomic

    files = [(file, to) for file, to in ((html, to_html), (md, to_markdown)) if file is not None]
    if files or not as_json:
        document = run_document(views)
        for file, render in files:
            if str(file) == "-" and file is md:
                click.echo(render(document), nl=False)
            else:
                write_atomic(file, render(document))
                say(f"wrote {file}", err=True)
        if not files:
            print_text(document)
    if as_json:
        for view in views:
            print_json(asdict(summarise(view)), "report")
