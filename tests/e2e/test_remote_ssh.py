"""Through a real sshd on loopback, with a key made for the test: forwards, a notebook, a training.

What needs JupyterLab or a training is `acceptance`; the rest takes seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssh_server import SshServer, free_port, ssh_server, wait_for
from trainrig.remote.detached import all_jobs, end_job, find_job
from trainrig.remote.link_test import Hop, limiting, measure_way
from trainrig.remote.setups import command_of, setups_folder

pytestmark = pytest.mark.needs("ssh")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    for job in all_jobs():
        if job.state == "running":
            end_job(job, grace_s=5.0)


def fetch(url: str, token: str | None = None) -> tuple[int, str]:
    headers = {"Authorization": f"token {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


# ---- what a way is worth


def test_each_hop_of_a_way_is_measured(server: SshServer) -> None:
    way = measure_way("far", server.config, seconds=0.2)
    assert [(hop.host, hop.via) for hop in way.hops] == [("direct", ()), ("far", ("direct",))]
    for hop in way.hops:
        assert hop.error is None and hop.latency_s and hop.latency_s > 0
        assert hop.up_bytes_per_s and hop.down_bytes_per_s
    assert way.limited_by


def test_loss_is_what_ping_counts(server: SshServer, tmp_path: Path, monkeypatch) -> None:
    """ping needs rights that a container lacks: here it is a program that prints what ping does."""
    fake = tmp_path / "bin" / "ping"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\necho '10 packets transmitted, 9 received, 10% packet loss, time 9'\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    assert measure_way("direct", server.config, seconds=0.1).hops[0].loss == pytest.approx(0.1)


def test_a_host_that_is_gone_is_named(server: SshServer, trainrig) -> None:
    code, out, err = trainrig("remote", "test", "gone", "--config", str(server.config))
    assert code == 3 and out == "" and "refused" in err and len(err.splitlines()) == 2


def test_the_verb_compares_two_ways(server: SshServer, trainrig) -> None:
    words = ("remote", "test", "far", "direct", "--config", str(server.config), "--budget", "200ms")
    code, out, _ = trainrig(*words, "--json")
    ways = json.loads(out)["ways"]
    assert code == 0 and [way["host"] for way in ways] == ["far", "direct"]
    assert len(ways[0]["hops"]) == 2 and ways[1]["hops"][0]["down_bytes_per_s"] > 0


@pytest.mark.parametrize(
    ("relay", "whole", "words"), [(10e6, 9e6, "relay limits"), (100e6, 9e6, "the leg from relay")]
)
def test_the_slow_hop_is_named(relay: float, whole: float, words: str) -> None:
    def hop(host: str, rate: float, *via: str) -> Hop:
        return Hop(host=host, via=via, up_bytes_per_s=rate, down_bytes_per_s=rate)

    assert limiting([hop("relay", relay), hop("gpu", whole, "relay")]).startswith(words)
    assert limiting([hop("gpu", whole)]).startswith("gpu is reached directly")


# ---- a forward


def test_a_forward_carries_a_port_and_ends_with_its_job(server: SshServer, trainrig) -> None:
    """What is reached is sshd itself: a client that logs in through the forward."""
    asyncssh = pytest.importorskip("asyncssh", reason="needs asyncssh")
    local = free_port()
    words = ("far", "--port", f"{local}:{server.port}", "--config", str(server.config))
    code, out, err = trainrig("remote", "forward", *words, "--name", "tunnel", "--json")
    assert code == 0, err
    assert "127.0.0.1" in json.loads(out)["reach"]
    code, out, _ = trainrig("remote", "run", "tunnel", "--detach", "--json")
    assert code == 0 and json.loads(out)["state"] == "running"

    async def log_in() -> str:
        options = {"username": _user(), "client_keys": [str(server.key)], "known_hosts": None}
        async with asyncssh.connect("127.0.0.1", local, **options) as connection:
            return str((await connection.run("echo through", check=True)).stdout)

    with subprocess.Popen(["sleep", "60"]) as alive:
        assert wait_for(local, alive, 30.0), Path(find_job(None).log).read_text()
        alive.kill()
    assert asyncio.run(log_in()) == "through\n"
    trainrig("remote", "remove", "tunnel")
    assert find_job(None).state != "running" and not any(setups_folder().iterdir())
    _until(lambda: not _answers(local))


def test_without_the_key_nobody_comes_in(server: SshServer) -> None:
    asyncssh = pytest.importorskip("asyncssh", reason="needs asyncssh")

    async def log_in(**options: object) -> None:
        async with asyncssh.connect("127.0.0.1", server.port, known_hosts=None, **options):
            pass

    for given in (
        {"password": "guess"},
        {"client_keys": [asyncssh.generate_private_key("ssh-rsa")]},
    ):
        with pytest.raises(asyncssh.PermissionDenied):
            asyncio.run(log_in(username=_user(), agent_path=None, **{"client_keys": []} | given))


def test_a_forward_whose_port_is_taken_does_not_pretend(server: SshServer, trainrig) -> None:
    words = ("direct", "--port", f"{server.port}:22", "--config", str(server.config))
    trainrig("remote", "forward", *words, "--name", "taken")
    done = subprocess.run(command_of("taken"), capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "in use" in done.stderr


def _user() -> str:
    import getpass

    return getpass.getuser()


def _answers(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _until(condition, patience: float = 60.0) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


# ---- long ones


@pytest.mark.acceptance
def test_a_notebook_is_reached_through_the_tunnel_and_with_its_token_alone(
    server: SshServer, trainrig, tmp_path: Path
) -> None:
    pytest.importorskip("jupyterlab", reason="needs jupyterlab")
    port, local = free_port(), free_port()
    code, _, err = trainrig("remote", "notebook", "--port", str(port), "--root", str(tmp_path))
    assert code == 0, err
    token = (setups_folder() / "notebook" / "token").read_text().strip()
    assert (setups_folder() / "notebook" / "token").stat().st_mode & 0o077 == 0
    trainrig("remote", "run", "notebook", "--detach")
    _until(lambda: _answers(port), 120.0)
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(token.encode() in line for line in commands)
    addresses = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False)
    for other in addresses.stdout.split():
        with pytest.raises(OSError, match=r"."):
            urllib.request.urlopen(
                f"http://[{other}]:{port}" if ":" in other else f"http://{other}:{port}", timeout=5
            )

    words = ("far", "--port", f"{local}:{port}", "--config", str(server.config))
    trainrig("remote", "forward", *words, "--name", "tunnel")
    trainrig("remote", "run", "tunnel", "--detach")
    _until(lambda: _answers(local))
    url = f"http://127.0.0.1:{local}/api/contents"
    assert fetch(url)[0] == 403 and fetch(url, "wrong")[0] == 403
    status, text = fetch(url, token)
    assert status == 200 and json.loads(text)["type"] == "directory"
    trainrig("remote", "remove", "tunnel")
    _until(lambda: not _answers(local))
    assert _answers(port)
    trainrig("remote", "remove", "notebook")
    _until(lambda: not _answers(port))


@pytest.mark.acceptance
def test_a_training_outlives_the_connection_that_began_it(
    server: SshServer, tmp_path: Path, prepared_text: Path
) -> None:
    """Begun by ssh on a terminal of its own; the client is killed; it is attached to afterwards."""
    state, out = tmp_path / "state", tmp_path / "runs"
    model = ("--model", "gpt2", "--scale", "tiny", "--steps", "40", "--data", str(prepared_text))
    train = [sys.executable, "-m", "trainrig", "train", *model, "--out", str(out), "--detach"]
    shell = f"cd {tmp_path} && XDG_STATE_HOME={state} {' '.join(train)}; sleep 600"
    client = subprocess.Popen(
        ["ssh", "-tt", "-F", str(server.config), "direct", shell],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _until(lambda: bool(all_jobs()), 120.0)
    client.send_signal(signal.SIGKILL)
    client.communicate()
    (job,) = all_jobs()
    assert job.state == "running"
    words = [sys.executable, "-m", "trainrig", "attach", job.id, "--all"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "report: " in done.stdout and "ended, exit code 0" in done.stderr
    (run,) = out.iterdir()
    assert (run / "report.html").exists()
