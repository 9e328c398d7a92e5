"""Megatron's indexed data set: token ids in one file, where the documents lie in another.

    NAME.bin   the ids of all documents, one after another, no header
    NAME.idx   "MMIDIDX\\0\\0", version u64 = 1, dtype code u8, number of sequences u64,
               number of document marks u64, then the sequences' lengths (i32), their
               byte offsets in .bin (i64) and the document marks (i64: the first sequence
               of each document, and the number of sequences at the end)

Little endian throughout.  Written here: one sequence a document.  Read here: files of
any writer of that version whose sequences lie without gaps; images beside the text
(Megatron's multimodal variant) are not read.  Both files are mapped, not loaded; a
foreign or truncated one is refused when it is opened.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from trainrig.errors import DataError, reading

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_VERSION = 1
# Megatron's codes 6 and 7 are floating point: no token ids.
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_AGAIN = "prepare it again with trainrig data prepare, or copy both files anew"


_PIECE = 1 << 20
"""Ids that are written at once."""


def dtype_for(vocab_size: int) -> str:
    """Return smallest type that Megatron uses for these ids: two bytes below 65,500, else four."""
    return "<u2" if vocab_size < 65500 else "<i4"


class IndexedWriter:
    """Writes NAME.bin document by document and NAME.idx at the end; a context manager.

    It raises OSError as the disk does: who calls it knows what the user was doing.
    """

    def __init__(self, prefix: Path, dtype: str) -> None:
        self._prefix, self._dtype = prefix, np.dtype(dtype)
        self._lengths: list[int] = []
        self._bin: BinaryIO = _path(prefix, ".bin").open("wb")

    def add(self, tokens: NDArray[Any]) -> None:
        """Append one document.  ``tokens`` must fit the dtype, and their number 31 bits."""
        limits = np.iinfo(self._dtype)
        assert tokens.size < 2**31
        for start in range(0, tokens.size, _PIECE):  # a book that is mapped is not read whole
            piece = tokens[start : start + _PIECE]
            assert piece.min() >= 0 and piece.max() <= limits.max
            self._bin.write(piece.astype(self._dtype).data)
        self._lengths.append(tokens.size)

    def __enter__(self) -> IndexedWriter:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        self._bin.close()
        if failed is None:
            _path(self._prefix, ".idx").write_bytes(self._index())

    def _index(self) -> bytes:
        count = len(self._lengths)
        code = next(code for code, name in _DTYPES.items() if np.dtype(name) == self._dtype)
        lengths = np.array(self._lengths, dtype="<i4")
        ends = np.cumsum(lengths, dtype="<i8") * self._dtype.itemsize
        offsets = np.concatenate([np.zeros(1, "<i8"), ends])[:count]
        marks = np.arange(count + 1, dtype="<i8")
        header = _HEADER.pack(_MAGIC, _VERSION, code, count, count + 1)
        return header + lengths.tobytes() + offsets.tobytes() + marks.tobytes()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Indexed:
    """An opened data set."""

    prefix: Path
    tokens: NDArray[Any]
    """All ids in their order, mapped: shape (num_tokens,), an integer type."""
    starts: NDArray[np.int64]
    """Start of each document in ``tokens``, with the total number of tokens at the end."""

    @property
    def num_documents(self) -> int:
        """Documents, empty ones included."""
        return self.starts.size - 1

    def document(self, number: int) -> NDArray[Any]:
        """Return the ids of one document."""
        return self.tokens[self.starts[number] : self.starts[number + 1]]

    def max_token(self) -> int:
        """Return the largest id: reads the whole file.  Raises DataError for a negative one."""
        if int(self.tokens.min()) < 0:
            raise DataError(f"{_path(self.prefix, '.bin')} has negative token ids", _AGAIN)
        return int(self.tokens.max())


def check_vocabulary(name: Path | str, max_token: int, vocab_size: int) -> None:
    """Raise DataError where a model of ``vocab_size`` entries has no row for an id of the data."""
    if max_token >= vocab_size:
        raise DataError(
            f"{name} has token id {max_token}, beyond a vocabulary of {vocab_size}",
            f"give the model a vocabulary of at least {max_token + 1}, "
            "or prepare the text with the model's own tokenizer",
        )


def open_indexed(prefix: Path) -> Indexed:
    """Open NAME.bin and NAME.idx, given as NAME or as either of them.

    Raises DataError when one is absent, foreign, truncated or empty, or when they do
    not belong together.
    """
    prefix = prefix.with_suffix("") if prefix.suffix in (".bin", ".idx") else prefix
    index, path = _path(prefix, ".idx"), _path(prefix, ".bin")
    dtype, lengths, offsets, marks = _read_index(index)
    ends = np.cumsum(lengths, dtype=np.int64)
    if lengths.size and (
        lengths.min() < 0 or not np.array_equal(offsets, (ends - lengths) * dtype.itemsize)
    ):
        raise DataError(f"{index} is damaged: its sequences overlap or leave gaps", _AGAIN)
    size, wanted = _size(path), int(ends[-1]) * dtype.itemsize if ends.size else 0
    if size != wanted:
        problem = "truncated" if size < wanted else "longer than it should be"
        raise DataError(
            f"{path} is {problem}: {size} bytes, and {index.name} says {wanted}", _AGAIN
        )
    if not size:
        raise DataError(f"{path} is empty", "prepare some text with trainrig data prepare")
    starts = np.concatenate([np.zeros(1, np.int64), ends])[marks]
    return Indexed(prefix=prefix, tokens=_map(path, dtype), starts=starts)


def _read_index(path: Path) -> tuple[np.dtype[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the dtype of the ids; lengths, byte offsets, document marks."""
    size = _size(path)
    raw = _map(path, np.dtype("u1")) if size else np.zeros(0, "u1")
    if size < _HEADER.size:
        raise DataError(f"{path} is truncated: {size} bytes are no index", _AGAIN)
    magic, version, code, count, num_marks = _HEADER.unpack(raw[: _HEADER.size].tobytes())
    if magic != _MAGIC:
        raise DataError(f"{path} is no Megatron index", "name a pair NAME.bin and NAME.idx")
    if version != _VERSION or code not in _DTYPES:
        raise DataError(
            f"{path} has version {version} and data type {code}, which this program cannot read",
            _AGAIN,
        )
    wanted = _HEADER.size + 12 * count + 8 * num_marks
    if size != wanted:
        problem = "truncated" if size < wanted else "longer than it should be"
        raise DataError(f"{path} is {problem}: {size} bytes, and its header says {wanted}", _AGAIN)
    lengths = np.frombuffer(raw, "<i4", count, _HEADER.size)
    offsets = np.frombuffer(raw, "<i8", count, _HEADER.size + 4 * count)
    marks = np.frombuffer(raw, "<i8", num_marks, _HEADER.size + 12 * count)
    ordered = marks.size and marks[0] == 0 and marks[-1] == count and (np.diff(marks) >= 0).all()
    if not ordered:
        raise DataError(f"{path} is damaged: its documents are out of order", _AGAIN)
    return np.dtype(_DTYPES[code]), lengths, offsets, marks


def _path(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix)


def _size(path: Path) -> int:
    with reading(path, "make it with trainrig data prepare"):
        return path.stat().st_size


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        # as an ordinary array: each slice of a memmap costs several µs more
        return np.asarray(np.memmap(path, dtype=dtype, mode="r"))
    except (OSError, ValueError) as error:  # no permission, a folder; not a whole number of ids
        raise DataError(f"cannot read {path}: {error}", _AGAIN) from None
