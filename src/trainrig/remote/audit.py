"""What exposes this machine: what listens, and settings of sshd, frp and cloudflared.

What listens, on which addresses and with what protection (Jupyter without a token, frps without
one) is `doctor.listening`'s answer, taken over here.  This module adds what stands in files: does
sshd take passwords (``sshd -T`` for root, else its files, where the first value of a key counts and
blocks of ``Match`` are left out), does frp show its dashboard, skip TLS or open a port of the relay
to everybody, does cloudflared let in who has not signed in.  Nothing is connected to or changed.

Source: sshd_config(5), frp's reference configuration, Cloudflare's originRequest.access; read in
November 2026.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from trainrig.doctor.check import Answer, HealthCheck, answer, finding
from trainrig.doctor.listening import CHECKS as LISTENING
from trainrig.doctor.listening import listening
from trainrig.machine.ports import frp_file
from trainrig.machine.snapshot import Missing, Snapshot, value_or
from trainrig.machine.system_access import Host
from trainrig.record import Finding

_LOOPBACK = frozenset(["127.0.0.1", "localhost", "::1", "[::1]", ""])
_SSHD = "/etc/ssh/sshd_config"


def audit(host: Host, home: str, snapshot: Snapshot) -> tuple[Answer, ...]:
    """Each check's answer; ``home`` is the folder of the user whose files are looked at."""
    checks = (
        HealthCheck(
            id="sshd",
            title="sshd lets keys in, and no passwords",
            reads=f"sshd -T, {_SSHD} and its folder",
            finds=("ssh-empty-password", "ssh-password", "ssh-root-password", "ssh-gateway-ports"),
            judge=lambda seen: _sshd(host, _sshd_runs(seen)),
            needs=lambda _: _readable(host),
            root="sshd's settings as it resolves them (sshd -T)",
        ),
        HealthCheck(
            id="frp",
            title="frp opens nothing to everybody",
            reads="frps.toml and frpc.toml of what runs, and where packages put them",
            finds=("frp-no-tls", "frp-dashboard-open", "frp-public-port"),
            judge=lambda _: _frp(host, home),
        ),
        HealthCheck(
            id="cloudflared",
            title="cloudflared lets in who has signed in",
            reads="config.yml of ~/.cloudflared and /etc/cloudflared",
            finds=("cloudflared-no-policy",),
            judge=lambda _: _cloudflared(host, home),
        ),
    )
    return tuple(answer(check, snapshot) for check in (*LISTENING, *checks))


def _readable(host: Host) -> object:
    """None where sshd is absent or its file is read; else why not."""
    text = host.read(_SSHD)
    return text if isinstance(text, Missing) and "no such" not in text.reason else None


# ---- sshd

_KEYS_ONLY = (
    "printf 'PasswordAuthentication no\\nKbdInteractiveAuthentication no\\n' | "
    f"sudo tee {_SSHD}.d/10-keys-only.conf; "
    "sudo systemctl reload ssh (keep a session open until a key has let you in)"
)
_SSHD_UNDO = f"sudo rm {_SSHD}.d/10-keys-only.conf; sudo systemctl reload ssh"


def _sshd_runs(snapshot: Snapshot) -> bool:
    """Whether sshd listens, or it is not known."""
    ports = listening(snapshot)
    return isinstance(ports, Missing) or any(one.service == "ssh" for one in ports)


def _sshd(host: Host, runs: bool) -> Iterator[Finding]:
    for found in _sshd_findings(host):
        if runs:
            yield found
        else:
            evidence = f"{found.evidence}; it does not listen now"
            yield dataclasses.replace(found, severity="info", evidence=evidence)


def _sshd_findings(host: Host) -> Iterator[Finding]:
    text = host.read(_SSHD)
    if isinstance(text, Missing):
        return
    effective = host.run("sshd", "-T", timeout_s=5.0)
    source = "its files" if isinstance(effective, Missing) else "sshd -T"
    keys = _sshd_keys(host, value_or(effective, text))
    found = partial(
        finding, undo=_SSHD_UNDO, risk="whoever guesses a password has a shell on this machine"
    )
    if keys.get("permitemptypasswords") == "yes":
        evidence = "sshd lets accounts without a password in (PermitEmptyPasswords yes)"
        yield found("ssh-empty-password", "error", evidence, _KEYS_ONLY)
    by_password = keys.get("passwordauthentication", "yes") == "yes"
    if by_password:
        evidence = f"sshd takes passwords (PasswordAuthentication yes, by {source})"
        yield found("ssh-password", "error", evidence, _KEYS_ONLY)
    by_question = _by_question(keys)
    if by_question and not by_password:
        evidence = f"sshd takes passwords by PAM (KbdInteractiveAuthentication yes, by {source})"
        yield found("ssh-password", "error", evidence, _KEYS_ONLY)
    if (by_password or by_question) and keys.get("permitrootlogin") == "yes":
        evidence = "sshd lets root in by password (PermitRootLogin yes)"
        fix = _set("PermitRootLogin prohibit-password")
        yield found("ssh-root-password", "error", evidence, fix)
    if keys.get("gatewayports", "no") != "no":
        evidence = f"sshd opens reverse forwards to everybody (GatewayPorts {keys['gatewayports']})"
        fix = _set("GatewayPorts no")
        risk = "a port that is forwarded here is reachable by others, not by this machine alone"
        yield found("ssh-gateway-ports", "warning", evidence, fix, risk=risk)


def _set(line: str) -> str:
    """A command that puts a line before all others of sshd's settings, beside those of keys."""
    return (
        f"echo '{line}' | sudo tee -a {_SSHD}.d/10-keys-only.conf; "
        "sudo systemctl reload ssh (keep a session open until a key has let you in)"
    )


def _by_question(keys: Mapping[str, str]) -> bool:
    """Whether PAM asks for the password, which PasswordAuthentication no does not end."""
    old = keys.get("challengeresponseauthentication", "yes")  # its name before OpenSSH 8.7
    asks = keys.get("kbdinteractiveauthentication", old) == "yes"
    return asks and keys.get("usepam") == "yes"


def _sshd_keys(host: Host, text: str) -> dict[str, str]:
    """Keys in small letters; the first value counts, and ``Match`` ends what is for everybody."""
    keys: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.strip().replace("=", " ", 1).partition(" ")
        name, value = name.lower(), value.strip().strip('"').lower()
        if name == "match":
            break
        if name == "include":
            for path in _included(host, line.split(maxsplit=1)[-1]):
                for key, found in _sshd_keys(host, value_or(host.read(path), "")).items():
                    keys.setdefault(key, found)
        elif name and not name.startswith("#"):
            keys.setdefault(name, value)
    return keys


def _included(host: Host, pattern: str) -> list[str]:
    folder, _, glob = pattern.strip().rpartition("/")
    folder = folder if folder.startswith("/") else f"/etc/ssh/{folder}".rstrip("/")
    ending = glob.lstrip("*")
    return [f"{folder}/{n}" for n in value_or(host.names(folder), ()) if n.endswith(ending)]


# ---- frp and cloudflared


def _frp(host: Host, home: str) -> Iterator[Finding]:
    for path, kind in _frp_files(host, home).items():
        text = host.read(path)
        if isinstance(text, Missing):
            continue
        try:
            yield from _frp_findings(path, kind, tomllib.loads(text))
        except (tomllib.TOMLDecodeError, RecursionError):
            evidence = f"{path} is not TOML: its settings were not looked at"
            fix = "write it as TOML, which frp reads since 0.52: trainrig remote frp"
            yield finding("frp-old-format", "info", evidence, fix)


def _frp_files(host: Host, home: str) -> dict[str, str]:
    """Path → ``s`` for a relay's file, ``c`` for a client's."""
    folders = ("/etc/frp", f"{home}/frp", f"{home}/.config/frp", "/opt/frp", "/usr/local/frp")
    paths = {f"{folder}/frp{kind}.toml": kind for folder in folders for kind in "sc"}
    for pid in value_or(host.names("/proc"), ()):
        line = host.read(f"/proc/{pid}/cmdline") if pid.isdecimal() else ""
        words = value_or(line, "").split("\0")
        name = words[0].rpartition("/")[2]
        if name in ("frps", "frpc") and (path := frp_file(host, pid, words, home)):
            paths[path] = name[-1]
    return paths


def _frp_findings(path: str, kind: str, config: Mapping[str, Any]) -> Iterator[Finding]:
    tls = _table(_table(config, "transport"), "tls")
    if kind == "s" and not tls.get("force"):
        evidence = f"{path}: frps takes connections without TLS"
        yield finding("frp-no-tls", "warning", evidence, f"transport.tls.force = true in {path}")
    web = _table(config, "webServer")
    is_open = web.get("addr", "127.0.0.1") not in _LOOPBACK and not web.get("password")
    if web.get("port") and is_open:
        evidence = f"{path}: the dashboard listens on {web.get('addr')} without a password"
        fix = f'webServer.addr = "127.0.0.1" in {path}, or no webServer.port'
        yield finding("frp-dashboard-open", "error", evidence, fix)
    proxies = config.get("proxies")
    for proxy in proxies if isinstance(proxies, list) else ():
        if isinstance(proxy, dict) and proxy.get("type") in _PUBLIC:
            evidence = f"{path}: proxy {proxy.get('name')} opens a port of the relay to everybody"
            fix = 'type = "stcp" with a secretKey: trainrig remote frp'
            yield finding("frp-public-port", "warning", evidence, fix)


_PUBLIC = ("tcp", "udp", "http", "https", "tcpmux")
"""Types of a proxy that whoever reaches the relay may use."""


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _cloudflared(host: Host, home: str) -> Iterator[Finding]:
    for path in (f"{home}/.cloudflared/config.yml", "/etc/cloudflared/config.yml"):
        text = value_or(host.read(path), "")
        hosts = _open_hosts(text)
        if hosts:
            evidence = f"{path}: {', '.join(hosts)} without access.required"
            fix = "originRequest.access in it: see what trainrig remote cloudflared writes"
            risk = "without a policy at Cloudflare the address is open to everybody"
            yield finding("cloudflared-no-policy", "warning", evidence, fix, risk=risk)


def _open_hosts(text: str) -> list[str]:
    """Names that cloudflared serves without an Access policy of their own or of the whole file."""
    required = re.compile(r"^\s*required:\s*true\b", re.MULTILINE)
    whole = re.search(r"^originRequest:.*\n((?:[ \t#].*\n?|\n)*)", text, re.MULTILINE)
    if whole is not None and required.search(whole[1]):
        return []
    _, *rules = re.split(r"^\s*-\s*(?=\w+:)", text, flags=re.MULTILINE)
    names = [(re.search(r"^\s*hostname:\s*(\S+)", rule, re.MULTILINE), rule) for rule in rules]
    return [name[1] for name, rule in names if name is not None and not required.search(rule)]
