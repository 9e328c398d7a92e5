"""Documents from paths: text files, folders, JSON lines, tables; or the standard library.

A folder gives all of its files but hidden ones and Python's caches, in the order of
their paths; links to folders are not followed.  A ``.jsonl`` or ``.ndjson`` file gives
one document a line, from its field "text" (or another: ``text_key``), a ``.parquet`` or
``.arrow`` file (what Hugging Face's `datasets` saves) one a row, from that column.
Without paths, the corpus is the running Python's standard library (PSF licence)
without its tests, which is on every machine and needs no network; it differs
by Python version, hence the hash.

A corpus whose files all say of which part they are (train, valid or validation or dev, test, in
their names or in folders', as wikitext and `datasets` have them) is split as they say: the second
part is held out, a third is left out.  Where there is no second, the third is held out.  Of several
folders that are named, each's own name says it where nothing in it does.

What is no text is passed over with a reason: empty files, and binary ones (a NUL byte,
or more than 1 % of the characters are not UTF-8).  Below that limit, what cannot be
decoded becomes U+FFFD and is counted.

The hash is SHA-256 over each document's length in bytes (u64, little endian) and its
UTF-8 text, with a byte 1 behind those that files hold out: it depends on the text, its order and
such a split, not on names or places.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from trainrig.errors import DataError, UnavailableError, reading

JSON_LINES = (".jsonl", ".ndjson")
TABLES = (".parquet", ".arrow")
_OF_DATASETS = ("dataset_info.json", "state.json", "dataset_dict.json")
"""Files that `datasets` writes beside its tables."""
MAX_REPLACED = 0.01
# Tests repeat themselves; what was built or installed here is not the library's.
_NOT_LIBRARY = re.compile(
    r"tests?|idle_test|config-.*|(site|dist)-packages|__pycache__|_sysconfigdata.*|sitecustomize\.py"
)
_PARTS = {
    "train": "train",
    "training": "train",
    **dict.fromkeys(("valid", "validation", "val", "dev", "heldout"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Words of file names and folders, and the part that they mean."""
_UNWANTED = re.compile(r"\..*|__pycache__")
_SURROGATES = re.compile("[\ud800-\udfff]")
_TEXT_HINT = 'name text files, folders of them, or JSON lines with a field "text"'


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDocument:
    """One text."""

    text: str
    num_replaced: int = 0
    """Characters that could not be decoded."""
    heldout: bool | None = None
    """True if its file's name says it is held out; None if no file says."""

    def add_to(self, digest: Any) -> None:
        """Add the document to a corpus' hash."""
        data = self.data
        digest.update(len(data).to_bytes(8, "little") + data)
        if self.heldout:
            digest.update(b"\1")

    @property
    def data(self) -> bytes:
        """Return the text in UTF-8."""
        return self.text.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Item that is not text, with the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Files in their order; read anew at each pass, since a corpus need not fit the memory."""

    name: str
    """The corpus in a file name: ``python3.11`` or ``text``."""
    files: tuple[Path, ...]
    text_key: str = "text"
    """The field of JSON lines and the column of tables that hold the text."""
    heldout: frozenset[Path] = frozenset()
    """Files that are held out, and no others; empty: files do not say."""
    left_out: tuple[Path, ...] = ()
    """Files of a third part, which is neither trained on nor held out."""
    unsaid: tuple[Path, ...] = ()
    """Files that say no part, for which the others' parts hold nothing out."""

    def read(self) -> Iterator[TextDocument | Skipped]:
        """Yield all documents, and what was passed over.  Raises DataError for unreadable files."""
        for path in self.files:
            with reading(path, _TEXT_HINT):
                for item in _read_file(path, self.text_key):
                    if self.heldout and isinstance(item, TextDocument):
                        item = replace(item, heldout=path in self.heldout)  # noqa: PLW2901
                    yield item

    def documents(self) -> Iterator[TextDocument]:
        """Return the documents alone."""
        return (item for item in self.read() if isinstance(item, TextDocument))


def open_corpus(paths: tuple[Path, ...], text_key: str = "text") -> Corpus:
    """Return the files that ``paths`` name, each once; the standard library where there are none.

    Raises DataError for a path that is neither a file nor a folder.
    """
    if not paths:
        return standard_library()
    path_by_file: dict[Path, Path] = {}
    split_by_file: dict[Path, str | None] = {}
    for path in paths:
        if not path.is_dir() and not path.is_file():
            raise DataError(f"no file or folder {path}", _TEXT_HINT)
        for file in _walk(path, _UNWANTED) if path.is_dir() else [path]:
            path_by_file.setdefault(file.resolve(), file)
            split = _part_of(file.relative_to(path) if path.is_dir() else Path(file.name))
            if split is None and len(paths) > 1 and path.is_dir():
                split = _part_of(Path(path.resolve().name))
            split_by_file.setdefault(file, split)
    files = [
        file
        for file in path_by_file.values()
        if file.name not in _OF_DATASETS or not _holds_tables(file.parent)
    ]
    part_of = {file: split_by_file[file] for file in files}
    heldout, left_out = _given_split(part_of)
    is_mixed = {"train"} < set(part_of.values()) - {None} and None in part_of.values()
    return Corpus(
        name="text",
        files=tuple(file for file in files if file not in left_out),
        text_key=text_key,
        heldout=heldout,
        left_out=tuple(file for file in files if file in left_out),
        unsaid=tuple(file for file in files if part_of[file] is None) if is_mixed else (),
    )


def _part_of(path: Path) -> str | None:
    """Return train, validation or test if the names say exactly one of them."""
    words = re.split("[^a-z]+", str(path).lower())
    splits = {_PARTS[word] for word in words if word in _PARTS}
    return splits.pop() if len(splits) == 1 else None


def _given_split(
    split_by_file: Mapping[Path, str | None],
) -> tuple[frozenset[Path], frozenset[Path]]:
    """Return held-out and remaining files; none unless every file's name says its split.

    Something must be trained on and something held out.
    """
    files_of = {
        split: frozenset(file for file, file_split in split_by_file.items() if file_split == split)
        for split in ("train", "validation", "test")
    }
    if None in split_by_file.values() or not files_of["train"]:
        return frozenset(), frozenset()
    return (
        (files_of["validation"], files_of["test"])
        if files_of["validation"]
        else (files_of["test"], frozenset())
    )


def _holds_tables(folder: Path) -> bool:
    return (folder / _OF_DATASETS[2]).is_file() or any(folder.glob("*.arrow"))


def standard_library() -> Corpus:
    """Return the running Python's modules, without tests and what belongs to this machine."""
    files = [
        p for p in _walk(Path(sysconfig.get_path("stdlib")), _NOT_LIBRARY) if p.suffix == ".py"
    ]
    if not files:
        raise DataError("this Python has no sources of its standard library", _TEXT_HINT)
    major, minor, _ = platform.python_version_tuple()
    return Corpus(name=f"python{major}.{minor}", files=tuple(files))


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Counts from a first pass over a corpus."""

    sha256: str
    num_documents: int
    num_bytes: int
    num_replaced: int
    heldout_bytes: int
    """Bytes of the documents that `is_heldout` sets aside."""
    skipped: tuple[Skipped, ...]


def survey(corpus: Corpus) -> Survey:
    """Read everything once.  Raises DataError when there is no text in it."""
    digest = hashlib.sha256()
    documents = num_bytes = replaced = heldout = 0
    skipped = []
    for item in corpus.read():
        if isinstance(item, Skipped):
            skipped.append(item)
            continue
        data = item.data
        item.add_to(digest)
        documents += 1
        num_bytes += len(data)
        replaced += item.num_replaced
        is_held_out = is_heldout(data) if item.heldout is None else item.heldout
        heldout += len(data) if is_held_out else 0
    if not documents:
        count = len(corpus.files)
        described = f"{count} file{'' if count == 1 else 's'}"
        example = f" ({skipped[0].path}: {skipped[0].reason})" if skipped else ""
        raise DataError(f"no text in {described}{example}", _TEXT_HINT)
    return Survey(
        sha256=digest.hexdigest(),
        num_documents=documents,
        num_bytes=num_bytes,
        num_replaced=replaced,
        heldout_bytes=heldout,
        skipped=tuple(skipped),
    )


def chance(data: bytes | memoryview) -> float:
    """Return a number in [0, 1) that depends on the document alone, so equal ones fall together."""
    return int.from_bytes(hashlib.sha256(data).digest()[:6], "little") / 2**48


def is_heldout(data: bytes | memoryview) -> bool:
    """Return True for one document in twenty, chosen by its content's hash."""
    return chance(data) < 0.05


def _walk(folder: Path, unwanted: re.Pattern[str]) -> Iterator[Path]:
    """Yield the files below ``folder`` in the order of their paths, without unwanted names."""

    def refuse(error: OSError) -> None:
        raise DataError(f"cannot read {error.filename}: {error.strerror}", _TEXT_HINT)

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not unwanted.fullmatch(name))
        yield from (Path(parent, name) for name in sorted(names) if not unwanted.fullmatch(name))


def _read_file(path: Path, text_key: str) -> Iterator[TextDocument | Skipped]:
    if not path.is_file():  # a pipe in a folder would keep us waiting; a link may dangle
        yield Skipped(path=str(path), reason="not a file")
    elif path.suffix in JSON_LINES:
        with path.open("rb") as file:
            yield from _read_lines(path, file, text_key)
    elif path.suffix in TABLES:
        yield from _read_table(path, text_key)
    elif b"\0" in (raw := path.read_bytes()):
        yield Skipped(path=str(path), reason="binary: it has NUL bytes")
    else:
        text = raw.decode("utf-8-sig", "replace")
        yield _judge(str(path), text, text.count("\ufffd") - raw.count("\ufffd".encode()))


def _read_table(path: Path, text_key: str) -> Iterator[TextDocument | Skipped]:
    """Yield one document per row, read in batches.  DataError names the file and the row."""
    if find_spec("pyarrow") is None:
        raise UnavailableError(f"{path}: pyarrow is not installed", "pip install pyarrow")
    import pyarrow

    number = 0
    try:
        for batch in _batches(path):
            if text_key not in batch.schema.names:
                listed = ", ".join(batch.schema.names)
                raise DataError(f'{path} has no column "{text_key}"', f"--text-key, of: {listed}")
            for text in batch.column(text_key).to_pylist():
                number += 1
                if not isinstance(text, str):
                    kind = type(text).__name__
                    words = f'{path}, row {number}: "{text_key}" is {kind}, no text'
                    raise DataError(words, "another --text-key, or remove the row")
                yield _judge(f"{path}, row {number}", text, 0)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}, behind row {number}: {reason}", "save it again") from None
    if not number:
        yield Skipped(path=str(path), reason="empty")


def _batches(path: Path) -> Iterator[Any]:
    """Yield row batches of a parquet or Arrow file (`datasets` writes Arrow streams)."""
    import pyarrow.ipc
    import pyarrow.parquet

    if path.suffix == ".parquet":
        with pyarrow.parquet.ParquetFile(path) as table:
            yield from table.iter_batches(1000)
        return
    with pyarrow.memory_map(str(path)) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        if is_file:
            reader = pyarrow.ipc.open_file(file)
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            yield from pyarrow.ipc.open_stream(file)


def _read_lines(path: Path, file: BinaryIO, text_key: str) -> Iterator[TextDocument | Skipped]:
    empty = True
    for number, line in enumerate(file, 1):
        if line.strip():
            empty = False
            yield _parse_line(f"{path}:{number}", line, text_key)
    if empty:
        yield Skipped(path=str(path), reason="empty")


def _parse_line(place: str, line: bytes, text_key: str) -> TextDocument | Skipped:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError(f"{place} is not JSON", "one object a line") from None
    text = row.get(text_key) if isinstance(row, dict) else None
    if not isinstance(text, str):
        words = f'one object a line, its text in "{text_key}"'
        raise DataError(f'{place} has no field "{text_key}"', f"{words}; --text-key names another")
    # JSON can spell half a surrogate pair, which is no character
    clean_text, replaced = _SURROGATES.subn("\ufffd", text)
    return _judge(place, clean_text, replaced)


def _judge(place: str, text: str, replaced: int) -> TextDocument | Skipped:
    if not text.strip():
        return Skipped(path=place, reason="empty")
    if replaced > MAX_REPLACED * len(text):
        return Skipped(
            path=place, reason=f"not UTF-8: {replaced / len(text):.1%} of it cannot be decoded"
        )
    return TextDocument(text=text, num_replaced=replaced)
