"""What `remote audit` must say of a machine: sshd's files, frp, cloudflared, tunnels.

Hosts are files and command lines, as in `doctor_faults`; each has its repaired twin.  The exit
code is looked at, too: it is 1 for what is open to everybody, and for nothing less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from trainrig.machine import inspect
from trainrig.machine.snapshot import Snapshot
from trainrig.remote.audit import audit
from trainrig.remote.tunnels import cloudflared
from trainrig.selftest.doctor_faults import FakeHost, build
from trainrig.selftest.registry import HEALTHY, Fault

_HOME = "/home/ada"
_SSHD = "/etc/ssh/sshd_config"
_KEYS = "PasswordAuthentication no\nPermitRootLogin prohibit-password\n"
_FRPS, _FRPC = "/etc/frp/frps.toml", "/etc/frp/frpc.toml"
_SOUND_FRPS = 'auth.token = "x"\ntransport.tls.force = true\n'
_YML = f"{_HOME}/.cloudflared/config.yml"
Files = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """A host that lets others in, and the same host repaired."""

    name: str
    finding: str
    severity: str
    faulty: Files
    repaired: Files


def _hosts() -> Iterator[_Open]:
    yield from _of_sshd()
    yield from _of_relays()
    for line, severity, program in _TUNNELS:
        yield _Open(
            name=f"a tunnel: {line}",
            finding="quick-tunnel",
            severity=severity,
            faulty={"/proc/9/cmdline": line.replace(" ", "\0") + "\0"},
            repaired={"/proc/9/cmdline": f"{program} --version".replace(" ", "\0") + "\0"},
        )


def _of_sshd() -> Iterator[_Open]:
    drop_in = f"{_SSHD}.d/9-cloud.conf"
    for name, finding, severity, faulty, repaired in (
        ("by default", "ssh-password", "error", {_SSHD: "# as installed\n"}, {_SSHD: _KEYS}),
        (
            "by PAM",
            "ssh-password",
            "error",
            {_SSHD: f"UsePAM yes\n{_KEYS}"},
            {_SSHD: f"UsePAM yes\nKbdInteractiveAuthentication no\n{_KEYS}"},
        ),
        (
            "in a drop-in, after a tab and before a comment",
            "ssh-password",
            "error",
            {
                _SSHD: f"Include /etc/none.d/*.conf {_SSHD}.d/[0-9]*.conf\n{_KEYS}",
                drop_in: "PasswordAuthentication\tyes # cloud\n",
            },
            {
                _SSHD: f"Include {_SSHD}.d/[a-z]*.conf\n{_KEYS}",
                drop_in: "PasswordAuthentication\tyes # cloud\n",
            },
        ),
        (
            "for everybody by Match all",
            "ssh-password",
            "error",
            {_SSHD: "Match User ci\nPasswordAuthentication no\nMatch all\nUsePAM no\n"},
            {_SSHD: f"Match User ci\nPasswordAuthentication yes\nMatch all\n{_KEYS}"},
        ),
        (
            "of root",
            "ssh-root-password",
            "error",
            {_SSHD: "PermitRootLogin yes\n"},
            {_SSHD: "PasswordAuthentication no\nPermitRootLogin yes\n"},
        ),
        (
            "that are empty",
            "ssh-empty-password",
            "error",
            {_SSHD: f"{_KEYS}PermitEmptyPasswords yes\n"},
            {_SSHD: f"{_KEYS}PermitEmptyPasswords no\n"},
        ),
    ):
        yield _Open(
            name=f"sshd takes passwords {name}",
            finding=finding,
            severity=severity,
            faulty=faulty,
            repaired=repaired,
        )
    yield _Open(
        name="sshd opens reverse forwards to everybody",
        finding="ssh-gateway-ports",
        severity="warning",
        faulty={_SSHD: f"{_KEYS}GatewayPorts clientspecified\n"},
        repaired={_SSHD: f"{_KEYS}GatewayPorts no\n"},
    )


def _of_relays() -> Iterator[_Open]:
    open_web = 'webServer.addr = "0.0.0.0"\nwebServer.port = 7500\n'
    tunnel = cloudflared("x", "t", "gpu.example", 8888, "lab", "a" * 64).files["config.yml"]
    for name, finding, severity, path, faulty, repaired in (
        (
            "frps without a token",
            "frp-no-token",
            "error",
            _FRPS,
            "transport.tls.force = true\n",
            _SOUND_FRPS,
        ),
        ("frps without TLS", "frp-no-tls", "warning", _FRPS, 'auth.token = "x"\n', _SOUND_FRPS),
        (
            "frps with an open dashboard",
            "frp-dashboard-open",
            "error",
            _FRPS,
            _SOUND_FRPS + open_web,
            _SOUND_FRPS + open_web.replace("0.0.0.0", "127.0.0.1"),
        ),
        (
            "a dashboard that sends its password in the clear",
            "frp-dashboard-open",
            "warning",
            _FRPS,
            _SOUND_FRPS + open_web + 'webServer.password = "long and secret"\n',
            _SOUND_FRPS,
        ),
        (
            "frpc opens a port of its relay",
            "frp-public-port",
            "warning",
            _FRPC,
            '[[proxies]]\nname = "j"\ntype = "tcp"\nlocalPort = 8888\n',
            '[[proxies]]\nname = "j"\ntype = "stcp"\nsecretKey = "k"\n',
        ),
        (
            "cloudflared without a policy",
            "cloudflared-no-policy",
            "warning",
            _YML,
            tunnel.replace("required: true", "required: false"),
            tunnel,
        ),
    ):
        yield _Open(
            name=name,
            finding=finding,
            severity=severity,
            faulty={path: faulty},
            repaired={path: repaired},
        )


_TUNNELS = (
    ("cloudflared tunnel --url http://localhost:8888", "error", "cloudflared"),
    ("/tmp/kworkerd tunnel --url http://localhost:8888", "error", "kworkerd"),
    ("cloudflared tunnel run --token abc", "warning", "cloudflared"),
    ("ngrok http 8888", "error", "ngrok"),
    ("ngrok start --all", "warning", "ngrok"),
    ("lt --port 8888", "error", "lt"),
    ("bore local 8888 --to bore.pub", "error", "bore"),
    ("tailscale funnel 8888", "error", "tailscale"),
    ("/root/.cache/frpc_linux_amd64_v0.3 http -l 7860", "error", "frpc"),
    ("code tunnel --accept-server-license-terms", "warning", "code"),
    ("devtunnel host -p 8888", "warning", "devtunnel"),
    ("devtunnel host -p 8888 --allow-anonymous", "error", "devtunnel"),
    ("zrok share public 8888", "error", "zrok"),
    ("chisel client https://relay R:8888:localhost:8889", "warning", "chisel"),
    ("rathole client.toml", "warning", "rathole-cli"),
    ("gost -L rtcp://:8888/localhost:22 -F relay://vps", "warning", "gost"),
    ("inlets-pro http client --url wss://relay", "warning", "inlets-pro"),
    ("wstunnel client -R tcp://8888:localhost:8889 wss://relay", "warning", "wstunnel"),
    ("expose share http://localhost:8888", "error", "expose"),
    ("tmole 8888", "error", "tmole"),
    ("loclx tunnel http --to localhost:8888", "error", "loclx"),
    ("pktriot http 8888", "error", "pktriot"),
    ("loophole http 8888", "error", "loophole"),
    ("pagekite.py 8888 ada.pagekite.me", "error", "pagekite-docs"),
    ("jprq http 8888", "error", "jprq"),
    ("playit", "error", "playitx"),
    ("cpolar http 8888", "error", "cpolar"),
    ("natapp -authtoken=x", "error", "natapps"),
    ("npc -server=relay:8024 -vkey=x", "warning", "npc"),
    ("holesail --live 8888 --public", "error", "holesail"),
    ("tmate -F", "error", "tmux"),
    ("upterm host -- bash", "error", "upterm"),
    ("sshx --quiet", "error", "ssh"),
    ("ssh -N -R 80:localhost:8888 serveo.net", "error", "ssh"),
    ("autossh -M 0 -fNR 8888:localhost:22 vps", "warning", "autossh"),
)
"""A command line of each row of tunnel_programs.toml, how grave it is, and a program that is not
one."""


def faults() -> Iterator[Fault]:
    """Yield a fault for each host that lets others in."""
    for host in _hosts():
        code = 1 if host.severity == "error" else 0
        yield Fault(
            name=host.name,
            check=f"audit.{host.finding}",
            finds=host.finding,
            begins=f"exit {code} {host.severity} {host.finding}:",
            inject=partial(_opened, host),
            observe=_audited,
        )


@contextmanager
def _opened(host: _Open, _: Path, variant: Any) -> Iterator[Files]:
    yield host.repaired if variant is HEALTHY else host.faulty


@cache
def _snapshot() -> Snapshot:
    return inspect(build("desktop"))


def _audited(files: Files) -> Iterable[str]:
    answers = audit(FakeHost(files), _HOME, _snapshot())
    code = 1 if any(answer.state == "fault" for answer in answers) else 0
    return [
        f"exit {code} {finding.severity} {finding.id}: {finding.evidence}"
        for answer in answers
        for finding in answer.findings
    ]
