"""The breaks of checks are still possible: each piece of source is there once."""

from __future__ import annotations

from validation.selftest_breaks import breaks


def test_every_break_replaces_a_piece_that_is_there() -> None:
    stale = [row.name for row in breaks() if not row.is_current()]
    assert not stale, "selftest_breaks.toml names source that was changed"


def test_there_are_those_of_the_audit_and_more() -> None:
    rows = breaks()
    assert sum(row.audited for row in rows) == 14
    assert sum(not row.audited for row in rows) >= 30
    assert len({row.name for row in rows}) == len(rows)
