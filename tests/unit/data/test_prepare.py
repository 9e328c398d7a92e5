"""From text to a prepared folder: what is read, what is refused, and that nothing is left half."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
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
from hypothesis import given
from hypothesis import strategies as st

from trainrig.cli.data import command
from trainrig.data import prepare as room
from trainrig.data import tokenizer as tokenizers_room
from trainrig.data.batches import Shard
from trainrig.data.corpus import Skipped, TextDocument, open_corpus, standard_library, survey
from trainrig.data.manifest import open_part, read_manifest
from trainrig.data.open_batches import OBJECTIVES, open_batches
from trainrig.data.prepare import PreparedText, prepare, unigram_entropy, verify
from trainrig.data.tokenizer import MIN_VOCAB, TextTokenizer, load_tokenizer, train_tokenizer
from trainrig.errors import DataError, StoreError, TrainrigError, UsageError

ROOT = Path(__file__).resolve().parents[3]
TEXT = "the cat sat on the mat and looked at the dog; naïve café — 東京 <|endoftext|>"
WORDS = TEXT.split()
VOCAB = 450


def story(number: int) -> str:
    """Some hundred words, other ones for each number."""
    chosen = hashlib.sha256(str(number).encode()).digest() * 5
    return " ".join(WORDS[byte % len(WORDS)] for byte in chosen) + "\n"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a hundred small documents."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "more").mkdir()
    for number in range(100):
        place = folder / "more" if number % 2 else folder
        (place / f"{number:03}.txt").write_text(story(number))
    return folder


@pytest.fixture(scope="module")
def prepared(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> PreparedText:
    return prepare((texts,), out=tmp_path_factory.mktemp("prepared") / "it", vocab_size=VOCAB)


@pytest.fixture(scope="module")
def coder(prepared: PreparedText) -> TextTokenizer:
    return load_tokenizer(prepared.folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# corpus


def read(*paths: Path) -> list[TextDocument | Skipped]:
    return list(open_corpus(paths).read())


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_folders_files_and_json_lines_are_read_in_order(tmp_path: Path) -> None:
    write(tmp_path / "b" / "two.txt", "2")
    write(tmp_path / "b" / "a" / "three.md", "3")
    write(tmp_path / "b" / ".git" / "config", "no")
    write(tmp_path / "b" / "__pycache__" / "x.txt", "no")
    write(tmp_path / "z.jsonl", '{"text": "4", "id": 1}\n\n{"text": "5"}')
    one = write(tmp_path / "one.txt", "1")
    found = read(one, tmp_path / "b", tmp_path / "z.jsonl", one)
    assert [item.text for item in found if isinstance(item, TextDocument)] == [
        "1",
        "2",
        "3",
        "4",
        "5",
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b" \n\t\n", "empty"),
        (b"GIF89a\0\1", "binary: it has NUL bytes"),
        ("Größe, Maß und Äußeres".encode("latin-1"), "not UTF-8: 22.7% of it"),
        ("text".encode("utf-16"), "binary"),
    ],
)
def test_what_is_no_text_is_skipped_with_a_reason(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = write(tmp_path / "x", content)
    (item,) = read(path)
    assert isinstance(item, Skipped)
    assert item.reason.startswith(reason)
    with pytest.raises(DataError, match="no text in 1 file ") as caught:
        survey(open_corpus((path,)))
    assert reason in caught.value.message


def test_json_lines_may_be_empty_too(tmp_path: Path) -> None:
    assert [item.reason for item in read(write(tmp_path / "x.jsonl", "\n")) if
            isinstance(item, Skipped)] == ["empty"]  # fmt: skip
    lines = write(tmp_path / "y.jsonl", '{"text": ""}\n{"text": "a"}\n')
    assert isinstance(read(lines)[0], Skipped)


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ("{", "x.jsonl:1 is not JSON"),
        ('{"text": "a"}\n[]', 'x.jsonl:2 has no field "text"'),
        ('{"text": 1}', 'x.jsonl:1 has no field "text"'),
        (b'{"text": "\xff"}', "x.jsonl:1 is not JSON"),
        ("[" * 100_000, "x.jsonl:1 is not JSON"),
    ],
)
def test_a_line_that_is_no_document_is_refused(
    tmp_path: Path, content: str | bytes, seen: str
) -> None:
    with pytest.raises(DataError) as caught:
        read(write(tmp_path / "x.jsonl", content))
    assert seen in caught.value.message


def test_a_few_broken_characters_are_replaced_and_counted(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + b"plain words " * 30 + b"\xff " + "\ufffd".encode()
    (item,) = read(write(tmp_path / "x", text))
    assert isinstance(item, TextDocument)
    assert item.num_replaced == 1
    assert item.text.count("\ufffd") == 2
    assert item.text.startswith("plain")
    lines = write(tmp_path / "x.jsonl", json.dumps({"text": "word " * 40 + "\ud800"}))
    (item,) = read(lines)
    assert isinstance(item, TextDocument)
    assert (item.num_replaced, item.text[-1]) == (1, "\ufffd")


def test_pipes_and_dangling_links_in_a_folder_are_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    assert [item.reason for item in read(tmp_path) if isinstance(item, Skipped)] == [
        "not a file"
    ] * 2
    for name in ("pipe", "link", "absent"):
        with pytest.raises(DataError, match="no file or folder"):
            open_corpus((tmp_path / name,))


def test_the_hash_is_the_texts_not_the_names(tmp_path: Path) -> None:
    first = write(tmp_path / "a.txt", "one"), write(tmp_path / "b.txt", "two")
    second = write(tmp_path / "c.jsonl", '{"text": "one"}\n{"text": "two"}\n')
    found = survey(open_corpus(first))
    by_hand = (3).to_bytes(8, "little") + b"one" + (3).to_bytes(8, "little") + b"two"
    assert found.sha256 == hashlib.sha256(by_hand).hexdigest()
    assert survey(open_corpus((second,))).sha256 == found.sha256
    assert survey(open_corpus(first[::-1])).sha256 != found.sha256
    assert survey(open_corpus((write(tmp_path / "d", "onetwo"),))).sha256 != found.sha256


def test_the_standard_library_is_there_without_its_tests() -> None:
    corpus = standard_library()
    assert len(corpus.files) > 400
    assert {"argparse.py", "decoder.py", "__init__.py"} <= {path.name for path in corpus.files}
    parts = {part for path in corpus.files for part in path.parts[-3:]}
    assert not parts & {"test", "tests", "idle_test", "site-packages", "__pycache__"}
    assert not any(path.name.startswith("_sysconfigdata") for path in corpus.files)
    assert sum(path.stat().st_size for path in corpus.files) > 8e6
    assert open_corpus(()).files == corpus.files
    assert corpus.name == f"python3.{sys.version_info.minor}"


# tokenizer


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


# prepare


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


# a prepared folder that is not what it was


@pytest.fixture
def copy(prepared: PreparedText, tmp_path: Path) -> Path:
    for name, content in contents(prepared.folder).items():
        write(tmp_path / "copy" / name, content)
    return tmp_path / "copy"


@pytest.mark.parametrize("name", ["train.bin", "heldout.bin", "tokenizer.json"])
def test_a_changed_byte_is_seen(copy: Path, name: str) -> None:
    verify(copy)
    raw = bytearray((copy / name).read_bytes())
    raw[len(raw) // 2] ^= 1
    (copy / name).write_bytes(raw)
    with pytest.raises(DataError, match="does not match its manifest"):
        verify(copy)


def test_the_files_of_another_corpus_are_seen(copy: Path) -> None:
    for suffix in ("bin", "idx"):
        (copy / f"train.{suffix}").write_bytes((copy / f"heldout.{suffix}").read_bytes())
    with pytest.raises(DataError, match="does not match its manifest"):
        open_part(copy, "train")


def test_a_model_with_too_small_a_vocabulary_is_refused(prepared: PreparedText) -> None:
    largest = prepared.manifest.max_token
    assert open_part(prepared.folder, "train", largest + 1).tokens.size
    with pytest.raises(DataError, match=f"beyond a vocabulary of {largest}"):
        open_part(prepared.folder, "train", largest)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_objective_trains_on_a_prepared_folder(prepared: PreparedText, objective: str) -> None:
    batches = open_batches(prepared.folder, "train", objective, seq_len=64, shard=Shard(batch=3))
    batch, info = batches(0), prepared.manifest.tokens
    assert batch.inputs.shape == (3, 64)
    assert batch.inputs.max() < info.vocab_size
    assert (info.mask in batch.inputs) == (objective == "masked")
    assert (info.sentinels[0] in batch.inputs) == (objective == "spans")
    if objective == "masked":
        assert set(batch.inputs[:, 0]) == {info.cls}
        assert set(batch.inputs[:, -1]) == {info.sep}
    with pytest.raises(DataError, match="beyond a vocabulary"):
        open_batches(
            prepared.folder, "train", objective, seq_len=64, shard=Shard(batch=3), vocab_size=300
        )


def test_a_tokenizer_without_what_an_objective_needs_is_refused(copy: Path) -> None:
    content = json.loads((copy / "manifest.json").read_text())
    shard = Shard(batch=1)
    assert open_batches(copy, "heldout", "masked", seq_len=8, shard=shard)(0).inputs[0, 0] == 2
    content["tokens"] |= {"mask": None, "cls": None}
    for lacking, seen in (({"pad": None}, "padding token"), ({"sentinels": []}, "sentinels")):
        content["tokens"] |= lacking
        (copy / "manifest.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match=f"has no {seen}"):
            open_batches(copy, "heldout", "spans", seq_len=8, shard=shard)
    with pytest.raises(DataError, match="has no mask token"):
        open_batches(copy, "heldout", "masked", seq_len=8, shard=shard)
    assert open_batches(copy, "heldout", "causal", seq_len=8, shard=shard).num_samples > 1
    with pytest.raises(UsageError, match="no objective prefix"):
        open_batches(copy, "heldout", "prefix", seq_len=8, shard=shard)


def test_a_missing_tokenizer_is_seen(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="cannot read"):
        verify(copy)


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is no manifest of schema 1"),
        ('{"schema": 2}', "is no manifest of schema 1"),
        ('{"schema": 1}', "the fields of its part"),
    ],
)
def test_a_foreign_manifest_is_refused(copy: Path, content: str, seen: str) -> None:
    (copy / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=seen):
        read_manifest(copy)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["num_bytes"], "12"),
        (["num_bytes"], True),
        (["num_bytes"], -1),
        (["unigram_entropy_nats"], math.nan),
        (["split"], None),
        (["train", "num_tokens"], 1.5),
        (["tokens", "sentinels"], [1, "2"]),
        (["tokens", "end"], "0"),
        (["tokens", "extra"], 0),
        (["heldout"], []),
    ],
)
def test_a_damaged_manifest_is_refused(copy: Path, path: list[str], value: object) -> None:
    content = json.loads((copy / "manifest.json").read_text())
    place = content
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    (copy / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="is damaged"):
        read_manifest(copy)


def test_no_folder_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        verify(tmp_path / "absent")


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
