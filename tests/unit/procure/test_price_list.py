"""Prices are dated, of the user, and never invented; a list is only added to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainrig.errors import DataError
from trainrig.procure.price_list import add_prices, parse_prices, price_of, read_prices, template

HEAD = "part,price,currency,date,source\n"
ROW = "Corsair AX1600i,3999,CNY,2026-11-01,shop.example\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def csv(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "shop.csv"
    path.write_text(text)
    return path


def test_the_newest_row_counts_and_older_ones_stay(tmp_path: Path) -> None:
    first = parse_prices(csv(tmp_path, HEAD + ROW))
    later = parse_prices(csv(tmp_path, HEAD + ROW.replace("3999", "3799").replace("-01,", "-20,")))
    assert add_prices(later)[0] == 1 and add_prices(first)[0] == 1
    assert add_prices(first)[0] == 0
    kept = read_prices()
    found = price_of(kept, "corsair ax1600i", "CNY")
    assert len(kept) == 2 and found is not None and found.price == 3799
    assert price_of(kept, "Corsair AX1600i", "USD") is None


def test_without_a_list_there_are_no_prices() -> None:
    assert read_prices() == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,cost\n", "no column 'part'"),
        (HEAD + "x,1,CNY,2026-11-01\n", "no source"),
        (HEAD + "x,-1,CNY,2026-11-01,s\n", "line 2: price"),
        (HEAD + "x,1,yuan,2026-11-01,s\n", "line 2: currency"),
        (HEAD + "x,1,CNY,yesterday,s\n", "line 2: date"),
        (HEAD + "x,1,299,CNY,2026-11-01,s\n", "more cells"),
        ("part,price,colour\n", "unknown column 'colour'"),
        (HEAD[:-1] + ",kind\nx,1,CNY,2026-11-01,s,cat\n", "no kind is called 'cat'"),
    ],
)
def test_a_broken_row_is_named_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError) as error:
        parse_prices(csv(tmp_path, text))
    assert said in error.value.message and "\n" not in error.value.message


def test_a_template_has_every_part_and_blank_rows_are_passed_over(tmp_path: Path) -> None:
    assert "Corsair AX1600i" in template()
    assert parse_prices(csv(tmp_path, template())) == ()


def test_import_list_and_check_work_together(trainrig, tmp_path: Path) -> None:
    path = csv(tmp_path, "part,price\nCorsair AX1600i,3999\n")
    code, out, err = trainrig("prices", "import", str(path))
    assert code == 2 and "line 2: no currency" in err
    given = ("--currency", "CNY", "--date", "2026-11-20", "--source", "shop")
    code, out, _ = trainrig("prices", "import", str(path), *given, "--json")
    assert code == 0 and json.loads(out)["added"] == 1
    code, out, _ = trainrig("prices", "list", "--json")
    assert json.loads(out)[0]["date"] == "2026-11-20"
    build = tmp_path / "machine.toml"
    build.write_text('currency = "CNY"\n[[psu]]\npart = "Corsair AX1600i"\ncount = 2\n')
    code, out, _ = trainrig("build", "check", str(build), "--json")
    found = json.loads(out)
    assert code == 1 and found["total"] == 7998 and found["currency"] == "CNY"
    assert found["parts"][0]["priced"] == "shop, 2026-11-20"
    assert found["legal"] is False and found["findings"][0]["rule"] == "missing-part"
