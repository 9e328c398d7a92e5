"""A fault of our own ends with 70 and a file to send; no scheduler drains a node for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainrig import __main__
from trainrig.cli import main as command_line

MISSING = OSError(2, "no such file", "x.json")


@pytest.mark.parametrize("error", [TypeError("no"), MISSING, RecursionError()])
def test_our_own_fault_is_no_finding(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setattr(sys, "argv", ["trainrig", "inspect", "/home/somebody/x"])

    def crash(**_: object) -> None:
        raise error

    monkeypatch.setattr(command_line.cli, "main", crash)
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 70
    told = capsys.readouterr().err
    (file,) = (tmp_path / "trainrig").iterdir()
    assert str(file) in told and "Traceback" not in told
    text = file.read_text()
    assert type(error).__name__ in text and "Traceback" in text
    assert "somebody" not in text
    assert file.stat().st_mode & 0o077 == 0


def test_where_no_file_can_be_written_the_text_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    monkeypatch.setattr("tempfile.tempdir", str(blocked))

    def crash(**_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(command_line.cli, "main", crash)
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 70
    assert "Traceback" in capsys.readouterr().err
