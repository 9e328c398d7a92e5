"""Watching a run from a terminal, or not at all: progress on stderr, detached runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from trainrig.cli import output
from trainrig.errors import EXIT_OK
from trainrig.language import translate
from trainrig.language.width import cut
from trainrig.runner.progress import Progress, Watcher

_CLEAR_LINE = "\r\x1b[2K"


def on_stderr() -> Watcher:
    """Return a watcher that prints results as they come; on a terminal also what runs now."""
    live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    columns = 80

    def watch(event: Progress) -> None:
        nonlocal columns
        count = f"[{event.done}/{event.total}] " if event.total else ""
        if event.retries:
            count = f"[{translate(f'retry {event.retry}/{event.retries}')}] "
        if event.level == "running":
            if live:
                with suppress(OSError):
                    columns = os.get_terminal_size(sys.stderr.fileno()).columns
                time_left = translate(f"{event.left:.0f} s left, ") if event.left else ""
                line = cut(count + time_left + translate(event.text), max(20, columns - 1))
                _print_progress(_CLEAR_LINE + line, nl=False)
            return
        clear = _CLEAR_LINE if live else ""
        prefix = "== " if event.level == "stage" else count
        _print_progress(clear + prefix + translate(event.text))

    return watch


def clear() -> None:
    """Remove what runs now from the terminal, before an answer is printed."""
    if sys.stderr.isatty():
        _print_progress(_CLEAR_LINE, nl=False)


def _print_progress(text: str, *, nl: bool = True) -> None:
    """Print progress; that stderr is closed or its disk full must never fail the run."""
    with suppress(OSError):
        click.echo(text, err=True, nl=nl)


def print_end(as_json: bool, summary: Callable[[], Mapping[str, Any]], run: Path) -> None:
    """Print the result last: one JSON object on stdout, or the run's report."""
    if not as_json:
        print_run(run)
        return
    with output.best_effort():
        output.print_json(summary())


def print_run(run: Path) -> None:
    """The run's report on stdout, and where its files lie."""
    from trainrig.analysis.judge_imported import is_imported
    from trainrig.report.run_report import run_document
    from trainrig.runner.history import ledger_sentence
    from trainrig.runner.view import view_of
    from trainrig.store import read_run

    clear()
    with output.best_effort():
        view = view_of(read_run(run))
        output.print_text(run_document([view]))
        # what this machine was predicted says nothing of another one's file
        sentence = None if is_imported(view.config) else ledger_sentence(run.parent)
        if sentence is not None:
            click.echo("\n" + translate(f"predictions, {sentence}"))
        click.echo("\n" + translate(f"report: {run / 'report.html'}"))


def detach(out: Path, resume: Path | None, how: str, *, as_json: bool) -> int:
    """Start the same command as a job, which no closing terminal reaches; ``how``: see DETACH.

    Raises UnavailableError without tmux where it is wanted, DataError for a run that cannot be
    resumed, StoreError where no job or no run below ``out`` can be written: what can be refused is
    refused here, where somebody reads it.
    """
    from tempfile import TemporaryFile

    from trainrig.remote.detached import start_trainrig
    from trainrig.store import read_run, store_errors

    if resume is not None:
        read_run(resume)
    else:
        with store_errors(out):
            out.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=out).close()
    arguments = [word for word in sys.argv[1:] if word not in ("--detach", "--tmux")]
    verb = click.get_current_context().info_name or "job"
    job = start_trainrig(arguments, verb, how == "tmux")
    if as_json:
        about = {"job": job.id, "pid": job.pid, "log": job.log, "tmux": job.tmux}
        output.print_json(about, "detach")
    elif job.tmux is not None:
        click.echo(translate(f"job {job.id} goes on by itself; see it: tmux attach -t {job.tmux}"))
    else:
        click.echo(translate(f"job {job.id} goes on by itself; follow it: trainrig attach"))
    return EXIT_OK
