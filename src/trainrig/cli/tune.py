"""``trainrig tune``: the best few layouts of a plan, trained and ranked by what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trainrig.cli.output import say
from trainrig.cli.verb import OUT, PATH, STRICT, TIME, json_option, option, options, rows, verb

_HOW = rows(
    "How they are trained",
    ("--steps", int, "the file's", "Updates of the weights in each round."),
    ("--rounds", int, "3", "Rounds, interleaved; with fewer than 3 nothing is certain."),
    ("--data", PATH, "Python's standard library", "A folder that trainrig data prepared."),
    ("--device", "DEVICE", "the file's", "cpu or cuda."),
    ("--scale", "tiny", "full", "Train the models' families at a size that takes seconds."),
    ("--timeout", TIME, "10m", "Give up when no rank has moved for this long."),
)


@verb()
@click.argument("plan", type=PATH)
@option("--top", type=int, default=5, help="Layouts that are trained, the best by prediction.")
@options(_HOW)
@OUT
@STRICT
@json_option()
def command(
    plan: Path,
    top: int,
    timeout: float | None,
    out: Path,
    strict: bool,
    as_json: bool,
    **keys: Any,
) -> int:
    """Train the best layouts of PLAN for some steps and rank them by what was measured.

    \b
    trainrig tune plans --top 5
    trainrig tune experiments/mesh.toml --scale tiny --device cpu --top 3 --steps 20

    PLAN is a folder that trainrig plan wrote, or a file of experiments.  Each layout is trained by
    fresh processes, interleaved with the others; predictions stand beside and decide nothing.
    Layouts that the measurement cannot tell apart share a place.
    """
    from trainrig.cli import output, progress
    from trainrig.report.tuning_report import tuning_document
    from trainrig.runner import tune
    from trainrig.runner.train_prepare import stall_timeout_of

    settings = {name: value for name, value in keys.items() if value is not None}
    settings |= {"data": str(settings["data"])} if "data" in settings else {}
    tuned = tune.tune(
        plan,
        settings,
        top=top,
        out=out,
        watch=progress.on_stderr(),
        stall_timeout=stall_timeout_of(timeout),
    )
    with output.best_effort():
        output.answer(
            as_json,
            tuned.to_dict,
            lambda: tuning_document(tuned.ranking, tuned.left_out, tuned.refused),
        )
        if not as_json:
            verdict = tuned.outcome.verdict
            say(f"\n{verdict.outcome.value}  {verdict.reason}")
            say(f"report: {tuned.outcome.run / 'report.html'}")
    return tuned.outcome.exit_code(strict=strict)
