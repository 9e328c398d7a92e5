"""Save and resume a training, under any layout: torch.distributed.checkpoint around `Engine.state`.

A checkpoint holds the fp32 weights and the optimizer's states by their names in the whole model,
and each rank's random generators; its manifest (`train.checkpoint_folder`) the number of the next
step, which the samples follow from, the loss scale and the experiment.  How tensors lie on ranks is
no part of their names: what one layout saved, another one reads.  Under the same layout a resumed
training is equal bit for bit to one that was not interrupted (on the CPU; a GPU may sum in another
order); under another one sums are rounded in another order.

Saving: the state is copied (that is what the training waits for), then a thread writes it, through
a group of its own: beside the training's collectives on one group two threads would wait for each
other.  torch's `async_save` is the same, without a place for what follows the writing here:
checksums, sync, rename.  Where nothing is trained any more, nothing is copied.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from trainrig.errors import DataError, StoreError, TrainrigError
from trainrig.process.child import first_line
from trainrig.train.checkpoint_folder import (
    AGAIN,
    LAYOUT_KEYS,
    Saved,
    broken_off,
    check_same,
    checksums,
    damage,
    draft_of,
    older_than,
    publish,
    read_saved,
    remove_drafts,
)
from trainrig.train.config import to_dict
from trainrig.train.native.loop import Engine
from trainrig.train.native.safe_reader import METADATA, SafeReader, ignore_warning
from trainrig.train.native.world import host_group

_LATER = "free some space, then go on with --resume"


class Saver:
    """Saves an engine on all its ranks at once.  Use as a context manager, in the main thread.

    `is_due` is asked before every step, by all ranks; where it says so they all call `save`.  A
    rank's own clock and the signals that it gets are agreed upon: each rank tells the others in
    front of a step, and reads what they said in front of the next one, so that nobody waits.
    """

    def __init__(self, engine: Engine, folder: Path | None) -> None:
        """``folder`` holds this training's checkpoints and nothing else; None: none are saved."""
        self.engine = engine
        self.saved_step = -1
        """The next step of the checkpoint that was saved, or read, last."""
        self.ended: str | None = None
        """The signal that ends the training: any rank's, agreed upon."""
        self.blocked = 0.0
        """Seconds that the training waited for the last save."""
        self._folder = folder or Path()
        self._saves = folder is not None
        self._group: Any = host_group() if folder else None
        self._votes: Any = host_group() if folder else None
        self._rank = dist.get_rank() if self._group else 0
        self._ranks = dist.get_world_size() if self._group else 1
        self._signal, self._began, self._polled = 0, time.monotonic(), -1
        self._poll: tuple[Tensor, Any] | None = None
        self._is_due = False
        ignore_warning()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        on_gpu = engine.device.startswith("cuda")
        self._stager = DefaultStager(StagingOptions(on_gpu, False, False, on_gpu))
        self._before: Any = None
        self.broken_off = broken_off(folder) if folder else []
        """Steps of saves that were not finished, by an earlier training."""

    def __enter__(self) -> Saver:
        if self._saves and self._rank == 0:
            remove_drafts(self._folder)
        with suppress(ValueError):  # not the main thread: signals are the embedding program's
            if self._saves:
                self._before = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._last_votes()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
        # After an error another rank may be gone: what would wait for it is left to the end.
        self._thread.shutdown(wait=kind is None or self._group is None, cancel_futures=True)
        self._stager.close()

    @property
    def saves_last(self) -> bool:
        """Return whether to save after the last step, so that a training can be continued."""
        every_steps = self.engine.experiment.checkpoints.every
        return self._saves and every_steps > 0 and self.saved_step != self.engine.next_step

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signal = number

    def is_due(self, step: int) -> bool:
        """Return whether to save in front of ``step``.  StoreError where the last save failed."""
        if self._saves and step != self._polled:
            self._polled, self._is_due = step, self._ask(step)
        return self._is_due and step != self.saved_step

    def _ask(self, step: int) -> bool:
        experiment = self.engine.experiment
        waited = time.monotonic() - self._began
        is_late = 0 < experiment.checkpoints.interval <= waited
        writing = self._writing
        failed = writing is not None and writing.done() and writing.exception() is not None
        votes = torch.tensor([int(is_late), self._signal, int(failed)])
        any_late, number, any_failed = (int(vote) for vote in self._largest_votes(votes))
        if any_failed:
            self.wait()  # each rank has its error, or will soon
        if number:
            self.ended = signal.Signals(number).name
        by_steps = (
            step > 0 < experiment.checkpoints.every and step % experiment.checkpoints.every == 0
        )
        return bool(number or any_late or by_steps)

    def _largest_votes(self, votes: Tensor) -> Tensor:
        """Return most that any rank said in front of the step before; of one process, its own."""
        if self._votes is None:
            return votes
        last = self._last_votes()
        self._poll = (
            votes,
            dist.all_reduce(votes, dist.ReduceOp.MAX, group=self._votes, async_op=True),
        )
        return last

    def _last_votes(self) -> Tensor:
        if self._poll is None:
            return torch.zeros(3, dtype=torch.int64)
        votes, work = self._poll
        work.wait()
        self._poll = None
        return votes

    def save(self, *, last: bool = False) -> None:
        """Save between two steps, on all ranks; ``last``: nothing is trained meanwhile, wait.

        Raises StoreError, also for the save before this one.
        """
        began = time.monotonic()
        self.wait()
        self._last_votes()  # what was late is saved now; a signal is said again
        engine, step = self.engine, self.engine.next_step
        state, numbers = engine.state()
        tensors = {**state, **_random_of(engine.device, self._rank)}
        if not last:
            tensors = self._stager.stage(tensors)
        content = {
            "experiment": to_dict(engine.experiment),
            "ranks": self._ranks,
            "tokens": step * engine.experiment.global_samples * engine.experiment.seq_len,
            "next_step": step,
            "numbers": numbers,
        }
        self._writing = self._thread.submit(self._write, tensors, step, content)
        self.saved_step, self._began = step, time.monotonic()
        if last:
            self.wait()
        self.blocked = time.monotonic() - began

    def wait(self) -> None:
        """Until what is being written is whole.  Raises StoreError."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, tensors: dict[str, Any], step: int, content: dict[str, Any]) -> None:
        """Complete a checkpoint in the writer's thread; remove the files of one that failed."""
        try:
            self._whole(draft_of(self._folder, step), tensors, step, content)
        except TrainrigError:
            if self._rank == 0:
                remove_drafts(self._folder)
            raise

    def _whole(
        self, draft: Path, tensors: dict[str, Any], step: int, content: dict[str, Any]
    ) -> None:
        """Write, sum up, publish; each rank knows whether it went well on all."""
        _on_all_ranks(self._group, self._folder, lambda: _make(draft) if self._rank == 0 else None)
        try:
            writer = dcp.FileSystemWriter(draft, sync_files=True)
            dcp.save(
                tensors,
                storage_writer=writer,
                process_group=self._group,
                no_dist=self._group is None,
            )
        except dcp.CheckpointException as error:
            raise _store_error(self._folder, next(iter(error.failures.values()))[0]) from None
        shard_names = sorted(path.name for path in draft.glob(f"__{self._rank}_*"))
        shard_names += [METADATA] if self._rank == 0 else []
        parts = _on_all_ranks(self._group, self._folder, lambda: checksums(draft, shard_names))
        files = {name: mark for part in parts for name, mark in part.items()}
        count = self.engine.experiment.checkpoints.keep

        def finish() -> None:
            if self._rank == 0:
                publish(self._folder, step, {**content, "files": files}, count)

        _on_all_ranks(self._group, self._folder, finish)


def _make(draft: Path) -> None:
    draft.mkdir(parents=True, exist_ok=True)
    for path in draft.iterdir():
        path.unlink()


def _on_all_ranks(group: Any, folder: Path, act: Callable[[], Any]) -> list[Any]:
    """Return ``act``'s value on each rank.  StoreError on all of them if it failed on one."""
    value, failed = None, None
    try:
        value = act()
    except (OSError, TrainrigError) as error:
        failed = _store_error(folder, error)
    outcome: tuple[Any, TrainrigError | None] = (value, failed)
    every = [outcome]
    if group is not None:
        every = [outcome] * dist.get_world_size(group)
        dist.all_gather_object(every, outcome, group=group)
    for _, broken in every:
        if broken is not None:
            raise broken
    return [value for value, _ in every]


def _store_error(folder: Path, error: BaseException) -> TrainrigError:
    """Return a failed write in one line.

    Torch words a full disk as a RuntimeError of its own writer.
    """
    if isinstance(error, TrainrigError):
        return error
    reason = getattr(error, "strerror", None) or first_line(error)
    if "PytorchStreamWriter" in reason or "inline_container" in reason:
        reason = "No space left on device, or the file cannot be written"
    return StoreError(f"cannot save a checkpoint in {folder}: {reason}", _LATER)


def _random_of(device: str, rank: int) -> dict[str, Tensor]:
    """Return the states of a rank's random generators."""
    states = {f"random/{rank}": torch.get_rng_state()}
    if device.startswith("cuda"):
        states[f"random_cuda/{rank}"] = torch.cuda.get_rng_state(device)
    return states


def load(engine: Engine, path: Path) -> Saved:
    """Go on from the checkpoint at ``path``, or the newest in that folder; on all ranks at once.

    Raises DataError for what is no checkpoint, a damaged one, or one of another experiment.
    """
    saved, group = read_saved(path), host_group()
    check_same(saved, engine.experiment)
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if group else (0, 1)
    wrong: list[str | None] = [damage(saved, rank, ranks)]
    if group is not None:
        wrong *= ranks
        dist.all_gather_object(wrong, wrong[0], group=group)
    for words in filter(None, wrong):
        raise DataError(words, older_than(saved))
    ignore_warning()
    requested = {key: to_dict(engine.experiment).get(key) for key in LAYOUT_KEYS}
    engine.make_states()
    tensors: dict[str, Any] = dict(engine.state()[0])
    random_states = _random_of(engine.device, rank)
    if saved.ranks == ranks and saved.layout == requested:
        tensors |= random_states
    try:
        reader = SafeReader(saved.path)
        dcp.load(tensors, storage_reader=reader, process_group=group, no_dist=group is None)
        engine.load_state(saved.next_step, saved.numbers)
    except dcp.CheckpointException as error:
        raise _misfit(saved, next(iter(error.failures.values()))[0]) from None
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        raise _misfit(saved, error) from None
    torch.set_rng_state(random_states[f"random/{rank}"])
    if f"random_cuda/{rank}" in random_states:
        torch.cuda.set_rng_state(random_states[f"random_cuda/{rank}"], engine.device)
    return saved


def load_weights(saved: Saved, model: torch.nn.Module) -> None:
    """The weights alone, into a whole ``model`` of one process, whatever layout saved them.

    Raises DataError for a damaged checkpoint, or one of another model.
    """
    if (words := damage(saved)) is not None:
        raise DataError(words, older_than(saved))
    ignore_warning()
    tensors = {f"weights/{name}": weight.data for name, weight in model.named_parameters()}
    try:
        dcp.load(tensors, storage_reader=SafeReader(saved.path), no_dist=True)
    except dcp.CheckpointException as error:
        raise _misfit(saved, next(iter(error.failures.values()))[0]) from None
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        raise _misfit(saved, error) from None


def _misfit(saved: Saved, error: BaseException) -> DataError:
    return DataError(f"{saved.path} does not fit the experiment: {first_line(error)}", AGAIN)
