"""How the pages of docs/ become a site: `make docs`.

What the program says of itself is taken from it at each build, below docs/_generated/: every verb's
help, and the page of published figures.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
GENERATED = HERE / "_generated"
PAGES = GENERATED / "pages"
"""Whole HTML pages, copied beside the site's own."""

PAGES.mkdir(parents=True, exist_ok=True)

project = "trainrig"
version = release = metadata.version("trainrig")
copyright = "the trainrig authors"  # noqa: A001 - Sphinx's name

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
# Notes on experiments name files of the repository, which are no pages.
suppress_warnings = ["myst.xref_missing"]
exclude_patterns = ["_generated/pages"]
html_theme = "furo"
html_title = "trainrig"
html_extra_path = ["_generated/pages"]
html_copy_source = False
html_show_sphinx = False
man_pages = [
    ("_generated/verbs", "trainrig", "what a machine should do, and does, when it trains", "", 1)
]


def _printed(*words: str) -> str:
    command = [sys.executable, "-m", "trainrig", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _help_of(words: list[str]) -> list[str]:
    lines = [f"## trainrig {' '.join(words)}", "", "```text", _printed("help", *words).rstrip()]
    return [*lines, "```", ""]


def generate(_: Sphinx) -> None:
    """Write what the program says of itself."""
    import click

    from trainrig.cli.main import GROUPS, cli

    shutil.rmtree(GENERATED, ignore_errors=True)
    PAGES.mkdir(parents=True)
    lines = ["# Verbs in full", "", "As `trainrig help VERB` prints them.", ""]
    at = click.Context(cli, info_name="trainrig")
    for verbs in GROUPS.values():
        for verb in verbs:
            lines += _help_of([verb])
            found = cli.get_command(at, verb)
            if isinstance(found, click.Group):
                for name in found.list_commands(at):
                    lines += _help_of([verb, name])
    (GENERATED / "verbs.md").write_text("\n".join(lines), encoding="utf-8")
    for verb in ("demo", "published"):
        _printed(verb, "--html", str(PAGES / f"{verb}.html"))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", generate)
