"""One damaged set-up stops none of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainrig.errors import DataError, UsageError
from trainrig.remote.setups import (
    Setup,
    all_setups,
    command_of,
    damaged_setups,
    setups_folder,
    unit_text,
    write_setup,
)

BAD = (b"[]", b"{}", b"\xff\xfe", b'{"name": "bad"}', b'{"name": 3, "command": "x"}', b"[" * 9999)


@pytest.mark.parametrize("content", BAD)
def test_one_bad_entry_stops_no_other(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write_setup(Setup(name="good", kind="forward", command=("ssh", "-N", "host")))
    bad = setups_folder() / "bad"
    bad.mkdir()
    (bad / "setup.json").write_bytes(content)
    assert [each["name"] for each in all_setups()] == ["good"]
    assert command_of("good") == ["ssh", "-N", "host"]
    assert damaged_setups() == [bad]
    with pytest.raises(DataError, match="damaged"):
        command_of("bad")


def test_a_unit_takes_one_line_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    hostile = Setup(name="x", kind="forward", command=("ssh", 'a "b" \\ %h $HOME'))
    assert "ExecStart=" in unit_text(hostile)
    assert '"a \\"b\\" \\\\ %%h $$HOME"' in unit_text(hostile)
    with pytest.raises(UsageError, match="cannot stand in a unit"):
        unit_text(Setup(name="x", kind="forward", command=("ssh", "a\nExecStartPre=/bin/sh")))
