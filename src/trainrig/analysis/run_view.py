"""What report is handed: one run's nouns, already read, and nothing to read more with.

The caller (runner or the command line) reads the run; this room reaches neither the store nor
anything that measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainrig.analysis.match import Row, join
from trainrig.record import Kind, Record, RunView

__all__ = ["RunView", "at_path", "attempts", "is_published", "rows"]


def is_published(view: RunView) -> bool:
    """Whether the run was put together from published figures."""
    return str(view.config.get("origin", "")).startswith("published")


_LATEST: list[tuple[RunView, tuple[Row, ...]]] = []
"""Of the runs that were looked at last: every part of a report asks for the same rows."""
_MOST_RUNS = 8


def rows(view: RunView) -> tuple[Row, ...]:
    """Every case of the run: what was seen, what was predicted, what others published.

    Of a run that was put together from published figures these are what was seen.
    """
    for known, joined in _LATEST:
        if known is view:
            return joined
    has_points = any(record.is_point for record in view.records)
    observed = Kind.BASELINE if is_published(view) and not has_points else Kind.MEASURED
    found = join(view.records, view.baselines, observed)
    _LATEST.append((view, found))
    del _LATEST[:-_MOST_RUNS]
    return found


def attempts(view: RunView) -> dict[str, Record]:
    """The measured attempts by id: the samples that points are derived from."""
    return {record.id: record for record in view.records if record.attempt is not None}


def at_path(value: object, *path: str) -> Any:
    """The value at ``path`` of a machine's description; None where it is absent or Missing."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return None if isinstance(value, Mapping) and "missing" in value else value
