"""Read a checkpoint of torch.distributed.checkpoint without running anything that it may hold.

The metadata of such a checkpoint is a pickle; it is read by an unpickler that makes nothing but
torch's own records.  Objects beside tensors are pickles, too, which torch would load whatever they
hold: none is read.  So no file can have a program run.
"""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner

METADATA = ".metadata"
"""Name of the file that says where each tensor of a checkpoint lies."""


def ignore_warning() -> None:
    """One process is meant to be one: no warning that there are no others."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)


class SafeReader(dcp.FileSystemReader):
    """Reads tensors of a checkpoint's own files without running anything that these may hold."""

    def read_metadata(self, *_: Any, **__: Any) -> dcp.Metadata:
        """Return the place of each tensor.  UnpicklingError for other objects or another folder."""
        with (Path(self.path) / METADATA).open("rb") as file:
            metadata: dcp.Metadata = _Records(file).load()
        for place in (metadata.storage_data or {}).values():
            if Path(place.relative_path).name != place.relative_path:
                raise pickle.UnpicklingError(f"its metadata names the file {place.relative_path}")
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Fill tensors.  UnpicklingError where a file has an object in the place of one."""
        for item in plan.items:
            if item.type is not LoadItemType.TENSOR:
                raise pickle.UnpicklingError(f"{item.dest_index.fqn} is no tensor there")
        return super().read_data(plan, planner)


class _Records(pickle.Unpickler):
    """Makes the records of torch.distributed.checkpoint and plain values alone."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class by its name.  UnpicklingError for any other."""
        module, name = _OLD.get((module, name), (module, name))
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in _KNOWN:
            return super().find_class(module, name)
        if module in _MODULES and "." not in name:
            found_class = super().find_class(module, name)
            if isinstance(found_class, type) and found_class.__module__ == module:
                return found_class
        raise pickle.UnpicklingError(f"its metadata names {module}.{name}")


_DCP = "torch.distributed.checkpoint"
_MODULES = tuple(
    f"{_DCP}.{name}"
    for name in ("metadata", "filesystem", "planner")  # Megatron-Core keeps its plans, too
)
_KNOWN = {("torch", "Size"), ("torch.serialization", "_get_layout")}
_KNOWN |= {(module, "PosixPath") for module in ("pathlib", "pathlib._local")}
_OLD = {
    ("megatron.core.dist_checkpointing.strategies.torch", own): (f"{_DCP}.{module}", name)
    for own, module, name in (
        ("MCoreMetadata", "metadata", "Metadata"),
        ("MCoreSavePlan", "planner", "SavePlan"),
    )
}
"""Megatron-Core's own names until 0.16 of what are torch's records with a field more."""
