"""``trainrig compare``: did it get better or worse?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainrig.cli.verb import PATH, complete_runs, json_option, option, verb

if TYPE_CHECKING:
    from trainrig.analysis.compare import RunComparison


@verb("Two runs side by side: better, worse or cannot tell.")
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
    their software are listed first.  Exit code 1 when something got worse, else 0.
    """
    from trainrig.analysis.compare import compare_runs
    from trainrig.analysis.environment_diff import is_same_run
    from trainrig.errors import EXIT_FINDING, EXIT_OK, UsageError
    from trainrig.report.compare_report import comparison_dict, comparison_markdown
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
    if md is not None:
        write_atomic(md, comparison_markdown(comparison))
    if as_json:
        click.echo(json.dumps(comparison_dict(comparison), ensure_ascii=False))
    else:
        _print(comparison)
    return EXIT_FINDING if comparison.is_worse else EXIT_OK


def _print(comparison: RunComparison) -> None:
    from trainrig.cli.output import console, is_ascii
    from trainrig.report.compare_report import RULE, comparison_tables, headline
    from trainrig.units import one_line

    out = console()
    for side, name in (("old", comparison.old), ("new", comparison.new)):
        out.print(f"{side}  {one_line(name)}", markup=False, soft_wrap=True)
    out.print()
    for table in comparison_tables(comparison, out.width, ascii_only=is_ascii()):
        out.print(table, markup=False, overflow="ignore", crop=False)
    if comparison.judged:
        out.print(RULE, style="dim", markup=False)
    out.print(headline(comparison), style="bold", markup=False)
