"""Verbs that read settings or runs refuse pipes and devices in one line, instead of waiting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from trainrig.cli.main import cli
from trainrig.errors import TrainrigError

VERBS = (
    ("train", "FILE"),
    ("tune", "FILE"),
    ("predict", "--cases", "FILE"),
    ("predict", "--model", "gpt2", "--on", "FILE"),
    ("build", "check", "FILE"),
    ("burn", "--golden", "FILE"),
    ("report", "FILE"),
    ("compare", "FILE", "FILE"),
    ("bundle", "FILE"),
    ("qualify", "--baseline", "FILE"),
    ("qualify", "--resume", "FILE"),
    ("export", "FILE"),
)


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_special_file_is_refused_in_one_line(
    words: tuple[str, ...], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "pipe.toml")
    named = "pipe.toml" if kind == "pipe" else "/dev/zero"
    given = [named if word == "FILE" else word for word in words]
    result = CliRunner().invoke(cli, given, standalone_mode=False)
    error = result.exception
    assert isinstance(error, TrainrigError), (error, result.output)
    assert error.exit_code == 2
    assert "\n" not in error.message
