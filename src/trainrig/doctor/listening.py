"""Find programs that listen on this machine without protection.

`listening` is the table; `exposed` are the rows that others can reach.  A firewall is not read:
"reachable" means that the socket accepts from other machines, not that a packet arrives.

Jupyter, code-server, Ray's dashboard, Docker's socket and Redis let whoever reaches them run
programs; without a token they are a fault.  TensorBoard and the like show what they have.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

from trainrig.doctor.check import HealthCheck, finding
from trainrig.machine.health import Listener
from trainrig.machine.snapshot import Missing, Snapshot, value_or
from trainrig.record import Finding, Severity

_RUNS_PROGRAMS = frozenset(["jupyter", "code-server", "ray", "docker", "redis"])
_FIXES = {
    "jupyter": "stop it; start it on this machine alone: jupyter lab --ip=127.0.0.1; reach it by "
    "ssh -L {port}:127.0.0.1:{port} HOST",
    "code-server": "start it with --auth password --bind-addr 127.0.0.1:{port}",
    "ray": "ray start --dashboard-host=127.0.0.1",
    "docker": "remove -H tcp:// from dockerd's options; use ssh://HOST as DOCKER_HOST",
    "redis": "set requirepass and bind 127.0.0.1 in redis.conf; restart it",
    "frps": "set auth.token in frps.toml and in every frpc.toml; restart both",
    "tensorboard": "tensorboard --host 127.0.0.1 --port {port}; reach it by ssh -L",
}
_ANY_FIX = "bind it to 127.0.0.1 and reach it by ssh -L {port}:127.0.0.1:{port} HOST"


def listening(snapshot: Snapshot) -> tuple[Listener, ...] | Missing:
    """Return every TCP port that something waits on, lowest first."""
    if isinstance(snapshot.health, Missing):
        return snapshot.health
    return snapshot.health.listeners


def is_exposed(listener: Listener) -> bool:
    """Return whether other machines may connect, by the address that it listens on."""
    return not ipaddress.ip_address(listener.address).is_loopback


def exposed(snapshot: Snapshot) -> tuple[Listener, ...]:
    """Return the listeners that other machines may connect to."""
    return tuple(listener for listener in value_or(listening(snapshot), ()) if is_exposed(listener))


def describe(listener: Listener) -> str:
    """Describe a listener: ``jupyter on 0.0.0.0:8888, protection: none``."""
    name = listener.service or value_or(listener.program, "a program")
    place = f"[{listener.address}]" if ":" in listener.address else listener.address
    known = f", protection: {listener.protection}" if listener.service else ""
    return f"{name} on {place}:{listener.port}{known}"


def _open_ports(snapshot: Snapshot) -> Iterator[Finding]:
    done = set()
    for listener in exposed(snapshot):
        if listener.protection != "none" or (listener.service, listener.port) in done:
            continue
        done.add((listener.service, listener.port))
        fix = _FIXES.get(listener.service, _ANY_FIX).format(port=listener.port)
        if listener.service in _RUNS_PROGRAMS:
            evidence = f"{describe(listener)}: whoever reaches it runs programs here"
            yield finding("port-runs-programs", "error", evidence, fix)
        elif listener.service == "frps":
            evidence = f"{describe(listener)}: whoever reaches it opens ports here"
            yield finding("frp-without-token", "error", evidence, fix)
        else:
            yield finding("port-open", "warning", describe(listener), fix)
    yield from _through_tunnels(snapshot)


def _through_tunnels(snapshot: Snapshot) -> Iterator[Finding]:
    health = snapshot.health
    if isinstance(health, Missing):
        return
    by_port = {listener.port: listener for listener in value_or(health.listeners, ())}
    for tunnel in value_or(health.tunnels, ()):
        if tunnel.authenticated is False:
            evidence = f"{tunnel.service} connects without a token"
            fix = "set auth.token in frpc.toml and frps.toml; restart both"
            yield finding("frp-without-token", "error", evidence, fix)
        for port in tunnel.local_ports:
            listener = by_port.get(port)
            if listener is not None and listener.protection == "none":
                severity: Severity = "error" if listener.service in _RUNS_PROGRAMS else "warning"
                evidence = f"{tunnel.service} makes {describe(listener)} reachable from elsewhere"
                fix = f"give {listener.service} a token before it goes through a tunnel"
                yield finding("tunnel-to-open-port", severity, evidence, fix)


def _readable_secrets(snapshot: Snapshot) -> Iterable[Finding]:
    health = snapshot.health
    for path in () if isinstance(health, Missing) else value_or(health.readable_secrets, ()):
        evidence = f"{path} holds a secret and others on this machine may read it"
        yield finding("secret-readable", "warning", evidence, f"chmod go-rwx {path}")


def _note(snapshot: Snapshot) -> str:
    """Describe the listeners that other machines may connect to."""
    shown = list(dict.fromkeys(describe(listener) for listener in exposed(snapshot)))
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    return f"open to other machines: {'; '.join(shown[:8])}{more}" if shown else "nothing is open"


CHECKS = (
    HealthCheck(
        id="listening",
        title="Nothing that listens is open without protection",
        reads="/proc/net/tcp, /proc/PID/cmdline, configurations of Jupyter, frp, Redis ...",
        finds=("port-runs-programs", "frp-without-token", "port-open", "tunnel-to-open-port"),
        judge=_open_ports,
        facts=("health.listeners",),
        note=_note,
        root="which program of another user listens",
        looks_without_root=True,
    ),
    HealthCheck(
        id="secrets",
        title="Files with secrets are the user's own",
        reads="permissions of ~/.netrc, Hugging Face's token, Jupyter's and frp's configuration",
        finds=("secret-readable",),
        judge=_readable_secrets,
        facts=("health.readable_secrets",),
    ),
)
