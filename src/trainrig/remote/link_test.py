"""Test of the way to a host: latency, throughput both ways, loss, and the hop that limits.

Everything goes through OpenSSH as ``~/.ssh/config`` sets it up, jump hosts included, so what is
measured is what a forward gets.  Latency: the median of a byte sent and returned by ``cat`` over
one open connection.  Throughput: what went through in a few seconds, uncompressed, until the other
end confirmed the last byte.  Loss: ping, from here to the first hop and from each hop to the next.

A hop limits where what goes through it alone is hardly faster than the whole way.
"""

from __future__ import annotations

import re
import shlex
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainrig.errors import UnavailableError
from trainrig.process.programs import last_line, run_program
from trainrig.process.supervisor import Child
from trainrig.remote.tunnels import SAFE_SSH, ssh_settings
from trainrig.report import document as doc
from trainrig.units import format_quantity, format_share, format_time

SECONDS = 3.0
"""Seconds for which each direction is measured."""
NUM_ECHOES = 20
_CONNECT_S = 30.0
_PIECE = 1 << 16
_SIMILAR = 0.8
"""A hop whose own throughput times this is not above the whole way's limits it."""
_LOSS = re.compile(r"([\d.]+)% packet loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """Measurements to a host through all hops before it."""

    host: str
    via: tuple[str, ...]
    latency_s: float | None = None
    up_bytes_per_s: float | None = None
    """From here to the host."""
    down_bytes_per_s: float | None = None
    loss: float | None = None
    """Share of pings without an answer on the last leg; None: no ping there."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPath:
    """A host and the hops on the way to it."""

    host: str
    hops: tuple[Hop, ...]
    """The host itself last."""
    limited_by: str
    """Sentence that names the limiting hop."""


def measure_way(host: str, config: Path | None = None, seconds: float = SECONDS) -> HostPath:
    """Measure each hop alone and the whole way.  Raises UsageError, UnavailableError."""
    jumps = _jumps(ssh_settings(host, config))
    hops = []
    for number in range(len(jumps) + 1):
        name = [*jumps, host][number]
        before = tuple(jumps[:number])
        hops.append(_measure(name, before, config, seconds))
        if hops[-1].error is not None:
            break
    if hops[0].error is not None and len(hops) == 1 and not jumps:
        raise UnavailableError(f"{host}: {hops[0].error}", f"try: ssh -v {host} true")
    return HostPath(host=host, hops=tuple(hops), limited_by=limiting(hops))


def _jumps(settings: dict[str, str]) -> list[str]:
    found = settings.get("proxyjump", "none")
    return [] if found == "none" else found.split(",")


def limiting(hops: Sequence[Hop]) -> str:
    """Return a sentence that names the hop which limits the throughput."""
    last = hops[-1]
    if last.error is not None:
        return f"{last.host} is not reached: {last.error}"
    if len(hops) == 1:
        return f"{last.host} is reached directly: the link itself limits"
    whole = min(last.up_bytes_per_s or 0.0, last.down_bytes_per_s or 0.0)
    jumps = {hop.host: min(hop.up_bytes_per_s or 0.0, hop.down_bytes_per_s or 0.0) for hop in hops}
    del jumps[last.host]
    slowest = min(jumps, key=lambda name: jumps[name])
    if jumps[slowest] * _SIMILAR <= whole:
        return f"{slowest} limits: alone it is hardly faster than the whole way"
    return f"the leg from {hops[-2].host} to {last.host} limits: {slowest} alone is faster"


def _measure(host: str, via: tuple[str, ...], config: Path | None, seconds: float) -> Hop:
    ssh = ["ssh", *SAFE_SSH, "-T", "-o", "Compression=no", "-o", f"ConnectTimeout={_CONNECT_S:.0f}"]
    ssh += ["-F", str(config)] if config else []
    ssh += ["-J", ",".join(via)] if via else []
    done = run_program([*ssh, host, "true"], _CONNECT_S)
    if done.code != 0:
        why = "no answer in time" if done.code is None else last_line(done.stderr)
        return Hop(host=host, via=via, error=why)
    try:
        return Hop(
            host=host,
            via=via,
            latency_s=_latency([*ssh, host, "cat"]),
            up_bytes_per_s=_upload([*ssh, host, "echo; cat >/dev/null; echo done"], seconds),
            down_bytes_per_s=_download([*ssh, host, "cat /dev/zero"], seconds),
            loss=_loss(host, via, config),
        )
    except OSError as error:
        return Hop(host=host, via=via, error=f"the connection broke: {error.strerror}")


def _latency(command: list[str]) -> float:
    with _Piped(command) as pipes:
        pipes.echo()  # the connection is made before the clock runs
        return statistics.median(pipes.echo() for _ in range(NUM_ECHOES))


def _upload(command: list[str], seconds: float) -> float:
    with _Piped(command) as pipes:
        pipes.read_line()  # the connection is made before the clock runs
        sent, start = 0, time.perf_counter()
        piece = bytes(_PIECE)
        while time.perf_counter() - start < seconds:
            sent += pipes.write(piece)
        pipes.close_input()
        if pipes.read_line().strip() != b"done":
            raise OSError(0, "the end was not confirmed")
        return sent / (time.perf_counter() - start)


def _download(command: list[str], seconds: float) -> float:
    with _Piped(command) as pipes:
        pipes.read(1)
        got, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            piece = pipes.read(_PIECE)
            if not piece:
                break
            got += len(piece)
        return got / (time.perf_counter() - start)


class _Piped:
    """A program that is talked to; killed at the end, whatever happened."""

    def __init__(self, command: list[str]) -> None:
        import os

        self._folder = tempfile.TemporaryDirectory(prefix="trainrig-link-")
        self.child = Child(command, Path(self._folder.name) / "log", os.environ, piped=True)

    def __enter__(self) -> _Piped:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.wait(5.0)
        for pipe in (self.child.process.stdin, self.child.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # what was not sent is not wanted any more
        self._folder.cleanup()

    def echo(self) -> float:
        """Return seconds for a line there and back."""
        start = time.perf_counter()
        self.write(b".\n")
        if self.read_line() != b".\n":
            raise OSError(0, "no echo")
        return time.perf_counter() - start

    def write(self, data: bytes) -> int:
        """Send all of it."""
        assert self.child.process.stdin is not None
        self.child.process.stdin.write(data)
        self.child.process.stdin.flush()
        return len(data)

    def close_input(self) -> None:
        """No more is sent."""
        assert self.child.process.stdin is not None
        self.child.process.stdin.close()

    def read(self, most: int) -> bytes:
        """Return the bytes that have arrived, at least one; empty at the end."""
        assert self.child.process.stdout is not None
        found: bytes = self.child.process.stdout.read(most)
        return found

    def read_line(self) -> bytes:
        """Return one line."""
        assert self.child.process.stdout is not None
        found: bytes = self.child.process.stdout.readline()
        return found


def _loss(host: str, via: tuple[str, ...], config: Path | None) -> float | None:
    """Loss on the last leg: pinged from here, or from the hop before."""
    address = ssh_settings(host, config).get("hostname", host)
    ping = ["ping", "-c", "10", "-i", "0.2", "-W", "2", "-q", address]
    if via:
        chosen = ["-F", str(config)] if config else []
        before = ["-J", ",".join(via[:-1])] if via[:-1] else []
        ping = ["ssh", *SAFE_SSH, "-T", *chosen, *before, via[-1], shlex.join(ping)]
    try:
        done = run_program(ping, _CONNECT_S)
    except OSError:
        return None
    found = _LOSS.search(done.stdout.decode("utf-8", "replace"))
    return float(found[1]) / 100 if found else None


def way_document(ways: Sequence[HostPath]) -> doc.Document:
    """Return a table of the hops, and what limits; of several ways the faster is named."""
    table = doc.table(
        [hop for way in ways for hop in way.hops],
        doc.column("host", lambda hop: hop.host, kind="code"),
        doc.words("through", lambda hop: ", ".join(hop.via) or "directly"),
        doc.column("latency", lambda hop: hop.latency_s, format_time),
        doc.column("up", lambda hop: hop.up_bytes_per_s, _rate),
        doc.column("down", lambda hop: hop.down_bytes_per_s, _rate),
        doc.column("loss", lambda hop: hop.loss, format_share),
        doc.words("", lambda hop: hop.error or ""),
    )
    lines = [doc.Paragraph(way.limited_by) for way in ways]
    reached = [way for way in ways if way.hops[-1].error is None]
    if len(reached) > 1:
        fastest_way = max(reached, key=lambda way: way.hops[-1].down_bytes_per_s or 0.0)
        lines.append(doc.Paragraph(f"{fastest_way.host} is the faster way down"))
    return doc.Document(title="way", blocks=(table, *lines))


def _rate(value: float) -> str:
    return format_quantity(value, "B/s")
