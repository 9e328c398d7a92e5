"""docs/selftest.md: the table of faults, the checks that must see them, and whether they did.

    python tools/selftest_table.py --write            every fault
    python tools/selftest_table.py --write links      a family or a check; other rows stay
    python tools/selftest_table.py --thresholds       src/trainrig/selftest/thresholds.toml

runs `trainrig selftest` and writes what came out; without --write it prints the page.  A test holds
the page's faults and checks against the registry; how long each took is of the machine it ran on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
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
nothing. What counts is the outcome: the verdict, its exit code, the severity of the finding. A
fault at a threshold stands 10 % beyond it, at random places whose seed is printed (`--seed`
repeats them). Beside each fault stands a healthy twin: the same scene without it, or 10 % inside
the threshold; whatever a check says of a twin is a false alarm. The command looks at all twins
five times, `make acceptance` fifty times. `python -m validation.selftest_breaks` breaks the checks
themselves, one after the other, and counts how many breaks the command notices.

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


def page(only: Sequence[str] = ()) -> Iterator[str]:
    """The lines of the page; runs the self-test, or a part of it and keeps the other rows."""
    from trainrig.selftest.registry import all_faults
    from trainrig.selftest.run import run_all

    rows = rows_of(PAGE.read_text(encoding="utf-8")) if only else {}
    result = run_all(only)
    for one in result.results:
        caught = {True: "yes", False: "NO", None: f"not here: {one.reason}"}[one.caught]
        if one.trials > 1:
            caught = f"{one.caught_trials} of {one.trials}"
        rows[one.check, one.fault] = (caught, _time(one.seconds))
    if result.alarms:
        sys.exit("\n".join(f"false alarm: {one.check}: {one.message}" for one in result.alarms))
    faults = [fault for own in all_faults().values() for fault in own]
    shown = [rows.get((fault.check, fault.name), ("not run", "")) for fault in faults]
    missed = sum(caught in ("NO", "not run") for caught, _ in shown)
    lacking = sum(caught.startswith("not here") for caught, _ in shown)
    yield HEAD
    yield (
        f"On a machine with two cores and no GPU: {len(faults)} faults of "
        f"{len({fault.check for fault in faults})} checks in "
        f"{sum(len(fault.variants) for fault in faults)} trials, {missed} missed, {lacking} not "
        "here, no false alarm in 5 clean runs."
    )
    yield ""
    yield TABLE
    yield "|---|---|---|---|"
    for fault, (caught, after) in zip(faults, shown, strict=True):
        cells = (f"`{fault.check}`", fault.name, caught, after)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def write_thresholds() -> None:
    """State every threshold as the code has it now."""
    import tomli_w

    from trainrig.selftest.threshold_faults import PATH, actual_numbers

    head = "# Every number that decides a verdict, stated a second time: see threshold_faults.py.\n"
    PATH.write_text(head + "\n" + tomli_w.dumps(actual_numbers()), encoding="utf-8")


def _time(seconds: float | None) -> str:
    from trainrig.units import format_time

    return "" if seconds is None else format_time(seconds)


def rows_of(text: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Check and fault of each row of a page → whether it was caught, and after what time."""
    lines = text.partition(TABLE)[2].splitlines()[2:]
    cells = [line.replace("\\|", "\0").removeprefix("| ").split(" | ") for line in lines]
    return {
        (cell[0].strip("`"), cell[1].replace("\0", "|")): (cell[2], cell[3].rstrip(" |"))
        for cell in cells
        if len(cell) == 4
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        PAGE.write_text("\n".join(page(sys.argv[2:])) + "\n", encoding="utf-8")
    elif sys.argv[1:] == ["--thresholds"]:
        write_thresholds()
    elif sys.argv[1:]:
        sys.exit("usage: python tools/selftest_table.py [--write [WORD ...] | --thresholds]")
    else:
        print("\n".join(page()))
