"""``trainrig ledger``: how far off were the predictions?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainrig.cli.verb import PATH, json_option, option, verb

if TYPE_CHECKING:
    from trainrig.analysis.prediction_error import Correction, Ledger


@verb("Predictions of earlier runs beside what was measured.")
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
    from trainrig.errors import EXIT_OK
    from trainrig.runner.history import read_ledger, store_corrections

    ledger = read_ledger(runs)
    corrections = calibrate(ledger) if fit else None
    if corrections:
        store_corrections(runs, ledger.host, corrections)
    if as_json:
        click.echo(json.dumps(ledger_dict(ledger, corrections), ensure_ascii=False))
    else:
        _show(ledger, corrections)
    return EXIT_OK


def _show(ledger: Ledger, corrections: tuple[Correction, ...] | None) -> None:
    from trainrig.analysis.prediction_error import MIN_RUNS, by_part, by_run
    from trainrig.cli.output import console
    from trainrig.report.ledger import correction_table, headline, summary_table

    out = console()
    out.print(headline(ledger), style="bold", markup=False)
    for line in ledger.unread:
        out.print(f"not read: {line}", style="dim", markup=False)
    if ledger.entries:
        out.print()
        out.print(summary_table("part", by_part(ledger)))
        out.print()
        out.print(summary_table("run", by_run(ledger)))
    if corrections is not None:
        out.print()
        if corrections:
            out.print(correction_table(corrections))
        else:
            out.print(f"Nothing to fit: a part needs {MIN_RUNS} runs that foretold a step.")
