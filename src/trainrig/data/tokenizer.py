"""Text ↔ token ids: a byte-level BPE trained on the corpus, or a tokenizer file that is given.

The trained one splits words as GPT-2's does, starts from the 256 bytes and so loses
nothing: decoding gives back any text.  Its special tokens have BERT's and T5's own
names, and are found by these names in a given tokenizer too.  Special tokens that are
spelled out in a text are ordinary text.

Training is a function of the texts: the library breaks ties by id.  Given more than
TRAIN_BYTES of text, it is trained on a share of the documents, drawn by their hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trainrig.data.manifest import TOKENIZER, Tokens
from trainrig.errors import DataError, UsageError, reading

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from trainrig.data.shuffle import Ints

TRAIN_BYTES = 128_000_000
"""Text that a tokenizer is trained on; more adds time and memory, and hardly any tokens."""
NUM_SENTINELS = 100
_ROLES = {
    "end": ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"),
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
_SENTINELS = tuple(f"<extra_id_{number}>" for number in range(NUM_SENTINELS))
_SPECIALS = (*(names[0] for names in _ROLES.values()), *_SENTINELS)
MIN_VOCAB = 256 + len(_SPECIALS)
MAX_VOCAB = 1_000_000
# Texts are encoded in groups, and cut at a line's end where one is longer than this: what
# the library keeps of a text is many times its size.
_PIECE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextTokenizer:
    """A tokenizer with what is known of its ids."""

    tokenizer: Tokenizer
    content: bytes
    """tokenizer.json."""
    info: Tokens
    unknown: int | None
    """The id of what is not in the vocabulary; byte-level tokenizers have none."""

    def encode(self, texts: Iterable[str]) -> Iterator[Ints]:
        """Yield the ids of each text, with the end token behind them where there is one."""
        end = [] if self.info.end is None else [self.info.end]
        for group in _groups(texts):
            pieces = [piece for text in group for piece in _cut(text)]
            coded = iter(self.tokenizer.encode_batch_fast(pieces, add_special_tokens=False))
            for text in group:
                ids = [token for _ in _cut(text) for token in next(coded).ids]
                yield np.array([*ids, *end], dtype=np.int64)

    def decode(self, ids: Ints) -> str:
        """Return the text of these ids, end tokens left out."""
        text: str = self.tokenizer.decode([int(token) for token in ids if token != self.info.end])
        return text


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> TextTokenizer:
    """Return a byte-level BPE of at most ``vocab_size`` entries; a short text gives fewer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    check_vocab_size(vocab_size)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(_SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(texts), trainer)
    return _describe(tokenizer, tokenizer.to_str().encode(), vocab_asked=vocab_size)


def check_vocab_size(vocab_size: int) -> None:
    """Raise UsageError for a vocabulary that cannot be trained."""
    if not MIN_VOCAB <= vocab_size <= MAX_VOCAB:
        raise UsageError(
            f"a vocabulary of {vocab_size} is out of range",
            f"--vocab takes {MIN_VOCAB} (256 bytes and {len(_SPECIALS)} special tokens) "
            f"to {MAX_VOCAB}",
        )


def load_tokenizer(path: Path) -> TextTokenizer:
    """Load a tokenizer.json, GPT-2's vocab.json with merges.txt, or BERT's vocab.txt.

    ``path``: the file, or a folder that holds one.  Raises DataError for what is none.
    """
    from tokenizers import Tokenizer

    if path.is_dir():
        vocabulary = next((path / name for name in _FILES if (path / name).is_file()), None)
        if vocabulary is None:
            raise DataError(
                f"{path} has no tokenizer: no tokenizer.json, vocab.json or vocab.txt",
                "put it there, or name it with --tokenizer of trainrig data prepare",
            )
        path = vocabulary
    if path.name in ("vocab.json", "merges.txt", "vocab.txt"):
        tokenizer = _of_vocabulary(path)
        return _describe(tokenizer, tokenizer.to_str().encode(), vocab_asked=None)
    with reading(path, "name a tokenizer.json"):
        content = path.read_bytes()
    try:
        tokenizer = Tokenizer.from_str(content.decode())
    except Exception as error:  # noqa: BLE001  the library raises Exception itself
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path} is no tokenizer: {reason}", "name a tokenizer.json of the tokenizers library"
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return _describe(tokenizer, content, vocab_asked=None)


_FILES = (TOKENIZER, "vocab.json", "vocab.txt")


def _of_vocabulary(path: Path) -> Tokenizer:
    """GPT-2's byte-level BPE or BERT's word pieces, of the files that Megatron-LM is given.

    BERT's is lower case unless one of its words has a capital.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    try:
        if path.name != "vocab.txt":
            files = str(path.with_name("vocab.json")), str(path.with_name("merges.txt"))
            tokenizer = Tokenizer(models.BPE.from_file(*files))
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            return tokenizer
        # Not splitlines: U+0085 and U+2028 are words of multilingual vocabularies.
        words = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        vocab = {word: number for number, word in enumerate(words)}
        is_cased = any(word != word.lower() for word in words if not word.startswith("["))
        unknown = "[UNK]" if "[UNK]" in vocab else words[0]
        tokenizer = Tokenizer(models.WordPiece(vocab, unk_token=unknown))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not is_cased)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer
    except Exception as error:  # noqa: BLE001  the library raises Exception itself
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        hint = "vocab.json and merges.txt lie side by side; vocab.txt has a word a line"
        raise DataError(f"{path} is no vocabulary: {reason}", hint) from None


def _describe(tokenizer: Tokenizer, content: bytes, *, vocab_asked: int | None) -> TextTokenizer:
    tokenizer.encode_special_tokens = True
    roles: dict[str, int | None] = {}
    for role, names in _ROLES.items():
        listed = (tokenizer.token_to_id(name) for name in names)
        roles[role] = next((number for number in listed if number is not None), None)
    sentinels = [tokenizer.token_to_id(name) for name in _SENTINELS]
    ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    info = Tokens(
        sha256=hashlib.sha256(content).hexdigest(),
        trained=vocab_asked is not None,
        vocab_size=max(ids.values(), default=-1) + 1,  # ids may have gaps: a model needs the rows
        vocab_asked=vocab_asked,
        **roles,
        sentinels=[number for number in sentinels if number is not None],
    )
    model = json.loads(content).get("model", {})
    unknown = model.get("unk_id")  # unigram models store the id, the others the token
    if unknown is None and model.get("unk_token"):
        unknown = tokenizer.token_to_id(model["unk_token"])
    return TextTokenizer(tokenizer=tokenizer, content=content, info=info, unknown=unknown)


def _groups(texts: Iterable[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= 4 * _PIECE:
            yield group
            group, size = [], 0
    if group:
        yield group


def _cut(text: str) -> Iterator[str]:
    """Yield ``text`` in pieces, cut before lines that begin with a letter or the like.

    There a byte-level tokenizer's words end anyway, so that the ids are those of the whole
    text; a text without such lines is cut where it must be.
    """
    start = 0
    while len(text) - start > 2 * _PIECE:
        stop = text.find("\n", start + _PIECE, start + 2 * _PIECE - 1) + 1
        while stop and text[stop].isspace():
            stop = text.find("\n", stop, start + 2 * _PIECE - 1) + 1
        stop = stop or start + 2 * _PIECE
        yield text[start:stop]
        start = stop
    yield text[start:]
