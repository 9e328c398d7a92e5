"""Every file of a run folder has a reader: what nobody reads is not worth writing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from trainrig.store import run_folder

SOURCE = Path(run_folder.__file__).parents[1]
READERS = {
    "CONFIG": "store/reader.py",
    "MACHINE": "store/reader.py",
    "RECORDS": "store/reader.py",
    "VERDICT": "store/reader.py",
    "SERIES": "store/reader.py",
}
FOR_PEOPLE = {"REPORT", "LOGS"}
"""Read by a person: the page, and what the findings send them to."""
SERIES_READERS = {
    "telemetry": "report/charts/over_time.py",
    "steps-": "analysis/training_facts.py",
}
"""By the beginning of a series' name."""


def names_of_files() -> set[str]:
    tree = ast.parse(Path(run_folder.__file__).read_text())
    return {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.isupper()
    }


def written_series() -> set[str]:
    """The constant beginnings of the names that `append_series` and `keep_series` are given."""
    found = set()
    for file in SOURCE.rglob("*.py"):
        for match in re.finditer(r"(?:append|write)_series\(\s*f?\"([a-z-]+)", file.read_text()):
            found.add(match[1])
    return found


def test_every_file_has_a_reader() -> None:
    assert names_of_files() == READERS.keys() | FOR_PEOPLE
    for name, reader in READERS.items():
        assert name in (SOURCE / reader).read_text(), f"{reader} does not read {name}"


def test_every_series_has_a_reader() -> None:
    written = written_series()
    assert "telemetry" in written, "the search for writers finds none"
    unread = {name for name in written if not name.startswith(tuple(SERIES_READERS))}
    assert not unread, f"written and read by nothing: {unread}"
    for name in written:
        reader = next(file for start, file in SERIES_READERS.items() if name.startswith(start))
        assert name.rstrip("-") in (SOURCE / reader).read_text(), f"{reader} does not read {name}"
