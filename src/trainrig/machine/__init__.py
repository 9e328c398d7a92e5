"""What this machine is: read-only probes, and the snapshot they fill.

`inspect` looks; `Snapshot` is what it saw; a field that could not be read is
`Missing(reason)`.  Nothing here imports torch or changes the machine.
"""

from trainrig.machine.environment import environment_digest
from trainrig.machine.inspect import inspect
from trainrig.machine.snapshot import Missing, Snapshot, from_dict, to_dict, value_or

__all__ = [
    "Missing",
    "Snapshot",
    "environment_digest",
    "from_dict",
    "inspect",
    "to_dict",
    "value_or",
]
