"""Tunnels as files and commands: OpenSSH, frp and cloudflared, none of which exposes a bare port.

Every end that is listened on here is on loopback.  OpenSSH: keys alone, a jump host as
``~/.ssh/config`` says, and the tunnel ends where a forward is refused.  frp (0.64 or newer, for
``tokenSource``): a token from a file, TLS forced, proxies of type stcp, which only a visitor with
the secret key reaches; the dashboard has no port.  cloudflared: an Access policy is required, so
that who has no session of the team is turned away at the edge and again here.

frpc verifies the relay's certificate only where it is given what to trust (``trustedCaFile``):
without it TLS keeps out who listens, and nobody notices who poses as the relay (frp's
pkg/transport/tls.go, read in November 2026).

The programs themselves are the user's (on PATH): no package brings them.  Where one is there, its
own check is run over the file (`check_with`).  No test of this project has run either of them.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from trainrig.errors import DataError, UnavailableError, UsageError
from trainrig.process.programs import last_line, run_program
from trainrig.remote.setups import Setup, read_secret

_HOST = re.compile(r"[A-Za-z0-9_.:@\[\]-]+")
_PATIENCE_S = 20.0
_MOST_PORT = 65_535


def port_pair(text: str) -> tuple[int, int]:
    """Return ``8888`` or ``LOCAL:REMOTE``.

    Raises UsageError, also for one that names an address.
    """
    parts = text.split(":")
    if len(parts) > 2 or not all(part.isdecimal() and len(part) < 6 for part in parts):
        hint = "PORT or LOCAL:REMOTE; both ends are on loopback"
        raise UsageError(f"{text!r} is no pair of ports", hint)
    ports = [int(part) for part in parts]
    if not all(1 <= port <= _MOST_PORT for port in ports):
        raise UsageError(f"{text!r}: ports go from 1 to {_MOST_PORT}")
    return ports[0], ports[-1]


def check_host(host: str) -> str:
    """Return a host that cannot be read as an option.  Raises UsageError."""
    if not _HOST.fullmatch(host) or host.startswith("-"):
        raise UsageError(f"{host!r} is no host", "a name of ~/.ssh/config, or user@host")
    return host


def ssh_settings(host: str, config: Path | None = None) -> dict[str, str]:
    """Return OpenSSH's settings for a host (``ssh -G``).  Raises UnavailableError."""
    chosen = ["-F", str(config)] if config else []
    try:
        done = run_program(["ssh", *chosen, "-G", check_host(host)], _PATIENCE_S)
    except OSError:
        raise UnavailableError("ssh is not installed", "install openssh-client") from None
    if done.code != 0:
        raise UsageError(f"ssh: {last_line(done.stderr)}", "look at ~/.ssh/config")
    pairs = (line.partition(" ") for line in done.stdout.decode("utf-8", "replace").splitlines())
    return {name.lower(): value for name, _, value in pairs}


SAFE_SSH = (
    *("-o", "BatchMode=yes"),
    *("-o", "PasswordAuthentication=no"),
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=3"),
    *("-o", "ControlPath=none"),
)
"""Options of each connection: keys alone, no question, a dead peer is noticed in 45 s, and none is
shared (ControlMaster): a forward ends with the process that made it."""


def forward(
    name: str, host: str, ports: str, *, reverse: bool = False, config: Path | None = None
) -> Setup:
    """Return a port of a host on this machine's loopback.

    ``reverse``: one of ours on the host's.
    """
    local, remote = port_pair(ports)
    settings = ssh_settings(host, config)
    jump = settings.get("proxyjump", "none")
    words = ["ssh", "-N", "-T", *SAFE_SSH, "-o", "ExitOnForwardFailure=yes"]
    words += ["-F", str(config)] if config else []
    flag, spec = "-L", f"127.0.0.1:{local}:127.0.0.1:{remote}"
    if reverse:
        flag, spec = "-R", f"127.0.0.1:{remote}:127.0.0.1:{local}"
    where = f"{settings.get('user', '?')}@{settings.get('hostname', host)}"
    via = "" if jump == "none" else f" through {jump}"
    reach = f"http://127.0.0.1:{local} here is port {remote} of {where}{via}"
    if reverse:
        reach = f"http://127.0.0.1:{remote} on {where}{via} is port {local} here"
    return Setup(name=name, kind="forward", command=(*words, flag, spec, host), reach=reach)


UNVERIFIED = "unverified: no test of trainrig has run {program} itself; read its file first"
"""Said with each file of frp and cloudflared."""
_UNVERIFIED_RELAY = (
    "without --ca this end takes any certificate: TLS keeps out who listens, not who poses as the "
    "relay and so sees who connects, or cuts it off (the secret key encrypts what passes)"
)


def frp_server(
    name: str, token_file: Path, port: int, pair: tuple[Path, Path] | None = None
) -> Setup:
    """Return the relay (frps), for a machine that both others reach.

    ``pair``: its certificate and the key of that, in PEM; None: frps makes one at each start, which
    the others cannot verify.
    """
    read_secret(token_file, "token")
    tls, others = "", "..."
    note = "its certificate is made at each start, and nobody can verify it: --cert and --key"
    if pair is not None:
        cert, key = _pem(pair[0], "CERTIFICATE"), _pem(pair[1], "PRIVATE KEY")
        tls = _line("transport.tls.certFile", cert) + _line("transport.tls.keyFile", key)
        note = f"copy {pair[0]} to both others: --ca there verifies this relay"
        others = f"--ca {pair[0].name} ..."
    text = (
        "# frps 0.64 or newer.  The dashboard stays closed: webServer.port is not set.\n"
        f"bindPort = {_port(port)}\n"
        'auth.method = "token"\n'
        f"{_token_source(token_file)}"
        "transport.tls.force = true\n"
        f"{tls}"
        "# stcp alone, which needs no public port: the only one allowed is taken by frps itself.\n"
        f"allowPorts = [{{ single = {port} }}]\n"
        "detailedErrorsToClient = false\n"
    )
    return Setup(
        name=name,
        kind="frp",
        command=("frps", "-c", "FOLDER/frps.toml"),
        files={"frps.toml": text},
        reach="trainrig remote frp --role machine --server THIS-HOST "
        f"--server-port {port} {others}",
        notes=(
            f"open port {port}/tcp of this host, and no other",
            note,
            UNVERIFIED.format(program="frps"),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FrpRelay:
    """The relay, as machine and visitor know it."""

    server: str
    port: int
    token_file: Path
    ca: Path | None
    """Authority that verifies its certificate, in PEM; None: it is not verified."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what the written file does not protect against, and on what is unverified."""
        verified = f"the relay's certificate has to name {self.server} (subjectAltName)"
        return (verified if self.ca else _UNVERIFIED_RELAY, UNVERIFIED.format(program="frpc"))


def frp_machine(name: str, relay: FrpRelay, secret_file: Path, port: int) -> Setup:
    """Return the machine that is to be reached (frpc with an stcp proxy)."""
    secret = read_secret(secret_file, "secret key")
    text = _frp_client(relay) + (
        "\n[[proxies]]\n"
        f"name = {json.dumps(name)}\n"
        'type = "stcp"\n'
        f"secretKey = {json.dumps(secret)}\n"
        'localIP = "127.0.0.1"\n'
        f"localPort = {_port(port)}\n"
        "transport.useEncryption = true\n"
    )
    return Setup(
        name=name,
        kind="frp",
        command=("frpc", "-c", "FOLDER/frpc.toml"),
        files={"frpc.toml": text},
        reach=f"trainrig remote frp --role visitor --name {name} --server {relay.server} "
        f"--server-port {relay.port} --port {port}{f' --ca {relay.ca.name}' if relay.ca else ''}",
        notes=(
            "the visitor needs the same token and secret key, in files of mode 600",
            *relay.notes,
        ),
    )


def frp_visitor(name: str, relay: FrpRelay, secret_file: Path, port: int) -> Setup:
    """Return the machine that one sits at (frpc with an stcp visitor on loopback)."""
    secret = read_secret(secret_file, "secret key")
    text = _frp_client(relay) + (
        "\n[[visitors]]\n"
        f"name = {json.dumps(name + '-visitor')}\n"
        'type = "stcp"\n'
        f"serverName = {json.dumps(name)}\n"
        f"secretKey = {json.dumps(secret)}\n"
        'bindAddr = "127.0.0.1"\n'
        f"bindPort = {_port(port)}\n"
        "transport.useEncryption = true\n"
    )
    return Setup(
        name=f"{name}-visitor",
        kind="frp",
        command=("frpc", "-c", "FOLDER/frpc.toml"),
        files={"frpc.toml": text},
        reach=f"http://127.0.0.1:{port}",
        notes=relay.notes,
    )


def _frp_client(relay: FrpRelay) -> str:
    read_secret(relay.token_file, "token")
    tls = ""
    if relay.ca is not None:
        tls = _line("transport.tls.trustedCaFile", _pem(relay.ca, "CERTIFICATE"))
        tls += _line("transport.tls.serverName", json.dumps(relay.server.strip("[]")))
    return (
        "# frpc 0.64 or newer.\n"
        f"serverAddr = {json.dumps(check_host(relay.server))}\n"
        f"serverPort = {_port(relay.port)}\n"
        'auth.method = "token"\n'
        f"{_token_source(relay.token_file)}"
        "transport.tls.enable = true\n"
        f"{tls}"
        "loginFailExit = false\n"
    )


def _line(key: str, value: str) -> str:
    return f"{key} = {value}\n"


def _pem(path: Path, what: str) -> str:
    """Return quoted path of a file that holds a certificate, or a key that is its owner's alone.

    Raises DataError where it cannot be read, UsageError where it holds none.
    """
    path = path.expanduser()
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise DataError(f"{path}: {reason.lower()}", "a file in PEM (openssl req -x509)") from None
    if not re.search(rf"-----BEGIN [A-Z ]*{what}-----", text):
        raise UsageError(f"{path} holds no {what.lower()} in PEM", "openssl req -x509 makes both")
    if what == "PRIVATE KEY" and mode & 0o077:
        raise UsageError(f"{path} is readable by others", f"chmod 600 {path}")
    return json.dumps(str(path.resolve()))


def _token_source(path: Path) -> str:
    """The token stays in its one file; frp reads it there."""
    return (
        'auth.tokenSource.type = "file"\n'
        f"auth.tokenSource.file.path = {json.dumps(str(path.resolve()))}\n"
    )


def _port(port: int) -> int:
    return port_pair(str(port))[0]


def cloudflared(name: str, tunnel: str, hostname: str, port: int, team: str, aud: str) -> Setup:
    """Return a tunnel to Cloudflare's edge that lets only a team's members in.

    ``aud``: the audience tag of the Access application of ``hostname``, 64 hexadecimal digits.
    Raises UsageError where the policy is not named: the address would be open to everybody.
    """
    if not re.fullmatch(r"[0-9a-f]{64}", aud):
        hint = "Zero Trust dashboard: Access, Applications, the application, its audience tag"
        raise UsageError("--aud is no audience tag (64 hexadecimal digits)", hint)
    for what, word in (("--team", team), ("--hostname", hostname), ("--tunnel", tunnel)):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", word):
            raise UsageError(f"{what} {word!r} is no name")
    text = (
        f"tunnel: {tunnel}\n"
        "ingress:\n"
        f"  - hostname: {hostname}\n"
        f"    service: http://127.0.0.1:{_port(port)}\n"
        "    originRequest:\n"
        "      access:\n"
        "        required: true\n"
        f"        teamName: {team}\n"
        "        audTag:\n"
        f"          - {aud}\n"
        "  - service: http_status:404\n"
    )
    return Setup(
        name=name,
        kind="cloudflared",
        command=(
            "cloudflared",
            "--no-autoupdate",
            "--config",
            "FOLDER/config.yml",
            "tunnel",
            "run",
        ),
        files={"config.yml": text},
        reach=f"https://{hostname}, after signing in to {team}",
        notes=(
            f"once: cloudflared tunnel login; cloudflared tunnel create {tunnel}",
            f"once: cloudflared tunnel route dns {tunnel} {hostname}",
            f"an Access application for {hostname} with a policy that names who may enter",
            UNVERIFIED.format(program="cloudflared"),
        ),
    )


CHECKS = {
    "frpc": ("frpc", "verify", "-c", "frpc.toml"),
    "frps": ("frps", "verify", "-c", "frps.toml"),
    "cloudflared": ("cloudflared", "--config", "config.yml", "tunnel", "ingress", "validate"),
}
"""Commands by which each program checks its own file."""


def check_with(setup: Setup, folder: Path) -> str:
    """Return the program's word on its file: ``checked``, or why it was not.

    Raises UsageError where the program refuses the file.
    """
    name = setup.command[0]
    if name not in CHECKS:
        return ""
    if shutil.which(name) is None:
        return f"{name} is not installed here: its file was not checked by it"
    words = [str(folder / w) if "." in w and w in setup.files else w for w in CHECKS[name]]
    done = run_program(words, _PATIENCE_S)
    if done.code != 0:
        reason = last_line(done.stderr or done.stdout)
        raise UsageError(f"{name} refuses its file: {reason}", f"{name} --version; 0.64 or newer?")
    return f"checked by {name}"
