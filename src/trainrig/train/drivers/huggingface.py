"""transformers.Trainer on our data and our first weights: one rank.

Run as ``python start.py huggingface FOLDER`` (`start`) by a Python that has numpy, torch,
transformers and accelerate; FOLDER is laid out by `trainrig.train.driver_files`.  It
writes the events that our own rank writes, from facts that it reads off Trainer's objects.

Trainer is used as its documentation has it.  Three things are given to it so that what it trains
on can be compared: batches in our order, the learning rate of each step, and for masked and span
losses a loss function that divides by the targets of the whole step, since Trainer otherwise
multiplies the loss of a model that takes keyword arguments by ranks and micro-batches.  On a host
long sums are torch's in another order and type (`train.native.host_sums`); on a GPU none is.

Works with transformers 4.49 and newer, 5 included.  Until 4.49 Trainer divided by micro-batches in
other places; what is called or done differently since then is asked of its objects, not versions.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import logging
import math
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

import trainrig.train.native.host_sums as host_sums
from trainrig.process.child import run_rank
from trainrig.process.events import Events
from trainrig.train.drivers import common
from trainrig.train.drivers.huggingface_model import (
    TAKES_SHIFTED,
    Micros,
    model_for,
    sum_over_targets,
    with_adapters,
)
from trainrig.train.drivers.huggingface_timer import TAKES_NORM, Timed
from trainrig.train.native.breakdown import STEPS, trace_file

OPTIMIZERS = {
    "adamw": "adamw_torch",
    "adamw-fused": "adamw_torch_fused",
    "adamw-8bit": "adamw_torch_8bit",
    "sgd": "sgd",
    "adafactor": "adafactor",
}


def main() -> None:
    """Train, tell, leave."""
    run_rank(train)


def train(folder: Path, events: Events) -> None:
    """The timed training, and the comparison's five steps."""
    logging.disable(logging.WARNING)
    request = json.loads((folder / "experiment.json").read_text())
    with common.settings_as_ours(request["experiment"]["device"]):
        _train(folder, events, request)


def _train(folder: Path, events: Events, request: dict[str, Any]) -> None:
    hf = json.loads((folder / "theirs.json").read_text())
    options = request["experiment"]
    if options["nproc"] != common.SIZE:
        raise ValueError(f"{common.SIZE} ranks were started, and nproc is {options['nproc']}")
    if not options["device"].startswith("cuda"):
        host_sums.install_norms()
    events.set_position(part="joining the other ranks" if common.SIZE > 1 else "start")
    _timed(folder, events, request, hf)
    gc.collect()
    if request["probe"]:
        probe = options | {k: v for k, v in hf["probe"].items() if k != "rates"}
        named = {k: v for k, v in hf["trainer"].items() if k != "optim"}  # it descends plainly
        events.set_position(step=0, part="the comparison's steps")
        plain = request.get("plain_loss", False)
        trainer = trainer_for(folder, probe, hf | {"trainer": named}, plain=plain)
        trainer.prepare(hf["probe"]["rates"], probe, events, lambda *_, **__: None)
        trainer.train()
        rows = trainer.rows()
        losses, norms = ([row[name] for row in rows] for name in ("loss", "grad_norm"))
        events.emit(
            "parity",
            losses=losses,
            grad_norms=norms,
            narrowing=trainer.narrowing,
            only_first=options["lora_rank"] > 0,
            autocast=options["precision"] == "bf16",
        )


def _timed(folder: Path, events: Events, request: dict[str, Any], hf: dict[str, Any]) -> None:
    """The steps that are asked for, and behind them those under the profiler."""
    options = request["experiment"]
    on_gpu = options["device"].startswith("cuda")
    before = 0 if on_gpu else common.memory_before("cpu")
    # On one CPU there is nothing but a step's own work.
    is_kept = request.get("trace", False)
    is_profiled = is_kept or (request["probe"] and (common.SIZE > 1 or on_gpu))
    more = STEPS + 1 if is_profiled else 0
    plain = request.get("plain_loss", False)
    trainer = trainer_for(folder, options, hf, plain=plain, more=more)

    def trained() -> None:
        for row in trainer.rows():  # losses are read once all is computed: no step waits for them
            events.emit("row", **row)
        gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        used = [gpu for gpu in gpus if torch.cuda.max_memory_allocated(gpu)] if on_gpu else ["cpu"]
        events.emit("memory", **common.memory_of(used, before))

    keep = trace_file(folder, common.RANK, is_kept=is_kept)
    trainer.prepare(hf["rates"], options, events, events.emit, trained=trained, keep=keep)
    trainer.train()


def trainer_for(
    folder: Path, options: dict[str, Any], hf: dict[str, Any], *, plain: bool, more: int = 0
) -> Timed:
    """Return a Trainer with a new model of the first weights.

    ``more``: steps behind those asked for.
    """
    model = model_for(folder, options, hf)
    if options["lora_rank"]:
        model = with_adapters(model, options)
    on_cpu = not options["device"].startswith("cuda")
    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    again = "activation_checkpointing"  # until transformers 5: gradient_checkpointing
    again = again if again in known else "gradient_checkpointing"
    how: dict[str, Any] = {again: True} if options["recompute"] == "full" else {}
    if options["zero"] >= 2:
        stage = "full_shard" if options["zero"] == 3 else "shard_grad_op"
        how |= {"fsdp": f"{stage} auto_wrap", "fsdp_config": {"version": 2}}
    clip = options["clip"]
    if not TAKES_NORM:  # it takes the norm where it clips, and nowhere else
        clip = clip or math.inf
    how |= hf["trainer"]
    how.setdefault("optim", OPTIMIZERS[options["optimizer"]])
    how.setdefault("average_tokens_across_devices", True)  # in 4.49 a choice, later the default
    how.setdefault("dataloader_pin_memory", not on_cpu)
    arguments = TrainingArguments(
        output_dir=str(folder / "theirs"),
        use_cpu=on_cpu,
        ddp_backend="gloo" if on_cpu and common.SIZE > 1 else None,
        ddp_find_unused_parameters=False,
        bf16=options["precision"] == "bf16",
        fp16=options["precision"] == "fp16",
        tf32=None if on_cpu else tf32_for(options["precision"]),
        use_liger_kernel=options["liger"],
        dataloader_num_workers=options["loader_workers"],
        dataloader_persistent_workers=options["loader_workers"] > 0,
        per_device_train_batch_size=options["batch_size"],
        gradient_accumulation_steps=options["grad_accum"],
        max_steps=options["steps"] + more,
        learning_rate=options["lr"],
        adam_beta1=options["beta1"],
        adam_beta2=options["beta2"],
        adam_epsilon=options["eps"],
        weight_decay=options["weight_decay"],
        max_grad_norm=clip,
        torch_compile=options["compile"],
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **how,
    )
    its_own = plain or (hf["objective"] == "causal" and TAKES_SHIFTED)
    return Timed(
        model=model,
        args=arguments,
        train_dataset=Micros(options, hf, more),
        compute_loss_func=None if its_own else sum_over_targets,
    )


def tf32_for(precision: str) -> bool | None:
    """Return Trainer's ``tf32`` for a precision; None before Ampere, which has no TF32.

    Trainer raises where it is asked for it there.
    """
    return precision != "fp32" if torch.cuda.get_device_capability() >= (8, 0) else None
