"""`trainrig report`: a run, or several, as something to look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainrig.cli.output import say
from trainrig.cli.verb import FILE, PAGES, RUN_PATH, Pages, json_option, options, rows, verb

if TYPE_CHECKING:
    from trainrig.record import RunView

_GATHER = rows(
    "For programs that gather",
    ("--csv", FILE, "", "Write each node's values as CSV."),
    ("--junit", FILE, "", "Write a test suite a node."),
    ("--prometheus", FILE, "", "Write gauges as text."),
)


@verb()
@click.argument("run", nargs=-1, type=RUN_PATH)
@options(PAGES, _GATHER)
@json_option("One JSON object a run on stdout.")
def command(run: tuple[Path, ...], pages: Pages, as_json: bool, **gather: Path | None) -> int:
    """Show RUN, by default the newest: a folder, a bundle or a part of a name in runs/.

    \b
    trainrig report
    trainrig report runs/20270101T000000Z-host-qualify-1a2b3c
    trainrig report 1a2b3c --pdf report.pdf
    trainrig report OLD NEW --html both.html
    trainrig report runs/*-qualify-* --html rack.html --junit rack.xml

    Results, verdict, waterfall, roofline, training curves, findings and what to do
    next, in the terminal or as HTML, PDF, markdown, CSV, JUnit or JSON.  Several runs
    are set side by side; four or more are nodes of a rack: which of them is behind the
    others, by the median and the median absolute deviation over nodes.

    A run that was cut off or damaged is shown as far as it can be read; exit code 3
    where something of it was lost.
    """
    from trainrig.errors import EXIT_INCOMPLETE, EXIT_OK
    from trainrig.runner.chosen_runs import newest_run

    if not run:
        run = (newest_run(),)
        say(f"newest run: {run[0]}", err=True)
    with nothing_collected():
        views = [read_view(path) for path in run]
        wrote = _gather(views, gather)
        if not wrote or pages.any or as_json:
            show(views, pages, as_json=as_json)
        return EXIT_INCOMPLETE if complain_of_losses(views) else EXIT_OK


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Look for no unreachable cycles: a report makes few, and the search is a sixth of its time."""
    import gc

    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _gather(views: list[RunView], files: dict[str, Path | None]) -> bool:
    """Write what other programs gather; whether anything was asked for.  Raises StoreError."""
    wanted = {name: path for name, path in files.items() if path is not None}
    if not wanted:
        return False
    from trainrig.analysis.rack import rack_of
    from trainrig.report.gather import to_csv, to_junit, to_prometheus
    from trainrig.store import write_atomic

    forms = {"csv": to_csv, "junit": to_junit, "prometheus": to_prometheus}
    rack = rack_of(views)
    for name, path in wanted.items():
        write_atomic(path, forms[name](rack))
        say(f"wrote {path}", err=True)
    return True


def read_view(path: Path) -> RunView:
    """Return the run at ``path``, judged as far as it can be read.  Raises DataError."""
    from trainrig.runner.view import judged_view
    from trainrig.store import read_what_is_left

    return judged_view(read_what_is_left(path))


def complain_of_losses(views: list[RunView]) -> bool:
    """Print a line on stderr for each run of which something was lost; whether there is one."""
    from trainrig.units import one_line

    problems = [(view, "; ".join(filter(None, [view.lost, _nothing(view)]))) for view in views]
    lost = [(view, problem) for view, problem in problems if problem]
    for view, problem in lost:
        say(f"trainrig: {one_line(f'{view.path}: {problem}')}", err=True)
        say(f"  hint: {_LOST_HINT}", err=True)
    return bool(lost)


def _nothing(view: RunView) -> str | None:
    """Say what a run without results lacks; a file may hold the paths between GPUs alone."""
    from trainrig.analysis.judge_imported import is_imported

    is_import = is_imported(view.config) and view.verdict is not None
    has_results = bool(view.records) or bool(set(view.series) - {"telemetry"})
    return None if has_results or is_import else "it has no records"


_LOST_HINT = "what could be read is shown; copy the run again, or measure again"


def show(views: list[RunView], pages: Pages, *, as_json: bool) -> None:
    """Write the files that were asked for, else print.  Raises StoreError, UnavailableError."""
    from dataclasses import asdict

    from trainrig.analysis.run_summary import summarise
    from trainrig.cli.output import print_json, print_text, write_pages
    from trainrig.report.run_report import run_document

    wrote = write_pages(lambda: run_document(views), pages)
    if as_json:
        for view in views:
            print_json(asdict(summarise(view)), "report")
    elif not wrote:
        print_text(run_document(views))
