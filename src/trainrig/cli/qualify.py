"""``trainrig qualify``: the main job."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Inspect, measure, compare with what is expected, and give a verdict.")
@click.option("--budget", default="4m", show_default=True, help="Time for everything: 5s, 4m, 1h.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder in which the run's folder is made.",
)
@click.option(
    "--resume", type=click.Path(path_type=Path), help="Go on with a run that was cut off."
)
@click.option("--detach", is_flag=True, help="Go on when the terminal is closed.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object, last.")
def command(budget: str, out: Path, resume: Path | None, detach: bool, as_json: bool) -> int:
    """Inspect this machine, measure it, compare each number with what is claimed and expected.

    Ends in PASS (exit code 0), FAIL (1) or INCOMPLETE (3), a report in the
    terminal, and report.html in the run's folder.
    """
    from trainrig.cli import progress
    from trainrig.runner import session
    from trainrig.units import parse_duration

    seconds = parse_duration(budget)
    session.check_budget(seconds)
    if detach:
        return progress.detach(out, resume, as_json=as_json)
    result = session.qualify(budget=seconds, out=out, resume=resume, watch=progress.on_stderr())
    if as_json:
        progress.print_json(session.summary(result))
    else:
        progress.print_run(result.run)
    return session.exit_code(result.verdict.outcome, result.interrupted)
