"""Programs that are run for what they print, and commands that go on without us.

Each is started in a session of its own, so that Ctrl-C in the terminal reaches this process alone,
and never waits for a program that a driver holds: it is killed and left to init.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainrig.process.child import DIE_WITH_PARENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Exit code and output of a program that ended."""

    code: int | None
    """Exit code, below zero for a signal; None if it did not end in time."""
    stdout: bytes = b""
    stderr: bytes = b""


def run_program(
    command: Sequence[str],
    timeout: float,
    *,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    die_with_us: bool = False,
) -> Finished:
    """Run a program to its end or for ``timeout`` seconds.  OSError if it cannot be started."""
    guard = (sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT) if die_with_us else ()
    process = subprocess.Popen(
        [*guard, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        pass_fds=pass_fds,
        start_new_session=not die_with_us,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException as error:
        # No wait: a process stuck in a driver does not die before its call returns.
        process.kill()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            process.returncode = -9  # without one Popen would warn when it is collected
        if isinstance(error, subprocess.TimeoutExpired):
            return Finished(code=None)
        raise
    return Finished(code=process.returncode, stdout=stdout, stderr=stderr)


def start_detached(command: Sequence[str], log: Path, code: Path | None = None) -> int:
    """Start a command that no closing terminal reaches; the process id of its session.

    ``code``: a file that gets the exit code when it has ended, see `with_exit_code`.
    """
    keeper = with_exit_code((), code) if code is not None else ()
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*keeper, *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ,
        )
    if code is not None:
        await_begun(code, lambda: process.poll() is None)
    process.returncode = 0  # nobody waits for it: without one Popen would warn when collected
    return process.pid


_BEGIN_S = 5.0
"""A shell begins within some milliseconds, unless the machine is at its end."""


def with_exit_code(command: Sequence[str], code: Path) -> tuple[str, ...]:
    """Return a command under a shell that writes its exit code to a file, 128 + N after signal N.

    After the code stands how often the kernel has killed for want of memory since boot.
    """
    return ("sh", "-c", _WRITE_CODE, str(code), *command)


def await_begun(code: Path, is_alive: Callable[[], bool]) -> None:
    """Wait until a kept command is there: a signal before the shell's trap would be lost."""
    begun, until = code.with_name(f"{code.name}.begun"), time.monotonic() + _BEGIN_S
    while not begun.exists() and is_alive() and time.monotonic() < until:
        time.sleep(0.005)
    begun.unlink(missing_ok=True)


# A shell that waits, and outlives the signals that are meant for the command beside it.  Ctrl-C, on
# a terminal that it may have, is ignored by what a shell has in the background: it is sent as TERM.
_WRITE_CODE = (
    "trap : HUP TERM; trap 'kill -TERM \"$child\" 2>/dev/null' INT; exec 3<&0\n"
    '"$@" <&3 3<&- & child=$!; exec 3<&-; : >"$0.begun"\n'
    'while :; do wait "$child"; code=$?; kill -0 "$child" 2>/dev/null || break; done\n'
    'memory=$(sed -n "s/^oom_kill //p" /proc/vmstat 2>/dev/null)\n'
    'printf "%s %s\\n" "$code" "$memory" >"$0.new" && mv "$0.new" "$0"; exit "$code"'
)


def started_at(pid: int) -> int | None:
    """When a process was started, in the kernel's ticks since boot; None if there is none.

    Numbers of processes are used again: the two together name one process.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def signal_session(pid: int, number: int) -> None:
    """Send a signal to a session that `start_detached` began; it may be over already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def last_line(text: bytes | Path, nothing: str = "it printed nothing") -> str:
    """Return the last line with words in what a program printed, or in a log file."""
    try:
        data = text[-4096:] if isinstance(text, bytes) else text.read_bytes()[-4096:]
    except OSError:
        data = b""
    lines = (line.strip() for line in data.decode(errors="replace").splitlines())
    spoken = [line for line in lines if line and not line.startswith(_NOISE)]
    return spoken[-1][:200] if spoken else nothing


_NOISE = "USDT:"
"""Beginning of the lines that torch's profiler writes when it starts and stops."""
