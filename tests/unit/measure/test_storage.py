"""storage: the file without a name, fio and the fallback on it, and everything that fails.

A disk under these tests may be anything: no test looks at how fast it is.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from machine_fakes import FakeHost
from runner_fakes import quiet
from trainrig.benchmarks import storage as storage_spec
from trainrig.benchmarks.storage import BENCHMARK, BLOCK, PAGE, storage_case
from trainrig.errors import UnavailableError, UsageError
from trainrig.machine.counters import HostConditions
from trainrig.machine.snapshot import Missing
from trainrig.measure import disk_activity, fio, scratch_file, storage
from trainrig.measure.aggregate import Subject, attempt_record, point_records
from trainrig.measure.disk_activity import Moved
from trainrig.measure.scratch_file import Scratch
from trainrig.measure.timing import SelfTimed, Settings, Unsupported
from trainrig.measure.worker_main import run_case
from trainrig.process.worker import Request, Worker
from trainrig.record import Status

SIZE = 4 * BLOCK
SHORT = {"max_time": 0.05, "warmup_time": None, "target": 0.02}


# ---- the file


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with direct I/O; whatever a test does, nothing is left in it."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        scratch_file.probe(str(place))
    except Unsupported as error:
        pytest.skip(error.message)
    yield place
    storage.SESSION.close()
    assert list(place.iterdir()) == []


@pytest.fixture
def file(folder: Path) -> Iterator[Scratch]:
    made = Scratch(str(folder), SIZE)
    yield made
    made.close()


def test_the_file_has_no_name_and_holds_what_was_written(file, folder):
    assert os.fstat(file.file).st_nlink == 0
    assert os.fstat(file.file).st_size == SIZE
    assert list(folder.iterdir()) == []
    assert file.wrong() is None
    blocks = [file.content(number) for number in range(512)]
    assert len(set(blocks)) == 512
    before = file.content(1)
    file.lay_down()
    assert file.content(1) != before
    assert file.wrong() is None


def test_one_flipped_byte_is_seen(file):
    os.pwrite(file.file, bytes([file.content(3)[100] ^ 1]), 3 * BLOCK + 100)
    assert file.wrong() == "1 of 4 blocks read back are not what was written"


def test_where_no_nameless_file_can_be_made_the_name_goes_at_once(folder, monkeypatch):
    real = os.open

    def no_tmpfile(path, flags, *rest, **more):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", no_tmpfile)
    made = Scratch(str(folder), BLOCK)
    assert list(folder.iterdir()) == []
    assert made.wrong() is None
    made.close()


def ask(case: Any, folder: Path) -> dict[str, Any]:
    request = {
        "id": 1,
        "benchmark": "storage",
        "module": BENCHMARK.module,
        "case": dict(case),
        "settings": SHORT,
    }
    return run_case(request, f"disk:{folder}")


def test_a_full_disk_is_a_reason(folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    reply = ask(storage_case("read", "python", SIZE), folder)
    assert reply["status"] is Status.FAILED
    assert "no space left on device" in reply["reason"]


def test_a_disk_that_is_nearly_full_is_left_alone(folder, monkeypatch):
    free = SimpleNamespace(f_bavail=30 * SIZE // PAGE, f_frsize=PAGE)
    monkeypatch.setattr(os, "statvfs", lambda _: free)
    reply = ask(storage_case("read", "python", SIZE), folder)
    assert reply["status"] is Status.SKIPPED
    assert "more than a fortieth" in reply["reason"]


def test_a_disk_without_direct_io_is_said(folder, monkeypatch):
    real = os.open

    def buffered_only(path, flags, *rest, **more):
        if flags & os.O_DIRECT == os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", buffered_only)
    reply = ask(storage_case("read", "python", SIZE), folder)
    assert reply["status"] is Status.SKIPPED
    assert "no direct I/O (invalid argument)" in reply["reason"]


def test_a_folder_that_cannot_be_written_is_a_reason(folder, monkeypatch):
    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    reply = ask(storage_case("read", "python", SIZE), folder)
    assert reply["status"] is Status.FAILED
    assert "read-only file system" in reply["reason"]
    gone = ask(storage_case("read", "python", SIZE), folder / "gone")
    assert "no such file or directory" in gone["reason"]


def test_a_slow_disk_is_told_to_take_a_smaller_file(folder, monkeypatch):
    monkeypatch.setattr(scratch_file, "_MAX_LAYOUT_S", 0.0)
    reply = ask(storage_case("read", "python", SIZE), folder)
    assert "only 1.0 MiB written" in reply["reason"]


# ---- the fallback and the loader


@pytest.mark.parametrize("op", storage_spec.OPS)
def test_each_operation_is_measured_without_fio(folder, op, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    reply = ask(storage_case(op, "python", SIZE), folder)
    assert reply["status"] is Status.OK, reply["reason"]
    assert min(reply["samples"]) > 0.0
    assert reply["conditions"]["clock"] == "host perf_counter"


@pytest.mark.parametrize("op", storage_spec.WRITES)
def test_writes_that_were_left_out_are_seen(folder, op, monkeypatch):
    real, lying = os.pwrite, [False]

    def pwrite(descriptor, data, place):
        return len(data) if lying[0] else real(descriptor, data, place)

    monkeypatch.setattr(os, "pwrite", pwrite)
    made = storage.prepare(storage_case(op, "python", SIZE), f"disk:{folder}")
    assert made.wrong() is None
    lying[0] = True
    made.call()
    lying[0] = False
    assert made.wrong() == "1 of 1 blocks do not hold what was written"
    assert made.wrong() is None


def test_what_fio_did_not_write_is_seen(file):
    written = storage._Written(pages={0, BLOCK})
    os.pwrite(file.file, b"x" * PAGE, BLOCK)
    os.fsync(file.file)
    found = storage.wrong_pages(file, written)
    assert found == "1 of 2 blocks do not hold what was written"


def test_each_operation_does_what_its_name_says(folder, monkeypatch):
    """A shortcut would be a faster disk: reads in order, an fsync left out, fewer in flight."""
    synced, places = [], []
    fsync, read = os.fsync, os.preadv
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), fsync(file)))
    case = storage_case("fsync", "python", SIZE)
    prepared = storage.prepare(case, f"disk:{folder}")
    for _ in range(3):
        prepared.call()
    assert len(synced) == 3
    flushed, flush = [], os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (flushed.append(file), flush(file)))
    for op, times in (("write", 0), ("flushed-write", 3)):
        prepared = storage.prepare(storage_case(op, "python", SIZE), f"disk:{folder}")
        for _ in range(3):
            prepared.call()
        assert len(flushed) == times, op

    def reading(file, buffers, place):
        places.append(place)
        return read(file, buffers, place)

    prepared = storage.prepare(storage_case("randread", "python", SIZE), f"disk:{folder}")
    monkeypatch.setattr(os, "preadv", reading)
    for _ in range(SIZE // PAGE):
        prepared.call()
    assert sorted(places) == list(range(0, SIZE, PAGE))
    assert sum(b - a == PAGE for a, b in pairwise(places)) < 20
    for op, depth in storage_spec.DEPTHS.items():
        options = storage.fio_options(storage_case(op, "fio"))
        assert (f"--iodepth={depth}" in options) is (op != "fsync")
        assert ("--direct=1" in options) is (op != "fsync")
        assert ("--fsync=1" in options) is (op == "fsync")
        assert ("--fdatasync=1" in options) is (op == "flushed-write")


def test_a_read_that_ends_early_fails_the_case(folder, monkeypatch):
    made = storage.prepare(storage_case("read", "python", SIZE), f"disk:{folder}")
    monkeypatch.setattr(os, "preadv", lambda *_: 7)
    with pytest.raises(UnavailableError, match="in part"):
        made.call()


def test_a_loader_that_feeds_other_tokens_is_seen(folder, monkeypatch):
    from trainrig.data.batches import CausalBatches

    made = storage.prepare(storage_case("tokens", "loader", SIZE), f"disk:{folder}")
    assert made.wrong() is None
    real = CausalBatches.__call__
    monkeypatch.setattr(CausalBatches, "__call__", lambda self, step: real(self, step + 1))
    assert "is not that of its step" in (made.wrong() or "")


def test_cases_of_one_size_share_a_file_and_another_size_replaces_it(folder):
    first = storage.SESSION.file(str(folder), BLOCK)
    assert storage.SESSION.file(str(folder), BLOCK) is first
    num_open = len(os.listdir("/proc/self/fd"))
    assert storage.SESSION.file(str(folder), 2 * BLOCK) is not first
    assert len(os.listdir("/proc/self/fd")) == num_open


@pytest.mark.parametrize(
    "change",
    [
        {"op": "trim"},
        {"bytes": 1000},
        {"bytes": True},
        {"bytes": 1 << 40},
        {"depth": 64},
        {"block": None},
        {"tool": "dd"},
        {"extra": None},
    ],
)
def test_cases_that_are_not_storages_are_refused(change):
    with pytest.raises(UsageError):
        BENCHMARK.check({**storage_case("read", "fio"), **change})


def test_a_gpu_is_no_disk():
    with pytest.raises(Unsupported, match="a folder on a disk"):
        storage.prepare(storage_case("read", "fio"), "cuda:0")


# ---- the real fio


@pytest.mark.needs("fio")
@pytest.mark.parametrize("op", storage_spec.IO_OPS)
def test_each_operation_is_measured_with_fio(folder, op):
    made = storage.prepare(storage_case(op, "fio", SIZE), f"disk:{folder}")
    assert isinstance(made, SelfTimed)
    assert made.wrong() is None
    samples = made.sample(Settings(max_time=0.5))
    assert min(samples.times) > 0.0
    assert str(samples.conditions["clock"]).startswith("fio-3")
    assert "latency_p50_s" in samples.conditions
    assert made.wrong() is None


@pytest.mark.needs("fio")
def test_fio_says_why_it_failed(file):
    with pytest.raises(UnavailableError, match=r"fio failed: .*nonsense"):
        fio.run(["--rw=nonsense"], file.file, 0.2)


LONG = """
import sys
from trainrig.benchmarks.storage import storage_case
from trainrig.measure import storage
from trainrig.measure.timing import Settings
made = storage.prepare(storage_case("read", "fio", 1 << 22), "disk:" + sys.argv[1])
print("ready", flush=True)
made.sample(Settings(max_time=600.0))
"""


@pytest.mark.needs("fio")
def test_killing_a_worker_ends_fio_and_leaves_nothing(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", LONG, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    deadline, own = time.monotonic() + 120.0, psutil.Process(process.pid)
    while not (children := [c for c in own.children(recursive=True) if is_fio(c)]):
        assert time.monotonic() < deadline, "fio never started"
    assert list(folder.iterdir()) == []
    process.send_signal(signal.SIGKILL)
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


def is_fio(process: psutil.Process) -> bool:
    try:
        return process.name() == "fio"
    except psutil.NoSuchProcess:
        return False


@pytest.mark.needs("fio")
def test_a_disks_worker_measures_and_never_loads_torch(folder, tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "torch.py").write_text("raise ImportError('a disk needs no torch')\n")
    paths = os.pathsep.join([str(hidden), *filter(None, [os.environ.get("PYTHONPATH")])])
    serve = (
        "/usr/bin/env",
        f"PYTHONPATH={paths}",
        sys.executable,
        "-m",
        "trainrig.measure.worker_main",
    )
    request = Request(
        benchmark="storage",
        module=BENCHMARK.module,
        case=storage_case("randread", "fio", SIZE),
        settings={"max_time": 0.3},
        timeout=60.0,
    )
    with Worker(f"disk:{folder}", tmp_path / "log", command=serve) as worker:
        assert worker.wait_ready() == {"folder": str(folder)}
        reply = worker.run(request)
    assert reply.status is Status.OK, reply.reason
    assert "threads" not in reply.conditions


# ---- points, and what disturbs


def points(op: str, *medians: float):
    case = storage_case(op, "fio")
    request = Request(
        benchmark="storage",
        module=BENCHMARK.module,
        case=case,
        settings={"max_time": 1.0},
        timeout=9.0,
    )
    subject = Subject(device="virtual disk, ext4", index=None, count=1, environment="e")
    return point_records(
        [
            attempt_record(request, quiet(median), subject, number)
            for number, median in enumerate(medians, 1)
        ]
    )


def test_disks_may_wander_further_than_processors():
    (point,) = points("read", 1.0e-3, 1.2e-3)
    assert point.disturbed is None
    assert point.value == pytest.approx(BLOCK / 1.1e-3, rel=0.01)
    (point,) = points("read", 1.0e-3, 1.5e-3)
    assert "disagree by 33 %" in (point.disturbed or "")


def test_fsync_has_a_rate_first_and_the_time_beside_it():
    rate, latency = points("fsync", 4.0e-3, 4.0e-3)
    assert (rate.metric, rate.unit) == ("op_rate", "IO/s")
    assert rate.value == pytest.approx(250.0, rel=0.01)
    assert (latency.metric, latency.unit) == ("time", "s")
    assert latency.value == pytest.approx(4e-3, rel=0.01)
    for each in (rate, latency):
        assert each.interval[0] <= each.value <= each.interval[1]


def host_with(**changes: float) -> HostConditions:
    unknown = {name: Missing("") for name in HostConditions.__dataclass_fields__}
    return HostConditions(**{**unknown, "wall_s": 2.0, **changes})


@pytest.mark.parametrize(
    ("host", "ours", "everything", "words"),
    [
        ({}, Moved(read=100 << 20, written=0), Moved(read=103 << 20, written=0), None),
        ({}, Moved(read=100 << 20, written=0), Moved(read=110 << 20, written=0), "others moved 9"),
        ({}, Moved(read=100 << 20, written=0), Moved(read=100 << 20, written=9 << 20), "others"),
        ({}, Moved(read=0, written=9 << 20), Moved(read=0, written=40 << 20), None),
        ({}, Moved(read=0, written=9 << 20), Moved(read=9 << 20, written=9 << 20), "others"),
        ({}, Moved(read=0, written=0), Moved(read=1 << 19, written=0), None),
        ({}, Missing(""), Moved(read=9 << 30, written=0), None),
        ({}, Moved(read=1, written=0), Missing("tmpfs"), None),
        ({"busy_other_fraction": 0.6}, Missing(""), Missing(""), "other processes used 60 %"),
        ({"steal_fraction": 0.1}, Missing(""), Missing(""), "hypervisor"),
        ({"throttled_fraction": 0.1}, Missing(""), Missing(""), "quota"),
    ],
)
def test_what_disturbs_a_disk(host, ours, everything, words):
    found = disk_activity.judge(host_with(**host), ours, everything)
    assert (found is None) == (words is None)
    assert (words or "") in (found or "")


def test_counters_are_read_from_the_kernels_tables():
    table = (
        "   8       0 sda 1 2 3 4 5 6 7 8 9 10 11\n 254       0 vda 10 0 2048 9 20 0 4096 9 0 1 1"
    )
    host = FakeHost(
        files={
            "/proc/diskstats": table,
            "/proc/self/io": "rchar: 5\nread_bytes: 4096\nwrite_bytes: 8192",
        }
    )
    assert disk_activity.moved_on(host, (254, 0)) == Moved(read=1 << 20, written=2 << 20)
    assert isinstance(disk_activity.moved_on(host, (0, 51)), Missing)
    assert disk_activity.moved_by_us(host) == Moved(read=4096, written=8192)
    assert isinstance(disk_activity.moved_by_us(FakeHost(files={"/proc/self/io": "?"})), Missing)
    assert isinstance(disk_activity.moved_on(FakeHost(), (254, 0)), Missing)


def test_the_cache_of_a_disk_is_that_of_its_partition():
    disk = FakeHost(files={"/sys/dev/block/254:0/queue/write_cache": "write back"})
    part = FakeHost(files={"/sys/dev/block/8:1/../queue/write_cache": "write through"})
    assert disk_activity.write_cache(disk, (254, 0)) == "write back"
    assert disk_activity.write_cache(part, (8, 1)) == "write through"
    assert isinstance(disk_activity.write_cache(FakeHost(), (0, 51)), Missing)


def test_a_flushed_write_is_whole_blocks_of_any_file():
    for size, block in ((16 << 20, 16 << 20), (20 << 20, 4 << 20), (1 << 20, 1 << 20)):
        case = storage_case("flushed-write", "fio", size)
        BENCHMARK.check(case)
        assert case["block"] == block
