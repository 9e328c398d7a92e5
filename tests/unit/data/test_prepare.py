"""From text to a prepared folder: its parts, and that nothing is left half."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from small_corpus import VOCAB, contents, story, write
from trainrig.cli.data import command
from trainrig.data import prepare as room
from trainrig.data.corpus import open_corpus, survey
from trainrig.data.manifest import open_part, read_manifest
from trainrig.data.prepare import PreparedText, prepare, unigram_entropy, verify
from trainrig.data.tokenizer import load_tokenizer, train_tokenizer
from trainrig.errors import DataError, StoreError, TrainrigError, UsageError

ROOT = Path(__file__).resolve().parents[3]


def all_text(prepared: PreparedText, name: str) -> list[str]:
    coder = load_tokenizer(prepared.folder)
    part = open_part(prepared.folder, name)
    return [coder.decode(part.document(number)) for number in range(part.num_documents)]


def test_the_parts_are_the_corpus(prepared: PreparedText) -> None:
    train, heldout = all_text(prepared, "train"), all_text(prepared, "heldout")
    assert sorted(train + heldout) == sorted(story(number) for number in range(100))
    assert prepared.manifest.split == "documents"
    assert 2 <= len(heldout) <= 12


def test_the_manifest_counts_right(prepared: PreparedText) -> None:
    manifest = prepared.manifest
    assert manifest == read_manifest(prepared.folder) == verify(prepared.folder)
    sizes = [len(text.encode()) for text in all_text(prepared, "train")]
    part = open_part(prepared.folder, "train")
    assert (manifest.train.num_documents, manifest.train.num_bytes) == (len(sizes), sum(sizes))
    assert manifest.train.num_tokens == part.tokens.size
    assert manifest.num_bytes == manifest.train.num_bytes + manifest.heldout.num_bytes
    assert manifest.max_token == max(
        int(open_part(prepared.folder, name).tokens.max()) for name in ("train", "heldout")
    )
    assert manifest.dtype == "uint16"
    assert manifest.unigram_entropy_nats == unigram_entropy(
        open_part(prepared.folder, "heldout").tokens
    )


def test_the_entropy_by_hand() -> None:
    assert unigram_entropy(np.array([7, 7, 7, 7])) == 0
    assert unigram_entropy(np.array([1, 1, 2, 3])) == pytest.approx(1.5 * math.log(2))
    assert unigram_entropy(np.arange(10)) == pytest.approx(math.log(10))


PREPARE = "import sys; from trainrig.cli.main import main; sys.argv[0] = 'trainrig'; main()"


def test_the_same_corpus_gives_the_same_bytes(
    texts: Path, prepared: PreparedText, tmp_path: Path
) -> None:
    """In another process, with one thread and another hash seed, from another place."""
    place = tmp_path / "elsewhere"
    (tmp_path / "here").symlink_to(texts)
    subprocess.run(
        [sys.executable, "-c", PREPARE, "data", "prepare", str(tmp_path / "here"),
         "--out", str(place), "--vocab", str(VOCAB)],
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "TOKENIZERS_PARALLELISM": "0",
                          "PYTHONHASHSEED": "7"},
        timeout=60,
    )  # fmt: skip
    assert contents(place) == contents(prepared.folder)


def test_few_documents_are_split_at_their_tails(tmp_path: Path) -> None:
    text = "".join(map(story, range(30)))
    found = prepare((write(tmp_path / "x", text),), out=tmp_path / "out", vocab_size=VOCAB)
    assert found.manifest.split == "tails"
    (train,), (heldout,) = all_text(found, "train"), all_text(found, "heldout")
    assert train + heldout == text
    assert len(heldout) == len(text) // 20


def test_too_little_text_to_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too little text"):
        prepare((write(tmp_path / "x", "a"),), out=tmp_path / "out", vocab_size=VOCAB)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_the_tokenizer_learns_from_the_training_part_alone(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = open_corpus((texts,))
    split = room._Split(corpus=corpus, survey=survey(corpus))
    pieces = list(split.pieces())
    assert list(split.to_learn()) == [text for name, text in pieces if name == "train"]
    monkeypatch.setattr(room, "TRAIN_BYTES", split.survey.num_bytes // 4)
    assert 10 < len(list(split.to_learn())) < 45


def test_a_corpus_of_many_gigabytes_leaves_the_tokenizer_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twentieth is held out by its hash: a share below that drawn by the same would be empty."""
    folder = write(tmp_path / "0", "0").parent
    for number in range(1, 1000):
        write(folder / str(number), f"text number {number}")
    corpus = open_corpus((folder,))
    split = room._Split(corpus=corpus, survey=survey(corpus))
    assert split.rule == "documents"
    monkeypatch.setattr(room, "TRAIN_BYTES", split.survey.num_bytes // 25)
    assert 20 < len(list(split.to_learn())) < 60


def test_the_default_folder_names_the_corpus(
    texts: Path, prepared: PreparedText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = prepare((texts,), vocab_size=VOCAB)
    sha256 = prepared.manifest.corpus_sha256
    assert found.folder == Path("data", f"text-{sha256[:8]}-bpe{VOCAB}")
    assert contents(found.folder) == contents(prepared.folder)


def test_a_prepared_folder_is_left_as_it_is(texts: Path, prepared: PreparedText) -> None:
    dates = {path: path.stat().st_mtime_ns for path in prepared.folder.iterdir()}
    again = prepare((texts,), out=prepared.folder, vocab_size=VOCAB)
    assert again == dataclasses.replace(prepared, reused=True)
    assert {path: path.stat().st_mtime_ns for path in prepared.folder.iterdir()} == dates


def test_another_folder_is_never_replaced(
    texts: Path, prepared: PreparedText, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="holds something else"):
        prepare((texts,), out=prepared.folder, vocab_size=VOCAB + 1)
    with pytest.raises(UsageError, match="holds something else"):
        prepare((texts / "more",), out=prepared.folder, vocab_size=VOCAB)
    note = write(tmp_path / "mine" / "note", "keep")
    for out in (note.parent, note):
        with pytest.raises(UsageError, match="holds something else"):
            prepare((texts,), out=out, vocab_size=VOCAB)
    assert note.read_text() == "keep"
    (tmp_path / "empty").mkdir()
    assert not prepare((texts,), out=tmp_path / "empty", vocab_size=VOCAB).reused


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
@pytest.mark.parametrize("place", ["_encode", "train_tokenizer", "unigram_entropy"])
def test_an_interrupted_run_leaves_nothing(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, place: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(room, place, fail)
    wanted = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else StoreError
    with pytest.raises(wanted):
        prepare((texts,), out=tmp_path / "out", vocab_size=VOCAB)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_line(texts: Path, tmp_path: Path) -> None:
    blocked = write(tmp_path / "file", "x") / "out"
    with pytest.raises(StoreError, match="cannot write") as caught:
        prepare((texts,), out=blocked, vocab_size=VOCAB)
    assert caught.value.exit_code == 3
    if os.geteuid() == 0:
        return  # root may write anywhere
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(StoreError, match="Permission denied"):
        prepare((texts,), out=tmp_path / "locked" / "out", vocab_size=VOCAB)


@pytest.mark.parametrize("training", [True, False])
def test_a_corpus_that_changes_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training: bool
) -> None:
    """While the tokenizer is trained, and while the text is encoded."""
    texts = [write(tmp_path / f"{number}.txt", story(number)) for number in range(30)]
    name = "train_tokenizer" if training else "_encode"
    genuine = getattr(room, name)

    def disturbed(*arguments: object) -> object:
        texts[3].write_text("something else")
        return genuine(*arguments)

    monkeypatch.setattr(room, name, disturbed)
    with pytest.raises(DataError, match="changed while it was read"):
        prepare(tuple(texts), out=tmp_path / "out", vocab_size=VOCAB)
    assert not (tmp_path / "out").exists()


def test_an_interrupt_reaches_through_the_tokenizers_library() -> None:
    def texts() -> Iterator[str]:
        yield "some text"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_tokenizer(texts(), VOCAB)


# the verb


def test_the_verb_prepares_and_informs(texts: Path, prepared: PreparedText, tmp_path: Path) -> None:
    write(tmp_path / "more" / "photo", b"\0")
    out, more = str(tmp_path / "out"), str(tmp_path / "more")
    arguments = ["prepare", str(texts), more, "--out", out, "--vocab", str(VOCAB), "--json"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["folder"], found["num_skipped"]) == (out, 1)
    assert found["corpus_sha256"] == prepared.manifest.corpus_sha256
    assert "100 documents" in result.stderr
    assert f"skipped {more}/photo: binary" in result.stderr
    shown = CliRunner().invoke(command, ["info", out], catch_exceptions=False)
    assert shown.exit_code == 0
    assert f"{prepared.manifest.unigram_entropy_nats:.3f} nats" in shown.stdout
    again = CliRunner().invoke(command, arguments[:-1], catch_exceptions=False)
    assert "nothing to do" in again.stderr
    assert again.stdout == shown.stdout


def test_the_verbs_errors_are_ours(tmp_path: Path) -> None:
    for arguments in (["info", str(tmp_path)], ["prepare", str(tmp_path)]):
        result = CliRunner().invoke(command, arguments)
        assert isinstance(result.exception, TrainrigError)


LIGHT = """
import sys, trainrig.data.loader, trainrig.data.open_batches
print(*{name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names))
"""


def test_training_programs_load_numpy_and_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{LIGHT}"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    ours = {name for name in done.stdout.split() if not name.startswith("_")}
    assert ours == {"trainrig", "numpy"}
