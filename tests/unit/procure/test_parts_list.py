"""A parts list that is wrong is one line with a hint; what it leaves out is not invented."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

GPU = '[[gpu]]\npart = "ASUS TUF Gaming RTX 4090"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no parts"),
        ("gpu = 3\n", "gpu is no table"),
        ("[[gpu\n", "parts list"),
        ("[[gpus]]\npart = 'x'\n", "gpus"),
        ("[[gpu]]\nname = 'x'\n", "[[gpu]]: part"),
        (GPU + "count = 0\n", "count"),
        (GPU + "count = 1e9\n", "count"),
        (GPU + "price = -1\n", "price"),
        (GPU + "price = 5\n", "in which money"),
        (GPU + "price = nan\n", "price"),
        ('currency = "yuan"\n' + GPU, "not a currency"),
        (GPU + "[room]\nvolts = 5\n", "volts in [room] is 5, not 90 or more"),
        (GPU + "[room]\ncolour = 5\n", "unknown key 'colour' in [room]"),
        (GPU + '[[disk]]\npart = "Samsung 990 PRO 4 TB"\n[use]\nmodel = "gpt9"\n', "gpt9"),
        ('[[gpu]]\npart = "RTX 4090"\n', "is a chip"),
        (GPU.replace("TUF", "TOUGH"), "unknown gpu"),
    ],
)
def test_a_wrong_list_is_one_line_and_a_hint(
    trainrig, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(text)
    code, out, err = trainrig("build", "check", str(file))
    assert (code, out) == (2, "") and said in err and "Traceback" not in err
    assert len(err.strip().splitlines()) <= 2


def test_a_list_that_is_not_there(trainrig, tmp_path: Path) -> None:
    code, _, err = trainrig("build", "check", str(tmp_path / "no.toml"))
    assert code == 2 and "no.toml" in err


def test_a_list_without_prices_is_checked_and_has_no_total(trainrig, tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(GPU)
    code, out, _ = trainrig("build", "check", str(file), "--json")
    found = json.loads(out)
    assert code == 1 and found["total"] is None
    assert found["unpriced"] == ["ASUS TUF Gaming RTX 4090"]
    code, out, _ = trainrig("build", "check", str(file))
    assert "trainrig prices import" in " ".join(out.split())
