"""Whether `trainrig selftest` notices checks that were broken on purpose.

    python -m validation.selftest_breaks              every break; exit 1 where one is missed
    python -m validation.selftest_breaks --only timing    those whose names hold the word
    python -m validation.selftest_breaks --whole      with the whole self-test each: half an hour
    python -m validation.selftest_breaks --list       without running anything

Each break replaces a piece of source in a copy of the package (selftest_breaks.toml: file, old,
new) and runs the families of the self-test that are named there, which has to end with exit code 1.
The unbroken copy has to end with 0.  The first breaks are those of an audit, of which the self-test
had noticed 2 of 14; the others are of every module that judges.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from trainrig.process.programs import run_program

PATH = Path(__file__).parent / "selftest_breaks.toml"
SOURCE = Path(__file__).parents[1] / "src"
_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A piece of source that is replaced."""

    name: str
    file: str
    """Path below src/trainrig."""
    old: str
    new: str
    only: tuple[str, ...]
    """Families or checks of the self-test that have to notice it."""
    audited: bool = False
    """Whether it is one of the audit's."""

    def is_current(self) -> bool:
        """Return whether the source still holds the piece, once."""
        text = (SOURCE / "trainrig" / self.file).read_text(encoding="utf-8")
        return text.count(self.old) == 1


def breaks() -> tuple[Break, ...]:
    """Return the rows of selftest_breaks.toml."""
    rows = tomllib.loads(PATH.read_text(encoding="utf-8"))["break"]
    return tuple(Break(**{**row, "only": tuple(row["only"])}) for row in rows)


def noticed(package: Path, broken: Break, *, whole: bool, seed: int) -> tuple[bool, str]:
    """Return whether the self-test notices a break in a copy of the package, and its first word."""
    file = package / "trainrig" / broken.file
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(broken.old, broken.new), encoding="utf-8")
    try:
        code, words = _selftest(package, () if whole else broken.only, seed)
    finally:
        file.write_text(text, encoding="utf-8")
    return code == 1, words


def _selftest(package: Path, only: tuple[str, ...], seed: int) -> tuple[int | None, str]:
    words = [word for name in only for word in ("--only", name)]
    command = [sys.executable, "-B", "-m", "trainrig", "selftest", "--clean-runs", "1"]
    env = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_program([*command, "--seed", str(seed), *words], _LIMIT_S, env=env)
    printed = done.stderr.decode("utf-8", "replace").splitlines()
    lines = [line for line in printed if line.startswith(("MISSED", "FALSE"))]
    return done.code, (lines or printed[-1:] or [""])[0]


def main() -> int:
    """Print a line for each break, and how many were noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="breaks whose names hold this word")
    parser.add_argument("--whole", action="store_true", help="run the whole self-test each time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="list the breaks, and run nothing")
    asked = parser.parse_args()
    chosen = [row for row in breaks() if asked.only in row.name]
    if asked.list:
        print("\n".join(f"{row.file}: {row.name}" for row in chosen))
        return 0
    counts = {True: [0, 0], False: [0, 0]}
    with tempfile.TemporaryDirectory(prefix="selftest-breaks-") as folder:
        package = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCE / "trainrig", package / "trainrig", ignore=ignored)
        families = tuple(sorted({name for row in chosen for name in row.only}))
        code, words = _selftest(package, families, asked.seed)
        print(f"unbroken: exit {code} {words}", flush=True)
        for row in chosen:
            if not row.is_current():
                sys.exit(f"{PATH.name}: {row.name}: {row.file} no longer holds the piece once")
            is_noticed, words = noticed(package, row, whole=asked.whole, seed=asked.seed)
            counts[row.audited][0] += is_noticed
            counts[row.audited][1] += 1
            word = "found " if is_noticed else "MISSED"
            print(f"{word} {row.file}: {row.name}  [{words[:90]}]", flush=True)
    print(
        f"of the audit {counts[True][0]} of {counts[True][1]}, others "
        f"{counts[False][0]} of {counts[False][1]}"
    )
    is_sound = code == 0 and all(num == total for num, total in counts.values())
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
