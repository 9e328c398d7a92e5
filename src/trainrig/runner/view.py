"""Runs as they are read: the view of the report, measured rates; and how a run is closed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainrig.analysis.answer import RunAnswer, answer_of
from trainrig.analysis.judge import confirm, judge
from trainrig.analysis.judge_burn import judge_burn
from trainrig.analysis.judge_imported import is_imported, judge_imported
from trainrig.analysis.judge_sentinel import SENTINEL
from trainrig.analysis.judge_training import judge_trainings
from trainrig.analysis.rows import is_published
from trainrig.analysis.run_commands import resume_command, with_current_path
from trainrig.catalog.published.training import baselines
from trainrig.errors import (
    EXIT_FINDING,
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    DataError,
)
from trainrig.lazy import Later
from trainrig.process.child import first_line
from trainrig.record import Kind, Outcome, Record, RunView, Verdict
from trainrig.store import RunWriter, read_run
from trainrig.store.run_folder import MACHINE, REPORT

BURN = "burn"
"""The verb whose runs have rules of their own."""

if TYPE_CHECKING:  # to read a run loads no numpy
    from trainrig.prediction.scenario import Measured


def with_reports(run: RunView) -> RunView:
    """Return a run with what its ranks reported where others started them; any other as it is."""
    return _reported(run)[0]


def _reported(run: RunView) -> tuple[RunView, str | None]:
    """Read a run and its ranks' reports, with the reason where these are incomplete."""
    if not (run.path / "experiment.json").is_file():  # before torchrun's part is loaded
        return run, None
    from trainrig.runner.started_elsewhere import is_started_elsewhere, with_events

    return with_events(run) if is_started_elsewhere(run) else (run, None)


def view_of(run: RunView) -> RunView:
    """Return a run with its records by today's names, and the published figures beside it."""
    run = with_reports(run)
    records = tuple(map(_with_todays_names, run.records))
    return dataclasses.replace(run, records=records, baselines=Later(_published()))


def _published() -> Iterator[Record]:
    """Yield all published figures, read when the first one is requested."""
    from trainrig.catalog.published import published_records

    yield from published_records()


def _with_todays_names(record: Record) -> Record:
    """Return an old record with ``batch_size`` and ``seq_len`` under today's names."""
    case = dict(record.case)
    for former, name in (("batch", "batch_size"), ("seq", "seq_len")):
        if former in case:
            case[name] = case.pop(former)
    return record.replace(case=case) if case != record.case else record


def judged_view(run: RunView) -> RunView:
    """Return a run with its verdict, judged again if it was cut off or lost records."""
    run, ended = _reported(run)
    view = view_of(run)
    if ended is not None or (run.path / "experiment.json").is_file():
        return dataclasses.replace(view, verdict=judge_trainings(view, ended), problems=())
    if run.verdict is not None:
        # What others published is never passed, only gathered: there is nothing to confirm.
        is_gathered = is_published(run) and run.verdict.outcome is Outcome.MEASURED
        if is_gathered and not run.lost and any(r.kind is Kind.BASELINE for r in run.records):
            return dataclasses.replace(view, verdict=run.verdict)
        confirmed = confirm(run.verdict, run.records, run.lost)
        return dataclasses.replace(view, verdict=_with_commands_of_today(confirmed, run))
    cut_off = "the run was cut off before its verdict"
    try:
        return dataclasses.replace(view, verdict=judged(run, cut_off))
    except DataError as error:  # its machine.json is no description of a machine
        lost = "; ".join(filter(None, [run.lost, f"{MACHINE}: {error.message}"]))
        verdict = judged(dataclasses.replace(run, machine=None), cut_off)
        return dataclasses.replace(view, verdict=verdict, lost=lost)


def _with_commands_of_today(verdict: Verdict, run: RunView) -> Verdict:
    """Return the verdict with commands that work where the run lies now."""
    path = str(run.path)
    findings = tuple(
        dataclasses.replace(finding, fix=fix)
        if (fix := with_current_path(finding.fix, run.config, path)) != finding.fix
        else finding
        for finding in verdict.findings
    )
    return (
        verdict if findings == verdict.findings else dataclasses.replace(verdict, findings=findings)
    )


def judged(run: RunView, interrupted: str | None) -> Verdict:
    """Judge what was measured; ``interrupted`` says why it is incomplete."""
    if run.config.get("verb") == "train":
        return judge_trainings(view_of(run), interrupted)
    if run.config.get("verb") == BURN:
        return judge_burn(view_of(run), interrupted)
    # To show a judged run loads none of these.
    from trainrig.doctor import diagnose, of_speed
    from trainrig.machine.snapshot import from_dict

    findings = diagnose(from_dict(run.machine)) if run.machine else ()
    if is_imported(run.config):
        notes = tuple(map(str, run.config.get("notes", ())))
        return judge_imported(view_of(run), tuple(baselines()), findings, notes)
    resume_line = resume_command(run.config, str(run.path))
    longer = resume_command(run.config, str(run.path), longer=True)
    sentinel = run.series.get(SENTINEL, ())
    speed = of_speed(findings)
    return judge(run.records, speed, interrupted, resume_line, longer, run.machine, sentinel)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """Result of a run: its folder, verdict and summary."""

    run: Path
    verdict: Verdict
    interrupted: bool
    num_records: int
    answer: RunAnswer
    """Normal, slow, faulty or cannot tell."""

    def exit_code(self, *, strict: bool = False) -> int:
        """Return the process's exit code; with ``strict``, points not judged count as a finding."""
        if self.interrupted:
            return EXIT_INTERRUPTED
        if strict and self.verdict.outcome is Outcome.MEASURED:
            return EXIT_INCOMPLETE
        return _EXIT_CODES[self.verdict.outcome]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document that every verb that makes a run prints."""
        return {
            "answer": {
                "word": self.answer.word.value,
                "reason": self.answer.reason,
                "compared_with": list(self.answer.compared_with),
            },
            "verdict": self.verdict.outcome.value,
            "reason": self.verdict.reason,
            "run": str(self.run),
            "report": str(self.run / REPORT),
            "findings": [
                {"id": f.id, "severity": f.severity, "evidence": f.evidence, "fix": f.fix}
                for f in self.verdict.findings
            ],
        }


_EXIT_CODES = {
    Outcome.PASS: EXIT_OK,
    Outcome.MEASURED: EXIT_OK,
    Outcome.FAIL: EXIT_FINDING,
    Outcome.INCOMPLETE: EXIT_INCOMPLETE,
}


def close_run(run: RunWriter, interrupted: str | None) -> RunOutcome:
    """Judge what was measured, store the verdict and write the report."""
    from trainrig.report.run_report import render_html

    verdict = judged(read_run(run.path), interrupted)
    run.write_verdict(verdict)
    stored = view_of(read_run(run.path))
    run.write_report(render_html([stored]))
    return RunOutcome(
        run=run.path,
        verdict=verdict,
        interrupted=interrupted is not None,
        num_records=len(stored.records),
        answer=answer_of(stored),
    )


def fill_run(
    run: RunWriter,
    fill: Callable[[], object],
    interrupted: str,
    refusal: tuple[type[Exception], ...] = (),
) -> RunOutcome:
    """Do what an open run is for, and close it whatever ends that.

    ``interrupted``: what the verdict says after Ctrl-C or SIGTERM.  An error closes the run, too,
    with a verdict and a report as far as they can be made, and is raised again; a ``refusal`` comes
    before anything is measured, and leaves the run as it is.
    """
    try:
        fill()
    except KeyboardInterrupt:
        return close_run(run, interrupted)
    except refusal:
        raise
    except BaseException as error:
        with suppress(Exception):  # the error itself is what is told
            close_run(run, f"stopped by {type(error).__name__}: {first_line(error)}")
        raise
    return close_run(run, None)


def rates_of_run(path: Path) -> Measured:
    """Return the measured points of a run's GPU, else of its host.

    Noisy points count: each is a lower bound of what its device reaches.

    Raises DataError where nothing has a valid value.
    """
    from trainrig.analysis.best import is_valid
    from trainrig.prediction.scenario import Measured

    run = read_run(path)
    points = [r for r in run.records if r.is_point and is_valid(r) and r.device]
    gpus = [r for r in points if r.device_index is not None]
    chosen = gpus or points
    if not chosen:
        raise DataError(f"{path} has no measured rates", "measure them: trainrig qualify")
    # Of several devices, one with a clean point.
    device = next((r for r in chosen if r.disturbed is None), chosen[0]).device
    assert device is not None
    memory = None
    if not gpus:  # what the host has, or what its container may take
        sizes = (run.machine or {}).get("memory")
        sizes = sizes if isinstance(sizes, Mapping) else {}
        memory_sizes = [sizes.get(name) for name in ("total_bytes", "limit_bytes")]
        known_sizes = [float(size) for size in memory_sizes if isinstance(size, int) and size > 0]
        memory = min(known_sizes, default=None)
    device_points = tuple(r for r in chosen if r.device == device)
    return Measured(records=device_points, device=device, memory=memory)


def training_summary(outcome: RunOutcome) -> dict[str, Any]:
    """Return what ``train --json`` prints last, read back from the run's own records.

    It is a list of experiments; a single one stands flat beside it.
    """
    from trainrig.analysis import training_results
    from trainrig.analysis.compare_training import speedups
    from trainrig.analysis.training_baselines import published_figures

    view, head = view_of(read_run(outcome.run)), outcome.to_dict()
    results = training_results.results(view)
    experiments = [training_results.as_json(result) for result in results]
    is_single = len(experiments) == 1
    compared = [] if is_single else [dataclasses.asdict(speedup) for speedup in speedups(results)]
    return {
        **(experiments[0] if is_single else {}),
        "verdict_reason": head.pop("reason"),
        **head,
        "published": [dataclasses.asdict(f) for f in published_figures(view)],
        "predicted": [dataclasses.asdict(p) for p in training_results.predictions(view)],
        "experiments": experiments,
        **({} if is_single else {"comparisons": compared}),
    }
