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
MOST_FILES = 262
MOST_LINES = 51_000
