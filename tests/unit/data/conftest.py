"""A corpus of a hundred documents, and the folder that is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_corpus import VOCAB, story
from trainrig.data.prepare import PreparedText, prepare
from trainrig.data.tokenizer import TextTokenizer, load_tokenizer


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a hundred small documents."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "more").mkdir()
    for number in range(100):
        place = folder / "more" if number % 2 else folder
        (place / f"{number:03}.txt").write_text(story(number))
    return folder


@pytest.fixture(scope="session")
def prepared(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> PreparedText:
    return prepare((texts,), out=tmp_path_factory.mktemp("prepared") / "it", vocab_size=VOCAB)


@pytest.fixture(scope="session")
def coder(prepared: PreparedText) -> TextTokenizer:
    return load_tokenizer(prepared.folder)
