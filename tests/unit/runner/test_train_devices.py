"""Which devices an experiment is given, which its ranks found, and what they held and used.

GPUs are fakes here: nothing of this was run on several of them.
"""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from machine_fakes import healthy
from training_summaries import summary_of, trained_once
from trainrig.errors import TrainrigError, UnavailableError, UsageError
from trainrig.machine import Missing, Snapshot
from trainrig.machine.energy import DeviceEnergy, Energy, Meter
from trainrig.process.events import Events
from trainrig.record import Outcome, Status
from trainrig.runner import energy as beside
from trainrig.runner import train as runner
from trainrig.runner import train_prepare
from trainrig.runner import train_prepare as devices
from trainrig.runner.targets import find_targets
from trainrig.runner.train_records import Launch, device_differences, records_of
from trainrig.runner.view import training_summary
from trainrig.store import read_run
from trainrig.train.config import Experiment
from trainrig.train.config_file import experiment_of, read_file
from trainrig.train.drivers import common
from trainrig.train.engines import ENGINES, Job, Result, Site, check_site, longest_stretch
from trainrig.train.parity import reference_of

MODEL = "gpt2:num_layers=1,hidden=32,num_heads=2,vocab=512,max_positions=32"
UUIDS = tuple(f"GPU-0a1b2c3d-1111-2222-3333-44445555666{number}" for number in range(4))
ROWS = [{"step": n, "loss": 2.0, "grad_norm": 1.0, "time": 0.5} for n in range(5)]


def experiment(**changes: Any) -> Experiment:
    keys = {"model": MODEL, "batch_size": 2, "seq_len": 16, "steps": 6, "precision": "fp32"}
    return experiment_of(keys | {"device": "cuda"} | changes)


def machine(count: int = 4) -> Snapshot:
    """A machine with as many equal GPUs."""
    snapshot = healthy()
    assert isinstance(snapshot.gpus, tuple)
    first = snapshot.gpus[0]
    gpus = [dataclasses.replace(first, index=n, uuid=UUIDS[n]) for n in range(count)]
    return dataclasses.replace(snapshot, gpus=tuple(gpus))


# ---- what is asked for


def test_devices_are_a_text_or_a_list_and_say_how_many_ranks_there_are(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[sweep]\ndevices = ["3", "0,1", [2, 0]]\n')
    found = read_file(path, {})
    assert [(each.device_numbers, each.nproc) for each in found] == [
        ((3,), 1),
        ((0, 1), 2),
        ((2, 0), 2),
    ]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('nproc = 3\ndevices = "0,1"\n', 1, "2 of them for nproc = 3"),
        ('devices = "1,1"\n', 1, "one of them twice"),
        ('devices = "0,1"\ndevice = "cpu"\n', 1, "are GPUs, and device is cpu"),
        ('devices = "0,x"\n', 1, "devices = '0,x'"),
        ("devices = 1\n", 1, "devices = 1"),
        ("devices = []\n", 1, "devices = ''"),
        ('devices = "-1"\n', 1, "devices = '-1'"),
    ],
)
def test_devices_that_contradict_themselves_are_refused_with_their_line(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_file(path, {})
    assert words in caught.value.message and f", line {line}: " in caught.value.message


def test_a_gpu_that_is_not_there_or_hidden_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    snapshot = machine()
    site = devices.site_of(snapshot, find_targets(snapshot))
    assert (site.gpus, site.numbers, site.present) == (2, (2, 3), (0, 1, 2, 3))
    check_site(experiment(devices="3,2"), site)
    with pytest.raises(UnavailableError, match="there is no GPU 7") as caught:
        check_site(experiment(devices="2,7"), site)
    assert caught.value.hint == "this machine has: 0, 1, 2, 3"
    with pytest.raises(UnavailableError, match="hidden from torch by CUDA_VISIBLE_DEVICES=2,3"):
        check_site(experiment(devices="0,2"), site)


def test_ranks_see_their_gpus_alone(data: str, tmp_path: Path) -> None:
    """Also where none are named: Trainer would spread one process over all that it sees."""
    site = Site(gpus=2, cores=8, numbers=(2, 3), present=(0, 1, 2, 3))
    own = train_prepare.placed(experiment(data=data), site)
    assert own.placement.devices == "2"
    assert (
        train_prepare.placed(experiment(data=data, nproc=2, device=""), site).placement.devices
        == "2,3"
    )
    assert (
        train_prepare.placed(experiment(data=data, nproc=3), site).placement.devices == ""
    )  # refused afterwards
    env = ENGINES["native"].command(experiment(devices="3,2"), tmp_path, Job()).env
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("3,2", "PCI_BUS_ID")
    on_cpu = ENGINES["native"].command(experiment(device="cpu"), tmp_path, Job()).env
    assert "CUDA_VISIBLE_DEVICES" not in on_cpu
    assert reference_of(experiment(devices="3,2")).device_numbers == (3,)


@pytest.mark.parametrize(
    ("quota", "changes", "threads"),
    [
        (2.5, {}, "2"),
        (2.5, {"threads": 7}, "7"),
        (0.5, {}, "1"),
        (64.0, {}, None),
        (None, {}, None),
    ],
)
def test_ranks_take_no_more_processors_than_their_quota(
    quota: float | None,
    changes: dict[str, Any],
    threads: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainrig.train.engines.cpu_quota", lambda _: quota)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    on_cpu = experiment(device="cpu", **changes)
    env = ENGINES["native"].command(on_cpu, tmp_path, Job()).env
    assert env.get("OMP_NUM_THREADS") == threads


# ---- what is found


def told(folder: Path, uuids: tuple[str, ...], held: tuple[float, ...] = (3e9, 5e9)) -> Result:
    """What two ranks told of their devices, memory and steps."""
    for rank, (uuid, allocated) in enumerate(zip(uuids, held, strict=True)):
        events = Events(folder, rank)
        place = {"device": f"cuda:{rank}", "name": "RTX 4090", "uuid": uuid}
        events.emit("layout", placed={"visible": "3,2", "devices": [place]}, num_parameters=1)
        for row in ROWS:
            events.emit("row", **row)
        events.emit("trained", at=100.0 + rank)
        peak = {"device": f"cuda:{rank}", "allocated": allocated, "reserved": 2 * allocated}
        events.emit("memory", peak=allocated, reserved=2 * allocated, devices=[peak])
    return ENGINES["native"].collect(folder)


def test_each_rank_tells_its_device_and_its_memory(tmp_path: Path) -> None:
    result = told(tmp_path, (UUIDS[3], UUIDS[2]))
    assert (result.memory, result.reserved, result.ended) == (5e9, 1e10, 100.0)
    found = devices.devices_of(result, machine())
    assert [(each["rank"], each["index"], each["uuid"]) for each in found] == [
        (0, 3, UUIDS[3]),
        (1, 2, UUIDS[2]),
    ]
    asked = experiment(devices="3,2")
    assert device_differences(asked, found) == []
    bare = trained_once(asked, dataclasses.replace(result, facts=None), devices=found)
    summary = summary_of(bare)
    assert summary["peak_memory_bytes"] == 5e9 and summary["reserved_memory_bytes"] == 1e10
    assert [each["allocated_bytes"] for each in summary["memory_by_rank"]] == [3e9, 5e9]
    assert [each["index"] for each in summary["devices"]] == [3, 2]
    assert summary["cuda_visible_devices"] == "3,2"
    target = find_targets(machine(), {})[0]
    known = records_of(bare, target, "0" * 64, "")[0].conditions
    assert [known[f"devices.{rank}.uuid"] for rank in (0, 1)] == [UUIDS[3], UUIDS[2]]
    assert (known["devices.1.rank"], known["devices.1.index"]) == (1, 2)


def test_other_gpus_than_those_asked_for_fail_the_row(tmp_path: Path) -> None:
    found = devices.devices_of(told(tmp_path, (UUIDS[0], UUIDS[1])), machine())
    words = device_differences(experiment(devices="1,0"), found)
    assert words == ["devices: asked [1, 0], found [0, 1]"]


def test_two_ranks_on_one_gpu_fail_the_row(tmp_path: Path) -> None:
    found = devices.devices_of(told(tmp_path, (UUIDS[0], UUIDS[0])), machine())
    (words,) = device_differences(experiment(nproc=2), found)
    assert UUIDS[0] in words and "more than once" in words


def test_a_gpu_is_known_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(name="RTX 4090", uuid=UUIDS[1].removeprefix("GPU-"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: fake)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert common.devices_of(["cuda:0"]) == {
        "visible": "1",
        "devices": [{"device": "cuda:0", "name": "RTX 4090", "uuid": UUIDS[1]}],
    }


def test_memory_is_told_of_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"cuda:0": (5, 8), "cuda:1": (3, 4)}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda name: held[name][0])
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda name: held[name][1])
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda name: held[name][1])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (80, 100))
    stats = {"cuda:0": {"num_alloc_retries": 2, "num_ooms": 1}, "cuda:1": {}}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda name: stats[name])
    said = common.memory_of(["cuda:0", "cuda:1"], 1)
    assert (said["peak"], said["reserved"]) == (4.0, 8.0)
    assert [each["allocated"] for each in said["devices"]] == [4.0, 3.0]
    assert [each["outside"] for each in said["devices"]] == [12.0, 16.0]
    assert [(each["retries"], each["ooms"]) for each in said["devices"]] == [(2, 1), (0, 0)]


def test_cores_are_written_as_ranges() -> None:
    host = {"rank": 0, "device": "cpu", "cores": [0, 1, 2, 5, 7, 8]}
    found = summary_of(trained_once(experiment(), devices=(host,)))
    assert found["devices"][0]["cores"] == "0-2,5,7-8"


# ---- energy


def meter(uuid: str | None = None, watts: float = 50.0) -> Meter:
    """A device that takes as many watts all the time."""
    return Meter(
        device="thing",
        uuid=uuid,
        source="a counter",
        read=lambda: watts,
        is_power=True,
    )


def used(joules: float, seconds: float = 1.0) -> Energy:
    one = DeviceEnergy(
        device="thing", uuid=None, source="a counter", joules=joules, low=joules, high=joules
    )
    return Energy(seconds=seconds, devices=(one,))


def test_the_window_reaches_back_from_the_end_over_the_steps_that_count() -> None:
    read = meter()
    for moment in (90.0, 95.0, 99.0, 101.0):
        read.points.append((moment, 10.0 * (moment - 90.0)))
    found = beside.used((read,), ROWS[1:], 100.0)
    assert isinstance(found, Energy)
    assert (found.seconds, found.joules) == (2.0, 20.0)
    assert isinstance(beside.used((read,), ROWS[1:], None), Missing)
    assert isinstance(beside.used((read,), [], 100.0), Missing)
    assert beside.used(Missing("no"), ROWS, 100.0) == Missing("no")


def test_only_the_gpus_that_trained_count() -> None:
    meters = (meter(UUIDS[0]), meter(UUIDS[1]))
    assert beside.of_devices(meters, [UUIDS[1]]) == (meters[1],)
    assert beside.of_devices(meters, [UUIDS[1], UUIDS[1]]) == (meters[1],)
    found = beside.of_devices(meters, [UUIDS[2]])
    assert isinstance(found, Missing) and UUIDS[2] in found.reason


def test_a_driver_that_hangs_costs_the_energy_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = threading.Event()

    def hang(*_: object) -> Any:
        answers.wait(60.0)
        return Missing("too late")

    monkeypatch.setattr(beside, "gpu_meter", hang)
    monkeypatch.setattr(beside, "PATIENCE_S", 0.1)
    monkeypatch.setattr(beside, "_PATIENCE", 0.1)
    found = beside.gpu_meters([(0, None)])
    assert found == Missing("NVIDIA's driver did not answer in 0.1 s")
    with beside.watch((Meter(device="GPU 0", source="NVML", read=hang),)):
        pass
    assert not answers.is_set()  # the training went on, and the driver still hangs
    answers.set()


def test_amd_gpus_say_that_they_are_not_read() -> None:
    snapshot = machine(1)
    assert isinstance(snapshot.gpus, tuple)
    amd = dataclasses.replace(snapshot.gpus[0], vendor="amd")
    found = devices.meters_of(experiment(devices="0"), dataclasses.replace(snapshot, gpus=(amd,)))
    assert found == Missing("GPU 0: the energy of AMD's GPUs is not read")


def test_quiet_rounds_are_one_energy() -> None:
    result = Result(rows=tuple(ROWS))  # two of its five steps count
    trained = trained_once(experiment(), result, used=used(10.0))
    trained.rounds += [
        Launch(result=result, used=used(30.0, 2.5)),
        Launch(result=result, used=used(900.0, 2.5), disturbed="busy"),
        Launch(result=result, used=Missing("gone")),
    ]
    found, steps = trained.energy
    assert isinstance(found, Energy)
    assert (found.joules, found.seconds, steps) == (40.0, 3.5, 4)
    summary = summary_of(trained)
    assert summary["energy_j"] == 40.0 and summary["no_energy_reason"] is None
    assert summary["energy_per_token_j"] == pytest.approx(40.0 / (4 * 2 * 16))
    assert summary["mean_power_w"] == pytest.approx(40.0 / 3.5)


def test_without_energy_there_is_a_reason_and_no_number() -> None:
    result = Result(rows=tuple(ROWS))
    trained = trained_once(experiment(), result, used=Missing("needs root"))
    summary = summary_of(trained)
    assert (summary["energy_j"], summary["no_energy_reason"]) == (None, "needs root")
    records = records_of(trained, find_targets(machine(), {})[0], "0" * 64, "")
    (record,) = [each for each in records if each.metric.startswith("energy")]
    assert (record.status, record.value, record.reason) == (Status.MISSING, None, "needs root")


# ---- a run


@pytest.mark.acceptance
def test_a_run_has_energy_and_can_be_trained_again_from_its_file(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "host_meters", lambda: (meter(), meter(watts=25.0)))
    monkeypatch.setattr(runner, "measure_ceiling", lambda *_: None)
    asked = experiment(device="cpu", data=data, name="one", steps=8, lr=0.01)
    outcomes = runner.train((asked,), out=tmp_path)
    assert outcomes.verdict.outcome is Outcome.MEASURED
    first = training_summary(outcomes)
    assert first["mean_power_w"] == pytest.approx(75.0, rel=1e-3)
    assert first["energy_s"] == pytest.approx(sum(first["step_times_s"]))
    low, high = first["energy_interval_j"]
    assert low <= first["energy_j"] <= high
    assert first["energy_per_token_j"] == pytest.approx(first["energy_j"] / (2 * 5 * 32))
    assert first["devices"][0]["cores"] and first["memory_by_rank"][0]["allocated_bytes"] > 0
    run = read_run(outcomes.run)
    points = {record.metric: record for record in run.records}
    assert points["energy"].value == first["energy_j"] and points["energy"].unit == "J"
    assert points["energy"].conditions["energy_steps"] == 10
    assert points["power"].value == first["mean_power_w"]
    assert points["time"].conditions["devices.0.device"] == "cpu"
    assert len(run.series["steps-one"]) == 16

    monkeypatch.setattr(beside, "host_meters", lambda: Missing("no counter"))
    (stored,) = read_file(outcomes.run / "experiments.toml", {})
    assert stored == asked.replace(data=data, warmup=asked.warmup_steps)
    again = training_summary(runner.train((stored,), out=tmp_path))
    assert again["losses"] == first["losses"] and again["grad_norms"] == first["grad_norms"]
    assert again["no_energy_reason"] == "no counter" and again["energy_j"] is None


# ---- one process


def test_the_longest_stretch_without_a_pause_counts() -> None:
    events: list[dict[str, Any]] = []
    for step in range(8):
        if step in (2, 7):
            events.append({"event": "checkpoint", "at": 0.5, "step": step})
        events.append({"event": "row", "at": 100.0 + step, "step": step})
        events.append({"event": "layout"})
    rows, ended = longest_stretch([*events, {"event": "trained", "at": 109.0}])
    assert ([row["step"] for row in rows], ended) == ([2, 3, 4, 5, 6], 106.0)
    steps = [event for event in events if event["event"] == "row"]
    whole, ended = longest_stretch([*steps, {"event": "trained", "at": 109.0}])
    assert (len(whole), ended) == (8, 109.0)
    assert longest_stretch([]) == ((), None)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"device": "tpu"}, "device 'tpu'"),
        ({"device": "cuda", "nproc": 64}, "64 ranks"),
        ({"framework": "torchtitan"}, "predicted, and not trained yet"),
        ({"lr": 0.0}, "lr = 0"),
        ({"zero": 3}, "there is one"),
    ],
)
def test_arguments_are_checked_before_data_is_prepared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keys: dict[str, Any], words: str
) -> None:
    def prepared(**_: Any) -> None:
        raise AssertionError("data was prepared")

    monkeypatch.setattr(train_prepare, "prepare", prepared)
    with pytest.raises(TrainrigError, match=words):
        runner.train([Experiment.of(model="gpt2", **keys)], out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
