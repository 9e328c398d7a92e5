"""A snapshot as JSON, and as a digest: what lies in a run folder, what records name.

machine.json is `to_dict` of a Snapshot.  It is checked when it is read: another
schema version, an unknown field or a wrong type is refused with one line.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trainrig.errors import DataError, first_problem
from trainrig.machine.snapshot import SNAPSHOT_SCHEMA, Snapshot
from trainrig.record import digest


@cache
def _adapter() -> TypeAdapter[Snapshot]:
    return TypeAdapter(Snapshot)


def to_dict(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as JSON-able values; the form of machine.json."""
    whole: dict[str, Any] = _adapter().dump_python(snapshot, mode="json", by_alias=True)
    return whole


def from_dict(value: object) -> Snapshot:
    """The snapshot in the parsed text of a machine.json.

    Raises DataError if it is not one, or was written under another schema version.
    """
    _check_schema(value)
    try:
        return _adapter().validate_python(value)
    except ValidationError as error:
        raise DataError(f"not a machine description: {first_problem(error)}") from None


def _check_schema(value: object) -> None:
    found = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(found, int) or isinstance(found, bool):
        raise DataError("not a machine description: it has no schema version")
    if found > SNAPSHOT_SCHEMA:
        raise DataError(
            f"the machine description was written by a newer trainrig (schema {found}; this one "
            f"reads {SNAPSHOT_SCHEMA})",
            "upgrade: pip install --upgrade trainrig",
        )
    if found < SNAPSHOT_SCHEMA:
        raise DataError(
            f"the machine description was written by an older trainrig (schema {found}; this one "
            f"reads {SNAPSHOT_SCHEMA})",
            "look again: trainrig inspect --json",
        )


def environment_digest(snapshot: Snapshot) -> str:
    """Names what a measurement ran under: software, kernel, CPU model and settings.

    Clocks, temperatures, free memory and the moment are not part of it: two
    snapshots of an unchanged machine have the same digest.
    """
    whole = to_dict(snapshot)
    gpus = whole["gpus"] if isinstance(whole["gpus"], list) else []
    return digest(
        {
            "software": whole["software"],
            "kernel": whole["host"]["kernel"],
            "cpu": whole["cpu"]["model"],
            "gpus": [gpu["name"] for gpu in gpus],
        }
    )
