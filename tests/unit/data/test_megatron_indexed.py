"""Megatron's .bin/.idx: what is written is read back, by megatron-core too; damage is refused."""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.data.megatron_indexed import (
    Indexed,
    IndexedWriter,
    check_vocabulary,
    dtype_for,
    open_indexed,
)
from trainrig.errors import DataError

DOCUMENTS = [[5, 6, 7], [], [65535, 0], [9]]


def write(prefix: Path, documents: list[list[int]], dtype: str = "<u2") -> Path:
    with IndexedWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add(np.array(document, dtype=np.int64))
    return prefix


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return write(tmp_path / "some.text", DOCUMENTS)


def documents(indexed: Indexed) -> list[list[int]]:
    return [indexed.document(number).tolist() for number in range(indexed.num_documents)]


@given(
    st.lists(st.lists(st.integers(0, 65535), max_size=20), max_size=20).filter(any),
    st.sampled_from(["<u2", "<i4"]),
)
def test_what_is_written_is_read_back(wanted: list[list[int]], dtype: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        indexed = open_indexed(write(Path(folder, "x"), wanted, dtype))
        assert documents(indexed) == wanted
        assert indexed.tokens.dtype == np.dtype(dtype)
        assert indexed.max_token() == max(map(max, filter(None, wanted)))


def test_the_index_is_laid_out_as_megatron_reads_it(prefix: Path) -> None:
    """By the format's description, not by our own reader."""
    raw = prefix.with_name("some.text.idx").read_bytes()
    assert raw[:9] == b"MMIDIDX\0\0"
    assert struct.unpack_from("<QBQQ", raw, 9) == (1, 8, 4, 5)
    assert struct.unpack_from("<4i4q5q", raw, 34) == (3, 0, 2, 1, 0, 6, 6, 10, 0, 1, 2, 3, 4)
    assert len(raw) == 34 + 4 * 4 + 8 * 4 + 8 * 5
    stored = prefix.with_name("some.text.bin").read_bytes()
    assert struct.unpack("<6H", stored) == (5, 6, 7, 65535, 0, 9)


READER = """
import json, sys
from megatron.core.datasets.indexed_dataset import IndexedDataset
data = IndexedDataset(sys.argv[1])
print(json.dumps([[data[i].tolist() for i in range(len(data))], data.document_indices.tolist()]))
"""


@pytest.mark.acceptance
def test_megatron_core_reads_it(prefix: Path) -> None:
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("needs megatron-core")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READER, str(prefix)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [DOCUMENTS, [0, 1, 2, 3, 4]]


def test_documents_of_several_sequences_are_read(prefix: Path) -> None:
    """As other writers make them: two documents, of three sequences and of one."""
    index = prefix.with_name("some.text.idx")
    raw = index.read_bytes()
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 4, 3)
    index.write_bytes(header + raw[34 : 34 + 48] + struct.pack("<3q", 0, 3, 4))
    assert documents(open_indexed(prefix)) == [[5, 6, 7, 65535, 0], [9]]


@pytest.mark.parametrize("given", ["some.text", "some.text.bin", "some.text.idx"])
def test_it_opens_by_any_of_its_names(prefix: Path, given: str) -> None:
    assert open_indexed(prefix.with_name(given)).num_documents == 4


def cut(raw: bytes) -> bytes:
    return raw[:-1]


def longer(raw: bytes) -> bytes:
    return raw + b"\0\0"


def empty(raw: bytes) -> bytes:
    return b""


def external(raw: bytes) -> bytes:
    return b"\x89PNG" + raw[4:]


def newer(raw: bytes) -> bytes:
    return raw[:9] + struct.pack("<Q", 2) + raw[17:]


def floats(raw: bytes) -> bytes:
    return raw[:17] + b"\7" + raw[18:]


def overlapping(raw: bytes) -> bytes:
    return raw[:58] + struct.pack("<q", 4) + raw[66:]


def negative(raw: bytes) -> bytes:
    return raw[:34] + struct.pack("<i", -3) + raw[38:]


def unordered(raw: bytes) -> bytes:
    return raw[:-16] + struct.pack("<2q", 4, 3)


@pytest.mark.parametrize(
    ("suffix", "damage", "seen"),
    [
        (".bin", cut, "truncated: 11 bytes, and some.text.idx says 12"),
        (".bin", longer, "longer than it should be: 14 bytes"),
        (".bin", empty, "truncated: 0 bytes"),
        (".idx", cut, "truncated: 121 bytes, and its header says 122"),
        (".idx", longer, "longer than it should be"),
        (".idx", empty, "truncated: 0 bytes are no index"),
        (".idx", external, "is no Megatron index"),
        (".idx", newer, "version 2 and data type 8"),
        (".idx", floats, "version 1 and data type 7"),
        (".idx", overlapping, "its sequences overlap or leave gaps"),
        (".idx", negative, "its sequences overlap or leave gaps"),
        (".idx", unordered, "its documents are out of order"),
    ],
)
def test_damage_is_refused_in_one_line(
    prefix: Path, suffix: str, damage: Callable[[bytes], bytes], seen: str
) -> None:
    path = prefix.with_name(prefix.name + suffix)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        open_indexed(prefix)
    assert seen in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "x"), DOCUMENTS)
        Path(folder, "x.idx").write_bytes(raw)
        with pytest.raises(DataError):
            open_indexed(Path(folder, "x"))


@given(st.integers(9, 121), st.integers(0, 255))
def test_no_changed_byte_crashes_the_reader(place: int, value: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder, "x.idx")
        write(Path(folder, "x"), DOCUMENTS)
        raw = bytearray(index.read_bytes())
        raw[place] = value
        index.write_bytes(bytes(raw))
        try:
            indexed = open_indexed(Path(folder, "x"))
        except DataError:
            return
        assert sum(map(len, documents(indexed))) == indexed.tokens.size


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_an_absent_file_is_named(prefix: Path, suffix: str) -> None:
    path = prefix.with_name(prefix.name + suffix)
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        open_indexed(prefix)
    path.mkdir()
    with pytest.raises(DataError):
        open_indexed(prefix)


def test_no_tokens_are_no_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is empty"):
        open_indexed(write(tmp_path / "x", [[], []]))


def test_a_smaller_vocabulary_than_the_ids_is_refused() -> None:
    check_vocabulary("x", 8191, 8192)
    with pytest.raises(DataError, match="token id 8192, beyond a vocabulary of 8192") as caught:
        check_vocabulary("x", 8192, 8192)
    assert caught.value.hint is not None
    assert "8193" in caught.value.hint


def test_negative_ids_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "x", [[1, 2]], "<i4")
    (tmp_path / "x.bin").write_bytes(struct.pack("<2i", 1, -2))
    with pytest.raises(DataError, match="negative"):
        open_indexed(tmp_path / "x").max_token()


def test_the_type_is_the_one_that_megatron_chooses() -> None:
    assert [dtype_for(size) for size in (8192, 65499, 65500, 250_000)] == [
        "<u2",
        "<u2",
        "<i4",
        "<i4",
    ]


def test_a_failed_write_leaves_no_index(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), IndexedWriter(tmp_path / "x", "<u2"):
        raise KeyboardInterrupt
    assert not (tmp_path / "x.idx").exists()
