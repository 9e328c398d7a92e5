"""Save and resume: after a resume, training goes on as if it had never stopped.

A checkpoint holds the fp32 weights, the optimizer's state, the loss scale, the random generators'
states and the number of the next step; the samples follow from that number (`data.loader`).  On the
CPU a resumed run is equal bit for bit to one that was not interrupted; a GPU may sum in another
order.

The file is written beside its place and renamed: there is always a whole one.  It is read with
``weights_only=True``: nothing in it is executed.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import torch

from trainrig.errors import DataError, StoreError
from trainrig.train.config import to_dict
from trainrig.train.native.loop import Engine

SCHEMA = 1
_AGAIN = "train from the start, or name another run"
# What may differ between a run and its resume: how long it trains, and where the data lies.
_FREE = {"steps", "data", "checkpoint_every", "heldout_batches", "name", "rounds", "threads"}
_FREE |= {"heldout_every", "divergence"}
_FREE |= {"decay_steps"}  # of a run: what was planned at its first start (`runner.train_resume`)


def save(engine: Engine, path: Path) -> None:
    """Write a checkpoint of ``engine`` between two steps.  Raises StoreError."""
    state = {
        "schema": SCHEMA,
        "experiment": to_dict(engine.experiment),
        "next_step": engine.next_step,
        "weights": engine.weights.master,
        "optimizer": engine.optimizer.state_dict(),
        "scaler": engine.scaler.state_dict(),
        "random": torch.get_rng_state(),
    }
    if engine.device.startswith("cuda"):
        state["random_cuda"] = torch.cuda.get_rng_state(engine.device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except (OSError, RuntimeError) as error:  # torch words a full disk as a RuntimeError
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise StoreError(
            f"cannot write {path}: {reason}", "free some space, then go on with --resume"
        ) from None


def load(engine: Engine, path: Path) -> None:
    """Go on from the checkpoint at ``path``.

    Raises DataError for what is no checkpoint, a truncated one, or one of another experiment.
    """
    state = read(path)
    _check_same(to_dict(engine.experiment), state["experiment"], path)
    try:
        with torch.no_grad():
            for name, master in engine.weights.master.items():
                master.copy_(state["weights"][name])
        engine.weights.publish()
        engine.optimizer.load_state_dict(state["optimizer"])
        engine.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["random"])
        if "random_cuda" in state and engine.device.startswith("cuda"):
            torch.cuda.set_rng_state(state["random_cuda"], engine.device)
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        raise DataError(f"{path} does not fit the experiment: {error}", _AGAIN) from None
    engine.next_step = state["next_step"]


def read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint.  Raises DataError."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", _AGAIN) from None
    except (RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError):
        raise DataError(f"{path} is no checkpoint, or a truncated one", _AGAIN) from None
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        raise DataError(f"{path} is no checkpoint of schema {SCHEMA}", _AGAIN)
    return state


def _check_same(requested: dict[str, Any], stored: Any, path: Path) -> None:
    known = stored if isinstance(stored, dict) else {}
    for name in sorted((requested.keys() | known.keys()) - _FREE):
        if requested.get(name) != known.get(name):
            raise DataError(
                f"{path} was trained with {name} = {known.get(name)}, not {requested.get(name)}",
                "resume with the same experiment, or train from the start",
            )
