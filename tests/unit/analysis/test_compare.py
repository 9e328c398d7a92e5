"""Two runs: what is joined, what is judged, what is said of the rest."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from training_summaries import printed
from trainrig.analysis.compare import Pair, RunComparison, compare_runs, differences, to_dict
from trainrig.cli import compare as verb
from trainrig.errors import DataError, UsageError
from trainrig.record import Case, Derivation, Kind, Record, RunView, Status
from trainrig.report.compare_report import comparison_document, comparisons_document, headline
from trainrig.report.document import Table
from trainrig.report.render.markdown import to_markdown
from trainrig.stats import Change
from trainrig.store import create_run

AMOUNT = 1e12


def matmul(size: int, dtype: str = "bf16") -> Case:
    return {"dtype": dtype, "m": size, "k": size, "n": size, "cache": "hot"}


def point(
    case: Case, rates: Sequence[float], *, metrics: Iterable[str] = ("flop_rate",), **fields: Any
) -> list[Record]:
    """Attempts with these rates, and the points they settle on."""
    common: dict[str, Any] = {"kind": Kind.MEASURED, "benchmark": "matmul", "case": case}
    common |= {"device": "RTX 4090", "device_index": 0}
    disturbed = fields.pop("disturbed", None)
    common |= fields
    attempts = [
        Record(**common, metric="time", unit="s", value=AMOUNT / rate, attempt=number)
        for number, rate in enumerate(rates, start=1)
    ]
    derived = Derivation(ids=tuple(attempt.id for attempt in attempts), formula="f")
    units = {"flop_rate": "FLOP/s", "byte_rate": "B/s", "time": "s"}
    value = sum(rates) / max(len(rates), 1)
    return attempts + [
        Record(
            **common,
            metric=metric,
            unit=units[metric],
            value=AMOUNT / value if metric == "time" else value,
            derived=derived,
            disturbed=disturbed,
        )
        for metric in metrics
    ]


def run(*points: list[Record], name: str = "run", **fields: Any) -> RunView:
    return RunView(name=name, records=tuple(record for each in points for record in each), **fields)


def near(rate: float, seed: int, scatter: float = 0.002) -> tuple[float, float]:
    rng = random.Random(seed)
    return rate * math.exp(rng.gauss(0, scatter)), rate * math.exp(rng.gauss(0, scatter))


def changes(comparison: RunComparison) -> dict[object, Change]:
    return {
        (each.pair.record.case.get("m"), each.pair.record.device_index): each.change
        for each in comparison.judged
    }


def reasons(comparison: RunComparison) -> list[str]:
    return [each.reason for each in comparison.unjudged]


# ---------------------------------------------------------------- what is judged


def test_better_worse_same_and_cannot_tell() -> None:
    old = run(*(point(matmul(size), near(1e14, size)) for size in range(20)))
    rates = {3: 0.9e14, 5: 1.2e14}
    new = run(*(point(matmul(size), near(rates.get(size, 1e14), 99 + size)) for size in range(20)))
    comparison = compare_runs(old, new)
    found = changes(comparison)
    assert (found[3, 0], found[5, 0]) == (Change.WORSE, Change.BETTER)
    assert comparison.is_worse
    assert comparison.count(Change.WORSE) == comparison.count(Change.BETTER) == 1
    assert comparison.count(Change.SAME) > 10  # 0.2 % of scatter is enough to say so
    # Worse first, then better, whatever the size of the change.
    assert [each.change for each in comparison.judged[:2]] == [Change.WORSE, Change.BETTER]
    worst = comparison.judged[0]
    assert worst.comparison.ratio == pytest.approx(0.9, rel=0.01)
    assert worst.smallest_visible < 0.05
    assert not compare_runs(new, new).is_worse


def test_two_noisy_workers_cannot_tell_a_small_change() -> None:
    old = run(*(point(matmul(size), near(1e14, size, 0.02)) for size in range(20)))
    rates = {3: 0.97e14}
    new = run(
        *(point(matmul(size), near(rates.get(size, 1e14), size + 50, 0.02)) for size in range(20))
    )
    comparison = compare_runs(old, new)
    assert set(changes(comparison).values()) == {Change.CANNOT_TELL}
    assert not comparison.is_worse
    assert all(each.smallest_visible > 0.04 for each in comparison.judged)


def test_a_shorter_time_is_better() -> None:
    old = run(point(matmul(1), (1e14, 1.001e14), metrics=["time"]))
    new = run(point(matmul(1), (2e14, 2.001e14), metrics=["time"]))
    (judged,) = compare_runs(old, new).judged
    assert judged.change is Change.BETTER
    assert judged.comparison.ratio == pytest.approx(0.5, rel=0.01)
    assert judged.gain == pytest.approx(2.0, rel=0.01)


def test_two_metrics_of_the_same_times_are_one_comparison() -> None:
    both = ["byte_rate", "flop_rate"]
    old = run(point(matmul(1), near(1e12, 1), metrics=both))
    new = run(point(matmul(1), near(1e12, 2), metrics=both))
    (judged,) = compare_runs(old, new).judged
    assert judged.pair.record.metric == "byte_rate"


def test_the_values_are_those_of_the_workers_that_the_point_names() -> None:
    """A third worker that was outvoted is not in the ratio."""
    outvoted = point(matmul(1), (5e13,))[0].replace(attempt=3)
    old = run(point(matmul(1), (1e14, 1.001e14)), [outvoted])
    new = run(point(matmul(1), (1e14, 1.001e14)))
    (judged,) = compare_runs(old, new).judged
    assert judged.comparison.ratio == pytest.approx(1.0)


def test_points_whose_workers_disagreed_make_the_others_less_sure() -> None:
    """Never judged, but to leave them out would make the rest look better known than it is."""

    def whole(seed: int, *, noisy: bool) -> RunView:
        quiet = [point(matmul(size), near(1e14, seed + size, 0.004)) for size in range(10)]
        wild = [
            point(matmul(100 + size), (1e14, 1.1e14), disturbed="2 workers disagree by 9 %")
            for size in range(10)
        ]
        return run(*quiet, *(wild if noisy else []))

    calm = compare_runs(whole(0, noisy=False), whole(50, noisy=False))
    rough = compare_runs(whole(0, noisy=True), whole(50, noisy=True))
    assert len(calm.judged) == len(rough.judged) == 10
    sure = {each.pair.record.case["m"]: each.smallest_visible for each in calm.judged}
    assert all(each.smallest_visible > sure[each.pair.record.case["m"]] for each in rough.judged)


def test_workers_that_were_outvoted_make_the_others_less_sure() -> None:
    def whole(seed: int, *, third: bool) -> RunView:
        own = [point(matmul(size), near(1e14, seed + size, 0.004)) for size in range(10)]
        odd = [
            [records[0].replace(id=f"{seed}o{size}", value=AMOUNT / 0.9e14, attempt=3)]
            for size, records in enumerate(own)
        ]
        return run(*own, *(odd if third else []))

    calm = compare_runs(whole(0, third=False), whole(50, third=False))
    split = compare_runs(whole(0, third=True), whole(50, third=True))
    sure = {each.pair.record.case["m"]: each.smallest_visible for each in calm.judged}
    assert all(each.smallest_visible > sure[each.pair.record.case["m"]] for each in split.judged)


def test_attempts_of_a_search_and_on_a_busy_machine_say_nothing_of_the_scatter() -> None:
    def whole(seed: int, *, more: bool) -> RunView:
        own = [point(matmul(size), near(1e14, seed + size, 0.004)) for size in range(10)]
        extra = [
            [
                records[0].replace(id=f"{seed}s{size}", value=9.0, conditions={"search": 1}),
                records[0].replace(id=f"{seed}b{size}", value=9.0, disturbed="load 9"),
            ]
            for size, records in enumerate(own)
        ]
        return run(*own, *(extra if more else []))

    plain = compare_runs(whole(0, more=False), whole(50, more=False))
    again = compare_runs(whole(0, more=True), whole(50, more=True))
    assert [each.comparison for each in plain.judged] == [each.comparison for each in again.judged]


# ---------------------------------------------------------------- which cards meet


def test_one_card_of_eight_that_got_slower_is_seen() -> None:
    def whole(seed: int, slow: float) -> RunView:
        return run(
            *(
                point(
                    matmul(size),
                    near(1e14 * (slow if index == 3 else 1.0), seed * 999 + size * 8 + index),
                    device_index=index,
                )
                for size in range(6)
                for index in range(8)
            )
        )

    found = changes(compare_runs(whole(1, 1.0), whole(2, 0.95)))
    worse = {place for place, change in found.items() if change is Change.WORSE}
    assert worse == {(size, 3) for size in range(6)}
    assert len(found) == 48


def test_a_single_card_meets_itself_in_another_slot() -> None:
    old = run(point(matmul(1), near(1e14, 1), device_index=0))
    new = run(point(matmul(1), near(1e14, 2), device_index=5))
    assert len(compare_runs(old, new).judged) == 1


def test_a_card_that_is_gone_is_said() -> None:
    old = run(*(point(matmul(1), near(1e14, index), device_index=index) for index in (0, 1)))
    new = run(point(matmul(1), near(1e14, 2), device_index=0))
    comparison = compare_runs(old, new)
    # The one card left may be either of the two: the number tells.
    assert [each.pair.record.device_index for each in comparison.judged] == [0]
    assert reasons(comparison) == ["only in the old run"]


def test_cards_with_other_numbers_do_not_meet_where_there_were_several() -> None:
    old = run(*(point(matmul(1), near(1e14, index), device_index=index) for index in (0, 1)))
    new = run(point(matmul(1), near(1e14, 2), device_index=2))
    comparison = compare_runs(old, new)
    assert (comparison.judged, comparison.side_by_side) == ((), ())
    assert len(comparison.unjudged) == 3


def test_alone_and_all_at_once_do_not_meet() -> None:
    old = run(point(matmul(1), near(1e14, 1), device_count=1))
    new = run(point(matmul(1), near(1e14, 2), device_count=2))
    comparison = compare_runs(old, new)
    assert comparison.judged == ()
    assert reasons(comparison) == ["only in the new run", "only in the old run"]


# ---------------------------------------------------------------- what is never judged


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"disturbed": "load 3.2 on 2 cores"}, "new: noisy: load 3.2 on 2 cores"),
        ({"status": Status.OOM, "value": None, "reason": "24 GiB"}, "new: oom: 24 GiB"),
        ({"status": Status.SKIPPED, "value": None}, "new: skipped: no reason given"),
        ({"derived": None}, "new: 0 workers' values in the run, 2 are needed"),
        (
            {"derived": Derivation(ids=("gone", "lost"), formula="f")},
            "new: 0 workers' values in the run, 2 are needed",
        ),
    ],
)
def test_a_bad_point_is_listed_with_its_reason(fault: Mapping[str, Any], reason: str) -> None:
    good, bad = point(matmul(1), near(1e14, 1)), point(matmul(1), near(5e13, 2))
    bad[-1] = bad[-1].replace(**fault)
    comparison = compare_runs(run(good), run(bad))
    assert (comparison.judged, reasons(comparison)) == ((), [reason])
    assert not comparison.is_worse
    turned = compare_runs(run(bad), run(good))
    assert reasons(turned) == [reason.replace("new:", "old:", 1)]


@pytest.mark.parametrize("time", [5e-324, 1e-16, 1e13, 1.7e308, -1.0, 0.0])
def test_a_time_that_no_call_takes_is_no_worker(time: float) -> None:
    absurd = [record.replace(value=time) for record in point(matmul(1), near(1e14, 1))]
    comparison = compare_runs(run(absurd), run(point(matmul(1), near(1e14, 2))))
    assert reasons(comparison) == ["old: 0 workers' values in the run, 2 are needed"]
    show(comparison)


def test_values_too_far_apart_for_a_ratio_have_none() -> None:
    one, other = point(matmul(1), near(1e14, 1)), point(matmul(1), near(1e14, 2), device="H200")
    tiny, huge = one[-1].replace(value=1e-300), other[-1].replace(value=1e300)
    assert Pair(old=tiny, new=huge).ratio is None
    show(compare_runs(run([*one[:2], tiny]), run([*other[:2], huge])))


def test_one_worker_is_not_enough() -> None:
    one = point(matmul(1), (1e14,))
    two = point(matmul(1), near(1e14, 1))
    assert reasons(compare_runs(run(two), run(one))) == [
        "new: 1 workers' values in the run, 2 are needed"
    ]


def test_a_case_that_failed_is_listed_once_though_it_has_two_metrics() -> None:
    both = ["byte_rate", "flop_rate"]
    good = point(matmul(1), near(1e14, 1), metrics=both)
    bad = good[:2] + [good[2].replace(status=Status.FAILED, value=None, reason="wrong answer")]
    assert reasons(compare_runs(run(good), run(bad))) == ["new: failed: wrong answer"]


def test_versions_of_a_benchmark_are_never_compared() -> None:
    old = run(point(matmul(1), near(1e14, 1)))
    new = run(point(matmul(1), near(5e13, 2), version=2))
    comparison = compare_runs(old, new)
    assert (comparison.judged, comparison.side_by_side) == ((), ())
    assert set(reasons(comparison)) == {
        "version 1 and 2 of the benchmark: different versions are never compared"
    }


def test_a_repeated_point_counts_once_with_its_last_value() -> None:
    busy = point(matmul(1), (3e13, 9e13), disturbed="load 4")
    calm = point(matmul(1), near(1e14, 1))
    comparison = compare_runs(run(busy, calm), run(point(matmul(1), near(1e14, 2))))
    assert len(comparison.judged) == 1
    assert comparison.unjudged == ()


def test_different_device_models_stand_side_by_side_unjudged() -> None:
    host = {"device": "EPYC 7B12", "device_index": None}
    old = run(
        *(point(matmul(1), near(1e14, index), device_index=index) for index in range(2)),
        point(matmul(1), near(1e11, 3), **host),
    )
    new = run(
        point(matmul(1), near(3e14, 4), device="H200"), point(matmul(1), near(1e11, 5), **host)
    )
    comparison = compare_runs(old, new)
    assert [each.pair.record.device for each in comparison.judged] == ["EPYC 7B12"]
    ((pair),) = comparison.side_by_side
    assert pair.old is not None
    assert (pair.old.device, pair.old.device_index, pair.record.device) == ("RTX 4090", 0, "H200")
    assert pair.ratio == pytest.approx(3.0, rel=0.02)
    assert not comparison.is_worse
    assert "measured devices" in [each.what for each in comparison.differences]


def test_a_cut_off_run_and_an_empty_one_compare_to_nothing() -> None:
    empty, some = RunView(name="empty"), run(point(matmul(1), near(1e14, 1)))
    for old, new in ((empty, empty), (some, empty), (empty, some)):
        comparison = compare_runs(old, new)
        assert comparison.judged == ()
        assert headline(comparison).startswith("nothing was compared")
        assert not comparison.has_compared
        show(comparison)


# ---------------------------------------------------------------- what is unlike

MACHINE = {
    "host": {"hostname": "a", "kernel": "6.1", "os": {"missing": "no os-release"}},
    "cpu": {"model": "EPYC", "quota_cpus": None},
    "memory": {"total_bytes": 64 * 2**30},
    "software": {
        "torch": "2.13.0",
        "torch_cuda": None,
        "nvidia_driver": "580.1",
        "packages": {"torch": "2.13.0", "triton": "3.1"},
        "environment": {"OMP_NUM_THREADS": "2"},
    },
    "gpus": [
        {"name": "RTX 4090", "power_limit_w": 450.0, "ecc": False},
        {"name": "RTX 4090", "power_limit_w": 450.0, "ecc": {"missing": "no"}},
    ],
}


def unlike(change: Mapping[str, Any], **config: Any) -> dict[str, tuple[str, str]]:
    def merged(old: Any, new: Any) -> Any:
        if not isinstance(old, Mapping) or not isinstance(new, Mapping) or "missing" in new:
            return new
        return {**old, **{name: merged(old.get(name), value) for name, value in new.items()}}

    old = RunView(name="old", machine=MACHINE, config={"trainrig": "0.1.0", "budget_s": 60.0})
    new = RunView(name="new", machine=merged(MACHINE, change), config={**old.config, **config})
    return {each.what: (each.old, each.new) for each in differences(old, new)}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {}),
        ({"host": {"hostname": "b"}}, {"host": ("a", "b")}),
        ({"host": {"kernel": {"missing": "?"}}}, {}),  # unknown is no difference
        ({"host": {"os": "Debian 12"}}, {}),
        ({"cpu": {"quota_cpus": 2.0}}, {"CPU quota": ("none", "2.0")}),
        ({"memory": {"total_bytes": 2**30}}, {"memory": ("64.0 GiB", "1.0 GiB")}),
        ({"software": {"torch": "2.12.0"}}, {"torch": ("2.13.0", "2.12.0")}),
        ({"software": {"torch_cuda": "13.0"}}, {"torch's CUDA": ("none", "13.0")}),
        ({"software": {"nvidia_driver": "590.2"}}, {"driver": ("580.1", "590.2")}),
        ({"software": {"packages": {"triton": "3.2"}}}, {"package triton": ("3.1", "3.2")}),
        (
            {"software": {"environment": {"NVIDIA_TF32_OVERRIDE": "0"}}},
            {"variable NVIDIA_TF32_OVERRIDE": ("none", "0")},
        ),
        ({"gpus": MACHINE["gpus"][:1]}, {"number of GPUs": ("2", "1")}),
        (
            {"gpus": [{**MACHINE["gpus"][0], "power_limit_w": 300.0, "ecc": True}] * 2},
            {"power limit": ("450 W", "300 W"), "ECC": ("off", "on")},
        ),
        ({"gpus": {"missing": "no driver"}}, {}),
        ({"gpus": [3, [4]], "software": 5, "cpu": [], "host": {"hostname": [1]}}, ...),
    ],
)
def test_what_is_unlike_is_said_with_both_values(change: Any, expected: Any) -> None:
    found = unlike(change)
    assert expected is ... or found == expected


def test_the_program_and_its_budget_are_part_of_it() -> None:
    assert unlike({}, trainrig="0.2.0", budget_s=240.0) == {
        "trainrig": ("0.1.0", "0.2.0"),
        "budget": ("1 min", "4 min"),
    }


def test_a_digest_that_nothing_explains_is_shown_itself() -> None:
    old = run(point(matmul(1), near(1e14, 1), environment="aaaa"))
    new = run(point(matmul(1), near(1e14, 2), environment="bbbb"))
    (only,) = differences(old, new)
    assert (only.what, only.old, only.new) == ("environment digest", "aaaa", "bbbb")


# ---------------------------------------------------------------- how it is shown


def show(comparison: RunComparison, width: int = 80) -> str:
    document = comparison_document(comparison)
    to_markdown(document)
    json.dumps(to_dict(comparison), allow_nan=False)
    return printed(document, width)


def table_of(comparison: RunComparison, title: str) -> Table:
    tables = [b for b in comparison_document(comparison).blocks if isinstance(b, Table)]
    (table,) = [table for table in tables if table.title == title]
    return table


def example() -> RunComparison:
    def whole(seed: int, slow: float, name: str) -> RunView:
        gpu = [
            point(
                matmul(size),
                near(1.6e14 * (slow if index else 1.0), seed * 99 + size + index, 0.001),
                device_index=index,
            )
            for size in (1024, 16384)
            for index in (0, 1)
        ]
        bad = point(matmul(8192), (1e14, 2e14), disturbed="2 workers disagree by 50 %")
        machine = {"software": {"torch": f"2.{seed}"}}
        return run(*gpu, bad, name=name, machine=machine)

    return compare_runs(whole(1, 1.0, "first"), whole(2, 0.8, "second"))


def test_the_terminal_shows_the_worst_first_in_eighty_columns() -> None:
    text = show(example())
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())
    titles = [
        line.strip() for line in text.splitlines() if line.startswith(("Setup", "RTX", "Not"))
    ]
    assert titles == ["Setup differences", "RTX 4090 #1", "RTX 4090 #0", "Not judged"]
    assert "worse  matmul bf16 16384³  160 TFLOPS  128 TFLOPS" in text.replace("161", "160")
    assert "2 workers disagree by 50 %" in text
    assert headline(example()) == "2 worse, 2 the same; 1 not judged"


def test_what_hardly_moved_is_counted_below_the_table() -> None:
    table = table_of(example(), "RTX 4090 #0")
    assert table.rows == ()
    assert len(table.notes) == 1
    assert table.notes[0].startswith("2 the same: moved by 1.0 % at most; could see ")


def test_reasons_that_differ_in_numbers_alone_are_one_row() -> None:
    some = run(*(point(matmul(size), near(1e14, size)) for size in range(1, 5)))
    skipped = run(
        *(
            [point(matmul(size), ())[-1].replace(status=Status.SKIPPED, value=None, reason=why)]
            for size, why in ((1, "takes 1.5 s"), (2, "takes 12 s"), (3, "no room"), (4, "no room"))
        )
    )
    assert table_of(compare_runs(some, skipped), "Not judged").rows == (
        ("matmul bf16 1³ and 1 more", "new: skipped: takes 1.5 s; the others alike"),
        ("matmul bf16 3³ and 1 more", "new: skipped: no room"),
    )


def test_markdown_is_a_page_and_a_name_is_no_markup() -> None:
    comparison = replace(example(), old="<script>x|y", new="`n*e*w`")
    text = to_markdown(comparison_document(comparison))
    assert text.startswith("- old: \\<script\\>x\\|y\n- new: \\`n\\*e\\*w\\`\n")
    table = [line for line in text.splitlines() if line.startswith("| worse")]
    assert len(table) == 2
    assert table[0].count("|") == 7


def test_json_has_everything_in_base_units() -> None:
    found = to_dict(example())
    assert found["result"] == "worse"
    assert found["counts"] == {"better": 0, "worse": 2, "same": 2, "cannot tell": 0}
    worst = found["judged"][0]
    assert worst["change"] == "worse"
    assert worst["interval"][0] < worst["ratio"] < worst["interval"][1]
    assert worst["old"]["value"] > 1e14
    assert worst["old"]["device_index"] == 1
    assert found["unjudged"][0]["reason"] == "old: noisy: 2 workers disagree by 50 %"


# ---------------------------------------------------------------- the verb


def written(parent: Path, slow: float, seed: int) -> Path:
    with create_run(parent, "qualify", {}) as writer:
        for size in range(6):
            for record in point(matmul(size), near(1e14 * slow, seed + size)):
                writer.append(record)
    return writer.path


def call(*words: object) -> Result:
    return CliRunner().invoke(verb.command, [str(word) for word in words], standalone_mode=False)


def test_the_verb_ends_in_one_when_something_got_worse(tmp_path: Path) -> None:
    old, new = written(tmp_path / "a", 1.0, 1), written(tmp_path / "b", 0.8, 50)
    worse = call(old, new, "--md", tmp_path / "c.md")
    assert worse.return_value == 1
    assert worse.stdout.rstrip().endswith("6 worse")
    assert "6 worse" in (tmp_path / "c.md").read_text()
    better = call(new, old, "--json")
    assert better.return_value == 0
    assert json.loads(better.stdout)["counts"]["better"] == 6


def test_the_verb_ends_in_three_where_nothing_was_compared(tmp_path: Path) -> None:
    """A gate that compared nothing must not be green."""
    paths = []
    for name in "ab":
        with create_run(tmp_path / name, "qualify", {}) as writer:
            for record in point(matmul(1), near(1e14, 1), disturbed="load 9"):
                writer.append(record)
        paths.append(writer.path)
    for more in ([], ["--json"]):
        assert call(*paths, *more).return_value == 3
    assert "Nothing was compared; 1 not judged" in call(*paths).stdout


def test_a_run_and_its_copy_are_one_run(tmp_path: Path) -> None:
    """A copy that was resumed holds more; what both hold is the same measurement."""
    old = written(tmp_path / "a", 1.0, 1)
    copy = shutil.copytree(old, tmp_path / "another name")
    (copy / "verdict.json").unlink(missing_ok=True)
    for other in (old, tmp_path / "a", copy):  # itself, the folder that holds it, a copy
        found = call(old, other)
        assert isinstance(found.exception, UsageError) and "are one run" in str(found.exception)
        assert found.stdout == ""


def test_the_verb_refuses_what_is_no_run(tmp_path: Path) -> None:
    old = written(tmp_path / "a", 1.0, 1)
    result = CliRunner().invoke(verb.command, [str(old), str(tmp_path / "none")])
    assert isinstance(result.exception, DataError)
    assert result.stdout == ""


def several() -> list[RunComparison]:
    def one(name: str, seed: int, slow: float) -> RunView:
        cases = [point(matmul(n), near(1.6e14 * slow, seed * 9 + n, 0.001)) for n in (512, 1024)]
        return run(*cases, name=name, machine={"software": {"torch": f"2.{seed}"}})

    base = one("golden", 1, 1.0)
    return [compare_runs(base, one("monday", 2, 1.0)), compare_runs(base, one("tuesday", 3, 0.8))]


def test_several_runs_stand_against_one_baseline_in_one_table() -> None:
    document = comparisons_document(several())
    (cases,) = [b for b in document.blocks if isinstance(b, Table) and b.title == "RTX 4090"]
    assert [one.head for one in cases.columns] == ["case", "baseline", "1", "2"]
    texts = [[cell.small for cell in cells] for _, cells in cases.lines()]
    assert len(texts) == 2
    assert all("−20 %" in row[3] and "−20 %" not in row[2] for row in texts)
    text = to_markdown(document)
    assert text.index("All in all") < text.index("Setup differences")
    assert "- baseline: golden" in text
    assert text.count("**Setup differences**") == 1  # a column a run
    assert "2 worse" in text


def test_one_run_is_compared_as_ever() -> None:
    assert comparisons_document([example()]) == comparison_document(example())


def test_the_verb_takes_several_runs_and_writes_a_page(tmp_path: Path) -> None:
    runs = [
        written(tmp_path / name, slow, 9 * n)
        for n, (name, slow) in enumerate((("golden", 1.0), ("same", 1.0), ("slow", 0.8)))
    ]
    page = tmp_path / "page.html"
    result = call(*runs, "--html", page, "--json")
    assert result.return_value == 1
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["result"] for one in found] == ["not worse", "worse"]
    assert "against the baseline" in page.read_text()
    twice = call(runs[0], runs[1], runs[1])
    assert isinstance(twice.exception, UsageError)
