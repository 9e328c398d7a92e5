"""``trainrig fits``: does it fit in memory, and if not, which knob comes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainrig.cli.predict_options import HOW, LATER, WHAT, WHERE, options, said

if TYPE_CHECKING:
    from trainrig.predict.search.memory_options import Fit


@click.command(short_help="Does a training fit in memory, and which knob to turn first?")
@options(WHAT, WHERE, HOW, LATER)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(rates: Path | None, as_json: bool, **asked: Any) -> int:
    """Memory of the fullest GPU by part, the largest micro-batch that fits, and the knobs.

    \b
    trainrig fits --model llama-7B --on "RTX 4090" --gpus 4
    trainrig fits --model gpt2-xl --on "RTX 3090" --batch-size 4 --recompute full

    Exit code 1 where it does not fit.
    """
    from trainrig.errors import EXIT_FINDING, EXIT_OK
    from trainrig.predict.search.memory_options import fit_dict
    from trainrig.runner.fits import fits

    found = fits(said(**asked), rates=rates)
    if as_json:
        click.echo(json.dumps(fit_dict(found), ensure_ascii=False))
    else:
        _show(found)
    return EXIT_OK if found.fits else EXIT_FINDING


def _show(found: Fit) -> None:
    from trainrig.cli.output import console
    from trainrig.report.fitting import fit_lines, headline, knob_table, part_table

    out = console()
    style = "bold green" if found.fits else "bold red"
    out.print(headline(found), style=style, markup=False, soft_wrap=True)
    out.print()
    out.print(part_table(found))
    out.print()
    for line in fit_lines(found):
        out.print(line, markup=False)
    if found.turned:
        out.print()
        out.print(knob_table(found))
