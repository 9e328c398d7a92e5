"""Find errors of buses, disks, processors and NVSwitches in the kernel's log.

The meaning of each event stands in logged.toml.  Each device has a finding of its own, with the
number of its errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from trainrig.doctor.check import HealthCheck, finding, gpus_of, meanings_by_number
from trainrig.machine.health import KernelEvent
from trainrig.machine.snapshot import Missing, Snapshot, value_or
from trainrig.record import Finding, Severity, read_by, read_toml


@read_by({"extra": "forbid"})
class _Meaning:
    finding: str
    severity: Severity
    evidence: str
    fix: str
    worse: tuple[str, ...] = ()
    milder: tuple[str, ...] = ()
    least: int = 1
    """Count from which on it is a finding: a link is lost once at each boot."""
    cause: str = ""
    undo: str = ""
    """Empty: as findings.toml has it; so is `cause`."""


@cache
def _meanings() -> Mapping[str, _Meaning]:
    path = Path(__file__).with_name("logged.toml")
    return read_toml(path, dict[str, _Meaning], path.name)


def _logged(snapshot: Snapshot) -> Iterator[Finding]:
    health = snapshot.health
    events = () if isinstance(health, Missing) else value_or(health.kernel_log, ())
    places = {
        gpu.pci_address: f"GPU {gpu.index}"
        for gpu in gpus_of(snapshot)
        if isinstance(gpu.pci_address, str)
    }
    for event in events:
        meaning = _meanings().get(event.kind)
        if meaning is not None and event.count >= meaning.least:
            row = meanings_by_number("sxid.toml").get(event.code or 0)
            evidence = meaning.evidence.format(
                place=_place(event, places),
                count=event.count,
                code=event.code,
                part=row["meaning"] if row else f"unknown SXid {event.code}",
                quoted_severity=event.severity or "",
                program=event.program or "a program",
                quoted=event.text,
            )
            evidence = " ".join(evidence.split()).replace("GPU GPU ", "GPU ")
            fix = row["next"] if row and event.kind == "sxid" else meaning.fix
            texts = {"cause": meaning.cause, "undo": meaning.undo}
            yield finding(meaning.finding, _severity(event, meaning), evidence, fix, **texts)


def _place(event: KernelEvent, places: Mapping[str, str]) -> str:
    address = event.pci_address
    if address is not None:
        return places.get(address, address)
    return event.device or "a device that is not named"


def _severity(event: KernelEvent, meaning: _Meaning) -> Severity:
    words = event.severity or ""
    if words.startswith(meaning.worse or "\0"):
        return "error"
    return "warning" if words.startswith(meaning.milder or "\0") else meaning.severity


CHECKS = (
    HealthCheck(
        id="kernel-log",
        title="The kernel logged no error of a bus, disk, processor or switch",
        reads="dmesg, journalctl -k, /var/log/kern.log",
        finds=tuple(sorted({meaning.finding for meaning in _meanings().values()})),
        judge=_logged,
        facts=("health.kernel_log",),
        root="the kernel's log, where the system hides it from users",
    ),
)
