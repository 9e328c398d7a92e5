"""How large the program may be: files, lines, and the longest file.

The numbers only go down with a rebuilding; something new that needs more says so in its commit.
Many small files are as hard to change as one large file: so the files per thousand lines count too.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines())
    for path in (ROOT / "src" / "trainrig").rglob("*.py")
}
MOST_FILES = 448
MOST_LINES = 95_900
MOST_FILES_PER_1000_LINES = 6.2
LONGEST = 600


def test_the_program_has_no_more_files_and_lines_than_agreed() -> None:
    num_files, num_lines = len(SOURCES), sum(SOURCES.values())
    assert num_files <= MOST_FILES
    assert num_lines <= MOST_LINES
    assert num_files / num_lines * 1000 < MOST_FILES_PER_1000_LINES


def test_no_file_is_longer_than_a_reader_s_patience() -> None:
    assert {name: lines for name, lines in SOURCES.items() if lines > LONGEST} == {}
