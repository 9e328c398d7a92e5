"""Writing to a terminal, a pipe or a full disk: a reader that leaves must not cost the result."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from trainrig.language import translate
from trainrig.language.width import padded

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from trainrig.cli.verb import Pages
    from trainrig.report.document import Document

JSON_VERSION = 1
"""Version of all `--json` objects; a key that goes or changes its meaning raises it."""


def answer(
    as_json: bool,
    content: Callable[[], object],
    document: Callable[[], Document],
    *,
    schema: str = "",
) -> None:
    """Print an answer: one JSON object, or a document in the terminal."""
    if as_json:
        print_json(content(), schema)
    else:
        print_text(document())


def publish(
    as_json: bool,
    content: Callable[[], object],
    document: Callable[[], Document],
    pages: Pages,
    *,
    schema: str = "",
) -> None:
    """Write the pages that were asked for, else `answer`.  Raises as `write_pages`."""
    if not write_pages(document, pages):
        answer(as_json, content, document, schema=schema)
    elif as_json:
        print_json(content(), schema)


def write_pages(document: Callable[[], Document], pages: Pages) -> bool:
    """Write a document to the files that were asked for; whether any was.

    Raises StoreError where one cannot be written, UnavailableError where no browser makes a PDF.
    """
    if not pages.any:
        return False
    from trainrig.report.render.html import to_html
    from trainrig.report.render.markdown import to_markdown
    from trainrig.store import write_atomic

    def write(path: Path, page: str | bytes) -> None:
        write_atomic(path, page)
        say(f"wrote {path}", err=True)

    print_pdf: Callable[[str], bytes] | None = None
    if pages.pdf is not None:
        from trainrig.report.render.pdf import find_browser, to_pdf

        # It is looked for before anything is made that it would be wanted for.
        print_pdf = partial(to_pdf, browser=find_browser())
    page_document = document()
    if pages.html is not None:
        write(pages.html, to_html(page_document))
    if pages.pdf is not None and print_pdf is not None:
        write(pages.pdf, print_pdf(to_html(page_document)))
    if pages.md_on_stdout:
        click.echo(to_markdown(page_document), nl=False)
    elif pages.md is not None:
        write(pages.md, to_markdown(page_document))
    return True


def print_json(content: object, schema: str = "") -> None:
    """One JSON value on a line of stdout; an object says first by which schema it is to be read.

    The schema is the verb's, or ``schema`` where a verb prints more than one: docs/json.md has all.
    """
    if isinstance(content, Mapping):
        name = f"trainrig.{schema or _verb_name()}/{JSON_VERSION}"
        content = {"schema": name} | {key: content[key] for key in content if key != "schema"}
    click.echo(json.dumps(content, ensure_ascii=False))


def print_error(message: str, hint: str | None, exit_code: int) -> None:
    """Print an error as JSON on stdout, for a reader that asked for JSON."""
    print_json({"error": message, "hint": hint, "exit_code": exit_code}, "error")


def _verb_name() -> str:
    """Return the verb that runs, its words joined by dashes: ``build-check``."""
    at = click.get_current_context(silent=True)
    words = []
    while at is not None:
        words.append(at.info_name or "")
        at = at.parent
    return "-".join(reversed(words[:-1] or words))


def say(text: str, *, err: bool = False) -> None:
    """A line of words, in the reader's language: stdout, or with ``err`` stderr."""
    click.echo(translate(text), err=err)


def print_values(values: Mapping[str, object], as_json: bool, schema: str = "") -> None:
    """Names and values: one JSON object, or a line each."""
    if as_json:
        print_json(values, schema)
        return
    for name, value in values.items():
        click.echo(f"{padded(translate(name), 12)}{translate(str(value))}")


def print_text(document: Document) -> None:
    """A document on stdout, as wide as the terminal."""
    from trainrig.report.render.terminal import print_document

    print_document(document, console())


class _PatientPipe(io.FileIO):
    """An output whose reader may leave: what is written after that goes nowhere.

    The verb goes on to its own exit code; a verdict must not turn into "fine" because its reader
    (head, grep -q, less) has seen enough.
    """

    reader_left = False

    def write(self, data: Any, /) -> int:
        """Write bytes; to /dev/null where nobody reads them any more."""
        try:
            return super().write(data)
        except BrokenPipeError:
            self.reader_left = True
            discard(self.fileno())
            return super().write(data)


def prepare_streams() -> None:
    """Let every text be printed: by its nearest characters, and to nowhere if nobody reads it."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream: TextIO | None = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open until the end
        elif type(stream) is io.TextIOWrapper and stream.fileno() == number:
            stream.flush()
            pipe = _PatientPipe(number, "w", closefd=False)
            prepared = io.TextIOWrapper(
                cast("Any", pipe) if stream.write_through else io.BufferedWriter(pipe),
                encoding=stream.encoding,
                errors="replace",
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, prepared)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def has_reader() -> bool:
    """Return whether stdout still goes somewhere; what has no end of its own stops without."""
    binary = getattr(sys.stdout, "buffer", None)
    return not getattr(getattr(binary, "raw", binary), "reader_left", False)


def console() -> Console:
    """Return a rich console on stdout that colours and replaces nothing by itself."""
    from rich.console import Console

    return Console(highlight=False, emoji=False)


def is_stream_error(error: OSError) -> bool:
    """Return whether writing to an open stream failed; an error about a file names the file."""
    return error.filename is None


def discard(number: int = 1) -> None:
    """Send an output (stdout) to /dev/null, so that the interpreter's last flush cannot fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


@contextmanager
def best_effort() -> Iterator[None]:
    """Print results that are stored in files as well: a failure to print changes no exit code."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if not is_stream_error(error):
            raise
        discard()
        text = translate(f"cannot write the output: {error.strerror}")
        print(f"trainrig: {text}", file=sys.stderr)
