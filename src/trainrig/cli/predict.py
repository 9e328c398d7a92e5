"""``trainrig predict``: what a training step costs, before it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainrig.cli.predict_options import (
    COMMON,
    FRAMEWORK,
    HOW,
    KERNELS,
    PRECISION,
    PRICE,
    RATES_OF,
    WHAT,
    WHAT_IF,
    WHERE,
    case_columns,
    machines,
    measured,
)
from trainrig.cli.verb import (
    FILES,
    MACHINES,
    PAGES,
    PATH,
    RUN,
    TOKENS,
    Pages,
    Verb,
    VerbGroup,
    json_option,
    options,
    rows,
)

if TYPE_CHECKING:
    from trainrig.prediction.rates import Rates
    from trainrig.prediction.search.upgrades import Ranked
    from trainrig.record import Record


@click.group(
    cls=VerbGroup,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND ...]",
    common=(*COMMON, "--tp", "--pp", "--tokens", "--cases"),
)
@options(
    *(WHAT, WHERE, FRAMEWORK, HOW),
    rows("Result", ("--tokens", TOKENS, "", "Show days and energy for a training of N tokens.")),
    [WHAT_IF],
    PRICE,
    rows(
        "Result",
        (
            "--cases",
            PATH,
            "",
            "Predict each row of a CSV or JSON Lines file, whose columns are options.",
        ),
        ("--simulate", None, "", "With --cases: pipelines event by event, too."),
    ),
)
@options(PAGES)
@json_option("One JSON object; with --cases one a row.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    rates: Path | None,
    tokens: float | None,
    what_if: str | None,
    price: tuple[str, ...],
    cases: Path | None,
    simulate: bool | None,
    pages: Pages,
    as_json: bool,
    **keys: Any,
) -> int:
    """Predict one layout of one model: time by part, memory by part, tokens a day.

    \b
    trainrig predict --model gpt2-medium --on "RTX 3090 Ti" --gpus 2 --link nvlink --micro-batch 5
    trainrig predict --model llama-7B --on "A100 SXM4 80GB" --gpus 64 --zero 3 --tokens 1e12
    trainrig predict --model gpt2 --rates runs/20270101T000000Z-host-qualify-1a2b3c
    trainrig predict --model llama-1B --on "RTX 4090" --on "RTX 3090" --price 1600 --price 700
    trainrig predict --cases cases.csv
    trainrig predict matmul --on "RTX 5090"

    Exit code 1 where it does not fit in memory.  The commands print tables by size
    of a card that you do not have; each has its own --help.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_options(ctx)
        return 0
    from trainrig.cli.output import publish
    from trainrig.errors import EXIT_FINDING, EXIT_OK, UsageError
    from trainrig.prediction.as_json import prediction_dict
    from trainrig.prediction.prediction import predict
    from trainrig.prediction.scenario import positive, question
    from trainrig.prediction.verdict import DOES_NOT_FIT
    from trainrig.report.prediction_report import prediction_document

    if cases is not None:
        other = next((name for name in _given(ctx) if name not in _OF_CASES), None)
        if other is not None:
            raise UsageError(f"{other} beside --cases", "each row of the table says what it is of")
        _print_cases(cases, as_json, simulate=bool(simulate))
        return EXIT_OK
    if simulate:
        raise UsageError("--simulate is for a table", "--cases FILE; trainrig plan simulates, too")
    if tokens is not None:
        positive("tokens", tokens)
    questions = machines(**keys)
    if len(questions) > 1 or price:
        if what_if is not None:
            raise UsageError("--what-if asks about one machine", "one --on, without --price")
        from trainrig.prediction.machine_comparison import compare_machines, comparison_dict
        from trainrig.report.side_by_side import predictions_side_by_side

        several = compare_machines(
            questions,
            lambda asked_question: predict(question(asked_question, measured(rates))),
            price,
        )
        publish(
            as_json,
            lambda: comparison_dict(
                several, lambda prediction: prediction_dict(prediction, tokens)
            ),
            lambda: predictions_side_by_side(several, tokens),
            pages,
            schema="predict-beside",
        )
        return (
            EXIT_OK if all(asked_question.may_fit for asked_question in several) else EXIT_FINDING
        )
    prediction = predict(question(questions[0], measured(rates)))
    ranked: tuple[Ranked, ...] = ()
    if what_if is not None:
        from trainrig.prediction.search.upgrades import upgrades_of_answer

        ranked = upgrades_of_answer(prediction, what_if)

    def content() -> dict[str, Any]:
        upgrades = {} if what_if is None else {"upgrades": [asdict(upgrade) for upgrade in ranked]}
        return prediction_dict(prediction, tokens) | upgrades

    publish(as_json, content, lambda: prediction_document(prediction, tokens, ranked), pages)
    return EXIT_FINDING if prediction.verdict == DOES_NOT_FIT else EXIT_OK


def _print_cases(path: Path, as_json: bool, *, simulate: bool) -> None:
    """Every row of a table: an object each, or in words, with the errors where it was measured."""
    from trainrig.cli.output import print_json, print_text
    from trainrig.prediction.cases.answers import predict_rows
    from trainrig.prediction.cases.columns import at_place, read_rows
    from trainrig.prediction.cases.complete import check_row
    from trainrig.report.side_by_side import cases_document

    rows = read_rows(path, case_columns())
    for row in rows:
        with at_place(f"{path.name}:{row.line}"):
            check_row(row)
    answers = predict_rows(rows, simulate=simulate)
    if not as_json:
        print_text(cases_document(answers))
        return
    for answered in answers:
        print_json(answered, "predict-row")


_OF_CASES = ("--cases", "--simulate", "--json")
"""Options that a table takes; any other would be lost."""


def _given(ctx: click.Context) -> list[str]:
    """Return the options of the verb that stand on the command line."""
    return [
        parameter.opts[0]
        for parameter in ctx.command.params
        if parameter.name
        and ctx.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    ]


def _refuse_options(ctx: click.Context) -> None:
    """A command takes its own options: one before its name would be lost."""
    from trainrig.errors import UsageError

    if option_names := _given(ctx):
        name = ctx.invoked_subcommand
        hint = f"options come behind it: trainrig predict {name} {option_names[0]} ..."
        raise UsageError(f"{option_names[0]} before {name}", hint)


# ---- tables by size

PLACE = rows(
    "",
    ("--on", MACHINES, "", 'A chip of the catalog: "RTX 5090"; may be given again.'),
    ("--chip", FILES, "", "A chip of your own, in TOML."),
    ("--rates", RUN, "", RATES_OF),
)


@command.command(cls=Verb, short_help="Products of matrices by data type and n.")
@options(PLACE, PAGES)
@json_option("One JSON object: machines, each with its cases.")
def matmul(**given: Any) -> None:
    """Predict products of two (n, n) matrices, n from 128 to 32768, in each data type.

    \b
    trainrig predict matmul --on "RTX 5090"
    trainrig predict matmul --on "RTX 4090" --on "A100 SXM4 80GB" --html products.html

    The same table comes from a run (trainrig report) and from published figures
    (trainrig published).
    """
    from trainrig.prediction.grids import matmul_grid

    _print_grids(given, matmul_grid)


@command.command(cls=Verb, short_help="Elementwise operations by number of elements.")
@options(PLACE, PAGES)
@json_option("One JSON object: machines, each with its cases.")
def vector(**given: Any) -> None:
    """Predict elementwise operations in fp32, hot in cache and cold, 64 Ki to 64 Mi elements.

    \b
    trainrig predict vector --on "RTX 5090"

    Bytes that must be moved, over the time of one call.
    """
    from trainrig.prediction.grids import vector_grid

    _print_grids(given, vector_grid)


@command.command(cls=Verb, short_help="Transformer layers by batch and part.")
@options(PLACE, (PRECISION, KERNELS), PAGES)
@json_option("One JSON object: machines, each with its cases.")
def layer(precision: str | None, kernels: str | None, **given: Any) -> None:
    """Predict blocks of BERT, GPT-2, T5 and Llama, and attention against FFN, by batch.

    \b
    trainrig predict layer --on "RTX 5090"
    trainrig predict layer --on "RTX 3090 Ti" --precision fp16 --kernels eager

    Forward, and with backward; sequences of 128 and 512.  Kernels that are eager are
    Hugging Face's with plain attention, as in the published tables.
    """
    from trainrig.prediction.grids import layer_grid, usual_layer

    def grid(rates: Rates) -> Iterator[Record]:
        return layer_grid(rates, *usual_layer(rates, precision, kernels))

    _print_grids(given, grid)


def _print_grids(given: dict[str, Any], grid: Callable[[Rates], Iterator[Record]]) -> None:
    """The tables of each machine in question."""
    from trainrig.cli.output import publish
    from trainrig.prediction.grids import grid_dict
    from trainrig.prediction.scenario import machine
    from trainrig.report.notebook_tables import grids_document

    run = measured(given["rates"])
    questions = machines(on=given["on"], chip=given["chip"], cluster=())
    places = [machine(asked_question, run).rates() for asked_question in questions]
    grids = [(rates, tuple(grid(rates))) for rates in places]
    publish(
        given["as_json"],
        lambda: {"machines": [grid_dict(*asked_question) for asked_question in grids]},
        lambda: grids_document(grids),
        given["pages"],
    )
