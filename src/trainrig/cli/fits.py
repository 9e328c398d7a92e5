"""``trainrig fits``: does it fit in memory, and if not, which option to change first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainrig.cli.predict_options import FRAMEWORK, HOW, LATER, WHAT, WHERE, given
from trainrig.cli.verb import json_option, options, verb

if TYPE_CHECKING:
    from trainrig.predict.search.memory_options import Fit


@verb("Does a training fit in memory, and which option saves most?")
@options(WHAT, WHERE, FRAMEWORK, HOW, LATER)
@json_option()
def command(rates: Path | None, as_json: bool, **keys: Any) -> int:
    """Show the fullest GPU's memory by part, the largest batch size that fits, and what saves most.

    \b
    trainrig fits --model llama-7B --on "RTX 4090" --gpus 4
    trainrig fits --model gpt2-xl --on "RTX 3090" --batch-size 4 --recompute full

    Exit code 1 where it does not fit.
    """
    from trainrig.errors import EXIT_FINDING, EXIT_OK
    from trainrig.predict.search.memory_options import fit_dict
    from trainrig.runner.fits import fits

    found = fits(given(**keys), rates=rates)
    if as_json:
        click.echo(json.dumps(fit_dict(found), ensure_ascii=False))
    else:
        _show(found)
    return EXIT_OK if found.fits else EXIT_FINDING


def _show(found: Fit) -> None:
    from trainrig.cli.output import console
    from trainrig.report.fitting import fit_lines, headline, option_table, part_table

    out = console()
    style = "bold green" if found.fits else "bold red"
    out.print(headline(found), style=style, markup=False, soft_wrap=True)
    out.print()
    out.print(part_table(found))
    out.print()
    for line in fit_lines(found):
        out.print(line, markup=False)
    if found.options:
        out.print()
        out.print(option_table(found))
