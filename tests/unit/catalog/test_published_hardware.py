"""hardware.csv says what the catalog says of each printed name."""

from __future__ import annotations

import pytest

from trainrig.catalog.chip import peak
from trainrig.catalog.lookup import candidates, find_chip
from trainrig.catalog.published import tables, training
from trainrig.errors import DataError

ROWS = [row for _, row in tables.read_rows(tables.HARDWARE)]


def test_a_printed_name_leads_to_the_chip_that_it_means() -> None:
    for row in ROWS:
        check_row(row)


def check_row(row: tables.Row) -> None:
    printed = row["hardware"].removesuffix(" (device-local copy)")
    meant = find_chip(row["device"] if row["note"] else printed)
    assert row["device"] == (meant.name if meant else printed)
    chips = (meant,) if meant else candidates(row["device"])
    has_tf32 = bool(chips) and all(peak(chip, "tf32") for chip in chips)
    assert row["tf32"] == ("yes" if has_tf32 else "no")


def test_every_name_of_the_tables_stands_in_it_once() -> None:
    paths = [*(tables.FOLDER / f"{name}.csv" for name in tables.TABLES), training.PATH]
    printed = {row["hardware"] for path in paths for _, row in tables.read_rows(path)}
    assert sorted(row["hardware"] for row in ROWS) == sorted(printed)


def test_a_name_that_it_lacks_is_refused() -> None:
    with pytest.raises(DataError, match="no hardware 'RTX 9090'"):
        tables.device_name("RTX 9090")
