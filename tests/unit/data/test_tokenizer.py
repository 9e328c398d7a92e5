"""Text to tokens and back, and tokenizers that are given."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_corpus import VOCAB, story, write
from trainrig.data import tokenizer as tokenizers_room
from trainrig.data.prepare import prepare
from trainrig.data.tokenizer import MIN_VOCAB, TextTokenizer, load_tokenizer, train_tokenizer
from trainrig.errors import DataError, UsageError


@given(st.text())
def test_any_text_survives(coder: TextTokenizer, text: str) -> None:
    (ids,) = coder.encode([text])
    assert coder.decode(ids) == text
    assert ids[-1] == coder.info.end
    assert ids.max() < coder.info.vocab_size


def test_special_tokens_in_a_text_are_text(coder: TextTokenizer) -> None:
    text = "<|endoftext|>[MASK]<extra_id_3>"
    (ids,) = coder.encode([text])
    assert min(ids[:-1]) >= MIN_VOCAB - 256
    assert coder.decode(ids) == text


def test_special_ids_are_known_by_name(coder: TextTokenizer) -> None:
    info = coder.info
    assert (info.end, info.pad, info.cls, info.sep, info.mask) == (0, 1, 2, 3, 4)
    assert info.sentinels == list(range(5, 105))
    assert info.vocab_size == info.vocab_asked or info.vocab_asked is None


def test_long_texts_are_cut_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"  {story(n)}\n\n{story(-n)}" for n in range(60))
    coder = train_tokenizer([text], VOCAB)
    (whole,) = coder.encode([text])
    monkeypatch.setattr(tokenizers_room, "_PIECE", 2000)
    assert len(list(tokenizers_room._cut(text))) > 20
    (pieces,) = coder.encode([text])
    assert (pieces == whole).all()
    assert [coder.decode(ids) for ids in coder.encode(["x" * 5000, "", "y"])] == [
        "x" * 5000,
        "",
        "y",
    ]


def test_a_short_text_gives_a_smaller_vocabulary() -> None:
    assert train_tokenizer(["aa bb"], 1000).info.vocab_size < MIN_VOCAB + 10


@pytest.mark.parametrize("vocab", [-1, 0, MIN_VOCAB - 1, 10**9])
def test_a_vocabulary_out_of_range_is_refused(vocab: int) -> None:
    with pytest.raises(UsageError, match="out of range"):
        train_tokenizer(["a"], vocab)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff\xfe", b"[1]", b'{"model": {"type": "BPE"}}']
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="is no tokenizer") as caught:
        load_tokenizer(write(tmp_path / "x.json", content))
    assert "\n" not in caught.value.message


def word_tokenizer(path: Path, words: list[str]) -> Path:
    """A tokenizer.json of whole words, with BERT's unknown token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocab = {word: number for number, word in enumerate(["[UNK]", "[SEP]", *words])}
    made = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(path))
    return path


def test_a_given_tokenizer_is_used_as_it_is(texts: Path, tmp_path: Path) -> None:
    words = ["the", "cat", "sat", "on", "mat", "and", "looked", "at", "dog", ";", "naïve", "café"]
    path = word_tokenizer(tmp_path / "w.json", [*words, "—", "東京", "<|", "endoftext", "|>"])
    found = prepare((texts,), out=tmp_path / "out", tokenizer=path)
    tokens = found.manifest.tokens
    assert not tokens.trained
    assert tokens.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (found.folder / "tokenizer.json").read_bytes() == path.read_bytes()
    assert (tokens.end, tokens.mask, tokens.vocab_size) == (1, None, 19)
    assert found.manifest.unknown_share == 0
    assert prepare((texts,), out=tmp_path / "out", tokenizer=path).reused


def test_a_tokenizer_that_does_not_match_is_refused(texts: Path, tmp_path: Path) -> None:
    path = word_tokenizer(tmp_path / "w.json", ["der", "Hund"])
    with pytest.raises(DataError, match="does not match the text: 99% of the tokens"):
        prepare((texts,), out=tmp_path / "out", tokenizer=path)
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="--vocab"):
        prepare((texts,), out=tmp_path / "out", tokenizer=path, vocab_size=500)
