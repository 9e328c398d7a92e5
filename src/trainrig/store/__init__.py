"""A run is a folder; a bundle is a run in one file.

    runs/<utc>-<host>-<verb>-<id>/
        run.toml        resolved configuration and versions, written first
        machine.json    what the machine was
        records.jsonl   appended and synced after every case
        series/*.jsonl  numbers over time: temperature, clocks, loss, one line each
        logs/           what the workers said on stderr
        verdict.json    written last; absent when the run was cut off
        report.html     what a person opens

A run killed at any moment is a valid run: run.toml exists before the folder has
its name, and a torn last line is dropped by the reader.
"""

from trainrig.store.bundle import is_bundle, pack, unpack
from trainrig.store.reader import find_runs, place_of, read_run, read_what_is_left
from trainrig.store.writer import (
    RunWriter,
    create_run,
    draft_folder,
    log_in,
    resume_run,
    store_errors,
    write_atomic,
)

__all__ = [
    "RunWriter",
    "create_run",
    "draft_folder",
    "find_runs",
    "is_bundle",
    "log_in",
    "pack",
    "place_of",
    "read_run",
    "read_what_is_left",
    "resume_run",
    "store_errors",
    "unpack",
    "write_atomic",
]
