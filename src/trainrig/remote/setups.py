"""Set-ups that reach a machine: files in a folder of their own, a unit, and their removal.

A set-up is a folder ``$XDG_CONFIG_HOME/trainrig/remote/NAME`` with ``setup.json`` and its files,
all readable by their owner alone, and a systemd user unit beside the user's other units.  Nothing
is started when it is written: `start_commands` says what starts it and keeps it after a reboot.
`remove_setup` deletes what was written, and leaves a file that was changed since.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainrig.errors import DataError, UnavailableError, UsageError, unknown
from trainrig.process.child import DIE_WITH_PARENT
from trainrig.process.programs import last_line, run_program
from trainrig.process.supervisor import Child
from trainrig.safe_read import MOST_SETTINGS, make_private, read_plain
from trainrig.store import store_errors

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,40}")
_CONTROL_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Way to reach a machine, or to be reached."""

    name: str
    kind: str
    """``forward``, ``frp``, ``cloudflared``, ``notebook``."""
    command: tuple[str, ...]
    """Command that runs; FOLDER stands for the set-up's own folder."""
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Name → text, in the set-up's folder."""
    reach: str = ""
    """Address, or the command for the other machine."""
    notes: tuple[str, ...] = ()
    """Steps that have to be done elsewhere."""


def setups_folder() -> Path:
    """Return where set-ups are."""
    return _config_home() / "trainrig" / "remote"


def unit_path(name: str) -> Path:
    """Return the systemd user unit of a set-up."""
    return _config_home() / "systemd" / "user" / f"trainrig-{name}.service"


def _config_home() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))


def check_name(name: str) -> str:
    """Return a name that may be a folder's and a unit's.  Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a set-up", "letters, digits, dashes and dots")
    return name


def read_secret(path: Path, what: str) -> str:
    """Return a secret from a file that its owner alone may read.

    Raises UsageError: readable by others, empty, too short; DataError: unreadable.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        hint = f"(umask 077; openssl rand -hex 32 > {path})"
        raise DataError(f"{what} {path}: {reason.lower()}", hint) from None
    if mode & 0o077:
        raise UsageError(f"{path} is readable by others", f"chmod 600 {path}")
    if len(text) < _LEAST_SECRET or not text.isprintable() or " " in text:
        hint = f"(umask 077; openssl rand -hex 32 > {path})"
        raise UsageError(f"{path} holds no {what} of {_LEAST_SECRET} characters or more", hint)
    return text


_LEAST_SECRET = 16


def unit_text(setup: Setup) -> str:
    """Return the systemd user unit that keeps a set-up running."""
    command = [_program(setup.command[0]), *setup.command[1:]]
    folder = str(setups_folder() / setup.name)
    words = " ".join(_unit_word(word.replace("FOLDER", folder)) for word in command)
    return (
        "# Written by trainrig remote; `trainrig remote remove` deletes it.\n"
        "[Unit]\n"
        f"Description=trainrig {setup.kind} {setup.name}\n"
        "After=network-online.target\n"
        "StartLimitIntervalSec=0\n"
        "\n[Service]\n"
        f"ExecStart={words}\n"
        "Restart=always\n"
        "RestartSec=5\n"
        "UMask=0077\n"
        "NoNewPrivileges=yes\n"
        "\n[Install]\n"
        "WantedBy=default.target\n"
    )


def _program(name: str) -> str:
    """systemd wants an absolute path; one that is not installed here is left as it is."""
    return shutil.which(name) or name


def _unit_word(word: str) -> str:
    """Return a word as systemd reads it: % and $ doubled, quoted where it has to be."""
    if any(not c.isprintable() for c in word):
        raise UsageError(f"{word!r} cannot stand in a unit", "no line breaks or control characters")
    word = word.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w@%+=:,./$-]+", word, re.ASCII):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def write_setup(setup: Setup) -> list[Path]:
    """Write a set-up's files and unit.  Raises UsageError where the name is taken, StoreError."""
    folder, unit = setups_folder() / check_name(setup.name), unit_path(setup.name)
    if folder.exists() or unit.exists():
        hint = f"another --name, or: trainrig remote remove {setup.name}"
        raise UsageError(f"there is a set-up {setup.name!r} already", hint)
    files = {folder / name: text for name, text in setup.files.items()}
    files[unit] = unit_text(setup)
    about = dataclasses.asdict(setup) | {"files": {str(p): _digest(t) for p, t in files.items()}}
    with store_errors(folder):
        for private in (folder, unit.parent):
            make_private(private)
        for path, text in {**files, folder / "setup.json": json.dumps(about) + "\n"}.items():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
    return list(files)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def all_setups() -> list[dict[str, object]]:
    """Return the set-ups as they were written; a damaged one is left out (`damaged_setups`)."""
    return [each for each in (_read_setup(path) for path in _setup_files()) if each is not None]


def damaged_setups() -> list[Path]:
    """Set-ups whose setup.json cannot be read: they stop none of the others."""
    return [path.parent for path in _setup_files() if _read_setup(path) is None]


def _setup_files() -> list[Path]:
    return sorted(setups_folder().glob("*/setup.json"))


def _read_setup(path: Path) -> dict[str, object] | None:
    """Return a set-up as it was written, with all that others read of it.

    None where it is damaged.
    """
    try:
        data = read_plain(path, MOST_SETTINGS)
        found = json.loads(data) if data is not None else None
    except (DataError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    command, files = found.get("command"), found.get("files")
    is_whole = (
        found.get("name") == path.parent.name
        and all(isinstance(found.get(key, ""), str) for key in ("kind", "reach"))
        and isinstance(found.get("notes", []), list)
        and isinstance(command, list)
        and bool(command)
        and all(isinstance(word, str) for word in command)
        and isinstance(files, dict)
        and all(isinstance(text, str) for pair in files.items() for text in pair)
    )
    return {"kind": "", "reach": "", "notes": [], **found} if is_whole else None


def _setup_named(name: str) -> dict[str, object]:
    """Return the set-up of a name.

    Raises UsageError for an unknown one, DataError for a damaged one.
    """
    setups = {str(each["name"]): each for each in all_setups()}
    if name in setups:
        return setups[name]
    folder = setups_folder() / name
    if folder in damaged_setups():
        raise DataError(f"{folder / 'setup.json'} is damaged", f"rm -r {shlex.quote(str(folder))}")
    raise unknown("set-up", name, setups) if setups else UsageError("nothing is set up")


def remove_setup(name: str) -> tuple[list[Path], list[Path]]:
    """Stop a set-up and delete what was written for it.

    Returns the paths that were deleted, and those that were changed since and stay.  Raises
    UsageError for an unknown one.
    """
    setup = _setup_named(name)
    if systemd_answers() is None:
        systemctl("disable", "--now", unit_path(name).name)
    gone, stay = [], []
    files = setup["files"]
    folder = setups_folder() / name
    with store_errors(folder):
        for text, digest in files.items() if isinstance(files, dict) else ():
            path = Path(text)
            if not path.exists():
                continue
            data = read_plain(path, MOST_SETTINGS) if not path.is_symlink() else None
            if data is None or hashlib.sha256(data).hexdigest() != digest:
                stay.append(path)
                continue
            path.unlink()
            gone.append(path)
        wanted = unit_path(name).parent / "default.target.wants" / unit_path(name).name
        if wanted.is_symlink() and not wanted.exists():  # enabled, and systemd did not answer
            wanted.unlink()
            gone.append(wanted)
        (folder / "setup.json").unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
    if systemd_answers() is None:
        systemctl("daemon-reload")
    return gone, stay


def systemctl(*words: str) -> str | None:
    """Return the error of a ``systemctl --user`` command; None if it went well."""
    try:
        done = run_program(["systemctl", "--user", *words], _CONTROL_S)
    except OSError:
        return "systemctl is not installed"
    return None if done.code == 0 else last_line(done.stderr or done.stdout)


def systemd_answers() -> str | None:
    """Return why this user has no systemd; None if it answers."""
    return systemctl("show-environment")


def start_commands(name: str) -> list[str]:
    """Return the commands that start a set-up, and start it again after a reboot."""
    if (reason := systemd_answers()) is not None:
        return [f"trainrig remote run {name} --detach  # no systemd for this user: {reason}"]
    return [
        "systemctl --user daemon-reload",
        f"systemctl --user enable --now {shlex.quote(unit_path(name).name)}",
        "loginctl enable-linger  # once: units run without a login, from boot on",
    ]


def command_of(name: str) -> list[str]:
    """Return a set-up's command.  Raises UsageError for an unknown one."""
    words, folder = _setup_named(name)["command"], str(setups_folder() / name)
    assert isinstance(words, list)
    return [str(word).replace("FOLDER", folder) for word in words]


def keep_running(
    command: Sequence[str],
    report: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    rounds: int | None = None,
) -> None:
    """Run a command again whenever it ends, after 1 s, 2 s, ... 60 s; after a minute's life 1 s.

    ``rounds``: give up after so many; None: never.  The command dies with this process.
    """
    wait = _FIRST_WAIT_S
    with tempfile.TemporaryDirectory(prefix="trainrig-remote-") as folder:
        while rounds is None or rounds > 0:
            rounds = None if rounds is None else rounds - 1
            start = time.monotonic()
            child = Child(_dying_with_us(command), Path(folder) / "log", os.environ)
            report(f"started {command[0]} (process {child.process.pid})")
            try:
                while child.wait(_TICK_S) is None:
                    continue
            except BaseException:
                child.kill()
                child.wait(_TICK_S)
                raise
            why = child.how_it_ended(command[0]).reason
            wait = _FIRST_WAIT_S if time.monotonic() - start > _LONG_S else wait
            report(f"{why}; again in {wait:g} s")
            sleep(wait)
            wait = min(2 * wait, _LONG_S)


_FIRST_WAIT_S, _LONG_S, _TICK_S = 1.0, 60.0, 1.0


def _dying_with_us(command: Sequence[str]) -> list[str]:
    program = shutil.which(command[0])
    if program is None:
        raise UnavailableError(f"{command[0]} is not installed", "put it on PATH")
    return [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, program, *command[1:]]
