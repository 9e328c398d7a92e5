"""`trainrig build`: parts lists checked, the best builds under a budget, the order of assembly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainrig.cli.verb import PATH, Verb, json_option, option

if TYPE_CHECKING:
    from trainrig.procure.parts_list import Build

PRICES = option(
    "--prices",
    type=PATH,
    metavar="CSV",
    default_text="what trainrig prices import keeps",
    help="A price list, for parts without a price.",
)
CURRENCY = option(
    "--currency", metavar="XXX", default_text="the list's", help="Three letters: CNY, USD."
)
HTML = option("--html", type=PATH, metavar="FILE", help="Write one offline HTML file.")
MD = option("--md", type=PATH, metavar="FILE", help="Write markdown; - is stdout.")


@click.group()
def command() -> None:
    """Check a parts list, find the best build under a budget, or print how to assemble one."""


def read_list(file: Path, prices: Path | None, currency: str | None) -> Build:
    """The build of a file, priced.  Raises DataError and UsageError."""
    from trainrig.procure.parts_list import read_build
    from trainrig.procure.price_list import read_prices

    return read_build(file, read_prices(prices), currency or "")


@command.command(cls=Verb, short_help="Is a parts list legal?  With the arithmetic.")
@click.argument("file", type=PATH)
@PRICES
@CURRENCY
@HTML
@MD
@json_option()
def check(
    file: Path,
    prices: Path | None,
    currency: str | None,
    html: Path | None,
    md: Path | None,
    as_json: bool,
) -> int:
    """Check the parts list FILE: sockets, slots, lanes, watts, plugs, air, RAM, disks, circuits.

    \b
    trainrig build check machine.toml
    trainrig build check machine.toml --json
    trainrig build check machine.toml --html machine.html

    A list has tables of parts ([[gpu]], [[board]], [[cpu]], [[ram]], [[psu]], [[case]],
    [[cooling]], [[disk]], [[nic]], [[riser]], [[bridge]]), each with part, count and price,
    and says in [use] and [room] what it is for and where it stands.  A part that the
    catalog does not know is described by its fields.  Exit code 1 where a rule is broken.
    """
    from trainrig.cli.output import publish
    from trainrig.errors import EXIT_FINDING, EXIT_OK
    from trainrig.procure.build_rules import check_build, report_dict
    from trainrig.report.build_report import build_document

    report = check_build(read_list(file, prices, currency))

    def content() -> dict[str, Any]:
        return report_dict(report)

    publish(as_json, content, lambda: build_document(report), html=html, md=md)
    return EXIT_OK if report.legal else EXIT_FINDING
