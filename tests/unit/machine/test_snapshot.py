"""The snapshot's form on disk, and what its digest does and does not see."""

from __future__ import annotations

import dataclasses
import json

import pytest

from machine_fakes import FakeHost, healthy, with_gpu
from trainrig.errors import DataError
from trainrig.machine import Missing, environment_digest, from_dict, inspect, to_dict, value_or
from trainrig.machine.environment import changes
from trainrig.machine.snapshot import GPU_KEYS


@pytest.mark.parametrize("num_gpus", [0, 1, 8])
def test_round_trip(num_gpus: int) -> None:
    snapshot = healthy(num_gpus)
    assert from_dict(json.loads(json.dumps(to_dict(snapshot), allow_nan=False))) == snapshot


def test_this_machine_round_trips() -> None:
    snapshot = inspect(patience_s=2.0)
    assert from_dict(json.loads(json.dumps(to_dict(snapshot), allow_nan=False))) == snapshot


def test_missing_is_written_with_its_reason() -> None:
    written = to_dict(inspect(FakeHost()))
    assert written["cpu"]["cores"] == {
        "missing": "lscpu is not installed; /proc/cpuinfo: no such file"
    }
    assert written["disks"] == {"missing": "lsblk is not installed"}


def test_no_limit_is_not_missing() -> None:
    snapshot = inspect(FakeHost(files={"/proc/self/cgroup": "0::/"}))
    assert snapshot.cpu.quota_cpus is None
    assert to_dict(snapshot)["cpu"]["quota_cpus"] is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "newer trainrig"),
        ({"schema": 0}, "older trainrig"),
        ({"schema": None}, "no schema version"),
        ({"schema": True}, "no schema version"),
        ({"surprise": 1}, "surprise"),
        ({"cpu": {}}, "cpu"),
        ({"host": 7}, "host"),
        ({"disks": [{"name": 3}]}, "disks"),
    ],
)
def test_what_is_not_ours_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_dict({**to_dict(healthy()), **change})


@pytest.mark.parametrize("value", [None, [], 3, "x", {}])
def test_what_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(DataError, match="no schema version"):
        from_dict(value)


def with_software(snapshot, **change):
    return dataclasses.replace(snapshot, software=dataclasses.replace(snapshot.software, **change))


@pytest.mark.parametrize(
    "change",
    [
        {"torch": "2.14.0"},
        {"nvidia_driver": "580.1"},
        {"python": "3.99.0"},
        {"environment": {"OMP_NUM_THREADS": "1"}},
        {"packages": {"numpy": "9.9"}},
        {"packages": {"triton": "9.9"}},
        {"packages": {"nvidia-cublas-cu13": "9.9"}},
    ],
)
def test_another_environment_is_one_in_which_numbers_may_change(change) -> None:
    before = with_software(healthy(), packages={})
    after = with_software(before, **change)
    assert environment_digest(after) != environment_digest(before)
    assert len(changes(to_dict(before), to_dict(after))) == 1
    assert changes(to_dict(after), to_dict(after)) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"packages": {"transformers": "5.0", "accelerate": "1.0", "deepspeed": "0.19"}},
        {"packages": {"megatron-core": "0.16.1"}},
        {"cuda_toolkit": "13.0"},
    ],
)
def test_what_torch_does_not_load_changes_no_number(change) -> None:
    before = with_software(healthy(), packages={})
    after = with_software(before, **change)
    assert environment_digest(after) == environment_digest(before)
    assert changes(to_dict(before), to_dict(after)) == ()
    every = [environment_digest(each, all_packages=True) for each in (before, after)]
    assert every[0] != every[1], "a training by another framework may load it"


def test_what_changed_is_named_with_both_versions() -> None:
    before = with_software(healthy(), packages={"numpy": "2.4.5", "triton": "3.5"})
    after = with_software(before, packages={"numpy": "2.4.6"}, environment={"OMP_NUM_THREADS": "4"})
    assert changes(to_dict(before), to_dict(after)) == (
        "numpy 2.4.5 → 2.4.6",
        "triton 3.5 → none",
        "OMP_NUM_THREADS none → 4",
    )


def test_digest_does_not_see_the_moment() -> None:
    before = healthy()
    after = with_gpu(before, temperature_c=80.0, sm_clock_hz=1e9, memory_used_bytes=7)
    after = dataclasses.replace(after, taken="2030-01-01T00:00:00+00:00")
    assert environment_digest(after) == environment_digest(before)


def test_value_or() -> None:
    assert value_or(Missing("x"), 3) == 3
    assert value_or(0, 3) == 0


@pytest.mark.parametrize("key", [key for key in GPU_KEYS.places if key != "link"])
def test_each_flat_key_of_a_gpu_is_a_value_of_its_own_in_the_file(key: str) -> None:
    snapshot = healthy(1)
    before = to_dict(snapshot)
    other = {"index": 7, "vendor": "amd"}.get(key, Missing("another"))
    after = to_dict(with_gpu(snapshot, **{key: other}))
    (gpu,), (changed,) = before["gpus"], after["gpus"]
    assert list(gpu) == list(changed) == list(GPU_KEYS.places)
    assert {name for name in gpu if gpu[name] != changed[name]} == {key}


@pytest.mark.parametrize("key", ["memory", "clocks", "speed"])
def test_a_file_has_flat_keys_of_a_gpu_alone(key: str) -> None:
    described = to_dict(healthy(1))
    described["gpus"][0][key] = {"total_bytes": 1}
    with pytest.raises(DataError, match=f"unknown key '{key}' in \\[gpus 1\\]"):
        from_dict(described)


def test_a_wrong_value_of_a_gpu_is_named_by_its_flat_key() -> None:
    described = to_dict(healthy(1))
    described["gpus"][0]["memory_total_bytes"] = "much"
    with pytest.raises(DataError, match=r"\[gpus 1\.memory_total_bytes\] is 'much'"):
        from_dict(described)
    del described["gpus"][0]["memory_total_bytes"]
    with pytest.raises(DataError, match=r"memory_total_bytes is missing in \[gpus 1\]"):
        from_dict(described)
