"""A run survives what happens to it: kill -9, a full disk, strangers, other versions."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainrig.errors import DataError, StoreError
from trainrig.record import SCHEMA_VERSION, Kind, Outcome, Record, Verdict, to_json, verdict_to_json
from trainrig.store import (
    RunWriter,
    create_run,
    find_runs,
    pack,
    read_run,
    resume_run,
    write_atomic,
)

_VERDICT = Verdict(outcome=Outcome.PASS, reason="all of it ran")
_STORED = replace(_VERDICT, num_records=3)


def make(number: int = 0, num_samples: int = 3) -> Record:
    samples = tuple(0.001 * (1 + index % 7) for index in range(num_samples))
    return Record(
        kind=Kind.MEASURED,
        benchmark="matmul",
        case={"number": number},
        metric="time",
        unit="s",
        value=0.001,
        samples=samples,
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three records, complete."""
    with create_run(tmp_path / "runs", "qualify", {"budget_s": 240.0}) as writer:
        for number in range(3):
            writer.append(make(number))
        writer.append_series("gpu0", {"t": 0.0, "temperature_c": 51.0})
        writer.write_machine({"host": "h"})
        writer.write_verdict(_VERDICT)
    return writer.path


def numbers(path: Path) -> list[object]:
    return [record.case["number"] for record in read_run(path).records]


# ---------------------------------------------------------------- the good days


def test_a_run_comes_back_whole(run: Path) -> None:
    data = read_run(run)
    assert (data.name, data.path, data.verdict, data.problems) == (run.name, run, _STORED, ())
    assert data.config["schema"] == SCHEMA_VERSION
    assert (data.config["verb"], data.config["budget_s"]) == ("qualify", 240.0)
    assert data.machine == {"host": "h"}
    assert data.series == {"gpu0": ({"t": 0.0, "temperature_c": 51.0},)}
    assert numbers(run) == [0, 1, 2]
    assert {record.run for record in data.records} == {run.name}
    assert data.records[0].samples == make().samples


def test_a_run_is_found_from_the_folder_that_holds_it_alone(run: Path) -> None:
    assert read_run(run.parent).path == run
    assert find_runs(run.parent) == (run,)
    assert find_runs(run / "nothing") == ()


def test_a_new_run_is_readable_before_anything_was_measured(tmp_path: Path) -> None:
    with create_run(tmp_path, "bench", {}) as writer:
        data = read_run(writer.path)
    assert data.records == ()
    assert data.problems == (
        "the run was cut off before its machine.json",
        "the run was cut off before its verdict",
    )


def test_what_the_program_knows_wins_over_what_it_is_told(tmp_path: Path) -> None:
    with create_run(tmp_path, "bench", {"schema": 99, "name": "other"}) as writer:
        assert read_run(writer.path).config["name"] == writer.path.name


def test_undecodable_text_does_not_cost_the_run(tmp_path: Path) -> None:
    torn = b"\xff".decode("utf-8", "surrogateescape")
    with create_run(tmp_path, "bench", {"argv": [f"--out={torn}"]}) as writer:
        writer.write_machine({"host": torn})
        writer.append_series("log", {"said": torn})
    data = read_run(writer.path)
    assert (data.config["argv"], data.machine) == (["--out=?"], {"host": "?"})
    assert data.series["log"] == ({"said": "?"},)


def test_a_resumed_run_goes_on_and_is_open_again(run: Path) -> None:
    with resume_run(run) as writer:
        assert read_run(run).verdict is not None  # kept until something new is measured
        writer.reopen()
        writer.append(make(3))
        writer.append_series("gpu0", {"t": 1.0})
    data = read_run(run)
    assert numbers(run) == [0, 1, 2, 3]
    assert len(data.series["gpu0"]) == 2
    assert data.verdict is None


def test_a_discarded_run_leaves_nothing(tmp_path: Path) -> None:
    with create_run(tmp_path, "bench", {}) as writer:
        writer.discard()
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- kill -9


def _append_until_killed(parent: Path, told: int) -> None:
    """In a child: append records of many sizes and tell after each; never returns."""
    try:
        writer = create_run(parent, "qualify", {})
        for number in range(1_000_000):
            # Some lines are long, so that some kills come in the middle of one.
            writer.append(make(number).replace(reason="x" * (6_000_000 if number % 3 == 2 else 9)))
            os.write(told, b".")
    finally:
        os._exit(1)


def _kill_when(parent: Path, num_bytes: int) -> int:
    """Kill a child once its records exceed ``num_bytes``; how many it had been told were safe."""
    hears, told = os.pipe()
    child = os.fork()
    if child == 0:
        _append_until_killed(parent, told)
    os.close(told)
    while True:
        for run in find_runs(parent):
            if (run / "records.jsonl").stat().st_size > num_bytes:
                os.kill(child, signal.SIGKILL)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
                with os.fdopen(hears, "rb") as pipe:
                    return len(pipe.read())


@pytest.mark.acceptance
def test_twenty_runs_killed_at_random_moments_are_whole_and_go_on(tmp_path: Path) -> None:
    moments = random.Random(20261120)
    for trial in range(20):
        parent = tmp_path / str(trial)
        told = _kill_when(parent, moments.randrange(0, 7_000_000))
        (run,) = find_runs(parent)
        data = read_run(run)
        kept = len(data.records)
        # All that append() returned from is there; at most the one in flight is there as well.
        assert kept in (told, told + 1)
        assert numbers(run) == list(range(kept))
        with resume_run(run) as writer:
            writer.append(make(kept))
        assert numbers(run) == list(range(kept + 1))
        assert "cut off while" not in " ".join(read_run(run).problems)


@pytest.mark.parametrize("keep", range(1, 200, 13))
def test_a_run_cut_at_any_byte_loses_one_record_and_goes_on(run: Path, keep: int) -> None:
    whole = (run / "records.jsonl").read_bytes()
    cut = whole[: len(whole) - keep]
    (run / "records.jsonl").write_bytes(cut)
    data = read_run(run)
    kept = cut.count(b"\n")
    assert len(data.records) == kept
    assert data.problems == ("the last record was cut off while it was written",)
    with resume_run(run) as writer:
        writer.append(make(77))
    assert numbers(run) == [*range(kept), 77]


def test_a_torn_series_line_is_left_out_and_cut(run: Path) -> None:
    with (run / "series" / "gpu0.jsonl").open("a") as file:
        file.write('{"t": 1.0, "temp')
    assert len(read_run(run).series["gpu0"]) == 1
    with resume_run(run) as writer:
        writer.append_series("gpu0", {"t": 2.0})
    assert [row["t"] for row in read_run(run).series["gpu0"]] == [0.0, 2.0]


def test_a_killed_create_leaves_no_half_run(tmp_path: Path) -> None:
    (tmp_path / ".run-killed").mkdir()
    (tmp_path / ".run-killed" / "run.toml").write_text("schema = 1\n")
    assert find_runs(tmp_path) == ()


# ---------------------------------------------------------------- no space, no right


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount here")
    if done.returncode != 0:
        pytest.skip("no right to mount a small disk here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def append_until_full(writer: RunWriter) -> tuple[int, StoreError]:
    for number in range(1000):
        try:
            writer.append(make(number, num_samples=300))
        except StoreError as error:
            return number, error
    pytest.fail("the disk was never full")


def test_a_full_disk_is_one_line_and_loses_nothing(small_disk: Path) -> None:
    writer = create_run(small_disk, "qualify", {})
    written, error = append_until_full(writer)
    assert (error.exit_code, error.message) == (
        3,
        f"the disk is full: cannot write {writer.path / 'records.jsonl'}",
    )
    assert "--resume" in (error.hint or "")
    assert written > 5
    with pytest.raises(StoreError, match="the disk is full"):
        writer.write_report("x" * 60_000)
    writer.close()
    assert numbers(writer.path) == list(range(written))
    assert [file.name for file in writer.path.glob(".*")] == []  # no draft is left behind
    with pytest.raises(StoreError, match="the disk is full"):
        create_run(small_disk, "qualify", {"argv": ["x" * 60_000]})
    with pytest.raises(StoreError, match="the disk is full") as caught:
        write_atomic(small_disk / "page.html", "x" * 60_000)
    assert caught.value.hint == "free some space, or name another folder"  # no run, no --resume
    assert find_runs(small_disk) == (writer.path,)
    assert [file.name for file in small_disk.glob(".*")] == []


def test_after_room_is_made_the_same_run_goes_on(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    writer = create_run(small_disk, "qualify", {})
    ballast.write_bytes(b"x" * 40_000)
    written, _ = append_until_full(writer)
    writer.close()
    ballast.unlink()
    with resume_run(writer.path) as again:
        again.append(make(written, num_samples=300))
    assert numbers(writer.path) == list(range(written + 1))


def test_a_write_that_stops_half_way_is_taken_back(run: Path) -> None:
    """The size limit of a process makes the kernel write a part, then refuse: EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (run / "records.jsonl").stat().st_size
    with resume_run(run) as writer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
        try:
            with pytest.raises(StoreError, match="File too large"):
                writer.append(make(3))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (run / "records.jsonl").stat().st_size == size
        writer.append(make(4))
    assert numbers(run) == [0, 1, 2, 4]


def test_a_disk_that_fails_even_to_truncate_is_still_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with resume_run(run) as writer, monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", gone)
        patch.setattr(os, "ftruncate", gone)
        with pytest.raises(StoreError, match="Input/output error"):
            writer.append(make(3))


def test_a_device_that_is_always_full_refuses_atomic_writes(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    write_atomic(target, "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(StoreError, match=r"report\.html"):
            write_atomic(target, "new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.fixture
def read_only(run: Path) -> Iterator[Path]:
    """The run seen through a read-only mount, which binds root too."""
    seen = run.parent.parent / "seen"
    seen.mkdir()
    mount = ["mount", "--bind", str(run.parent), str(seen)]
    done = subprocess.run(mount, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("no right to mount here")
    subprocess.run(["mount", "-o", "remount,ro,bind", str(seen)], check=True)
    yield seen
    subprocess.run(["umount", str(seen)], check=True)


def test_a_read_only_run_is_read_but_not_written(read_only: Path) -> None:
    run = read_run(read_only).path
    assert numbers(run) == [0, 1, 2]
    for write in (
        lambda: create_run(read_only, "qualify", {}),
        lambda: resume_run(run),
        lambda: write_atomic(run / "report.html", "x"),
        lambda: pack(run, run / "x.bundle"),
    ):
        with pytest.raises(StoreError, match="Read-only file system") as caught:
            write()
        assert "\n" not in caught.value.message
    assert read_run(run).verdict == _STORED


def test_no_permission_is_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object, **__: object) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    for place, method in ((os, "open"), (Path, "is_file"), (Path, "is_dir")):
        with monkeypatch.context() as patch:
            patch.setattr(place, method, refuse)
            with pytest.raises(DataError, match=r"cannot read .*Permission denied") as caught:
                read_run(run)
            assert caught.value.hint == "check its permissions"


def test_a_verdict_that_cannot_be_removed_is_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    with resume_run(run) as writer, monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(StoreError, match="Permission denied"):
            writer.reopen()


# ---------------------------------------------------------------- one writer


def test_a_second_writer_is_refused_until_the_first_is_done(run: Path) -> None:
    first = resume_run(run)
    with pytest.raises(StoreError, match="another process is writing") as caught:
        resume_run(run)
    assert caught.value.hint == "wait for it, or start a new run"
    first.append(make(3))
    first.close()
    first.close()
    resume_run(run).close()
    assert numbers(run) == [0, 1, 2, 3]


def test_readers_do_not_wait_for_the_writer(run: Path) -> None:
    with resume_run(run) as writer:
        writer.append(make(3))
        assert numbers(run) == [0, 1, 2, 3]


# ---------------------------------------------------------------- what is not a run


def _damage_line_two(run: Path) -> None:
    lines = (run / "records.jsonl").read_bytes().split(b"\n")
    lines[1] = lines[1][:-9]
    (run / "records.jsonl").write_bytes(b"\n".join(lines))


def _records(data: bytes) -> Callable[[Path], None]:
    return lambda run: (run / "records.jsonl").write_bytes(data) and None


def _file(name: str, text: str) -> Callable[[Path], None]:
    return lambda run: (run / name).write_text(text) and None


_NEWER = to_json(make()).replace('"schema":1', '"schema":2')


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_damage_line_two, r"records\.jsonl:2: not a record"),
        (_records(b"\x00\xff\xfe" * 99 + b"\n"), r"records\.jsonl:1: not a record"),
        (_records(b"\n"), r"records\.jsonl:1: not a record"),
        (_records(b'{"id":"' + b"x" * 9_000_000 + b'"}\n'), r"records\.jsonl:1: .*schema version"),
        (_records(_NEWER.encode() + b"\n"), r"records\.jsonl:1: .*newer trainrig"),
        (_file("run.toml", "schema = 2\n"), "newer trainrig"),
        (_file("run.toml", "schema = 0\n"), "older trainrig"),
        (_file("run.toml", "schema = true\n"), "no schema version"),
        (_file("run.toml", "schema = 1.0\n"), "no schema version"),
        (_file("run.toml", f"schema = 0x1{'0' * 9999}\n"), "no schema version"),
        (_file("run.toml", "[other]\n"), "no schema version"),
        (_file("run.toml", "schema = \n"), r"run\.toml is damaged"),
        (_file("run.toml", "a = " + "[" * 50_000), r"run\.toml is damaged"),
        (_file("machine.json", "[1]"), r"machine\.json is damaged: not a JSON object"),
        (_file("machine.json", '{"load": NaN}'), r"machine\.json is damaged: not a JSON object"),
        (_file("machine.json", "[" * 100_000), r"machine\.json is damaged: not a JSON object"),
        (_file("verdict.json", "{}"), "verdict has no schema version"),
        (_file("verdict.json", '{"schema": 2}'), "verdict was written by a newer trainrig"),
    ],
)
def test_damage_is_named_in_one_line(run: Path, damage: Callable[[Path], None], words: str) -> None:
    damage(run)
    with pytest.raises(DataError, match=words) as caught:
        read_run(run)
    assert "\n" not in caught.value.message


def test_a_huge_line_is_read(run: Path) -> None:
    with resume_run(run) as writer:
        writer.append(make(3, num_samples=300_000))
    assert len(read_run(run).records[3].samples or ()) == 300_000


def test_damaged_rows_of_a_series_are_left_out(run: Path) -> None:
    rows = [b'{"t": 1}', b"{", b"[1]", b'{"t": NaN}', b"\xff", b'{"t": 2}', b""]
    (run / "series" / "gpu0.jsonl").write_bytes(b"\n".join(rows))
    assert read_run(run).series["gpu0"] == ({"t": 1}, {"t": 2})


def test_lost_records_are_named(run: Path) -> None:
    records = run / "records.jsonl"
    whole = records.read_bytes()
    lines = whole.splitlines(keepends=True)
    for left, problem in (
        (b"".join(lines[:1]), "2 of its 3 records are gone"),
        (b"", "3 of its 3 records are gone"),
        (whole[:-5], "the last record was cut off while it was written"),
    ):
        records.write_bytes(left)
        data = read_run(run)
        assert (data.problems, data.lost) == ((problem,), problem)
    records.unlink()
    assert read_run(run).problems == (read_run(run).lost,) == ("records.jsonl is gone",)


def test_a_run_of_before_has_no_count(run: Path) -> None:
    (run / "verdict.json").write_text(verdict_to_json(_VERDICT))
    assert (read_run(run).verdict, read_run(run).lost) == (_VERDICT, None)


@pytest.mark.parametrize("schema", [SCHEMA_VERSION + 1, SCHEMA_VERSION - 1])
def test_a_run_of_another_schema_is_not_written_to(run: Path, schema: int) -> None:
    (run / "run.toml").write_text(f"schema = {schema}\n")
    before = (run / "records.jsonl").read_bytes()
    with pytest.raises(DataError, match="trainrig"):
        resume_run(run)
    assert (run / "records.jsonl").read_bytes() == before
    assert (run / "verdict.json").exists()


def test_what_is_no_run_is_refused_with_a_hint(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "page.html").write_text("<html>")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, words in (
        ("empty", "not a run: .* has no run.toml"),
        ("page.html", "neither a run nor a bundle"),
        ("pipe", "neither a run nor a bundle"),  # and it does not wait for a writer
        ("absent", "no such run"),
        ("x" * 300, "cannot read|no such run"),
        ("loop", "cannot read|no such run"),
    ):
        with pytest.raises(DataError, match=words) as caught:
            read_run(tmp_path / name)
        assert caught.value.hint is not None
    with pytest.raises(DataError, match="neither a run nor a bundle"):
        read_run(Path("/dev/null"))
    for name in ("empty", "page.html", "pipe", "absent"):
        with pytest.raises(DataError, match="not a run"):
            resume_run(tmp_path / name)


def test_of_several_runs_one_must_be_named(run: Path) -> None:
    with create_run(run.parent, "qualify", {}) as writer:
        newest = writer.path.name
    with pytest.raises(DataError, match="holds 2 runs") as caught:
        read_run(run.parent)
    assert newest in (caught.value.hint or "")
    assert f"trainrig report {run.parent}/*" in (caught.value.hint or "")
    above = run.parent.rename(run.parent.parent / "runs").parent
    with pytest.raises(DataError, match="not a run") as caught:
        read_run(above)
    assert newest in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["records.jsonl", "run.toml", "machine.json", "verdict.json"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    if name == "run.toml":
        with pytest.raises(DataError, match=r"no run\.toml"):
            read_run(run)
    else:
        assert name.split(".")[0] in read_run(run).problems[0]
    if name == "records.jsonl":
        with pytest.raises(StoreError, match="cannot write"):
            resume_run(run)


def test_a_folder_in_place_of_the_parent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        create_run(tmp_path / "file", "qualify", {})


def test_a_machine_that_json_cannot_hold_is_our_mistake(tmp_path: Path) -> None:
    with (
        create_run(tmp_path, "qualify", {}) as writer,
        pytest.raises(ValueError, match="not JSON compliant"),
    ):
        writer.write_machine({"load": float("nan")})


def test_each_record_is_synced_to_the_disk(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    monkeypatch.setattr("os.fdatasync", synced.append)
    with resume_run(run) as writer:
        before = len(synced)
        for number in (3, 4):
            writer.append(make(number))
        assert len(synced) == before + 2


def test_each_line_of_the_file_is_one_record(run: Path) -> None:
    lines = (run / "records.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["case"]["number"] for line in lines] == [0, 1, 2]


def test_a_bare_name_is_looked_for_in_runs(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = run.parent.parent
    run.parent.rename(home / "runs")
    monkeypatch.chdir(home)
    assert read_run(Path(run.name)).name == run.name
    with pytest.raises(DataError, match="no such run"):
        read_run(Path("another"))


def test_runs_are_ordered_by_when_they_began_whatever_they_are_called(tmp_path: Path) -> None:
    first, second, third = (create_run(tmp_path, "qualify", {}).path for _ in range(3))
    renamed = first.rename(tmp_path / "zz the first one")
    assert find_runs(tmp_path) == (renamed, second, third)
    (second / "run.toml").write_text("damaged")
    assert set(find_runs(tmp_path)) == {renamed, second, third}
