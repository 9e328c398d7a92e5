"""A hundred small documents, and what they are prepared with."""

from __future__ import annotations

import hashlib
from pathlib import Path

TEXT = "the cat sat on the mat and looked at the dog; naïve café — 東京 <|endoftext|>"
WORDS = TEXT.split()
VOCAB = 450


def story(number: int) -> str:
    """Some hundred words, other ones for each number."""
    chosen = hashlib.sha256(str(number).encode()).digest() * 5
    return " ".join(WORDS[byte % len(WORDS)] for byte in chosen) + "\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
