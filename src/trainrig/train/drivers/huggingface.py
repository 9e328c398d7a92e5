"""transformers.Trainer on our data and our first weights: one rank.

Run as ``python start.py huggingface FOLDER`` (`start`) by a Python that has numpy, torch,
transformers and accelerate; FOLDER is laid out by `trainrig.train.weights`.  It tells the events
that our own rank tells, from facts that it reads off Trainer's objects.

Trainer is used as its documentation has it.  Three things are given to it so that what it trains
on can be compared: batches in our order, the learning rate of each step, and for masked and span
losses a loss function that divides by the targets of the whole step, since Trainer otherwise
multiplies the loss of a model that takes keyword arguments by ranks and micro-batches.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import logging
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback, TrainingArguments

from trainrig.data.batches import Shard
from trainrig.data.objective import open_batches
from trainrig.train.drivers import common

OPTIMIZERS = {
    "adamw": "adamw_torch_fused",
    "adamw-plain": "adamw_torch",
    "adamw-8bit": "adamw_torch_8bit",
    "sgd": "sgd",
}


def main() -> None:
    """Train, tell, leave."""
    common.run(train)


def train(folder: Path, tell: Any) -> None:
    """The timed training, and the comparison's five steps."""
    logging.disable(logging.WARNING)
    request = json.loads((folder / "experiment.json").read_text())
    theirs = json.loads((folder / "theirs.json").read_text())
    asked = request["experiment"]
    before = common.resident()
    trainer = trainer_for(folder, asked, theirs, tell, plain=request.get("plain_loss", False))
    trainer.train()
    trainer.tell_all()
    tell("memory", **common.peaks(asked, before))
    del trainer
    gc.collect()
    if request["probe"]:
        probe = asked | {k: v for k, v in theirs["probe"].items() if k != "rates"}
        rates = theirs | {"rates": theirs["probe"]["rates"]}
        plain = request.get("plain_loss", False)
        trainer = trainer_for(folder, probe, rates, lambda *_, **__: None, plain=plain)
        trainer.train()
        rows = trainer.rows()
        tell(
            "parity",
            losses=[row["loss"] for row in rows],
            grad_norms=[row["grad_norm"] for row in rows],
        )


def trainer_for(
    folder: Path, asked: dict[str, Any], theirs: dict[str, Any], tell: Any, *, plain: bool
) -> Timed:
    """A Trainer with a new model of the first weights."""
    transformers.set_seed(asked["seed"])
    config = getattr(transformers, theirs["config_class"])(**theirs["config"])
    model = getattr(transformers, theirs["model_class"])(config)
    model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True), strict=False)
    on_cpu = not asked["device"].startswith("cuda")
    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    again = "activation_checkpointing"  # until transformers 5: gradient_checkpointing
    again = again if again in known else "gradient_checkpointing"
    how: dict[str, Any] = {again: True} if asked["recompute"] == "full" else {}
    if asked["zero"] >= 2:
        stage = "full_shard" if asked["zero"] == 3 else "shard_grad_op"
        how |= {"fsdp": f"{stage} auto_wrap", "fsdp_config": {"version": 2}}
    arguments = TrainingArguments(
        output_dir=str(folder / "theirs"),
        use_cpu=on_cpu,
        ddp_backend="gloo" if on_cpu and common.SIZE > 1 else None,
        ddp_find_unused_parameters=False,
        bf16=asked["dtype"] == "bf16",
        fp16=asked["dtype"] == "fp16",
        per_device_train_batch_size=asked["batch"],
        gradient_accumulation_steps=asked["grad_accum"],
        max_steps=asked["steps"],
        optim=OPTIMIZERS[asked["optimizer"]],
        learning_rate=asked["learning_rate"],
        adam_beta1=asked["beta1"],
        adam_beta2=asked["beta2"],
        adam_epsilon=asked["eps"],
        weight_decay=asked["weight_decay"],
        max_grad_norm=asked["clip"],
        torch_compile=asked["compile"],
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=not on_cpu,
        **how,
    )
    summed = None if plain or theirs["objective"] == "causal" else sum_over_targets
    trainer = Timed(
        model=model,
        args=arguments,
        train_dataset=Micros(asked, theirs),
        compute_loss_func=summed,
    )
    trainer.prepare(theirs["rates"], asked, tell)
    return trainer


def sum_over_targets(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """Cross-entropy summed over the targets, over those of the whole step."""
    logits = outputs.logits.float().flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
    return loss / num_items_in_batch


class Micros(torch.utils.data.Dataset[Any]):
    """Our micro-batches of this rank, in order."""

    def __init__(self, asked: dict[str, Any], theirs: dict[str, Any]) -> None:
        self._accum, self._objective = asked["grad_accum"], theirs["objective"]
        samples = asked["batch"] * self._accum
        self._length = asked["steps"] * self._accum
        self._make = open_batches(
            Path(asked["data"]),
            "train",
            self._objective,
            seq_len=asked["seq"],
            shard=Shard(batch=samples, rank=common.RANK, num_ranks=common.SIZE, seed=asked["seed"]),
            vocab_size=theirs["vocab"],
        )
        self._step: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        step, micro = divmod(number, self._accum)
        if self._step[0] != step:
            self._step = step, self._make(step)
        batch = self._step[1]
        inputs = torch.from_numpy(batch.inputs).chunk(self._accum)[micro]
        labels = torch.from_numpy(batch.labels).chunk(self._accum)[micro]
        if self._objective == "causal":  # ours are shifted already
            return {"input_ids": inputs, "labels": labels, "shift_labels": labels}
        if self._objective == "spans":
            start = torch.zeros_like(labels[:, :1])
            moved = torch.cat([start, labels[:, :-1]], dim=1)
            return {"input_ids": inputs, "labels": labels, "decoder_input_ids": moved}
        return {"input_ids": inputs, "labels": labels}


class Steps(TrainerCallback):
    """Trainer's own words on where it is."""

    def __init__(self, trainer: Timed) -> None:
        self._trainer = trainer

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._trainer.look()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._trainer.step_ended()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._trainer.ended()


class Timed(Trainer):
    """Trainer, with marks around what a step is made of."""

    def prepare(self, rates: list[float], asked: dict[str, Any], tell: Any) -> None:
        """What the marks and the schedule need."""
        self.rates, self.asked, self.tell = rates, asked, tell
        self.begun: list[Any] = []
        self.marks: list[tuple[int, str, Any, Any]] = []
        self.losses: list[Any] = []
        self.norms: list[Any] = []
        self.overlapped: list[float] = []
        self.facts: dict[str, Any] = {"micro_batches": 0, "block_forwards": 0}
        self.reduced = 0
        self._launched: Any = None
        self._fetches = False
        self._on_gpu = asked["device"].startswith("cuda")
        self.add_callback(Steps(self))
        gather, self.accelerator.gather = self.accelerator.gather, self._gather
        self._gather_as_it_is = gather

    def get_train_dataloader(self) -> Any:
        """Ours hands out whole micro-batches: nothing is collated or shuffled."""
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=None, shuffle=False)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The learning rate of each step, as our engine has it."""
        peak_rate, last = self.asked["learning_rate"], len(self.rates) - 1
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer if optimizer is None else optimizer,
            lambda step: self.rates[min(step, last)] / peak_rate,
        )
        return self.lr_scheduler

    def mark(self) -> Any:
        """A moment: an event in the stream of a GPU, or the host's clock."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _part(self, name: str, start: Any) -> None:
        self.marks.append((len(self.begun) - 1, name, start, self.mark()))

    def _out_of(self, part: str, start: Any) -> None:
        """What has passed since ``start`` is exposed communication, and no more of ``part``."""
        self._part("communication", start)
        self.marks.append((len(self.begun) - 1, f"-{part}", *self.marks[-1][2:]))

    def _gather(self, *args: Any, **kwargs: Any) -> Any:
        """While it fetches samples, Trainer asks all ranks for the number of their targets."""
        start = self.mark()
        found = self._gather_as_it_is(*args, **kwargs)
        if self._fetches:
            self._out_of("data_wait", start)
        return found

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """A step begins with waiting for its samples."""
        start = self.mark()
        self.begun.append(start)
        self.losses.append(torch.zeros((), device=self.args.device))
        self._fetches = True
        found = super().get_batch_samples(*args, **kwargs)
        self._fetches = False
        self._part("data_wait", start)
        return found

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Forward and backward of a micro-batch, with the hooks in place before the first."""
        if len(self.begun) == 1 and not self.facts["micro_batches"]:
            self._hook()
        self._step_from = self.mark()
        self.facts["micro_batches"] += len(self.begun) == 1
        loss = super().training_step(*args, **kwargs)
        self._part("backward", self._backward_from)
        if self._launched is not None:
            self._out_of("backward", self._launched)
            self._launched = None
        self.losses[-1] += loss.detach()
        self._update_from = self.mark()
        return loss

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Forward."""
        found = super().compute_loss(*args, **kwargs)
        self._part("forward", self._step_from)
        if "weights_between" not in self.facts:
            model: Any = self.model
            self.facts["weights_between"] = common.elements(model.parameters())
        self._backward_from = self.mark()
        return found

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        theirs: Any = super()
        found = theirs._get_grad_norm(model, grad_norm=grad_norm)
        self.norms.append(found)
        return found

    def step_ended(self) -> None:
        """After update, schedule and zeroing of the gradients."""
        self._part("optimizer", self._update_from)
        self.tell("alive", step=len(self.begun) - 1)

    def ended(self) -> None:
        """After the last step, which is waited for: energy is counted up to here."""
        self.begun.append(self.mark())
        if self._on_gpu:
            torch.cuda.synchronize()
        self.tell("trained")

    def _hook(self) -> None:
        """Count a block's forwards; name the dtype it computes in; time the gradients' sums."""
        model = self.accelerator.unwrap_model(self.model_wrapped)
        blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
        leaf = next(
            m for m in blocks[0].modules() if getattr(getattr(m, "weight", None), "ndim", 0) == 2
        )

        def count(*_: Any) -> None:
            self.facts["block_forwards"] += len(self.begun) == 1

        def note(_: Any, __: Any, out: Any) -> None:
            self.facts["weight_dtype"] = str(out.dtype).removeprefix("torch.")
            self.facts["micro_tokens"] = out.numel() // out.shape[-1]

        leaf.register_forward_pre_hook(count)  # a second forward may not come to its end
        leaf.register_forward_hook(note)
        wrapped = self.model_wrapped
        if isinstance(wrapped, DistributedDataParallel):
            wrapped.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))

    def _reduce(self, bucket: Any) -> Any:
        """What DDP does by itself, with a mark when the last bucket goes out."""
        self.reduced += 1
        future = dist.all_reduce(bucket.buffer().div_(common.SIZE), async_op=True).get_future()
        if bucket.is_last():
            self._launched = self.mark()
        return future.then(lambda done: done.value()[0])

    def look(self) -> None:
        """The facts of the layout, in the first step, while the gradients are there."""
        if len(self.begun) != 1:
            return
        model = self.accelerator.unwrap_model(self.model_wrapped)
        optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)
        states = [value for state in optimizer.state.values() for value in state.values()]
        moments = [v for v in states if isinstance(v, torch.Tensor) and v.ndim > 0]
        per_weight = max(1, round(len(moments) / max(1, len(optimizer.state))))
        weights = list(model.parameters())
        first = weights[0]
        self.tell(
            "layout",
            **self.facts,
            num_parameters=sum(weight.numel() for weight in weights),
            weights=common.elements(weights),
            masters=common.elements(weights),
            gradients=common.elements(w.grad for w in weights if w.grad is not None),
            gradient_collectives=self.reduced,
            wrapped=type(self.model_wrapped).__name__,
            ranks=dist.get_world_size() if dist.is_initialized() else 1,
            transport=dist.get_backend() if dist.is_initialized() else None,
            master_dtype=common.kind(weights),
            states=common.elements(moments) // per_weight,
            moments=per_weight if moments else 0,
            state_dtype=common.kind(moments),
            placements=str(getattr(first, "placements", None) or "") or None,
            optimizer=type(optimizer).__name__,
            fused=bool(optimizer.defaults.get("fused")),
            compiled=hasattr(self.model_wrapped, "_orig_mod") and common.has_compiled(),
            offloaded=False,
            device=str(first.device),
            placed=common.devices_of(self._places(first)),
            threads=torch.get_num_threads(),
            software=common.software("transformers", "accelerate"),
        )

    def _places(self, weight: Any) -> list[str]:
        """Trainer spreads a single process over all GPUs that it sees."""
        wrapped = self.model_wrapped
        if isinstance(wrapped, torch.nn.DataParallel):
            return [f"cuda:{number}" for number in wrapped.device_ids]
        return [str(weight.device)]

    def rows(self) -> list[dict[str, Any]]:
        """A row a step: the loss as the mean over ranks, the parts in seconds."""
        steps = len(self.norms)
        losses = torch.stack(self.losses[:steps]).double()
        if dist.is_initialized():
            dist.all_reduce(losses)
            losses /= common.SIZE
        names = ("data_wait", "forward", "backward", "optimizer")
        taken = [dict.fromkeys(names, 0.0) for _ in range(steps)]
        for step, name, start, end in self.marks:
            if step < steps:
                sign, part = (-1.0, name[1:]) if name.startswith("-") else (1.0, name)
                seconds = sign * self._seconds(start, end)
                taken[step][part] = taken[step].get(part, 0.0) + seconds
        rows = []
        for step, parts in enumerate(taken):
            whole = self._seconds(self.begun[step], self.begun[step + 1])
            rows.append(
                {
                    "step": step,
                    "learning_rate": self.rates[step],
                    "tokens": common.SIZE
                    * self.asked["batch"]
                    * self.asked["grad_accum"]
                    * self.asked["seq"],
                    "loss": float(losses[step]),
                    "grad_norm": float(self.norms[step]),
                    "time": whole,
                    **parts,
                    "other": whole - sum(parts.values()),
                    "overlapped": None,
                }
            )
        return rows

    def _seconds(self, start: Any, end: Any) -> float:
        if not self._on_gpu:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def tell_all(self) -> None:
        """The rows: losses are read once all is computed, so that no step waits for them."""
        for row in self.rows():
            self.tell("row", **row)
