"""The kernel's log: the lines that bear on training, read into their parts.

`dmesg` is asked first, then the journal of this boot, then the log files; many systems let root
alone read any of them.  The forms of lines stand in kernel_log.toml, each with its source.  Errors
are counted by kind, code and device, not lines: a broken card writes thousands, and one error of
PCIe or of a machine check is several lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from trainrig.machine.health import KernelEvent
from trainrig.machine.snapshot import Missing
from trainrig.machine.system_access import Host
from trainrig.record import read_by, read_toml

_LOG_FILES = ("/var/log/kern.log", "/var/log/messages", "/var/log/syslog")
_MOST_LINES = 200_000
_LONGEST = 300
# Times before a line's words: of dmesg, of dmesg -T, of the journal, of syslog and of /dev/kmsg.
_TIME = re.compile(
    r"^(?:<\d+>|kern\s*:\w+\s*: |[\d-]+T[\d:,.+-]+ |\w{3} +\d+ [\d:]+ \S+ (?:kernel: )?"
    r"|\[[^\]]{3,40}\] |\d+,\d+,\d+,[^;]{1,9};|kernel: )+"
)
_PCI = r"(?P<pci>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
_CONTINUED = re.compile(r"^\s*NVRM: (?:\(PCI ID|fallen off the bus|installed in this system)")
"""A message of the driver's that goes on in the next line."""


@read_by({"extra": "forbid"})
class _Form:
    kind: str
    near: tuple[str, ...]
    form: str
    source: str
    unless: str = ""
    detail_of: str = ""


@dataclass(frozen=True, slots=True)
class _Compiled:
    form: _Form
    pattern: re.Pattern[str]
    unless: re.Pattern[str] | None


@cache
def _forms() -> tuple[_Compiled, ...]:
    path = Path(__file__).with_name("kernel_log.toml")
    forms = read_toml(path, tuple[_Form, ...], path.name, "event")
    return tuple(
        _Compiled(
            form,
            _pattern(form.form),
            re.compile(form.unless, re.IGNORECASE) if form.unless else None,
        )
        for form in forms
    )


def _pattern(form: str) -> re.Pattern[str]:
    """Compile a form; the address may stand at several places, whose groups are numbered."""
    parts = form.split("{pci}")
    text = parts[0]
    for number, part in enumerate(parts[1:]):
        text += _PCI.replace("<pci>", f"<pci{number or ''}>") + part
    return re.compile(_numbered(text), re.IGNORECASE)


def _numbered(text: str) -> str:
    """Give the second and later groups of one name a number."""
    seen: dict[str, int] = {}

    def named(group: re.Match[str]) -> str:
        name = group[1].rstrip("0123456789")
        seen[name] = seen.get(name, 0) + 1
        return f"(?P<{name}{seen[name] if seen[name] > 1 else ''}>"

    return re.sub(r"\(\?P<(\w+)>", named, text)


@cache
def _words_of_interest() -> re.Pattern[str]:
    """Compile the words of which each line of interest has one; one search passes over most."""
    words = {near for form in _forms() for near in form.form.near}
    return re.compile("|".join(map(re.escape, sorted(words))))


def kernel_events(host: Host) -> tuple[KernelEvent, ...] | Missing:
    """Return the events in the kernel's log, in the order of their first lines."""
    reasons: list[str] = []
    sources: list[Callable[[], str | Missing]] = [
        lambda: host.run("dmesg"),
        lambda: host.run("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "cat"),
        *(lambda path=path: _of_this_boot(host.read(path)) for path in _LOG_FILES),
    ]
    for source in sources:
        text = source()
        if isinstance(text, str) and text.strip():
            return parse_kernel_log(text)
        reasons.append(text.reason if isinstance(text, Missing) else "empty")
    return Missing(f"the kernel's log cannot be read: {reasons[0]}")


def _of_this_boot(log: str | Missing) -> str | Missing:
    """Return the part of a log file since the last boot, whose first line names the kernel."""
    if isinstance(log, Missing):
        return log
    return log[log.rfind("Linux version ") + 1 :]


def parse_kernel_log(text: str) -> tuple[KernelEvent, ...]:
    """Return the events in a log's text; equal ones are one: the latest line, with a count."""
    return events_in(text.splitlines()[-_MOST_LINES:])


def events_in(lines: Iterable[str]) -> tuple[KernelEvent, ...]:
    """Return the events in a log's lines; those of one kind, code, device and program are one."""
    events: dict[tuple[object, ...], KernelEvent] = {}
    details: dict[tuple[object, ...], KernelEvent] = {}
    for line in _continued_lines(lines):
        if not _words_of_interest().search(line):
            continue
        event, is_detail = _event(_TIME.sub("", line, count=1).strip())
        if event is None:
            continue
        table = details if is_detail else events
        place = (event.pci_address, event.device, event.severity)
        key = (event.kind, event.code, place, event.program, event.library)
        before = table.get(key)
        table[key] = event if before is None else replace(event, count=before.count + event.count)
    exact = {event.kind for event in events.values()}
    return (*events.values(), *(detail for detail in details.values() if detail.kind not in exact))


def _continued_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, each with those that continue it."""
    joined = ""
    for line in lines:
        bare = _TIME.sub("", line, count=1)
        if joined and _CONTINUED.match(bare):
            joined += " " + bare.strip().removeprefix("NVRM: ")
            continue
        if joined:
            yield joined
        joined = line
    if joined:
        yield joined


def _event(line: str) -> tuple[KernelEvent | None, bool]:
    """Return the event of a line, and whether it counts only where no exacter line does."""
    for compiled in _forms():
        if not any(near in line for near in compiled.form.near):
            continue
        match = compiled.pattern.search(line)
        if match is None or (compiled.unless is not None and compiled.unless.search(line)):
            continue
        parts: dict[str, str] = {}
        for name, value in match.groupdict().items():
            if value:
                parts.setdefault(name.rstrip("0123456789"), value)
        event = KernelEvent(
            kind=compiled.form.kind,
            text="".join(c if c.isprintable() else "?" for c in line[:_LONGEST]),
            code=int(parts["code"]) if "code" in parts else None,
            pci_address=_address(parts.get("pci")),
            program=parts.get("program", "").strip()[:60] or None,
            library=parts.get("library"),
            device=parts.get("device"),
            severity=parts.get("severity", "").lower() or None,
            count=int(parts.get("number", "1")[:9]),
        )
        return event, bool(compiled.form.detail_of)
    return None, False


def _address(pci: str | None) -> str | None:
    """Return an address as the bus lists it: ``0000:9b:00.0``."""
    if not pci:
        return None
    pci = pci.lower()
    pci = f"0000:{pci}" if pci.count(":") == 1 else pci[-12:] if "." in pci else pci[-10:]
    return pci if "." in pci else f"{pci}.0"
