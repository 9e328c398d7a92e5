"""sshd's files as sshd_config(5) reads them."""

from __future__ import annotations

import pytest

from machine_fakes import FakeHost
from trainrig.remote.sshd_files import FOLDER, sshd_keywords

A, B, HIDDEN = (f"{FOLDER}/x.d/{name}" for name in ("1-a.conf", "2-b.conf", ".3-c.conf"))


def keywords(text: str, **files: str) -> dict[str, str]:
    named = {"a": A, "b": B, "hidden": HIDDEN, "main": f"{FOLDER}/sshd_config"}
    return sshd_keywords(FakeHost({named[name]: content for name, content in files.items()}), text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# Port 1\n\n   # Port 2\nPort 3", {"port": "3"}),
        ("Port=22", {"port": "22"}),
        ("Port\t=\t22  # the usual one", {"port": "22"}),
        ('Banner "a  b"', {"banner": "a  b"}),
        ("AuthorizedKeysFile .ssh/a .ssh/b", {"authorizedkeysfile": ".ssh/a .ssh/b"}),
        ('Banner "open', {"banner": '"open'}),
        ('Banner "open # x', {"banner": '"open'}),
        ("Port 1\nPort 2", {"port": "1"}),
        ("Match User a\nPort 1", {}),
        ("Match user a\nPort 1\nMatch ALL\nPort 2", {"port": "2"}),
        ("Match all user a\nPort 1", {}),
    ],
)
def test_a_line_is_read_as_sshd_reads_it(text: str, expected: dict[str, str]) -> None:
    assert keywords(text) == expected


def test_included_files_come_where_they_are_named_in_order() -> None:
    files = {"a": "Port 1", "b": "Port 2\nBanner b", "hidden": "Banner hidden"}
    assert keywords("Include x.d/*.conf\nPort 3", **files) == {"port": "1", "banner": "b"}
    assert keywords("Port 3\nInclude x.d/*.conf", **files) == {"port": "3", "banner": "b"}
    assert keywords(f"Include {B} {A}", **files) == {"port": "2", "banner": "b"}
    assert keywords("Include x.d/.*.conf", **files) == {"banner": "hidden"}
    assert keywords("Include ?.d/[2-9]*.conf", **files) == {"port": "2", "banner": "b"}
    assert keywords("Include none.d/*.conf\nPort 3", **files) == {"port": "3"}
    assert keywords("Include /*/ssh/x.d/1-a.conf", **files) == {"port": "1"}


def test_a_match_block_ends_with_its_file_and_includes_nothing_for_everybody() -> None:
    assert keywords("Include x.d/*.conf\nBanner x", a="Match User a\nPort 1") == {"banner": "x"}
    assert keywords("Match User a\nInclude x.d/*.conf", a="Port 1") == {}


def test_files_that_include_themselves_come_to_an_end() -> None:
    files = {"main": "Include sshd_config\nPort 1"}
    assert keywords("Include sshd_config", **files) == {"port": "1"}


def test_a_chain_of_sixteen_files_is_read_and_no_longer_one() -> None:
    chain = {f"{FOLDER}/{n}": f"Include {n + 1}\nBanner b{n}" for n in range(1, 20)}
    chain |= {f"{FOLDER}/16": "Include 17\nPort 16", f"{FOLDER}/17": "Banner b17\nUsePAM yes"}
    found = sshd_keywords(FakeHost(chain), "Include 1")
    assert found["port"] == "16"
    assert "usepam" not in found
