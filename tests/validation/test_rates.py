"""The rates against published figures: as near as stated, and blind to who measured."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from validation.rates import TABLES, quantile

from trainrig.prediction.rates.from_chip import constants
from trainrig.record import Record
from validation import rates

# Table: figures, median and 90th percentile of |predicted/measured - 1| that docs/definitions.md
# states, a little loosened.
STATED = {
    "matmul": (700, 0.07, 0.33),
    "stream": (45, 0.06, 0.20),
    "collective": (250, 0.075, 0.26),
    "attention": (55, 0.16, 0.35),
}


@pytest.fixture
def constants_restored() -> Iterator[None]:
    """A refit changes the constants; they are put back afterwards."""
    before = {path: rates.value_at(path) for table in rates.FITTED.values() for path in table}
    yield
    for path, value in before.items():
        rates.put(path, value)
    rates.forget()


def errors(table: str) -> tuple[int, float, float]:
    found = [one.error for one in TABLES[table]()]
    return len(found), quantile(found, 0.5), quantile(found, 0.9)


@pytest.mark.parametrize("table", sorted(STATED))
def test_errors_are_as_stated(table: str) -> None:
    num, median, most = errors(table)
    least, median_stated, most_stated = STATED[table]
    assert num >= least
    assert median <= median_stated
    assert most <= most_stated


@pytest.mark.parametrize(
    ("table", "path"),
    [
        ("matmul", "class.blackwell.power"),
        ("stream", "class.ada.bandwidth"),
        ("collective", "link.cube.share"),
        ("attention", "class.ga100.own"),
    ],
)
def test_a_wrong_constant_is_seen(constants_restored: None, table: str, path: str) -> None:
    rates.put(path, 0.6 * rates.value_at(path))
    before = rates.loss(rates.compared(table))
    rates.fit(table, rounds=4)
    assert rates.loss(rates.compared(table)) < 0.93 * before  # and refitting finds its way back


def test_who_measured_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources and notes are shuffled among the figures: every prediction stays."""
    told = [[one.predicted for one in TABLES[table]()] for table in ("matmul", "stream")]
    told.append([one.predicted for one in TABLES["collective"]()])
    honest = rates.published_for

    def shuffled(benchmark: str, device: str | None = None) -> tuple[Record, ...]:
        records = honest(benchmark, device)
        others = random.Random(7).sample(records, len(records))
        return tuple(
            _with_words_of(record, other) for record, other in zip(records, others, strict=True)
        )

    monkeypatch.setattr(rates, "published_for", shuffled)
    for table, before in zip(("matmul", "stream", "collective"), told, strict=True):
        assert [one.predicted for one in TABLES[table]()] == before


def _with_words_of(record: Record, other: Record) -> Record:
    conditions: dict[str, Any] = {k: v for k, v in record.conditions.items() if k != "notes"}
    if "notes" in other.conditions:
        conditions["notes"] = other.conditions["notes"]
    return dataclasses.replace(record, source=other.source, conditions=conditions)


def test_constants_are_by_class_and_name_no_source() -> None:
    words = " ".join(_names(constants())).lower()
    assert not {"simumax", "stas", "vtrain", "mli", "fryer"} & set(words.split())
    assert len(_names(constants())) < 250


def _names(table: dict[str, Any]) -> list[str]:
    found = []
    for name, value in table.items():
        found += [name, *(_names(value) if isinstance(value, dict) else [])]
    return found


def test_the_command_prints_and_writes_what_it_finds(
    constants_restored: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert rates.main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{table} " in f"\n{printed}" for table in STATED)
    copy = tmp_path / "rates.toml"
    copy.write_text(rates.PATH.read_text(encoding="utf-8"), encoding="utf-8")
    rates.PATH = copy
    rates.put("class.volta.cap", 0.7777)
    rates.write()
    text = copy.read_text(encoding="utf-8")
    assert "cap = 0.778\n" in text
    assert "# s, shortest kernel" in text  # comments stay


def test_an_error_has_no_sign() -> None:
    figure = next(TABLES["stream"]())
    low, high = (dataclasses.replace(figure, predicted=f * figure.measured) for f in (0.75, 1.25))
    assert low.ratio == pytest.approx(0.75)
    assert low.error == pytest.approx(0.25) and high.error == pytest.approx(0.25)
