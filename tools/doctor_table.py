"""docs/doctor.md: the table of the doctor's checks, their faults and the hosts that show them.

    python tools/doctor_table.py --write

Without --write it prints the page.  A test compares the file with what this prints.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "support")]

PAGE = ROOT / "docs" / "doctor.md"
HEAD = """\
# What `trainrig doctor` checks

Written by `python tools/doctor_table.py --write`.

Each check reads facts that a probe of `machine/` has found and answers healthy, note (worth
knowing, no fault), warning or fault; not applicable where the machine has nothing that it is about;
or not checkable and why. Each kind of finding below is seen on a *fault host*, a whole machine as
data (files, what programs print, NVML's answers), and is not there on its *twin*, the same host
repaired. Five healthy hosts have no finding. Faults of GPUs, NVLink and InfiniBand are shown in
their formats alone: unverified on hardware.

"Reboot" says whether the fix needs one. `sudo trainrig doctor` adds what the last section lists.
"""


def page() -> str:
    """The whole text."""
    return "\n".join([HEAD, *_summary(), *_checks(), *_xids(), *_root()]) + "\n"


def _summary() -> Iterator[str]:
    from trainrig.doctor import CHECKS
    from trainrig.selftest.doctor_faults import bases, fault_hosts

    kinds = {name for check in CHECKS for name in check.finds}
    yield (
        f"{len(CHECKS)} checks, {len(kinds)} kinds of findings, {len(list(fault_hosts()))} fault "
        f"hosts each with its twin; healthy hosts: {', '.join(bases())}."
    )
    yield ""


def _checks() -> Iterator[str]:
    from trainrig.doctor import CHECKS
    from trainrig.doctor.check import meanings
    from trainrig.selftest.doctor_faults import fault_hosts

    hosts: dict[str, list[str]] = {}
    for host in fault_hosts():
        name = host.name if host.name != host.finding else "as its cause says"
        hosts.setdefault(host.finding, []).append(f"{name} ({host.base}; {host.source})")
    for check in CHECKS:
        yield f"## {check.id}: {check.title}"
        yield ""
        yield f"Reads {check.reads}."
        yield ""
        yield "| finding | cause | risk | reboot | undo | fault host (base; source of its format) |"
        yield "|---|---|---|---|---|---|"
        for name in check.finds:
            known = meanings()[name]
            reboot = "yes" if known.get("reboot") else "no"
            shown = "; ".join(hosts.get(name, ["a snapshot of torch's own view"]))
            cells = (f"`{name}`", known["cause"], known["risk"], reboot, known["undo"], shown)
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        yield ""


def _xids() -> Iterator[str]:
    yield "## Xid: what the driver's error numbers mean"
    yield ""
    yield "Source: NVIDIA, XID Errors, read in November 2026 (`src/trainrig/doctor/xid.toml`)."
    yield ""
    yield "| Xid | meaning | severity | next step |"
    yield "|---|---|---|---|"
    for codes, row in _rows("xid.toml"):
        yield f"| {codes} | {row['meaning']} | {row['severity']} | {row['next']} |"
    yield ""
    yield "## SXid: what the error numbers of NVSwitch are about"
    yield ""
    yield "Source: NVIDIA's open kernel modules, read in November 2026 (`doctor/sxid.toml`)."
    yield ""
    yield "| SXid | part of the switch | next step |"
    yield "|---|---|---|"
    for codes, row in _rows("sxid.toml"):
        yield f"| {codes} | {row['meaning']} | {row['next']} |"
    yield ""


def _rows(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a table of error numbers, ready for Markdown, lowest number first."""
    table = tomllib.loads((ROOT / "src/trainrig/doctor" / name).read_text())
    for codes, row in sorted(table.items(), key=lambda item: int(re.split("[-,]", item[0])[0])):
        yield (
            codes,
            {key: text.replace("{gpu}", "N").replace("|", "\\|") for key, text in row.items()},
        )


def _root() -> Iterator[str]:
    from trainrig.doctor import CHECKS

    yield "## What root adds"
    yield ""
    yield from (f"- {check.id}: {check.root}" for check in CHECKS if check.root)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    elif sys.argv[1:]:
        sys.exit("usage: python tools/doctor_table.py [--write]")
    else:
        print(page(), end="")
