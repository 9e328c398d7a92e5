"""Help in the language that is shown: click's page, its texts translated, its lines by width.

click measures letters, of which a Chinese one takes two columns, and breaks lines at spaces, which
Chinese does not have.  English pages are click's own.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

import click

from trainrig.language import ENGLISH, tag, translate
from trainrig.language.width import width, wrap

DEFAULT = re.compile(r"(?P<text>.*) \(default: (?P<default>.*)\)\.", re.DOTALL)


class TranslatedPage(click.HelpFormatter):
    """A help page whose texts are looked up as they are written."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """``Usage:`` and the command; names of arguments stay as they are."""
        usage = f"{translate('Usage:')} {prog}".replace("： ", "：")
        lines = wrap(args, self.width - width(usage) - 1)
        pad = " " * (width(usage) + 1)
        self.write(f"{usage} " + f"\n{pad}".join(lines) + "\n")

    def write_heading(self, heading: str) -> None:
        """The heading of a section."""
        self.write(f"{'':>{self.current_indent}}{translate(f'{heading}:')}\n")

    def write_text(self, text: str) -> None:
        """Paragraphs; lines behind ``\\b`` stay as they are."""
        self.write("\n\n".join(map(self._paragraph, paragraphs(text))) + "\n")

    def _paragraph(self, text: str) -> str:
        lines = text.split("\n")
        if lines[0].strip() == "\b":
            lines_shown = [translate(line) for line in lines[1:]]
        else:
            lines_shown = wrap(translate(" ".join(line.strip() for line in lines)), self._room(0))
        return "\n".join(" " * self.current_indent + line for line in lines_shown)

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Names and what they mean, beside each other where the names are short."""
        rows = list(rows)
        first = min(max((width(name) for name, _ in rows), default=0), col_max) + col_spacing
        pad = " " * self.current_indent
        for name, text in rows:
            lines = wrap(option_text(text), self._room(first)) if text else []
            fits_beside = width(name) <= first - col_spacing
            if lines and fits_beside:
                lines[0] = name + " " * (first - width(name)) + lines[0]
            else:
                lines.insert(0, name)
            self.write(f"{pad}{lines.pop(0)}".rstrip() + "\n")
            for line in lines:
                self.write(f"{pad}{' ' * first}{line}\n")

    def _room(self, indent: int) -> int:
        return max(10, self.width - self.current_indent - indent)


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a help text, as click tells them apart."""
    return re.split(r"\n\s*\n", inspect.cleandoc(text).partition("\f")[0].strip("\n"))


def option_text(text: str) -> str:
    """Return an option's help, and the default that ends it, each looked up by itself."""
    if (match := DEFAULT.fullmatch(text)) is None:
        return translate(text)
    text_shown = translate(f"{match['text']}.")
    default = translate("(default: {value})").replace("{value}", translate(match["default"]))
    return f"{text_shown.removesuffix('.').removesuffix('。')}{default}。" if text_shown else text


def page_class() -> type[click.HelpFormatter]:
    """Return the class that writes help in the language that is shown."""
    return click.HelpFormatter if tag() == ENGLISH else TranslatedPage
