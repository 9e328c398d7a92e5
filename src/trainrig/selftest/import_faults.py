"""Other tools' files, as these tools print a sound machine and one with a fault.

The fault is what the tool would have printed; importers and judge read it as any file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from trainrig.errors import DataError
from trainrig.runner.imported import import_files
from trainrig.selftest.outcome import verdict_lines
from trainrig.selftest.registry import HEALTHY, Fault

TAKES_S = 3.0


def faults() -> Iterator[Fault]:
    """Yield a fault for each row of imported.toml."""
    path = Path(__file__).with_name("imported.toml")
    for number, file in enumerate(tomllib.loads(path.read_text(encoding="utf-8"))["file"]):
        for row in file["faults"]:
            yield Fault(
                name=row["name"],
                check=f"import.{file['tool']}",
                finds=row["finds"],
                says=f"{row['outcome']} {row['finds']}:",
                inject=partial(_printed, file["text"], row["replace"]),
                observe=_imported,
                twin=f"file {number}",
            )


@contextmanager
def _printed(
    text: str, changes: Iterable[tuple[str, str]], folder: Path, variant: Any
) -> Iterator[Path]:
    for old, new in changes if variant is not HEALTHY else ():
        if old not in text:
            raise ValueError(f"imported.toml: no {old!r} in its text")
        text = text.replace(old, new)
    path = folder / "printed.txt"
    path.write_text(text, encoding="utf-8")
    with mock.patch("os.fsync"):  # nobody goes on with these runs
        yield path


def _imported(path: Path) -> Iterable[str]:
    try:
        done = import_files([path], path.parent / "runs")
    except DataError as error:
        return [error.message]

    return verdict_lines(done.verdict, "warning")
