"""The verdict: each rule with the fault that it catches, and a healthy case it leaves alone."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest

from runner_fakes import ids, planned, point, quiet
from trainrig.analysis.judge import confirm, judge
from trainrig.analysis.run_commands import new_command, resume_command, with_current_path
from trainrig.benchmarks.storage import storage_case
from trainrig.measure.aggregate import Subject, attempt_record, point_records
from trainrig.process.worker import Reply, Request
from trainrig.record import Finding, Limit, Outcome, Record, Status

LOW, HIGH = 150e12, 180e12
FLOPS = 2 * 8192**3
ABLE = (FLOPS / 165e12, FLOPS / 166e12)
SLOW = tuple(time / 0.92 for time in ABLE)
BELOW = (FLOPS / 100e12, FLOPS / 101e12)
"""s of two workers."""


def workers(
    *seconds: float, index=0, size=8192, name="matmul", case=None, busy=None, first=None, **more
):
    """What fresh workers answered, and the points that come of it."""
    case = case or {"dtype": "fp16", "m": size, "k": size, "n": size, "cache": "hot"}
    request = Request(benchmark=name, module="", case=case, settings={}, timeout=1.0)
    subject = Subject(device="RTX 4090", index=index, count=1, environment="e")
    scale = (size / 8192) ** 3
    replies = [replace(quiet(each * scale), disturbed=busy, **more) for each in seconds]
    replies = replies if first is None else [first, *replies]
    taken = [attempt_record(request, each, subject, n) for n, each in enumerate(replies, 1)]
    return [*taken, *point_records(taken)]


def run_of(records, low=LOW, **changes):
    """A run that planned all of them as required, for a band from ``low``."""
    points = [record for record in records if record.is_point]
    return [*(planned(one, low, HIGH, **changes) for one in points), *records]


def test_a_point_within_its_band_passes():
    good = point(165e12)
    verdict = judge([planned(good, LOW, HIGH), good])
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == ()
    assert verdict.reason == (
        "all required steps ran, 1 of 1 had a target and reached it; "
        "1 point within the expected band"
    )


def test_clearly_below_the_band_fails_and_names_the_number():
    slow = point(20e12)
    verdict = judge([planned(slow, LOW, HIGH), slow])
    assert verdict.outcome is Outcome.FAIL
    assert ids(verdict.findings) == ["below-band"]
    assert "20.0 TFLOPS" in verdict.findings[0].evidence
    assert "150 to 180 TFLOPS" in verdict.findings[0].evidence


def test_an_interval_that_reaches_into_the_band_decides_nothing():
    unsure = point(145e12, spread=0.10)
    verdict = judge([planned(unsure, LOW, HIGH), unsure])
    assert verdict.outcome is Outcome.INCOMPLETE
    assert "its interval reaches the band" in verdict.reason


def test_two_workers_below_the_band_are_undecided_and_a_second_round_decides():
    verdict = judge(run_of(workers(*BELOW)))
    assert verdict.outcome is Outcome.INCOMPLETE
    assert verdict.reason == (
        "required and not decided: fp16 matmul on RTX 4090 #0 (at least 99.9 TFLOPS of 150 TFLOPS: "
        "below it in one round)"
    )
    assert ids(verdict.findings) == ["step-not-done"]
    assert "--budget" in verdict.findings[0].fix
    verdict = judge(run_of(workers(*BELOW, *BELOW)))
    assert verdict.outcome is Outcome.FAIL
    assert ids(verdict.findings) == ["below-band"]


def test_noise_takes_nothing_from_what_reaches_its_band_and_excuses_what_does_not():
    busy = "other processes used 40 % of the processors"
    verdict = judge(run_of(workers(*ABLE, busy=busy)))
    assert verdict.outcome is Outcome.PASS
    assert ids(verdict.findings) == ["noisy"]
    verdict = judge(run_of(workers(*BELOW, *BELOW, busy=busy)))
    assert verdict.outcome is Outcome.INCOMPLETE
    assert ids(verdict.findings) == ["step-not-done", "noisy"]
    assert busy in verdict.reason
    assert all("stop what else runs" in finding.fix for finding in verdict.findings)
    # No target: two right answers are enough, however noisy.
    bare = {"value": None, "interval": None, "status": Status.MISSING}
    assert judge(run_of(workers(*BELOW, busy=busy), **bare)).outcome is Outcome.MEASURED
    assert judge(run_of(workers(BELOW[0]), **bare)).outcome is Outcome.INCOMPLETE


def test_noisy_cases_are_counted_once_however_many_numbers_they_have():
    busy = "other processes used 40 % of the processors"
    case = {"op": "scale", "dtype": "fp32", "num_elements": 1 << 20, "cache": "hot"}
    found = workers(1e-3, 1e-3, busy=busy, name="vector", case=case)
    (noisy,) = [f for f in judge(found).findings if f.id == "noisy"]
    assert len([record for record in found if record.is_point]) == 2
    assert noisy.evidence.startswith("noisy: 1 of 1 case,")


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    "reason",
    [
        "AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx",
        "the worker for cuda:0 did not start: RuntimeError: No CUDA GPUs are available",
    ],
)
def test_a_gpu_that_fails_in_any_case_fails_the_run(required, reason):
    dead = [point(None, size=size, status=Status.FAILED, reason=reason) for size in (512, 1024)]
    plan = [
        planned(one, LOW, HIGH, conditions={"step": "bf16 matmul", "required": required})
        for one in dead
    ]
    verdict = judge([*run_of(workers(*ABLE)), *plan, *dead])
    assert verdict.outcome is Outcome.FAIL
    (found,) = [f for f in verdict.findings if f.id == "device-failed"]
    assert "and 1 more case" in found.evidence and reason in found.evidence
    assert "case-failed" not in ids(verdict.findings)


def test_an_error_of_cuda_counts_though_the_next_worker_was_right():
    lost = Reply(status=Status.FAILED, reason="AcceleratorError: CUDA error: GPU is lost")
    verdict = judge(run_of(workers(*ABLE, first=lost)))
    assert verdict.outcome is Outcome.FAIL
    assert ids(verdict.findings) == ["device-failed"]


@pytest.mark.parametrize(
    ("reason", "index"),
    [
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied", 0),
        ("the worker for cuda:0 did not start: not within 12 s", 0),
        ("the worker for cpu did not start: no module named torch", None),
    ],
)
def test_what_is_no_fault_of_a_gpu_is_a_warning(reason, index):
    failed = point(None, size=512, index=index, status=Status.FAILED, reason=reason)
    optional = planned(failed, LOW, HIGH, conditions={"step": "other", "required": False})
    verdict = judge([*run_of(workers(*ABLE)), optional, failed])
    assert verdict.outcome is Outcome.PASS
    assert ids(verdict.findings) == ["case-failed"]


def test_a_gpu_that_slows_itself_down_is_judged_and_told_apart_from_noise():
    hot = {"throttle_reasons": "sw_power_cap,hw_thermal_slowdown", "temperature_c": 97.0}
    verdict = judge(run_of(workers(*BELOW, conditions=hot)))
    assert verdict.outcome is Outcome.FAIL
    (found,) = [f for f in verdict.findings if f.id == "throttled"]
    assert found.severity == "error"
    assert "hw_thermal_slowdown" in found.evidence and "97 °C" in found.evidence
    assert "sw_power_cap" not in found.evidence and "airflow" in found.fix
    verdict = judge(run_of(workers(*ABLE, conditions=hot)))
    assert verdict.outcome is Outcome.PASS
    assert [(f.id, f.severity) for f in verdict.findings] == [("throttled", "warning")]
    capped = {"throttle_reasons": "sw_power_cap"}
    assert judge(run_of(workers(*ABLE, conditions=capped))).findings == ()


def test_another_size_satisfies_the_step_when_one_is_disturbed():
    busy, good = point(20e12, disturbed="busy"), point(165e12, size=8192)
    plan = [planned(busy, LOW, HIGH), planned(good, LOW, HIGH)]
    assert judge([*plan, busy, good]).outcome is Outcome.PASS


@pytest.mark.parametrize("status", [Status.SKIPPED, Status.TIMEOUT, Status.OOM, Status.FAILED])
def test_a_required_step_without_a_value_is_incomplete(status):
    failed = point(None, status=status, reason="why not")
    verdict = judge([planned(failed, LOW, HIGH), failed])
    assert verdict.outcome is Outcome.INCOMPLETE
    assert "fp16 matmul on RTX 4090 #0" in verdict.reason
    assert any("why not" in finding.evidence for finding in verdict.findings)


def test_a_required_step_that_never_ran_is_incomplete():
    verdict = judge([planned(point(1.0), LOW, HIGH)])
    assert verdict.outcome is Outcome.INCOMPLETE
    assert "not run" in verdict.findings[0].evidence


def test_a_device_that_dies_under_load_is_not_saved_by_its_smallest_product():
    died = point(None, size=8192, status=Status.FAILED, reason="the worker died with SIGSEGV")
    small, large = point(1e12, size=128), point(165e12, size=16384)
    trivial = planned(small, 0.5e12, 2e12, conditions={"step": "fp16 matmul", "required": False})
    plan = [planned(died, LOW, HIGH), trivial]
    assert judge([*plan, died, small]).outcome is Outcome.INCOMPLETE
    verdict = judge([*plan, planned(large, LOW, HIGH), died, small, large])
    assert verdict.outcome is Outcome.INCOMPLETE
    assert "SIGSEGV" in verdict.findings[0].evidence


def test_a_case_that_does_not_tell_does_not_satisfy_its_step():
    busy, small = point(20e12, disturbed="busy"), point(1e12, size=128)
    trivial = planned(small, 0.5e12, 2e12, conditions={"step": "fp16 matmul", "required": False})
    assert judge([planned(busy, LOW, HIGH), trivial, busy, small]).outcome is Outcome.INCOMPLETE


def test_an_optional_step_may_be_skipped():
    good, skipped = point(165e12), point(None, size=128, status=Status.SKIPPED, reason="no time")
    optional = planned(skipped, LOW, HIGH, conditions={"step": "other", "required": False})
    verdict = judge([planned(good, LOW, HIGH), optional, good, skipped])
    assert verdict.outcome is Outcome.PASS


def test_a_wrong_answer_fails_whatever_the_speed():
    wrong = point(None, status=Status.FAILED, reason="wrong answer after timing: a row is off")
    verdict = judge([planned(wrong, LOW, HIGH), wrong])
    assert verdict.outcome is Outcome.FAIL
    assert verdict.findings[0].id == "wrong-answer"


def test_a_little_above_the_claim_is_the_boost_clock():
    fast = point(174e12, limit=Limit(value=165.2e12, source="RTX 4090 data sheet, fp16 dense"))
    verdict = judge([planned(fast, LOW, HIGH), fast])
    assert verdict.outcome is Outcome.PASS
    assert ids(verdict.findings) == ["above-claim"]
    assert "105 %" in verdict.findings[0].evidence
    assert "boost" in verdict.findings[0].fix


def test_above_the_claim_of_a_link_says_nothing_of_clocks():
    fast = point(27e9, benchmark="copy", case={"direction": "h2d"}, metric="byte_rate", unit="B/s")
    fast = fast.replace(limit=Limit(value=26e9, source="PCIe"))
    verdict = judge([planned(fast, 20e9, 30e9), fast])
    assert ids(verdict.findings) == ["above-claim"]
    assert "boost" not in verdict.findings[0].fix


def test_a_processor_far_above_its_base_clocks_claim_is_not_implausible():
    fast = point(330e12, device="EPYC", index=None, limit=Limit(value=165e12, source="base clock"))
    bare = planned(fast, 0, 0, value=None, interval=None, status=Status.MISSING)
    assert judge([bare, fast]).outcome is Outcome.MEASURED


def test_far_above_the_claim_is_implausible():
    absurd = point(330e12, limit=Limit(value=165.2e12, source="RTX 4090 data sheet"))
    verdict = judge([planned(absurd, LOW, HIGH * 3), absurd])
    assert verdict.outcome is Outcome.FAIL
    assert ids(verdict.findings) == ["implausible"]


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("time budget used up", "give it more time: LONGER"),
        ("needs 2 s, 216 ms of the budget left for its kind", "give it more time: LONGER"),
        ("projected to take 12 s, and 8 s are left", "give it more time: LONGER"),
        ("left out of budgets below one minute", "give it more time: LONGER"),
        (
            "256 MiB is more than a fortieth of the 0 Bytes that are free in /data",
            "free some of that disk, or name a folder on another: AGAIN",
        ),
        ("no direct I/O here", "put right what it names: AGAIN"),
    ],
)
def test_more_time_is_advised_only_where_time_was_short(reason: str, advice: str):
    skipped = point(None, status=Status.SKIPPED, reason=reason)
    verdict = judge([planned(skipped, LOW, HIGH), skipped], again="AGAIN", longer="LONGER")
    assert [finding.fix for finding in verdict.findings] == [advice]


def test_the_advice_of_an_interrupted_run_is_to_go_on():
    verdict = judge(
        [planned(point(None), LOW, HIGH)], (), "interrupted", "trainrig qualify --resume R"
    )
    (finding,) = verdict.findings
    assert finding.fix == "go on with it: trainrig qualify --resume R"


def test_the_odd_card_is_named():
    cards = [
        record
        for index in range(8)
        for size in (8192, 16384)
        for record in workers(*(SLOW if index == 7 else ABLE), index=index, size=size)
    ]
    verdict = judge(run_of(cards, low=100e12))
    assert verdict.outcome is Outcome.FAIL
    assert ids(verdict.findings) == ["odd-device"]
    assert "RTX 4090 #7 is behind its siblings in 2 cases" in verdict.findings[0].evidence


def test_one_case_of_one_round_names_no_odd_card_and_a_second_round_does():
    others = [record for index in (0, 1) for record in workers(*ABLE, index=index)]
    plan = {"low": 100e12}
    assert judge(run_of([*others, *workers(*SLOW, index=2)], **plan)).findings == ()
    verdict = judge(run_of([*others, *workers(*SLOW, *SLOW, index=2)], **plan))
    assert ids(verdict.findings) == ["odd-device"]


ONE_GPU = {"dtype": "fp16", "m": 128, "k": 128, "n": 128, "cache": "hot"}
LINK = {"direction": "h2d", "bytes": 1 << 28, "memory": "pinned"}


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("matmul", [ONE_GPU, {**ONE_GPU, "m": 64}]),  # launches decide
        ("copy", [LINK, {**LINK, "direction": "d2h"}]),  # the host decides
    ],
)
def test_what_is_not_the_cards_own_doing_names_no_odd_card(name, cases):
    records = [
        record
        for case in cases
        for index, seconds in enumerate((1e-3, 1.5e-3))
        for record in workers(seconds, seconds, index=index, name=name, case=case)
    ]
    assert "odd-device" not in ids(judge(records).findings)


@pytest.mark.parametrize(
    ("metric", "unit", "values"),
    [
        ("time", "s", (0.100, 0.090)),
        ("peak_memory", "B", (8e9, 7e9)),
        ("time.data_wait", "s", (40e-6, 20e-6)),
    ],
)
def test_of_what_less_is_better_no_card_is_odd(metric, unit, values):
    cards = [
        record.replace(metric=metric, unit=unit, value=value)
        for index, value in enumerate(values)
        for size in (8192, 16384)
        for record in workers(*ABLE, index=index, size=size)
    ]
    assert "odd-device" not in ids(judge(cards).findings)


def test_siblings_within_the_margin_are_alike():
    cards = [point(165e12, index=0), point(157e12, index=1)]
    verdict = judge([*(planned(card, LOW, HIGH) for card in cards), *cards])
    assert verdict.findings == ()


def test_unlike_cards_are_not_compared():
    cards = [point(165e12, index=0), point(80e12, index=1, device="RTX 3090 Ti")]
    plan = [planned(cards[0], LOW, HIGH), planned(cards[1], 70e12, 90e12)]
    assert judge([*plan, *cards]).outcome is Outcome.PASS


def test_a_gpu_passes_by_its_sustained_matmul_and_its_memory_and_by_nothing_less():
    long = {"dtype": "fp16", "m": 8192, "k": 8192, "n": 8192, "cache": "hot", "sustained": True}
    cold = {"op": "scale", "dtype": "fp32", "num_elements": 1 << 28, "cache": "cold"}
    stream = [
        one
        for one in workers(3e-3, 3e-3, name="vector", case=cold)
        if one.attempt or one.metric == "byte_rate"
    ]
    moves = run_of(stream, low=500e9)
    sustained = run_of(workers(*ABLE, case=long))
    assert judge([*moves, *sustained]).outcome is Outcome.PASS
    verdict = judge([*moves, *run_of(workers(*ABLE))])
    assert verdict.outcome is Outcome.MEASURED
    assert verdict.reason.endswith("not judged: sustained matmul of RTX 4090 #0")
    assert judge(sustained).outcome is Outcome.PASS  # a bench of one benchmark


def test_no_target_known_is_said_and_no_fault():
    good = point(165e12)
    bare = planned(good, 0, 0, value=None, interval=None, status=Status.MISSING, source=None)
    verdict = judge([bare, good])
    assert verdict.outcome is Outcome.MEASURED
    assert "no target known" in verdict.reason


def test_a_target_of_what_is_not_required_makes_no_pass():
    good = point(165e12)
    bare = planned(good, 0, 0, value=None, interval=None, status=Status.MISSING, source=None)
    small = point(160e12, case={**good.case, "m": 1024})
    beside = planned(small, LOW, HIGH, conditions={"step": "fp16 matmul, small"})
    verdict = judge([bare, beside, good, small])
    assert verdict.outcome is Outcome.MEASURED
    assert verdict.reason == (
        "all required steps ran; no target known for them; 1 other point within the expected band"
    )
    assert judge([planned(good, LOW, HIGH), beside, good, small]).outcome is Outcome.PASS


def test_a_repeated_point_replaces_the_disturbed_one():
    busy, good = point(20e12, disturbed="busy"), point(165e12)
    verdict = judge([planned(good, LOW, HIGH), busy, good])
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == ()


def test_a_fault_of_the_machine_fails_a_run_with_good_numbers():
    good = point(165e12)
    fault = Finding(id="gpu-without-driver", severity="error", evidence="no driver", fix="install")
    verdict = judge([planned(good, LOW, HIGH), good], [fault])
    assert verdict.outcome is Outcome.FAIL
    assert verdict.reason == "no driver"


def test_a_warning_of_the_machine_does_not():
    good = point(165e12)
    warning = Finding(id="swap-used", severity="warning", evidence="swap", fix="add memory")
    assert judge([planned(good, LOW, HIGH), good], [warning]).outcome is Outcome.PASS


def test_an_interrupted_run_is_incomplete_even_when_all_it_has_is_good():
    good = point(165e12)
    verdict = judge([planned(good, LOW, HIGH), good], interrupted="interrupted")
    assert (verdict.outcome, verdict.reason) == (Outcome.INCOMPLETE, "interrupted")


def test_a_run_without_a_plan_is_incomplete():
    assert judge([]).outcome is Outcome.INCOMPLETE


def test_a_step_on_one_of_two_cards_does_not_stand_for_the_other():
    good, failed = point(165e12, index=0), point(None, index=1, status=Status.FAILED, reason="x")
    verdict = judge([planned(good, LOW, HIGH), planned(failed, LOW, HIGH), good, failed])
    assert verdict.outcome is Outcome.INCOMPLETE
    assert "#1" in verdict.reason


def test_failures_with_one_reason_are_one_finding():
    failed = [
        point(None, size=size, status=Status.FAILED, reason="the worker did not start")
        for size in (512, 1024, 2048)
    ]
    verdict = judge([*(planned(one, LOW, HIGH) for one in failed), *failed])
    assert ids(verdict.findings).count("case-failed") == 1
    assert "and 2 more cases" in next(
        finding.evidence for finding in verdict.findings if finding.id == "case-failed"
    )


def test_a_pass_whose_points_are_gone_is_no_pass():
    good = point(165e12)
    plan = planned(good, LOW, HIGH)
    passed = judge([plan, good])
    assert confirm(passed, [plan, good], None) is passed
    measured = dataclasses.replace(passed, outcome=Outcome.MEASURED)
    assert confirm(measured, [plan], None).outcome is Outcome.INCOMPLETE
    found = confirm(passed, [plan], None)
    assert found.outcome is Outcome.INCOMPLETE
    assert found.reason.startswith("no point of fp16 matmul on RTX 4090 #0 is left in its records")
    assert confirm(passed, [plan, good], "records were cut off").outcome is Outcome.INCOMPLETE
    assert confirm(passed, [], None).outcome is Outcome.INCOMPLETE


@pytest.mark.parametrize(
    ("config", "command"),
    [
        ({"verb": "qualify"}, "trainrig qualify --resume runs/a"),
        ({"verb": "train"}, "trainrig train --resume runs/a"),
        ({"verb": "bench", "benchmark": "vector"}, "trainrig bench vector"),
        (
            {
                "verb": "bench",
                "benchmark": "storage",
                "options": ["--path=/mnt/a disk", "--op=read"],
                "budget_s": 90.0,
            },
            "trainrig bench storage '--path=/mnt/a disk' --op=read --budget 1.5m",
        ),
        ({"verb": "qualify", "budget_s": 900.0}, "trainrig qualify --resume runs/a --budget 15m"),
        ({"verb": "bench", "benchmark": "; rm -rf ~"}, "trainrig qualify"),
        ({"verb": "bench"}, "trainrig qualify"),
    ],
)
def test_the_command_that_goes_on_is_one_that_the_run_takes(config, command):
    assert resume_command(config, "runs/a") == command
    busy = point(20e12, disturbed="busy")
    longer = resume_command(config, "runs/a", longer=True)
    found = judge([planned(busy, LOW, HIGH), busy], again=command, longer=longer)
    assert all(finding.fix.endswith((command, longer)) for finding in found.findings)


@pytest.mark.parametrize(
    ("config", "command"),
    [
        ({"budget_s": 240.0}, "trainrig qualify"),
        ({"budget_s": 5.0}, "trainrig qualify --budget 5s"),
        ({"only": ["matmul", "links"]}, "trainrig qualify --only matmul,links"),
        ({"devices": ["0", "2"]}, "trainrig qualify --devices 0,2"),
        ({"min": ["bf16=600 TFLOPS"]}, "trainrig qualify --min 'bf16=600 TFLOPS'"),
        ({"baseline": "runs/a b"}, "trainrig qualify --baseline 'runs/a b'"),
        ({"only": ["$(reboot)"]}, "trainrig qualify --only '$(reboot)'"),
    ],
)
def test_a_new_run_is_asked_for_what_the_old_one_was(config, command):
    assert new_command({"verb": "qualify", **config}, Path("runs")) == command
    assert new_command({"verb": "qualify", **config}, Path("/a b")) == f"{command} --out '/a b'"


@pytest.mark.parametrize(
    ("had", "asks"), [(5.0, "4m"), (60.0, "4m"), (240.0, "8m"), (900.0, "30m"), (604800.0, "7d")]
)
def test_more_time_is_twice_the_time_and_not_less_than_usual(had, asks):
    config = {"verb": "qualify", "budget_s": had}
    wanted = f"trainrig qualify --resume runs/a --budget {asks}"
    assert resume_command(config, "runs/a", longer=True) == wanted


def test_a_bundle_is_not_resumed_but_measured_anew(tmp_path):
    bundle = tmp_path / "a.bundle"
    bundle.touch()
    assert resume_command({"verb": "qualify"}, str(bundle)) == "trainrig qualify"


def disk_points(write: float, read: float, spread: float = 0.05) -> list[Record]:
    """Points of a disk's rates; the flushed write is a tenth of the read."""
    rates = {"read": read, "write": write, "flushed-write": 0.1 * read}
    return [
        dataclasses.replace(
            point(rate, spread=spread),
            benchmark="storage",
            case=storage_case(op, "fio"),
            metric="byte_rate",
            unit="B/s",
            device="a disk",
            device_index=None,
        )
        for op, rate in rates.items()
    ]


def test_a_disk_that_writes_faster_than_it_reads_holds_writes_in_a_cache():
    points = disk_points(write=3.71e9, read=1.18e9)
    (found,) = judge(points).findings
    assert (found.id, found.severity) == ("write-held-by-cache", "info")
    assert "3.71 GB/s written against 1.18 GB/s read" in found.evidence
    assert "118 MB/s where each 16 MiB are flushed" in found.evidence
    assert len(found.records) == 3
    for healthy in (
        disk_points(write=1.0e9, read=1.2e9),
        disk_points(write=1.25e9, read=1.2e9),  # their intervals overlap
        [p.replace(disturbed="busy") for p in points[:1]] + points[1:],
    ):
        assert "write-held-by-cache" not in ids(judge(healthy).findings)


@pytest.mark.parametrize(
    ("fix", "now"),
    [
        ("go on: trainrig qualify --resume runs/a", "go on: trainrig qualify --resume /b/a"),
        (
            "give it more time: trainrig qualify --resume '/old place/a' --budget 8m",
            "give it more time: trainrig qualify --resume /b/a --budget 8m",
        ),
        (
            "give it a larger --budget: trainrig qualify --resume runs/a",
            "give it a larger --budget: trainrig qualify --resume /b/a --budget 8m",
        ),
        ("repeat it: trainrig bench vector; if it stays, x", None),
    ],
)
def test_stored_advice_is_for_where_the_run_is_now(fix: str, now: str | None) -> None:
    assert with_current_path(fix, {"verb": "qualify"}, "/b/a") == (now or fix)
    assert "--resume" not in with_current_path(
        fix, {"verb": "bench", "benchmark": "vector"}, "/b/a"
    )
