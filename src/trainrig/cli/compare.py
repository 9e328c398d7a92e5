"""``trainrig compare``: did it get better or worse?"""

from __future__ import annotations

from pathlib import Path

import click

from trainrig.cli.verb import PATH, complete_runs, json_option, option, verb


@verb()
@click.argument("old", type=PATH, shell_complete=complete_runs)
@click.argument("new", type=PATH, shell_complete=complete_runs)
@option("--md", type=PATH, metavar="FILE", help="Write the comparison as markdown.")
@json_option()
def command(old: Path, new: Path, md: Path | None, as_json: bool) -> int:
    """Compare run NEW with run OLD, point by point: better, worse, same or cannot tell.

    \b
    trainrig compare runs/OLD runs/NEW
    trainrig compare OLD.bundle NEW.bundle --md difference.md

    Runs of experiments are compared experiment by experiment, by name and settings.
    OLD and NEW are run folders or bundles.  Differences of the machines and
    their software are listed first.  Exit code 1 when something got worse, 3 when
    nothing could be compared (all noisy, or nothing in common), else 0.
    """
    from trainrig.analysis.compare import compare_runs, is_same_run, to_dict
    from trainrig.cli.output import answer
    from trainrig.errors import EXIT_FINDING, EXIT_INCOMPLETE, EXIT_OK, UsageError
    from trainrig.report.compare_report import comparison_document
    from trainrig.report.render.markdown import to_markdown
    from trainrig.runner.view import view_of
    from trainrig.store import read_run, write_atomic
    from trainrig.units import one_line

    views = view_of(read_run(old)), view_of(read_run(new))
    if is_same_run(*views):
        raise UsageError(
            f"{old} and {new} are one run: {one_line(str(views[0].config['name']))}",
            "compare two runs: a copy holds the same measurements, resumed or not",
        )
    comparison = compare_runs(*views)
    document = comparison_document(comparison)
    if md is not None:
        write_atomic(md, to_markdown(document))
    answer(as_json, lambda: to_dict(comparison), lambda: document)
    if comparison.is_worse:
        return EXIT_FINDING
    return EXIT_OK if comparison.has_compared else EXIT_INCOMPLETE
