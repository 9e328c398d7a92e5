"""``trainrig compare``: did it get better or worse?"""

from __future__ import annotations

from pathlib import Path

import click

from trainrig.cli.verb import PAGES, PATH, complete_runs, json_option, options, verb


@verb()
@click.argument("old", type=PATH, shell_complete=complete_runs)
@click.argument("new", type=PATH, nargs=-1, required=True, shell_complete=complete_runs)
@options(PAGES)
@json_option("One JSON object a comparison on stdout.")
def command(
    old: Path, new: tuple[Path, ...], html: Path | None, md: Path | None, as_json: bool
) -> int:
    """Compare run NEW with run OLD, point by point: better, worse, same or cannot tell.

    \b
    trainrig compare runs/OLD runs/NEW
    trainrig compare OLD.bundle NEW.bundle --html difference.html
    trainrig compare runs/GOLDEN runs/MONDAY runs/TUESDAY

    OLD is the baseline; of several NEW each is compared with it, in one table.
    Runs of experiments are compared experiment by experiment, by name and settings.
    OLD and NEW are run folders or bundles.  Differences of the machines and
    their software are listed first.  Exit code 1 when something got worse, 3 when
    nothing could be compared (all noisy, or nothing in common), else 0.
    """
    from trainrig.analysis.compare import compare_runs, is_same_run, to_dict
    from trainrig.cli.output import print_json, print_text, write_pages
    from trainrig.errors import EXIT_FINDING, EXIT_INCOMPLETE, EXIT_OK, UsageError
    from trainrig.report.compare_report import comparisons_document
    from trainrig.runner.view import view_of
    from trainrig.store import read_run
    from trainrig.units import one_line

    base, others = view_of(read_run(old)), [view_of(read_run(path)) for path in new]
    seen = [(old, base)]
    for path, view in zip(new, others, strict=True):
        for first, other in seen:
            if is_same_run(other, view):
                raise UsageError(
                    f"{first} and {path} are one run: {one_line(str(view.config['name']))}",
                    "compare two runs: a copy holds the same measurements, resumed or not",
                )
        seen.append((path, view))
    found = [compare_runs(base, view) for view in others]
    document = comparisons_document(found)
    write_pages(lambda: document, html, md)
    if as_json:
        for one in found:
            print_json(to_dict(one))
    elif str(md) != "-":
        print_text(document)
    if any(one.is_worse for one in found):
        return EXIT_FINDING
    return EXIT_OK if all(one.has_compared for one in found) else EXIT_INCOMPLETE
