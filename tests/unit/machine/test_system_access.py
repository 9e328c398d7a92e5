"""The real host: reading, listing and running, with every failure a reason."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trainrig.machine.snapshot import Missing
from trainrig.machine.system_access import ThisMachine


def reason(value: object) -> str:
    assert isinstance(value, Missing), value
    return value.reason


def python(program: str, timeout_s: float = 20.0) -> str | Missing:
    return ThisMachine().run(sys.executable, "-S", "-c", program, timeout_s=timeout_s)


def test_reads_and_lists(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b" \xff text \n")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    host = ThisMachine()
    assert host.read(str(tmp_path / "b")) == "\ufffd text"
    assert host.names(str(tmp_path)) == ("a", "b")
    assert host.resolve(str(tmp_path / "a")) == os.path.realpath(tmp_path / "b")


def test_what_cannot_be_read_has_a_reason(tmp_path: Path) -> None:
    host = ThisMachine()
    assert "no such file" in reason(host.read(str(tmp_path / "none")))
    assert "directory" in reason(host.read(str(tmp_path)))
    assert "not a path" in reason(host.read("a\0b"))
    assert "no such file" in reason(host.names(str(tmp_path / "none")))
    assert "no such file" in reason(host.resolve(str(tmp_path / "none")))
    assert "no such file" in reason(host.capacity_bytes(str(tmp_path / "none")))


def test_files_of_the_kernel_settings_are_readable() -> None:
    # They refuse a read into a large buffer, which a plain file does not.
    found = ThisMachine().read("/proc/sys/kernel/osrelease")
    assert found == os.uname().release


def test_a_command_that_works() -> None:
    assert python("print('fine')") == "fine\n"


def test_a_command_that_fails_says_its_last_line() -> None:
    program = "import sys; sys.stderr.write('first\\nlast words\\n'); sys.exit(3)"
    assert reason(python(program)).endswith("last words")
    assert reason(python("import sys; sys.exit(3)")).endswith("exit code 3")


def test_a_command_that_is_killed_says_so() -> None:
    assert "signal 9" in reason(python("import os; os.kill(os.getpid(), 9)"))


def test_a_command_that_hangs_is_cut() -> None:
    assert "did not answer in 0.3 s" in reason(python("import signal; signal.pause()", 0.3))


def test_a_command_that_holds_its_pipe_open_through_a_child_is_cut() -> None:
    program = "import os, signal; os.fork() or (signal.alarm(5), signal.pause()); os._exit(0)"
    assert "did not answer" in reason(python(program, 0.3))


def test_an_absent_command_is_no_error() -> None:
    assert ThisMachine().run("no-such-program-here") == Missing(
        "no-such-program-here is not installed"
    )
