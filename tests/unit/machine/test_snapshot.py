"""The snapshot's form on disk, and what its digest does and does not see."""

from __future__ import annotations

import dataclasses
import json

import pytest

from machine_fakes import FakeHost, healthy, with_gpu
from trainrig.errors import DataError
from trainrig.machine import Missing, environment_digest, from_dict, inspect, to_dict, value_or


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


def test_digest_sees_software_and_settings() -> None:
    before = healthy()
    for change in ({"torch": "2.14.0"}, {"nvidia_driver": "580.1"}, {"environment": {"A": "1"}}):
        software = dataclasses.replace(before.software, **change)
        after = dataclasses.replace(before, software=software)
        assert environment_digest(after) != environment_digest(before), change


def test_digest_does_not_see_the_moment() -> None:
    before = healthy()
    after = with_gpu(before, temperature_c=80.0, sm_clock_hz=1e9, memory_used_bytes=7)
    after = dataclasses.replace(after, taken="2030-01-01T00:00:00+00:00")
    assert environment_digest(after) == environment_digest(before)


def test_value_or() -> None:
    assert value_or(Missing("x"), 3) == 3
    assert value_or(0, 3) == 0
