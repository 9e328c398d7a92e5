"""The disk in a plan: which disk it is called, what a budget allows, what is left alone and why."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from machine_fakes import FakeHost
from runner_fakes import HOST, FakeWorker, quiet
from trainrig.benchmarks.storage import BENCHMARK, BLOCK, OPS
from trainrig.errors import UnavailableError, UsageError
from trainrig.machine.disks import MountPoint, name_of, place_of
from trainrig.machine.snapshot import Disk, Missing, Mount
from trainrig.record import Kind, Record, Status
from trainrig.runner import targets
from trainrig.runner.bench import BenchRequest, bench
from trainrig.runner.executor import Executor
from trainrig.runner.plan import qualify_plan
from trainrig.store import create_run, find_runs, read_run

MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 8:1 / /data rw - xfs /dev/sda1 rw
31 30 8:2 / /data/my\040disk rw - btrfs /dev/sdb1 rw
32 30 8:3 / /data rw - zfs tank rw
broken line"""


def where(path: str, table: str = MOUNTS) -> MountPoint | Missing:
    return place_of(path, FakeHost(files={"/proc/self/mountinfo": table}, links={path: path}))


@pytest.mark.parametrize(
    ("path", "mount", "filesystem"),
    [
        ("/home/me", "/", "ext4"),
        ("/database", "/", "ext4"),
        ("/data/runs", "/data", "zfs"),
        ("/data/my disk/a", "/data/my disk", "btrfs"),
    ],
)
def test_a_folder_lies_on_the_innermost_mount(path, mount, filesystem):
    assert where(path) == MountPoint(mount=mount, filesystem=filesystem)


def test_a_folder_that_nothing_holds_is_missing():
    assert isinstance(where("/home", "garbage"), Missing)
    assert isinstance(place_of("/home", FakeHost()), Missing)


def disk(name: str, model: str | None, *mounts: str, transport: str | None = None) -> Disk:
    unknown = Missing("")
    return Disk(
        name=name,
        model=model or unknown,
        size_bytes=unknown,
        rotational=unknown,
        transport=transport or unknown,
        mounts=tuple(
            Mount(path=m, filesystem=unknown, size_bytes=unknown, available_bytes=unknown)
            for m in mounts
        ),
    )


@pytest.mark.parametrize(
    ("disks", "name"),
    [
        (
            [disk("nvme0n1", "Samsung SSD 990 PRO 2TB", "/", "/boot")],
            "Samsung SSD 990 PRO 2TB, ext4",
        ),
        ([disk("sda", "X1", "/"), disk("sdb", "X1", "/")], "2 × X1, ext4"),
        ([disk("sda", "X1", "/"), disk("sdb", "Y2", "/")], "2 × X1 + Y2, ext4"),
        ([disk("vda", None, "/")], "virtual disk, ext4"),
        ([disk("sda", None, "/", transport="usb")], "usb disk, ext4"),
        ([disk("sda", None, "/")], "unknown disk, ext4"),
        ([disk("sda", "X1", "/data")], "ext4"),
        ([], "ext4"),
    ],
)
def test_the_device_is_the_disks_model_and_the_file_system(disks, name):
    assert name_of(MountPoint(mount="/", filesystem="ext4"), disks) == name


def target(folder: Path):
    return targets.disk_target(SimpleNamespace(disks=Missing("")), folder)  # type: ignore[arg-type]


def plan(folder: Path, budget: float):
    """The disk's block last."""
    blocks = qualify_plan([HOST, target(folder)], budget)
    return sorted(blocks, key=lambda block: block.targets[0].is_disk)


@pytest.fixture
def direct(monkeypatch) -> None:
    monkeypatch.setattr(targets, "probe", lambda folder: None)


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("budget", [60.0, 240.0, 3600.0])
def test_storage_takes_its_share_and_no_more(tmp_path, budget):
    *others, last = plan(tmp_path, budget)
    assert sum(block.share for block in (*others, last)) == pytest.approx(1.0)
    assert [task.case["op"] for task in last.tasks] == list(OPS)
    assert [task.planned.required for task in last.tasks] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    assert last.share <= BENCHMARK.max_share
    assert all(0.5 <= task.planned.seconds <= 3.0 for task in last.tasks)
    assert not any("sustained" in task.case for task in last.tasks)


def test_small_budgets_leave_it_out_with_one_record(tmp_path):
    *_, last = plan(tmp_path, 59.0)
    (task,) = last.tasks
    assert not task.planned.required
    assert "below one minute" in (task.planned.skip or "")


@pytest.mark.usefixtures("direct")
def test_the_file_shrinks_with_the_free_space(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "free_bytes", lambda _: 40 * 64 * BLOCK)
    *_, last = plan(tmp_path, 240.0)
    assert {task.case["bytes"] for task in last.tasks} == {64 * BLOCK}
    monkeypatch.setattr(targets, "free_bytes", lambda _: 40 * 10 * BLOCK)
    *_, last = plan(tmp_path, 240.0)
    assert [task.planned.skip for task in last.tasks] == [
        "too little space is free to measure with"
    ]


def test_a_disk_without_direct_io_is_left_out_and_not_required(tmp_path, monkeypatch):
    def refuse(folder):
        raise UnavailableError("it has no direct I/O")

    monkeypatch.setattr(targets, "probe", refuse)
    (task,) = plan(tmp_path, 240.0)[-1].tasks
    assert (task.planned.skip, task.planned.required) == ("it has no direct I/O", False)


def executor(run, made):
    def make(device, log):
        made.append(FakeWorker(device, log, lambda *_: quiet(1e-3), []))
        return made[-1]

    return Executor(
        run,
        environment="e",
        deadline=time.monotonic() + 60.0,
        watch=lambda _: None,
        make_worker=make,
    )


def measured(run) -> list[Record]:
    return [r for r in read_run(run.path).records if r.kind is Kind.MEASURED]


def test_what_is_left_out_starts_no_worker_and_is_one_record(tmp_path):
    with create_run(tmp_path, "test", {}) as run:
        made: list[FakeWorker] = []
        executor(run, made).run_block(plan(tmp_path, 30.0)[-1], 10.0)
        (record,) = measured(run)
    assert made == []
    assert record.status is Status.SKIPPED
    assert "below one minute" in (record.reason or "")


@pytest.mark.usefixtures("direct")
def test_points_say_where_the_file_lay(tmp_path):
    with create_run(tmp_path, "test", {}) as run:
        made: list[FakeWorker] = []
        executor(run, made).run_block(plan(tmp_path, 240.0)[-1], 60.0)
        points = [record for record in measured(run) if record.is_point]
    assert [worker.device for worker in made] == [f"disk:{tmp_path.resolve()}"] * 2
    assert {point.case["op"] for point in points} == set(OPS)
    assert all(point.conditions["filesystem"] for point in points)
    assert {point.device_index for point in points} == {None}


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (BenchRequest(benchmark="storage", ops=("trim",)), "unknown --op 'trim'"),
        (BenchRequest(benchmark="storage", sizes=("4GiB",)), "not a size"),
        (BenchRequest(benchmark="storage", sizes=("1000",)), "storage size 1000"),
        (BenchRequest(benchmark="storage", dtypes=("fp32",)), "no --dtype"),
        (BenchRequest(benchmark="storage", device="cpu"), "no --device"),
        (BenchRequest(benchmark="storage", path=Path("/nowhere/at/all")), "no such folder"),
        (BenchRequest(benchmark="storage", peak=True), "no --peak"),
        (BenchRequest(benchmark="matmul", path=Path("/tmp")), "matmul has no --path"),
    ],
)
def test_nonsense_is_refused_before_anything_is_written(tmp_path, request_, words):
    with pytest.raises(UsageError, match=words):
        bench(request_, budget=20.0, out=tmp_path)
    assert find_runs(tmp_path) == ()


def test_bench_measures_the_disk_under_a_path_and_leaves_nothing_there(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    arguments = [
        "--op",
        "read",
        "--size",
        "4MiB",
        "--path",
        str(folder),
        "--budget",
        "8s",
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "trainrig", "bench", "storage", *arguments]
        + ["--out", str(tmp_path / "runs")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr
    (point,) = json.loads(done.stdout.splitlines()[-1])["points"]
    assert (point["benchmark"], point["case"]["bytes"]) == ("storage", 4 << 20)
    assert point["status"] in ("ok", "skipped"), point["reason"]
    assert list(folder.iterdir()) == []
