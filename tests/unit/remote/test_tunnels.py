"""Tunnels as written: golden files, nothing beyond loopback, secrets in files of mode 600."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from trainrig.errors import DataError, UsageError
from trainrig.remote import tunnels
from trainrig.remote.setups import (
    all_setups,
    command_of,
    keep_running,
    read_secret,
    remove_setup,
    setups_folder,
    unit_path,
    unit_text,
    write_setup,
)

TOKEN, SECRET = "token-" + "t" * 32, "secret-" + "s" * 32
AUD = "a" * 64


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def secrets(tmp_path: Path) -> tuple[Path, Path]:
    for name, text in (("token", TOKEN), ("secret", SECRET)):
        (tmp_path / name).write_text(text + "\n")
        (tmp_path / name).chmod(0o600)
    return tmp_path / "token", tmp_path / "secret"


@pytest.fixture
def ssh_config(tmp_path: Path) -> Path:
    path = tmp_path / "ssh_config"
    path.write_text(
        "Host gpu1\n  HostName 10.0.0.5\n  User ada\n  ProxyJump gate,inner\n"
        "Host plain\n  HostName 10.0.0.6\n"
    )
    return path


# ---- OpenSSH


@pytest.mark.needs("ssh")
def test_a_forward_is_on_loopback_by_keys_through_the_config_s_hops(ssh_config: Path) -> None:
    made = tunnels.forward("one", "gpu1", "8888:9999", config=ssh_config)
    words = list(made.command)
    assert words[words.index("-L") + 1] == "127.0.0.1:8888:127.0.0.1:9999"
    for option in ("BatchMode=yes", "PasswordAuthentication=no", "ExitOnForwardFailure=yes"):
        assert option in words
    assert made.reach.endswith("is port 9999 of ada@10.0.0.5 through gate,inner")
    back = tunnels.forward("two", "plain", "2222:22", reverse=True, config=ssh_config)
    assert back.command[-3:] == ("-R", "127.0.0.1:22:127.0.0.1:2222", "plain")


@pytest.mark.parametrize(
    "ports", ["0.0.0.0:8888:1", "0", "65536", "a", "", "1:2:3", "8888:", "*:8888", "-1"]
)
def test_an_address_or_a_wrong_port_is_refused(ports: str) -> None:
    with pytest.raises(UsageError):
        tunnels.port_pair(ports)


@pytest.mark.parametrize("host", ["-oProxyCommand=id", "a b", "$(id)", "", "a;b"])
def test_a_host_is_no_option_and_no_command(host: str) -> None:
    with pytest.raises(UsageError, match="no host"):
        tunnels.check_host(host)


# ---- frp


def relay(secrets: tuple[Path, Path], ca: Path | None = None) -> tunnels.FrpRelay:
    return tunnels.FrpRelay(server="relay.example", port=7001, token_file=secrets[0], ca=ca)


def machine(secrets: tuple[Path, Path], ca: Path | None = None) -> tunnels.Setup:
    return tunnels.frp_machine("gpu", relay(secrets, ca), secrets[1], 8888)


def pem(path: Path, what: str) -> Path:
    path.write_text(f"-----BEGIN {what}-----\nMII\n-----END {what}-----\n")
    path.chmod(0o600)
    return path


def test_the_relay_is_verified_by_its_certificate_or_the_output_says_that_it_is_not(
    secrets, tmp_path: Path
) -> None:
    cert = pem(tmp_path / "relay.crt", "CERTIFICATE")
    key = pem(tmp_path / "relay.key", "RSA PRIVATE KEY")
    served = tunnels.frp_server("gpu-relay", secrets[0], 7001, (cert, key))
    tls = tomllib.loads(served.files["frps.toml"])["transport"]["tls"]
    assert tls == {"force": True, "certFile": str(cert), "keyFile": str(key)}
    verified, blind = machine(secrets, cert), machine(secrets)
    tls = tomllib.loads(verified.files["frpc.toml"])["transport"]["tls"]
    assert tls == {"enable": True, "trustedCaFile": str(cert), "serverName": "relay.example"}
    assert tomllib.loads(blind.files["frpc.toml"])["transport"]["tls"] == {"enable": True}
    assert any("poses as the relay" in note for note in blind.notes)
    assert not any("poses as the relay" in note for note in verified.notes)
    assert all(any("unverified" in n for n in made.notes) for made in (served, verified, blind))
    with pytest.raises(UsageError, match="holds no certificate"):
        machine(secrets, key)
    with pytest.raises(DataError, match="no such file"):
        machine(secrets, tmp_path / "none")
    key.chmod(0o640)
    with pytest.raises(UsageError, match="readable by others"):
        tunnels.frp_server("gpu-relay", secrets[0], 7001, (cert, key))


def test_the_relay_s_file(secrets) -> None:
    made = tunnels.frp_server("gpu-relay", secrets[0], 7000, None)
    assert tomllib.loads(made.files["frps.toml"]) == {
        "bindPort": 7000,
        "auth": {
            "method": "token",
            "tokenSource": {"type": "file", "file": {"path": str(secrets[0].resolve())}},
        },
        "transport": {"tls": {"force": True}},
        "allowPorts": [{"single": 7000}],
        "detailedErrorsToClient": False,
    }


def test_the_machine_s_and_the_visitor_s_files_fit_together(secrets) -> None:
    far = machine(secrets)
    near = tunnels.frp_visitor("gpu", relay(secrets), secrets[1], 9999)
    one, two = (tomllib.loads(each.files["frpc.toml"]) for each in (far, near))
    (proxy,), (door,) = one.pop("proxies"), two.pop("visitors")
    assert one == two and one["transport"]["tls"]["enable"] is True
    assert one["auth"]["tokenSource"]["file"]["path"] == str(secrets[0].resolve())
    assert (proxy["type"], proxy["localIP"], proxy["localPort"]) == ("stcp", "127.0.0.1", 8888)
    assert (door["type"], door["bindAddr"], door["bindPort"]) == ("stcp", "127.0.0.1", 9999)
    assert proxy["secretKey"] == door["secretKey"] == SECRET and door["serverName"] == "gpu"
    assert far.reach.endswith("--server relay.example --server-port 7001 --port 8888")
    for made in (far, near):
        text = made.files["frpc.toml"]
        assert TOKEN not in text and "webServer" not in text and "remotePort" not in text
        assert SECRET not in " ".join(made.command) + made.reach


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_secret_that_others_may_read_is_refused(secrets, mode: int) -> None:
    secrets[0].chmod(mode)
    with pytest.raises(UsageError, match="readable by others") as error:
        tunnels.frp_server("x", secrets[0], 7000, None)
    assert error.value.hint == f"chmod 600 {secrets[0]}"


@pytest.mark.parametrize("text", ["", "short", "with space " * 4, "x" * 20 + "\ny"])
def test_a_weak_secret_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "weak"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="holds no"):
        read_secret(path, "token")
    with pytest.raises(DataError, match="no such file"):
        read_secret(tmp_path / "none", "token")


# ---- cloudflared


def test_the_tunnel_s_file() -> None:
    made = tunnels.cloudflared("lab", "trainrig", "gpu.example.com", 8888, "lab", AUD)
    assert made.files["config.yml"] == (
        "tunnel: trainrig\n"
        "ingress:\n"
        "  - hostname: gpu.example.com\n"
        "    service: http://127.0.0.1:8888\n"
        "    originRequest:\n"
        "      access:\n"
        "        required: true\n"
        "        teamName: lab\n"
        "        audTag:\n"
        f"          - {AUD}\n"
        "  - service: http_status:404\n"
    )


@pytest.mark.parametrize(
    ("hostname", "team", "aud"),
    [
        ("gpu.example", "lab", ""),
        ("gpu.example", "", AUD),
        ("a: b", "lab", AUD),
        ("a\nb", "x", AUD),
    ],
)
def test_a_tunnel_without_a_policy_is_refused(hostname: str, team: str, aud: str) -> None:
    with pytest.raises(UsageError):
        tunnels.cloudflared("lab", "trainrig", hostname, 8888, team, aud)


# ---- set-ups: written, checked by their program, taken back


def test_what_was_written_is_the_owner_s_alone_and_goes_again(secrets) -> None:
    made = machine(secrets)
    files = write_setup(made)
    assert files == [setups_folder() / "gpu" / "frpc.toml", unit_path("gpu")]
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
    assert [each["name"] for each in all_setups()] == ["gpu"]
    with pytest.raises(UsageError, match="already"):
        write_setup(made)
    gone, stay = remove_setup("gpu")
    assert gone == files and stay == [] and not (setups_folder() / "gpu").exists()
    with pytest.raises(UsageError, match="nothing is set up"):
        remove_setup("gpu")


def test_a_file_that_was_changed_since_stays(secrets) -> None:
    write_setup(machine(secrets))
    file = setups_folder() / "gpu" / "frpc.toml"
    file.write_text("mine")
    gone, stay = remove_setup("gpu")
    assert stay == [file] and gone == [unit_path("gpu")] and file.read_text() == "mine"


@pytest.mark.parametrize("name", ["../x", "", "a/b", "-x", "a b", "x" * 80])
def test_a_name_is_no_path(name: str) -> None:
    made = tunnels.cloudflared(name, "t", "gpu.example", 8888, "lab", AUD)
    with pytest.raises(UsageError, match="no name"):
        write_setup(made)


def test_the_unit_starts_again_and_survives_a_reboot() -> None:
    made = tunnels.cloudflared("lab", "trainrig", "gpu.example.com", 8888, "lab", AUD)
    text = unit_text(made)
    assert "Restart=always\n" in text and "WantedBy=default.target\n" in text
    folder = setups_folder() / "lab"
    assert f"--config {folder}/config.yml tunnel run\n" in text
    odd = unit_text(tunnels.Setup(name="x", kind="y", command=("sh", "-c", "echo 50% $HOME; true")))
    assert 'sh -c "echo 50%% $$HOME; true"\n' in odd


@pytest.mark.needs("systemd-analyze")
def test_systemd_reads_the_user_s_unit(tmp_path: Path) -> None:
    """With all that it would read otherwise: quotes, %, $, spaces and a backslash."""
    words = ("sh", "-c", "f'{x}'; echo \"50% $HOME\" \\", "FOLDER/token", "--dir=/a b/ü")
    unit = tmp_path / "trainrig-x.service"
    unit.write_text(unit_text(tunnels.Setup(name="x", kind="y", command=words)))
    command = ["systemd-analyze", "--user", "verify", str(unit)]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("Restart=always", "Restart=sometimes"))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert unit.name in done.stderr


def stub(folder: Path, name: str, code: int) -> Path:
    """A program that notes how it was called and reads the file that it is to check."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    log = folder / "calls"
    path.write_text(
        f'#!/bin/sh\necho "$0 $*" >>{log}\nfor w; do [ -f "$w" ] && cat "$w" >/dev/null; done\n'
        f'[ {code} = 0 ] || echo "json: unknown field" >&2\nexit {code}\n'
    )
    path.chmod(0o755)
    return log


@pytest.mark.parametrize(
    ("program", "words"), [("frpc", ("frp",)), ("cloudflared", ("cloudflared",))]
)
def test_the_program_checks_its_file_and_a_refusal_takes_it_back(
    trainrig, tmp_path: Path, monkeypatch, secrets, program: str, words: tuple[str, ...]
) -> None:
    given = {
        "frp": ["--server", "relay.example", "--token-file", str(secrets[0])]
        + ["--secret-file", str(secrets[1])],
        "cloudflared": ["--hostname", "gpu.example", "--team", "lab", "--aud", AUD],
    }[words[0]]
    code, out, _ = trainrig("remote", *words, *given, "--json", "--name", "first")
    assert code == 0 and "is not installed here" in json.loads(out)["checked"]
    log = stub(tmp_path / "bin", program, 0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    code, out, _ = trainrig("remote", *words, *given, "--json", "--name", "second")
    assert code == 0 and json.loads(out)["checked"] == f"checked by {program}"
    assert str(setups_folder() / "second") in log.read_text()
    stub(tmp_path / "bin", program, 1)
    code, _, err = trainrig("remote", *words, *given, "--name", "third")
    assert code == 2 and "refuses its file: json: unknown field" in err
    assert [each["name"] for each in all_setups()] == ["first", "second"]


def test_a_set_up_runs_its_program_again_whenever_it_ends(tmp_path, monkeypatch, secrets) -> None:
    log = stub(tmp_path / "bin", "frpc", 1)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    write_setup(machine(secrets))
    waits: list[float] = []
    lines: list[str] = []
    keep_running(command_of("gpu"), lines.append, sleep=waits.append, rounds=4)
    assert waits == [1.0, 2.0, 4.0, 8.0]
    assert log.read_text().count(f"-c {setups_folder()}/gpu/frpc.toml") == 4
    assert sum("ended with exit code 1" in line for line in lines) == 4


def test_list_and_remove_as_verbs(trainrig, secrets) -> None:
    assert trainrig("remote", "list")[1] == "nothing is set up\n"
    trainrig("remote", "frp", "--role", "relay", "--token-file", str(secrets[0]))
    code, out, _ = trainrig("remote", "list", "--json")
    assert code == 0 and json.loads(out)["setups"][0]["name"] == "gpu-relay"
    code, out, _ = trainrig("remote", "remove", "gpu-relay", "--json")
    assert code == 0 and len(json.loads(out)["removed"]) == 2
    code, _, err = trainrig("remote", "remove", "gpu-relay")
    assert code == 2 and "nothing is set up" in err


@pytest.mark.parametrize(
    "words",
    [
        ("frp", "--server", "relay.example"),
        ("frp", "--role", "machine"),
        ("frp", "--role", "relay", "--ca", "x"),
        ("frp", "--role", "relay", "--cert", "x"),
        ("frp", "--server", "relay.example", "--key", "x"),
        ("forward", "-oProxyCommand=id"),
        ("forward", "gpu1", "--port", "0.0.0.0:1:2"),
        ("cloudflared", "--hostname", "x", "--team", "y", "--aud", "z"),
        ("notebook", "--port", "99999"),
        ("notebook", "--root", "/no/folder"),
        ("notebook", "--python", "/no/python"),
        ("run", "nothing"),
        ("test", "x", "--seconds", "nan"),
    ],
)
def test_a_wrong_word_is_one_line_and_a_hint(trainrig, words, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    code, out, err = trainrig("remote", *words)
    assert code == 2 and out == "" and len(err.splitlines()) <= 2 and "Traceback" not in err
    assert not any(setups_folder().glob("*"))
    assert shutil.which("sh")
