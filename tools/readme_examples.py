"""Writes the READMEs' predictions as the commands print them: after rates or formulas changed.

    python tools/readme_examples.py

The section ends where the next heading begins; what stands around it is left alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 80

FITS = ("fits", "--model", "qwen2.5-7B", "--on", "RTX 4090")
SECTION = """\
{heading}

Parts that stand elsewhere (memory, provenance, the report's page) are left out here. A run, as
`qualify` ends, and as `trainrig demo` shows one:

{demo}

Before you buy or run:

{fits}

"""
CHINESE = """\
{heading}

此处略去另有位置的部分（显存、来源、报告页面）。一次运行的结尾，
`qualify` 最后这样显示，`trainrig demo` 也是：

{demo}

购买或运行之前：

{fits}

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A README, the heading of its section, the heading that ends it, and where outputs are cut."""

    name: str
    language: str
    heading: str
    before: str
    section: str
    cuts: tuple[str, str]
    """How lines begin: the demo's second action, the changes of fits."""


PAGES = (
    Page(
        name="README.md",
        language="en",
        heading="## What it prints",
        before="## Beside other tools",
        section=SECTION,
        cuts=("Up to +38", "80 %:"),
    ),
    Page(
        name="README.zh-CN.md",
        language="zh-CN",
        heading="## 输出示例",
        before="## 与其他工具相比",
        section=CHINESE,
        cuts=("最多 +38", "80 %：GiB"),
    ),
)


def printed(command: Sequence[str], language: str) -> list[str]:
    """The lines that a command prints on a terminal of WIDTH columns."""
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": str(WIDTH)}
    result = subprocess.run(
        [sys.executable, "-m", "trainrig", "--lang", language, *command],
        check=False,
        capture_output=True,
        text=True,
        env=environ,
    )
    if result.returncode not in (0, 1):  # 1 is a finding: it does not fit
        sys.exit(result.stderr)
    return [line.rstrip() for line in result.stdout.splitlines()]


def typed(command: Sequence[str]) -> Iterator[str]:
    """A command as it is typed, an option and its value on one line."""
    line = "$ trainrig " + command[0]
    options = zip(command[1::2], command[2::2], strict=True)
    for name, value in options:
        word = f'{name} "{value}"' if " " in value else f"{name} {value}"
        if len(line) + len(word) > WIDTH:
            yield line + " \\"
            line = "   "
        line += " " + word
    yield line


def between(lines: Sequence[str], first: str | None, end: str | None) -> list[str]:
    """The lines from the one that begins with ``first`` to before the one that has ``end``."""
    start = next(n for n, line in enumerate(lines) if first is None or line.startswith(first))
    stop = next((n for n, line in enumerate(lines) if end is not None and end in line), len(lines))
    return list(lines[start:stop])


def block(command: Sequence[str], lines: Sequence[str]) -> str:
    """A code block of a command and what it printed."""
    every = [*typed(command), "", *lines]
    while not every[-1]:
        every.pop()
    return "\n".join("    " + line if line else "" for line in every)


def section_of(page: Page, say: Callable[[Sequence[str], str], list[str]] = printed) -> str:
    """The section of a README as the commands print it; ``say`` runs one in a language."""
    action, changes = page.cuts
    demo = between(say(("demo",), page.language), None, action)
    fits = say(FITS, page.language)
    fits = between(fits, None, changes)
    return page.section.format(
        heading=page.heading,
        demo=block(("demo",), demo),
        fits=block(FITS, fits),
    )


def main() -> None:
    """Replace the section in both READMEs."""
    for page in PAGES:
        readme = ROOT / page.name
        before, _, rest = readme.read_text().partition(page.heading)
        after = page.before + rest.partition(page.before)[2]
        readme.write_text(before + section_of(page) + after)


if __name__ == "__main__":
    main()
