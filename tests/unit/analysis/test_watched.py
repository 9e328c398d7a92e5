"""Readings beyond a limit for some seconds on end: what breaks a stretch."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from trainrig.analysis.watched import WatchedDevice, WorkSpan, judge_watched

BASE = 1.6e9


def found_of(reasons: Callable[[int], str], read: Collection[int] = range(60)) -> set[str]:
    """Findings of a minute of work at 0.85 of the base clock, read at some of its seconds."""
    rows = tuple(
        (
            float(second),
            {
                "gpu0_sm_clock_hz": 0.85 * BASE,
                "gpu0_temperature_c": 60.0,
                "gpu0_power_w": 600.0 + second % 7,
                "gpu0_throttle_reasons": reasons(second),
            },
        )
        for second in read
    )
    watch = WatchedDevice(
        label="GPU 0",
        key="gpu0",
        index=0,
        parts=(WorkSpan(name="matmul bf16", first=0.0, last=59.0),),
        rows=rows,
        facts={"base_clock": BASE, "boost_clock": 1.2 * BASE, "power_limit_w": 700.0},
    )
    return {finding.id for finding in judge_watched(watch)}


def test_a_clock_that_is_low_on_end_is_found() -> None:
    assert "clock-low" in found_of(lambda _: "none")
    assert "clock-low" not in found_of(lambda _: "sw_power_cap")
    one_lost = [second for second in range(60) if second % 5]
    assert "clock-low" in found_of(lambda _: "none", one_lost)


@pytest.mark.parametrize("apart", [9, 20])
def test_readings_with_an_excuse_between_them_are_no_stretch(apart: int) -> None:
    lone = (20, 20 + apart)
    assert "clock-low" not in found_of(lambda t: "none" if t in lone else "sw_power_cap")


def test_readings_with_a_pause_between_them_are_no_stretch() -> None:
    assert "clock-low" not in found_of(lambda _: "none", [*range(20, 24), *range(35, 39)])
