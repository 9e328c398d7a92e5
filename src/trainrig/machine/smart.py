"""Disks by their own report (SMART): `smartctl -j`, and its text where that is all there is.

smartctl's exit code is a set of bits in which a sick disk sets some, so its JSON is read whatever
it ends with.

Source: smartctl(8) and its JSON; NVM Express base specification, SMART / Health Information.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainrig.machine.health import DiskHealth
from trainrig.machine.parse import fields_of, integer, json_object, number
from trainrig.machine.snapshot import Missing
from trainrig.machine.system_access import Host

_MOST_DISKS = 24
_SMART_S = 1.5
_VIRTUAL = ("vd", "xvd", "md", "dm-")


def disk_health(host: Host, names: Iterable[str]) -> tuple[DiskHealth, ...] | Missing:
    """Return what disks report of themselves, or why none did.

    Args:
        host: The machine.
        names: Names of its disks: ``nvme0n1``.
    """
    real = [name for name in names if not name.startswith(_VIRTUAL)]
    if not real:
        return Missing("no disk that could report (virtual disks cannot)")
    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = list(pool.map(lambda name: _ask(host, name), real[:_MOST_DISKS]))
    reports = tuple(report for report in answers if not isinstance(report, Missing))
    return reports or next(report for report in answers if isinstance(report, Missing))


def _ask(host: Host, name: str) -> DiskHealth | Missing:
    output = host.run(
        "smartctl", "-j", "-H", "-A", f"/dev/{name}", timeout_s=_SMART_S, any_exit=True
    )
    value = json_object(output, "smartctl")
    return value if isinstance(value, Missing) else read_report(name, value)


def read_report(name: str, value: Mapping[str, object]) -> DiskHealth | Missing:
    """Return the health of a disk from smartctl's JSON."""
    tool = value.get("smartctl")
    messages = tool.get("messages") if isinstance(tool, dict) else None
    status = value.get("smart_status")
    if not isinstance(status, dict) and "temperature" not in value:
        why = messages[0].get("string") if isinstance(messages, list) and messages else "no answer"
        return Missing(f"smartctl {name}: {str(why)[:120]}")
    passed = status.get("passed") if isinstance(status, dict) else None
    nvme = value.get("nvme_smart_health_information_log")
    nvme = nvme if isinstance(nvme, dict) else {}
    spare, least = nvme.get("available_spare"), nvme.get("available_spare_threshold")
    low: bool | Missing = Missing("no spare reported")
    if isinstance(spare, int) and isinstance(least, int):
        low = spare < least
    heat = value.get("temperature")
    return DiskHealth(
        name=name,
        passed=passed if isinstance(passed, bool) else Missing("no overall result"),
        used=_used(nvme),
        spare_low=low,
        media_errors=integer(nvme.get("media_errors"), "media errors"),
        reallocated=_attribute(value, 5),
        pending=_attribute(value, 197),
        temperature_c=number(
            heat.get("current") if isinstance(heat, dict) else None, "heat", most=200
        ),
    )


def _used(log: Mapping[str, object]) -> float | Missing:
    """Return the used share of a disk's rated life; NVMe counts beyond 100 %, up to 255."""
    share = number(log.get("percentage_used"), "wear", most=255)
    return share if isinstance(share, Missing) else share / 100


def _attribute(value: Mapping[str, object], wanted: int) -> int | Missing:
    table = value.get("ata_smart_attributes")
    rows = table.get("table") if isinstance(table, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("id") == wanted:
            raw = row.get("raw")
            return integer(raw.get("value") if isinstance(raw, dict) else None, "attribute")
    return Missing(f"no attribute {wanted}")


# ---- smartctl's text


_STATUS = re.compile(
    r"^SMART (?:overall-health self-assessment test result|Health Status): *(?P<word>\w+)", re.M
)
_ROW = re.compile(
    r"^ *(?P<id>\d{1,3}) [A-Za-z_][\w-]* +0x[0-9a-f]{4}(?: +\S+){6} +(?P<raw>\d+)", re.M
)
_NVME = {
    "Available Spare": "available_spare",
    "Available Spare Threshold": "available_spare_threshold",
    "Percentage Used": "percentage_used",
    "Media and Data Integrity Errors": "media_errors",
}
_MODELS = ("Device Model", "Model Number", "Product")


def smartctl_json(output: str) -> dict[str, Any]:
    """Return smartctl's JSON, or its text as the part of that JSON that is read here."""
    start = output.find("{")
    if start >= 0 and '"smart' in output:
        try:
            value, _ = json.JSONDecoder().raw_decode(output[start:])
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}
    fields = fields_of(output)
    report: dict[str, Any] = {}
    if model := next((fields[name] for name in _MODELS if name in fields), None):
        report["model_name"] = model
    if status := _STATUS.search(output):
        report["smart_status"] = {"passed": status["word"] in ("PASSED", "OK")}
    log = {
        key: int(match[0].replace(",", ""))
        for name, key in _NVME.items()
        if (match := re.match(r"\d[\d,]*", fields.get(name, "")))
    }
    if log:
        report["nvme_smart_health_information_log"] = log
    attributes = [(int(row["id"]), int(row["raw"])) for row in _ROW.finditer(output)]
    if attributes:
        table = [{"id": number, "raw": {"value": raw}} for number, raw in attributes]
        report["ata_smart_attributes"] = {"table": table}
    return report
