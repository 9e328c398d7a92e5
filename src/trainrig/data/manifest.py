"""Manifest of a prepared data folder, and how to open its parts.

    manifest.json           this file's dataclasses, as JSON
    tokenizer.json          the tokenizer, in the format of the tokenizers library
    train.bin, train.idx    what is trained on
    heldout.bin, .idx       what is never trained on

The manifest is a function of the corpus, the tokenizer and the settings: no dates, no
paths, so that the same corpus gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trainrig.data.megatron_indexed import Indexed, open_indexed
from trainrig.errors import DataError, reading

SCHEMA = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
PARTS = ("train", "heldout")
_HINT = "make it with trainrig data prepare"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the corpus."""

    num_documents: int
    num_tokens: int
    """End tokens included."""
    num_bytes: int
    """Bytes of its text in UTF-8; 0 where tokens were given."""
    sha256: str
    """SHA-256 of its .bin file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokenizer's vocabulary, and its special ids where it has them."""

    sha256: str
    """SHA-256 of tokenizer.json."""
    trained: bool
    """True if trained on this corpus; false if it was given."""
    vocab_size: int
    vocab_asked: int | None
    """Vocabulary size asked for in training; a small corpus gives less."""
    end: int | None
    """Ends a document."""
    pad: int | None
    cls: int | None
    sep: int | None
    mask: int | None
    sentinels: list[int]
    """T5's, the first span's first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Facts of a prepared corpus, stored as manifest.json."""

    schema: int
    corpus: str
    corpus_sha256: str
    """Part of a training case."""
    num_documents: int
    num_bytes: int
    num_skipped: int
    """Files that are no text."""
    num_replaced: int
    """Characters that could not be decoded."""
    split: str
    """``documents``: whole ones are held out; ``tails``: the last twentieth of each."""
    dtype: str
    max_token: int
    unknown_share: float
    """Share of tokens that mean "not in the vocabulary"."""
    unigram_entropy_nats: float
    """Of the held-out tokens by their own frequencies: −Σ p ln p.  The lowest loss of a
    model that knows how often each token occurs there, and nothing else."""
    tokens: Tokens
    train: Part
    heldout: Part

    def to_json(self) -> str:
        """Return the manifest as the JSON text that is stored."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a prepared folder.  Raises DataError when there is none that fits."""
    path = folder / MANIFEST
    try:
        with reading(path, _HINT):
            content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise DataError(f"{path} is not JSON", _HINT) from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise DataError(f"{path} is no manifest of schema {SCHEMA}", _HINT)
    parts = {name: _build(Part, content.get(name), path) for name in PARTS}
    tokens = _build(Tokens, content.get("tokens"), path)
    return _build(Manifest, content | parts | {"tokens": tokens}, path)


def open_part(folder: Path, name: str, vocab_size: int | None = None) -> Indexed:
    """Return the tokens of one of PARTS, checked against the manifest.

    With ``vocab_size``, the model's, ids beyond it are refused.  Raises DataError.
    """
    from trainrig.data.megatron_indexed import check_vocabulary

    manifest = read_manifest(folder)
    part: Part = getattr(manifest, name)
    indexed = open_indexed(folder / name)
    if (indexed.tokens.size, indexed.num_documents) != (part.num_tokens, part.num_documents):
        raise DataError(f"{folder / name}.bin does not match its manifest", _HINT)
    if vocab_size is not None:
        check_vocabulary(folder, manifest.max_token, vocab_size)
    return indexed


def _build(kind: type[T], content: Any, path: Path) -> T:
    """Build a dataclass from JSON and check its types.  Unknown fields are refused."""
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if not isinstance(content, dict) or content.keys() != fields.keys():
        raise DataError(f"{path} is damaged: the fields of its {kind.__name__.lower()}", _HINT)
    for name, annotation in fields.items():
        if not _fits(content[name], annotation):
            raise DataError(f"{path} is damaged: {name} is not {annotation}", _HINT)
    return kind(**content)


def _fits(value: Any, annotation: str) -> bool:
    """Return whether a value is of the annotated type; numbers are not negative."""
    if annotation == "list[int]":
        return isinstance(value, list) and all(_fits(item, "int") for item in value)
    if annotation.endswith(" | None") and value is None:
        return True
    if isinstance(value, int | float) and not isinstance(value, bool) and not value >= 0:
        return False
    return type(value).__name__ == annotation.removesuffix(" | None")
