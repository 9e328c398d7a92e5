"""A real sshd on loopback with a key made for the test, and an ssh_config that leads to it."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

SSHD = shutil.which("sshd") or ("/usr/sbin/sshd" if Path("/usr/sbin/sshd").exists() else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshServer:
    """Where it listens, and with what one gets in."""

    port: int
    key: Path
    config: Path
    """For ``ssh -F``: hosts ``direct``, ``far`` (through ``direct``) and ``gone``."""
    log: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes], patience: float = 60.0) -> bool:
    """Whether something answers on a port of loopback while the process lives."""
    import time

    end = time.monotonic() + patience
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.05)
    return False


@contextmanager
def ssh_server(folder: Path) -> Iterator[SshServer]:
    """sshd until the block ends; keys alone are taken."""
    if SSHD is None or shutil.which("ssh-keygen") is None:
        pytest.skip("needs sshd")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    port, log = free_port(), folder / "sshd.log"
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\nMaxStartups 50\n"
    )
    common = (
        f"  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {folder}/user\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known\n"
    )
    dead = common.replace(f"Port {port}", f"Port {free_port()}")
    text = f"Host direct\n{common}Host far\n{common}  ProxyJump direct\nHost gone\n{dead}"
    (folder / "config").write_text(text)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=file, stdout=file
        )
    try:
        if not wait_for(port, process, 20.0):
            pytest.skip(f"needs sshd that starts: {log.read_text()[-200:]}")
        yield SshServer(port=port, key=folder / "user", config=folder / "config", log=log)
    finally:
        process.terminate()
        process.wait()
