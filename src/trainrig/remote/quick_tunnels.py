"""Programs that give a port or a shell of this machine an address elsewhere: tunnel_programs.toml.

They are known by their command lines.  Whether somebody is asked at the other end decides how grave
it is; behind a password or token of its own a port that is open to everybody is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from trainrig.doctor.check import finding
from trainrig.machine.health import Listener
from trainrig.record import Finding, Severity, read_by, read_toml

PATH = Path(__file__).parent / "tunnel_programs.toml"
_CONFIG = ConfigDict(extra="forbid")


@read_by(_CONFIG)
class TunnelProgram:
    """A row of tunnel_programs.toml."""

    program: str
    command: str
    asks: Literal["nobody", "account", "relay"]
    source: str
    port: str | None = None


@cache
def tunnel_programs() -> tuple[TunnelProgram, ...]:
    """Return the rows of tunnel_programs.toml."""
    return read_toml(PATH, tuple[TunnelProgram, ...], PATH.name, "tunnel")


_FIX = "end it; trainrig remote forward HOST, or trainrig remote cloudflared with an access policy"
_RISK = "whoever learns the address, from a log or by trying, reaches the port"
_AT_OTHER_END = {
    "nobody": "an address that asks nobody who comes",
    "account": "an address that asks for an account of its vendor alone",
    "relay": "an address whose other end decides who comes, which is not seen from here",
}


def quick_tunnels(
    command_lines: Iterable[Sequence[str]], listeners: Mapping[int, Listener]
) -> Iterator[Finding]:
    """Yield a finding for each process that is such a program.

    Args:
        command_lines: The words of every process.
        listeners: Port → what listens on it.
    """
    for words in command_lines:
        line = " ".join(words)
        tunnel = next((row for row in tunnel_programs() if re.search(row.command, line)), None)
        if tunnel is None:
            continue
        named = re.search(tunnel.port, line) if tunnel.port else None
        port = int(named[1]) if named else 0
        listener = listeners.get(port)
        is_guarded = listener is not None and listener.protection in ("token", "password")
        severity: Severity = "error" if tunnel.asks == "nobody" and not is_guarded else "warning"
        place = f"port {port}" if port else "a port"
        text = f"{tunnel.program} gives {place} of this machine {_AT_OTHER_END[tunnel.asks]}"
        if listener is not None and listener.service:
            text += f"; behind it is {listener.service}, protection: {listener.protection}"
        yield finding("quick-tunnel", severity, text, _FIX, risk=_RISK)
