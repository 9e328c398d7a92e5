"""Describe this machine: read-only probes, and the snapshot they fill.

`inspect` looks; `Snapshot` is what it saw; a field that could not be read is
`Missing(reason)`.  Nothing here imports torch or changes the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainrig import lazy

if TYPE_CHECKING:
    from trainrig.machine.environment import environment_digest
    from trainrig.machine.probes import inspect
    from trainrig.machine.snapshot import Missing, Snapshot, from_dict, to_dict, value_or
else:
    __getattr__ = lazy.exports(
        __name__,
        {
            "environment": ("environment_digest",),
            "probes": ("inspect",),
            "snapshot": ("Missing", "Snapshot", "from_dict", "to_dict", "value_or"),
        },
    )

__all__ = [
    "Missing",
    "Snapshot",
    "environment_digest",
    "from_dict",
    "inspect",
    "to_dict",
    "value_or",
]
