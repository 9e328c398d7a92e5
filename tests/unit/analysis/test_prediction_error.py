"""The ledger: what counts, how errors are counted, corrections that help and those that do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainrig.analysis.judge import judge
from trainrig.analysis.prediction_error import by_part, calibrate, entries_of, errors_of
from trainrig.benchmarks.training import flops
from trainrig.errors import DataError
from trainrig.record import Kind, Limit, Record, Status
from trainrig.report.prediction_report import ledger_headline
from trainrig.runner.expectations import Grounds, forecast
from trainrig.runner.history import (
    CALIBRATION,
    corrections_of,
    ledger_sentence,
    read_ledger,
    store_corrections,
)
from trainrig.runner.progress import describe
from trainrig.runner.targets import Target
from trainrig.store import create_run
from trainrig.train.config import Experiment, case_of

CASE = {
    "model": "gpt2-small-cpu", "precision": "bf16", "batch_size": 8, "seq_len": 256,
    "grad_accum": 1, "optimizer": "adamw", "recompute": "none",
    "compile": False, "data": "00000000",
}  # fmt: skip


def record(kind: Kind, value: float | None, **more) -> Record:
    base = {
        "benchmark": "training",
        "version": 2,
        "case": CASE,
        "metric": "time",
        "unit": "s",
        "device": "EPYC",
    }
    return Record(**{"kind": kind, "value": value} | base | more)


def predicted(value: float, **more) -> Record:
    more = {"conditions": {"from": "rates"}, "confidence": 0.8} | more
    return record(Kind.PREDICTED, value, interval=(0.8 * value, 1.25 * value), **more)


def seen(value: float, **more) -> Record:
    return record(Kind.MEASURED, value, **more)


def errors(*records: Record) -> list[float]:
    return [round(entry.error, 6) for entry in entries_of("run", "host", records)]


def test_an_error_is_of_the_time() -> None:
    assert errors(predicted(1.1), seen(1.0)) == [0.1]
    rate = {"metric": "flop_rate", "unit": "FLOP/s"}
    assert errors(predicted(8.0, **rate), seen(10.0, **rate)) == [0.25]  # faster: it took less
    assert errors(predicted(110.0, metric="peak_memory", unit="B"), seen(100.0)) == []


@pytest.mark.parametrize(
    "records",
    [
        (seen(1.0), predicted(1.0)),  # after the fact
        (predicted(1.0), seen(1.0, disturbed="busy")),
        (predicted(1.0), seen(1.0, status=Status.FAILED)),
        (predicted(1.0), seen(1.0, attempt=1)),
        (predicted(1.0), seen(1.0, device="other")),
        (predicted(1.0, conditions={"bound": "lower"}), seen(1.0)),
        (record(Kind.PREDICTED, None, status=Status.MISSING, reason="none"), seen(1.0)),
        (record(Kind.CLAIMED, 1.0), seen(1.0)),
    ],
)
def test_what_does_not_count(records) -> None:
    assert errors(*records) == []


def test_the_last_prediction_and_the_last_point_count() -> None:
    assert errors(predicted(9.0), predicted(1.2), seen(1.0)) == [0.2]
    assert errors(predicted(1.2), seen(5.0), seen(1.0)) == [0.2]
    assert errors(predicted(1.2), seen(5.0), seen(1.0, disturbed="busy")) == []


def test_a_rate_beside_its_time_is_not_counted_again() -> None:
    rate = {"metric": "flop_rate", "unit": "FLOP/s"}
    part = {"metric": "time.forward"}
    foretold = (predicted(1.1), predicted(9.0, **rate), predicted(0.5, **part))
    assert errors(*foretold, seen(1.0), seen(10.0, **rate), seen(0.4, **part)) == [0.1, 0.25]
    # The time is of another device: nothing says what the rate says.
    other = seen(1.0, device="other")
    assert errors(*foretold, other, seen(10.0, **rate)) == [round(10.0 / 9.0 - 1.0, 6)]


def test_equal_devices_share_a_prediction() -> None:
    points = [seen(1.0, device_index=0), seen(2.0, device_index=1)]
    assert errors(predicted(1.0), *points) == [0.0, -0.5]


def test_a_summary() -> None:
    entries = [
        *entries_of("a", "h", [predicted(1.1), seen(1.0)]),
        *entries_of("b", "h", [predicted(1.0), seen(2.0)]),
        *entries_of("c", "h", [predicted(1.3), seen(1.0)]),
    ]
    one = errors_of("all", entries)
    assert (one.count, round(one.median_error, 6), one.worst_error) == (3, 0.3, -0.5)
    assert round(one.bias, 6) == 0.1
    assert one.coverage == pytest.approx(1 / 3)  # 1.3 foretold: 1.04 to 1.63


def make_run(parent: Path, *records: Record, host: str = "here") -> Path:
    with create_run(parent, "train", {}) as run:
        run.write_machine({"host": {"hostname": host}})
        for one in records:
            run.append(one)
    # Runs of one second have no order of their own.
    return run.path.rename(parent / f"{len(list(parent.iterdir())):03d}-run")


@pytest.fixture
def slow_machine(tmp_path: Path) -> Path:
    """Eight runs that take a quarter longer than foretold, and one of another machine."""
    make_run(tmp_path, predicted(1.0), seen(9.0), host="other")
    for number in range(8):
        make_run(tmp_path, predicted(1.0), seen(1.25 + 0.01 * (number % 2)))
    return tmp_path


def test_a_folder_of_runs(slow_machine: Path) -> None:
    ledger = read_ledger(slow_machine)
    assert (ledger.host, ledger.num_runs, ledger.others) == ("here", 8, 1)
    (part,) = by_part(ledger)
    assert part.name == "training time" and part.count == 8
    assert 0.2 <= part.median_error <= 0.21 and part.bias < 0
    assert "8 predictions in 8 runs, median error 20 %" in ledger_headline(ledger)
    said = ledger_sentence(slow_machine)
    assert said is not None and said.startswith("last 8 runs: median error 20 % of 8 predictions")
    assert len(read_ledger(slow_machine, "other").entries) == 1


def test_only_the_last_twelve_runs_are_said(tmp_path: Path) -> None:
    for number in range(14):
        make_run(tmp_path, predicted(1.0 if number > 1 else 9.0), seen(1.0))
    said = ledger_sentence(tmp_path)
    assert said == "last 12 runs: median error 0.0 % of 12 predictions, worst 0.0 %"


def test_nothing_foretold_is_no_sentence(tmp_path: Path) -> None:
    assert ledger_sentence(tmp_path) is None
    make_run(tmp_path, seen(1.0))
    assert ledger_sentence(tmp_path) is None
    assert "nothing was predicted and measured yet" in ledger_headline(read_ledger(tmp_path))


def test_a_correction_is_fitted_on_old_runs_and_tried_on_new(slow_machine: Path) -> None:
    (found,) = calibrate(read_ledger(slow_machine))
    assert found.part == "EPYC training time"
    assert (found.fitted, found.held_out) == (6, 2)
    assert 1.25 <= found.factor <= 1.26
    assert found.median_error_after < 0.01 < 0.19 < found.median_error_before and found.helps


def test_a_correction_that_does_not_help_is_left_out(tmp_path: Path) -> None:
    for value in (1.5, 1.5, 1.5, 1.0):  # the newest run was repaired
        make_run(tmp_path, predicted(1.0), seen(value))
    ledger = read_ledger(tmp_path)
    (found,) = calibrate(ledger)
    assert not found.helps
    store_corrections(tmp_path, ledger.host, [found])
    assert corrections_of(tmp_path, "here") == {}


def test_a_correction_is_not_applied_twice(tmp_path: Path) -> None:
    """What was foretold with a correction teaches what it would have been without."""
    for _ in range(4):
        corrected = predicted(1.25, conditions={"from": "rates", "correction": 1.25})
        make_run(tmp_path, corrected, seen(1.25))
    (found,) = calibrate(read_ledger(tmp_path))
    assert found.factor == pytest.approx(1.25)
    errors = (found.median_error_before, found.median_error_after)
    assert errors == (pytest.approx(0.2), pytest.approx(0.0))


def test_few_runs_and_other_grounds_teach_nothing(tmp_path: Path) -> None:
    for _ in range(3):
        make_run(tmp_path, predicted(1.0), seen(2.0))
    assert calibrate(read_ledger(tmp_path)) == ()
    history = predicted(1.0, conditions={}, confidence=None)
    for _ in range(6):
        make_run(tmp_path, history, seen(2.0))
    ledger = read_ledger(tmp_path)
    assert calibrate(ledger) == () and len(ledger.entries) == 9


def test_corrections_are_kept_by_machine(slow_machine: Path) -> None:
    store_corrections(slow_machine, "here", calibrate(read_ledger(slow_machine)))
    store_corrections(slow_machine, "there", ())
    assert 1.25 <= corrections_of(slow_machine, "here")["EPYC training time"] <= 1.26
    assert corrections_of(slow_machine, "there") == {}
    assert corrections_of(slow_machine, "nowhere") == {}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"schema": 9, "hosts": {"here": {"a": 1.1}}}',
        '{"schema": 1, "hosts": []}',
        '{"schema": 1, "hosts": {"here": [1]}}',
        '{"schema": 1, "hosts": {"here": {"a": "x", "b": 0, "c": 1e9, "d": null}}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_corrects_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / CALIBRATION).write_text(content)
    assert corrections_of(tmp_path, "here") == {}


TARGET = Target(torch_device="cpu", name="EPYC", index=None, memory_bytes=1 << 33, chip=None)
EXPECTED = record(
    Kind.PREDICTED, None, metric="flop_rate", unit="FLOP/s", status=Status.MISSING,
    reason="no target known", conditions={"step": "bf16 training step", "required": True},
)  # fmt: skip
OWN = Experiment.of(
    **{name: CASE[name] for name in ("model", "precision", "batch_size", "seq_len", "recompute")}
)


def predict_training(
    points: list[Record], corrections: dict[str, float] | None = None, **changes: Any
) -> tuple[Record, ...]:
    own = OWN.replace(**changes)
    grounds = Grounds(points=tuple(points), corrections=corrections or {})
    return forecast(own, case_of(own, "") if changes else CASE, TARGET, "e", grounds)


PRODUCT = {"dtype": "bf16", "m": 1024, "k": 1024, "n": 1024, "cache": "hot"}


def rates(flops: float = 4e11, **more) -> list[Record]:
    point = {"device": "EPYC"} | more
    return [
        record(Kind.MEASURED, flops, benchmark="matmul", case=PRODUCT, metric="flop_rate",
               unit="FLOP/s", **point),
        record(Kind.MEASURED, 1e10, benchmark="copy", metric="byte_rate", unit="B/s",
               case={"direction": "triad", "bytes": 1 << 28, "memory": "host", "cache": "cold"},
               **point),
    ]  # fmt: skip


def test_a_step_is_foretold_from_what_was_measured() -> None:
    told = {one.metric: one for one in predict_training(rates())}
    assert set(told) == {
        "time", "time.forward", "time.backward", "time.optimizer", "flop_rate", "peak_memory",
    }  # fmt: skip
    for one in told.values():
        assert one.kind is Kind.PREDICTED and one.value and one.interval and one.source
        assert one.interval[0] < one.value < one.interval[1]
        assert one.confidence == 0.8 and one.band is None
        assert one.conditions["from"] == "rates" and one.device == "EPYC"
    parts = sum(told[f"time.{name}"].value for name in ("forward", "backward", "optimizer"))
    assert parts == pytest.approx(told["time"].value, rel=0.02)
    faster = {one.metric: one for one in predict_training(rates(8e11))}
    assert faster["time"].value < told["time"].value
    assert faster["peak_memory"].value == told["peak_memory"].value


def test_a_step_of_an_encoder_decoder_is_foretold_with_the_work_that_is_counted() -> None:
    """It writes fewer tokens than it reads: its rate times its time is the family's count."""
    changes = {"model": "t5:num_layers=2,hidden=128,vocab=8192", "seq_len": 128}
    told = {one.metric: one for one in predict_training(rates(), **changes)}
    rate, took = told["flop_rate"].value, told["time"].value
    assert rate and took
    assert rate * took == pytest.approx(flops(told["time"].case))


def test_another_dtypes_product_foretells_nothing() -> None:
    """A processor emulates fp16 a hundred times slower than it computes bf16."""
    slow = [r.replace(case={**r.case, "dtype": "fp16"}) for r in rates(3e9)[:1]]
    (missing,) = predict_training([*slow, *rates()[1:]])
    assert missing.status is Status.MISSING
    assert "no rate of bf16 products" in (missing.reason or "")


def test_a_correction_is_applied_and_said() -> None:
    plain = predict_training(rates())
    told = predict_training(rates(), {"EPYC training time": 1.5})
    for one, other in zip(plain, told, strict=True):
        factor = 1.5 if one.metric == "time" else 1.0
        assert other.value == pytest.approx(one.value * factor)
        assert ("corrected by 1.500" in (other.source or "")) == (factor != 1.0)
    assert told[0].conditions["correction"] == 1.5


@pytest.mark.parametrize(
    ("points", "why"),
    [
        ([], "no measured product"),
        (rates(device="another"), "no measured product"),
        (rates()[:1], "no measured stream"),
    ],
)
def test_without_grounds_nothing_is_predicted(points, why) -> None:
    (told,) = predict_training(points)
    assert told.status is Status.MISSING and told.value is None
    assert why in (told.reason or "") and told.metric == "time"


def test_a_prediction_is_shown_and_never_judged() -> None:
    """A step that takes longer than foretold is no fault of the machine; its band would be."""
    limit = Limit(value=1e12, source="claim")
    told = [
        one.replace(conditions={**EXPECTED.conditions, **one.conditions})
        if one.metric == EXPECTED.metric
        else one
        for one in predict_training(rates())
    ]
    point = seen(1e9, metric="flop_rate", unit="FLOP/s", interval=(9e8, 1.1e9), limit=limit)
    slow = seen(99.0, interval=(98.0, 100.0))
    verdict = judge([EXPECTED, *told, point, slow], (), None, "run")
    assert not [f for f in verdict.findings if f.id == "below-band"]
    assert verdict.outcome.value == "MEASURED"
    rate = next(one for one in told if one.metric == "flop_rate")
    assert "predicted " in describe(point, rate)
    band = rate.replace(confidence=None)
    point = point.replace(confidence=0.95)
    verdict = judge([EXPECTED, band, point], (), None, "run")
    assert [f.id for f in verdict.findings] == ["below-band"]


def test_a_runs_measured_rates_predict_other_steps(trainrig, tmp_path: Path) -> None:
    path = make_run(tmp_path, *rates(), *rates(device="busy one", disturbed="busy"))
    machine = {"host": {}, "memory": {"total_bytes": 8 << 30, "limit_bytes": None}}
    (path / "machine.json").write_text(json.dumps(machine))
    asked = ("predict", "--model", "gpt2-small-cpu", "--batch-size", "8", "--json")
    code, out, _ = trainrig(*asked, "--rates", str(path))
    told = json.loads(out)
    assert code == 0
    assert told["on"] == "EPYC" and "measured" in told["provenance"]["matmul"]
    assert told["gpu_memory_bytes"] == 8 << 30
    assert told["mfu"] is None  # nobody claims a peak of it
    code, out, _ = trainrig("fits", *asked[1:], "--rates", str(path))
    assert code == 0
    code, _, err = trainrig(*asked, "--rates", str(make_run(tmp_path)))
    assert code == 2 and "no measured" in err


def test_noisy_rates_are_lower_bounds_and_the_prediction_says_so(trainrig, tmp_path: Path) -> None:
    path = str(make_run(tmp_path, *rates(disturbed="busy")))
    asked = ("predict", "--model", "gpt2-small-cpu", "--batch-size", "8", "--json")
    code, out, _ = trainrig(*asked, "--rates", path)
    assert code == 0
    assert "a lower bound" in json.loads(out)["provenance"]["matmul"]


def test_the_verb_as_json(trainrig, slow_machine: Path) -> None:
    code, out, _ = trainrig("ledger", str(slow_machine), "--calibrate", "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["host"], told["predictions"], told["runs_of_others"]) == ("here", 8, 1)
    assert told["parts"][0]["median_error"] == pytest.approx(told["all"]["median_error"])
    assert len(told["by_run"]) == 8
    assert told["corrections"][0]["kept"] is True
    assert (slow_machine / CALIBRATION).is_file()


@pytest.mark.parametrize("width", [60, 80])
def test_the_verb_for_people(trainrig, slow_machine: Path, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = trainrig("ledger", str(slow_machine), "--calibrate")
    assert code == 0
    for said in ("median error", "training time", "bias", "inside", "×1.25", "stored"):
        assert said in out
    assert "…" not in out
    assert all(len(line) <= width for line in out.splitlines())


def test_without_calibrate_nothing_is_written(trainrig, slow_machine: Path) -> None:
    assert trainrig("ledger", str(slow_machine))[0] == 0
    assert not (slow_machine / CALIBRATION).exists()


def test_a_damaged_run_is_named_and_passed_over(trainrig, slow_machine: Path) -> None:
    path = make_run(slow_machine, predicted(1.0), seen(1.0))
    (path / "records.jsonl").write_text("{}\n{}\n")
    code, out, _ = trainrig("ledger", str(slow_machine))
    assert code == 0
    assert "not read:" in out and "8 predictions" in " ".join(out.split())


def test_a_folder_without_runs(trainrig, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no runs in"):
        read_ledger(tmp_path)
    code, out, err = trainrig("ledger", str(tmp_path / "none"))
    assert (code, out) == (2, "")
    assert "no runs in" in err and "hint: trainrig qualify" in err
