"""Prices that a user keeps: rows with what, how much, in which money, from when and from where.

`trainrig prices import CSV` adds rows to one file (`default_path`); nothing is ever overwritten,
and of a part's rows the newest counts.  The program ships no prices: they age within weeks, and an
invented one is worse than none.  A row is a price of one piece, of an hour (``per = hour``: of a
rented machine), of a month or of a kWh.
"""

from __future__ import annotations

import csv
import datetime
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainrig.catalog.lookup import normalise
from trainrig.errors import DataError, UsageError, invalid, unknown
from trainrig.procure.part_catalog import all_names
from trainrig.procure.parts import KINDS
from trainrig.store import write_atomic

COLUMNS = ("part", "price", "currency", "date", "source", "kind", "per")
Per = Literal["piece", "hour", "month", "kWh"]
_KINDS = (*KINDS, "machine", "reserved", "spot", "cloud", "electricity", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of a part, a machine or a kWh on a day, with its source."""

    part: str
    price: float
    currency: str
    date: datetime.date
    source: str
    kind: str = ""
    """Kind of the part, or ``machine``, ``reserved``, ``spot``, ``cloud``, ``electricity``."""
    per: Per = "piece"


_HINT = f"a CSV whose first line names columns: {', '.join(COLUMNS)}; trainrig prices template"
_COMMA = "a price has no comma (1299.00), and a name with one is quoted"


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    part: Annotated[str, Field(min_length=1, max_length=200)]
    price: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    date: datetime.date
    source: Annotated[str, Field(min_length=1, max_length=500)]
    kind: str = ""
    per: Per = "piece"


def default_path() -> Path:
    """Return the path of the kept prices, ``$XDG_CONFIG_HOME/trainrig/prices.csv``."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(base) / "trainrig" / "prices.csv"


def read_prices(path: Path | None = None) -> tuple[Price, ...]:
    """Return the kept prices; none without a file.  Raises DataError for a broken one."""
    where = path or default_path()
    if path is None and not where.exists():
        return ()
    return parse_prices(where)


def parse_prices(
    path: Path, *, currency: str = "", date: str = "", source: str = ""
) -> tuple[Price, ...]:
    """Return the prices of a CSV, with defaults for the columns that a row leaves out.

    Rows without a price (of a template that is filled in part) are left out.
    Raises DataError with the line's number.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"prices {path}: {reason}", _HINT) from None
    except UnicodeDecodeError:
        raise DataError(f"prices {path}: not UTF-8 text", "save it as CSV in UTF-8") from None
    reader = csv.DictReader(io.StringIO(text))
    heads = [head.strip().lower() for head in reader.fieldnames or ()]
    if missing := [name for name in ("part", "price") if name not in heads]:
        raise DataError(f"prices {path}: no column {missing[0]!r}", _HINT)
    if extra := [head for head in heads if head not in COLUMNS]:
        hint = unknown("column", extra[0], COLUMNS).hint
        raise DataError(f"prices {path}: unknown column {extra[0]!r}", hint)
    reader.fieldnames = heads
    defaults = {"currency": currency, "date": date, "source": source}
    prices = []
    for row in reader:
        where = f"prices {path}, line {reader.line_num}"
        values = {name: (value or "").strip() for name, value in row.items() if name is not None}
        if None in row:
            raise DataError(f"{where}: more cells than columns", _COMMA)
        if not values.get("price"):
            continue
        prices.append(_price(values, defaults, where))
    return tuple(prices)


def _price(values: dict[str, str], defaults: dict[str, str], where: str) -> Price:
    for name, value in defaults.items():
        if not values.get(name):
            if not value:
                raise DataError(
                    f"{where}: no {name}", f"add a column {name}, or --{name} for all rows"
                )
            values[name] = value
    values = {name: value for name, value in values.items() if value}
    if values.get("kind", "") not in _KINDS:
        raise DataError(f"{where}: no kind is called {values['kind']!r}", f"of {', '.join(_KINDS)}")
    try:
        row = _Row.model_validate(values)
    except ValidationError as error:
        hint = _COMMA if error.errors()[0]["loc"] == ("price",) else ""
        raise invalid(error, where, _Row, hint or None) from None
    return Price(**row.model_dump())


def add_prices(new: Sequence[Price], path: Path | None = None) -> tuple[int, Path]:
    """Add rows that are not there yet; how many, and the file.  Raises StoreError."""
    where = path or default_path()
    old = read_prices(where) if where.exists() else ()
    fresh = [price for price in dict.fromkeys(new) if price not in old]
    if fresh:
        where.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(where, to_csv([*old, *fresh]))
    return len(fresh), where


def to_csv(prices: Iterable[Price]) -> str:
    """Return prices as the text of a CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for price in prices:
        writer.writerow([getattr(price, name) for name in COLUMNS])
    return out.getvalue()


def template() -> str:
    """Return a CSV of all parts of the catalog, with the prices to be filled in."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for kind, name in all_names():
        writer.writerow([name, "", "", "", "", kind, "piece"])
    return out.getvalue()


def newest(prices: Iterable[Price]) -> tuple[Price, ...]:
    """Return the newest price of each thing in each currency, the later row of one day."""
    latest: dict[tuple[str, str, str, str], Price] = {}
    for price in prices:
        key = normalise(price.part), price.currency, price.per, price.kind
        if key not in latest or price.date >= latest[key].date:
            latest[key] = price
    return tuple(latest.values())


def price_of(
    prices: Iterable[Price], name: str, currency: str, *, per: Per = "piece", kind: str = ""
) -> Price | None:
    """Return the newest price of ``name``, or None."""
    normalised_name = normalise(name)
    matching_prices = [
        price
        for price in newest(prices)
        if normalise(price.part) == normalised_name
        and (price.currency, price.per) == (currency, per)
        and (not kind or price.kind in (kind, ""))
    ]
    return max(matching_prices, key=lambda price: price.date, default=None)


def currency_of(text: str) -> str:
    """Return a currency's three letters.  Raises UsageError for anything else."""
    word = text.strip().upper()
    if len(word) != 3 or not word.isascii() or not word.isalpha():
        raise UsageError(f"not a currency: {text!r}", "three letters, as CNY, USD or EUR")
    return word
