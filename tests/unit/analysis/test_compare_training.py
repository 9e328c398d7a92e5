"""Experiment against experiment, against what others published, and on a busy machine."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiment_views import experiments_view
from training_summaries import JITTER, summary
from trainrig.analysis.compare_training import against_first, shortened
from trainrig.analysis.run_view import RunView
from trainrig.catalog.published.training import baselines
from trainrig.machine.counters import HostReading, between
from trainrig.measure.noise import judge
from trainrig.record import Kind, Limit, Record
from trainrig.report.columns import plain
from trainrig.report.experiments import text as report
from trainrig.report.experiments.published import (
    columns,
    notes,
    notices,
    published_for,
    row_of,
    texts,
)
from trainrig.report.render.old_html import render_html
from trainrig.report.render.old_markdown import markdown
from trainrig.report.render.old_terminal import print_report
from trainrig.runner.experiment_trained import Trained, rates_of
from trainrig.runner.targets import Target
from trainrig.runner.train_records import case_for, records_of, summary_of
from trainrig.train.config import Experiment
from trainrig.train.config_file import read_file
from trainrig.train.engines import Result

ROOT = Path(__file__).resolve().parents[3]


def test_twice_as_fast_is_better_and_half_is_worse() -> None:
    fast, slow = against_first([summary("a", 1.0), summary("b", 0.5), summary("c", 2.0)])
    assert (fast.says, slow.says) == ("better", "worse")
    assert fast.ratio == pytest.approx(2.0) and slow.ratio == pytest.approx(0.5)
    assert fast.low is not None and fast.high is not None and fast.low < 2.0 < fast.high
    assert fast.low < 2.0 / 1.05  # one process a side: what two differ by is in the interval


@pytest.mark.parametrize("seconds", [1.0, 0.97])
def test_what_two_processes_may_differ_by_is_no_difference(seconds: float) -> None:
    (found,) = against_first([summary("a", 1.0), summary("b", seconds)])
    assert (found.says, found.why) == ("cannot tell", "the interval holds 1")


@pytest.mark.parametrize("busy", ["a", "b"])
def test_on_a_busy_machine_nothing_is_said(busy: str) -> None:
    rows = [summary("a", 1.0), summary("b", 0.5)]
    for each in rows:
        if each["name"] == busy:
            each["disturbed"] = "other processes used 30 % of the processors"
    (found,) = against_first(rows)
    assert found.says == "cannot tell" and found.why is not None
    said = "other processes used 30 % of the processors"
    assert found.why == (f"a: {said}" if busy == "a" else said) and found.ratio is not None


def test_steps_that_drift_together_are_no_many_samples() -> None:
    """A hundred steps, fast in one half and slow in the other, know little more than two."""
    drift = summary("b", 0.9, step_times_s=[0.7] * 50 + [1.1] * 50)
    (found,) = against_first([summary("a", 1.0), drift])
    assert found.says == "cannot tell"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"row_verdict": "NOT COMPARABLE"}, "NOT COMPARABLE"),
        ({"step_times_s": [1.0, 1.0]}, "fewer than 4 steps"),
        ({"step_times_s": [0.0] * 8}, "no times"),
    ],
)
def test_what_cannot_be_compared_is_not(changes: dict[str, Any], why: str) -> None:
    (found,) = against_first([summary("a", 1.0), summary("b", 0.5, **changes)])
    assert found.ratio is None and found.says == "cannot tell"
    assert found.why is not None and why in found.why


def test_what_differs_is_listed_first() -> None:
    other = summary("b", 0.5, batch_size=8, layout_asked={"ranks": 2, "zero": 3})
    rows = [summary("a", 1.0), other]
    (found,) = against_first(rows)
    assert found.unlike == ("batch_size: 4 → 8", "zero: 0 → 3")
    text = "\n".join(report.lines(rows))
    assert text.index("batch_size: 4 → 8") < text.index("2.00 ×") < text.index("better")
    assert against_first([summary("a", 1.0, row_verdict="FAIL")]) == ()


def test_of_models_that_differ_only_what_differs_is_said() -> None:
    numbers = "num_layers=2,hidden=128"
    assert shortened([f"gpt2:{numbers},vocab=8", f"bert:{numbers}"]) == ["gpt2:vocab=8,…", "bert:…"]
    assert shortened([f"gpt2:{numbers}", "gpt2"]) == [f"gpt2:{numbers}", "gpt2"]


def in_rounds(name: str, rates: list[float], busy: set[int] = frozenset(), **more: Any) -> Any:
    """Trained in as many rounds, each of ten steps."""
    rounds = [
        {"step_times_s": [8 / rate] * 10, "disturbed": "busy" if n in busy else None}
        for n, rate in enumerate(rates)
    ]
    return summary(name, 8 / rates[0], rounds=rounds, **more)


def test_rounds_in_turns_tell_what_steps_of_one_process_cannot() -> None:
    """The machine slows down by half from round to round; of the ratio that says nothing."""
    moods = [1.0, 0.8, 0.6, 0.5]
    base = in_rounds("a", [100 * mood for mood in moods])
    own = in_rounds("b", [104 * mood * small for mood, small in zip(moods, JITTER, strict=False)])
    (found,) = against_first([base, own])
    assert found.says == "better" and found.ratio == pytest.approx(1.04, rel=0.005)
    assert found.low is not None and 1.02 < found.low < found.ratio
    for each in (base, own):
        each["rounds"] = each["rounds"][:2]  # two rounds are none: steps are compared, and widened
    (found,) = against_first([base, own])
    assert found.says == "cannot tell"


def test_what_would_tell_more_is_said_where_nothing_can_be_told() -> None:
    alike = [summary("a", 1.0), summary("b", 1.01)]
    assert "rounds = 3 in the file" in "\n".join(report.lines(alike))
    rates = [100.0, 104.0, 96.0]
    turns = [in_rounds("a", rates), in_rounds("b", rates[::-1])]
    said = "\n".join(report.lines(turns))
    assert "More rounds would tell more." in said and "in the file" not in said
    clear = [summary("a", 1.0), summary("b", 0.5)]
    assert "would tell more" not in "\n".join(report.lines(clear))


def test_busy_rounds_are_left_out_and_too_few_quiet_ones_say_nothing() -> None:
    base = in_rounds("a", [100.0, 100.5, 99.5, 20.0], busy={3})
    own = in_rounds("b", [150.0, 150.5, 149.5, 150.0])
    (found,) = against_first([base, own])
    assert found.says == "better" and found.ratio == pytest.approx(1.5, rel=0.01)
    own["rounds"][0]["disturbed"] = "busy"
    (found,) = against_first([base, own])
    assert (found.ratio, found.says) == (None, "cannot tell")
    assert found.why == "the machine was busy in all but 2 of 4 rounds"


def test_each_model_has_a_first_of_its_own() -> None:
    rows = [
        summary("b1", 1.0, model="bert", row_verdict="FAIL"),
        summary("b2", 1.0, model="bert"),
        summary("b3", 0.5, model="bert"),
        summary("g1", 1.0, model="gpt2"),
        summary("g2", 0.25, model="gpt2"),
        summary("t1", 1.0, model="t5", row_verdict="skipped"),
    ]
    found = {each.name: (each.base, each.ratio) for each in against_first(rows)}
    assert found == {
        "b1": ("b2", None),
        "b3": ("b2", pytest.approx(2.0)),
        "g2": ("g1", pytest.approx(4.0)),
        "t1": ("b2", None),
    }
    text = "\n".join(report.lines(rows))
    assert "Samples/s against 'b2'" in text and "Samples/s against 'g1'" in text


# ---- others' figures


def rows_beside() -> list[dict[str, Any]]:
    known = tuple(baselines())
    return [
        row_of(own.name, record)
        for own in read_file(ROOT / "experiments" / "classic.toml", {})
        for record in published_for(case_for(own, ""), known)
    ]


def test_published_figures_stand_beside_the_classic_rows() -> None:
    found = {(row["experiment"], round(row["tokens_per_s_per_device"])) for row in rows_beside()}
    both = {
        "BERT, fp32": {8008, 12530},
        "BERT, batch 11": {12254, 20197},
        "BERT, fused optimizer": {12975, 21143},
        "BERT, accumulation": {14077, 22138},
        "BERT, checkpointing": {12823, 17395},
        "BERT, Hugging Face, fp32": {8008, 12530},
        "GPT-2, one device": {17403, 25234},
        "GPT-2, data parallel": {15710, 9379},
        "GPT-2, without P2P": {10947, 9382},
        "GPT-2, accumulation": {18105, 18796},
        "GPT-2, accumulation without P2P": {16127, 18786},
    }
    assert found == {(name, rate) for name, rates in both.items() for rate in rates}
    assert {row["device"] for row in rows_beside()} == {"RTX 3090 Ti", "RTX 4090"}
    assert len(rows_beside()) == 2 * len(both)


def test_two_published_figures_of_the_faster_card_lie_below_the_slower_ones() -> None:
    parallel, without = notices(rows_beside())
    assert parallel.startswith("GPT-2, data parallel: the RTX 4090 is published at 9.38 ktoken/s")
    assert "below the slower RTX 3090 Ti's 15.7 ktoken/s" in parallel and "2.1 times" in parallel
    assert "PCIe only (PHB), no peer access; the other's over NVLink bridge (NV4)" in parallel
    assert without.startswith("GPT-2, without P2P: the RTX 4090 is published at 9.38 ktoken/s")
    assert "below the slower RTX 3090 Ti's 10.9 ktoken/s" in without


def test_a_faster_card_below_a_slower_one_is_noticed_once() -> None:
    rows = [row for row in rows_beside() if row["experiment"] == "GPT-2, one device"]
    assert list(notices(rows)) == []
    slow = [
        row | {"tokens_per_s_per_device": 15000.0 + 3e4 * (n == 0)} for n, row in enumerate(rows)
    ]
    (said,) = notices(slow)
    assert "RTX 4090 is published at 15.0 ktoken/s" in said and "another link" in said
    again = [row | {"experiment": "another"} for row in slow]
    assert list(notices([*slow, *again])) == [said]
    assert list(notices([slow[0], again[1]])) == []


def test_every_page_shows_ratios_and_published_figures() -> None:
    series = {
        "experiments": (summary("a", 1.0), summary("b", 0.5)),
        "published": tuple(rows_beside()),
    }
    view = RunView(name="r", series=series, records=tuple(baselines())[-12:])
    for page in (render_html([view]), markdown(view)):
        assert "2.00 ×" in page and "8008" in page and "published at 9.38 ktoken/s" in page
    assert "8008" in "\n".join(report.lines(series["experiments"], series=series))
    strange: Any = {"experiments": series["experiments"], "published": ({"device": 3},)}
    assert "8008" not in render_html([RunView(name="r", series=strange)])
    known = ("experiment", "device", "precision", "tokens_per_s_per_device", "memory_bytes")
    older = [{key: row[key] for key in (*known, "software", "source")} for row in rows_beside()]
    text = "\n".join(report.lines(series["experiments"], series={"published": older}))
    assert "8008" in text and "HF Transformers, fp32" in text and "@4a8daeb" in text
    unsourced = [{key: row[key] for key in (*known, "software")} for row in rows_beside()]
    shown = report.lines(series["experiments"], series={"published": unsourced})
    assert "8008" not in "\n".join(shown)


def test_the_published_table_has_a_column_for_each_card() -> None:
    rows = rows_beside()
    assert columns(rows) == ("experiment", "published case", "RTX 3090 Ti", "RTX 4090")
    found = {cells[0]: cells[1:] for cells in texts(rows)}
    assert found["BERT, fp32"] == (
        "HF Transformers, bert-large, fp32, 8 of 512",
        "8008 (tf32), 20.3 GiB",
        "12530, 19.4 GiB",
    )
    assert found["GPT-2, accumulation"][0] == "Megatron-LM, gpt2-medium, bf16, 5 × 4 of 1024"
    assert found["BERT, checkpointing"][0].endswith("66 × 4 of 512, recomputed")
    older, newer = notes(rows)
    assert older.startswith("RTX 3090 Ti: mli/") and "cards over PCIe only, P2P off" in older
    assert newer.startswith("RTX 4090: qhduan/") and "no peer access" in newer
    one = [row for row in rows if row["device"] == "RTX 4090" or "BERT" in row["experiment"]]
    assert {cells[0]: cells[2:] for cells in texts(one)}["GPT-2, without P2P"][0] == "-"


def test_a_name_ends_neither_a_cell_nor_the_drawing() -> None:
    rows = [summary("a", 1.0), summary("b|```\n| c |", 0.5, breakdown={"forward": 0.4})]
    text = markdown(RunView(name="r", series={"experiments": tuple(rows)}))
    fence = "`" * 3
    inside = text.split(fence)[1::2]
    assert len(inside) == 1 and "ffff" in inside[0] and text.count(fence) == 2
    assert all(line.count("|") >= 2 for line in text.splitlines() if line.startswith("|"))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_line_fits_the_terminal_and_nothing_is_cut(width: int) -> None:
    view = experiments_view()
    beside = {"published": tuple(rows_beside())}
    shown = list(report.lines(view.series["experiments"], width, beside))
    assert max(map(len, shown)) <= width
    together = "\n".join(shown)
    for word in ("2.22 ×", "88.9 TFLOPS", "15.8 GiB", "450 ms", "9.0000", "out of memory", "133 %"):
        assert word in together, word


def test_short_names_leave_room_for_a_drawing_in_one_piece() -> None:
    rows = [summary("a", 1.0, breakdown={"forward": 0.6, "backward": 0.3}), summary("b", 0.5)]
    shown = list(report.lines(rows, 80))
    assert [line for line in shown if "fffff" in line and line.endswith("125 ms")]
    assert [line for line in shown if "sample/s" in line and "iB" in line]


def test_a_plain_terminal_gets_plain_letters() -> None:
    rows = [summary("a", 1.0), summary("b", 0.5)]
    assert "".join(map(plain, report.lines(rows, 120))).isascii()


def test_a_report_of_experiments_says_of_each_once_why_it_is_not_judged() -> None:
    busy = Record(
        kind=Kind.MEASURED,
        benchmark="training",
        case=case_for(Experiment(name="our DDP", backend="native"), "a5027ba6"),
        metric="time",
        unit="s",
        value=1.0,
        disturbed="others used 82 %",
    )
    view = RunView(name="r", series={"experiments": (summary("our DDP", 1.0),)}, records=(busy,))
    stream = io.StringIO()
    print_report(view, Console(file=stream, width=100))
    assert "Experiments: They are compared with each other" in stream.getvalue()
    assert "training: 1 point, 1 disturbed" in stream.getvalue()
    assert "others used" not in stream.getvalue() and "Largest gap" not in stream.getvalue()
    assert ">our DDP time<" in render_html([view]) and "a5027ba6" not in markdown(view)
    print_report(dataclasses.replace(view, series={}), Console(file=stream, width=100))
    assert "our DDP time, unknown device: disturbed: others used 82 %" in stream.getvalue()


# ---- neighbours


@pytest.mark.parametrize(
    ("own", "steal", "words"),
    [
        (19.0, 0.0, None),
        (14.0, 0.0, "other processes used 25 % of the processors"),
        (19.0, 1.0, "the hypervisor took 5 % of the processors"),
    ],
)
def test_who_took_the_processors(own: float, steal: float, words: str | None) -> None:
    before = reading(0.0, 0.0, 0.0, 0.0)
    assert judge(between(before, reading(10.0, own, 19.0, steal))) == words


def reading(at: float, own: float, busy: float, steal: float) -> HostReading:
    """Two processors, at a time."""
    from trainrig.machine.snapshot import Missing

    gone = Missing("not read")
    return HostReading(
        time_s=at,
        own_cpu_s=own,
        threads=2,
        busy_s=busy,
        steal_s=steal,
        waited_s=gone,
        throttled_s=gone,
        thermal_events=gone,
        load_1m=gone,
        clock_hz=gone,
    )


# ---- utilisation


def test_mfu_is_of_the_claim_and_absent_without_one() -> None:
    rows = tuple(row | {"time": 0.5} for row in ROWS)
    own = Experiment(
        model="gpt2-small-cpu", batch_size=4, recompute="full", device="cpu", name="one"
    )
    found = Trained(experiment=own, result=Result(rows=rows), peak=Limit(value=1e12, source="s"))
    said, rates = summary_of(found), rates_of(found)
    assert said["mfu"] == pytest.approx(rates["flop_rate"] / 1e12)
    assert said["hfu"] == pytest.approx(rates["hardware_flop_rate"] / 1e12)
    assert said["hfu"] > 1.1 * said["mfu"] and said["no_mfu_reason"] is None
    records = records_of(found, TARGET, "0" * 64, "e")
    assert {r.metric: r.value for r in records}["mfu"] == said["mfu"]
    found.peak = None
    said = summary_of(found)
    assert (said["mfu"], said["hfu"]) == (None, None)
    assert said["no_mfu_reason"] == "no bf16 peak is claimed for this CPU"
    assert not {"mfu", "hfu"} & {r.metric for r in records_of(found, TARGET, "0" * 64, "e")}


TARGET = Target(torch_device="cpu", name="CPU", index=None, memory_bytes=0, chip=None)
ROWS = tuple({"step": step, "loss": 9.0, "grad_norm": 1.0} for step in range(8))
