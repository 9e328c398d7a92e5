"""What is read of folders and files, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest

from small_corpus import write
from trainrig.data.corpus import Skipped, TextDocument, open_corpus, standard_library, survey
from trainrig.errors import DataError


def read(*paths: Path) -> list[TextDocument | Skipped]:
    return list(open_corpus(paths).read())


def test_folders_files_and_json_lines_are_read_in_order(tmp_path: Path) -> None:
    write(tmp_path / "b" / "two.txt", "2")
    write(tmp_path / "b" / "a" / "three.md", "3")
    write(tmp_path / "b" / ".git" / "config", "no")
    write(tmp_path / "b" / "__pycache__" / "x.txt", "no")
    write(tmp_path / "z.jsonl", '{"text": "4", "id": 1}\n\n{"text": "5"}')
    one = write(tmp_path / "one.txt", "1")
    found = read(one, tmp_path / "b", tmp_path / "z.jsonl", one)
    assert [item.text for item in found if isinstance(item, TextDocument)] == [
        "1",
        "2",
        "3",
        "4",
        "5",
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b" \n\t\n", "empty"),
        (b"GIF89a\0\1", "binary: it has NUL bytes"),
        ("Größe, Maß und Äußeres".encode("latin-1"), "not UTF-8: 22.7% of it"),
        ("text".encode("utf-16"), "binary"),
    ],
)
def test_what_is_no_text_is_skipped_with_a_reason(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = write(tmp_path / "x", content)
    (item,) = read(path)
    assert isinstance(item, Skipped)
    assert item.reason.startswith(reason)
    with pytest.raises(DataError, match="no text in 1 file ") as caught:
        survey(open_corpus((path,)))
    assert reason in caught.value.message


def test_json_lines_may_be_empty_too(tmp_path: Path) -> None:
    assert [item.reason for item in read(write(tmp_path / "x.jsonl", "\n")) if
            isinstance(item, Skipped)] == ["empty"]  # fmt: skip
    lines = write(tmp_path / "y.jsonl", '{"text": ""}\n{"text": "a"}\n')
    assert isinstance(read(lines)[0], Skipped)


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ("{", "x.jsonl:1 is not JSON"),
        ('{"text": "a"}\n[]', 'x.jsonl:2 has no field "text"'),
        ('{"text": 1}', 'x.jsonl:1 has no field "text"'),
        (b'{"text": "\xff"}', "x.jsonl:1 is not JSON"),
        ("[" * 100_000, "x.jsonl:1 is not JSON"),
    ],
)
def test_a_line_that_is_no_document_is_refused(
    tmp_path: Path, content: str | bytes, seen: str
) -> None:
    with pytest.raises(DataError) as caught:
        read(write(tmp_path / "x.jsonl", content))
    assert seen in caught.value.message


def test_a_few_broken_characters_are_replaced_and_counted(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + b"plain words " * 30 + b"\xff " + "\ufffd".encode()
    (item,) = read(write(tmp_path / "x", text))
    assert isinstance(item, TextDocument)
    assert item.num_replaced == 1
    assert item.text.count("\ufffd") == 2
    assert item.text.startswith("plain")
    lines = write(tmp_path / "x.jsonl", json.dumps({"text": "word " * 40 + "\ud800"}))
    (item,) = read(lines)
    assert isinstance(item, TextDocument)
    assert (item.num_replaced, item.text[-1]) == (1, "\ufffd")


def test_pipes_and_dangling_links_in_a_folder_are_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    assert [item.reason for item in read(tmp_path) if isinstance(item, Skipped)] == [
        "not a file"
    ] * 2
    for name in ("pipe", "link", "absent"):
        with pytest.raises(DataError, match="no file or folder"):
            open_corpus((tmp_path / name,))


def test_the_hash_is_the_texts_not_the_names(tmp_path: Path) -> None:
    first = write(tmp_path / "a.txt", "one"), write(tmp_path / "b.txt", "two")
    second = write(tmp_path / "c.jsonl", '{"text": "one"}\n{"text": "two"}\n')
    found = survey(open_corpus(first))
    by_hand = (3).to_bytes(8, "little") + b"one" + (3).to_bytes(8, "little") + b"two"
    assert found.sha256 == hashlib.sha256(by_hand).hexdigest()
    assert survey(open_corpus((second,))).sha256 == found.sha256
    assert survey(open_corpus(first[::-1])).sha256 != found.sha256
    assert survey(open_corpus((write(tmp_path / "d", "onetwo"),))).sha256 != found.sha256


def test_the_standard_library_is_there_without_its_tests() -> None:
    corpus = standard_library()
    assert len(corpus.files) > 400
    assert {"argparse.py", "decoder.py", "__init__.py"} <= {path.name for path in corpus.files}
    parts = {part for path in corpus.files for part in path.parts[-3:]}
    assert not parts & {"test", "tests", "idle_test", "site-packages", "__pycache__"}
    assert not any(path.name.startswith("_sysconfigdata") for path in corpus.files)
    assert sum(path.stat().st_size for path in corpus.files) > 8e6
    assert open_corpus(()).files == corpus.files
    assert corpus.name == f"python3.{sys.version_info.minor}"
