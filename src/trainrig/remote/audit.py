"""The audit of what exposes this machine: open ports, and settings of sshd, frp and cloudflared.

What listens, on which addresses and with what protection (Jupyter without a token, frps without
one) is `doctor.listening`'s answer, taken over here.  This module adds what stands in files: does
sshd take passwords (``sshd -T`` for root, else its files, where the first value of a key counts and
blocks of ``Match`` are left out), does frp ask for no token, show its dashboard, skip TLS or open a
port of the relay to everybody, does cloudflared let in who has not signed in; and, from command
lines, which tunnels give a port an address that is open to everybody.  Nothing is connected to or
changed.

Source: sshd_config(5), frp's reference configuration, Cloudflare's originRequest.access; read in
November 2026.
"""

from __future__ import annotations

import configparser
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from trainrig.doctor.check import Answer, HealthCheck, answer, finding
from trainrig.doctor.listening import CHECKS as LISTENING
from trainrig.doctor.listening import listening
from trainrig.machine.health import Listener
from trainrig.machine.ports import frp_file
from trainrig.machine.snapshot import Missing, Snapshot, value_or
from trainrig.machine.system_access import Host
from trainrig.record import Finding
from trainrig.remote.quick_tunnels import quick_tunnels
from trainrig.remote.sshd_files import sshd_keywords
from trainrig.safe_read import parse_toml

_LOOPBACK = frozenset(["127.0.0.1", "localhost", "::1", "[::1]", ""])
_SSHD = "/etc/ssh/sshd_config"


def audit(host: Host, home: str, snapshot: Snapshot) -> tuple[Answer, ...]:
    """Return each check's answer; ``home`` is the folder of the user whose files are read."""
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
            reads="settings of frps and frpc that run, and where packages put them; old INI, too",
            finds=("frp-no-token", "frp-no-tls", "frp-dashboard-open", "frp-public-port"),
            judge=lambda _: _frp(host, home),
        ),
        HealthCheck(
            id="cloudflared",
            title="cloudflared lets in who has signed in",
            reads="config.yml of ~/.cloudflared and /etc/cloudflared",
            finds=("cloudflared-no-policy",),
            judge=lambda _: _cloudflared(host, home),
        ),
        HealthCheck(
            id="quick-tunnels",
            title="No address that is open to everybody leads here",
            reads="/proc/PID/cmdline of cloudflared --url, ngrok, localtunnel, bore, ssh -R ...",
            finds=("quick-tunnel",),
            judge=lambda seen: quick_tunnels(_command_lines(host), _ports(seen)),
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
    "sudo systemctl reload ssh  # keep a session open until a key has let you in"
)
_SSHD_UNDO = f"sudo rm {_SSHD}.d/10-keys-only.conf; sudo systemctl reload ssh"


def _sshd_runs(snapshot: Snapshot) -> bool:
    """Return whether sshd listens; True where that is not known."""
    ports = listening(snapshot)
    return isinstance(ports, Missing) or any(row.service == "ssh" for row in ports)


def _sshd(host: Host, runs: bool) -> Iterator[Finding]:
    for sshd_finding in _sshd_findings(host):
        if runs:
            yield sshd_finding
        else:
            evidence = f"{sshd_finding.evidence}; it does not listen now"
            yield dataclasses.replace(sshd_finding, severity="info", evidence=evidence)


def _sshd_findings(host: Host) -> Iterator[Finding]:
    text = host.read(_SSHD)
    if isinstance(text, Missing):
        return
    effective = host.run("sshd", "-T", timeout_s=5.0)
    source = "its files" if isinstance(effective, Missing) else "sshd -T"
    keys = sshd_keywords(host, value_or(effective, text))
    make_finding = partial(
        finding, undo=_SSHD_UNDO, risk="whoever guesses a password has a shell on this machine"
    )
    if keys.get("permitemptypasswords") == "yes":
        evidence = "sshd lets accounts without a password in (PermitEmptyPasswords yes)"
        yield make_finding("ssh-empty-password", "error", evidence, _KEYS_ONLY)
    by_password = keys.get("passwordauthentication", "yes") == "yes"
    if by_password:
        evidence = f"sshd takes passwords (PasswordAuthentication yes, by {source})"
        yield make_finding("ssh-password", "error", evidence, _KEYS_ONLY)
    by_question = _by_question(keys)
    if by_question and not by_password:
        evidence = f"sshd takes passwords by PAM (KbdInteractiveAuthentication yes, by {source})"
        yield make_finding("ssh-password", "error", evidence, _KEYS_ONLY)
    if (by_password or by_question) and keys.get("permitrootlogin") == "yes":
        evidence = "sshd lets root in by password (PermitRootLogin yes)"
        fix = _set("PermitRootLogin prohibit-password")
        yield make_finding("ssh-root-password", "error", evidence, fix)
    if keys.get("gatewayports", "no") != "no":
        evidence = f"sshd opens reverse forwards to everybody (GatewayPorts {keys['gatewayports']})"
        fix = _set("GatewayPorts no")
        risk = "a port that is forwarded here is reachable by others, not by this machine alone"
        yield make_finding("ssh-gateway-ports", "warning", evidence, fix, risk=risk)


def _set(line: str) -> str:
    """A command that puts a line before all others of sshd's settings, beside those of keys."""
    return (
        f"echo '{line}' | sudo tee -a {_SSHD}.d/10-keys-only.conf; "
        "sudo systemctl reload ssh  # keep a session open until a key has let you in"
    )


def _by_question(keys: Mapping[str, str]) -> bool:
    """Return whether PAM asks for the password, which PasswordAuthentication no does not end."""
    old = keys.get("challengeresponseauthentication", "yes")  # its name before OpenSSH 8.7
    asks = keys.get("kbdinteractiveauthentication", old) == "yes"
    return asks and keys.get("usepam") == "yes"


# ---- frp and cloudflared


def _frp(host: Host, home: str) -> Iterator[Finding]:
    for path, kind in _frp_files(host, home).items():
        text = host.read(path)
        if isinstance(text, Missing):
            continue
        config = frp_settings(text)
        if config is None:
            evidence = f"{path} is no TOML, JSON or INI: its settings were not looked at"
            fix = "write it as TOML, which frp reads since 0.52: trainrig remote frp"
            yield finding("frp-old-format", "info", evidence, fix)
            continue
        yield from _frp_findings(path, kind, config)


def _frp_files(host: Host, home: str) -> dict[str, str]:
    """Path → ``s`` for a relay's file, ``c`` for a client's."""
    folders = ("/etc/frp", f"{home}/frp", f"{home}/.config/frp", "/opt/frp", "/usr/local/frp")
    endings = ("toml", "json", "ini")
    paths = {f"{at}/frp{kind}.{end}": kind for at in folders for kind in "sc" for end in endings}
    for pid, words in _commands(host):
        name = words[0].rpartition("/")[2]
        if name in ("frps", "frpc") and (path := frp_file(host, pid, words, home)):
            paths[path] = name[-1]
    return paths


def _ports(snapshot: Snapshot) -> dict[int, Listener]:
    """Return what listens, by port."""
    listeners = listening(snapshot)
    return {} if isinstance(listeners, Missing) else {row.port: row for row in listeners}


def _command_lines(host: Host) -> Iterator[list[str]]:
    return (words for _, words in _commands(host))


def _commands(host: Host) -> Iterator[tuple[str, list[str]]]:
    """Number and words of every process."""
    for pid in value_or(host.names("/proc"), ()):
        line = host.read(f"/proc/{pid}/cmdline") if pid.isdecimal() else ""
        words = value_or(line, "").rstrip("\0").split("\0")
        if words[0]:
            yield pid, words


def frp_settings(text: str) -> Mapping[str, Any] | None:
    """frp's settings from TOML, JSON, or the INI of versions before 0.52; None: from none of them.

    INI's names become those of TOML, and its defaults are stated: its dashboard listens on
    0.0.0.0 and lets ``admin`` in with ``admin``.
    """
    is_old = re.search(r"^\s*\[common\]", text, re.MULTILINE)  # it may be valid TOML as well
    for read in () if is_old else (parse_toml, json.loads):
        try:
            settings = read(text)
        except (ValueError, RecursionError):
            continue
        return settings if isinstance(settings, dict) else None
    ini = configparser.RawConfigParser(strict=False, inline_comment_prefixes=("#",))
    try:
        ini.read_string(text)
    except configparser.Error:
        return None
    if not ini.has_section("common"):
        return None
    common = dict(ini["common"])
    web = {
        "addr": common.get("dashboard_addr", "0.0.0.0"),
        "port": common.get("dashboard_port", ""),
        "password": common.get("dashboard_pwd", "admin"),
    }
    admin = {"addr": common.get("admin_addr", "127.0.0.1"), "port": common.get("admin_port", "")}
    method = _INI_METHODS.get(common.get("authentication_method", "token"))
    others = [dict(ini[name]) | {"name": name} for name in ini.sections() if name != "common"]
    return {
        "auth": {"token": common.get("token", ""), "method": method},
        "transport": {"tls": {"force": common.get("tls_only", "").lower() in ("true", "1")}},
        "webServer": web if web["port"] else {**admin, "password": common.get("admin_pwd", "")},
        "proxies": [proxy for proxy in others if proxy.get("role", "server") != "visitor"],
    }


_INI_METHODS = {"oidc": "oidc"}


def _frp_findings(path: str, kind: str, config: Mapping[str, Any]) -> Iterator[Finding]:
    tls, auth = _table(_table(config, "transport"), "tls"), _table(config, "auth")
    known = auth.get("token") or auth.get("tokenSource") or auth.get("method") == "oidc"
    if kind == "s" and not known:
        evidence = f"{path}: frps lets in whoever reaches its port, without a token"
        fix = f"auth.token in {path} and in every frpc.toml: trainrig remote frp --role relay"
        yield finding("frp-no-token", "error", evidence, fix)
    if kind == "s" and not tls.get("force"):
        evidence = f"{path}: frps takes connections without TLS"
        yield finding("frp-no-tls", "warning", evidence, f"transport.tls.force = true in {path}")
    web = _table(config, "webServer")
    guessed = not web.get("password") or web.get("password") == "admin"
    if web.get("port") and web.get("addr", "127.0.0.1") not in _LOOPBACK:
        how = "without a password" if not web.get("password") else "with the password admin"
        evidence = f"{path}: the dashboard listens on {web.get('addr')}:{web.get('port')} {how}"
        fix = f'webServer.addr = "127.0.0.1" in {path}, or no webServer.port'
        if guessed:
            yield finding("frp-dashboard-open", "error", evidence, fix)
        elif not _table(web, "tls"):
            evidence = f"{path}: the dashboard sends its password over the network without TLS"
            yield finding("frp-dashboard-open", "warning", evidence, fix)
    proxies = config.get("proxies")
    for proxy in proxies if isinstance(proxies, list) else ():
        if isinstance(proxy, dict) and proxy.get("type", "tcp") in _PUBLIC:
            evidence = f"{path}: proxy {proxy.get('name')} opens a port of the relay to everybody"
            fix = 'type = "stcp" with a secretKey: trainrig remote frp'
            yield finding("frp-public-port", "warning", evidence, fix)


_PUBLIC = ("tcp", "udp", "http", "https", "tcpmux")
"""Types of a proxy that whoever reaches the relay may use."""


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = config.get(name)
    return table if isinstance(table, dict) else {}


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
