"""A prepared folder that is not what it was, and what is trained on one."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from small_corpus import contents, write
from trainrig.data.batches import Shard
from trainrig.data.manifest import open_part, read_manifest
from trainrig.data.open_batches import OBJECTIVES, open_batches
from trainrig.data.prepare import PreparedText, verify
from trainrig.errors import DataError, UsageError


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
