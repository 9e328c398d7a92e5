"""``trainrig compare``: did it get better or worse?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainrig.cli.output import say
from trainrig.cli.verb import PAGES, RUN_PATH, Pages, json_option, options, verb

if TYPE_CHECKING:
    from trainrig.record import RunView


@verb()
@click.argument("old", required=False, type=RUN_PATH)
@click.argument("new", type=RUN_PATH, nargs=-1)
@options(PAGES)
@json_option("One JSON object a comparison on stdout.")
def command(old: Path | None, new: tuple[Path, ...], pages: Pages, as_json: bool) -> int:
    """Compare run NEW with run OLD, point by point: better, worse, same or cannot tell.

    \b
    trainrig compare
    trainrig compare runs/OLD
    trainrig compare runs/OLD runs/NEW
    trainrig compare OLD.bundle NEW.bundle --html difference.html
    trainrig compare runs/GOLDEN runs/MONDAY runs/TUESDAY

    Without runs: the newest run against the one before it by the same verb on this
    machine.  OLD is the baseline; without NEW the newest run of its kind is compared
    with it, of several NEW each, in one table.  A run is a folder, a bundle or a part
    of a name in runs/.  Runs of experiments are compared experiment by experiment, by
    name and settings.  Differences of the machines and their software are listed
    first.  Exit code 1 when something got worse (a regression), 3 when nothing could
    be compared (all noisy, or nothing in common) or a run is damaged, else 0.
    """
    from trainrig.analysis.compare import compare_runs, to_dict
    from trainrig.cli.output import print_json, print_text, write_pages
    from trainrig.cli.report import complain_of_losses
    from trainrig.errors import EXIT_FINDING, EXIT_INCOMPLETE, EXIT_OK
    from trainrig.report.compare_report import comparisons_document
    from trainrig.runner.history import earlier_runs_of
    from trainrig.runner.view import view_of
    from trainrig.store import read_what_is_left

    old, new = _chosen(old, new)
    base, *views = (view_of(read_what_is_left(path)) for path in (old, *new))
    _refuse_copies([(old, base), *zip(new, views, strict=True)])
    comparisons = [compare_runs(base, view, earlier_runs_of(view, base)) for view in views]
    document = comparisons_document(comparisons)
    write_pages(lambda: document, pages)
    if as_json:
        for comparison in comparisons:
            print_json(to_dict(comparison))
    elif not pages.md_on_stdout:
        print_text(document)
    is_damaged = complain_of_losses([base, *views])
    if any(comparison.is_worse for comparison in comparisons):
        return EXIT_FINDING
    is_whole = all(comparison.has_compared for comparison in comparisons) and not is_damaged
    return EXIT_OK if is_whole else EXIT_INCOMPLETE


def _chosen(old: Path | None, new: tuple[Path, ...]) -> tuple[Path, tuple[Path, ...]]:
    """Return the runs that are compared, named or not.  Raises DataError where there are none."""
    from trainrig.runner.chosen_runs import newest_like, newest_pair

    if old is None:
        old, newest = newest_pair()
        new = (newest,)
    elif not new:
        new = (newest_like(old),)
    else:
        return old, new
    say(f"{new[0]} compared with {old}", err=True)
    return old, new


def _refuse_copies(runs: list[tuple[Path, RunView]]) -> None:
    """Raise UsageError where two of the runs are one."""
    from trainrig.analysis.compare import is_same_run
    from trainrig.errors import UsageError
    from trainrig.units import one_line

    for number, (path, view) in enumerate(runs):
        for first, other in runs[:number]:
            if is_same_run(other, view):
                raise UsageError(
                    f"{first} and {path} are one run: {one_line(str(view.config['name']))}",
                    "compare two runs: a copy holds the same measurements, resumed or not",
                )
