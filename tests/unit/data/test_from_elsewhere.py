"""Data that other programs made: Megatron's tokens, tables of Hugging Face's datasets, parquet."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainrig.data import megatron_indexed
from trainrig.data import prepare as prepare_module
from trainrig.data.batches import Shard
from trainrig.data.corpus import open_corpus
from trainrig.data.manifest import MANIFEST, open_part, read_manifest
from trainrig.data.open_batches import open_batches
from trainrig.data.prepare import prepare, verify
from trainrig.data.tokenizer import load_tokenizer, train_tokenizer
from trainrig.errors import DataError, UnavailableError
from trainrig.runner.train_prepare import with_data
from trainrig.train.config import Experiment

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "ran", "home", "again"]
TEXTS = [" ".join(WORDS[(n * 7 + k * k) % 10] for k in range(40 + n)) for n in range(60)]


def vocabulary(folder: Path) -> None:
    """GPT-2's two files, as Megatron-LM is given them."""
    model = json.loads(train_tokenizer(TEXTS, 380).content)["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + merges + "\n")


def megatron(folder: Path, documents: list[list[int]], dtype: Any = np.uint16) -> Path:
    """A pair that Megatron-Core itself writes."""
    made = pytest.importorskip("megatron.core.datasets.indexed_dataset", reason="needs megatron")
    folder.mkdir()
    prefix = folder / "my_text_document"
    builder = made.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for ids in documents:
        builder.add_document(np.array(ids, dtype=dtype), [len(ids)])
    builder.finalize(f"{prefix}.idx")
    return prefix


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Tokens and vocabulary in one folder, without anything of ours."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    vocabulary(scratch)
    coder = load_tokenizer(scratch)
    documents = [ids.tolist() for ids in coder.encode(TEXTS)]
    megatron(tmp_path / "theirs", documents)
    for name in ("vocab.json", "merges.txt"):
        (scratch / name).rename(tmp_path / "theirs" / name)
    return tmp_path / "theirs"


def test_a_book_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One document of 16 MB takes a piece of memory, not itself; its numbers are the same."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    vocabulary(theirs)
    ids = np.random.default_rng(0).integers(0, 300, 1 << 23).astype("<u2")
    with megatron_indexed.IndexedWriter(theirs / "book", "<u2") as writer:
        writer.add(ids)
    for module in (prepare_module, megatron_indexed):
        monkeypatch.setattr(module, "_PIECE", 1 << 16)
    tracemalloc.start()
    made = prepare((theirs,), out=tmp_path / "out")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < ids.nbytes / 4
    found = open_part(made.folder, "heldout").tokens
    tail = ids[ids.size - int(0.05 * ids.size) :]
    assert made.manifest.split == "tails" and np.array_equal(found, tail)
    shares = np.unique(tail, return_counts=True)[1] / tail.size
    entropy = float(-(shares * np.log(shares)).sum())
    assert made.manifest.unigram_entropy_nats == pytest.approx(entropy, rel=1e-12)


def test_megatrons_tokens_train_without_a_manifest(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    own = Experiment.of(
        model="gpt2:num_layers=1,hidden=32,num_heads=2,vocab=400,max_positions=32",
        data=str(elsewhere),
        seq_len=16,
        batch_size=2,
    )
    (ready,) = with_data([own], lambda _: None)
    folder = Path(ready.data)
    assert folder.parent == tmp_path / "data" and (folder / MANIFEST).exists()
    found = verify(folder)
    assert found.num_documents == 60 and found.tokens.end is not None
    coder = load_tokenizer(folder)
    texts = {
        coder.decode(open_part(folder, part).document(number).astype(np.int64))
        for part in ("train", "heldout")
        for number in range(getattr(found, part).num_documents)
    }
    assert texts == set(TEXTS)
    batches = open_batches(folder, "train", "causal", seq_len=16, shard=Shard(batch=2))
    assert batches(0).inputs.shape == (2, 16)
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == before
    (again,) = with_data([own], lambda _: None)
    assert again.data == ready.data


def test_an_id_out_of_range_is_refused_with_its_document(elsewhere: Path, tmp_path: Path) -> None:
    megatron(tmp_path / "other", [[1, 2, 3], [4, 5], [6, 999, 7]])
    with pytest.raises(DataError, match=r"document 2 \(from 0\) has token id 999, beyond") as error:
        prepare((tmp_path / "other",), out=tmp_path / "out", tokenizer=elsewhere)
    assert "--tokenizer" in (error.value.hint or "")
    assert not (tmp_path / "out").exists()


def test_tokens_without_a_tokenizer_are_refused(tmp_path: Path) -> None:
    prefix = megatron(tmp_path / "other", [[1, 2, 3]])
    for path in (prefix, prefix.with_suffix(".bin"), prefix.parent):
        with pytest.raises(DataError, match="tokenizer"):
            prepare((path,), out=tmp_path / "out")


def test_berts_vocabulary_is_read(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    coder = load_tokenizer(tmp_path)
    (ids,) = coder.encode(["The cats sat"])
    assert ids.tolist() == [5, 6, 15, 7, 3] and coder.unknown == 1
    assert (coder.info.cls, coder.info.mask, coder.info.vocab_size) == (2, 4, 16)
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(DataError, match=r"vocab\.json is no vocabulary"):
        load_tokenizer(tmp_path)


def test_words_of_a_vocabulary_end_at_line_feeds_alone(tmp_path: Path) -> None:
    """One id for each line, whatever is in it: all behind would be another word's."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a\u2028b", "\x85", *WORDS]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    coder = load_tokenizer(tmp_path)
    assert coder.info.vocab_size == len(words)
    assert coder.tokenizer.token_to_id(WORDS[0]) == 7


# ---- tables


Write = Callable[[Path, Mapping[str, list[Any]]], None]


def parquet(path: Path, columns: Mapping[str, list[Any]]) -> None:
    pyarrow = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    pyarrow.write_table(table(columns), path.with_suffix(".parquet"))


def saved_to_disk(path: Path, columns: Mapping[str, list[Any]]) -> None:
    """As `datasets` 4 lays a set out: a stream of Arrow, and JSON that is no text beside it."""
    ipc = pytest.importorskip("pyarrow.ipc", reason="needs pyarrow")
    path.mkdir()
    made = table(columns)
    with ipc.new_stream(path / "data-00000-of-00001.arrow", made.schema) as stream:
        stream.write_table(made)
    (path / "state.json").write_text('{"_format_type": null}')
    (path / "dataset_info.json").write_text('{"features": {}}')


def arrow_file(path: Path, columns: Mapping[str, list[Any]]) -> None:
    ipc = pytest.importorskip("pyarrow.ipc", reason="needs pyarrow")
    made = table(columns)
    with ipc.new_file(path.with_suffix(".arrow"), made.schema) as file:
        file.write_table(made)


def table(columns: Mapping[str, list[Any]]) -> Any:
    return pytest.importorskip("pyarrow", reason="needs pyarrow").table(columns)


TABLES = [parquet, saved_to_disk, arrow_file]


@pytest.mark.parametrize("write", TABLES)
def test_tables_give_what_text_files_give(write: Write, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "set", {"id": list(range(60)), "body": TEXTS})
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    found = prepare((tmp_path / "in",), out=tmp_path / "a", vocab_size=400, text_key="body")
    other = prepare((lines,), out=tmp_path / "b", vocab_size=400)
    assert found.manifest == other.manifest and found.manifest.num_skipped == 0
    assert read_manifest(tmp_path / "a").num_documents == 60


@pytest.mark.parametrize(
    ("names", "rule"),
    [
        (("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"), "files"),
        (("train/a.txt", "validation/a.txt", "test/a.txt"), "files"),
        (("en/train-00000-of-00001.txt", "en/test-00000-of-00001.txt"), "files"),
        (("train.txt", "valid.txt", "README.txt"), "tails"),
        (("valid.txt", "test.txt", "contest.txt"), "tails"),
        (("latest.txt", "contest.txt", "attested.txt"), "tails"),
    ],
)
def test_a_corpus_is_split_as_all_of_its_files_say(
    names: tuple[str, ...], rule: str, tmp_path: Path
) -> None:
    """Held out is validation, or test where there is none; test is never trained on."""
    for name, text in zip(names, ("train on this", "hold this out", "never seen"), strict=False):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(f"{text} " * 200)
    said: list[str] = []
    found = prepare((tmp_path / "in",), out=tmp_path / "out", vocab_size=380, say=said.append)
    assert found.manifest.split == rule
    coder = load_tokenizer(tmp_path / "out")
    train, held = (
        coder.tokenizer.decode(open_part(tmp_path / "out", name).tokens.tolist())
        for name in ("train", "heldout")
    )
    if rule == "files":
        assert set(train.split()) == {"train", "on", "this"}
        assert set(held.split()) == {"hold", "this", "out"}
        assert any("held out are" in line for line in said)
        assert found.manifest.num_documents == 2
        assert any("left out" in line and "test" in line for line in said) is (len(names) > 2)
        other = prepare((tmp_path / "in",), out=tmp_path / "out", vocab_size=380)
        assert other.reused
    else:
        assert {"hold", "this"} <= set(train.split())
        line = next((one for one in said if "no part is said by" in one), "")
        assert ("README.txt" in line) is ("README.txt" in names)


def test_folders_that_are_named_say_their_part(tmp_path: Path) -> None:
    """Of several; one that is named alone may be called anything."""
    for name in ("train", "dev", "test"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.txt").write_text(f"{name} " * 300)
    folders = tuple(tmp_path / name for name in ("train", "dev", "test"))
    found = open_corpus(folders)
    assert found.files == (folders[0] / "0.txt", folders[1] / "0.txt")
    assert found.heldout == {folders[1] / "0.txt"} and found.left_out == (folders[2] / "0.txt",)
    assert open_corpus((folders[0],)).files == (folders[0] / "0.txt",)
    assert not open_corpus((tmp_path / "train", tmp_path / "train" / "0.txt")).heldout


@pytest.mark.parametrize("write", TABLES)
def test_what_is_no_text_is_refused_by_its_row(write: Write, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "set", {"text": ["a cat", None, "a mat"], "more": ["x", "y", "z"]})
    with pytest.raises(DataError, match=r'row 2: "text" is NoneType, no text'):
        prepare((tmp_path / "in",), out=tmp_path / "out")
    with pytest.raises(DataError, match='has no column "body"') as error:
        prepare((tmp_path / "in",), out=tmp_path / "out", text_key="body")
    assert error.value.hint == "--text-key, of: text, more"


def test_a_truncated_table_and_a_line_without_the_field_are_one_line(tmp_path: Path) -> None:
    parquet(tmp_path / "whole", {"text": TEXTS})
    data = (tmp_path / "whole.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"cut\.parquet, behind row 0: ") as error:
        prepare((tmp_path / "cut.parquet",), out=tmp_path / "out")
    assert "\n" not in error.value.message
    (tmp_path / "x.jsonl").write_text('{"body": "a"}\n{"text": "b"}\n')
    with pytest.raises(DataError, match=r'x\.jsonl:2 has no field "body"'):
        prepare((tmp_path / "x.jsonl",), out=tmp_path / "out", text_key="body")


def test_without_pyarrow_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet(tmp_path / "whole", {"text": TEXTS})
    monkeypatch.setattr("trainrig.data.corpus.find_spec", lambda _: None)
    assert "pyarrow" in sys.modules
    with pytest.raises(UnavailableError, match=r"whole\.parquet: pyarrow is not installed"):
        prepare((tmp_path / "whole.parquet",), out=tmp_path / "out")
