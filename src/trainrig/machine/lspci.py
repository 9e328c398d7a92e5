"""GPUs in lspci's text, in any of its forms: plain, ``-nn``, ``-k``, ``-v`` to ``-vvv``.

What a form does not print is missing: without ``-nn`` most devices have a name and no number,
without ``-k`` or ``-v`` no driver, without ``-vv`` and root no link.

Source: lspci(8); pciutils ls-caps.c (LnkCap, LnkSta), lspci.c (header type 7f: "rev ff").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from trainrig.machine.fact import NOT_IN_FILE, Missing
from trainrig.machine.health import PciState
from trainrig.machine.parse import integer, link_generation
from trainrig.machine.snapshot import PcieLink, PciGpu, unknown_link
from trainrig.record import read_toml

_DEVICE = re.compile(
    r"^(?P<address>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?P<kind>[^:\[]+?)"
    r"(?: \[(?P<number>[0-9a-f]{4})\])?: (?P<name>.*?)(?: \[(?P<id>[0-9a-f]{4}:[0-9a-f]{4})\])?"
    r"(?: \(rev (?P<revision>[0-9a-f]{2})\))?(?: \(prog-if .*)?$"
)
_UNNAMED = re.compile(r"Device ([0-9a-f]{4})$")
_NO_ANSWER = re.compile(r"!!! Unknown header type 7f")
_LINK = re.compile(r"Speed ([\d.]+GT/s)[^,]*, Width x(\d{1,2})")
_DRIVER = re.compile(r"^\s+Kernel driver in use: (\S+)", re.MULTILINE)


@cache
def _table(name: str) -> Mapping[str, str]:
    path = Path(__file__).with_name("captured.toml")
    return read_toml(path, dict[str, str], path.name, name)


def parse_lspci(output: str | Missing) -> tuple[tuple[PciGpu, PciState], ...] | Missing:
    """Return each GPU or accelerator in lspci's text, and whether it answers on the bus."""
    if isinstance(output, Missing):
        return output
    has_drivers = _DRIVER.search(output) is not None
    blocks: list[list[str]] = []
    for line in output.splitlines():
        if _DEVICE.match(line):
            blocks.append([line])
        elif blocks and line[:1].isspace():
            blocks[-1].append(line)
    gpus = (_gpu(lines[0], "\n".join(lines[1:]), has_drivers=has_drivers) for lines in blocks)
    return tuple(gpu for gpu in gpus if gpu is not None)


def _gpu(head: str, details: str, *, has_drivers: bool) -> tuple[PciGpu, PciState] | None:
    match = _DEVICE.match(head)
    assert match is not None
    pci_class = match["number"] or _table("classes").get(match["kind"], "")
    vendor, name = _vendor_and_name(match["name"], match["id"])
    if not vendor or pci_class not in _table("classes").values():
        return None
    unnamed = _UNNAMED.search(match["name"])
    number = match["id"].partition(":")[2] if match["id"] else unnamed[1] if unnamed else ""
    address = match["address"]
    address = f"0000:{address}" if address.count(":") == 1 else address
    driver = _DRIVER.search(details)
    gpu = PciGpu(
        address=address,
        pci_id=f"{vendor}:{number}",
        subsystem_id=NOT_IN_FILE,
        pci_class=pci_class,
        name=Missing("lspci prints no name") if unnamed else name,
        driver=driver[1] if driver else None if has_drivers else NOT_IN_FILE,
        numa_node=integer(_field(details, "NUMA node:") or NOT_IN_FILE, "NUMA node"),
        link=_link(details),
        slot=unknown_link("the port above the device is not looked for in lspci's text"),
    )
    is_dead = match["revision"] == "ff" or _NO_ANSWER.search(details) is not None
    state = PciState(
        address=address,
        answers=not is_dead,
        bar_bytes=NOT_IN_FILE,
        errors_corrected=NOT_IN_FILE,
        errors_fatal=NOT_IN_FILE,
        acs_redirect=NOT_IN_FILE,
    )
    return gpu, state


def _vendor_and_name(words: str, pci_id: str | None) -> tuple[str, str]:
    """Return the vendor's number, empty for other makers, and the device's own name."""
    for vendor, number in _table("vendors").items():
        if words.startswith(f"{vendor} "):
            return number, words.removeprefix(f"{vendor} ")
    number = pci_id.partition(":")[0] if pci_id else ""
    return (number if number in _table("vendors").values() else ""), words


def _link(details: str) -> PcieLink:
    """Return the link of lspci's LnkSta and LnkCap lines."""
    now, most = (_LINK.search(_field(details, name) or "") for name in ("LnkSta:", "LnkCap:"))
    if now is None or most is None:
        return unknown_link(NOT_IN_FILE.reason)
    return PcieLink(
        generation=link_generation(_spaced(now[1])),
        width=integer(now[2], "link width"),
        max_generation=link_generation(_spaced(most[1])),
        max_width=integer(most[2], "link width"),
    )


def _spaced(speed: str) -> str:
    """Return a speed as sysfs prints it: ``16.0 GT/s``."""
    return f"{float(speed.removesuffix('GT/s'))} GT/s"


def _field(details: str, name: str) -> str | None:
    match = re.search(rf"^\s+{re.escape(name)}\s*(.*)$", details, re.MULTILINE)
    return match[1] if match else None
