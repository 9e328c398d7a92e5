"""Which machine a machine.json is of: what tells one from others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainrig.record import digest


def machine_key(machine: Mapping[str, Any] | None) -> str:
    """Return the identity of the machine of a machine.json; its name where nothing else tells it.

    Clones of one disk share an id, containers of one image too, and their names are drawn anew:
    the processor and the GPUs count as well.
    """
    host, cpu, gpus = ((machine or {}).get(part) for part in ("host", "cpu", "gpus"))
    known = [_text(host, "machine")]
    known += sorted(_text(gpu, "uuid") for gpu in gpus) if isinstance(gpus, list) else []
    return digest([_text(cpu, "model"), *known]) if any(known) else host_name(machine)


def host_name(machine: Mapping[str, Any] | None) -> str:
    """Return the name of the machine of a machine.json; empty where it has none."""
    return _text((machine or {}).get("host"), "hostname")


def _text(part: object, name: str) -> str:
    value = part.get(name) if isinstance(part, Mapping) else None
    return value if isinstance(value, str) else ""
