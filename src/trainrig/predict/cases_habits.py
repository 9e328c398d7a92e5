"""What a table's row says of a framework's habits: how old its libraries are, what is offloaded.

Both change memory more than time.  The column ``offload`` is ours: the published tables print it in
their notes, where they do.  Blank means that nothing was offloaded; with DeepSpeed's ZeRO 2 and 3,
whose usual configurations keep the optimizer on the host, it is not known, and what is offloaded
takes less memory: the interval begins there.
"""

from __future__ import annotations

import re

from trainrig.errors import UsageError
from trainrig.predict.cases_words import Row, Unstated, cell
from trainrig.workload.layout import OFFLOAD

_TORCH_1 = re.compile(r"torch 1\.")


def software_of(row: Row) -> str:
    """``torch1`` where the framework's name says so."""
    return "torch1" if _TORCH_1.search(cell(row, "framework").lower()) else "current"


def offload_of(row: Row, engine: str, zero: int, missing: Unstated) -> str:
    """One of OFFLOAD."""
    word = cell(row, "offload").lower()
    if not word:
        if engine == "deepspeed" and zero >= 2:
            missing.add("offload")
        return "none"
    if word not in OFFLOAD:
        raise UsageError(f"offload {word[:40]!r}: one of {', '.join(OFFLOAD)}")
    return word
