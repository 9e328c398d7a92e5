"""A fault of trainrig's own: exit code 70 and a file to send, never a finding about the machine.

Only the standard library is imported: what crashes may be the import of everything else.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
import time
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trainrig.errors import EXIT_CRASH


def report_crash(error: BaseException) -> int:
    """Write what happened into a file, say where it is, and return the exit code."""
    first_line = _first_line(error)
    lines = [f"trainrig: internal error: {first_line}"]
    path = _write(_text(error))
    if path is not None:
        lines.append(f"  hint: this is a fault of trainrig, not of the machine; please send {path}")
    else:
        lines.append("  hint: this is a fault of trainrig, not of the machine; please send this:")
        lines.append(_text(error))
    with contextlib.suppress(OSError, ValueError):  # stderr is closed: the exit code says it
        print("\n".join(lines), file=sys.stderr)
    return EXIT_CRASH


def _first_line(error: BaseException) -> str:
    """Return ``TypeError: ...`` in one line without control characters."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    return "".join(c if c.isprintable() else "?" for c in text)[:300]


def _text(error: BaseException) -> str:
    """Return what a developer needs: versions, command and traceback, without names of people."""
    head = {
        "trainrig": _version("trainrig"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "torch": _version("torch"),
        "command": " ".join(sys.argv),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    trace = "".join(traceback.format_exception(error))
    whole = "\n".join([*(f"{name}: {value}" for name, value in head.items()), "", trace])
    return _without_names(whole)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _without_names(text: str) -> str:
    """Return the home folder, the user and the host by what they are."""
    named = ((_home(), "~"), (platform.node(), "HOST"), (os.environ.get("USER"), "USER"))
    for name, word in named:
        if name and len(name) > 3 and name != "root":
            text = text.replace(name, word)
    return text


def _home() -> str:
    """Return the user's home folder; empty where HOME is not set and the user is not in passwd."""
    try:
        return str(Path.home())
    except RuntimeError:
        return ""


def _write(text: str) -> Path | None:
    """Return a file of this user's own, in its state folder or else among temporary ones."""
    home = _home()
    state = os.environ.get("XDG_STATE_HOME") or (home and f"{home}/.local/state")
    stem = time.strftime("crash-%Y%m%dT%H%M%SZ-", time.gmtime())
    for folder in (Path(state) / "trainrig" if state else None, None):
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(prefix=stem, suffix=".txt", dir=folder)
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
        except OSError:
            continue
        return Path(name)
    return None
