"""One look at a machine: runs that are written are found, read as they grow, and not disturbed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trainrig.machine.system_access import ThisMachine
from trainrig.selftest.doctor_faults import FakeHost, build
from trainrig.store import create_run, resume_run
from trainrig.watch.live import GrowingFile, LiveWatch, lock_holders
from trainrig.watch.processes import ProcessWatch


class Rows:
    """A sampler that says what it is told."""

    def __init__(self, **row: object) -> None:
        self._row = row

    def row(self) -> dict[str, object]:
        return {"t": 1.0, **self._row}


def watch_of(host: object | None = None, **row: object) -> LiveWatch:
    from trainrig.machine import inspect

    snapshot = inspect(build("desktop"))
    return LiveWatch(telemetry=Rows(**row), host=host, snapshot=snapshot)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_a_run_is_seen_while_it_is_written_wherever_it_is(tmp_path: Path) -> None:
    watch = watch_of(ThisMachine())
    with create_run(tmp_path / "elsewhere", "train", {}) as run:
        run.append_series("steps-a", {"step": 0, "loss": 9.0, "tokens_per_s": 100.0})
        own = [one for one in watch.look().trainings if one.run == run.name]
        assert [(one.experiment, one.step, one.loss) for one in own] == [("a", 1, 9.0)]
        run.append_series("steps-a", {"step": 1, "loss": 8.0, "tokens_per_s": 110.0})
        seen = watch.look()
        (training,) = [one for one in seen.trainings if one.run == run.name]
        assert training.losses == (9.0, 8.0) and training.tokens_per_s == 110.0
        (live,) = [one for one in seen.runs if one.run == run.name]
        assert (live.verb, live.pid) == ("train", os.getpid())
        name, path = run.name, run.path
    assert name not in {one.run for one in watch.look().runs}
    with resume_run(path):  # looking has locked nothing
        assert name in {one.run for one in watch.look().runs}


def test_errors_of_a_burn_are_counted_over_all_its_slices(tmp_path: Path) -> None:
    watch = watch_of(ThisMachine())
    slice_ = {"device": "CPU", "part": "matmul fp32", "unit": "FLOP/s", "rate": 1e11}
    with create_run(tmp_path, "burn", {}) as run:
        for errors in (0, 3, 0):
            run.append_series("burn", {**slice_, "errors": errors})
        watch.look()
        run.append_series("burn", {**slice_, "errors": 1})
        (burn,) = [one for one in watch.look().burns if one.run == run.name]
    assert (burn.device, burn.errors, burn.rate) == ("CPU", 4, 1e11)


def test_only_whole_lines_of_a_series_are_read_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    series = GrowingFile(path)
    assert series.news() == []
    path.write_text('{"step": 0}\n{"step": 1}\n{"st')
    assert [row["step"] for row in series.news()] == [0, 1]
    with path.open("a") as file:
        file.write('ep": 2}\nnot json\n[1]\n')
    assert [row["step"] for row in series.news()] == [2]
    path.write_text("")  # begun again
    assert series.news() == []


def test_of_a_long_series_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps({"step": n, "x": "y" * 1000}) + "\n" for n in range(6000)))
    rows = GrowingFile(path).news()
    assert 3000 < len(rows) < 4500 and rows[-1]["step"] == 5999


def test_lock_holders_are_those_that_write() -> None:
    locks = (
        "1: FLOCK  ADVISORY  WRITE 4242 08:01:131 0 EOF\n"
        "2: POSIX  ADVISORY  WRITE 7 08:01:132 0 EOF\n"
        "3: FLOCK  ADVISORY  READ 8 08:01:133 0 EOF\n"
        "3: -> FLOCK  ADVISORY  WRITE 9 08:01:133 0 EOF"
    )
    assert lock_holders(FakeHost(files={"/proc/locks": locks})) == {4242}
    assert lock_holders(FakeHost()) == set()


def test_a_gpu_whose_driver_is_silent_stays_in_the_list() -> None:
    seen = watch_of(FakeHost(), gpu0_power_w=400.0, cpu_share=0.5)
    cpu, first, second = seen.look().devices
    assert (cpu.index, cpu.readings) == (None, {"cpu_share": 0.5})
    assert (first.index, first.readings) == (0, {"power_w": 400.0})
    assert (second.index, second.readings) == (1, {})
    assert "4090" in second.name


def stat(parent: int, ticks: int) -> str:
    words = [parent, 0, 0, 0, 0, 0, 0, 0, 0, 0, ticks, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1000]
    return f"1 (a ) name) S {' '.join(map(str, words))}"


def test_processes_of_a_run_come_first_with_what_their_parents_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = FakeHost(
        files={
            "/proc/10/stat": stat(1, 100),
            "/proc/10/cmdline": "python\0-m\0trainrig",
            "/proc/11/stat": stat(10, 100),
            "/proc/11/comm": "rank",
            "/proc/12/stat": stat(1, 100),
            "/proc/12/cmdline": "stress\0--evil\x1b[2J",
        }
    )
    clock = iter([100.0, 102.0])
    monkeypatch.setattr("trainrig.watch.processes.time.monotonic", lambda: next(clock))
    watch = ProcessWatch(host)
    assert {one.cpus for one in watch.look({10: "a-run"})} == {0.0}
    host.files["/proc/12/stat"] = stat(1, 500)
    host.files["/proc/11/stat"] = stat(10, 200)
    found = watch.look({10: "a-run"})
    assert [(one.pid, one.run) for one in found] == [(11, "a-run"), (10, "a-run"), (12, "")]
    assert found[0].cpus == pytest.approx(0.5) and found[2].cpus == pytest.approx(2.0)
    assert found[1].command == "python -m trainrig" and "\x1b" not in found[2].command
