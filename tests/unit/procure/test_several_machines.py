"""A budget for a cluster: machines, layout on a slow and a fast network, days and energy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tomli_w

from trainrig.procure.build_rules import check_build
from trainrig.procure.parts_list import build_of

MODEL = "gpt2:num_layers=48,hidden=4096,num_heads=32,max_positions=2048"
"""9.7 billion parameters in its blocks."""
FOUR = {
    "name": "four 4090s",
    "currency": "CNY",
    "gpu": [{"part": "RTX 4090 blower, two slots", "count": 4, "price": 16000}],
    "board": [{"part": "ASRock Rack ROMED8-2T", "price": 5200}],
    "cpu": [{"part": "AMD EPYC 7443P", "price": 5000}],
    "ram": [{"part": "DDR4-3200 RDIMM 32 GiB", "count": 8, "price": 450}],
    "psu": [{"part": "SilverStone HELA 2050 Platinum", "count": 2, "price": 3500}],
    "case": [{"part": "Open frame for twelve cards on risers", "price": 1500}],
    "cooling": [{"part": "Noctua NH-U14S TR4-SP3", "price": 600}],
    "disk": [{"part": "Samsung 990 PRO 4 TB", "count": 2, "price": 2200}],
    "wiring": {"psu_sync": True},
}


@pytest.fixture
def machine(tmp_path: Path) -> str:
    path = tmp_path / "machine.toml"
    path.write_text(tomli_w.dumps(FOUR))
    return str(path)


def test_1500000_cny_for_a_10b_model_on_10_and_100_gbps(trainrig, machine: str) -> None:
    words = ("--budget", "1.5e6", "--tokens", "200e9", "--model", MODEL)
    nets = ("--network", "10=1500", "--network", "100=9000")
    code, out, _ = trainrig("build", "cluster", machine, *words, *nets, "--json")
    slow, fast = json.loads(out)
    assert code == 0
    assert (slow["affordable"], fast["affordable"]) == (16, 14)  # of 92,800 and of 100,300
    for one in (slow, fast):
        assert one["price"] <= 1.5e6 and one["gpus"] == 4 * one["machines"]
        low, high = one["interval"]["days"]
        assert low < one["days"] < high
        assert one["kwh"] == pytest.approx(one["days"] * 24 * one["watts"] / 1000)
        sizes = one["layout"]
        assert sizes["tp"] * sizes["pp"] * sizes["cp"] * sizes["dp"] == one["gpus"]
    assert fast["days"] < slow["days"] and fast["kwh"] < slow["kwh"]
    assert 20 < fast["days"] < 60 and 40 < slow["days"] < 140


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "how much money"),
        (("--budget", "1e6", "--tokens", "1e9"), "which networks?"),
        (("--budget", "1e6", "--tokens", "1e9", "--network", "fast"), "not a network"),
        (("--budget", "1e3", "--tokens", "1e9", "--network", "10=5", "--model", "gpt2"), "buys no"),
    ],
)
def test_what_is_missing_is_asked_for(trainrig, machine: str, words, said) -> None:
    code, out, err = trainrig("build", "cluster", machine, *words)
    assert (code, out) == (2, "") and said in err and len(err.strip().splitlines()) <= 2


def test_the_machine_is_legal() -> None:
    assert check_build(build_of(FOUR, "list")).legal
