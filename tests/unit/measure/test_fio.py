"""What fio prints becomes samples or one reason; fio that is absent, old, failing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.benchmarks.spec import Selection
from trainrig.benchmarks.storage import BENCHMARK, BLOCK, PAGE, storage_case
from trainrig.errors import UnavailableError
from trainrig.machine.snapshot import Missing
from trainrig.measure import fio, storage
from trainrig.measure.timing import Settings
from trainrig.runner.plan import tasks_of
from trainrig.runner.targets import disk_target

SIZE = 4 * BLOCK


def direction(io_bytes: int = 0, runtime: int = 0, **more: Any) -> dict[str, Any]:
    latency = {"min": 1, "max": 9, "mean": 0.0, "stddev": 0.1, "N": 0}
    return {
        "io_bytes": io_bytes,
        "bw": 1,
        "iops": 1.5,
        "runtime": runtime,
        "total_ios": io_bytes // PAGE,
        "short_ios": 0,
        "clat_ns": latency,
        "lat_ns": latency,
        **more,
    }


def status(**job: Any) -> dict[str, Any]:
    """One object as fio 3.33 prints it, shortened."""
    whole = {"jobname": "x", "error": 0, "read": direction(), "write": direction(), **job}
    return {"fio version": "fio-3.33", "timestamp": 1, "jobs": [whole], "disk_util": []}


def printed(*statuses: dict[str, Any]) -> str:
    return "\n".join(json.dumps(each, indent=2) for each in statuses)


def synced(mean: float, count: int, runtime: int, written: float = 1000.0) -> dict[str, Any]:
    latency = {"mean": written, "N": count}
    return status(
        write=direction(count * PAGE, runtime, lat_ns=latency),
        sync={"total_ios": count, "lat_ns": {"mean": mean, "N": count}},
    )


def test_a_sample_is_a_windows_time_over_its_blocks():
    found = fio.parse(
        printed(
            status(read=direction(100 << 20, 100)),
            status(read=direction(300 << 20, 200)),
            status(read=direction(301 << 20, 203)),
        )
    )
    first, second = fio.io_windows(found, "read", BLOCK)  # the last one is a sliver
    assert (first.call, first.num_calls, first.end) == (pytest.approx(1e-3), 100, 0.1)
    assert (second.call, second.num_calls, second.end) == (pytest.approx(0.5e-3), 200, 0.2)


def test_an_fsyncs_sample_is_the_mean_of_write_and_fsync_in_its_window():
    found = fio.parse(printed(synced(2e6, 50, 100), synced(3e6, 100, 300)))
    (window,) = fio.sync_windows(found)
    assert window.num_calls == 50
    assert window.call == pytest.approx(4e-3 + 1e-6)  # (3·100 - 2·50) / 50 ms, and a µs


def test_the_warm_up_is_left_out_and_latencies_come_from_the_whole_run():
    percentile = {"50.000000": 4_000_000, "99.000000": 9_000_000}
    statuses = [status(read=direction(step * BLOCK * 10, step * 100)) for step in range(1, 11)]
    statuses[-1]["jobs"][0]["read"]["clat_ns"] = {"mean": 1.0, "N": 1, "percentile": percentile}
    samples = storage.samples_of(
        storage_case("read", "fio"), fio.parse(printed(*statuses)), Settings(max_time=3.0)
    )
    assert len(samples.times) == 7
    assert samples.median == pytest.approx(0.01)
    assert samples.conditions["clock"] == "fio-3.33"
    assert samples.conditions["latency_p99_s"] == pytest.approx(0.009)


def test_a_run_without_a_whole_window_is_refused():
    with pytest.raises(UnavailableError, match="before anything"):
        storage.samples_of(
            storage_case("read", "fio"), fio.parse(printed(status())), Settings(max_time=1.0)
        )


def test_lines_before_the_object_are_skipped():
    (found,) = fio.parse("\nfio: terminating on signal 2\n" + printed(status()))
    assert found.version == "fio-3.33"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", "empty"),
        ("fio: command not understood\n", "empty"),
        ("{ not json", "not JSON"),
        (printed(status())[:-40], "not JSON"),
        ("{}", "printed what it should not"),
        (json.dumps({**status(), "jobs": []}), "printed what it should not"),
        (json.dumps({**status(), "jobs": status()["jobs"] * 2}), "printed what it should not"),
        (printed(status(read=direction(-1))), "printed what it should not"),
        (printed(status(read=direction(2**70))), "printed what it should not"),
        (printed(status(read={"io_bytes": "many"})), "printed what it should not"),
        (printed(status(error=28)), "error 28"),
        (printed(status(read=direction(PAGE, short_ios=3))), "less than it asked"),
        (printed(status(write=direction(PAGE, short_ios=3))), "less than it asked"),
        ('{"fio version": ' + "[" * 100_000, "not JSON"),
    ],
)
def test_what_is_not_fios_is_refused_with_a_reason(output, words):
    with pytest.raises(UnavailableError, match=words):
        fio.parse(output)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(st.text(max_size=200) | json_values.map(json.dumps))
def test_whatever_is_printed_there_is_one_kind_of_error(output):
    with pytest.raises(UnavailableError):
        fio.parse(output)


counts = st.integers(-2, 2**40) | st.integers() | st.floats() | st.none()


@given(st.lists(st.tuples(counts, counts, counts, counts), min_size=1, max_size=6))
def test_counters_of_any_kind_yield_times_or_a_reason(rows):
    statuses = [
        status(
            read=direction(0, runtime=0) | {"io_bytes": a, "runtime": b},
            write=direction() | {"lat_ns": {"mean": c, "N": d}},
            sync={"lat_ns": {"mean": d, "N": a}},
        )
        for a, b, c, d in rows
    ]
    for op in ("read", "randread", "fsync"):
        try:
            found = fio.parse(printed(*statuses))
            samples = storage.samples_of(storage_case(op, "fio"), found, Settings(max_time=1.0))
        except UnavailableError:
            continue
        assert all(0.0 < each < math.inf for each in samples.times)


def test_captured_outputs_are_read(captures: Path):
    for path in sorted((captures / "fio").iterdir()):
        (found,) = fio.parse(path.read_text())
        job = found.jobs[0]
        assert max(job.read.io_bytes, job.write.io_bytes) > 0, path.name
        way = "read" if job.read.io_bytes else "write"
        said = fio.latencies(found, way)
        assert 0.0 < said["latency_p50_s"] <= said["latency_p99_s"] < 10.0, path.name


# ---- fio that is absent, old, failing


def plant(folder: Path, body: str, version: str = "fio-3.33") -> str:
    """A program called fio that answers --version and then does ``body``; returns its PATH."""
    program = folder / "fio"
    program.write_text(
        f'#!/bin/sh\ncase "$1" in --version) echo "{version}"; exit;; esac\n{body}\n'
    )
    program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@pytest.mark.parametrize(
    ("version", "words"),
    [("fio-2.2.10", "too old"), ("fio-3.0", None), ("hello", "its version"), ("", "its version")],
)
def test_a_version_is_good_or_the_reason_is_said(tmp_path, monkeypatch, version, words):
    monkeypatch.setenv("PATH", plant(tmp_path, "exit 1", version))
    assert (fio.unusable() is None) == (words is None)
    assert (words or "") in (fio.unusable() or "")


def test_an_absent_fio_is_said_and_the_fallback_is_marked(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fio.unusable() == "fio is not installed"
    with pytest.raises(UnavailableError, match="not installed"):
        fio.run([], 0, 1.0)
    target = disk_target(SimpleNamespace(disks=Missing("")), tmp_path)
    chosen = Selection(ops=["read"], tool=target.tool, tool_note=target.tool_note)
    (task,) = tasks_of(BENCHMARK, target, BENCHMARK.select(chosen))
    assert (task.case["tool"], task.case["depth"]) == ("python", 1)
    assert "fio is not installed" in str(task.planned.notes["indicative"])
    assert task.planned.required


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo 'fio: engine libaio not loadable' >&2; exit 1", "engine libaio not loadable"),
        ("echo garbage", "empty"),
        ("echo '{\"a\": 1}'", "printed what it should not"),
        ("kill -9 $$", "printed nothing"),
        ("printf '\\377\\376{'", "not JSON"),
        ("exec sleep 60", "did not end within"),
    ],
)
def test_a_failing_fio_costs_one_case_with_a_reason(tmp_path, monkeypatch, body, words):
    monkeypatch.setenv("PATH", plant(tmp_path, body))
    monkeypatch.setattr(fio, "_PATIENCE_S", 0.3)
    with (tmp_path / "file").open("w+b") as file, pytest.raises(UnavailableError, match=words):
        fio.run([], file.fileno(), 0.1)
