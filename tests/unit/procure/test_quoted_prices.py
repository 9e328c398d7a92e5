"""Prices as people quote them: of a GPU's hour or a machine's, echoed; electricity shown."""

from __future__ import annotations

import json

import pytest

from trainrig.procure.cost_json import cost_dict
from trainrig.procure.ownership import Terms, ask_costs
from trainrig.procure.quoted_prices import presumed_kwh, take_quoted

RIG = ("--model", "llama-7B", "--on", "H100 SXM5 80GB", "--gpus", "64", "--tokens", "2e12")


def test_a_gpu_hour_is_multiplied_by_the_gpus_and_echoed(trainrig) -> None:
    words = ("cost", *RIG, "--rent-per-gpu-hour", "2.5", "--currency", "USD")
    _, out, _ = trainrig(*words)
    assert "2.50 USD per GPU-hour × 64 GPUs = 160 USD an hour" in out
    found = json.loads(trainrig(*words, "--json")[1])
    days = found["training"]["days"]
    assert found["ways"]["rent"]["training"] == pytest.approx(days * 24 * 64 * 2.5)
    assert found["quoted"] == [
        {"way": "rent", "price": 2.5, "per": "GPU-hour", "count": 64, "per_hour": 160}
    ]


def test_a_machine_hour_is_of_eight_gpus(trainrig) -> None:
    _, out, _ = trainrig("cost", *RIG, "--rent-per-machine-hour", "20", "--currency", "USD")
    assert "20 USD per machine-hour × 8 machines = 160 USD an hour" in out


@pytest.mark.parametrize("way", ["rent", "reserved", "spot"])
def test_an_hour_of_what_is_refused_with_both_spellings(trainrig, way) -> None:
    code, out, err = trainrig("cost", *RIG, f"--{way}-per-hour", "2.5")
    assert (code, out) == (2, "")
    assert f"--{way}-per-gpu-hour 2.5" in err and f"--{way}-per-machine-hour 2.5" in err


def test_an_hour_is_taken_where_the_two_readings_are_one(trainrig) -> None:
    words = ("--on", "RTX 4090", "--gpus", "1", "--rent-per-hour", "0.5")
    assert trainrig("cost", *words)[0] == 0
    assert take_quoted({"rent_per_hour": 32.0}, None)[0].per_machine == 32.0


def test_a_gpu_hour_asks_how_many_gpus_a_machine_has(trainrig) -> None:
    code, _, err = trainrig("cost", "--rent-per-gpu-hour", "2.5")
    assert code == 2 and "how many GPUs" in err and "--gpus" in err


def test_two_prices_of_one_way_are_refused_by_both_names(trainrig) -> None:
    words = ("--rent-per-gpu-hour", "2", "--rent-per-machine-hour", "16")
    code, _, err = trainrig("cost", *RIG, *words)
    assert code == 2 and "--rent-per-gpu-hour and --rent-per-machine-hour" in err


def test_gpus_without_a_model_are_as_many_machines_as_they_fill(trainrig) -> None:
    words = ("--on", "H100 SXM5 80GB", "--gpus", "16", "--rent-per-gpu-hour", "2", "--json")
    found = json.loads(trainrig("cost", *words)[1])
    assert found["terms"]["machines"] == 2 and found["quoted"][0]["per_hour"] == 32


# ---- electricity


def test_electricity_is_presumed_shown_and_switched_off_by_0(trainrig) -> None:
    words = ("cost", "--buy", "2000", "--rent-per-hour", "0.5", "--on", "RTX 4090")
    words = (*words, "--currency", "USD", "--json")
    found = json.loads(trainrig(*words)[1])
    assert found["ways"]["buy"]["parts"]["electricity"] == pytest.approx(0.45 * 0.13 * 3 * 8760)
    assert any("0.13 USD a kWh" in text and "--kwh-price" in text for text in found["presumed"])
    found = json.loads(trainrig(*words, "--kwh-price", "0")[1])
    assert "electricity" not in found["ways"]["buy"]["parts"] and found["presumed"] == []


def test_a_kwh_is_presumed_in_the_answer_s_currency_or_not_at_all() -> None:
    owned = Terms(buy=1000.0, watts=500.0)
    assert ask_costs(owned, "EUR").terms.kwh_price == pytest.approx(0.2)
    assert ask_costs(owned, "ISK").terms.kwh_price is None
    assert any("electricity" in text for text in ask_costs(owned, "ISK").not_counted)
    assert presumed_kwh("") == presumed_kwh("USD")


def test_an_unknown_power_stays_unknown(trainrig) -> None:
    """The catalog has no watts of a TPU v4."""
    words = ("--model", "gpt2", "--on", "TPU v4", "--tokens", "1e9", "--json")
    assert json.loads(trainrig("predict", *words)[1])["kwh"] is None
    found = json.loads(trainrig("cost", *words, "--buy", "9000")[1])
    assert found["training"]["kwh"] is None and found["terms"]["watts"] is None
    assert any("power is not known" in text for text in found["not_counted"])


def test_a_card_of_the_same_silicon_is_no_cheaper_a_token(trainrig) -> None:
    """An unsure 250 W made an A800 slower than the A100 that it is, and better per watt."""
    words = ("--model", "llama-7B", "--recompute", "full", "--json")
    several = trainrig("predict", *words, "--on", "A800 PCIe 80GB", "--on", "A100 PCIe 80GB")[1]
    ours, theirs = json.loads(several)["machines"]
    assert ours["tokens_per_s_per_w"] == pytest.approx(theirs["tokens_per_s_per_w"], rel=0.02)


# ---- break-even


def test_break_even_states_its_utilisation(trainrig) -> None:
    words = ("cost", "--buy", "200000", "--rent-per-hour", "32", "--utilisation", "0.5")
    _, out, _ = trainrig(*words)
    assert "260 days at 100 % of the hours" in out and "521 days at 50 %" in " ".join(out.split())


def test_break_even_at_use_counts_idle_hours_of_what_is_paid_anyway() -> None:
    terms = Terms(buy=1000.0, rent_per_hour=1.0, reserved_per_hour=1.0, utilisation=0.5)
    ways = cost_dict(ask_costs(terms, ""))["ways"]
    assert ways["rent"]["break_even_days_used"] == pytest.approx(1000 / 12)
    assert ways["reserved"]["break_even_days_used"] == pytest.approx(1000 / 24)
