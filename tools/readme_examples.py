"""Writes README's predictions anew, as the commands print them: after rates or formulas changed.

    python tools/readme_examples.py

The section ends where the next heading begins; what stands around it is left alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADING, NEXT = "## What it prints", "## Beside other tools"
WIDTH = 80

FITS = (*("fits", "--model", "llama-7B", "--on", "RTX-4090"), *("--lora-rank", "16"))
PREDICT = (
    *("predict", "--model", "gpt2-medium", "--on", "RTX 3090 Ti", "--gpus", "2", "--link", "pcie"),
    *("--batch-size", "5", "--framework", "megatron", "--kernels", "fused", "--tokens", "10e9"),
)
PLAN = (
    *("plan", "--model", "gpt3-175B", "--on", "A100 SXM4 80GB", "--gpus", "1024"),
    *("--global-batch", "1536", "--top", "2"),
)

SECTION = """\
{heading}

Parts that stand elsewhere (memory, provenance, the report's page) are left out here. A run, as
`qualify` ends, and as `trainrig demo` shows one:

{demo}

Before you buy or run:

{fits}

{predict}

{plan}

"""


def printed(command: Sequence[str]) -> list[str]:
    """The lines that a command prints on a terminal of WIDTH columns."""
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": str(WIDTH)}
    result = subprocess.run(
        [sys.executable, "-m", "trainrig", *command],
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


def main() -> None:
    """Replace the section in README.md."""
    demo = between(printed(("demo",)), "MEASURED", "Up to +6.7")
    fits = printed(FITS)
    fits = [*fits[:2], *between(fits, "change  ", "--offload")]
    step = between(printed(PREDICT), "part  ", "memory  ")
    plan = between(printed(PLAN), None, "less memory")
    section = SECTION.format(
        heading=HEADING,
        demo=block(("demo",), demo),
        fits=block(FITS, fits),
        predict=block(PREDICT, step),
        plan=block(PLAN, plan),
    )
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition(HEADING)
    readme.write_text(before + section + NEXT + rest.partition(NEXT)[2])


if __name__ == "__main__":
    main()
