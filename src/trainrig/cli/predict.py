"""``trainrig predict``: what a training step costs, before it is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainrig.cli.predict_options import FRAMEWORK, HOW, LATER, WHAT, WHAT_IF, WHERE, given
from trainrig.cli.verb import PATH, json_option, option, options, verb

if TYPE_CHECKING:
    from trainrig.predict.prediction import Prediction
    from trainrig.predict.scenario import Measured
    from trainrig.predict.search.upgrades import Ranked


@verb("What a training step costs in time and memory.")
@options(WHAT, WHERE, FRAMEWORK, HOW, LATER)
@option(
    "--tokens",
    type=float,
    group="Result",
    help="Show days and energy for a training of N tokens.",
    metavar="N",
)
@WHAT_IF
@option(
    "--cases",
    type=PATH,
    metavar="CSV",
    group="Result",
    help="Predict a table of layouts, one a row.",
)
@json_option("One JSON object; with --cases one a row.")
def command(
    rates: Path | None,
    tokens: float | None,
    what_if: str | None,
    cases: Path | None,
    as_json: bool,
    **keys: Any,
) -> int:
    """Predict one layout of one model: time by part, memory by part, tokens a day.

    \b
    trainrig predict --model gpt2-medium --on "RTX 3090 Ti" --gpus 2 --link nvlink --batch-size 5
    trainrig predict --model llama-7B --on "A100 SXM4 80GB" --gpus 64 --zero 3 --tokens 1e12
    trainrig predict --model gpt2 --rates runs/20270101T000000Z-host-qualify-1a2b3c
    trainrig predict --cases training.csv

    Exit code 1 where it does not fit in memory.
    """
    if cases is not None:
        return _cases(cases, as_json)
    from dataclasses import asdict

    from trainrig.errors import EXIT_FINDING, EXIT_OK
    from trainrig.predict.prediction import predict, prediction_dict
    from trainrig.predict.scenario import NOTHING, positive, question

    if tokens is not None:
        positive("tokens", tokens)
    found = predict(question(given(**keys), NOTHING if rates is None else _measured(rates)))
    ranked = () if what_if is None else _upgrades(found, what_if)
    if as_json:
        shown = prediction_dict(found, tokens)
        if what_if is not None:
            shown["upgrades"] = [asdict(one) for one in ranked]
        click.echo(json.dumps(shown, ensure_ascii=False))
    else:
        from trainrig.cli.output import console
        from trainrig.report.prediction_report import prediction_document
        from trainrig.report.render.terminal import print_document

        print_document(prediction_document(found, tokens, ranked), console())
    return EXIT_OK if found.fits else EXIT_FINDING


def _measured(run: Path) -> Measured:
    from trainrig.runner.predict import rates_of_run

    return rates_of_run(run)


def _upgrades(found: Prediction, text: str) -> tuple[Ranked, ...]:
    from trainrig.predict.search.upgrades import upgrades_of_answer

    return upgrades_of_answer(found, text)


def _cases(path: Path, as_json: bool) -> int:
    """Every row of a table: an object each, or in words, with the errors where it was measured."""
    from trainrig.errors import EXIT_OK
    from trainrig.predict.table import predict_rows, read_rows

    if as_json:
        for row in predict_rows(read_rows(path)):
            click.echo(json.dumps(row, ensure_ascii=False))
        return EXIT_OK
    from trainrig.cli.output import console
    from trainrig.predict.table_errors import error_table, row_errors
    from trainrig.report.prediction_report import cases_document
    from trainrig.report.render.terminal import print_document

    rows = list(read_rows(path))
    found, refused = row_errors(rows)
    if found:
        click.echo(error_table(found, refused))
    else:
        print_document(cases_document(predict_rows(rows)), console())
    return EXIT_OK
