"""`trainrig prices`: the dated list of prices that a user keeps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainrig.cli.verb import PATH, Verb, json_option, option

if TYPE_CHECKING:
    from trainrig.procure.price_list import Price

LIST = option(
    "--to",
    type=PATH,
    metavar="CSV",
    default_text="~/.config/trainrig/prices.csv",
    help="The list that is kept.",
)


@click.group()
def command() -> None:
    """Keep a dated list of prices: of parts, of hours of a machine, of electricity."""


@command.command("import", cls=Verb, short_help="Add the rows of a CSV to the list.")
@click.argument("file", metavar="CSV", type=PATH)
@option("--currency", metavar="XXX", default_text="the row's", help="For rows that name none.")
@option("--date", metavar="DATE", default_text="the row's", help="For rows that name none.")
@option("--source", metavar="TEXT", default_text="the row's", help="For rows that name none.")
@LIST
@json_option()
def import_prices(
    file: Path,
    currency: str | None,
    date: str | None,
    source: str | None,
    to: Path | None,
    as_json: bool,
) -> None:
    """Add the rows of CSV to the list: part, price, currency, date, source, kind, per.

    \b
    trainrig prices import shop.csv --currency CNY --date 2026-11-20 --source shop.example
    trainrig prices template > mine.csv

    A row is a price of one piece, or, in the column "per", of an hour, a month or a kWh.
    Older rows are left: of a part's prices the newest counts.
    """
    from trainrig.cli.output import print_values
    from trainrig.procure.price_list import add_prices, currency_of, parse_prices

    money = currency_of(currency) if currency else ""
    rows = parse_prices(file, currency=money, date=date or "", source=source or "")
    added, path = add_prices(rows, to)
    print_values({"read": len(rows), "added": added, "list": str(path)}, as_json)


@command.command("list", cls=Verb, short_help="Show the newest price of each thing.")
@click.argument("part", required=False, default="")
@LIST
@json_option("A JSON array of rows.")
def list_prices(part: str, to: Path | None, as_json: bool) -> None:
    """Show the newest price of each part, or of parts with PART in their names.

    \b
    trainrig prices list
    trainrig prices list 4090

    Each row has the date and the source that it was imported with.
    """
    from trainrig.cli.output import answer
    from trainrig.procure.price_list import newest, read_prices
    from trainrig.report.build_report import prices_document

    rows = [price for price in newest(read_prices(to)) if part.lower() in price.part.lower()]
    answer(as_json, lambda: [_row(price) for price in rows], lambda: prices_document(rows))


@command.command(cls=Verb, short_help="A CSV of all parts, prices left blank.")
@json_option("A JSON array of kinds and names.")
def template(as_json: bool) -> None:
    """Print a CSV with a row for each part of the catalog, to fill in the prices that you know.

    \b
    trainrig prices template > mine.csv

    Rows without a price are passed over when it is imported.
    """
    from trainrig.cli.output import print_json
    from trainrig.procure.part_catalog import all_names
    from trainrig.procure.price_list import template as blank

    if as_json:
        print_json([{"kind": kind, "part": name} for kind, name in all_names()])
    else:
        click.echo(blank(), nl=False)


def _row(price: Price) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(price) | {"date": price.date.isoformat()}
