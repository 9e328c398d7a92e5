"""qualify as a user runs it: real workers, real torch, real signals; and what must not break it.

Verdicts are not asserted to be PASS: on a busy machine a run is rightly INCOMPLETE.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from runner_fakes import point
from trainrig.errors import UsageError
from trainrig.record import Kind, Outcome, Verdict
from trainrig.runner.progress import interrupted_once
from trainrig.runner.session import qualify
from trainrig.runner.view import judged_view
from trainrig.store import create_run, find_runs, read_run

EXIT_CODES = {"PASS": 0, "MEASURED": 0, "FAIL": 1, "INCOMPLETE": 3}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "trainrig", *arguments]


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=120, check=False, **options
    )


def start(*arguments: str, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[subprocess.CompletedProcess[str], dict]:
    """A whole run of ten seconds, in a home with a readable password."""
    home = tmp_path_factory.mktemp("home")
    (home / ".netrc").write_text("machine api.example.org login ada password a-secret\n")
    (home / ".netrc").chmod(0o644)
    home.chmod(0o755)
    environ = {**os.environ, "HOME": str(home)}
    done = run("qualify", "--budget", "10s", "--out", str(home / "out"), "--json", env=environ)
    return done, json.loads(done.stdout.splitlines()[-1])


def test_the_last_line_is_the_verdict_and_the_exit_code_follows_it(finished):
    done, summary = finished
    assert done.returncode == EXIT_CODES[summary["verdict"]]
    assert {"verdict", "run", "findings", "num_records"} <= summary.keys()
    for finding in summary["findings"]:
        assert {"id", "severity", "evidence", "fix"} <= finding.keys()


def test_the_run_folder_holds_everything(finished):
    _, summary = finished
    folder = Path(summary["run"])
    for name in ("run.toml", "machine.json", "records.jsonl", "verdict.json", "report.html"):
        assert (folder / name).stat().st_size > 0, name
    assert (folder / "series").is_dir()
    assert len((folder / "records.jsonl").read_text().splitlines()) == summary["num_records"]


def test_records_carry_the_fields_that_others_script_against(finished):
    _, summary = finished
    wanted = {"kind", "benchmark", "case", "metric", "unit", "value", "interval", "limit"}
    wanted |= {"status", "reason", "disturbed"}
    for line in (Path(summary["run"]) / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert wanted <= record.keys()
        if record["kind"] == "measured" and record["value"] is not None:
            assert ("samples" in record) != ("from" in record)


def test_expectations_are_written_before_measurements(finished):
    _, summary = finished
    kinds = [record.kind for record in read_run(Path(summary["run"])).records]
    first = kinds.index(Kind.MEASURED)
    assert Kind.PREDICTED in kinds[:first]
    assert Kind.PREDICTED not in kinds[first:]
    assert Kind.CLAIMED not in kinds[first:]


def test_every_point_can_be_traced_to_raw_samples(finished):
    _, summary = finished
    records = read_run(Path(summary["run"])).records
    by_id = {record.id: record for record in records}
    points = [record for record in records if record.is_point and record.value is not None]
    assert points
    for settled in points:
        assert settled.derived is not None
        for attempt in (by_id[identity] for identity in settled.derived.ids):
            assert attempt.samples
            assert attempt.conditions["clock"] == "host perf_counter"


def test_report_reads_the_run(finished):
    _, summary = finished
    shown = run("report", summary["run"])
    assert shown.returncode == 0, shown.stderr
    assert summary["verdict"] in shown.stdout


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def first_record(out: Path, process: subprocess.Popen[str]) -> None:
    """Return when something was measured; fail if the process ends before that."""
    while process.poll() is None:
        for folder in find_runs(out):
            if b'"kind":"measured"' in (folder / "records.jsonl").read_bytes():
                return
    pytest.fail(f"it ended by itself: {process.communicate()[1]}")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.acceptance)]
)
def test_an_interrupt_leaves_a_valid_run_with_a_report_and_no_worker(tmp_path, number):
    process = start("qualify", "--budget", "30s", "--out", str(tmp_path), "--json")
    first_record(tmp_path, process)
    workers = workers_of(process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert json.loads(stdout.splitlines()[-1])["verdict"] in ("INCOMPLETE", "FAIL")
    (folder,) = find_runs(tmp_path)
    assert read_run(folder).verdict is not None
    assert (folder / "report.html").is_file()
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert not alive


def has_ended(process: subprocess.Popen[str], seconds: float) -> bool:
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def kill_at(out: Path, seconds: float) -> bool:
    """kill -9 a five-second qualify so long after its run appears; whether it still ran."""
    process = start("qualify", "--budget", "5s", "--out", str(out), stdin=subprocess.DEVNULL)
    while not find_runs(out) and not has_ended(process, 0.02):
        pass
    killed = not has_ended(process, seconds)
    process.kill()
    process.communicate()
    return killed


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.acceptance)])
def test_kills_at_random_moments_leave_readable_runs(tmp_path, kills):
    moments = random.Random(5)
    delays = [moments.uniform(0.0, 4.0) for _ in range(kills)]
    folders = [tmp_path / str(number) for number in range(kills)]
    with ThreadPoolExecutor(4) as threads:
        killed = list(threads.map(kill_at, folders, delays))
    assert sum(killed) >= kills // 2
    for out in folders:
        (folder,) = find_runs(out)
        found = read_run(folder)
        if found.verdict is None:
            verdict = judged_view(found).verdict
            assert verdict is not None
            assert verdict.outcome in (Outcome.INCOMPLETE, Outcome.FAIL)
    early = folders[delays.index(min(delays))]
    for out in (folders[0], early):
        shown = run("report", str(out))
        (folder,) = find_runs(out)
        # Killed before the first record, there is nothing but the machine to show, and it says so.
        expected = 0 if read_run(folder).records else 3
        assert shown.returncode == expected, shown.stderr
        assert "Traceback" not in shown.stderr


def test_a_kill_before_the_run_appears_leaves_nothing_that_looks_like_one(tmp_path):
    draft = tmp_path / ".run-abc"
    draft.mkdir()
    (draft / "run.toml").write_text("schema = 1\n")
    assert find_runs(tmp_path) == ()


def test_a_killed_run_leaves_no_worker_and_is_resumed_with_what_it_had(tmp_path):
    process = start("qualify", "--budget", "30s", "--out", str(tmp_path))
    first_record(tmp_path, process)
    workers = workers_of(process)
    assert workers
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert not alive
    (folder,) = find_runs(tmp_path)
    before = read_run(folder).records
    done = run("qualify", "--resume", str(folder), "--budget", "8s", "--json")
    assert done.returncode in EXIT_CODES.values(), done.stderr
    after = read_run(folder)
    assert after.records[: len(before)] == before
    assert len(after.records) > len(before)
    assert after.verdict is not None
    assert find_runs(tmp_path) == (folder,)


def test_a_run_made_under_other_software_is_refused_and_keeps_its_verdict(tmp_path):
    verdict = Verdict(outcome=Outcome.PASS, reason="as it was")
    with create_run(tmp_path, "qualify", {}) as made:
        made.append(point(1.0, attempt=1, metric="time", unit="s", environment="other"))
        made.write_verdict(verdict)
    with pytest.raises(UsageError, match="other software"):
        qualify(budget=5.0, resume=made.path)
    kept = read_run(made.path).verdict
    assert kept is not None and (kept.outcome, kept.reason) == (verdict.outcome, verdict.reason)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--budget", "0"], "duration"),
        (["--budget", "-5s"], "duration"),
        (["--budget", "soon"], "duration"),
        (["--budget", "4s"], "budget"),
        (["--budget", "10000d"], "budget"),
        (["--resume", "nowhere"], "no such run"),
        (["--out", "/dev/null/runs"], "cannot write"),
        (["--speed", "high"], "--speed"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(trainrig, monkeypatch, tmp_path, arguments, word):
    monkeypatch.chdir(tmp_path)
    code, out, err = trainrig("qualify", *arguments)
    assert code in (2, 3)
    assert out == ""
    first, *rest = err.splitlines()
    assert first.startswith("trainrig: ")
    assert word in first
    assert all(line.startswith("  hint: ") for line in rest)
    assert len(rest) <= 1


def test_what_the_doctor_found_stands_before_everything_that_is_measured(finished):
    done, summary = finished
    lines = done.stderr.splitlines()
    found = [number for number, line in enumerate(lines) if "warning: ~/.netrc holds" in line]
    measured = [number for number, line in enumerate(lines) if line.startswith("[")]
    assert found and (not measured or found[0] < measured[0]), done.stderr
    assert "chmod go-rwx ~/.netrc" in lines[found[0]]
    folder = Path(summary["run"])
    stored = read_run(folder)
    assert stored.machine["health"]["readable_secrets"] == ["~/.netrc"]
    assert "a-secret" not in (folder / "machine.json").read_text()
    assert "secret-readable" in [finding.id for finding in stored.verdict.findings]


def test_without_torch_the_run_is_incomplete_and_says_so(tmp_path):
    fake = tmp_path / "site" / "torch"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text('raise ImportError("no torch here")\n')
    environ = {**os.environ, "PYTHONPATH": f"{fake.parent}:{os.environ.get('PYTHONPATH', '')}"}
    done = run("qualify", "--budget", "6s", "--out", str(tmp_path / "out"), "--json", env=environ)
    summary = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == EXIT_CODES[summary["verdict"]] != 0
    assert any("no torch here" in finding["evidence"] for finding in summary["findings"])
    assert "Traceback" not in done.stderr


def small_files() -> None:
    """Let no file grow beyond 30 kB, as a full disk would."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))


def test_a_full_disk_is_one_line_and_what_was_measured_stays(tmp_path):
    done = run(
        "qualify", "--budget", "20s", "--out", str(tmp_path), "--json", preexec_fn=small_files
    )
    assert done.returncode == 3
    assert done.stderr.splitlines()[-2].startswith("trainrig: ")
    assert "Traceback" not in done.stderr
    (folder,) = find_runs(tmp_path)
    assert read_run(folder).records


def test_detached_runs_outlive_the_command_that_started_them(tmp_path):
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = run(
        "qualify", "--budget", "5s", "--out", str(tmp_path), "--detach", "--json", env=environ
    )
    assert done.returncode == 0, done.stderr
    process = psutil.Process(json.loads(done.stdout)["pid"])
    assert os.getsid(process.pid) == process.pid
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=30)


def test_a_run_that_was_killed_before_its_plan_was_written_gets_one(finished, tmp_path):
    _, summary = finished
    folder = tmp_path / Path(summary["run"]).name
    shutil.copytree(summary["run"], folder)
    records = folder / "records.jsonl"
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:1]))
    done = run("qualify", "--resume", str(folder), "--budget", "6s", "--json")
    assert done.returncode in EXIT_CODES.values(), done.stderr
    whole = read_run(Path(summary["run"])).records
    kept = read_run(folder).records
    for kind in (Kind.CLAIMED, Kind.PREDICTED):
        keys = [record.key for record in kept if record.kind is kind]
        assert len(keys) == len(set(keys))
        assert set(keys) == {record.key for record in whole if record.kind is kind}


def test_a_run_of_another_verb_is_not_gone_on_with(tmp_path):
    with create_run(tmp_path, "bench", {}) as made:
        pass
    done = run("qualify", "--resume", str(made.path))
    assert done.returncode == 2
    assert "made by trainrig bench" in done.stderr


def test_a_second_signal_does_not_disturb_the_closing():
    before = signal.getsignal(signal.SIGINT)
    with interrupted_once():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_reader_that_leaves_does_not_change_the_verdicts_code(finished):
    _, summary = finished
    command = f"{sys.executable} -m trainrig qualify --resume {summary['run']} --budget 5s"
    done = subprocess.run(
        ["bash", "-c", f"{command} 2>/dev/null | head -c 10 >/dev/null; exit ${{PIPESTATUS[0]}}"],
        timeout=60,
        check=False,
    )
    verdict = read_run(Path(summary["run"])).verdict
    assert verdict is not None
    assert done.returncode == EXIT_CODES[verdict.outcome.value]
