"""Whether a machine changed under a run: its sentinel case before and after a moment.

A device that was slow all along is slow; one that became slow, or fast, while it was measured says
nothing of itself: something else began or ended.  The rows are in the order in which they were
appended, each start of the run for itself (a resumed one may follow a reboot, after which the
monotonic clock begins anew); the wall clock names the moment.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainrig.analysis.evidence import finite_number
from trainrig.analysis.watched_rules import watch_rules
from trainrig.record import Finding
from trainrig.stats import grouped, median
from trainrig.units import device_text, format_share

SENTINEL, CHANGED = "sentinel", "machine-changed"
"""The series, and the finding."""
_LEAST = 3
"""Looks: at the start, in the middle and at the end."""
Row = Mapping[str, Any]


def changes_of(rows: Sequence[Row]) -> Iterator[Finding]:
    """Find devices whose sentinel case went slower or faster for good, and when."""
    starts = _starts(rows)
    for (_, device, index), device_looks in grouped(
        zip(starts, rows, strict=True),
        lambda pair: (pair[0], pair[1].get("device"), pair[1].get("index")),
    ).items():
        quiet = [row for _, row in device_looks if not row.get("disturbed")]
        times = [finite_number(row.get("time_s")) or 0.0 for row in quiet]
        if len(times) < _LEAST or min(times) <= 0.0:
            continue
        rules = watch_rules().sentinel
        place = _change(times, rules["host" if index is None else "gpu"])
        if place is None:
            continue
        row = quiet[place]
        word = "slower" if times[place] > times[place - 1] else "faster"
        share = abs(median(times[place:]) / median(times[:place]) - 1.0)
        yield Finding(
            id=CHANGED,
            severity="error",
            evidence=f"{device_text(device, index)}: its sentinel case went {format_share(share)} "
            f"{word} between the looks before {_clock(row)}, and stayed so",
            fix="see what began or ended then (nvidia-smi, ps, the scheduler); then repeat it",
        )


def _starts(rows: Sequence[Row]) -> list[int]:
    """Return for each row the number of the run's start that it belongs to, from 0.

    A row says when its start was (``start``); one without it is of another start than the row
    before where the monotonic clock went back.
    """
    starts: list[int] = []
    before: Row = {}
    for row in rows:
        at, latest = finite_number(row.get("m")), finite_number(before.get("m"))
        is_anew = at is not None and latest is not None and at < latest
        is_anew = is_anew or row.get("start") != before.get("start")
        starts.append(starts[-1] + is_anew if starts else 0)
        before = row
    return starts


def _change(times: Sequence[float], share: float) -> int | None:
    """Return the place from which all times differ from all earlier ones by a share."""
    for place in range(1, len(times)):
        before, after = times[:place], times[place:]
        is_slower = min(after) > (1.0 + share) * max(before)
        is_faster = max(after) * (1.0 + share) < min(before)
        if is_slower or is_faster:
            return place
    return None


def _clock(row: Row) -> str:
    """Return the time of day of a look: ``14:03:22 UTC``."""
    wall = finite_number(row.get("t"))
    if wall is None:
        return "a moment that is not known"
    return f"{datetime.datetime.fromtimestamp(wall, datetime.UTC):%H:%M:%S} UTC"
