"""A page as PDF, printed by a Chromium or Chrome that is installed.

Browsers lay out the HTML that they show anyway; a second renderer of our own would drift from it.
The print styles stand in ``templates/style.css``.  The browser works in a folder of its own and
loads nothing: the page forbids it.  Only a whole file leaves that folder.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from trainrig.errors import UnavailableError
from trainrig.process.child import DIE_WITH_PARENT
from trainrig.process.programs import last_line
from trainrig.process.supervisor import Child

BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome"),
    *("chrome-headless-shell", "headless_shell", "microsoft-edge-stable", "microsoft-edge"),
)
"""Names under which Chromium, Chrome and their relatives are installed, in this order."""
TIMEOUT_S = 120.0
"""Seconds for one page: thousands of rows take some ten."""
_FLAGS = (
    *("--headless", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-first-run", "--no-default-browser-check", "--no-pdf-header-footer"),
    "--print-to-pdf-no-header",  # what the flag before it was called until version 112
)
_BEGIN, _END = b"%PDF-", b"%%EOF"
_TAIL = 1024


def find_browser() -> str:
    """Return the path of the browser that prints.  Raises UnavailableError where there is none."""
    for name in BROWSERS:
        if (path := shutil.which(name)) is not None:
            return path
    raise UnavailableError(
        "no Chromium or Chrome on PATH, which writes the PDF",
        "install one (sudo apt install chromium), or write --html FILE and print that",
    )


def to_pdf(page: str, browser: str, *, timeout: float = TIMEOUT_S) -> bytes:
    """Return the PDF of an HTML page.

    Args:
        page: The page, from `report.render.html.to_html`.
        browser: The program, from `find_browser`.
        timeout: Seconds after which the browser is killed, with all that it started.

    Raises:
        UnavailableError: The browser cannot be started, takes too long or writes no whole PDF.
    """
    name = Path(browser).name
    # A browser that is a snap sees no /tmp but its own.
    is_snap = "/snap/" in os.path.realpath(browser)
    with tempfile.TemporaryDirectory(
        prefix="trainrig-pdf-", dir=Path.cwd() if is_snap else None, ignore_cleanup_errors=True
    ) as folder:
        source, target = Path(folder) / "page.html", Path(folder) / "page.pdf"
        source.write_text(page, encoding="utf-8", errors="replace")
        # Chromium refuses its sandbox to root; the page has no script and loads nothing.
        unboxed = ("--no-sandbox",) if os.geteuid() == 0 else ()
        command = [
            *(sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, browser, *_FLAGS, *unboxed),
            *(f"--user-data-dir={folder}/profile", f"--print-to-pdf={target}", source.as_uri()),
        ]
        child = Child(command, Path(folder) / "log", dict(os.environ))
        code = child.see_out(timeout)
        if code is None:
            raise UnavailableError(f"{name} wrote no PDF within {timeout:.0f} s", _HINT)
        content = target.read_bytes() if target.is_file() else b""
        if code or not content.startswith(_BEGIN) or _END not in content[-_TAIL:]:
            how = f"exit code {code}: {last_line(child.log)}"
            raise UnavailableError(f"{name} wrote no PDF ({how})", _HINT)
    return content


_HINT = "write --html FILE, and print that from a browser"
