"""`trainrig jobs`: work that was started with --detach, and how it stands."""

from __future__ import annotations

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

    A job goes on when the terminal or the connection is closed.  One that was killed
    says by what, one that is lost was there when the machine was restarted: its
    training may be resumed.  A job in tmux is also reached by tmux attach -t SESSION.
    """
    from trainrig.cli import output
    from trainrig.remote.detached import all_jobs, end_job, find_job, summary_of
    from trainrig.report import document as doc

    jobs = [end_job(find_job(end))] if end is not None else all_jobs()
    table = doc.table(
        jobs,
        doc.column("job", lambda job: job.id, kind="code"),
        doc.column(
            "since, UTC", lambda job: job.started[:16].replace("T", " "), kind="code", optional=2
        ),
        doc.words("state", lambda job: job.standing),
        doc.words("tmux", lambda job: job.tmux if job.state == "running" and job.tmux else ""),
        doc.words("command", lambda job: job.shown_command),
    )
    empty = doc.Paragraph("no jobs; start one: trainrig train --detach")
    output.answer(
        as_json,
        lambda: {"jobs": [summary_of(job) for job in jobs]},
        lambda: doc.Document(title="jobs", blocks=(table if jobs else empty,)),
    )
    return EXIT_OK
