"""`trainrig jobs`: work that was started with --detach, and how it stands."""

from __future__ import annotations

import click

from trainrig.cli.verb import json_option, option, verb
from trainrig.errors import EXIT_OK


@verb()
@option("--end", metavar="JOB", default_text="none", help="End this job: it may save, 30 s.")
@json_option()
def command(end: str | None, as_json: bool) -> int:
    """List jobs: what was started with --detach, since when, how it ended.

    \b
    trainrig jobs
    trainrig jobs --end 20270101T000000Z-train

    A job goes on when the terminal or the connection is closed.  One that is lost
    was killed, or the machine was restarted: its training may be resumed.
    """
    from trainrig.cli import output
    from trainrig.remote.detached import all_jobs, end_job, find_job, summary_of
    from trainrig.report import document as doc

    jobs = [end_job(find_job(end))] if end is not None else all_jobs()
    table = doc.table(
        jobs,
        doc.column("job", lambda job: job.id, kind="code"),
        doc.words("state", lambda job: _state(job.state, job.code)),
        doc.words("command", lambda job: job.shown_command),
    )
    empty = doc.Paragraph("no jobs; start one: trainrig train --detach")
    output.answer(
        as_json,
        lambda: {"jobs": [summary_of(job) for job in jobs]},
        lambda: doc.Document(title="jobs", blocks=(table if jobs else empty,)),
    )
    return EXIT_OK


def _state(state: str, code: int | None) -> str:
    return f"{state}, exit code {code}" if code is not None else state


@verb()
@click.argument("job", required=False)
@option("--all", "from_start", is_flag=True, help="Show all that it has printed, not the end.")
@json_option("Print how the job ended as one JSON object, last.")
def attach(job: str | None, from_start: bool, as_json: bool) -> int:
    """Follow a job as if it ran here, by default the newest; end with its exit code.

    \b
    trainrig attach
    trainrig attach 20270101T000000Z-train --all

    Ctrl-C stops following; the job goes on.  In tmux or screen it may be followed
    from several terminals at once.
    """
    import sys

    from trainrig.cli import output
    from trainrig.errors import EXIT_INCOMPLETE
    from trainrig.remote.detached import find_job, follow, read_job, summary_of

    found = find_job(job)
    if not as_json:
        click.echo(f"{found.id}: {found.shown_command}", err=True)
    try:
        for piece in follow(found, from_start=from_start):
            if not as_json:
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        click.echo(f"\n{found.id} goes on: trainrig attach {found.id}", err=True)
        return EXIT_OK
    from pathlib import Path

    ended = read_job(Path(found.log).parent)
    if as_json:
        output.print_json(summary_of(ended))
    else:
        click.echo(f"{ended.id}: {_state(ended.state, ended.code)}", err=True)
    return EXIT_INCOMPLETE if ended.code is None else ended.code
