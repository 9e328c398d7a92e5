"""docs/selftest.md: the table of faults, the checks that must see them, and whether they did.

    python tools/selftest_table.py --write

runs `trainrig selftest` and writes what came out; without --write it prints the page.  A test holds
the page's faults and checks against the registry; how long each took is of the machine it ran on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

PAGE = ROOT / "docs" / "selftest.md"
HEAD = """\
# What `trainrig selftest` plants, and what saw it

Written by `python tools/selftest_table.py --write`.

Every check of trainrig ships the fault that it must catch. `trainrig selftest` plants each one
below the check: in a tensor, in the bytes of a file, in what a driver or a program answers, in a
process that is stopped or killed. The check itself is the one that every verb uses, and is told
nothing. Beside each fault stands a healthy twin, the same scene without it; whatever a check says
of a twin is a false alarm. The command looks at all twins five times, `make acceptance` fifty
times.

A fault that has several places (each bit of a number, each place in a file) is planted in all of
them, and counts as caught when every one was seen. "After" is the time from the question to the
answer. "Not here" names the part that the machine lacks. What stands in for a driver's answers, a
bus or a network card is data in the formats of the real ones: unverified on hardware.

    trainrig selftest                       all of it; exit code 1 where one was missed
    trainrig selftest --only doctor.pcie    one check, a family, a finding's id
    trainrig selftest --list                what there is to plant
    trainrig selftest --json                faults, false_alarms, clean_runs

A check without a fault fails a test of the registry. A new one is a `Fault` in a file of
`src/trainrig/selftest/`, see `registry.py` there.
"""
TABLE = "| check | fault | caught | after |"


def page() -> Iterator[str]:
    """The lines of the page; runs the self-test."""
    from trainrig.selftest.page import summary
    from trainrig.selftest.run import run_all
    from trainrig.units import format_time

    result = run_all()
    yield HEAD
    yield f"On a machine with two cores and no GPU: {summary(result)}."
    yield ""
    yield TABLE
    yield "|---|---|---|---|"
    for one in result.results:
        caught = {True: "yes", False: "NO", None: f"not here: {one.reason}"}[one.caught]
        if one.trials > 1:
            caught = f"{one.caught_trials} of {one.trials}"
        after = "" if one.seconds is None else format_time(one.seconds)
        cells = (f"`{one.check}`", one.fault, caught, after)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table_of(text: str) -> list[tuple[str, str]]:
    """The checks and faults of a page."""
    rows = text.partition(TABLE)[2].splitlines()[2:]
    cells = [row.replace("\\|", "\0").strip("| ").split(" | ") for row in rows]
    return [(cell[0].strip("`"), cell[1].replace("\0", "|")) for cell in cells if len(cell) > 1]


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text("\n".join(page()) + "\n", encoding="utf-8")
    elif sys.argv[1:]:
        sys.exit("usage: python tools/selftest_table.py [--write]")
    else:
        print("\n".join(page()))
