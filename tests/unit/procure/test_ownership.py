"""What owning and renting cost: known break-evens, sums that add up, what is not counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainrig.errors import UsageError
from trainrig.procure.cost_json import cost_dict
from trainrig.procure.goodput import Failures
from trainrig.procure.ownership import HOURS_A_YEAR, Terms, ask_costs, listed_terms
from trainrig.procure.price_list import parse_prices
from trainrig.procure.training_rate import TrainingRate
from trainrig.record import Kind, Record
from trainrig.store import create_run


def asked(**terms):
    return ask_costs(Terms(**terms), "USD")


# ---- the case that must come out


def test_32_an_hour_against_200_k_breaks_even_in_about_260_days_and_24_per_cent(trainrig) -> None:
    words = ("--buy", "200000", "--rent-per-hour", "32", "--years", "3")
    code, out, _ = trainrig("cost", *words, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["break_even_days"] == pytest.approx(260.4, abs=0.1)
    assert found["break_even_utilisation"] == pytest.approx(0.238, abs=0.001)
    assert found["ways"]["buy"]["total"] == 200_000
    assert found["ways"]["rent"]["total"] == 32 * 3 * 365 * 24


def test_150_k_breaks_even_sooner() -> None:
    found = cost_dict(asked(buy=150_000, rent_per_hour=32))
    assert found["break_even_days"] == pytest.approx(195.3, abs=0.1)


# ---- arithmetic


def test_parts_of_owning_add_up_by_hand() -> None:
    found = asked(
        buy=100_000, years=2, utilisation=0.5, resale=0.3, watts=5000, kwh_price=0.1, pue=1.5,
        hosting_per_month=200, staff_hours_per_month=4, staff_rate=50,
    )  # fmt: skip
    way = found.way("buy")
    assert way is not None
    hours = 2 * HOURS_A_YEAR * 0.5
    assert dict(way.parts) == pytest.approx(
        {"price": 100_000, "resale": -30_000, "electricity": 5 * 1.5 * 0.1 * hours,
         "hosting": 4800, "staff": 4800}
    )  # fmt: skip
    assert way.total == pytest.approx(sum(size for _, size in way.parts))
    assert way.per_hour == pytest.approx(way.total / hours)


def test_interest_is_that_of_a_loan() -> None:
    """Three payments of a loan of 1,000 at 10 %: 402.11 each, a banker's table."""
    way = asked(buy=1000, years=3, interest=0.1).way("buy")
    assert way is not None and way.total == pytest.approx(3 * 402.115, abs=0.01)


def test_at_break_even_both_ways_have_cost_the_same() -> None:
    terms = {
        "buy": 250_000,
        "rent_per_hour": 28,
        "watts": 9000,
        "kwh_price": 0.15,
        "pue": 1.4,
        "hosting_per_month": 900,
        "interest": 0.04,
        "resale": 0.2,
    }
    share = cost_dict(asked(**terms))["break_even_utilisation"]
    there = asked(**terms, utilisation=share)
    buy, rent = there.way("buy"), there.way("rent")
    assert buy is not None and rent is not None
    assert buy.total == pytest.approx(rent.total)


def test_rent_that_is_cheaper_than_the_electricity_never_breaks_even() -> None:
    found = cost_dict(asked(buy=1000, rent_per_hour=0.1, watts=5000, kwh_price=0.3))
    assert found["break_even_days"] is None and found["break_even_utilisation"] is None


def test_reserved_is_paid_for_every_hour_and_rent_for_those_of_use() -> None:
    found = asked(rent_per_hour=10, reserved_per_hour=6, rent_per_month=4000, utilisation=0.5)
    totals = {way.name: way.total for way in found.ways}
    every = 3 * HOURS_A_YEAR
    assert totals == pytest.approx({"rent": 5 * every, "reserved": 6 * every, "month": 144_000})


def test_interruptions_make_a_useful_spot_hour_dearer() -> None:
    calm = asked(rent_per_hour=10, spot_per_hour=4).way("spot")
    taken = asked(rent_per_hour=10, spot_per_hour=4, interruptions_per_day=12).way("spot")
    assert calm is not None and taken is not None
    assert calm.per_hour == pytest.approx(4) and 4.2 < taken.per_hour < 10


def test_the_predictor_s_interval_goes_through() -> None:
    speeds = {"tokens_per_s": 1000, "low": 800, "high": 1250}
    rate = TrainingRate(**speeds, gpus=8, nodes=1, gpu_watts=None, source="x")
    found = ask_costs(Terms(rent_per_hour=36), "USD", rate=rate, tokens=1e9)
    way = found.way("rent")
    assert way is not None
    assert found.per_million_tokens(way) == pytest.approx((10, 8, 12.5))
    assert found.of_training(way) == pytest.approx((10_000, 8_000, 12_500))
    days = found.days_of_training()
    assert days == pytest.approx((1e6 / 86400, 8e5 / 86400, 1.25e6 / 86400))


def test_the_tornado_has_the_widest_first_and_only_what_counts() -> None:
    sensitivities = asked(buy=200_000, rent_per_hour=32, watts=9000, kwh_price=0.1).sensitivities
    assert [one.size for one in sensitivities] == sorted(
        (one.size for one in sensitivities), reverse=True
    )
    assert "rent_per_hour" not in {one.term for one in sensitivities}  # of the cheapest: buying
    buy = next(one for one in sensitivities if one.term == "buy")
    assert buy.high - buy.low == pytest.approx(0.4 * 200_000 / (3 * HOURS_A_YEAR))


def test_failures_take_their_share_of_every_way() -> None:
    calm = asked(buy=1000, rent_per_hour=1)
    failing = asked(
        buy=1000, rent_per_hour=1, failures=Failures(mtbf_s=3600, checkpoint_s=60, restart_s=60)
    )
    for name in ("buy", "rent"):
        before, after = calm.way(name), failing.way(name)
        assert before is not None and after is not None
        assert after.per_hour == pytest.approx(before.per_hour / failing.terms.goodput)
    assert 0.7 < failing.terms.goodput < 0.9


# ---- nothing is invented


def test_without_a_price_it_asks(trainrig) -> None:
    code, out, err = trainrig("cost", "--years", "3")
    assert (code, out) == (2, "") and "which prices?" in err and "invents none" in err


def test_what_has_no_number_is_named() -> None:
    assert {text.partition(":")[0] for text in asked(buy=1, rent_per_hour=1).not_counted} == {
        *("electricity", "hosting", "staff", "resale", "interest", "failures"),
    }


LIST = """part,price,currency,date,source,kind,per
8xH100,280000,USD,2026-11-01,a quote,machine,piece
8xH100,24,USD,2026-11-01,a cloud,cloud,hour
8xH100,11,USD,2026-11-01,a cloud,spot,hour
grid,0.11,USD,2026-10-01,the utility,electricity,kWh
"""


def test_a_machine_s_prices_come_from_the_list(tmp_path: Path, trainrig) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(LIST)
    assert listed_terms(parse_prices(path), "8xh100", "USD") == {
        "buy": 280_000, "rent_per_hour": 24, "spot_per_hour": 11, "kwh_price": 0.11,
    }  # fmt: skip
    with pytest.raises(UsageError, match="9xH100"):
        listed_terms(parse_prices(path), "9xH100", "USD")
    words = ("--machine", "8xH100", "--currency", "USD", "--prices", str(path), "--json")
    code, out, _ = trainrig("cost", *words)
    assert code == 0 and set(json.loads(out)["ways"]) == {"buy", "rent", "spot"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--buy", "-1"), "buy = -1"),
        (("--buy", "1", "--utilisation", "2"), "utilisation = 2"),
        (("--buy", "1", "--pue", "0.5"), "pue = 0.5"),
        (("--buy", "1", "--years", "0"), "years = 0"),
        (("--buy", "nan"), "buy = nan"),
        (("--buy", "1", "--mtbf-hours", "0"), "failures"),
        (("--buy", "1", "--restart-seconds", "5"), "how often"),
        (("--buy", "1", "--currency", "dollars"), "not a currency"),
        (("--buy", "1", "--measured", "nowhere"), "no such run"),
        (("--buy", "1", "--model", "llama-7B", "--tokens", "1e9"), "missing --on"),
        (("--buy", "1", "--model", "llama-7B", "--on", "RTX 4090"), "does not fit"),
        (("--machine", "x"), "currency"),
    ],
)
def test_a_wrong_number_is_one_line_and_a_hint(trainrig, words, said) -> None:
    code, out, err = trainrig("cost", *words)
    assert (code, out) == (2, "") and said in err and len(err.strip().splitlines()) <= 2


def test_gpus_and_days_that_contradict_each_other_are_both_named(trainrig) -> None:
    words = ("--model", "gpt2", "--on", "RTX 4090", "--gpus", "1", "--tokens", "1e12")
    code, out, err = trainrig("cost", *words, "--days", "3", "--rent-per-hour", "0.5")
    assert (code, out) == (2, "") and "--gpus 1" in err and "--days 3" in err
    assert len(err.strip().splitlines()) == 2
    enough = ("--days", "9000", "--rent-per-hour", "0.5", "--json")
    code, out, _ = trainrig("cost", *words, *enough)
    found = json.loads(out)["training"]
    low, high = found["days_interval"]
    assert code == 0 and found["in_time"] and low < found["days"] < high


def test_a_measured_training_that_ends_too_late_is_a_finding(trainrig, tmp_path: Path) -> None:
    case = {"model": "gpt2", "nproc": 1}
    rate = Record(
        kind=Kind.MEASURED, benchmark="training", case=case, metric="token_rate",
        unit="token/s", value=1000.0, device="RTX 4090", device_count=1,
    )  # fmt: skip
    with create_run(tmp_path, "train", {}) as run:
        run.append(rate)
    words = ("--measured", str(run.path), "--tokens", "1e9", "--rent-per-hour", "1", "--json")
    code, out, _ = trainrig("cost", *words, "--days", "3")
    assert code == 1 and json.loads(out)["training"]["in_time"] is False


# ---- one training alone


ONE_TRAINING = (
    *("cost", "--model", "gpt2", "--on", "RTX 4090", "--gpus", "1", "--tokens", "1e9"),
    *("--buy", "3000", "--rent-per-gpu-hour", "0.5"),
)


def test_a_machine_for_one_training_of_hours_is_dearer_than_its_rent(trainrig) -> None:
    code, out, _ = trainrig(*ONE_TRAINING, "--json")
    found = json.loads(out)
    hours = found["training"]["days"] * 24.0
    assert code == 0 and found["cheapest"] == "rent" and hours < 100.0
    assert found["terms"]["utilisation"] == pytest.approx(hours / (3 * 8760.0))
    assert found["ways"]["rent"]["training"] == pytest.approx(0.5 * hours)
    assert found["ways"]["buy"]["training"] == pytest.approx(found["ways"]["buy"]["total"])
    assert any("utilisation" in text for text in found["presumed"])


def test_a_stated_utilisation_holds_beside_a_training(trainrig) -> None:
    found = json.loads(trainrig(*ONE_TRAINING, "--utilisation", "1", "--json")[1])
    assert found["cheapest"] == "buy" and found["terms"]["utilisation"] == 1
    assert 0.0 < found["break_even_hours"] < 3 * 8760.0
    share = found["break_even_utilisation"]
    assert found["break_even_hours"] == pytest.approx(share * 3 * 8760.0)


def test_a_training_that_outlasts_the_years_uses_all_hours() -> None:
    rate = TrainingRate(tokens_per_s=1.0, low=1.0, high=1.0, gpus=1, nodes=1, gpu_watts=None,
                        source="")  # fmt: skip
    found = ask_costs(Terms(buy=1.0), "USD", rate=rate, tokens=1e12, is_one_training=True)
    assert found.terms.utilisation == 1.0


def test_amounts_carry_a_currency_that_is_presumed_and_said(trainrig) -> None:
    code, out, _ = trainrig("cost", "--buy", "3000", "--rent-per-hour", "0.5")
    assert code == 0 and "3,000 USD" in out and "--currency has another" in out
    assert json.loads(trainrig("cost", "--buy", "3000", "--json")[1])["currency"] == "USD"


def test_days_and_no_gpus_takes_whole_machines(trainrig) -> None:
    words = ("--model", "llama-7B", "--tokens", "140e9", "--days", "60", "--on", "H100 SXM5 80GB")
    code, out, _ = trainrig("cost", *words, "--rent-per-machine-hour", "24", "--json")
    found = json.loads(out)["training"]
    assert code == 0 and found["days"] <= 60 and found["gpus"] == 8 * found["machines"]
