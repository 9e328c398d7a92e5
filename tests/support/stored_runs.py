"""Runs that are stored as a measurement stores them, made of the views of `report_views`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import tomli_w

from trainrig.record import RunView, Status
from trainrig.store import create_run
from trainrig.store.run_folder import CONFIG, parse_config, read_file


def store(
    view: RunView,
    parent: Path,
    verb: str = "qualify",
    *,
    day: int = 1,
    host: str = "box",
    **config: Any,
) -> Path:
    """The folder of a run that began on a day of November and measured what a view says."""
    with create_run(parent, verb, config) as run:
        machine = {**(view.machine or {}), "host": {"hostname": host, "machine": f"id of {host}"}}
        run.write_machine(machine)
        for record in view.records:
            run.append(record.replace(status=Status(record.status)))
        for name, rows in view.series.items():
            for row in rows:
                run.append_series(name, row)
        if view.verdict is not None:
            run.write_verdict(view.verdict)
    content = parse_config(read_file(run.path / CONFIG), run.path)
    content["started"] = datetime.datetime(2026, 11, day, tzinfo=datetime.UTC)
    (run.path / CONFIG).write_text(tomli_w.dumps(content), encoding="utf-8")
    return run.path
