"""Text → a folder that can be trained on: tokenizer, .bin/.idx, a held-out part, a manifest.

The corpus is read three times, never held: once for its hash and to choose the split,
once to train the tokenizer (on the training part alone), once to encode it.  The same
corpus and settings give the same bytes, whatever the number of threads.  Tokens that
another program wrote (.bin and .idx, with its tokenizer beside them) are checked against
the tokenizer and copied.

Held out are whole documents, one in twenty by its hash, so that equal documents never
lie on both sides.  Where that would be less than 2 % or more than 12 % of the text (few
documents, or one that is most of the corpus), the last twentieth of each is held out.  A corpus
whose files say which of them are held out is split as they say (`corpus`).

Everything is written beside its place and renamed at the end: a folder that exists is
whole.  An existing folder with this very content is left as it is; another one is never
replaced.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainrig.data.corpus import Corpus, Survey, chance, is_heldout, open_corpus, survey
from trainrig.data.manifest import (
    MANIFEST,
    PARTS,
    SCHEMA,
    TOKENIZER,
    Manifest,
    Part,
    open_part,
    read_manifest,
)
from trainrig.data.megatron_indexed import (
    Indexed,
    IndexedWriter,
    check_vocabulary,
    dtype_for,
    open_indexed,
)
from trainrig.data.tokenizer import (
    TRAIN_BYTES,
    TextTokenizer,
    check_vocab_size,
    load_tokenizer,
    train_tokenizer,
)
from trainrig.errors import DataError, UsageError, reading
from trainrig.store import draft_folder
from trainrig.units import one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEFAULT_VOCAB = 8192
_TAIL = 0.05
_HELDOUT_LIMITS = (0.02, 0.12)
_MAX_UNKNOWN = 0.1
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedText:
    """A folder and what it holds."""

    folder: Path
    manifest: Manifest
    reused: bool
    """It was there already."""


def prepare(
    texts: tuple[Path, ...] = (),
    *,
    out: Path | None = None,
    parent: Path = Path("data"),
    vocab_size: int | None = None,
    tokenizer: Path | None = None,
    text_key: str = "text",
    say: Say = lambda _: None,
) -> PreparedText:
    """Prepare ``texts`` (the standard library if there are none) in the folder ``out``.

    ``vocab_size`` is for the tokenizer that is trained, DEFAULT_VOCAB unless given;
    ``tokenizer`` names one that exists.  ``out`` is ``<corpus>-<hash>-<tokenizer>`` in
    ``parent`` unless given.  Raises UsageError, DataError, and StoreError when it cannot
    be written.
    """
    if vocab_size is not None and tokenizer is not None:
        raise UsageError(
            "--vocab is for a tokenizer that is trained, --tokenizer names one that exists",
            "use one of them",
        )
    if texts and (pairs := pairs_of(texts)):
        return _adopt(pairs, texts, out, parent, tokenizer, say)
    given_tokenizer = load_tokenizer(tokenizer) if tokenizer is not None else None
    vocab_size = DEFAULT_VOCAB if vocab_size is None else vocab_size
    check_vocab_size(vocab_size)
    corpus = open_corpus(texts, text_key)
    corpus_survey = survey(corpus)
    _report_survey(corpus, corpus_survey, say)
    kind = f"bpe{vocab_size}" if given_tokenizer is None else given_tokenizer.info.sha256[:8]
    out = out or parent / f"{corpus.name}-{corpus_survey.sha256[:8]}-{kind}"
    if (existing := _existing(out, corpus_survey.sha256, given_tokenizer, vocab_size)) is not None:
        return PreparedText(folder=out, manifest=existing, reused=True)
    with draft_folder(out) as draft:
        split = _Split(corpus=corpus, survey=corpus_survey)
        coder = given_tokenizer
        if coder is None:
            say(f"training a byte-level BPE of {vocab_size} entries")
            coder = train_tokenizer(split.to_learn(), vocab_size)
            if coder.info.vocab_size < vocab_size:
                say(f"the text gives a vocabulary of {coder.info.vocab_size} only")
        say(f"encoding with a vocabulary of {coder.info.vocab_size}")
        manifest = _write(draft, split, coder)
        (draft / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return PreparedText(folder=out, manifest=manifest, reused=False)


def pairs_of(paths: tuple[Path, ...]) -> list[Path]:
    """Return the prefixes of Megatron's NAME.bin and NAME.idx at ``paths``; none if text is there.

    A path is a prefix, one of its two files, or a folder.  Raises DataError for half a pair.
    """
    prefixes: list[Path] = []
    for path in paths:
        listed = sorted(path.glob("*.idx")) if path.is_dir() else []
        if not path.is_dir():
            is_file = path.suffix in (".bin", ".idx")
            listed = [path.with_suffix(".idx") if is_file else path.with_name(path.name + ".idx")]
        listed = [index for index in listed if index.is_file()]
        if not listed:
            return []
        for tokens in path.glob("*.bin") if path.is_dir() else ():
            if tokens.with_suffix("") not in [index.with_suffix("") for index in listed]:
                words = f"{tokens} has no index beside it: {tokens.stem}.idx"
                raise DataError(words, "copy it there, too, or move the file away")
        prefixes += [index.with_suffix("") for index in listed]
    return list(dict.fromkeys(prefixes))


def _adopt(
    pairs: list[Path],
    paths: tuple[Path, ...],
    out: Path | None,
    parent: Path,
    tokenizer: Path | None,
    say: Say,
) -> PreparedText:
    """Make a prepared folder of another program's tokens and its tokenizer."""
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    coder = load_tokenizer(tokenizer or folder)
    indexed_files = [open_indexed(pair) for pair in pairs]
    digest = hashlib.sha256()
    tokens = 0
    for indexed in indexed_files:
        _check_ids(indexed, coder.info.vocab_size)
        digest.update(indexed.starts.tobytes() + _sha256(Path(f"{indexed.prefix}.bin")).encode())
        tokens += indexed.tokens.size
    sha, documents = digest.hexdigest(), sum(indexed.num_documents for indexed in indexed_files)
    say(f"{documents} documents, {tokens} tokens, a vocabulary of {coder.info.vocab_size}")
    out = out or parent / f"megatron-{sha[:8]}-{coder.info.sha256[:8]}"
    if (existing := _existing(out, sha, coder, None)) is not None:
        return PreparedText(folder=out, manifest=existing, reused=True)
    with draft_folder(out) as draft:
        (draft / TOKENIZER).write_bytes(coder.content)
        rule = _copy_split(indexed_files, draft, dtype_for(coder.info.vocab_size))
        manifest = _manifest(
            draft,
            coder,
            dict.fromkeys(PARTS, 0),
            corpus="megatron",
            corpus_sha256=sha,
            num_documents=documents,
            num_bytes=0,
            num_skipped=0,
            num_replaced=0,
            split=rule,
            unknown_share=0.0,
        )
        (draft / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return PreparedText(folder=out, manifest=manifest, reused=False)


def _check_ids(indexed: Indexed, vocab_size: int) -> None:
    """Raise DataError for the first document with an id that the tokenizer has not."""
    for number, piece in enumerate(_pieces(indexed.tokens)):
        wrong = np.flatnonzero((piece < 0) | (piece >= vocab_size))
        if wrong.size:
            position = number * _PIECE + int(wrong[0])
            document = int(np.searchsorted(indexed.starts, position, side="right")) - 1
            raise DataError(
                f"{indexed.prefix}.bin, document {document} (from 0) has token id "
                f"{int(indexed.tokens[position])}, beyond a vocabulary of {vocab_size}",
                "--tokenizer names the one that made these tokens",
            )


def _copy_split(indexed_files: list[Indexed], draft: Path, dtype: str) -> str:
    """Write both parts: whole documents are held out, or of few the last twentieth of each.

    A document is read where it lies, twice, and no list is kept but a byte for each.
    """
    total = sum(indexed.tokens.size for indexed in indexed_files)
    is_held_out = bytearray(is_heldout(ids.data.cast("B")) for ids in _documents(indexed_files))
    size = sum(
        ids.size
        for ids, is_held in zip(_documents(indexed_files), is_held_out, strict=True)
        if is_held
    )
    by_documents = _HELDOUT_LIMITS[0] * total <= size <= _HELDOUT_LIMITS[1] * total
    with (
        IndexedWriter(draft / "train", dtype) as train,
        IndexedWriter(draft / "heldout", dtype) as heldout,
    ):
        for ids, is_held in zip(_documents(indexed_files), is_held_out, strict=True):
            if by_documents:
                (heldout if is_held else train).add(ids)
            elif ids.size:
                cut = ids.size - max(1, math.floor(_TAIL * ids.size))
                if cut:
                    train.add(ids[:cut])
                heldout.add(ids[cut:])
    if not all((draft / f"{name}.bin").stat().st_size for name in PARTS):
        raise DataError("there are too few tokens to hold some of them out", "prepare more text")
    return "documents" if by_documents else "tails"


def _documents(indexed_files: list[Indexed]) -> Iterator[NDArray[Any]]:
    """Yield the ids of each document, memory-mapped."""
    return (
        indexed.document(number)
        for indexed in indexed_files
        for number in range(indexed.num_documents)
    )


MOST_VERIFIED = 1 << 28
"""Tokens whose hashing takes a second; more are trusted to be what their manifest says."""


def verify(folder: Path) -> Manifest:
    """Return the manifest of a prepared folder, once every file has been found as it says."""
    manifest = read_manifest(folder)
    hashes = {f"{name}.bin": getattr(manifest, name).sha256 for name in PARTS}
    for name in PARTS:
        open_part(folder, name)
    check_vocabulary(folder, manifest.max_token, manifest.tokens.vocab_size)
    for name, wanted in (hashes | {TOKENIZER: manifest.tokens.sha256}).items():
        if _sha256(folder / name) != wanted:
            raise DataError(
                f"{folder / name} does not match its manifest",
                "prepare it again with trainrig data prepare",
            )
    return manifest


def unigram_entropy(tokens: NDArray[Any]) -> float:
    """−Σ p ln p over the frequencies of the ids in ``tokens``, in nats."""
    counts = np.zeros(0, np.int64)
    for piece in _pieces(tokens):
        piece_counts = np.bincount(piece, minlength=counts.size)
        counts = piece_counts + np.pad(counts, (0, piece_counts.size - counts.size))
    shares = counts[counts > 0] / tokens.size
    return max(0.0, float(-(shares * np.log(shares)).sum()))


_PIECE = 1 << 20
"""Ids that are looked at at once: what is mapped may be larger than memory."""


def _pieces(tokens: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (tokens[start : start + _PIECE] for start in range(0, tokens.size, _PIECE))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A corpus in two parts."""

    corpus: Corpus
    survey: Survey

    @property
    def rule(self) -> str:
        if self.corpus.heldout:
            return "files"
        min_bytes, max_bytes = (limit * self.survey.num_bytes for limit in _HELDOUT_LIMITS)
        return "documents" if min_bytes <= self.survey.heldout_bytes <= max_bytes else "tails"

    def pieces(self) -> Iterator[tuple[str, str]]:
        """Yield (name of the part, text) in the corpus' order.

        Raises DataError at the end when the corpus is no longer what was surveyed.
        """
        digest, rule = hashlib.sha256(), self.rule
        for document in self.corpus.documents():
            text = document.text
            document.add_to(digest)
            if rule != "tails":
                is_held_out = is_heldout(document.data) if rule == "documents" else document.heldout
                yield ("heldout" if is_held_out else "train"), text
                continue
            cut = len(text) - max(1, math.floor(_TAIL * len(text)))
            halves = (("train", text[:cut]), ("heldout", text[cut:]))
            yield from ((name, part) for name, part in halves if part)
        if digest.hexdigest() != self.survey.sha256:
            raise DataError("the text changed while it was read", "prepare it again")

    def to_learn(self) -> Iterator[str]:
        """Yield the texts that the tokenizer is trained on."""
        share = TRAIN_BYTES / self.survey.num_bytes
        for name, text in self.pieces():
            # Another chance than `is_heldout`'s: that left no low ones to the training part.
            if name == "train" and (share >= 1 or chance(b"tokenizer" + text.encode()) < share):
                yield text


def _write(draft: Path, split: _Split, coder: TextTokenizer) -> Manifest:
    (draft / TOKENIZER).write_bytes(coder.content)
    sizes = _encode(draft, split, coder)
    if not all((draft / f"{name}.bin").stat().st_size for name in PARTS):
        raise DataError("there is too little text to hold some of it out", "prepare more text")
    corpus_survey = split.survey
    return _manifest(
        draft,
        coder,
        sizes,
        corpus=split.corpus.name,
        corpus_sha256=corpus_survey.sha256,
        num_documents=corpus_survey.num_documents,
        num_bytes=corpus_survey.num_bytes,
        num_skipped=len(corpus_survey.skipped),
        num_replaced=corpus_survey.num_replaced,
        split=split.rule,
        unknown_share=_unknown_share(draft, coder),
    )


def _manifest(draft: Path, coder: TextTokenizer, sizes: dict[str, int], **found: Any) -> Manifest:
    """Build the manifest of the written parts; ``sizes`` are the bytes of text in each."""
    parts = {name: open_indexed(draft / name) for name in PARTS}

    def described(name: str) -> Part:
        return Part(
            num_documents=parts[name].num_documents,
            num_tokens=parts[name].tokens.size,
            num_bytes=sizes[name],
            sha256=_sha256(draft / f"{name}.bin"),
        )

    return Manifest(
        schema=SCHEMA,
        dtype=parts["train"].tokens.dtype.name,
        max_token=max(part.max_token() for part in parts.values()),
        unigram_entropy_nats=unigram_entropy(parts["heldout"].tokens),
        tokens=coder.info,
        train=described("train"),
        heldout=described("heldout"),
        **found,
    )


def _encode(draft: Path, split: _Split, coder: TextTokenizer) -> dict[str, int]:
    """Write both parts; the bytes of text in each."""
    sizes = dict.fromkeys(PARTS, 0)
    names: list[str] = []  # of the texts that the encoder has taken and not yet given back

    def texts() -> Iterator[str]:
        for name, text in split.pieces():
            names.append(name)
            sizes[name] += len(text.encode())
            yield text

    dtype = dtype_for(coder.info.vocab_size)
    with (
        IndexedWriter(draft / "train", dtype) as train,
        IndexedWriter(draft / "heldout", dtype) as heldout,
    ):
        writers = {"train": train, "heldout": heldout}
        for number, ids in enumerate(coder.encode(texts())):
            writers[names[number]].add(ids)
    return sizes


def _unknown_share(draft: Path, coder: TextTokenizer) -> float:
    if coder.unknown is None:
        return 0.0
    parts = [open_indexed(draft / name).tokens for name in PARTS]
    total = sum(part.size for part in parts)
    pieces = (piece for part in parts for piece in _pieces(part))
    share = sum(int((piece == coder.unknown).sum()) for piece in pieces) / total
    if share > _MAX_UNKNOWN:
        raise DataError(
            f"the tokenizer does not match the text: {share:.0%} of the tokens are unknown to it",
            "leave --tokenizer out, and one is trained on the text",
        )
    return share


def _sha256(path: Path) -> str:
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _report_survey(corpus: Corpus, corpus_survey: Survey, say: Say) -> None:
    say(f"{corpus_survey.num_documents} documents, {corpus_survey.num_bytes / 1e6:.1f} MB of text")
    if corpus.heldout:
        say(f"held out are the files that say so: {_listed(sorted(corpus.heldout))}")
    if corpus.left_out:
        say(f"left out, as tests: {_listed(corpus.left_out)}")
    if corpus.unsaid:
        say(
            f"no part is said by {_listed(corpus.unsaid)}: files called validation or test are "
            "trained on as the others"
        )
    for item in corpus_survey.skipped[:5]:
        say(f"skipped {one_line(item.path)}: {item.reason}")
    if len(corpus_survey.skipped) > 5:
        say(f"skipped {len(corpus_survey.skipped) - 5} more files that are no text")
    if corpus_survey.num_replaced:
        say(f"replaced {corpus_survey.num_replaced} characters that are not UTF-8")


def _listed(files: Sequence[Path]) -> str:
    names, more = [one_line(str(file)) for file in files[:3]], len(files) - 3
    return ", ".join([*names, *([f"and {more} more"] if more > 0 else [])])


def _existing(
    out: Path, corpus_sha256: str, given_tokenizer: TextTokenizer | None, vocab_size: int | None
) -> Manifest | None:
    """Return the manifest in ``out`` if it fits the request.  Raises UsageError otherwise."""
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return None
    error = UsageError(
        f"{out} exists and holds something else", "name another folder with --out, or remove it"
    )
    try:
        manifest = verify(out)
    except DataError:
        raise error from None
    tokens = manifest.tokens
    wanted = (
        (vocab_size, tokens.sha256)
        if given_tokenizer is None
        else (None, given_tokenizer.info.sha256)
    )
    if (manifest.corpus_sha256, tokens.vocab_asked, tokens.sha256) != (corpus_sha256, *wanted):
        raise error
    return manifest
