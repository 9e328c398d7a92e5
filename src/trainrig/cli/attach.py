"""`trainrig attach`: follow what was started with --detach."""

from __future__ import annotations

import click

from trainrig.cli.output import say
from trainrig.cli.verb import json_option, option, verb
from trainrig.errors import EXIT_INCOMPLETE, EXIT_OK


@verb()
@click.argument("job", required=False)
@option("--all", "from_start", is_flag=True, help="Show all that it has printed, not the end.")
@json_option("Print how the job ended as one JSON object, last.")
def command(job: str | None, from_start: bool, as_json: bool) -> int:
    """Follow a job as if it ran here, by default the newest; end with its exit code.

    \b
    trainrig attach
    trainrig attach 20270101T000000Z-train --all

    Ctrl-C stops following; the job goes on.  In tmux or screen it may be followed
    from several terminals at once.
    """
    import sys
    from pathlib import Path

    from trainrig.cli import output
    from trainrig.remote.detached import find_job, follow, read_job, summary_of

    job_found = find_job(job)
    if not as_json:
        say(f"{job_found.id}: {job_found.shown_command}", err=True)
    try:
        for piece in follow(job_found, from_start=from_start):
            if not as_json:
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
                if not output.has_reader():  # head: how the job ends is not known
                    return EXIT_INCOMPLETE
    except KeyboardInterrupt:
        say(f"\n{job_found.id} goes on: trainrig attach {job_found.id}", err=True)
        return EXIT_OK
    ended = read_job(Path(job_found.log).parent)
    if as_json:
        output.print_json(summary_of(ended), "job")
    else:
        say(f"{ended.id}: {ended.standing}", err=True)
    return EXIT_INCOMPLETE if ended.code is None else ended.code
