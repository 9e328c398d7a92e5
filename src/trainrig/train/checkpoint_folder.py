"""Checkpoints on disk: which are whole, what they were saved for, whether they are still unchanged.

    FOLDER/                     the checkpoints of one training
      step-000000100/           one, whole: the next step is number 100
        __0_0.distcp ...        tensors, a file or more of each rank (torch.distributed.checkpoint)
        .metadata               which tensor lies where
        checkpoint.json         all that is no tensor; bytes and CRC-32 of each file above
      .draft-000000200/         one that is being written, or was broken off

A checkpoint is written as a draft, synced, and renamed when every rank is done and checkpoint.json
is there: a folder without a leading dot is whole, whenever the writer was killed.  A CRC-32 finds
what was truncated or has changed by accident, and no forger.

Reads and renames; tensors are the business of `native.checkpoint`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig.errors import DataError, UsageError, reading
from trainrig.store import write_atomic
from trainrig.train.config import Experiment, to_dict

SCHEMA = 2
FOLDER = ".checkpoints"
"""Folder of checkpoints in a run's folder; hidden files are left out of bundles."""
MANIFEST = "checkpoint.json"
AGAIN = "train from the start, or name another run"
LAYOUT_KEYS = frozenset(
    {
        *("framework", "parallel", "nproc", "zero", "shard_size", "tp", "sequence_parallel"),
        *("pp", "interleave", "schedule", "cp", "ep", "offload", "recompute"),
        *("batch_size", "grad_accum"),
    }
)
"""What says how a step is spread over ranks and micro-batches: any of them may resume any other, as
long as a step has as many samples."""
_FREE = LAYOUT_KEYS | {
    *("steps", "data", "init", "name", "rounds", "threads", "devices", "p2p", "bind"),
    *("comparable", "why"),
    *("checkpoint_every", "checkpoint_interval", "keep_checkpoints"),
    *("heldout_batches", "heldout_every", "log", "divergence", "max_restarts", "min_nproc"),
    "decay_steps",  # of a run: what was planned at its first start (`runner.train_resume`)
}
"""Keys that may differ between a training and its resume."""
_WHOLE = re.compile(r"step-(\d+)")
_DRAFT = ".draft-"
_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A whole checkpoint: all of it that is no tensor."""

    path: Path
    next_step: int
    tokens: int
    """Trained before it, on all ranks."""
    experiment: Mapping[str, Any]
    """The flat keys of what was trained."""
    ranks: int
    """Number of ranks that saved it."""
    numbers: Mapping[str, Any]
    """The loop's numbers beside its tensors, see `native.loop.Engine.state`."""
    files: Mapping[str, tuple[int, int]]
    """Bytes and CRC-32 of each, by name."""

    @property
    def layout(self) -> dict[str, Any]:
        """Return the keys that say how it was spread over ranks."""
        return {key: self.experiment.get(key) for key in LAYOUT_KEYS}


def place_of(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint in front of ``step``."""
    return folder / f"step-{step:09d}"


def draft_of(folder: Path, step: int) -> Path:
    """Return the folder that a checkpoint is written to before it is complete."""
    return folder / f"{_DRAFT}{step:09d}"


def checkpoints_in(run_or_checkpoint: Path) -> Path:
    """Return the folder of checkpoints that a run, a folder of them or one of them means.

    UsageError where there are several, or none.
    """
    if newest(run_or_checkpoint) is not None:
        return run_or_checkpoint
    folders = sorted(folder for folder in (run_or_checkpoint / FOLDER).glob("*") if newest(folder))
    if len(folders) > 1:
        names = ", ".join(folder.name for folder in folders)
        raise UsageError(
            f"{run_or_checkpoint} has checkpoints of {names}", f"name one: {folders[0]}"
        )
    if not folders:
        hint = "trainrig train saves them of a single experiment; in a file: checkpoint_every"
        raise UsageError(f"{run_or_checkpoint} has no checkpoint", hint)
    return folders[0]


def steps_in(folder: Path) -> list[int]:
    """Return the next step of each whole checkpoint, the newest last."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := _WHOLE.fullmatch(name)))


def newest(path: Path) -> Path | None:
    """Return the checkpoint at ``path``, or the last whole one of a training's folder."""
    if (path / MANIFEST).exists():
        return path
    steps = steps_in(path)
    return place_of(path, steps[-1]) if steps else None


def broken_off(folder: Path) -> list[int]:
    """Return the steps of drafts that nobody finished."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    steps = [name.removeprefix(_DRAFT) for name in names if name.startswith(_DRAFT)]
    return sorted(int(step) for step in steps if step.isdecimal())


def remove_drafts(folder: Path) -> None:
    """Free the space of what was broken off."""
    for path in folder.glob(f"{_DRAFT}*") if folder.is_dir() else ():
        shutil.rmtree(path, ignore_errors=True)


def publish(folder: Path, step: int, content: Mapping[str, Any], count: int) -> None:
    """Make a draft, complete but for its manifest, the newest checkpoint; ``count`` of them stay.

    Raises StoreError, OSError.
    """
    draft, place = draft_of(folder, step), place_of(folder, step)
    write_atomic(draft / MANIFEST, json.dumps({"schema": SCHEMA, **content}))
    _sync(draft)
    if place.exists():  # an older checkpoint was resumed, and its steps trained again
        _remove(place)
    draft.rename(place)
    _sync(folder)
    for old in steps_in(folder)[:-count]:
        _remove(place_of(folder, old))


def _remove(place: Path) -> None:
    """Take a checkpoint away at once: what is left of it, if this is broken off, is a draft."""
    doomed = place.with_name(_DRAFT + "removed")
    shutil.rmtree(doomed, ignore_errors=True)
    place.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system that has no such thing
            os.fsync(handle)
    finally:
        os.close(handle)


def checksums(folder: Path, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return bytes and CRC-32 of files, by name.  Raises OSError."""
    checksum_by_name = {}
    for name in names:
        size = crc = 0
        with (folder / name).open("rb") as file:
            while chunk := file.read(_CHUNK):
                size, crc = size + len(chunk), zlib.crc32(chunk, crc)
        checksum_by_name[name] = size, crc
    return checksum_by_name


def read_saved(path: Path) -> Saved:
    """Return the checkpoint at ``path``, or the newest of that folder; its files are not read yet.

    Raises DataError for what is no checkpoint of this version.
    """
    place = newest(path)
    if place is None:
        old = path.is_file() or path.with_suffix(".pt").is_file()
        words = "an older trainrig saved it as one file" if old else "no whole checkpoint"
        raise DataError(f"{path}: {words}", AGAIN)
    try:
        with reading(place / MANIFEST, AGAIN):
            content = json.loads((place / MANIFEST).read_text())
        if content["schema"] != SCHEMA:
            raise DataError(f"{place} is of schema {content['schema']}, not {SCHEMA}", AGAIN)
        return Saved(
            path=place,
            next_step=int(content["next_step"]),
            tokens=int(content["tokens"]),
            experiment=dict(content["experiment"]),
            ranks=int(content["ranks"]),
            numbers=dict(content["numbers"]),
            files={name: (int(size), int(crc)) for name, (size, crc) in content["files"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{place / MANIFEST} is no checkpoint's, or truncated", AGAIN) from None


def damage(saved: Saved, part: int = 0, parts: int = 1) -> str | None:
    """Return in one line what is damaged in a checkpoint, or None; each rank reads its part."""
    for name in sorted(saved.files)[part::parts]:
        try:
            checksum = checksums(saved.path, [name])[name]
        except OSError as error:
            return f"cannot read {saved.path / name}: {error.strerror}"
        size, crc = saved.files[name]
        if checksum[0] != size:
            return f"{saved.path / name} has {checksum[0]} bytes of {size}: it is truncated"
        if checksum[1] != crc:
            return f"{saved.path / name} has changed since it was saved (CRC-32)"
    return None


def older_than(saved: Saved) -> str:
    """Return the hint that names the newest checkpoint older than a damaged one."""
    steps = [step for step in steps_in(saved.path.parent) if step < saved.next_step]
    if not steps:
        return AGAIN
    return f"remove {saved.path}, and --resume goes on from step {steps[-1]}"


def check_same(saved: Saved, experiment: Experiment) -> None:
    """Raise DataError where a checkpoint was saved for another training."""
    known, requested = saved.experiment, to_dict(experiment)
    for name in sorted((requested.keys() | known.keys()) - _FREE):
        if requested.get(name) != known.get(name):
            raise DataError(
                f"{saved.path} was trained with {name} = {known.get(name)}, "
                f"not {requested.get(name)}",
                "resume with the same experiment, or train from the start",
            )
    before = Experiment.of(**known)
    if before.global_samples != experiment.global_samples:
        raise DataError(
            f"{saved.path} was trained with {before.global_samples} samples a step, not "
            f"{experiment.global_samples}",
            "batch_size x grad_accum x data-parallel ranks stay the same",
        )
