"""Jobs: what they print, how they end, and that no terminal takes them along."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainrig.errors import UsageError
from trainrig.remote.detached import (
    DetachedJob,
    all_jobs,
    end_job,
    find_job,
    follow,
    jobs_folder,
    read_job,
    start_job,
)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def shell(text: str, name: str = "test") -> DetachedJob:
    return start_job(["sh", "-c", text], name)


def all_of(job: DetachedJob) -> str:
    return b"".join(follow(job, from_start=True)).decode()


def again(job: DetachedJob) -> DetachedJob:
    return read_job(Path(job.log).parent)


def until(condition, patience: float = 30.0) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_job_s_output_and_exit_code_are_there_after_it() -> None:
    job = shell("echo one; echo two >&2; exit 5")
    assert all_of(job) == "one\ntwo\n"
    ended = again(job)
    assert (ended.state, ended.code) == ("ended", 5)


def test_its_folder_is_the_user_s_alone() -> None:
    job = shell("true")
    all_of(job)
    assert Path(job.log).parent.stat().st_mode & 0o777 == 0o700


def test_a_job_that_is_asked_to_end_may_save() -> None:
    job = shell("trap 'echo saved; exit 7' TERM; echo up; while :; do sleep 0.05; done")
    until(lambda: Path(job.log).read_text() == "up\n")
    ended = end_job(job)
    assert (ended.state, ended.code) == ("ended", 7) and "saved" in Path(job.log).read_text()
    with pytest.raises(UsageError, match="does not run"):
        end_job(ended)


def test_a_job_that_does_not_end_is_killed_with_what_it_started() -> None:
    job = shell("trap '' TERM; sleep 600 & echo $!; wait")
    until(lambda: Path(job.log).read_text().strip())
    inner = int(Path(job.log).read_text())
    ended = end_job(job, grace_s=0.2)
    assert (ended.state, ended.code) == ("killed", 137) and "within 0.2 s" in ended.cause
    until(lambda: not Path(f"/proc/{inner}").exists() or _is_zombie(inner))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_command_that_is_killed_says_by_what() -> None:
    job = shell("kill -9 $$")
    all_of(job)
    killed = again(job)
    assert (killed.state, killed.code) == ("killed", 137) and "SIGKILL" in killed.standing
    about = Path(job.log).parent / "job.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"oom_kills": -1}))
    assert again(job).cause.startswith("memory ran out")  # the kernel has killed one since
    job = shell("kill -SEGV $$")
    all_of(job)
    assert again(job).cause == "by a fault of its own (SIGSEGV)"
    job = shell("exit 143")
    all_of(job)
    assert (again(job).state, again(job).cause) == ("ended", "")


def test_a_job_that_is_killed_with_its_keeper_is_killed_and_not_lost() -> None:
    job = shell("sleep 600")
    os.killpg(job.pid, signal.SIGKILL)
    until(lambda: again(job).state == "killed")
    assert again(job).code is None and list(follow(job)) == []
    assert again(job).cause.startswith("all of its processes at once")


def test_a_job_that_a_restart_took_is_lost() -> None:
    job = shell("sleep 600")
    os.killpg(job.pid, signal.SIGKILL)
    until(lambda: again(job).state == "killed")
    about = Path(job.log).parent / "job.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"boot": "another"}))
    assert again(job).standing == "lost: the machine was restarted under it"


@pytest.mark.needs("tmux")
def test_a_job_in_tmux_has_a_terminal_our_environment_and_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainrig
) -> None:
    """A server of its own, begun before with another environment; Ctrl-C asks the job to end."""
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    monkeypatch.delenv("TMUX", raising=False)
    subprocess.run(["tmux", "new-session", "-d", "-s", "before", "sleep 600"], check=True)
    try:
        monkeypatch.setenv("MARK", "ours")
        text = "trap 'echo saved; exit 5' TERM; echo $MARK; tty; while :; do sleep 0.05; done"
        job = start_job(["sh", "-c", text], "test", in_tmux=True)
        until(lambda: "/dev/pts/" in Path(job.log).read_text())
        assert Path(job.log).read_text().startswith("ours") and job.state == "running"
        assert not (Path(job.log).parent / "environment").exists()
        code, out, _ = trainrig("jobs")
        assert code == 0 and str(job.tmux) in out
        subprocess.run(["tmux", "send-keys", "-t", f"={job.tmux}:", "C-c"], check=True)
        assert "saved" in all_of(job) and again(job).code == 5
    finally:
        subprocess.run(["tmux", "kill-server"], check=True)


def test_another_process_with_its_number_is_not_taken_for_it() -> None:
    job = shell("true")
    all_of(job)
    folder = Path(job.log).parent
    (folder / "code").unlink()
    about = json.loads((folder / "job.json").read_text())
    (folder / "job.json").write_text(json.dumps(about | {"pid": os.getpid()}))
    assert again(job).state == "killed"


def test_a_job_outlives_the_terminal_that_began_it(tmp_path: Path) -> None:
    """A session leader on a pseudoterminal starts it and goes; the terminal is hung up."""
    gate = tmp_path / "gate"
    program = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # nohup ignores it
        "from trainrig.remote.detached import start_job; "
        f"start_job(['sh', '-c', 'echo up; while [ ! -e {gate} ]; do sleep 0.05; done; echo done; "
        "exit 3'], 'hangup'); signal.pause()"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", program])
    until(lambda: any(Path(job.log).read_text() == "up\n" for job in all_jobs()))
    os.close(terminal)  # SIGHUP to its session
    assert os.waitpid(pid, 0)[1] == signal.SIGHUP
    (job,) = all_jobs()
    assert job.state == "running"
    gate.touch()
    assert all_of(job) == "up\ndone\n" and again(job).code == 3


def test_the_newest_that_runs_is_found_first_and_parts_of_ids() -> None:
    first, second = shell("sleep 600", "first"), shell("true", "second")
    all_of(second)
    assert find_job(None).id == first.id
    assert find_job("second").id == second.id
    with pytest.raises(UsageError, match="fits 2 jobs"):
        find_job("T")
    with pytest.raises(UsageError, match="unknown job"):
        find_job("third")
    os.killpg(first.pid, signal.SIGKILL)


def test_damaged_folders_are_passed_over() -> None:
    job = shell("true")
    all_of(job)
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"pid": "x"}')):
        (jobs_folder() / name).mkdir()
        (jobs_folder() / name / "job.json").write_text(text)
    assert [each.id for each in all_jobs()] == [job.id]


# ---- the verbs


def test_attach_ends_with_the_job_s_code(trainrig) -> None:
    job = shell("echo hello; exit 4")
    all_of(job)
    code, out, err = trainrig("attach", job.id, "--json")
    assert code == 4 and json.loads(out)["state"] == "ended" and not err


def test_attach_shows_the_end_of_what_it_printed(tmp_path: Path) -> None:
    job = shell("for n in $(seq 3000); do echo line $n; done")
    assert len(all_of(job)) > 8000
    shown = b"".join(follow(job)).decode()
    assert shown.endswith("line 3000\n") and len(shown) <= 4096
    assert shown.splitlines()[0].startswith("line ")


def test_jobs_are_listed_and_ended(trainrig) -> None:
    code, out, _ = trainrig("jobs")
    assert code == 0 and "no jobs" in out
    job = shell("sleep 600")
    code, out, _ = trainrig("jobs", "--json")
    (shown,) = json.loads(out)["jobs"]
    assert code == 0 and shown["id"] == job.id and shown["state"] == "running"
    code, out, _ = trainrig("jobs", "--end", job.id, "--json")
    assert code == 0 and json.loads(out)["jobs"][0]["code"] == 128 + signal.SIGTERM


def test_without_jobs_attach_says_how_to_start_one(trainrig) -> None:
    code, out, err = trainrig("attach")
    assert code == 2 and out == "" and "--detach" in err


def test_what_is_wrong_is_refused_before_it_is_detached(trainrig) -> None:
    code, out, err = trainrig("train", "--model", "no-such", "--detach")
    assert code == 2 and out == "" and "no-such" in err and all_jobs() == []
