"""From a run that was read to what the report is handed."""

from __future__ import annotations

import dataclasses

from trainrig.analysis.judge import confirm, judge, resume_command
from trainrig.analysis.run_view import RunView
from trainrig.doctor import diagnose
from trainrig.machine import from_dict
from trainrig.record import Record
from trainrig.store import RunData


def view_of(run: RunData) -> RunView:
    """The report's view of a run, with the published figures beside it."""
    from trainrig.catalog.published import published_records

    return RunView(
        name=run.name,
        config=run.config,
        machine=run.machine,
        records=tuple(map(_with_todays_names, run.records)),
        series=run.series,
        verdict=run.verdict,
        problems=run.problems,
        baselines=published_records(),
    )


def _with_todays_names(record: Record) -> Record:
    """A record of before batch_size and seq_len were called so."""
    case = dict(record.case)
    for former, name in (("batch", "batch_size"), ("seq", "seq_len")):
        if former in case:
            case[name] = case.pop(former)
    return record.replace(case=case) if case != record.case else record


def judged_view(run: RunData) -> RunView:
    """A run with its verdict, or one for what is there: cut off, or with records lost since."""
    view = view_of(run)
    if run.verdict is not None:
        return dataclasses.replace(view, verdict=confirm(run.verdict, run.records, run.lost))
    findings = diagnose(from_dict(run.machine)) if run.machine else ()
    why = "the run was cut off before its verdict"
    again = resume_command(run.config, str(run.path))
    return dataclasses.replace(view, verdict=judge(run.records, findings, why, again))
