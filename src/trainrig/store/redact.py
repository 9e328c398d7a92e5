"""A run's files without what names people, machines and folders: what a bundle holds by default.

Taken out of every text value: the host's name, the user, absolute paths but the kernel's, MAC
addresses, serial numbers, and values of NCCL's variables outside a list.  The machine's id and the
GPUs' are replaced by digests with a salt of this user's own, so that bundles of one machine belong
together and say nothing to others.  Pages are left out: they are made anew of the rest.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w

from trainrig.errors import DataError
from trainrig.safe_read import make_private
from trainrig.store.run_folder import (
    CONFIG,
    MACHINE,
    host_in_name,
    parse_config,
    parse_object,
)

HOST, USER, FOLDER, MAC = "host", "user", "/redacted", "redacted-mac"
KEPT = frozenset(
    f"NCCL_{name}"
    for name in (
        *("ALGO", "PROTO", "DEBUG", "DEBUG_SUBSYS", "P2P_DISABLE", "P2P_LEVEL", "SHM_DISABLE"),
        *("IB_DISABLE", "NET_GDR_LEVEL", "BUFFSIZE", "NTHREADS", "MAX_NCHANNELS", "MIN_NCHANNELS"),
        *("CUMEM_ENABLE", "NVLS_ENABLE", "CROSS_NIC", "IB_TIMEOUT", "IB_RETRY_CNT", "LAUNCH_MODE"),
    )
)
"""Variables whose values are settings, and name no interface, host or file."""
_PATH = re.compile(r"(?<![\w/.~])(?:~|/+(?!/|sys/|proc/|dev/|etc/))[\w.@+~-]*(?:/+[\w.@+~-]+)+/?")
_MAC = re.compile(r"\b(?:[0-9a-fA-F]{2}[:-]){5}(?:[0-9a-fA-F]{2})\b")
_GPU = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_SERIAL = re.compile(r"serial", re.IGNORECASE)
REDACTED = "redacted"
"""The key of run.toml that says so."""
_MACHINE_ID = "machine"
"""The key of the digest of /etc/machine-id in machine.json's host."""


def redacted(name: str, files: Mapping[str, bytes]) -> tuple[str, dict[str, bytes]]:
    """Return a run's name and files without what names anybody; pages are left out.

    Raises DataError for a run.toml or machine.json that cannot be read.
    """
    machine = {}
    with suppress(ValueError, RecursionError):
        machine = parse_object(files.get(MACHINE, b"{}"))
    clean = _cleaner(machine)
    cleaned_files: dict[str, bytes] = {}
    for file, data in files.items():
        if file.endswith((".html", ".pdf")):
            continue
        cleaned_files[file] = _cleaned(file, data, clean)
    return clean(name), cleaned_files


def redacted_name(name: str, machine: Mapping[str, Any]) -> str:
    """Return a run's name without its host's: what its redacted bundle is called."""
    return _cleaner(machine)(name)


def redacted_machine(machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return a machine.json as this user's redacted bundles have it: to find its machine again."""
    cleaned: dict[str, Any] = _walk(dict(machine), _cleaner(machine))
    return cleaned


def _cleaned(file: str, data: bytes, clean: Callable[[str], str]) -> bytes:
    try:
        if file == CONFIG:
            config = _walk(parse_config(data, Path(file)), clean)
            return tomli_w.dumps({**config, REDACTED: True}).encode()
        if file.endswith(".jsonl"):
            lines = data.split(b"\n")
            return b"\n".join(_line(line, clean) for line in lines)
        if file.endswith(".json"):
            whole = _walk(json.loads(data), clean)
            return json.dumps(whole, indent=1, ensure_ascii=False).encode() + b"\n"
    except (ValueError, RecursionError):
        raise DataError(f"{file} is damaged: it cannot be redacted", "--full packs it") from None
    return clean(data.decode("utf-8", "replace")).encode()


def _line(line: bytes, clean: Callable[[str], str]) -> bytes:
    if not line.strip():
        return line
    return json.dumps(_walk(json.loads(line), clean), ensure_ascii=False).encode()


def _walk(value: Any, clean: Callable[[str], str], key: str = "") -> Any:
    """Return the value with every text in it cleaned; keys stay."""
    if isinstance(value, dict):
        return {name: _walk(item, clean, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_walk(item, clean, key) for item in value]
    hides = _SERIAL.search(key) or (key.startswith("NCCL_") and key not in KEPT)
    if hides and value is not None:
        return "redacted"
    if not isinstance(value, str):
        return value
    return _digest(value) if key == _MACHINE_ID and value else clean(value)


def _cleaner(machine: Mapping[str, Any]) -> Callable[[str], str]:
    """Return a function that takes the names of a run's host and user out of a text."""
    host = machine.get("host")
    hostname = host.get("hostname") if isinstance(host, dict) else None
    hosts = [os.uname().nodename, *([hostname] if isinstance(hostname, str) else [])]
    forms = {form for host in hosts for form in (host, host.partition(".")[0], host_in_name(host))}
    words = dict.fromkeys(filter(None, forms), HOST)
    with suppress(OSError, KeyError, ImportError):  # nobody of that number
        words |= {getpass.getuser(): USER}
    words = {word: by for word, by in words.items() if len(word) > 1 and word not in _COMMON}
    listed = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    names = re.compile(rf"(?<![A-Za-z0-9])(?:{listed})(?![A-Za-z0-9])") if listed else None

    def clean(text: str) -> str:
        text = _GPU.sub(lambda match: f"{match[1]}-{_digest(match[0])}", text)
        text = _MAC.sub(MAC, text)
        text = _PATH.sub(FOLDER, text)
        return names.sub(lambda match: words[match[0]], text) if names is not None else text

    return clean


_COMMON = frozenset(["root", "localhost", "cpu", "gpu", "host", "user", "disk", "none"])
"""Names that say nothing, and are words of a run."""


def _digest(value: str) -> str:
    return hashlib.sha256(_salt() + value.encode()).hexdigest()[:16]


def _salt() -> bytes:
    """Return this user's own, made once; a new one each time where it cannot be kept."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = Path(base) / "trainrig" / "bundle-salt"
    with suppress(OSError):
        make_private(path.parent)
        with suppress(FileExistsError):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(32))
        return path.read_bytes()
    return secrets.token_bytes(32)
