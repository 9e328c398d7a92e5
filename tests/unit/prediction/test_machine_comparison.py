"""Several machines side by side: each as alone, with what it costs; and machines of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.catalog.test_servers import CHIP, CLUSTER, written

from trainrig.errors import UsageError
from trainrig.prediction.machine_comparison import parse_prices
from trainrig.prediction.prediction import predict
from trainrig.prediction.scenario import question

TWO = ["predict", "--model", "gpt2", "--on", "RTX 4090", "--on", "DGX H100"]


def answered(trainrig: Any, *words: str) -> dict[str, Any]:
    code, out, _ = trainrig(*words, "--json")
    assert code in (0, 1)
    return json.loads(out)


def test_each_machine_is_answered_as_alone(trainrig: Any) -> None:
    found = answered(trainrig, *TWO, "--price", "1600", "--price", "DGX H100=25000")["machines"]
    assert [one["machine"] for one in found] == ["RTX 4090", "DGX H100"]
    alone = answered(trainrig, *TWO[:5])
    assert found[0]["step_time_s"] == alone["step_time_s"]
    assert found[0]["tokens_per_s_per_w"] == pytest.approx(alone["tokens_per_s"] / 450)
    assert found[0]["tokens_per_s_per_price"] == pytest.approx(alone["tokens_per_s"] / 1600)
    assert found[1]["layout"]["gpus"] == 8 and found[1]["power_w"] == 8 * 700
    dear = found[1]["tokens_per_s"] / 8 / 25000
    assert found[1]["tokens_per_s_per_price"] == pytest.approx(dear)


def test_the_table_fits_80_columns(trainrig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = trainrig(*TWO, "--price", "1600 25000", "--tokens", "1e9")
    assert code == 0 and "/W" in out and "/price" in out and "kWh" in out
    assert max(map(len, out.splitlines())) <= 80


def test_one_machine_with_a_price_is_one_machine(trainrig: Any) -> None:
    code, out, _ = trainrig(*TWO[:5], "--price", "1600")
    assert code == 0 and out.startswith("gpt2 on 1 machine: on RTX 4090: fits")


def test_the_first_line_names_the_fastest_machine_and_by_how_much(trainrig: Any) -> None:
    found = answered(trainrig, *TWO)["machines"]
    times = found[1]["tokens_per_s"] / found[0]["tokens_per_s"]
    first = " ".join(trainrig(*TWO)[1].split())
    assert first.startswith(f"gpt2 on 2 machines: DGX H100 is fastest, {times:.2f} times RTX 4090")
    words = ["--model", "gpt2", "--on", "RTX 4090", "--on", "RTX 3090"]
    fits = trainrig("fits", *words)[1]
    assert fits.startswith("RTX 4090: ") and fits.splitlines()[1].startswith("RTX 3090: ")
    large = trainrig("predict", "--model", "70B", *words[2:])[1]
    assert "RTX 4090 would be fastest" in large.splitlines()[0]


def test_a_machine_that_cannot_keeps_its_place(trainrig: Any) -> None:
    words = [*TWO, "--precision", "fp8", "--on", "RTX 3090"]
    found = answered(trainrig, *words)["machines"]
    assert [one["reason"] is None for one in found] == [True, True, False]
    assert "no fp8 products" in found[2]["reason"] and trainrig(*words)[0] == 1
    assert "no fp8 products" in trainrig(*words)[1]


def test_fits_of_several(trainrig: Any) -> None:
    words = ["fits", "--model", "llama-8B", "--on", "RTX 4090", "--on", "MI300X"]
    found = answered(trainrig, *words)["machines"]
    assert [one["verdict"] for one in found] == ["does not fit", "fits"]
    assert [one["method"] for one in found[0]["methods"]] == ["full", "lora", "qlora"]
    code, out, _ = trainrig(*words)
    assert code == 1 and "MI300X" in out and all(way in out for way in ("full", "LoRA", "QLoRA"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*TWO, "--on", "RTX 4091"], "unknown chip"),
        ([*TWO, "--price", "cheap"], "a price of 'cheap'"),
        ([*TWO, "--price", "-3"], "a price of"),
        ([*TWO, "--price", "1 2 3"], "more prices than machines"),
        ([*TWO, "--price", "RTX 3090=1"], "which is not in --on"),
        ([*TWO, "--what-if", "nvlink"], "asks about one machine"),
        ([*TWO, "--chip", "my.json"], "a machine's file is TOML"),
        (["plan", *TWO[1:], "--global-batch", "8"], "2 machines"),
    ],
)
def test_bad_input_is_one_line(trainrig: Any, words: list[str], says: str) -> None:
    code, out, err = trainrig(*words)
    assert (code, out) == (2, "") and says in err and "hint:" in err
    assert "Traceback" not in err


def test_one_s_own_chip_and_cluster(trainrig: Any, tmp_path: Path) -> None:
    chip, cluster = written(tmp_path, CHIP, "my-chip.toml"), written(tmp_path, CLUSTER)
    words = ["predict", "--model", "gpt2", "--chip", str(chip), "--cluster", str(cluster)]
    found = answered(trainrig, *words)["machines"]
    assert found[0]["on"] == "Nova 1" and found[1]["layout"]["gpus"] == 32
    named = {"model": "gpt2", "on": "H100 SXM5 80GB", "gpus": 32, "fabric_gbps": 3200.0}
    assert found[1]["step_time_s"] == pytest.approx(predict(question(named)).time)
    plan = ["plan", "--model", "gpt2", "--cluster", str(cluster), "--global-batch", "64"]
    assert answered(trainrig, *plan)["best"][0]["layout"]["gpus"] == 32


def test_a_slower_host_slows_what_is_offloaded(tmp_path: Path) -> None:
    slow = written(tmp_path, CLUSTER.replace("memory_gb_s = 400", "memory_gb_s = 100"), "s.toml")
    asked = {"model": "gpt2-xl", "zero": 2, "framework": "deepspeed", "offload": "host"}
    times = [
        predict(question(asked | {"on": str(path)})).step.offload
        for path in (written(tmp_path, CLUSTER), slow)
    ]
    assert times[1] > 1.5 * times[0]


def test_prices_by_place_and_by_name() -> None:
    assert parse_prices(["1", "2"], ["a", "b"]) == {"a": 1.0, "b": 2.0}
    assert parse_prices(["1, 2"], ["a", "b"]) == {"a": 1.0, "b": 2.0}
    assert parse_prices(["RTX-4090=5"], ["a", "rtx 4090"]) == {"rtx 4090": 5.0}
    with pytest.raises(UsageError):
        parse_prices(["nan"], ["a"])
