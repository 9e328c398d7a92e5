"""A run in one file, with a content hash: evidence that opens anywhere.

Format: one header line, ``trainrig-bundle 1 <sha256>``, then a gzipped tar whose
bytes the hash covers.  The same run packs to the same bytes, without its logs:
they name folders of the host.  A bundle is data from strangers: the hash is
checked before anything is parsed, only plain files with plain relative names are
accepted, bytes and lines are bounded before they are read, nothing is unpickled
and nothing is written outside the folder that was named.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from trainrig.errors import DataError, StoreError, reading
from trainrig.store.redact import redacted
from trainrig.store.run_folder import CONFIG, LOGS, RECORDS, parse_config, read_file
from trainrig.store.writer import write_atomic

BUNDLE_VERSION = 1
_MAGIC = b"trainrig-bundle "
_HEADER = re.compile(rb"trainrig-bundle (?P<version>[1-9]\d{0,5}) (?P<digest>[0-9a-f]{64})\n")
_HEADER_MAX = 128
_MAX_UNPACKED = 1 << 30
_MAX_RECORDS = 100_000
"""Parsed, they take about 1.5 kB each."""
_MAX_LINES = 1_000_000
"""Most lines of all series together."""
_ORIGINAL = "copy it again, or ask for the original file"
_SAFE_NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9._+-]*(/[A-Za-z0-9_+][A-Za-z0-9._+-]*){0,4}")


def is_bundle(path: Path) -> bool:
    """Return whether a file starts as a bundle does; False for what cannot be read."""
    try:
        if not path.is_file():  # to open a pipe would be to wait for its writer
            return False
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def pack(run: Path, target: Path, *, redact: bool = False) -> str:
    """Pack the run folder into ``target`` and return the content hash.

    ``redact``: without names of people, machines and folders (`store.redact`).  Logs, hidden files
    and links are left out.  Raises DataError for what is not a
    run of this schema, cannot be read or is too large, StoreError when it cannot
    write or ``target`` exists.
    """
    parse_config(read_file(run / CONFIG), run)
    if os.path.lexists(target):
        raise StoreError(f"{target} exists", "name another file; bundles are not replaced")
    payload = _pack_payload(run, redact=redact)
    digest = hashlib.sha256(payload).hexdigest()
    write_atomic(target, _MAGIC + f"{BUNDLE_VERSION} {digest}\n".encode() + payload)
    return digest


def _pack_payload(run: Path, *, redact: bool) -> bytes:
    paths_by_name = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        is_plain = path.is_file() and not path.is_symlink()
        if is_plain and _SAFE_NAME.fullmatch(f"run/{name}") and not name.startswith(f"{LOGS}/"):
            paths_by_name[name] = path
    with reading(run):
        num_bytes = sum(path.stat().st_size for path in paths_by_name.values())
    if num_bytes > _MAX_UNPACKED:
        raise DataError(f"{run} is larger than the 1 GiB that a bundle may hold")
    files = {name: read_file(path) or b"" for name, path in paths_by_name.items()}
    _check_lines(run, files)
    # The user may have renamed it.
    name = run.resolve().name
    if redact:
        name, files = redacted(name, files)
    folder = re.sub(r"[^A-Za-z0-9._+-]|^[.-]", "_", name)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file, data in files.items():
            entry = tarfile.TarInfo(f"{folder}/{file}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), mtime=0)


def _check_lines(path: Path, files: Mapping[str, bytes]) -> None:
    """Raise DataError for more lines than can be parsed on any machine."""
    lines = {name: data.count(b"\n") for name, data in files.items() if name.endswith(".jsonl")}
    num_records = lines.pop(RECORDS, 0)
    for count, most, what in (
        (num_records, _MAX_RECORDS, "records"),
        (sum(lines.values()), _MAX_LINES, "lines of series"),
    ):
        if count > most:
            raise DataError(f"{path} holds {count} {what}; a bundle may hold {most}")


def open_bundle(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return the run's name, and its files by their names within the run.

    Raises DataError if a byte was changed, the bundle is newer, it holds anything
    but plain files of one run, or more than can be read.
    """
    with reading(path):
        if path.stat().st_size > _MAX_UNPACKED:
            raise DataError(f"{path} is refused: it is larger than 1 GiB")
        raw = path.read_bytes()
    payload = _check_hash(path, raw)
    try:
        name, files = _read_archive(path, _gunzip(path, payload))
    except (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError, OSError):
        raise DataError(f"{path} is damaged: its archive cannot be read", _ORIGINAL) from None
    _check_lines(path, files)
    return name, files


def unpack(path: Path, parent: Path) -> Path:
    """Unpack a bundle into ``parent``/<run name> and return that folder.

    Raises DataError as `open_bundle` does, StoreError when the folder exists or
    cannot be written.
    """
    name, files = open_bundle(path)
    folder = parent / name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".unpack-", dir=parent))
        try:
            for file, data in files.items():
                (draft / file).parent.mkdir(parents=True, exist_ok=True)
                (draft / file).write_bytes(data)
            draft.chmod(0o755)
            try:
                folder.mkdir()  # an empty folder of somebody else's would be renamed over
            except FileExistsError:
                raise StoreError(f"{folder} exists", "name another folder") from None
            draft.rename(folder)  # all of it, or nothing
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror}") from None
    return folder


def _check_hash(path: Path, raw: bytes) -> bytes:
    header = _HEADER.match(raw[:_HEADER_MAX])
    if header is None:
        raise DataError(f"{path} is not a bundle, or its header was changed", _ORIGINAL)
    if int(header["version"]) != BUNDLE_VERSION:
        raise DataError(
            f"{path} is a bundle of version {int(header['version'])}; this trainrig reads "
            f"{BUNDLE_VERSION}",
            "upgrade: pip install --upgrade trainrig",
        )
    payload = raw[header.end() :]
    digest = hashlib.sha256(payload).hexdigest()
    if digest != header["digest"].decode():
        raise DataError(
            f"{path} was changed after it was packed: content hash {digest[:12]}, "
            f"packed as {header['digest'].decode()[:12]}",
            _ORIGINAL,
        )
    return payload


def _gunzip(path: Path, payload: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(payload)) as stream:
        data = stream.read(_MAX_UNPACKED + 1)
    if len(data) > _MAX_UNPACKED:
        raise DataError(f"{path} is refused: it unpacks to more than 1 GiB")
    return data


def _read_archive(path: Path, data: bytes) -> tuple[str, dict[str, bytes]]:
    files: dict[str, bytes] = {}
    names = set()
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for entry in archive:
            name, _, file = entry.name.partition("/")
            # A sparse file may claim any size: only files of as many bytes as the archive holds.
            regular = entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not entry.issparse()
            is_plain = regular and _SAFE_NAME.fullmatch(entry.name) is not None
            if not is_plain or not file or file in files:
                raise DataError(f"{path} is refused: it holds {entry.name[:80]!r}")
            names.add(name)
            content = archive.extractfile(entry)
            files[file] = content.read() if content else b""
    if len(names) != 1:
        raise DataError(f"{path} is refused: it holds {len(names)} runs, not one")
    return names.pop(), files
