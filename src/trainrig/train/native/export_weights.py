"""Weights that others load: what a training has saved, in the form of another project.

    huggingface   model.safetensors (several beyond 5 GB, with their index): AutoModelForCausalLM,
                  BertForMaskedLM, T5ForConditionalGeneration
    megatron      latest_checkpointed_iteration.txt and release/, in the form torch_dist: what
                  Megatron-Core loads under any layout; megatron_model.json, the arguments of
                  its TransformerConfig and GPTModel
    deepspeed     latest_universal and a folder of DeepSpeed's universal format, with the moments of
                  AdamW where the training had them; names are Hugging Face's

Each with config.json and the tokenizer, as Hugging Face has them.

What is exported was saved under any layout; one process reads it, a whole weight at a time, and
holds all of them in fp32 (4 bytes a weight) while it writes.  A folder appears when it is whole and
has been read back: every weight is then equal, bit for bit, to what was to be written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from trainrig import models
from trainrig.data.manifest import TOKENIZER
from trainrig.data.tokenizer import TextTokenizer, load_tokenizer
from trainrig.errors import (
    DataError,
    StoreError,
    TrainrigError,
    UnavailableError,
    UsageError,
    unknown,
)
from trainrig.models.hf_weights import to_hugging_face
from trainrig.models.megatron_weights import extra_states, to_distributed
from trainrig.store import draft_folder
from trainrig.train.checkpoint_folder import Saved, checkpoints_in, read_saved
from trainrig.train.driver_files import megatron_model
from trainrig.train.native.precision import DTYPES
from trainrig.train.native.safe_reader import ignore_warning
from trainrig.train.native.weight_source import WeightSource, open_source, weights_of
from trainrig.train.refusals import checkpoint_refused_by_megatron
from trainrig.train.weight_forms import WRITTEN, model_of
from trainrig.workload import ModelShape, find
from trainrig.workload.hf_config import class_names, config_of

PRECISIONS = ("fp32", "bf16", "fp16")
"""Number formats of written weights, for forms that have several."""
LARGEST_FILE = 5_000_000_000
"""Bytes of a file of safetensors; Hugging Face's own limit was this for years."""
State = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Files and counts of an export."""

    folder: str
    to: str
    source: str
    """The checkpoint, or the folder, that was read."""
    step: int | None
    """Steps that were trained before; None where the source does not say."""
    model: str
    precision: str
    weights: int
    num_bytes: int
    """Size of all files in bytes."""
    files: tuple[str, ...]
    notes: tuple[str, ...]
    """Parts of the training that were left out, with reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Inputs of one export: model, weights, tokenizer, folder."""

    shape: ModelShape
    state: State
    """Ours, in the dtype that is written."""
    dtype: torch.dtype
    source: WeightSource
    saved: Saved | None
    """The checkpoint of ours that is exported; None for other weights."""
    tokenizer: TextTokenizer | None

    @property
    def step(self) -> int:
        """Steps that were trained."""
        return self.saved.next_step if self.saved else 0


def export(path: Path, *, to: str, out: Path, precision: str = "fp32", model: str = "") -> Exported:
    """Write the weights at ``path`` in the form ``to``, one of WRITTEN, to the new folder ``out``.

    ``path``: a run, a checkpoint, or any source of weights (`weight_source`); ``model``: of which
    they are, where it does not say so itself.
    Raises UsageError, DataError, StoreError, UnavailableError; then there is no ``out``.
    """
    if to not in WRITTEN:
        raise unknown("form", to, WRITTEN)
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if precision != "fp32" and to == "deepspeed":
        raise UsageError("DeepSpeed's universal format holds fp32 weights", "leave --precision out")
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} exists", "name another folder with --out, or remove it")
    source = open_source(path)
    saved = read_saved(checkpoints_in(path)) if source.form == "trainrig" else None
    if not (model := model or model_of(str(path)) or ""):
        raise UsageError(f"{path} does not say of which model it is", "name it with --model")
    shape = find(model)
    _check(shape, to)
    read, dtype = weights_of(path, shape), DTYPES[precision]
    names = models.build(shape, device="meta").state_dict()
    tokenizer, notes = _tokenizer_of(saved, path, shape)
    job = _Job(
        shape=shape,
        state={name: read(name).to(dtype) for name in names},
        dtype=dtype,
        source=source,
        saved=saved,
        tokenizer=tokenizer,
    )
    with draft_folder(out) as draft:
        try:
            _WRITERS[to](job, draft)
            _write_about(job, draft)
        except dcp.CheckpointException as error:  # torch's own wording of a full disk
            raise _cannot_write(out, next(iter(error.failures.values()))[0]) from None
        except (RuntimeError, ValueError) as error:
            raise _cannot_write(out, error) from None
        _check_written(job, draft, out)
        files = sorted(file for file in draft.rglob("*") if file.is_file())
        sizes = [file.stat().st_size for file in files]
        listed = tuple(str(file.relative_to(draft)) for file in files)
    return Exported(
        folder=str(out),
        to=to,
        source=str(saved.path if saved else path),
        step=saved.next_step if saved else None,
        model=model,
        precision=precision,
        weights=sum(weight.numel() for weight in job.state.values()),
        num_bytes=sum(sizes),
        files=listed,
        notes=notes,
    )


def _cannot_write(out: Path, error: BaseException) -> TrainrigError:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return StoreError(f"cannot write {out}: {reason}", "free some space, or name another folder")


def _check(shape: ModelShape, to: str) -> None:
    """Refuse a model that the form has no words for, or a form whose library is not there."""
    if to == "megatron" and (refused := checkpoint_refused_by_megatron(shape)) is not None:
        raise UsageError(refused[0], "--to huggingface")
    config_of(shape)
    if to == "huggingface" and find_spec("safetensors") is None:
        raise UnavailableError("safetensors is not installed", "pip install safetensors")


def _check_written(job: _Job, draft: Path, out: Path) -> None:
    """Read everything back.  StoreError for the first weight that is not what was to be written."""
    try:
        read = weights_of(draft, job.shape)
        for name, weight in job.state.items():
            if not torch.equal(read(name), weight.float()):
                raise StoreError(f"{out}: {name} is read back with other values", "try it again")
    except DataError as error:
        words = error.message.replace(str(draft), str(out))
        raise StoreError(f"what was written is not whole: {words}", "try it again") from None


def _tokenizer_of(
    saved: Saved | None, path: Path, shape: ModelShape
) -> tuple[TextTokenizer | None, tuple[str, ...]]:
    """Return the tokenizer of a training's data, or of an exported folder; or why there is none."""
    folder = Path(str(saved.experiment.get("data") or "")) if saved else path
    if not (folder / TOKENIZER).is_file():
        return None, (f"no tokenizer: {folder / TOKENIZER} is not there",)
    tokenizer = load_tokenizer(folder)
    if tokenizer.info.vocab_size > shape.vocab:
        words = f"no tokenizer: {folder} has {tokenizer.info.vocab_size} tokens, and the model"
        return None, (f"{words} {shape.vocab}: another text was prepared there",)
    return tokenizer, ()


# ---- Hugging Face


def _write_hugging_face(job: _Job, draft: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    hf = to_hugging_face(job.shape, job.state, copies=False)
    parts: list[State] = [{}]
    size = 0
    for name, weight in hf.items():
        more = weight.numel() * weight.element_size()
        if parts[-1] and size + more > LARGEST_FILE:
            parts.append({})
            size = 0
        parts[-1][name], size = weight, size + more
    count = len(parts)
    names = [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    names = names if count > 1 else ["model.safetensors"]
    about = {"format": "pt", "trainrig": version("trainrig"), "step": str(job.step)}
    for name, part in zip(names, parts, strict=True):
        try:
            save_file(part, draft / name, metadata=about)
        except SafetensorError as error:  # its own words of a full disk
            raise RuntimeError(str(error)) from None
    if count > 1:
        places = {key: name for name, part in zip(names, parts, strict=True) for key in part}
        total = sum(weight.numel() * weight.element_size() for weight in hf.values())
        index = {"metadata": {"total_size": total}, "weight_map": places}
        _write_json(draft / "model.safetensors.index.json", index)


def _write_about(job: _Job, draft: Path) -> None:
    """Write config.json and the tokenizer's files as Hugging Face has them.

    In every form: a training that begins with them, or another export, need not be told.
    """
    _write_json(draft / "config.json", _config(job))
    if job.tokenizer is not None:
        _write_tokenizer(job.tokenizer, job.shape, draft)


def _config(job: _Job) -> dict[str, Any]:
    """config.json, with the ids that a generation begins, ends and is filled with."""
    config = config_of(job.shape) | {
        "model_type": job.shape.family.replace("-", "_"),
        "architectures": [class_names(job.shape)[1]],
        "dtype": str(job.dtype).removeprefix("torch."),
    }
    if "use_cache" in config:
        config["use_cache"] = True
    return config | _ids(job.tokenizer)


def _ids(tokenizer: TextTokenizer | None) -> dict[str, int]:
    if tokenizer is None:
        return {}
    info = tokenizer.info
    ids = {"bos_token_id": info.end, "eos_token_id": info.end, "pad_token_id": info.pad}
    return {name: value for name, value in ids.items() if value is not None}


def _write_tokenizer(tokenizer: TextTokenizer, shape: ModelShape, draft: Path) -> None:
    (draft / TOKENIZER).write_bytes(tokenizer.content)
    info = tokenizer.info
    special = {"eos": info.end, "pad": info.pad, "cls": info.cls, "sep": info.sep}
    special |= {"mask": info.mask, "unk": tokenizer.unknown}
    _write_json(
        draft / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": shape.position.max_positions,
            "clean_up_tokenization_spaces": False,
            **{
                f"{name}_token": tokenizer.tokenizer.id_to_token(number)
                for name, number in special.items()
                if number is not None
            },
        },
    )
    generation: dict[str, Any] = _ids(tokenizer)
    if shape.family == "t5":
        generation |= {"decoder_start_token_id": config_of(shape)["decoder_start_token_id"]}
    if info.vocab_size < shape.vocab:  # rows that no token has
        generation["suppress_tokens"] = list(range(info.vocab_size, shape.vocab))
    _write_json(draft / "generation_config.json", generation)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# ---- Megatron-Core


def _write_megatron(job: _Job, draft: Path) -> None:
    folder = draft / "release"
    folder.mkdir()
    ignore_warning()
    whole, stacks = to_distributed(job.shape, job.state)
    shapes = {
        name: torch.empty((len(layers), *layers[0].shape), dtype=job.dtype, device="meta")
        for name, layers in stacks.items()
    }
    content: dict[str, Any] = {**whole, **shapes, **extra_states(job.shape)}
    writer = dcp.FileSystemWriter(folder)
    dcp.save(content, storage_writer=writer, planner=_LayerByLayer(stacks), no_dist=True)
    backends = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    backends |= {"common_backend": "torch", "common_backend_version": 1}
    _write_json(folder / "metadata.json", backends)
    torch.save({"checkpoint_version": 3.0, "iteration": job.step}, folder / "common.pt")
    _write_json(draft / "megatron_model.json", megatron_model(job.shape))
    (draft / "latest_checkpointed_iteration.txt").write_text("release")


class _LayerByLayer(dcp.DefaultSavePlanner):
    """Saves a tensor of all layers as a piece for each, as Megatron does.

    A layer is then read by itself; and what is saved need not lie in one piece before.
    """

    def __init__(self, stacks: Mapping[str, list[Tensor]]) -> None:
        super().__init__()
        self._stacks = stacks

    def create_local_plan(self) -> SavePlan:
        """Return the usual one, with the pieces in the place of each stack."""
        plan = super().create_local_plan()
        self.plan = replace(plan, items=[part for item in plan.items for part in self._of(item)])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return the piece (1, …) of a stack that is written."""
        if index.fqn not in self._stacks or index.offset is None:
            return super().lookup_object(index)
        return self._stacks[index.fqn][index.offset[0]][None]

    def _of(self, item: WriteItem) -> list[WriteItem]:
        name, data = item.index.fqn, item.tensor_data
        if name not in self._stacks or data is None:
            return [item]
        tensors = []
        for layer in range(data.size[0]):
            offsets = torch.Size((layer, *[0] * (len(data.size) - 1)))
            chunk = ChunkStorageMetadata(offsets=offsets, sizes=torch.Size((1, *data.size[1:])))
            at = MetadataIndex(name, offsets)
            piece = replace(data, chunk=chunk)
            tensors.append(WriteItem(index=at, type=WriteItemType.SHARD, tensor_data=piece))
        return tensors


# ---- DeepSpeed


def _write_deepspeed(job: _Job, draft: Path) -> None:
    """Write the universal checkpoint that DeepSpeed's ds_to_universal.py makes without TP."""
    tag = f"global_step{job.step}_universal"
    hf = to_hugging_face(job.shape, job.state, copies=False)
    kinds = {"fp32": hf} | {
        kind: to_hugging_face(job.shape, _moments(job, kind), copies=False)
        for kind in ("exp_avg", "exp_avg_sq")
    }
    for name in hf:
        folder = draft / tag / "zero" / name
        folder.mkdir(parents=True)
        for kind, state in kinds.items():
            torch.save({"param": state[name].clone()}, folder / f"{kind}.pt")
        torch.save(job.step, folder / "step.pt")
    _write_optimizer(job, draft / tag)
    (draft / "latest_universal").write_text(tag)


def _moments(job: _Job, kind: str) -> State:
    """AdamW's, of the checkpoint; zeros where the training had none."""
    if job.saved is None:
        return {name: torch.zeros_like(weight) for name, weight in job.state.items()}
    from trainrig.train.native.weight_source import open_distributed

    sizes, get = open_distributed(job.saved.path)
    moments = {}
    for name, weight in job.state.items():
        key = f"optimizer/{name}/{kind}"
        has = sizes.get(key) == tuple(weight.shape)
        moments[name] = get(key).float() if has else torch.zeros_like(weight)
    return moments


def _write_optimizer(job: _Job, folder: Path) -> None:
    saved_settings = job.saved.experiment if job.saved else {}
    group = {
        "lr": saved_settings.get("lr", 1e-3),
        "betas": (saved_settings.get("beta1", 0.9), saved_settings.get("beta2", 0.95)),
        "eps": saved_settings.get("eps", 1e-8),
        "weight_decay": saved_settings.get("weight_decay", 0.1),
        "params": [],
    }
    groups = [group, {**group, "weight_decay": 0.0}]
    optimizer = {
        "loss_scaler": None,
        "dynamic_loss_scale": False,
        "overflow": False,
        "clip_grad": saved_settings.get("clip", 1.0),
        "param_groups": groups,
        "optimizer_state_dict": {"state": {0: {"step": job.step}}, "param_groups": groups},
        "zero_stage": 1,
        "partition_count": [1, 1],
        "ds_version": "0.17",
    }
    torch.save(optimizer, folder / "zero" / "optimizer_state.pt")
    states: dict[str, Any] = {
        "module": {},
        "buffer_names": [],
        "param_shapes": [],
        "shared_params": {},
        "optimizer": None,
        "lr_scheduler": None,
        "global_steps": job.step,
        "global_samples": 0,
        "skipped_steps": 0,
        "dp_world_size": 1,
        "mp_world_size": 1,
        "ds_version": "0.17",
        "universal_checkpoint_info": {"universal_checkpoint_version": 0.2},
    }
    for name in ("mp_rank_00", "zero_pp_rank_0_mp_rank_00"):  # of stages 0 to 2, of stage 3
        torch.save(states, folder / f"{name}_model_states.pt")


_WRITERS: dict[str, Callable[[_Job, Path], None]] = {
    "huggingface": _write_hugging_face,
    "megatron": _write_megatron,
    "deepspeed": _write_deepspeed,
}
