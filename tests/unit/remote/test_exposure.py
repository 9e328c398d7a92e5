"""What would let others in, or stay behind: PAM's passwords, shared connections, empty tokens."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from machine_fakes import FakeHost, healthy
from trainrig.process.programs import start_detached
from trainrig.remote import detached, notebook, tunnels
from trainrig.remote.audit import audit
from trainrig.remote.setups import remove_setup, unit_path, write_setup

SSHD = "/etc/ssh/sshd_config"
YML = "/home/ada/.cloudflared/config.yml"
KEYS = "PasswordAuthentication no\nUsePAM yes\n"
ONE = tunnels.cloudflared("x", "t", "gpu.example", 8888, "lab", "a" * 64).files["config.yml"]
SECOND = "  - hostname: open.example\n    service: http://127.0.0.1:9\n"
FALLBACK = "  - service: http_status:404\n"


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def found(files: dict[str, str]) -> dict[str, str]:
    answers = audit(FakeHost(files), "/home/ada", healthy())
    return {one.id: one.evidence for each in answers for one in each.findings}


@pytest.mark.parametrize(
    ("faulty", "repaired", "code"),
    [
        ({SSHD: KEYS}, {SSHD: KEYS + "KbdInteractiveAuthentication no\n"}, "ssh-password"),
        ({SSHD: KEYS}, {SSHD: KEYS + "ChallengeResponseAuthentication no\n"}, "ssh-password"),
        (
            {"/etc/frp/frpc.toml": '[[proxies]]\nname = "j"\ntype = "https"\n'},
            {"/etc/frp/frpc.toml": '[[proxies]]\nname = "j"\ntype = "stcp"\n'},
            "frp-public-port",
        ),
        (
            {YML: ONE.replace(FALLBACK, SECOND + FALLBACK)},
            {
                YML: ONE.replace(FALLBACK, SECOND + FALLBACK)
                + "originRequest:\n  access:\n    required: true\n"
            },
            "cloudflared-no-policy",
        ),
    ],
    ids=["pam", "pam's older name", "https", "one host of two"],
)
def test_a_door_beside_the_locked_one_is_found(faulty, repaired, code: str) -> None:
    assert set(found(faulty)) == {code}
    assert found(repaired) == {}


def test_the_host_without_a_policy_is_named_and_not_the_other() -> None:
    evidence = found({YML: ONE.replace(FALLBACK, SECOND + FALLBACK)})["cloudflared-no-policy"]
    assert "open.example" in evidence and "gpu.example" not in evidence


def test_a_connection_is_not_shared_with_one_that_lives_on() -> None:
    assert "ControlPath=none" in tunnels.SAFE_SSH


def test_the_token_is_given_above_all_settings_and_on_no_command_line(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    (tmp_path / "jupyterlab.py").write_text(
        "import json, sys\n"
        "line = open('/proc/self/cmdline').read()\n"
        "print(json.dumps([sys.argv[1:], 't0ken' in line]))\n"
    )
    words = [sys.executable, "-c", notebook._START, str(tmp_path / "token"), "--ServerApp.port=1"]
    done = subprocess.run(words, capture_output=True, check=True, cwd=tmp_path)
    given, is_seen = json.loads(done.stdout)
    assert given[0] == "--ServerApp.port=1" and not is_seen
    # the class in use is the second one, and its own setting would win over its parent's
    assert given[1:] == ["--IdentityProvider.token=t0ken", "--PasswordIdentityProvider.token=t0ken"]


def test_removing_takes_the_enabled_link_where_systemd_does_not_answer(monkeypatch) -> None:
    monkeypatch.setattr("trainrig.remote.setups.systemd_answers", lambda: "no bus")
    made = tunnels.cloudflared("lab", "t", "gpu.example", 8888, "lab", "a" * 64)
    write_setup(made)
    link = unit_path("lab").parent / "default.target.wants" / unit_path("lab").name
    link.parent.mkdir()
    link.symlink_to(unit_path("lab"))
    gone, stay = remove_setup("lab")
    assert link in gone and stay == [] and not link.is_symlink()


def test_a_signal_that_came_before_the_command_was_there_is_sent_again() -> None:
    """The first SIGTERM is taken by nobody: as by a keeper that has not forked yet."""
    once = "trap 'trap - TERM' TERM; echo up; while :; do sleep 0.05; done"
    job = detached.start_job(["sh", "-c", once], "test")
    while not Path(job.log).read_text():
        time.sleep(0.02)
    ended = detached.end_job(job)
    assert (ended.state, ended.code) == ("ended", 143)


def test_a_job_that_is_ended_as_it_begins_has_its_exit_code(monkeypatch) -> None:
    """Its keeper has set no trap yet: here there is none at all."""
    monkeypatch.setattr(
        detached, "start_detached", lambda words, log, _: start_detached(words, log)
    )
    job = detached.start_job(["sleep", "600"], "test")
    ended = detached.end_job(job)
    assert (ended.state, ended.code) == ("ended", 143)
