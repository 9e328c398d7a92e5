"""NVIDIA's GPUs: through the true ctypes path on a stand-in driver, and answer by answer.

The stand-in is selftest/nvml_stand_in.c, built here and found as the real library would be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvml_driver import run
from trainrig.machine import from_dict
from trainrig.machine.nvidia import read_inventory, throttle_reasons
from trainrig.machine.snapshot import Gpu, Missing, Snapshot

ROOT = Path(__file__).resolve().parents[3]
Look = Callable[..., Snapshot]

INSPECT = """
import json, sys
from trainrig.machine import inspect, to_dict
print(json.dumps(to_dict(inspect(patience_s=float(sys.argv[1])))))
"""


@pytest.fixture
def look(driver: Path) -> Look:
    def look(scenario: str, patience: str = "30", **settings: str) -> Snapshot:
        return from_dict(json.loads(run(driver, INSPECT, patience, **{"": scenario}, **settings)))

    return look


def gpus_of(snapshot: Snapshot) -> tuple[Gpu, ...]:
    assert isinstance(snapshot.gpus, tuple), snapshot.gpus
    return snapshot.gpus


def why(snapshot: Snapshot) -> str:
    assert isinstance(snapshot.gpus, Missing), snapshot.gpus
    return snapshot.gpus.reason


def test_one_gpu(look: Look) -> None:
    snapshot = look("1")
    (gpu,) = gpus_of(snapshot)
    assert (gpu.name, gpu.pci_id) == ("NVIDIA GeForce RTX 4090", "10de:2684")
    assert gpu.pci_address == "0000:01:00.0"
    assert (gpu.memory.total_bytes, gpu.memory.bus_bits) == (24564 * 2**20, 384)
    assert (gpu.compute_capability, gpu.num_cores) == ("8.9", 16384)
    assert (gpu.link.generation, gpu.link.width, gpu.link.max_width) == (4, 16, 16)
    assert (gpu.power.draw_w, gpu.power.limit_w, gpu.power.limit_max_w) == (31.25, 450.0, 600.0)
    assert (gpu.clocks.sm_hz, gpu.clocks.max_sm_hz) == (2.52e9, 3.12e9)
    assert (gpu.cooling.temperature_c, gpu.activity.utilization) == (41.0, 0.07)
    assert gpu.clocks.throttle_reasons == ("idle",)
    assert (gpu.ecc.enabled, gpu.ecc.remapped_rows, gpu.ecc.remap_pending) == (True, 2, False)
    assert (gpu.mode.persistence, gpu.mode.compute) == (True, "default")
    assert gpu.activity.num_processes == 1
    assert gpu.mode.mig == Missing("NVML: not supported")
    assert snapshot.software.nvidia_driver == "570.86.15"
    assert snapshot.software.cuda_driver == "12.8"
    assert snapshot.topology.links == ()


def test_no_driver(look: Look) -> None:
    snapshot = look("no-driver")
    assert why(snapshot) == "NVML: driver not loaded"
    assert isinstance(snapshot.software.nvidia_driver, Missing)


def test_no_library_is_the_reason_for_everything() -> None:
    found = read_inventory({"missing": "NVML: nvml shared library not found"})
    assert found.version == found.cuda == found.gpus == found.links
    assert found.gpus == Missing("NVML: nvml shared library not found")


def test_two_gpus_over_the_bus(look: Look) -> None:
    snapshot = look("2")
    assert [gpu.uuid for gpu in gpus_of(snapshot)] == [
        f"GPU-0a1b2c3d-1111-2222-3333-44445555666{index}" for index in (0, 1)
    ]
    assert isinstance(snapshot.topology.links, tuple)
    (link,) = snapshot.topology.links
    assert (link.a, link.b, link.path, link.p2p_read) == (0, 1, "PHB", "not supported")


def test_two_gpus_linked_directly_with_one_link_down(look: Look) -> None:
    snapshot = look("2", _LINKS="direct")
    assert (gpus_of(snapshot)[0].nvlinks.active, gpus_of(snapshot)[0].nvlinks.inactive) == (3, 1)
    assert isinstance(snapshot.topology.links, tuple)
    assert snapshot.topology.links[0].path == "NV3"
    assert snapshot.topology.links[0].p2p_write == "ok"


def test_eight_gpus_behind_a_switch(look: Look) -> None:
    snapshot = look("8", _LINKS="switch")
    assert [gpu.index for gpu in gpus_of(snapshot)] == list(range(8))
    assert isinstance(snapshot.topology.links, tuple)
    assert len(snapshot.topology.links) == 28
    assert {link.path for link in snapshot.topology.links} == {"NV12"}


def test_eight_gpus_on_two_sockets(look: Look) -> None:
    links = look("8").topology.links
    assert isinstance(links, tuple)
    paths = {(link.a, link.b): link.path for link in links}
    assert (paths[0, 3], paths[0, 4], paths[4, 7]) == ("PHB", "SYS", "PHB")


def test_a_call_that_fails_costs_its_field_alone(look: Look) -> None:
    sound = gpus_of(look("1"))[0]
    (gpu,) = gpus_of(look("1", _FAIL="nvmlDeviceGetTemperature=999,nvmlDeviceGetName=15"))
    assert gpu.cooling.temperature_c == Missing("NVML: unknown error")
    assert gpu.name == Missing("NVML: gpu is lost")
    assert (gpu.uuid, gpu.power.draw_w) == (sound.uuid, sound.power.draw_w)


def test_a_gpu_that_is_lost_leaves_the_count_right(look: Look) -> None:
    found = gpus_of(look("2", _FAIL="nvmlDeviceGetHandleByIndex_v2=15"))
    assert len(found) == 2
    assert found[0].name == Missing("NVML: gpu is lost")


@pytest.mark.parametrize("scenario", ["garbage", "blanks", "absurd"])
def test_what_a_sick_driver_says_is_no_value(look: Look, scenario: str) -> None:
    (gpu,) = gpus_of(look(scenario))
    numbers = (gpu.memory.total_bytes, gpu.power.draw_w, gpu.clocks.sm_hz)
    texts = (gpu.name, gpu.uuid, gpu.pci_address, gpu.pci_id, gpu.vbios)
    states = (gpu.cooling.temperature_c, gpu.clocks.throttle_reasons, gpu.ecc.enabled)
    others = (gpu.link.width, gpu.compute_capability, gpu.ecc.remapped_rows)
    assert all(isinstance(value, Missing) for value in (*numbers, *texts, *states, *others))


def test_an_absurd_count_is_refused(look: Look) -> None:
    assert why(look("crowd")) == "NVML counts 2147483646 devices"


def test_a_driver_that_hangs_is_cut(look: Look) -> None:
    assert why(look("hang", patience="0.7")) == "NVIDIA's driver did not answer in 0.7 s"


def test_a_driver_that_crashes_costs_one_probe(look: Look) -> None:
    snapshot = look("crash")
    assert "signal 6" in why(snapshot)
    assert isinstance(snapshot.host.kernel, str)


def test_mismatched_driver(look: Look) -> None:
    assert "version mismatch" in why(look("mismatch"))


CONDITIONS = """
import json, sys
from trainrig.machine.counters import gpu_conditions
from trainrig.measure.noise import describe_gpu
print(json.dumps([describe_gpu(gpu_conditions(eval(name))) for name in sys.argv[1:]]))
"""


def conditions(driver: Path, *names: str, **settings: str) -> Any:
    return json.loads(run(driver, CONDITIONS, *names, **settings))


def test_conditions_of_a_gpu_by_index_and_by_uuid(driver: Path) -> None:
    uuid = "0a1b2c3d-1111-2222-3333-444455556661"
    first, second, third = conditions(driver, "1", f"'GPU-{uuid}'", f"'{uuid}'", **{"": "2"})
    assert first == second == third
    assert first == {
        "sm_clock_hz": 2.52e9,
        "memory_clock_hz": 10.501e9,
        "power_w": 31.25,
        "temperature_c": 41.0,
        "throttle_reasons": "idle",
        "pcie_generation": 4,
        "pcie_width": 16,
        "other_gpu_processes": 1,
    }


def test_conditions_without_an_answer_say_why(driver: Path) -> None:
    """M8: nor are those of AMD's GPUs read."""
    unread = {"gpu_not_read": "NVML: driver not loaded"}
    assert conditions(driver, "0", **{"": "no-driver"}) == [unread]
    found = conditions(driver, "7", "'nonsense'", **{"": "1"})
    assert [list(each) for each in found] == [["gpu_not_read"]] * 2


WATCHED = """
import json, time
from trainrig.machine.counters import GpuWatch
watch, end, gpus = GpuWatch(), time.monotonic() + 20.0, ()
while not gpus and time.monotonic() < end:
    gpus = watch.latest()
    time.sleep(0.02)
watch._child.kill()
print(json.dumps([[gpu.index, gpu.power.draw_w, gpu.activity.num_processes] for gpu in gpus]))
"""


def test_gpus_are_watched_by_a_child(driver: Path) -> None:
    assert json.loads(run(driver, WATCHED, **{"": "2"})) == [[0, 31.25, 1], [1, 31.25, 1]]


# --- answer by answer ---


def test_throttle_reasons_keep_bits_that_are_not_known() -> None:
    assert throttle_reasons(0) == ()
    assert throttle_reasons(0x44) == ("sw_power_cap", "hw_thermal_slowdown")
    assert throttle_reasons(0x8 | 0x10000) == ("hw_slowdown", "unknown_0x10000")


def test_an_absurd_error_count_is_no_count() -> None:
    found = read_inventory({"devices": [{"uncorrected_volatile": 0xDEADBEEF}, {"ecc": [1, 1]}]})
    assert isinstance(found.gpus, tuple)
    assert isinstance(found.gpus[0].ecc.uncorrected_volatile, Missing)
    assert found.gpus[1].ecc.enabled is True


def test_counters_of_slowing_down_and_of_the_link() -> None:
    held = {"slowed_by_heat": {"violationTime": 2_500_000_000}, "pcie_replays": 7}
    found = read_inventory({"devices": [held]})
    assert isinstance(found.gpus, tuple)
    assert (found.gpus[0].clocks.slowed_by_heat_s, found.gpus[0].pcie_replays) == (2.5, 7)
    assert isinstance(found.gpus[0].clocks.slowed_by_board_s, Missing)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"devices": 3},
        {"devices": [3, None]},
        {"devices": [{}], "pairs": [{"a": 0, "b": 9}, {"a": "x"}, 7]},
        {"devices": [{"pci": 3, "memory": [], "links": [{"state": 1, "remote": 5}]}]},
    ],
)
def test_answers_of_the_wrong_shape(answer: dict[str, Any]) -> None:
    found = read_inventory(answer)
    assert isinstance(found.gpus, tuple)
    assert all(isinstance(gpu.name, Missing) for gpu in found.gpus)
    assert found.links == ()
