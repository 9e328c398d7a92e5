"""`trainrig catalog`: what vendors claim."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from trainrig.cli.verb import complete_chip, json_option, option, verb
from trainrig.errors import UsageError

if TYPE_CHECKING:
    from trainrig.catalog.chip import Chip


@verb("What vendors claim: one chip, or several side by side.")
@click.argument("name", nargs=-1, shell_complete=complete_chip)
@option("--compare", is_flag=True, help="Show the named chips side by side.")
@json_option("JSON on stdout: an object for one chip.")
def command(name: tuple[str, ...], compare: bool, as_json: bool) -> None:
    """Show what vendors claim: all chips, one chip with its sources, or several side by side.

    \b
    trainrig catalog RTX 4090
    trainrig catalog
    trainrig catalog 10de:2684
    trainrig catalog --compare "RTX 4090" "A100 SXM4 80GB"

    A name is matched exactly, never to a neighbour.  Peaks are dense, by data
    type and accumulate type.  A question mark: recalled, not verified.
    """
    from trainrig.catalog.fields import chip_dict
    from trainrig.catalog.load import load_chips
    from trainrig.catalog.lookup import require_chip

    if compare and len(name) < 2:
        raise UsageError("--compare needs two chips or more", "quote names that have spaces")
    wanted = name if compare else ((" ".join(name),) if name else ())
    chips = tuple(require_chip(one) for one in wanted) or load_chips()
    if as_json:
        content = [chip_dict(chip) for chip in chips]
        click.echo(json.dumps(content[0] if len(wanted) == 1 else content, ensure_ascii=False))
        return
    _show(chips, compare=compare, one=bool(wanted))


def _show(chips: tuple[Chip, ...], *, compare: bool, one: bool) -> None:
    from trainrig.cli.output import console
    from trainrig.report import chip_report
    from trainrig.report.render.terminal import print_document

    if compare:
        document = chip_report.compare_document(chips)
    elif one:
        document = chip_report.chip_document(chips[0])
    else:
        document = chip_report.list_document(chips)
    print_document(document, console())
