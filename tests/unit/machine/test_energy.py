"""Energy: counters of packages in a powercap tree, of GPUs in a stand-in driver, and formulas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvml_driver import run
from trainrig.machine.energy import (
    Energy,
    Meter,
    energy_between,
    joules_at,
    package_meters,
    used_between,
)
from trainrig.machine.snapshot import Missing
from trainrig.machine.system_access import ThisMachine


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def meter_of(readings: list[float | Missing], *, at: float = 1.0, **how: object) -> Meter:
    """A meter that was read once every ``at`` seconds from 100 on."""
    given: Iterator[float | Missing] = iter(readings)
    meter = Meter(device="thing", source="a counter", read=lambda: next(given), **how)  # type: ignore[arg-type]
    clock = Clock()
    for _ in readings:
        meter.take(clock)
        clock.now += at
    return meter


def used(meter: Meter, start: float, end: float) -> tuple[float, float, float]:
    found = used_between(meter, start, end)
    assert not isinstance(found, Missing), found
    return found.low, found.joules, found.high


def why(meter: Meter, start: float, end: float) -> str:
    found = used_between(meter, start, end)
    assert isinstance(found, Missing), found
    return found.reason


# ---- formulas


def test_between_two_readings_the_counter_is_taken_to_rise_evenly() -> None:
    meter = meter_of([50.0, 60.0, 80.0, 81.0])
    assert joules_at(meter.points, 101.5) == 20.0
    assert used(meter, 100.5, 102.25) == (20.0, 30.25 - 5.0, 31.0)
    assert used(meter, 101.0, 102.0) == (20.0, 20.0, 20.0)  # at readings nothing is uncertain


def test_within_one_gap_the_least_is_nothing() -> None:
    assert used(meter_of([0.0, 10.0]), 100.25, 100.75) == (0.0, 5.0, 10.0)


def test_power_is_integrated_by_trapezoids() -> None:
    assert used(meter_of([100.0, 200.0, 200.0], is_power=True), 100.0, 102.0)[1] == 350.0


def test_a_reading_that_fails_leaves_a_gap_that_the_next_one_closes() -> None:
    gone = Missing("busy")
    assert used(meter_of([0.0, gone, 20.0]), 100.0, 101.0) == (0.0, 10.0, 20.0)
    power = meter_of([100.0, gone, 100.0], is_power=True)
    assert used(power, 100.0, 102.0)[1] == 200.0


def test_a_counter_that_begins_anew_goes_on() -> None:
    meter = meter_of([90.0, 95.0, 5.0], wraps_at=100.0)
    assert used(meter, 100.0, 102.0)[1] == 15.0


@pytest.mark.parametrize("wraps_at", [None, 262_143.0])
def test_a_counter_that_was_reset_says_nothing(wraps_at: float | None) -> None:
    meter = meter_of([100_000.0, 100_050.0, 3.0], wraps_at=wraps_at)
    assert why(meter, 100.0, 102.0) == "thing: its counter went from 100050 to 3 J"


def test_what_was_not_read_or_does_not_move_is_missing_and_never_zero() -> None:
    assert "was not read from the first step" in why(meter_of([0.0, 1.0]), 99.0, 100.5)
    assert "was not read from the first step" in why(meter_of([0.0, 1.0]), 100.5, 101.5)
    assert "was not read from the first step" in why(meter_of([Missing("no")] * 2), 100.0, 101.0)
    assert why(meter_of([7.0, 7.0, 7.0]), 100.0, 102.0) == "thing: a counter stood still for 2 s"
    assert why(meter_of([0.0, 1.0]), 100.5, 100.5) == "no step counts"


def test_one_formula_for_joules_per_token_and_watts() -> None:
    meters = [meter_of([0.0, 30.0, 60.0]), meter_of([0.0, 10.0, 20.0])]
    found = energy_between(meters, 100.5, 101.5)
    assert isinstance(found, Energy)
    assert (found.seconds, found.joules, found.watts) == (1.0, 40.0, 40.0)
    assert found.per(80) == 0.5
    assert found.interval == (0.0, 80.0)
    assert found.source == "a counter: thing, thing"
    assert isinstance(energy_between([*meters, meter_of([1.0, 1.0])], 100.5, 100.9), Missing)
    assert isinstance(energy_between([], 100.5, 101.5), Missing)


# ---- processors


def zone(root: Path, name: str, label: str, microjoules: int = 5_000_000) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{label}\n")
    (folder / "max_energy_range_uj").write_text("262143328850\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder


def packages(root: Path) -> tuple[Meter, ...]:
    found = package_meters(ThisMachine(), str(root))
    assert not isinstance(found, Missing), found
    return found


def test_packages_count_and_their_parts_do_not(tmp_path: Path) -> None:
    for name, label in [
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "package-1"),
        ("intel-rapl:2", "psys"),
        ("intel-rapl-mmio:0", "package-0"),
        ("dtpm", "package-9"),
    ]:
        zone(tmp_path, name, label)
    (tmp_path / "intel-rapl-mmio:0" / "energy_uj").write_text("1\n")
    meters = packages(tmp_path)
    assert [meter.device for meter in meters] == ["package-0", "package-1"]
    assert [meter.read() for meter in meters] == [5.0, 5.0]


def test_a_package_counts_over_the_end_of_its_range(tmp_path: Path) -> None:
    folder = zone(tmp_path, "intel-rapl:0", "package-0", 262_143_000_000)
    (meter,) = packages(tmp_path)
    clock = Clock()
    meter.take(clock)
    (folder / "energy_uj").write_text("671150\n")
    clock.now += 0.5
    meter.take(clock)
    assert used(meter, 100.0, 100.5)[1] == pytest.approx(1.0)  # 0.32885 J before, 0.67115 behind


def test_without_powercap_the_folder_is_named(tmp_path: Path) -> None:
    found = package_meters(ThisMachine(), str(tmp_path / "powercap"))
    assert isinstance(found, Missing)
    assert found.reason.startswith(f"{tmp_path}/powercap: no such file or directory")
    found = package_meters(ThisMachine(), str(tmp_path))
    assert found == Missing(f"{tmp_path} shows no processor package")


class Forbidding(ThisMachine):
    """What an ordinary user meets."""

    def read(self, path: str) -> str | Missing:
        if path.endswith("energy_uj") and "range" not in path:
            return Missing(f"{path}: permission denied")
        return super().read(path)


def test_what_only_root_may_read_names_the_file_and_root(tmp_path: Path) -> None:
    folder = zone(tmp_path, "intel-rapl:0", "package-0")
    expected = Missing(f"{folder}/energy_uj: permission denied: needs root")
    assert package_meters(Forbidding(), str(tmp_path)) == expected


# ---- NVIDIA

READ = """
import json, sys
from trainrig.machine.energy import gpu_meter, energy_between
from trainrig.machine.snapshot import Missing
meters, now = [gpu_meter(int(i), u or None) for i, u in (a.split(":") for a in sys.argv[1:])], 0.0
lacking = [m.reason for m in meters if isinstance(m, Missing)]
if not lacking:
    for _ in range(5):
        for meter in meters:
            meter.take(lambda: now)
        now += 1.0
    found = energy_between(meters, 0.0, 4.0)
    lacking = [found.reason] if isinstance(found, Missing) else []
if lacking:
    print(json.dumps(lacking))
else:
    print(json.dumps([found.joules, found.source, [d.uuid for d in found.devices]]))
"""
UUID = "GPU-0a1b2c3d-1111-2222-3333-44445555666"


def test_gpus_count_in_millijoules(driver: Path) -> None:
    arguments = (f"0:{UUID}0", f"1:{UUID}1")
    said = json.loads(run(driver, READ, *arguments, **{"": "2", "_ENERGY": "250000"}))
    assert said == [2000.0, "NVML's energy counter: GPU 0, GPU 1", [f"{UUID}0", f"{UUID}1"]]


def test_a_gpu_without_the_counter_has_its_power_integrated(driver: Path) -> None:
    fails = "nvmlDeviceGetTotalEnergyConsumption=3"
    said = json.loads(run(driver, READ, "0:", **{"": "1", "_FAIL": fails}))
    assert said == [4 * 31.25, "NVML's power, integrated: GPU 0", [None]]


@pytest.mark.parametrize(
    ("scenario", "fails", "words"),
    [
        ("no-driver", "", "GPU 0: NVML: driver not loaded"),
        ("1", "nvmlDeviceGetTotalEnergyConsumption=3,nvmlDeviceGetPowerUsage=3", "not supported"),
        ("blanks", "", "GPU 0: no energy (no energy: 18446744073709551615"),
        ("garbage", "", "no energy"),
        ("absurd", "", "GPU 0: no energy"),
    ],
)
def test_a_gpu_that_tells_nothing_says_why(
    driver: Path, scenario: str, fails: str, words: str
) -> None:
    (said,) = json.loads(run(driver, READ, "0:", **{"": scenario, "_FAIL": fails}))
    assert words in said, said


def test_a_counter_of_a_gpu_that_stands_still_is_no_energy(driver: Path) -> None:
    (said,) = json.loads(run(driver, READ, "0:", **{"": "1", "_ENERGY": "0"}))
    assert said == "GPU 0: NVML's energy counter stood still for 4 s"
