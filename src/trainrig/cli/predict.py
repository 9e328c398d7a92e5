"""``trainrig predict``: what a training step costs, before it is run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from trainrig.cli.predict_options import FRAMEWORK, HOW, PRICE, WHAT, WHAT_IF, WHERE, machines
from trainrig.cli.verb import PATH, json_option, options, rows, verb


@verb()
@options(
    *(WHAT, WHERE, FRAMEWORK, HOW),
    rows("Result", ("--tokens", float, "", "Show days and energy for a training of N tokens.")),
    [WHAT_IF],
    PRICE,
    rows("Result", ("--cases", PATH, "", "Predict a table of layouts, one a row.")),
)
@json_option("One JSON object; with --cases one a row.")
def command(
    rates: Path | None,
    tokens: float | None,
    what_if: str | None,
    price: tuple[str, ...],
    cases: Path | None,
    as_json: bool,
    **keys: Any,
) -> int:
    """Predict one layout of one model: time by part, memory by part, tokens a day.

    \b
    trainrig predict --model gpt2-medium --on "RTX 3090 Ti" --gpus 2 --link nvlink --batch-size 5
    trainrig predict --model llama-7B --on "A100 SXM4 80GB" --gpus 64 --zero 3 --tokens 1e12
    trainrig predict --model gpt2 --rates runs/20270101T000000Z-host-qualify-1a2b3c
    trainrig predict --model llama-1B --on "RTX 4090" --on "RTX 3090" --price 1600 --price 700
    trainrig predict --cases training.csv

    Exit code 1 where it does not fit in memory.
    """
    from trainrig.cli.output import answer
    from trainrig.errors import EXIT_FINDING, EXIT_OK, UsageError
    from trainrig.predict.beside import beside, beside_dict
    from trainrig.predict.prediction import predict, prediction_dict
    from trainrig.predict.scenario import positive, question
    from trainrig.predict.search.upgrades import upgrades_of_answer
    from trainrig.report.prediction_report import prediction_document
    from trainrig.report.side_by_side import predictions_beside
    from trainrig.runner.view import measured

    if cases is not None:
        _print_cases(cases, as_json)
        return EXIT_OK
    if tokens is not None:
        positive("tokens", tokens)
    questions = machines(**keys)
    if len(questions) > 1 or price:
        if what_if is not None:
            raise UsageError("--what-if asks about one machine", "one --on, without --price")
        several = beside(questions, lambda one: predict(question(one, measured(rates))), price)
        answer(
            as_json,
            lambda: beside_dict(several, lambda found: prediction_dict(found, tokens)),
            lambda: predictions_beside(several, tokens),
            schema="predict-beside",
        )
        return EXIT_OK if all(one.fits for one in several) else EXIT_FINDING
    found = predict(question(questions[0], measured(rates)))
    ranked = () if what_if is None else upgrades_of_answer(found, what_if)

    def content() -> dict[str, Any]:
        upgrades = {} if what_if is None else {"upgrades": [asdict(one) for one in ranked]}
        return prediction_dict(found, tokens) | upgrades

    answer(as_json, content, lambda: prediction_document(found, tokens, ranked))
    return EXIT_OK if found.fits else EXIT_FINDING


def _print_cases(path: Path, as_json: bool) -> None:
    """Every row of a table: an object each, or in words, with the errors where it was measured."""
    from trainrig.cli.output import print_json, print_text
    from trainrig.predict.table import predict_rows, read_rows
    from trainrig.predict.table_errors import error_table, row_errors
    from trainrig.report.prediction_report import cases_document

    if as_json:
        for row in predict_rows(read_rows(path)):
            print_json(row, "predict-row")
        return
    rows = list(read_rows(path))
    found, refused = row_errors(rows)
    if found:
        click.echo(error_table(found, refused))
    else:
        print_text(cases_document(predict_rows(rows)))
