"""``trainrig ledger``: how far off were the predictions?"""

from __future__ import annotations

from pathlib import Path

import click

from trainrig.cli.verb import PATH, json_option, option, verb


@verb()
@click.argument("runs", type=PATH, default=Path("runs"))
@option("--calibrate", "fit", is_flag=True, help="Correct the next runs' predictions.")
@json_option()
def command(runs: Path, fit: bool, as_json: bool) -> int:
    """Show the predictions of the runs in RUNS (default: runs) beside what was measured.

    \b
    trainrig ledger
    trainrig ledger runs --calibrate

    Counted are runs of the machine that made the newest one.  --calibrate fits a factor for each
    part of a training step on the older runs, tries it on the newest, and stores what helps in
    RUNS/calibration.json.
    """
    from trainrig.analysis.prediction_error import calibrate, ledger_dict
    from trainrig.cli.output import answer
    from trainrig.errors import EXIT_OK
    from trainrig.report.prediction_report import ledger_document
    from trainrig.runner.history import read_ledger, store_corrections

    ledger = read_ledger(runs)
    corrections = calibrate(ledger) if fit else None
    if corrections:
        store_corrections(runs, ledger.machine, corrections)
    answer(
        as_json,
        lambda: ledger_dict(ledger, corrections),
        lambda: ledger_document(ledger, corrections),
    )
    return EXIT_OK
