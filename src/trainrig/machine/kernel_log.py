"""The kernel's log: the lines that bear on training, read into their parts.

`dmesg` is asked first, then the journal of this boot, then the log files; many systems let root
alone read any of them.  Repeated lines are counted, not listed: a broken card writes thousands.

Formats: NVIDIA's "Xid Errors" (docs.nvidia.com/deploy/xid-errors, read November 2026) for
``NVRM: Xid (PCI:0000:9b:00): 79, …``; the kernel's arch/x86/mm/fault.c for ``segfault at … in``,
arch/x86/kernel/traps.c for ``traps: … trap invalid opcode``, mm/oom_kill.c for ``Killed process``,
drivers/pci/pcie/aer.c for ``AER:`` and drivers/edac for ``EDAC MC``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from trainrig.machine.health import EventKind, KernelEvent
from trainrig.machine.snapshot import Missing
from trainrig.machine.system_access import Host

_LOG_FILES = ("/var/log/kern.log", "/var/log/messages", "/var/log/syslog")
_MOST_LINES = 200_000
_LONGEST = 300
# Times before a line's words: of dmesg, of dmesg -T, of the journal and of syslog.
_TIME = re.compile(
    r"^(?:<\d+>|kern\s*:\w+\s*: |[\d-]+T[\d:,.+-]+ |\w{3} +\d+ [\d:]+ \S+ (?:kernel: )?"
    r"|\[[^\]]{3,40}\] |kernel: )+"
)
_PCI = r"(?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
_LINES: tuple[tuple[EventKind, str], ...] = (
    ("xid", rf"NVRM: Xid \(PCI:{_PCI}\): (?P<code>\d{{1,4}})(?:.*?name=(?P<program>[^,]+))?"),
    ("version-mismatch", r"NVRM: API mismatch"),
    (
        "module-refused",
        r"(?:nvidia|module).*(?:signature|required key|Lockdown: .*unsigned module)"
        r"|Loading of unsigned module",
    ),
    (
        "segfault",
        r"(?P<program>[^\s\[]+)\[\d+\]: segfault at .*?(?: in (?P<library>[^\[\s]+)\[|$)",
    ),
    (
        "segfault",
        r"traps: (?P<program>[^\s\[]+)\[\d+\] general protection.*?"
        r"(?: in (?P<library>[^\[\s]+)\[|$)",
    ),
    (
        "illegal-instruction",
        r"traps: (?P<program>[^\s\[]+)\[\d+\] trap invalid opcode.*?"
        r"(?: in (?P<library>[^\[\s]+)\[|$)",
    ),
    ("out-of-memory", r"Killed process \d+(?:, UID \d+,)? \((?P<program>[^)]*)\)"),
    ("pcie", rf"(?:pcieport|nvidia) {_PCI}: (?:AER|PCIe Bus Error)"),
    ("machine-check", r"mce: \[Hardware Error\]|EDAC .*\b(?:UE|CE)\b"),
    (
        "disk",
        r"EXT4-fs error|XFS .*corrupt|I/O error, dev (?!sr|fd|loop)|Remounting filesystem read",
    ),
)
_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _LINES)
# Words that every line of interest has one of: most lines are passed over with one search.
_QUICK = re.compile(
    r"NVRM|segfault|traps:|Killed process|AER|PCIe Bus|Hardware Error|EDAC|EXT4-fs|XFS|I/O error"
    r"|Remounting|signature|required key|unsigned",
    re.IGNORECASE,
)


def kernel_events(host: Host) -> tuple[KernelEvent, ...] | Missing:
    """The events in the kernel's log, in the order of their first lines."""
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
    """A log file goes on over boots; the kernel's first line of each names its version."""
    if isinstance(log, Missing):
        return log
    return log[log.rfind("Linux version ") + 1 :]


def parse_kernel_log(text: str) -> tuple[KernelEvent, ...]:
    """The events in a log's text; equal ones are one: the latest line, with a count."""
    found: dict[tuple[object, ...], KernelEvent] = {}
    for line in text.splitlines()[-_MOST_LINES:]:
        if not _QUICK.search(line):
            continue
        event = _event(_TIME.sub("", line, count=1).strip())
        if event is None:
            continue
        key = (event.kind, event.code, event.pci_address, event.program, event.library)
        before = found.get(key)
        found[key] = event if before is None else replace(event, count=before.count + 1)
    return tuple(found.values())


def _event(line: str) -> KernelEvent | None:
    for kind, pattern in _PATTERNS:
        match = pattern.search(line)
        if match is None:
            continue
        parts = match.groupdict()
        pci = parts.get("pci")
        return KernelEvent(
            kind=kind,
            text="".join(c if c.isprintable() else "?" for c in line[:_LONGEST]),
            code=int(parts["code"]) if parts.get("code") else None,
            pci_address=(pci if "." in pci else f"{pci}.0").lower() if pci else None,
            program=(parts.get("program") or "").strip()[:60] or None,
            library=parts.get("library"),
        )
    return None
