"""The forms in which weights lie in a folder, told apart by the files in it; nothing is loaded.

huggingface   *.safetensors beside a config.json
megatron      Megatron-Core's distributed checkpoint: metadata.json, or a folder of iterations
                  with latest_checkpointed_iteration.txt
deepspeed     the universal format: a folder zero/ of fp32.pt, or one with latest_universal
trainrig      a run of `trainrig train`, its folder of checkpoints, or one of them
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from trainrig.errors import DataError, TrainrigError, UsageError
from trainrig.train.checkpoint_folder import checkpoints_in, read_saved

Form = Literal["huggingface", "megatron", "deepspeed", "trainrig"]
FORMS: tuple[Form, ...] = get_args(Form)
WRITTEN = FORMS[:3]
"""Forms that `trainrig export` writes; ours is the form that a training saves."""
_HINT = (
    "a folder of safetensors with a config.json, a checkpoint of Megatron-Core or of DeepSpeed's "
    "universal format, or a run of trainrig train"
)
_TORCH_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def form_of(path: Path) -> Form:
    """Return the storage form of the weights at ``path``.  DataError where there are none."""
    if not path.is_dir():
        raise DataError(f"{path} is no folder", _HINT)
    if any(path.glob("*.safetensors")):
        if not (path / "config.json").is_file():
            raise DataError(f"{path} has safetensors and no config.json", _HINT)
        return "huggingface"
    if any((path / name).exists() for name in _TORCH_FILES):
        words = f"{path} has weights of torch.save alone, which may run code when they are read"
        raise DataError(words, "save them as safetensors: model.save_pretrained(DIR)")
    if (path / _LATEST_MEGATRON).is_file() or _is_megatron(path):
        return "megatron"
    if (path / _LATEST_UNIVERSAL).is_file() or (path / "zero").is_dir():
        return "deepspeed"
    try:
        read_saved(checkpoints_in(path))
    except UsageError:
        if (path / "run.toml").exists():
            raise
        raise DataError(f"{path} has no weights that can be read", _HINT) from None
    return "trainrig"


_LATEST_MEGATRON = "latest_checkpointed_iteration.txt"
_LATEST_UNIVERSAL = "latest_universal"


def _is_megatron(path: Path) -> bool:
    try:
        content = json.loads((path / "metadata.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(content, Mapping) and "sharded_backend" in content


def megatron_folder(path: Path) -> Path:
    """Return the folder with metadata.json: of the newest iteration, where ``path`` holds several.

    DataError for another backend than torch_dist, or an iteration that is not there.
    """
    folder = path
    if (path / _LATEST_MEGATRON).is_file():
        latest = (path / _LATEST_MEGATRON).read_text().strip()
        folder = path / (f"iter_{int(latest):07d}" if latest.isdecimal() else latest)
    if not _is_megatron(folder):
        words = f"{folder} is no distributed checkpoint of Megatron-Core"
        raise DataError(words, "save it with --ckpt-format torch_dist")
    backend = json.loads((folder / "metadata.json").read_text())["sharded_backend"]
    if backend != "torch_dist":
        words = f"{folder} is stored as {backend}, and torch_dist is read here"
        raise DataError(words, "save it with --ckpt-format torch_dist")
    return folder


def deepspeed_folder(path: Path) -> Path:
    """Return the folder with zero/ in it.

    The one that latest_universal names, if there is that file.
    """
    folder = path
    if (path / _LATEST_UNIVERSAL).is_file():
        folder = path / (path / _LATEST_UNIVERSAL).read_text().strip()
    if not any((folder / "zero").glob("*/fp32.pt")):
        words = f"{folder} has no zero/NAME/fp32.pt"
        raise DataError(words, "convert it with DeepSpeed's ds_to_universal.py")
    return folder


def model_of(path: str) -> str | None:
    """Return the text by which `workload.find` finds the model whose weights lie at ``path``.

    None where its form does not say, or where there are none: `form_of` tells why.
    """
    try:
        form = form_of(Path(path))
        if form == "trainrig":
            return str(read_saved(checkpoints_in(Path(path))).experiment["model"])
    except TrainrigError:
        return None
    return str(path) if (Path(path) / "config.json").is_file() else None
