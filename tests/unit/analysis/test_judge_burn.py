"""The verdict on a burn: what fails, what is incomplete, what is named, and what passes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from reports import markdown
from trainrig.analysis.burn_facts import burn_summary
from trainrig.analysis.judge_burn import judge_burn
from trainrig.record import Outcome, RunView, Verdict
from trainrig.selftest.burn_faults import faults, healthy_view
from trainrig.selftest.registry import Fault
from trainrig.units import parse_duration

JUDGED = [fault for fault in faults() if fault.check == "burn.verdict"]
INCOMPLETE = {"step-not-done", "sensor-stopped", "sensor-stuck"}
WARNED = {"behind-siblings"}


def spoiled(fault: Fault) -> RunView:
    with fault.inject(Path(), "") as view:
        assert isinstance(view, RunView)
        return view


@pytest.mark.parametrize("fault", JUDGED, ids=[fault.name for fault in JUDGED])
def test_a_fault_is_found_and_decides(fault: Fault) -> None:
    verdict = judge_burn(spoiled(fault))
    assert fault.finds in {finding.id for finding in verdict.findings}
    corrected = fault.name.startswith("corrected")
    wanted = Outcome.PASS if fault.finds in WARNED or corrected else Outcome.FAIL
    wanted = Outcome.INCOMPLETE if fault.finds in INCOMPLETE else wanted
    assert verdict.outcome is wanted, verdict.reason
    named = {"a driver that stops answering"}
    assert fault.name in named or any("#1" in found.evidence for found in verdict.findings)


def test_a_healthy_one_passes_without_a_word() -> None:
    verdict = judge_burn(healthy_view())
    assert (verdict.outcome, verdict.findings) == (Outcome.PASS, ())
    assert judge_burn(healthy_view(), "interrupted").outcome is Outcome.INCOMPLETE


def test_without_anything_nothing_passes() -> None:
    assert judge_burn(RunView(name="empty")).outcome is Outcome.INCOMPLETE


def test_far_behind_is_a_fault() -> None:
    view = healthy_view()
    records = tuple(
        r.replace(value=r.value * 0.9) if r.device_index == 1 and r.value else r
        for r in view.records
    )
    verdict = judge_burn(dataclasses.replace(view, records=records))
    assert verdict.outcome is Outcome.FAIL
    assert "RTX 4090 #1: matmul bf16 at 135 TFLOPS, −10.0 %" in verdict.reason


def test_a_sensor_that_spoke_once_has_stopped() -> None:
    view = healthy_view()
    first, *rest = view.series["telemetry"]
    rows = [{name: row[name] for name in row if name != "gpu1_power_w"} for row in rest]
    silent = dataclasses.replace(view, series={**view.series, "telemetry": (first, *rows)})
    verdict = judge_burn(silent)
    assert (verdict.outcome, verdict.findings[0].id) == (Outcome.INCOMPLETE, "sensor-stopped")


def test_at_rest_a_reading_may_stand_still() -> None:
    """After a card's own work the processors have their turn."""
    view = healthy_view()
    rows = [dict(row) for row in view.series["telemetry"]]
    for row in rows[100:]:
        row |= {"gpu1_power_w": 21.4, "gpu1_energy_j": 40000.0}
    work = [dict(row, device=f"RTX 4090 #{n}") for n in (0, 1) for row in view.series["burn"]]
    series = {**view.series, "telemetry": tuple(rows), "burn": tuple(work)}
    stuck = judge_burn(dataclasses.replace(view, series=series))
    assert {found.id for found in stuck.findings} == {"sensor-stuck"}
    until = [row for row in work if row["t"] < rows[100]["t"] or row["device"].endswith("#0")]
    rested = dataclasses.replace(view, series={**series, "burn": tuple(until)})
    assert judge_burn(rested).outcome is Outcome.PASS


def test_a_card_that_is_gone_afterwards_is_a_fault() -> None:
    """Its number is another's then."""
    before = [{"index": number, "uuid": f"GPU-{number}"} for number in range(3)]

    def verdict_of(after: object) -> Verdict:
        machine = {"gpus": before, "gpus_after": after}
        return judge_burn(dataclasses.replace(healthy_view(), machine=machine))

    assert verdict_of(before).outcome is Outcome.PASS
    assert verdict_of({"missing": "not read"}).outcome is Outcome.PASS
    gone = verdict_of([{**before[0]}, {"index": 1, "uuid": "GPU-2"}])
    assert (gone.outcome, gone.findings[0].id) == (Outcome.FAIL, "device-failed")
    assert "RTX 4090 #1 was no longer listed" in gone.reason
    assert verdict_of({"missing": "the driver does not answer"}).outcome is Outcome.FAIL


def with_memory(**conditions: int) -> RunView:
    view = healthy_view()
    records = tuple(
        r.replace(conditions={**r.conditions, **conditions})
        if r.case["mode"] == "memory" and r.conditions
        else r
        for r in view.records
    )
    config = {**view.config, "seconds": 300.0, "mode": "all", "devices": ["0", "1"]}
    return dataclasses.replace(view, records=records, config=config)


@pytest.mark.parametrize(
    ("compared", "outcome"), [(100, "PASS"), (90, "PASS"), (89, "INCOMPLETE"), (1, "INCOMPLETE")]
)
def test_memory_that_was_hardly_compared_is_no_pass(compared: int, outcome: str) -> None:
    gib = 1 << 30
    own = with_memory(memory_bytes=compared * gib, memory_wanted_bytes=100 * gib)
    verdict = judge_burn(own)
    assert verdict.outcome == outcome
    assert f"{compared}.0 GiB of 100.0 GiB" in verdict.reason or outcome == "PASS"
    assert burn_summary(own)[0]["parts"][2]["memory_bytes"] == compared * gib


def test_too_little_memory_is_told_with_the_command_that_compares_enough() -> None:
    gib = 1 << 30
    own = with_memory(memory_bytes=4 << 20, memory_wanted_bytes=100 * gib)
    (first, *_) = judge_burn(own).findings
    assert "4.0 MiB of 100.0 GiB" in first.evidence
    typed = first.fix.partition(": ")[2]
    assert typed.startswith("trainrig burn --budget ") and typed.endswith("--devices 0,1")
    # Twice what it had, at least; at 900 GB/s no hours.
    assert 600.0 <= parse_duration(typed.split()[3]) < 3600.0


def test_a_pass_says_how_much_memory_it_speaks_of() -> None:
    gib = 1 << 30
    whole = with_memory(memory_bytes=95 * gib, memory_wanted_bytes=100 * gib)
    assert "190.0 GiB of 200.0 GiB of free memory" in judge_burn(whole).reason
    sizes = {"memory_bytes": gib, "memory_wanted_bytes": gib, "requested_bytes": gib}
    assert "2.0 GiB that --memory names" in judge_burn(with_memory(**sizes)).reason
    view = healthy_view()
    products = tuple(r for r in view.records if r.case["mode"] == "matmul")
    only = judge_burn(dataclasses.replace(view, records=products))
    assert only.outcome is Outcome.PASS
    assert "memory was not tested" in only.reason


def test_two_that_differ_say_that_it_is_not_known_which() -> None:
    fault = next(fault for fault in JUDGED if fault.finds == "digests-differ")
    view = spoiled(fault)
    assert "its siblings; the first is step 2, weight q" in judge_burn(view).reason
    rows = view.series["burn-digests"][:2]
    two = dataclasses.replace(view, series={**view.series, "burn-digests": rows})
    assert "which of the two is wrong is not known" in judge_burn(two).reason


def test_a_cool_card_at_steady_heat_is_not_stuck() -> None:
    """Hot already when the burn begins, under water: the reading hardly moves."""
    view = healthy_view()
    rows = tuple({**row, "gpu1_temperature_c": 61.0} for row in view.series["telemetry"][60:])
    work = view.series["burn"][60:]
    warm = dataclasses.replace(view, series={**view.series, "telemetry": rows, "burn": work})
    assert judge_burn(warm).outcome is Outcome.PASS


def test_devices_are_summed_up_and_shown() -> None:
    view = healthy_view()
    first, second = burn_summary(view)
    assert (first["index"], second["errors"]) == (0, 0)
    assert first["temperature_c"]["max"] > 60.0
    assert first["energy_j"] == pytest.approx(400.0 * 199)
    assert first["throttle_reasons"] == ["sw_power_cap"]
    page = markdown(view)
    assert "matmul bf16" in page
    assert "150 TFLOPS" in page
    assert "no wrong result" in page
