"""Real ranks that are killed, held or lose their node, and the series of losses that comes out.

Our own supervisor, torchrun's agents (two on this host as two nodes) and Slurm start the same
program; what a lost rank costs is steps that are trained again, and never another loss.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from trainrig.process.events import read_events
from trainrig.process.lost_ranks import Restart
from trainrig.process.supervisor import launch
from trainrig.record import Outcome, Status
from trainrig.runner import train as runner
from trainrig.runner.launch_scripts import write_scripts
from trainrig.runner.progress import null_progress
from trainrig.runner.view import training_summary
from trainrig.train.checkpoint_folder import steps_in
from trainrig.train.config import Experiment
from trainrig.train.config_file import experiment_of
from trainrig.train.engines import ENGINES, Job, Result

MODEL = "gpt2:num_layers=2,hidden=32,num_heads=2,vocab=512,max_positions=32"
STEPS = 30
smoke, acceptance = pytest.mark.smoke, pytest.mark.acceptance
NATIVE = ENGINES["native"]


def experiment(data: str, **changes: Any) -> Experiment:
    keys = {"model": MODEL, "data": data, "batch_size": 2, "seq_len": 16, "steps": STEPS}
    keys |= {"precision": "fp32", "device": "cpu", "nproc": 2, "checkpoint_every": 3}
    return experiment_of(keys | {"name": "two", "max_restarts": 3, "threads": 1} | changes)


def processes_of(folder: Path) -> list[psutil.Process]:
    """What runs with this folder in its command line: ranks and agents."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or [])
    ]


@pytest.fixture(autouse=True)
def none_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert [process.cmdline() for process in processes_of(tmp_path)] == []


def losses(result: Result) -> list[float]:
    assert [row["step"] for row in result.rows] == list(range(len(result.rows)))
    return [row["loss"] for row in result.rows]


def train(own: Experiment, folder: Path, **how: Any) -> Result:
    """One training by our supervisor, which ends well."""
    saved = str(folder / "checkpoints")
    job = Job(probe=False, checkpoint=saved, resume=saved)
    ended = launch(NATIVE.command(own, folder, job), folder, **how)
    assert ended.status is Status.OK, ended.reason
    return NATIVE.collect(folder)


@pytest.fixture(scope="module")
def undisturbed(data: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[float]]:
    """The losses of a layout that nothing happens to."""
    known: dict[str, list[float]] = {}

    def of(**layout: Any) -> list[float]:
        name = str(layout)
        if name not in known:
            known[name] = losses(train(experiment(data, **layout), tmp_path_factory.mktemp("calm")))
            assert len(known[name]) == STEPS
        return known[name]

    return of


def strike_at(step: int, victim: int, number: signal.Signals) -> Callable[[int, Any], None]:
    """Signal a rank once the first one has told this step."""
    pids: dict[int, int] = {}
    struck: list[int] = []

    def on_event(rank: int, event: Mapping[str, Any]) -> None:
        if event["event"] == "start":
            pids[rank] = event["pid"]
        if rank == 0 and event["event"] == "row" and event["step"] >= step and not struck:
            struck.append(pids[victim])
            os.kill(pids[victim], number)

    return on_event


@acceptance
def test_a_rank_that_is_killed_at_ten_random_steps_changes_no_loss(
    data: str, tmp_path: Path, undisturbed: Callable[..., list[float]]
) -> None:
    chance = random.Random(7)
    layouts = [{"zero": 0}, {"zero": 3}, {"tp": 2}, {"zero": 1}, {"pp": 2, "grad_accum": 2}] * 2
    found: list[tuple[bool, Restart]] = []
    for number, layout in enumerate(layouts):
        step, victim = chance.randrange(STEPS - 8), number % 2
        strike = strike_at(step, victim, signal.SIGKILL)
        folder = tmp_path / str(number)
        result = train(experiment(data, **layout), folder, on_event=strike)
        (restart,) = result.restarts
        assert restart.rank == victim and "was ended by SIGKILL in " in restart.cause
        assert restart.host == socket.gethostname() and restart.since
        found.append((losses(result) == undisturbed(**layout), restart))
        print(layout, step, victim, restart)
    assert [equal for equal, _ in found] == [True] * 10


@acceptance
def test_a_rank_that_stays_lost_is_gone_on_without(
    data: str, tmp_path: Path, undisturbed: Callable[..., list[float]]
) -> None:
    """Its next process dies before a step: one rank takes the samples of both."""
    starts: list[int] = []
    strike = strike_at(9, 1, signal.SIGKILL)

    def on_event(rank: int, event: Mapping[str, Any]) -> None:
        if rank == 1 and event["event"] == "start":
            starts.append(event["pid"])
            if len(starts) == 2:
                os.kill(event["pid"], signal.SIGKILL)
        strike(rank, event)

    for layout in ({"zero": 3}, {"zero": 0, "grad_accum": 2}):
        starts.clear()
        strike = strike_at(9, 1, signal.SIGKILL)
        own = experiment(data, min_nproc=1, **layout)
        result = train(own, tmp_path / str(layout["zero"]), on_event=on_event)
        found, calm = losses(result), undisturbed(**layout)
        assert max(abs(a - b) for a, b in zip(found, calm, strict=True)) < 1e-6
        assert [restart.ranks for restart in result.restarts] == [2, 1] and result.ranks == 1


@smoke
def test_a_killed_rank_in_a_run_is_a_warning_and_no_other_loss(data: str, tmp_path: Path) -> None:
    """Its checkpoint, its row, the report: by the runner, against one process as ever."""
    own = experiment(data, zero=3, steps=8, checkpoint_every=2)
    real, strike = runner.launch, strike_at(3, 1, signal.SIGKILL)

    def struck(command: Any, folder: Path, on_event: Any, **how: Any) -> Any:
        def both(rank: int, event: Mapping[str, Any]) -> None:
            on_event(rank, event)
            strike(rank, event)

        return real(command, folder, on_event=both, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "launch", struck)
        outcomes = runner.train((own,), out=tmp_path)
    found = training_summary(outcomes)
    assert outcomes.verdict.outcome is Outcome.PASS, outcomes.verdict.reason
    assert found["row_verdict"] == "agreed" and len(found["losses"]) == 8
    (restart,) = found["restarts"]
    assert restart["rank"] == 1 and restart["steps_lost"] >= 0 and restart["time_lost_s"] > 0.0
    (finding,) = [each for each in found["findings"] if each["id"] == "rank-lost"]
    assert "rank 1 was ended by SIGKILL" in finding["evidence"]
    assert "went on from step" in (outcomes.run / "report.html").read_text()


# ---- torchrun


def written(own: Experiment, out: Path, stall_timeout: float = 600.0) -> Path:
    (folder,) = write_scripts((own,), out, null_progress, stall_timeout)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def agent(folder: Path, number: int = 0, **env: str) -> subprocess.Popen[bytes]:
    """torchrun's agent of one node."""
    with (folder / f"agent-{number}.log").open("wb") as log:
        return subprocess.Popen(
            ["sh", str(folder / "node.sh")], env=os.environ | env, stdout=log, stderr=log
        )


def wait_until(is_so: Callable[[], object], timeout: float = 240.0) -> None:
    until = time.monotonic() + timeout
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def has_told(folder: Path, step: int) -> bool:
    """Whether the first rank has had this step."""
    rows = [event for _, event in read_events(folder, 0) if event["event"] == "row"]
    return any(row["step"] >= step for row in rows)


def logs_of(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace") for path in folder.glob("agent-*.log"))


@acceptance
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_torchrun_goes_on_after_a_rank_that_is_killed_or_hangs(
    data: str, tmp_path: Path, undisturbed: Callable[..., list[float]], number: signal.Signals
) -> None:
    folder = written(experiment(data), tmp_path / "w", stall_timeout=5.0)
    process = agent(folder)
    wait_until(lambda: has_told(folder, 8))
    (pid,) = [event["pid"] for _, event in read_events(folder, 1) if event["event"] == "start"]
    os.kill(pid, number)
    assert process.wait(180) == 0, logs_of(folder)
    result = NATIVE.collect(folder)
    assert losses(result) == undisturbed()
    (restart,) = result.restarts
    print(restart)
    assert (restart.rank, restart.pid, restart.ranks) == (1, pid, 2)
    how = "rank 1 is stopped" if number is signal.SIGSTOP else "rank 1 ended without a word"
    assert how in restart.cause and restart.host == socket.gethostname()


@acceptance
def test_an_agent_that_is_told_to_end_lets_its_ranks_save(data: str, tmp_path: Path) -> None:
    """As Slurm does before the time of a job is over; the next one goes on, nothing is lost."""
    own = experiment(data, steps=150, checkpoint_every=1000)
    folder = written(own, tmp_path / "w")
    process = agent(folder)
    wait_until(lambda: has_told(folder, 8))
    process.terminate()
    assert process.wait(120) != 0
    (saved,) = steps_in(folder / "checkpoints")
    assert 8 < saved < 150
    assert agent(folder).wait(240) == 0, logs_of(folder)
    result = NATIVE.collect(folder)
    assert losses(result) == losses(train(own, tmp_path / "calm")) and not result.restarts


@acceptance
def test_a_lost_node_is_gone_on_without_in_15_seconds(
    data: str, tmp_path: Path, undisturbed: Callable[..., list[float]]
) -> None:
    own = experiment(data, min_nproc=1, steps=60)
    folder = written(own, tmp_path / "w")
    port = free_port()
    place = {"NNODES": "1:2", "NPROC_PER_NODE": "1", "RDZV": f"localhost:{port}"}
    first = agent(folder, 0, **place)
    wait_until(lambda: listens(port))  # both are on RDZV's host: who comes first has the store
    second = agent(folder, 1, **place)
    wait_until(lambda: has_told(folder, 10))
    second.kill()  # the agent alone: its rank is to end by itself
    struck = time.monotonic()
    assert first.wait(180) == 0, logs_of(folder)
    second.wait(10)
    result = NATIVE.collect(folder)
    found, calm = losses(result), losses(train(own, tmp_path / "calm"))
    assert len(found) == 60 and max(abs(a - b) for a, b in zip(found, calm, strict=True)) < 1e-6
    starts = [event for _, event in read_events(folder, 0) if event["event"] == "start"]
    assert [event["ranks"] for event in starts] == [2, 1]
    again = next(
        event["at"]
        for _, event in read_events(folder, 0)
        if event["event"] == "row" and event["at"] > starts[-1]["at"]
    )
    (restart,) = result.restarts
    print(again - struck, restart)
    assert again - struck < 15.0 and restart.ranks == 1
    assert "ended without a word" in restart.cause


# ---- Slurm

SLURM_CONF = """
ClusterName=trainrig
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
KillWait=5
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


OVER = re.compile("JobState=(COMPLETED|FAILED|CANCELLED|NODE_FAIL|TIMEOUT)")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """A cluster of two nodes on this host, by Debian's packages; what its commands print."""
    absent = [name for name in ("munged", "slurmctld", "slurmd") if shutil.which(name) is None]
    if absent:  # not by a mark: what is skipped for its length needs nothing
        pytest.skip(f"needs {', '.join(absent)} of slurm-wlm and munge")
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons start jobs as other users: root alone can")
    folder = tmp_path / "slurm"
    for name in ("node1", "node2"):
        (folder / f"spool-{name}").mkdir(parents=True)
    conf, key = folder / "slurm.conf", folder / "munge.key"
    ports = [free_port() for _ in range(3)]
    conf.write_text(SLURM_CONF.format(folder=folder, host=socket.gethostname(), ports=ports))
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    monkeypatch.setenv("SLURM_CONF", str(conf))
    of_munge = {"key-file": key, "socket": folder / "munge.socket", "pid-file": folder / "m.pid"}
    of_munge |= {"seed-file": folder / "munge.seed", "log-file": folder / "munge.log"}
    daemons = [
        ["munged", "--force", "--foreground", *(f"--{n}={path}" for n, path in of_munge.items())],
        ["slurmctld", "-D", "-f", str(conf)],
        *(["slurmd", "-D", "-N", node, "-f", str(conf)] for node in ("node1", "node2")),
    ]
    started: list[subprocess.Popen[bytes]] = []

    def ask(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        return done.stdout + done.stderr

    try:
        for words in daemons:
            with (folder / f"{len(started)}.log").open("wb") as log:
                started.append(subprocess.Popen(words, stdout=log, stderr=log))
            if words[0] == "munged":
                wait_until((folder / "munge.socket").exists)
            elif words[0] == "slurmctld":
                wait_until(lambda: listens(ports[0]))
        wait_until(lambda: ask("sinfo", "-h", "-o", "%T %D").strip() == "idle 2")
        yield ask
        ask("scancel", "--user=root")
        wait_until(lambda: not ask("squeue", "-h").strip())
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(60)


@acceptance
def test_a_job_of_two_slurm_nodes_agrees_and_goes_on_after_a_lost_step(
    data: str, tmp_path: Path, slurm: Callable[..., str]
) -> None:
    own = experiment(data, steps=150)
    calm = losses(train(own, tmp_path / "calm"))
    for number, is_struck in enumerate((False, True)):
        folder = written(own, tmp_path / f"job-{number}")
        told = slurm("sbatch", "--parsable", "--nodes", "2", str(folder / "job.sbatch"))
        job = told.strip()
        assert job.isdecimal(), told
        if is_struck:
            wait_until(lambda folder=folder: has_told(folder, 10))
            agents = [p for p in processes_of(folder) if "torch.distributed.run" in p.cmdline()]
            assert len(agents) == 2
            agents[0].kill()
            wait_until(lambda job=job: "Restarts=1" in slurm("scontrol", "show", "job", job))
            wait_until(lambda job=job: "PENDING" in slurm("squeue", "-h", "-o", "%T", "-j", job))
            # Slurm waits two minutes before it starts a requeued job: a node that has just revoked
            # the credential of a job refuses it within the same second.
            slurm("scontrol", "update", f"JobId={job}", "StartTime=now+8")
        wait_until(lambda job=job: OVER.search(slurm("scontrol", "show", "job", job)))
        log = (folder / f"slurm-{job}.log").read_text()
        assert "JobState=COMPLETED" in slurm("scontrol", "show", "job", job), log
        result = NATIVE.collect(folder)
        assert losses(result) == calm, log
        print(result.restarts)
        assert len(result.restarts) == is_struck
        assert not is_struck or "ended without a word" in result.restarts[0].cause
