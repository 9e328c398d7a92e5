"""``trainrig qualify``: the main job."""

from __future__ import annotations

from pathlib import Path

from trainrig.cli.verb import OUT, PATH, STRICT, json_option, option, verb


@verb()
@option("--budget", default="4m", help="Time for everything: 5s, 4m, 1h.")
@OUT
@option("--resume", type=PATH, metavar="RUN", help="Resume an interrupted run.")
@option("--detach", is_flag=True, help="Keep running when the terminal is closed.")
@STRICT
@json_option("Print the verdict as one JSON object, last.")
def command(
    budget: str, out: Path, resume: Path | None, detach: bool, strict: bool, as_json: bool
) -> int:
    """Inspect this machine, measure it, compare each number with what is claimed and expected.

    \b
    trainrig qualify
    trainrig qualify --budget 15m
    trainrig qualify --resume runs/20270101T000000Z-host-qualify-1a2b3c

    Ends in PASS (exit code 0), MEASURED (0: nothing is known to judge it by),
    FAIL (1) or INCOMPLETE (3), a report in the terminal, and report.html in the
    run's folder.
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
    return result.exit_code(strict=strict)
