"""A cost is of what was said: nothing is guessed, and nothing is free for want of a number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainrig.errors import DataError
from trainrig.procure.load_rules import disk_need
from trainrig.procure.ownership import Terms, ask_costs, listed_terms
from trainrig.procure.parts_list import Use, build_of
from trainrig.procure.price_list import parse_prices
from trainrig.record import Kind, Record
from trainrig.store import create_run
from trainrig.units import format_money

GPT2 = "gpt2:num_layers=2,hidden=128,num_heads=4,vocab=8192"
PARTS = """currency = "USD"
[[gpu]]
part = "ASUS TUF Gaming RTX 4090"
price = 1600
[[psu]]
part = "MSI MEG Ai1300P PCIE5"
"""


def rate(model: str, value: float, gpus: int = 1, **more: Any) -> Record:
    fields: dict[str, Any] = {
        "kind": Kind.MEASURED,
        "benchmark": "training",
        "case": {"model": model, "nproc": gpus},
        "metric": "token_rate",
        "unit": "token/s",
        "value": value,
        "device": "RTX 4090",
        "device_count": gpus,
    }
    return Record(**(fields | more))


def run_of(folder: Path, *records: Record) -> str:
    with create_run(folder, "train", {}) as run:
        for one in records:
            run.append(one)
    return str(run.path)


def asked(trainrig, *words: str) -> dict[str, Any]:
    code, out, err = trainrig("cost", *words, "--json")
    assert code == 0, err
    return json.loads(out)


# ---- measured


def test_a_run_s_rate_and_watts_change_what_was_predicted(trainrig, tmp_path: Path) -> None:
    watts = rate(GPT2, 300.0, metric="power", unit="W")
    run = run_of(tmp_path, rate(GPT2, 5000.0), watts)
    words = ("--buy", "3000", "--kwh-price", "0.3", "--tokens", "1e9", "--measured", run)
    found = asked(trainrig, *words, "--model", GPT2, "--on", "RTX 4090", "--gpus", "1")
    rows = {row["what"]: row for row in found["changes"]}
    assert rows["tokens_per_s"]["measured"] == 5000 and rows["gpu_watts"]["measured"] == 300
    assert rows["joules_per_token"]["measured"] == pytest.approx(0.06)
    assert found["terms"]["watts"] == 300 and found["training"]["days"] == pytest.approx(
        2.3148, 1e-3
    )


def test_a_run_without_a_meter_does_not_make_electricity_free(trainrig, tmp_path: Path) -> None:
    run = run_of(tmp_path, rate(GPT2, 5000.0))
    words = ("--buy", "3000", "--kwh-price", "0.3", "--measured", run)
    found = asked(trainrig, *words, "--model", GPT2, "--on", "RTX 4090", "--gpus", "1")
    rows = {row["what"]: row for row in found["changes"]}
    assert rows["per_useful_hour"]["change"] == 0.0 and "gpu_watts" not in rows
    assert "electricity" in found["ways"]["buy"]["parts"]


def test_the_measured_model_is_the_one_that_is_asked_about(trainrig, tmp_path: Path) -> None:
    run = run_of(tmp_path, rate(GPT2, 5000.0), rate("gpt2", 70.0))
    words = ("--rent-per-hour", "2", "--measured", run)
    assert asked(trainrig, *words, "--model", "gpt2")["training"]["tokens_per_s"] == 70
    code, _, err = trainrig("cost", *words)
    assert code == 2 and "which one?" in err
    code, _, err = trainrig("cost", *words, "--model", "llama-7B")
    assert code == 2 and "did not train llama-7B" in err


def test_measured_watts_of_cards_stand_in_the_parts_list_s(trainrig, tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(PARTS.replace('PCIE5"', 'PCIE5"\nprice = 300'))
    run = run_of(tmp_path, rate("gpt2", 70.0), rate("gpt2", 300.0, metric="power", unit="W"))
    words = ("--parts", str(tmp_path / "list.toml"))
    before = asked(trainrig, *words)["terms"]["watts"]
    after = asked(trainrig, *words, "--measured", run)["terms"]["watts"]
    assert before - after == pytest.approx((450 - 300) / 0.92)


# ---- asked, not guessed


def test_a_list_without_a_total_asks_for_the_price_that_lacks(trainrig, tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(PARTS)
    words = ("cost", "--parts", str(tmp_path / "list.toml"), "--rent-per-hour", "1")
    code, out, err = trainrig(*words)
    assert (code, out) == (2, "") and "MSI MEG Ai1300P PCIE5" in err
    assert trainrig(*words, "--buy", "2500")[0] == 0


def test_a_price_of_a_tflops_needs_the_number_of_gpus(trainrig) -> None:
    words = ("--buy", "280000", "--on")
    assert "price_per_tflops" not in asked(trainrig, *words, "H100 SXM5 80GB")
    eight = asked(trainrig, *words, "8x H100 SXM5 80GB")["price_per_tflops"]
    assert eight == pytest.approx(280_000 / (8 * 989.4), rel=1e-3)


def test_machines_that_the_gpus_are_not_are_refused(trainrig) -> None:
    words = ("--model", "gpt2", "--on", "RTX 4090", "--gpus", "2", "--rent-per-gpu-hour", "1")
    code, _, err = trainrig("cost", *words, "--machines", "3")
    assert code == 2 and "2 GPUs" in err and "1 machine" in err


def test_an_hour_of_no_kind_is_neither_spot_nor_reserved(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("part,price,currency,date,source,per\nbox,24,USD,2026-11-01,a cloud,hour\n")
    assert listed_terms(parse_prices(path), "box", "USD") == {"rent_per_hour": 24}


def test_what_an_hour_leaves_out_is_named() -> None:
    terms = Terms(buy=1.0, spot_per_hour=1.0, watts=1.0, kwh_price=1.0, gpus_alone=True)
    named = " ".join(ask_costs(terms, "USD").not_counted)
    assert "--interruptions-per-day" in named and "--pue" in named and "all but the GPUs" in named


def test_what_is_assumed_of_saving_is_said(trainrig) -> None:
    spot = Terms(spot_per_hour=1.0, interruptions_per_day=4.0)
    assert any("60 s and 300 s" in text for text in ask_costs(spot, "").not_counted)
    _, out, _ = trainrig("cost", "--rent-per-hour", "1", "--mtbf-hours", "100")
    assert "100 h; saving takes 1 min, a restart 5 min" in out


# ---- numbers at their ends


def test_the_least_interest_is_none_nearly() -> None:
    found = [
        ask_costs(Terms(buy=1e5, resale=0.3, interest=i), "").ways[0].total for i in (0, 1e-17)
    ]
    assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize(
    "words",
    [
        ("--mtbf-hours", "0.1", "--restart-seconds", "360000"),
        ("--spot-per-hour", "1", "--interruptions-per-day", "1e7"),
    ],
)
def test_a_machine_that_never_works_is_refused(trainrig, words) -> None:
    code, out, err = trainrig("cost", "--buy", "1", "--rent-per-hour", "1", *words)
    assert (code, out) == (2, "") and "no training ends" in err and "hint" in err


def test_a_small_price_keeps_its_digits() -> None:
    shown = [format_money(amount, "USD") for amount in (0.003267, 0.0572, 0.25, 0.0, 3.5, 34000.0)]
    assert shown == ["0.00327 USD", "0.0572 USD", "0.25 USD", "0 USD", "3.50 USD", "34,000 USD"]


# ---- files


def test_a_file_that_is_not_there_or_not_toml_is_one_line_and_a_hint(trainrig, tmp_path) -> None:
    (tmp_path / "x.toml").write_text("x = [")
    for words in (("build", "check", "nothere.toml"), ("build", "check", str(tmp_path / "x.toml")),
                  ("prices", "import", "nothere.csv")):  # fmt: skip
        code, out, err = trainrig(*words)
        assert (code, out) == (2, "") and "hint:" in err and "Errno" not in err


def test_a_price_with_a_comma_is_told_how_to_be_written(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text('part,price,currency,date,source\nx,"1,299",USD,2026-11-01,me\n')
    with pytest.raises(DataError) as raised:
        parse_prices(path)
    assert raised.value.hint and "no comma" in raised.value.hint


# ---- supplies, circuits, slots


def test_three_supplies_load_one_of_two_circuits_with_two_thirds() -> None:
    from trainrig.procure.build_rules import check_build

    def holds(supplies: int, amps: float) -> bool:
        content = {
            "gpu": [{"part": "ASUS Turbo RTX 3090", "count": 8}],
            "psu": [{"part": "Seasonic Prime TX-1300", "count": supplies}],
            "room": {"volts": 230, "breaker_amps": amps, "circuits": 2},
        }
        report = check_build(build_of(content, "list.toml"))
        return next(one for one in report.checks if one.rule == "breaker").severity == "ok"

    # 8 × 350 W + 60 W over 0.94 = 3,043 W; a circuit of 10 A carries 1,840 W for hours
    assert holds(2, 10) and not holds(3, 10) and holds(4, 10) and holds(3, 12)


def test_a_slot_of_one_lane_feeds_no_two_cards() -> None:
    from trainrig.procure.build_rules import check_build

    content = {
        "gpu": [{"part": "ASUS TUF Gaming RTX 3090", "count": 2}],
        "case": [{"part": "Open frame for eight cards on risers"}],
        "riser": [{"part": "PCIe 4.0 x16 to two x8 riser"}],
        "board": [
            {
                "part": "ASRock Rack ROMED8-2T",
                "slots": [{"position": 1, "lanes": 1, "generation": 4, "splits": [2]}],
            }
        ],
        "cpu": [{"part": "AMD EPYC 7443P"}],
    }
    assert not check_build(build_of(content, "list.toml")).legal


def test_tokens_of_a_large_vocabulary_take_four_bytes() -> None:
    """Llama 3 has 128,256 words, which two bytes do not number."""
    assert "1.00T tokens × 4 B" in disk_need(Use(model="llama3-8B", tokens=1e12))[1]
    assert "1.00T tokens × 2 B" in disk_need(Use(model="gpt2", tokens=1e12))[1]
    own = disk_need(Use(model="gpt2", tokens=1e12, bytes_per_token=3))[1]
    assert "1.00T tokens × 3 B" in own


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("--tokens", "100B"), "--tokens needs --model"),
        (("--method", "lora"), "--method needs --model"),
        (("--days", "3"), "--days needs --tokens"),
        (("--staff-rate", "40"), "--staff-rate needs --staff-hours-per-month"),
        (("--interruptions-per-day", "2"), "--interruptions-per-day needs --spot-per-gpu-hour"),
    ],
)
def test_an_option_that_needs_another_is_refused_without_it(
    trainrig: Any, words: tuple[str, ...], refusal: str
) -> None:
    prices = ("--on", "RTX 4090", "--gpus", "1", "--buy", "1800", "--rent-per-gpu-hour", "0.4")
    code, _, err = trainrig("cost", *prices, *words)
    assert code == 2 and refusal in err


def test_a_chip_without_a_count_is_one_gpu(trainrig: Any) -> None:
    prices = ("--on", "RTX 4090", "--buy", "1800", "--rent-per-gpu-hour", "0.4")
    code, out, _ = trainrig("cost", *prices)
    assert code == 0 and "0.40 USD per GPU-hour × 1 GPU = 0.40 USD an hour" in " ".join(out.split())


def test_a_global_batch_and_a_shape_that_were_not_stated_are_named(trainrig: Any) -> None:
    words = ("cost", "--on", "RTX 4090", "--gpus", "4", "--tokens", "1B")
    words += ("--rent-per-gpu-hour", "0.4", "--model", "1.3B")
    _, out, _ = trainrig(*words)
    presumed = " ".join(out.split())
    assert "global batch of 256 samples, 1.05M tokens a step; --global-batch has" in presumed
    assert "a Llama of 24 layers, hidden 2048, 16 heads, vocabulary 32000" in presumed
    assert "global batch of" not in trainrig(*words, "--global-batch", "64")[1]
