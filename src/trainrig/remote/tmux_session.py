"""A job in a tmux session of its own: on the user's usual server, where ``tmux ls`` shows it.

The command runs in the session's only pane, on a terminal that nobody closes; what it prints goes
to the job's log, too (pipe-pane).  tmux's server has the environment of whoever began it, so the
job's own comes from a file in its folder (mode 600, deleted as it is read).
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from trainrig.errors import UnavailableError
from trainrig.process.programs import (
    await_begun,
    last_line,
    run_program,
    started_at,
    with_exit_code,
)

_PATIENCE_S = 20.0
# Waits until what it prints is written to the log, then becomes the command in its environment.
_BEGIN = """
import os, sys, time
folder, command = sys.argv[1], sys.argv[2:]
until = time.monotonic() + 20.0
while not os.path.exists(folder + "/go") and time.monotonic() < until:
    time.sleep(0.02)
with open(folder + "/environment", "rb") as file:
    words = file.read().split(b"\\0")
os.unlink(folder + "/environment")
found = dict(word.split(b"=", 1) for word in words if word)
found |= {key: os.environb[key] for key in (b"TERM", b"TMUX", b"TMUX_PANE") if key in os.environb}
os.execvpe(command[0], command, found)
"""


def require_tmux() -> None:
    """Raise UnavailableError where tmux is not installed."""
    if shutil.which("tmux") is None:
        raise UnavailableError("tmux is not installed", "install tmux, or --detach without it")


def start_in_tmux(name: str, command: Sequence[str], log: Path, code: Path) -> int:
    """Start a command in a new session; the process id of what keeps it.

    ``code``: a file that gets the exit code.  Raises UnavailableError where tmux refuses.
    """
    folder = log.parent
    file = os.open(folder / "environment", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "wb") as written:
        written.write(b"\0".join(key + b"=" + value for key, value in os.environb.items()))
    log.touch(0o600)
    start = (sys.executable, "-I", "-S", "-c", _BEGIN, str(folder), *with_exit_code(command, code))
    size = ("-x", "160", "-y", "50")
    _tmux("new-session", "-d", "-s", name, *size, "-c", os.getcwd(), "--", *start)
    try:
        _tmux("pipe-pane", "-t", f"={name}:", f"cat >> {shlex.quote(str(log))}")
        pid = int(_tmux("display-message", "-p", "-t", f"={name}:", "#{pane_pid}"))
    except BaseException:
        _tmux("kill-session", "-t", f"={name}")
        raise
    (folder / "go").touch()
    await_begun(code, lambda: started_at(pid) is not None)
    (folder / "go").unlink()
    return pid


def _tmux(*words: str) -> str:
    done = run_program(["tmux", *words], _PATIENCE_S)
    if done.code != 0:
        raise UnavailableError(f"tmux: {last_line(done.stderr)}", "--detach works without tmux")
    return done.stdout.decode("utf-8", "replace").strip()
