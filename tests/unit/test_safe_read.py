"""Files of strangers: no links, no pipes, bounded bytes, and no TOML that takes minutes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainrig.errors import DataError, StoreError
from trainrig.safe_read import make_private, parse_toml, read_plain, read_settings
from trainrig.store import create_run, read_run, resume_run


def test_a_strangers_run_empties_no_file_of_ours(tmp_path: Path) -> None:
    own = tmp_path / "precious"
    own.write_text("no newline at the end")
    with create_run(tmp_path / "runs", "qualify", {}) as run:
        path = run.path
    (path / "records.jsonl").unlink(missing_ok=True)
    (path / "records.jsonl").symlink_to(own)
    with pytest.raises((StoreError, DataError)):
        resume_run(path)
    with pytest.raises(DataError, match="is a link"):
        read_run(path)
    assert own.read_text() == "no newline at the end"


def test_pipes_devices_and_folders_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_plain(tmp_path / "pipe") is None
    assert read_plain(Path("/dev/zero")) is None
    assert read_plain(tmp_path) is None
    assert read_plain(tmp_path / "none") is None
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(DataError, match="is a link"):
        read_plain(tmp_path / "link")
    (tmp_path / "large").write_bytes(bytes(11))
    assert read_plain(tmp_path / "large", 11) == bytes(11)
    with pytest.raises(DataError, match="at most 10"):
        read_plain(tmp_path / "large", 10)


def test_a_file_that_a_user_names_may_be_a_link_and_is_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a = 1")
    (tmp_path / "link").symlink_to("file")
    assert read_settings(tmp_path / "link") == b"a = 1"
    os.mkfifo(tmp_path / "pipe")
    for special in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(DataError, match="pipe or a device"):
            read_settings(special)
    with pytest.raises(IsADirectoryError):
        read_settings(tmp_path)
    with pytest.raises(DataError, match="at most 4"):
        read_settings(tmp_path / "file", 4)


def test_a_private_folder_is_its_owners_alone_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [p.stat().st_mode & 0o777 for p in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700] * 2


@pytest.mark.parametrize(
    "text", ["a." * 50_000 + "a = 1", "[" + "a." * 50_000 + "a]", "x = {" + "a . " * 40 + "a = 1}"]
)
def test_keys_that_are_too_deep_are_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="nested"):
        parse_toml(text.encode())


def test_bounds_are_reached_and_not_passed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a = 1")
    assert read_settings(tmp_path / "file", 5) == b"a = 1"
    assert parse_toml("a = 1\n" + "#" * 94, 100) == {"a": 1}  # 2 lines of 50 bytes
    with pytest.raises(ValueError, match="larger"):
        parse_toml("a = 1\n" + "#" * 95, 100)
    with pytest.raises(ValueError, match="larger"):
        parse_toml("a = 1\n\n\n", 100)
    deep = ".".join("a" * 33)
    assert parse_toml(f"{deep} = 1") and parse_toml(f"{deep} = 1.5")
    with pytest.raises(ValueError, match="nested"):
        parse_toml(f"{deep}.a = 1")
    numbers = ", ".join(["1.5"] * 40)
    assert len(parse_toml(f"x = [{numbers}]\n")["x"]) == 40


def test_what_settings_are_is_read() -> None:
    numbers = ", ".join(["1.5"] * 100)
    text = f"a.b.c = 1\nx = [{numbers}]\ns = 'a sentence. Another one. ' \n"
    assert parse_toml(text.encode())["a"] == {"b": {"c": 1}}
    with pytest.raises(ValueError, match="larger"):
        parse_toml(b"a = 1\n" * 30_000)
