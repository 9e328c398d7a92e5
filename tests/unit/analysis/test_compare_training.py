"""Trainings against each other: of one run, of two runs, on a busy machine, in damaged files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reports import markdown
from training_summaries import JITTER, printed, results_of, summary, training_view
from trainrig.analysis.compare_training import (
    Speedup,
    compare_trainings,
    fused_speedups,
    reached_goals,
    shortened,
    speedups,
)
from trainrig.analysis.training_results import fault, readable_results, results
from trainrig.cli import compare as verb
from trainrig.cli import report as report_verb
from trainrig.errors import DataError, TrainrigError
from trainrig.record import Kind, Outcome, Record, RunView, Status, Verdict
from trainrig.report.document import Section, Table
from trainrig.report.run_report import render_html
from trainrig.report.training_report import training_blocks, training_document
from trainrig.store import create_run


def speedups_of(rows: Sequence[dict[str, Any]]) -> tuple[Speedup, ...]:
    return speedups(results_of(*rows))


def shown(rows: Sequence[dict[str, Any]], width: int = 120) -> str:
    return printed(training_document(training_view(*rows)), width)


def speedup_tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    (section,) = training_blocks(training_view(*rows))
    assert isinstance(section, Section)
    tables = [block for block in section.blocks if isinstance(block, Table)]
    return [table for table in tables if table.title.startswith("Samples/s over")]


def test_twice_as_fast_is_better_and_half_is_worse() -> None:
    fast, slow = speedups_of([summary("a", 1.0), summary("b", 0.5), summary("c", 2.0)])
    assert (fast.change, slow.change) == ("better", "worse")
    assert fast.ratio == pytest.approx(2.0) and slow.ratio == pytest.approx(0.5)
    assert fast.low is not None and fast.high is not None and fast.low < 2.0 < fast.high
    assert fast.low < 2.0 / 1.05  # one process a side: what two differ by is in the interval


@pytest.mark.parametrize("seconds", [1.0, 0.97])
def test_what_two_processes_may_differ_by_is_no_difference(seconds: float) -> None:
    (found,) = speedups_of([summary("a", 1.0), summary("b", seconds)])
    assert (found.change, found.reason) == ("cannot tell", "the interval holds 1")


@pytest.mark.parametrize("busy", ["a", "b"])
def test_on_a_busy_machine_nothing_is_said(busy: str) -> None:
    rows = [summary("a", 1.0), summary("b", 0.5)]
    for each in rows:
        if each["name"] == busy:
            each["disturbed"] = "other processes used 30 % of the processors"
    (found,) = speedups_of(rows)
    assert found.change == "cannot tell" and found.reason is not None
    said = "other processes used 30 % of the processors"
    assert found.reason == (f"a: {said}" if busy == "a" else said) and found.ratio is not None


def test_steps_that_drift_together_are_no_many_samples() -> None:
    """A hundred steps, fast in one half and slow in the other, know little more than two."""
    drift = summary("b", 0.9, step_times_s=[0.7] * 50 + [1.1] * 50)
    (found,) = speedups_of([summary("a", 1.0), drift])
    assert found.change == "cannot tell"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"row_verdict": "NOT COMPARABLE"}, "NOT COMPARABLE"),
        ({"step_times_s": [1.0, 1.0]}, "fewer than 4 steps"),
        ({"step_times_s": [0.0] * 8}, "no times"),
    ],
)
def test_what_cannot_be_compared_is_not(changes: dict[str, Any], why: str) -> None:
    (found,) = speedups_of([summary("a", 1.0), summary("b", 0.5, **changes)])
    assert found.ratio is None and found.change == "cannot tell"
    assert found.reason is not None and why in found.reason


def test_what_differs_is_listed_first() -> None:
    other = summary("b", 0.5, batch_size=8, layout_asked={"ranks": 2, "zero": 3})
    rows = [summary("a", 1.0), other]
    (found,) = speedups_of(rows)
    assert found.differences == ("batch_size: 4 → 8", "zero: 0 → 3")
    text = shown(rows)
    assert text.index("batch size:  4, 8") < text.index("2.00 ×") < text.index("better")
    assert text.index("batch_size: 4 → 8") < text.index("2.00 ×", text.index("batch_size: 4 →"))
    assert speedups_of([summary("a", 1.0, row_verdict="FAIL")]) == ()


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


def test_interleaved_rounds_show_what_steps_of_one_process_cannot() -> None:
    """The machine slows down by half from round to round; of the ratio that says nothing."""
    moods = [1.0, 0.8, 0.6, 0.5]
    base = in_rounds("a", [100 * mood for mood in moods])
    own = in_rounds("b", [104 * mood * small for mood, small in zip(moods, JITTER, strict=False)])
    (found,) = speedups_of([base, own])
    assert found.change == "better" and found.ratio == pytest.approx(1.04, rel=0.005)
    assert found.low is not None and 1.02 < found.low < found.ratio
    for each in (base, own):
        each["rounds"] = each["rounds"][:2]  # two rounds are none: steps are compared, and widened
    (found,) = speedups_of([base, own])
    assert found.change == "cannot tell"


def test_busy_rounds_are_left_out_and_too_few_quiet_ones_say_nothing() -> None:
    base = in_rounds("a", [100.0, 100.5, 99.5, 20.0], busy={3})
    own = in_rounds("b", [150.0, 150.5, 149.5, 150.0])
    (found,) = speedups_of([base, own])
    assert found.change == "better" and found.ratio == pytest.approx(1.5, rel=0.01)
    own["rounds"][0]["disturbed"] = "busy"
    (found,) = speedups_of([base, own])
    assert (found.ratio, found.change) == (None, "cannot tell")
    assert found.reason == "the machine was busy in all but 2 of 4 rounds"


def test_each_model_has_a_first_of_its_own() -> None:
    rows = [
        summary("b1", 1.0, model="bert", row_verdict="FAIL"),
        summary("b2", 1.0, model="bert"),
        summary("b3", 0.5, model="bert"),
        summary("g1", 1.0, model="gpt2"),
        summary("g2", 0.25, model="gpt2"),
        summary("t1", 1.0, model="t5", row_verdict="skipped"),
    ]
    found = {each.name: (each.base, each.ratio) for each in speedups_of(rows)}
    assert found == {
        "b1": ("b2", None),
        "b3": ("b2", pytest.approx(2.0)),
        "g2": ("g1", pytest.approx(4.0)),
        "t1": ("b2", None),
    }
    assert [table.title for table in speedup_tables(rows)] == [
        "Samples/s over 'b2', 95 % interval",
        "Samples/s over 'g1', 95 % interval",
    ]


# ---- two runs

SETTINGS = {"batch_size": 4, "nproc": 2, "zero": 0, "precision": "fp32", "data": "text"}


def test_a_kernel_s_worth_is_the_fused_row_over_the_one_that_lacks_it_alone() -> None:
    usual = SETTINGS | {"unfused": "", "attention": "auto", "optimizer": "adamw-fused"}
    plain = {"attention": "plain"}

    def row(name: str, seconds: float, **keys: Any) -> dict[str, Any]:
        return summary(name, seconds, settings=usual | keys)

    found = fused_speedups(
        results_of(
            row("fused", 1.0),
            row("no norm", 1.1, unfused="norm"),
            row("no softmax", 1.5, **plain),
            row("no AdamW", 1.2, optimizer="adamw"),
            row("none", 2.0, unfused="norm,gelu", **plain),
            row("no softmax, other samples", 1.7, **plain, seq_len=7),
        )
    )
    assert [(what, one.name) for what, one in found] == [
        ("norm", "fused"),
        ("softmax", "fused"),
        ("AdamW", "fused"),
    ]
    assert [one.ratio for _, one in found] == [pytest.approx(r) for r in (1.1, 1.5, 1.2)]


def test_a_bar_names_its_base_and_is_judged_where_nobody_disturbed() -> None:
    def row(name: str, seconds: float, bar: float, **changes: Any) -> dict[str, Any]:
        return summary(name, seconds, settings=SETTINGS | {"bar": bar}, **changes)

    found = {"ranks": 1, "zero": 0, "precision": "bf16", "grad_accum": 1, "wrapped": "Model"}
    found |= {"recompute": False, "compile": False, "offload": False}
    other = {"framework": "huggingface", "layout_found": found | {"attention": "sdpa"}}
    best = {"layout_found": found | {"attention_kernel": "flash", "kernels": "LigerRMSNorm"}}
    seen = reached_goals(
        results_of(
            row("Trainer as it comes", 2.2, 2.0, **other),
            row("Trainer at its best", 1.1, 1.15, **other | best),
            row("ours", 2.0, 0.55, mfu_of_measured_matmul=0.6),
            row("ours, compiled", 1.0, 0.55),
            row("ours, busy", 1.5, 0.55, mfu_of_measured_matmul=0.3, disturbed="busy"),
        )
    )
    assert [(bar.name, bar.base, bar.kernels) for bar in seen[:2]] == [
        ("ours, compiled", "Trainer as it comes", "sdpa"),
        ("ours, compiled", "Trainer at its best", "flash, LigerRMSNorm"),
    ]
    assert [bar.ratio for bar in seen[:3]] == [pytest.approx(r) for r in (2.2, 1.1, 0.6)]
    assert [bar.is_met for bar in seen] == [True, False, True, None, None]
    assert seen[3].reason == "no matrix product was measured"
    text = printed(training_document(training_view(row("Trainer", 2.2, 2.0, **other))))
    assert "not judged: ours did not train" in text


def own(name: str, seconds: float, **changes: Any) -> dict[str, Any]:
    return summary(name, seconds, **{"settings": SETTINGS} | changes)


def compared(old: dict[str, Any], new: dict[str, Any]) -> Speedup:
    found = compare_trainings(training_view(old, name="a"), training_view(new, name="b"))
    assert found is not None
    (row,) = found.compared
    return row


def test_twice_as_slow_is_worse_and_alike_cannot_be_told() -> None:
    rows = [own("slower", 1.0), own("alike", 1.0), own("faster", 1.0)]
    later = [own("slower", 2.0), own("alike", 1.01), own("faster", 0.5)]
    found = compare_trainings(training_view(*rows, name="a"), training_view(*later, name="b"))
    assert found is not None
    assert [each.change for each in found.compared] == ["worse", "cannot tell", "better"]
    assert [each.differences for each in found.compared] == [(), (), ()]


def test_other_settings_under_one_name_are_said() -> None:
    row = compared(own("x", 1.0), own("x", 0.5, settings=SETTINGS | {"zero": 3}))
    assert (row.differences, row.change) == (("zero: 0 → 3",), "better")
    # Of a run that kept no settings what it asked for is compared.
    row = compared(summary("x", 1.0), own("x", 1.0, layout_asked={"ranks": 1, "zero": 0}))
    assert row.differences == ("ranks: 2 → 1",)


def test_the_text_is_known_by_its_digest_and_not_by_its_folder() -> None:
    def run(name: str, digest: str) -> RunView:
        record = Record(
            kind=Kind.MEASURED,
            benchmark="training",
            case={"experiment": "x", "data": digest},
            metric="time",
            unit="s",
            status=Status.FAILED,
            device="CPU",
        )
        folder = SETTINGS | {"data": name}
        return training_view(own("x", 1.0, settings=folder), name=name, records=(record,))

    for other, said in (("1234", ()), ("9999", ("data: 1234 → 9999",))):
        found = compare_trainings(run("a", "1234"), run("b", other))
        assert found is not None and found.compared[0].differences == said


def test_threads_and_software_as_found_are_said() -> None:
    found = {"ranks": 2, "zero": 0, "precision": "fp32", "grad_accum": 1, "recompute": False}
    found |= {"compile": False, "offload": False, "wrapped": "DDP", "threads": 1}
    old = own("x", 1.0, layout_found=found, software_found={"torch": "2.12", "nccl": "2"})
    new = own("x", 1.0, layout_found=found | {"threads": 2}, software_found={"torch": "2.13"})
    assert compared(old, new).differences == ("torch: 2.12 → 2.13", "observed threads: 1 → 2")


def test_other_devices_of_one_machine_are_said() -> None:
    old, new = (own("x", 1.0, cuda_visible_devices=seen) for seen in ("0", "3"))
    assert compared(old, new).differences == ("cuda_visible_devices: 0 → 3",)
    assert compared(old, own("x", 1.0)).differences == ()


def test_another_model_or_length_has_no_ratio() -> None:
    row = compared(own("x", 1.0), own("x", 0.5, model="bert", row_verdict="FAIL"))
    assert (row.ratio, row.change) == (None, "cannot tell") and "other work" in row.reason
    short = own("x", 1.0, tokens_per_s=8 * 64.0)
    row = compared(short, own("x", 0.5, tokens_per_s=16 * 128.0))
    assert row.ratio is None and "other work" in row.reason
    assert compared(short, own("x", 0.5, tokens_per_s=16 * 64.0)).change == "better"


def test_what_trained_and_fails_now_is_worse() -> None:
    fails = own("x", 1.0, row_verdict="FAIL", reason="rank 1 was ended by SIGKILL")
    row = compared(own("x", 1.0), fails)
    assert (row.change, row.reason) == ("worse", "agreed → FAIL: rank 1 was ended by SIGKILL")
    assert compared(fails, own("x", 1.0)).change == "better"
    assert compared(fails, fails).change == "cannot tell"


def test_on_another_device_nothing_is_judged() -> None:
    def run(name: str, device: str, seconds: float) -> RunView:
        record = Record(
            kind=Kind.MEASURED,
            benchmark="training",
            case={"experiment": "x"},
            metric="time",
            unit="s",
            value=seconds,
            device=device,
        )
        return training_view(own("x", seconds), name=name, records=(record,))

    found = compare_trainings(run("a", "RTX 3090", 1.0), run("b", "RTX 4090", 0.5))
    assert found is not None
    (row,) = found.compared
    assert row.ratio == pytest.approx(2.0) and row.change == "cannot tell" and not row.is_judged
    assert row.reason == "another device: RTX 3090 → RTX 4090"


@pytest.mark.parametrize("busy", ["a", "b"])
def test_a_disturbed_row_cannot_tell(busy: str) -> None:
    rows = {name: own("x", 1.0 if name == "a" else 3.0) for name in "ab"}
    rows[busy]["disturbed"] = "others"
    assert compared(rows["a"], rows["b"]).change == "cannot tell"


def rounds(rates: Sequence[float]) -> dict[str, Any]:
    """Quiet ones, of ten steps each."""
    each = [{"step_times_s": [8 / rate] * 10, "disturbed": None} for rate in rates]
    return own("x", 8 / rates[0], rounds=each, layout_asked={"ranks": 2, "device": "cpu"})


def test_rounds_of_two_runs_took_no_turns() -> None:
    """They scatter by 1 % each, and the machine's mood may have changed in between."""
    old = rounds([100.0, 101.0, 99.0])
    assert compared(old, rounds([112.0, 113.0, 111.0])).change == "cannot tell"
    row = compared(old, rounds([130.0, 131.0, 129.0]))
    assert row.basis == "rounds" and compared(own("x", 1.0), own("x", 1.0)).basis == "steps"
    assert row.change == "better" and row.low < 1.3 / 1.15 < row.ratio < row.high


def test_those_of_one_run_are_listed() -> None:
    old = training_view(own("x", 1.0), own("gone", 1.0), name="a")
    new = training_view(
        own("x", 1.0), own("added", 1.0), name="b", verdict=Verdict(outcome=Outcome.PASS, reason="")
    )
    found = compare_trainings(old, new)
    assert found is not None
    assert found.alone == (
        ("gone", "not in the new run"),
        ("added", "not in the old run, which was cut off"),
    )


# ---- files


def written(parent: Path, rows: Sequence[dict[str, Any]], names: Sequence[str] = ()) -> Path:
    planned = names or [row["name"] for row in rows]
    with create_run(parent, "train", {"experiments": [{"name": name} for name in planned]}) as run:
        for row in rows:
            run.append_series("experiments", row)
    return run.path


def call(*words: object) -> Result:
    return CliRunner().invoke(verb.command, [str(word) for word in words], standalone_mode=False)


def test_the_verb_ends_in_one_where_an_experiment_got_worse(tmp_path: Path) -> None:
    old = written(tmp_path / "a", [own("x", 1.0), own("y", 1.0)])
    new = written(tmp_path / "b", [own("x", 2.0, settings=SETTINGS | {"zero": 1}), own("y", 1.0)])
    worse = call(old, new, "--md", tmp_path / "c.md")
    assert worse.return_value == 1
    said = worse.stdout
    assert said.index("zero: 0 → 1") < said.index("0.50 ×") < said.index("worse")
    assert said.rstrip().endswith("1 worse, 1 cannot tell")
    text = (tmp_path / "c.md").read_text()
    assert "| x | zero: 0 → 1 | 0.50 × |" in text and "1 worse, 1 cannot tell" in text
    better = call(new, old, "--json")
    assert better.return_value == 0
    found = json.loads(better.stdout)
    assert found["counts"]["better"] == 1
    assert [row["change"] for row in found["experiments"]["compared"]] == ["better", "cannot tell"]


def test_unlike_machines_come_first(tmp_path: Path) -> None:
    def machine(model: str) -> dict[str, Any]:
        return {"cpu": {"model": model}}

    paths = []
    for name, model in (("a", "EPYC 7763"), ("b", "EPYC 9655")):
        with create_run(tmp_path / name, "train", {"experiments": [{"name": "x"}]}) as run:
            run.write_machine(machine(model))
            run.append_series("experiments", own("x", 1.0))
        paths.append(run.path)
    said = call(*paths).stdout
    assert said.index("EPYC 9655") < said.index("Samples/s, new over old")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_line_fits(tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    long = "ZeRO-3, accumulation, checkpointing, bf16"
    old = written(tmp_path / "a", [own(long, 1.0)])
    new = written(tmp_path / "b", [own(long, 2.0, settings=SETTINGS | {"zero": 3})])
    lines = call(old, new).stdout.splitlines()[3:]
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"name": "x"}, "is missing"),
        (own("x", 1.0, step_time_s="soon"), "step_time_s"),
        (own("x", 1.0, losses=[1.0]), "1 losses and 2 gradient norms"),
        (own("x", 1.0, samples_per_s=1e300), "samples_per_s"),
        (own("x", 1.0, breakdown={"forward": [1]}), "breakdown"),
    ],
)
def test_a_foreign_summary_is_one_line(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    old = written(tmp_path / "a", [own("x", 1.0)])
    new = written(tmp_path / "b", [own("y", 1.0), row], ["y", "x"])
    for found in (call(old, new), call(new, old)):
        assert isinstance(found.exception, DataError) and found.exception.exit_code == 2
        assert "experiments.jsonl:2" in found.exception.message
        assert words in found.exception.message and "\n" not in found.exception.message
        assert found.stdout == ""
    shown = CliRunner().invoke(report_verb.command, [str(new)], standalone_mode=False)
    assert shown.exception is None and "comparison of experiments:" in " ".join(
        shown.stdout.split()
    )


def test_a_run_that_was_cut_off_or_is_of_another_kind_is_one_line(tmp_path: Path) -> None:
    whole = written(tmp_path / "a", [own("x", 1.0)])
    empty = written(tmp_path / "b", [], ["x"])
    with create_run(tmp_path / "c", "qualify", {}) as run:
        pass
    for other, words in ((empty, "cut off before its first"), (run.path, "has no experiments")):
        found = call(whole, other)
        assert isinstance(found.exception, DataError) and words in found.exception.message


def test_a_torn_last_line_leaves_the_rest(tmp_path: Path) -> None:
    old = written(tmp_path / "a", [own("x", 1.0), own("y", 1.0)])
    new = written(tmp_path / "b", [own("x", 1.0), own("y", 1.0)])
    file = new / "series" / "experiments.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    said = call(old, new).stdout
    assert "not in the new run, which was cut off" in " ".join(said.split())


# ---- garbage

_VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from([1e308, -1.0, 0.0, 2**70, "PASS", "\x1b[2J", "`|<b>"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
GOOD = own(
    "x",
    1.0,
    rounds=[{"step_times_s": list(JITTER), "disturbed": None}] * 3,
    profiled={
        "step_s": 1.0,
        "own_s": 1.0,
        "communication_s": 0.0,
        "bubble_s": 0.0,
        "overlapped_s": 0.1,
    },
    breakdown={"forward": 0.5, "backward": 0.4},
    software_found={"torch": "2"},
)


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    st.dictionaries(st.sampled_from([*GOOD, "tokens_per_s", "mfu"]), _VALUES, max_size=3),
    st.dictionaries(st.sampled_from(["forward", "other"]), _VALUES, max_size=2),
)
def test_whatever_a_summary_holds_is_shown_or_refused(
    changes: dict[str, Any], parts: dict[str, Any]
) -> None:
    row = GOOD | changes
    if isinstance(row["breakdown"], dict):
        row["breakdown"] = row["breakdown"] | parts
    strange, good = (
        training_view(row, GOOD | {"name": "z"}, name="a"),
        training_view(GOOD, name="b"),
    )
    assert (fault(strange) is None) == bool(readable_results(strange))
    for page in (render_html([strange]), render_html([good, strange]), markdown(strange)):
        assert "\x1b" not in page
    for pair in ((strange, good), (good, strange)):
        with contextlib.suppress(TrainrigError):
            results(strange)
            compare_trainings(*pair)


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    rows = [GOOD, GOOD | {"name": "y"}]
    return written(folder / "a", rows), written(folder / "b", rows)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    st.integers(0, 2000),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
)
def test_a_truncated_or_damaged_file_is_compared_or_one_line(
    two_runs: tuple[Path, Path], end: int, changes: list[tuple[int, int]]
) -> None:
    file = two_runs[1] / "series" / "experiments.jsonl"
    whole = file.read_bytes()
    data = bytearray(whole)
    for place, byte in changes:
        data[place % len(data)] = byte
    file.write_bytes(bytes(data[: len(data) - end]))
    try:
        found = call(*two_runs)
    finally:
        file.write_bytes(whole)
    if found.exception is not None:
        assert isinstance(found.exception, DataError), found.exception
        assert "\n" not in found.exception.message and found.stdout == ""
    else:
        assert found.return_value in (0, 1, 3)
