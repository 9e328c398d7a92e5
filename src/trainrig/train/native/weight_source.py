"""Weights that a training begins with: another one's, whoever saved them (``--init FROM``).

FROM is one of

    a folder of Hugging Face's      config.json and safetensors; what `trainrig export` writes
    a run of ours, a checkpoint     the fp32 weights alone, saved under any layout
    Megatron-Core's checkpoint      torch_dist: metadata.json, or a folder of iterations
    DeepSpeed's universal format    fp32.pt for each of Hugging Face's names below zero/

A source is opened without reading its tensors: their sizes are compared with the model's, and the
first that differs is named.  Then weights are read one at a time, as wholes in fp32, by the names
of our own models, so that a rank of any layout keeps its part and no process holds the model twice.

``python -m trainrig.train.native.weight_source FROM MODEL`` checks a source and prints an object
in JSON: the form, and what is wrong, if anything is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from trainrig import models
from trainrig.errors import DataError, TrainrigError, UnavailableError, reading
from trainrig.models import hf_weights, megatron_weights
from trainrig.models.first_weights import Given
from trainrig.process.child import first_line
from trainrig.train.checkpoint_folder import checkpoints_in, damage, older_than, read_saved
from trainrig.train.config import Experiment
from trainrig.train.native.safe_reader import SafeReader, ignore_warning
from trainrig.train.weight_forms import Form, deepspeed_folder, form_of, megatron_folder
from trainrig.workload import ModelShape, find

Sizes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSource:
    """An opened source: what it has, under its own names."""

    path: Path
    form: Form
    sizes: Sizes
    get: Callable[[str], Tensor]
    """A tensor as it is stored."""


def first_weights(experiment: Experiment, shape: ModelShape) -> Given | None:
    """Return the weights that an experiment's ``init`` names; None where it names nothing."""
    return weights_of(Path(experiment.init), shape) if experiment.init else None


def weights_of(path: Path, shape: ModelShape) -> Given:
    """Return a reader of a model's weights at ``path``, each in fp32 by its name.

    Raises DataError for what is no source or another model's, naming the first tensor that differs.
    """
    source = open_source(path)
    try:
        read = _BY_FORM[source.form](shape, source.sizes, source.get)
    except DataError as error:
        words = error.message.removeprefix(f"{shape.name}: ")
        raise DataError(f"{path} has weights of another model: {words}", _SAME_MODEL) from None
    return lambda name: _read(path, partial(read, name)).float()


_SAME_MODEL = "name the model that was saved there with --model, or leave --init out"


def open_source(path: Path) -> WeightSource:
    """Return names and sizes of what ``path`` holds.  Raises DataError, UnavailableError."""
    form = form_of(path)
    sizes, get = _read(path, lambda: _OPENED[form](path))
    return WeightSource(path=path, form=form, sizes=sizes, get=get)


def _read(path: Path, act: Callable[[], Any]) -> Any:
    """Return ``act``'s value; a library's error about a broken file becomes one line."""
    try:
        with reading(path):
            return act()
    except TrainrigError:
        raise
    except Exception as error:  # noqa: BLE001  safetensors, torch and pickle each have their own
        raise DataError(f"{path} is damaged: {first_line(error)}", "save it again") from None


Opened = tuple[Sizes, Callable[[str], Tensor]]


def _open_hugging_face(path: Path) -> Opened:
    if find_spec("safetensors") is None:
        raise UnavailableError(f"{path}: safetensors is not installed", "pip install safetensors")
    from safetensors import safe_open

    sizes: dict[str, tuple[int, ...]] = {}
    files: dict[str, Any] = {}
    for file in _files_of(path):
        opened: Any = safe_open(file, framework="pt")
        for name in opened.keys():  # noqa: SIM118  it is no dict
            sizes[name] = tuple(opened.get_slice(name).get_shape())
            files[name] = opened
    return sizes, lambda name: files[name].get_tensor(name)


def _files_of(path: Path) -> list[Path]:
    """Files that transformers would load: what lies beside them is the same again, or adapters."""
    index, whole = path / "model.safetensors.index.json", path / "model.safetensors"
    if whole.is_file():
        return [whole]
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return [path / Path(name).name for name in sorted(names)]
    return sorted(path.glob("*.safetensors"))


def _open_own(path: Path) -> Opened:
    saved = read_saved(checkpoints_in(path))
    if (words := damage(saved)) is not None:
        raise DataError(words, older_than(saved))
    sizes, get = open_distributed(saved.path)
    head = "weights/"
    mine = {name.removeprefix(head): sizes[name] for name in sizes if name.startswith(head)}
    return mine, lambda name: get(head + name)


def _open_megatron(path: Path) -> Opened:
    """Layers lie in one tensor, or each in one of its own; norms are called as they are fused.

    Of the first kind a layer is read by itself: Megatron saves it as a piece of its own.
    """
    sizes, get = open_distributed(folder := megatron_folder(path))
    sizes_by_name: dict[str, tuple[int, ...]] = {}
    places: dict[str, tuple[str, int | None]] = {}
    for stored, size in sizes.items():
        layers = megatron_weights.stacked_layers(stored, size)
        for name, layer in layers:
            sizes_by_name[name] = size if layer is None else size[1:]
            places[name] = stored, layer

    def of_layer(name: str) -> Tensor:
        stored, layer = places[name]
        return get(stored) if layer is None else read_row(folder, stored, layer)

    return sizes_by_name, of_layer


def open_distributed(path: Path) -> Opened:
    """Return a checkpoint of torch.distributed.checkpoint.

    Tensors are read whole, without ranks.
    """
    ignore_warning()
    metadata = SafeReader(path).read_metadata().state_dict_metadata
    listed = {
        name: storage
        for name, storage in metadata.items()
        if isinstance(storage, TensorStorageMetadata)
    }

    def get(name: str) -> Tensor:
        tensor = torch.empty(listed[name].size, dtype=listed[name].properties.dtype)
        dcp.load({name: tensor}, storage_reader=SafeReader(path), no_dist=True)
        return tensor

    return {name: tuple(storage.size) for name, storage in listed.items()}, get


def read_row(path: Path, name: str, row: int) -> Tensor:
    """Return one place of the first dimension of a checkpoint's tensor: (N, …) → (…).

    Read are the pieces that hold some of it, and no others.
    """
    reader = SafeReader(path)
    metadata = reader.read_metadata()
    stored = metadata.state_dict_metadata[name]
    assert isinstance(stored, TensorStorageMetadata)
    sizes = torch.Size((1, *stored.size[1:]))
    offsets = torch.Size((row, *[0] * len(sizes[1:])))
    tensor = torch.empty(sizes, dtype=stored.properties.dtype)
    chunk = ChunkStorageMetadata(offsets=offsets, sizes=sizes)
    items = create_read_items_for_chunk_list(name, stored, [chunk])
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    planner: Any = _OneTensorPlanner(tensor)
    reader.read_data(LoadPlan(items), planner).wait()
    return tensor[0]


class _OneTensorPlanner:
    """A load planner that places the pieces of one tensor."""

    def __init__(self, whole: Tensor) -> None:
        self._whole = whole

    def resolve_tensor(self, item: Any) -> Tensor:
        """Return the place of a piece."""
        place = self._whole
        for dim, (start, length) in enumerate(zip(item.dest_offsets, item.lengths, strict=True)):
            place = place.narrow(dim, start, length)
        return place

    def commit_tensor(self, item: Any, tensor: Tensor) -> None:
        """Accept a piece that has been read in place."""


def _open_deepspeed(path: Path) -> Opened:
    folder = deepspeed_folder(path) / "zero"
    files = {file.parent.name: file for file in sorted(folder.glob("*/fp32.pt"))}

    def get(name: str) -> Tensor:
        stored: Any = torch.load(files[name], weights_only=True, mmap=True)
        tensor: Tensor = stored["param"] if isinstance(stored, dict) else stored
        return tensor

    return {name: tuple(get(name).shape) for name in files}, get


def _of_native(shape: ModelShape, sizes: Sizes, get: Callable[[str], Tensor]) -> Given:
    for name, weight in models.build(shape, device="meta").named_parameters():
        if name not in sizes:
            raise DataError(f"the weights have no {name!r}")
        if sizes[name] != tuple(weight.shape):
            requested = f"the shape asks for {tuple(weight.shape)}"
            raise DataError(f"{name} is {sizes[name]}, {requested}")
    extra = sizes.keys() - dict(models.build(shape, device="meta").named_parameters()).keys()
    if extra:
        raise DataError(f"nothing here takes the weight {min(extra)!r}")
    return get


_OPENED: dict[Form, Callable[[Path], Opened]] = {
    "huggingface": _open_hugging_face,
    "trainrig": _open_own,
    "megatron": _open_megatron,
    "deepspeed": _open_deepspeed,
}
_BY_FORM: dict[Form, Callable[[ModelShape, Sizes, Callable[[str], Tensor]], Given]] = {
    "huggingface": hf_weights.one_by_one,
    "trainrig": _of_native,
    "megatron": megatron_weights.one_by_one,
    "deepspeed": hf_weights.one_by_one,
}


def main() -> None:
    """Check a source against a model."""
    path, model = Path(sys.argv[1]), sys.argv[2]
    sources: dict[str, Any] = {}
    try:
        weights_of(path, find(model))
    except TrainrigError as error:
        sources = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    sys.stdout.write(json.dumps(sources) + "\n")


if __name__ == "__main__":
    main()
