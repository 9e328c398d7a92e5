"""Saved under one layout, resumed under the same or another one; what is broken is refused."""

from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

import checkpoint_ranks
import gloo_ranks
import rank_program
from trainrig.errors import DataError, StoreError
from trainrig.train import checkpoint_folder
from trainrig.train.config import Experiment, to_dict
from trainrig.train.native import checkpoint, safe_reader
from trainrig.train.native.loop import Engine

TINY = Experiment.of(
    model="gpt2", batch_size=4, seq_len=16, steps=6, precision="fp32", warmup=0, lr=1e-2
)
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def engine_for(experiment: Experiment = TINY) -> Engine:
    return gloo_ranks.engine_for(experiment)[0]


def train(engine: Engine, steps: int) -> list[Row]:
    rows: list[Row] = []
    with engine:
        engine.run(rows.append, lambda step: step >= steps)
    return rows


def save(engine: Engine, folder: Path) -> Path:
    with checkpoint.Saver(engine, folder) as saver:
        saver.save(last=True)
    return checkpoint_folder.place_of(folder, engine.next_step)


def trained(steps: int, experiment: Experiment = TINY) -> Engine:
    engine = engine_for(experiment)
    train(engine, steps)
    return engine


def same(one: Engine, other: Engine) -> bool:
    pairs = zip(one.weights.master.values(), other.weights.master.values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# ---- one process


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path: Path, dtype: str) -> None:
    experiment = TINY.replace(precision=dtype)
    whole = engine_for(experiment)
    expected = train(whole, 6)
    save(trained(3, experiment), tmp_path)
    second = engine_for(experiment)
    checkpoint.load(second, tmp_path)
    resumed = train(second, 6)
    assert [row["step"] for row in resumed] == [3, 4, 5]
    assert [row["loss"] for row in resumed] == [row["loss"] for row in expected[3:]]
    assert same(second, whole)


def test_a_resume_that_forgot_the_moments_would_be_seen(tmp_path: Path) -> None:
    first = trained(3)
    for state in first.optimizer.state.values():
        state["exp_avg"].zero_()
    save(first, tmp_path)
    second = engine_for()
    checkpoint.load(second, tmp_path)
    train(second, 6)
    assert not same(second, trained(6))


def test_random_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    engine = trained(1)
    torch.manual_seed(5)
    save(engine, tmp_path)
    expected = torch.rand(4)
    torch.manual_seed(6)
    checkpoint.load(engine_for(), tmp_path)
    assert torch.equal(torch.rand(4), expected)


def test_fp16_resumes_with_the_scale_that_it_had(tmp_path: Path) -> None:
    engine = trained(1, TINY.replace(precision="fp16"))
    engine.scaler.load_state_dict({"scale": 2.0**9, "_growth_tracker": 3})
    save(engine, tmp_path)
    again = engine_for(TINY.replace(precision="fp16"))
    checkpoint.load(again, tmp_path)
    assert float(again.scaler.factor) == 2.0**9


def test_the_training_goes_on_while_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written is what was there when saving began, however late it is written."""
    go_on, real = threading.Event(), dcp.save

    def late(*args: Any, **how: Any) -> Any:
        assert go_on.wait(60.0)
        return real(*args, **how)

    monkeypatch.setattr(dcp, "save", late)
    engine, expected = engine_for(), trained(2)
    with engine, checkpoint.Saver(engine, tmp_path) as saver:
        engine.run(lambda _: None, lambda step: step >= 2)
        saver.save()
        engine.run(lambda _: None, lambda step: step >= 5)
        assert checkpoint_folder.newest(tmp_path) is None  # a draft is none
        go_on.set()
        saver.wait()
    again = engine_for()
    checkpoint.load(again, tmp_path)
    assert again.next_step == 2 and same(again, expected)


# ---- when


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def saved_at(folder: Path, experiment: Experiment, before: Callable[[int], None]) -> list[int]:
    """Steps in front of which a training of six was saved; ``before`` is called at each."""
    engine, found = engine_for(experiment), []

    def is_due(step: int) -> bool:
        before(step)
        return saver.is_due(step) or step >= 6 or saver.ended is not None

    with engine, checkpoint.Saver(engine, folder) as saver:
        while engine.next_step < 6 and saver.ended is None:
            engine.run(lambda _: None, is_due)
            if saver.is_due(engine.next_step):
                saver.save()
                found.append(engine.next_step)
        saver.wait()
    return found


def test_it_is_saved_by_steps_and_the_newest_stay(tmp_path: Path) -> None:
    found = saved_at(tmp_path, TINY.replace(checkpoint_every=2), lambda _: None)
    assert found == [2, 4, 6]
    assert checkpoint_folder.steps_in(tmp_path) == [4, 6]
    found = saved_at(tmp_path / "one", TINY.replace(checkpoint_every=2, keep_checkpoints=1), id)
    assert checkpoint_folder.steps_in(tmp_path / "one") == [6]


def test_it_is_saved_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(checkpoint, "time", clock)

    def ten_seconds_later(step: int) -> None:
        clock.now = 10.0 * step

    own = TINY.replace(checkpoint_every=0, checkpoint_interval=25.0)
    assert saved_at(tmp_path, own, ten_seconds_later) == [3, 6]


def test_sigterm_saves_and_ends(tmp_path: Path) -> None:
    def terminated(step: int) -> None:
        if step == 3:
            signal.raise_signal(signal.SIGTERM)

    own = TINY.replace(checkpoint_every=0)
    assert saved_at(tmp_path, own, terminated) == [3]
    again = engine_for(own)
    checkpoint.load(again, tmp_path)
    assert again.next_step == 3 and same(again, trained(3, own))


# ---- what is broken, or of another training


def broken(place: Path, what: str) -> None:
    (tensors,) = place.glob("*.distcp")
    content = tensors.read_bytes()
    manifest = place / checkpoint_folder.MANIFEST
    if what == "truncated":
        tensors.write_bytes(content[:-100])
    elif what == "changed":
        tensors.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
    elif what == "missing":
        tensors.unlink()
    elif what == "half a manifest":
        manifest.write_text(manifest.read_text()[:-10])
    elif what == "a newer schema":
        manifest.write_text(json.dumps({"schema": 99}))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("truncated", r"_0.distcp has \d+ bytes of \d+: it is truncated"),
        ("changed", "has changed since it was saved"),
        ("missing", "No such file"),
        ("half a manifest", "or truncated"),
        ("a newer schema", "schema 99, not 2"),
    ],
)
def test_a_broken_checkpoint_is_refused_in_one_line(tmp_path: Path, what: str, words: str) -> None:
    save(trained(1), tmp_path)
    broken(save(trained(2), tmp_path), what)
    with pytest.raises(DataError, match=words) as refused:
        checkpoint.load(engine_for(), tmp_path)
    assert "\n" not in refused.value.message
    if what in ("truncated", "changed", "missing"):
        assert "goes on from step 1" in str(refused.value.hint)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no whole checkpoint"):
        checkpoint.load(engine_for(), tmp_path / "absent")
    torch.save({}, tmp_path / "old.pt")
    with pytest.raises(DataError, match="an older trainrig saved it as one file"):
        checkpoint.load(engine_for(), tmp_path / "old.pt")


@pytest.mark.parametrize(
    ("change", "words"),
    [({"lr": 1.0}, "lr = "), ({"seed": 1}, "seed = "), ({"batch_size": 8}, "4 samples a step")],
)
def test_another_training_is_refused(tmp_path: Path, change: Mapping[str, Any], words: str) -> None:
    save(trained(1), tmp_path)
    with pytest.raises(DataError, match=words):
        checkpoint.load(engine_for(TINY.replace(**change)), tmp_path)


class Planted:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/planted-by-a-checkpoint",)


def test_metadata_that_would_run_something_is_refused(tmp_path: Path) -> None:
    place = save(trained(1), tmp_path)
    (place / ".metadata").write_bytes(pickle.dumps(Planted()))
    manifest = place / checkpoint_folder.MANIFEST
    content = json.loads(manifest.read_text())
    content["files"] |= checkpoint_folder.checksums(place, [".metadata"])
    manifest.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"names posix.mkdir"):
        checkpoint.load(engine_for(), tmp_path)
    assert not Path("/tmp/planted-by-a-checkpoint").exists()


def hostile(place: Path, change: Callable[[dcp.Metadata], None]) -> None:
    """Metadata that a stranger wrote, with a manifest that agrees with it."""
    metadata = pickle.loads((place / ".metadata").read_bytes())  # noqa: S301 - our own fixture
    change(metadata)
    (place / ".metadata").write_bytes(pickle.dumps(metadata))
    manifest = place / checkpoint_folder.MANIFEST
    content = json.loads(manifest.read_text())
    content["files"] |= checkpoint_folder.checksums(place, [".metadata", *content["files"]])
    manifest.write_text(json.dumps(content))


@pytest.mark.parametrize("which", ["training", "weights"])
def test_an_object_in_the_place_of_a_tensor_is_not_loaded(tmp_path: Path, which: str) -> None:
    """torch's own planner loads such an object without asking what it runs."""
    place = save(trained(1), tmp_path)

    def change(metadata: dcp.Metadata) -> None:
        name = next(name for name in metadata.state_dict_metadata if name.startswith("weights/"))
        metadata.state_dict_metadata[name] = BytesStorageMetadata()
        index = next(each for each in metadata.storage_data if each.fqn == name)
        file = place / metadata.storage_data.pop(index).relative_path
        start = file.stat().st_size
        with file.open("ab") as stream:
            torch.save(Planted(), stream)
        size = file.stat().st_size - start
        where = _StorageInfo(file.name, start, size)
        metadata.storage_data[MetadataIndex(name)] = where

    hostile(place, change)
    engine = engine_for()
    with pytest.raises(DataError, match=r"is no tensor there"):
        if which == "training":
            checkpoint.load(engine, tmp_path)
        else:
            checkpoint.load_weights(checkpoint_folder.read_saved(tmp_path), engine.model)
    assert not Path("/tmp/planted-by-a-checkpoint").exists()


@pytest.mark.parametrize("name", ["../other", "/etc/passwd"])
def test_a_file_of_another_folder_is_not_read(tmp_path: Path, name: str) -> None:
    place = save(trained(1), tmp_path)

    def change(metadata: dcp.Metadata) -> None:
        index = next(iter(metadata.storage_data))
        metadata.storage_data[index] = _StorageInfo(name, 0, 8)

    hostile(place, change)
    with pytest.raises(DataError, match=f"names the file {name}"):
        checkpoint.load(engine_for(), tmp_path)


def test_megatrons_old_names_of_records_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until 0.15 its optimizers' checkpoints had metadata of a class of its own."""
    place = save(trained(1), tmp_path)
    name = "megatron.core.dist_checkpointing.strategies.torch"
    theirs = type("MCoreMetadata", (dcp.Metadata,), {"__module__": name})
    module = ModuleType(name)
    module.MCoreMetadata = theirs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    whole = safe_reader.SafeReader(place).read_metadata()
    own = theirs(**vars(whole))
    own.mcore_data = {"weight": {"nd_reformulated_orig_global_shape": (2, 2)}}
    (place / ".metadata").write_bytes(pickle.dumps(own))
    found = safe_reader.SafeReader(place).read_metadata()
    assert type(found) is dcp.Metadata
    assert found.state_dict_metadata == whole.state_dict_metadata


@pytest.mark.parametrize("at", ["the tensors", "the manifest", "the renaming"])
def test_a_full_disk_leaves_the_one_before_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    save(trained(1), tmp_path)
    engine = trained(2)

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        if at == "the tensors":
            patched.setattr(os, "fsync", full)
        elif at == "the manifest":
            patched.setattr(checkpoint_folder, "write_atomic", full)
        else:
            patched.setattr(Path, "rename", full)
        with pytest.raises(StoreError, match="No space left on device") as told:
            save(engine, tmp_path)
    assert "--resume" in str(told.value.hint) and "\n" not in told.value.message
    again = engine_for()
    checkpoint.load(again, tmp_path)
    assert again.next_step == 1 and same(again, trained(1))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
    save(engine, tmp_path)
    assert checkpoint_folder.steps_in(tmp_path) == [1, 2]


def test_nowhere_to_write_is_one_line() -> None:
    with pytest.raises(StoreError, match="cannot save a checkpoint in /proc/none"):
        save(trained(1), Path("/proc/none"))


# ---- two ranks


LAYOUTS: dict[str, dict[str, Any]] = {
    "zero3": {"nproc": 2, "batch_size": 4, "zero": 3},
    "tp": {"nproc": 2, "tp": 2, "sequence_parallel": True},
    "zbv": {"nproc": 2, "pp": 2, "grad_accum": 4, "batch_size": 2, "interleave": 2}
    | {"schedule": "zbv"},
}
"""zbv: both ends of the pipeline, and so both copies of the tied embedding, lie on one rank."""
PAIRS = [*((name, name) for name in LAYOUTS), ("one", "zero3"), ("zero3", "tp"), ("tp", "zbv")]
WIDE = TINY.replace(model="deep", batch_size=8)


def case(name: str, folder: Path, save: int = 0) -> dict[str, Any]:
    own = WIDE.replace(**LAYOUTS.get(name, {}))
    return {"folder": str(folder), "save": save, "experiment": to_dict(own)}


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, str], list[float]]:
    """The three losses behind the checkpoint by (saved under, resumed under); ("", X): of X."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.set_num_threads(1)
    found = {("", "one"): checkpoint_ranks.act(case("one", folder / "one", save=2))}
    saved = {f"-> {name}": case(name, folder / name, save=2) for name in LAYOUTS}
    resumed = {f"{old} -> {new}": case(new, folder / old) for old, new in PAIRS}
    got = rank_program.run(checkpoint_ranks.__file__, saved | resumed, folder)[0]
    found |= {("", name): got[f"-> {name}"] for name in LAYOUTS}
    found |= {(old, new): got[f"{old} -> {new}"] for old, new in PAIRS}
    found["zbv", "one"] = checkpoint_ranks.act(case("one", folder / "zbv"))
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_same_layout_resumes_bit_for_bit(
    losses: Mapping[tuple[str, str], list[float]], name: str
) -> None:
    assert losses[name, name] == losses["", name]


@pytest.mark.parametrize(("saved", "resumed"), [*PAIRS[len(LAYOUTS) :], ("zbv", "one")])
def test_another_layout_goes_on(
    losses: Mapping[tuple[str, str], list[float]], saved: str, resumed: str
) -> None:
    assert losses[saved, resumed] == pytest.approx(losses["", saved], rel=1e-6)
