"""Hugging Face's Trainer with marks around what a step is made of, and a look at its objects.

What it trains, and with which arguments, is `huggingface`'s matter.  Nothing here waits: marks are
events of a GPU's stream or readings of the host's clock, and rows are made of them at the end.
Behind the steps that are asked for come a few under the profiler, as our own engine has them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback

from trainrig.process.events import Events
from trainrig.train.drivers import common
from trainrig.train.drivers.huggingface_model import attention_of, rank_of_adapters
from trainrig.train.native.breakdown import STEPS, Recorder
from trainrig.train.native.step_timer import Marked, stopwatch_for

TAKES_NORM = hasattr(Trainer, "_get_grad_norm")
"""True where Trainer computes the gradient norm without clipping (transformers 5)."""


class Steps(TrainerCallback):
    """Trainer's own words on where it is."""

    def __init__(self, trainer: Timed) -> None:
        self._trainer = trainer

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._trainer.look()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._trainer.step_ended()


class Timed(Trainer):
    """Trainer, with marks around what a step is made of."""

    def prepare(
        self,
        rates: list[float],
        options: dict[str, Any],
        events: Events,
        emit: Any,
        *,
        trained: Callable[[], None] = lambda: None,
        keep: Path | None = None,
    ) -> None:
        """Set learning rates and timing marks; ``emit`` does nothing in the comparison's steps.

        ``trained``: called when the steps that are asked for are over; ``keep``: the file of the
        profiler's trace.
        """
        self.rates, self.options, self.events, self.emit = rates, options, events, emit
        self._trained, self._recorder = trained, Recorder(keep=keep)
        self._recorded = ExitStack()
        self.watch = stopwatch_for(options["device"])
        self.steps: list[Marked[Any]] = []
        self.losses: list[Any] = []
        self.norms: list[Any] = []
        self.facts: dict[str, Any] = {"micro_batches": 0, "block_forwards": 0}
        self.reduced = 0
        self.narrowing = 0.0
        """Factor by which backward's first rounding enlarges gradients (`common.narrowing`)."""
        if not TAKES_NORM:
            self._watch_norms()
        self.add_callback(Steps(self))
        gather = self.accelerator.gather

        def named(*args: Any, **kwargs: Any) -> Any:
            """While it fetches samples, Trainer asks all ranks for the number of their targets."""
            self.events.set_position(operation="all_gather")
            gathered = gather(*args, **kwargs)
            self.events.set_position()
            return gathered

        self.accelerator.gather = named

    def get_train_dataloader(self) -> Any:
        """Ours hands out whole micro-batches: nothing is collated or shuffled."""
        arguments = self.args
        self._loader = torch.utils.data.DataLoader(
            self.train_dataset,
            batch_size=None,
            shuffle=False,
            num_workers=arguments.dataloader_num_workers,
            persistent_workers=arguments.dataloader_persistent_workers,
            pin_memory=arguments.dataloader_pin_memory,
        )
        return self._loader

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the learning rate of each step, as our engine has it."""
        peak_rate, last = self.options["lr"], len(self.rates) - 1
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer if optimizer is None else optimizer,
            lambda step: self.rates[min(step, last)] / peak_rate,
        )
        return self.lr_scheduler

    def _part(self, name: str, start: Any) -> None:
        self.steps[-1].parts.append((name, start, self.watch.mark()))

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """A step begins with waiting for its samples."""
        self.events.set_position(step=len(self.steps), part="data_wait")
        self.steps.append(self.watch.begin())
        self.losses.append(torch.zeros((), device=self.args.device))
        samples = super().get_batch_samples(*args, **kwargs)
        self._part("data_wait", self.steps[-1].start)
        return samples

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Forward and backward of a micro-batch, with the hooks in place before the first."""
        if len(self.steps) == 1 and not self.facts["micro_batches"]:
            self._hook()
        self._step_from = self.watch.mark()
        self.events.set_position(part="forward")
        self.facts["micro_batches"] += len(self.steps) == 1
        loss = super().training_step(*args, **kwargs)
        self._part("backward", self._backward_from)
        self.events.set_position(part="optimizer")
        self.losses[-1] += loss.detach()
        self._update_from = self.watch.mark()
        return loss

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Forward."""
        if not self.narrowing and self.options["optimizer"] == "sgd":  # the comparison's first
            return self._first_loss(*args, **kwargs)
        loss = super().compute_loss(*args, **kwargs)
        self._part("forward", self._step_from)
        self.events.set_position(part="backward")
        if "weights_between" not in self.facts:
            model: Any = self.model
            self.facts["weights_between"] = common.elements(model.parameters())
        self._backward_from = self.watch.mark()
        return loss

    def _first_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Forward, with a look at what backward will begin with."""
        self.narrowing, labels = 1.0, inputs["labels"]
        total = kwargs.get("num_items_in_batch")
        loss, outputs = self.compute_loss(model, inputs, *args, **kwargs | {"return_outputs": True})
        if total is not None:
            share, precision = common.SIZE / float(total), self.options["precision"]
            self.narrowing = common.narrowing(outputs["logits"], labels, share, precision)
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        hf: Any = super()
        norm = hf._get_grad_norm(model, grad_norm=grad_norm)
        self.norms.append(norm)
        return norm

    def _watch_norms(self) -> None:
        """Keep each norm that clipping finds."""
        original = self.accelerator.clip_grad_norm_

        def clip(*args: Any, **kwargs: Any) -> Any:
            self.norms.append(original(*args, **kwargs))
            return self.norms[-1]

        self.accelerator.clip_grad_norm_ = clip

    def step_ended(self) -> None:
        """After update, schedule and zeroing of the gradients."""
        self._part("optimizer", self._update_from)
        self.emit("alive", step=len(self.steps) - 1)
        behind = len(self.steps) - self.options["steps"]
        if behind == 0:
            self._ended()
        self._recorded.close()
        if behind == 1:  # the first of those behind settles
            self._recorder.start()
        if 1 <= behind <= STEPS:
            self._recorded.enter_context(self._recorder.step())
        if behind == STEPS + 1:
            self.emit("breakdown", **self._recorder.stop())

    def _ended(self) -> None:
        """After the last step that is asked for, which is waited for: energy is counted to here."""
        self.watch.end()
        if self.args.device.type == "cuda":
            torch.cuda.synchronize()
        self.emit("trained")
        self._trained()

    def _hook(self) -> None:
        """Count a block's forwards; name the dtype it computes in; see the gradients' sums."""
        model = self.accelerator.unwrap_model(self.model_wrapped)
        blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
        self._leave = common.watch_matrix(blocks[0], self.facts)
        wrapped = self.model_wrapped
        if isinstance(wrapped, DistributedDataParallel):
            wrapped.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))

    def _reduce(self, bucket: Any) -> Any:
        """Return all-reduce a bucket as DDP does by itself, and count it."""
        self.reduced += 1
        self.events.set_position(operation="all_reduce")
        self.facts["reduce_dtype"] = common.kind([bucket.buffer()])
        future = dist.all_reduce(bucket.buffer().div_(common.SIZE), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    def look(self) -> None:
        """The facts of the layout, in the first step, while the gradients are there."""
        if len(self.steps) != 1:
            return
        self._leave()
        model = self.accelerator.unwrap_model(self.model_wrapped)
        optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        if rank_of_adapters(model) is not None:  # what is frozen is no part of the layout
            self.facts["weights_between"] = common.elements(weights)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        self.emit(
            "layout",
            **self.facts,
            **common.facts_of(
                self.model_wrapped,
                weights,
                optimizer,
                str(weights[0].device),
                "transformers",
                "accelerate",
            ),
            num_parameters=sum(weight.numel() for weight in weights),
            weights=common.elements(weights),
            gradients=common.elements(gradients),
            gradient_collectives=self.reduced,
            gradient_dtype=common.kind(gradients),
            placements=str(getattr(weights[0], "placements", None) or "") or None,
            attention=attention_of(model),
            compiled=hasattr(self.model_wrapped, "_orig_mod") and common.has_compiled(),
            offloaded=False,
            liger=common.code_of("liger_kernel", model),
            loader_workers=self._loader.num_workers,
            lora_rank=rank_of_adapters(model) or 0,
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row a step: the loss as the mean over ranks, the parts in seconds."""
        steps = min(len(self.norms), self.options["steps"])
        losses = torch.stack(self.losses[:steps]).double()
        if dist.is_initialized():
            self.events.set_position(part="the mean of the losses", operation="all_reduce")
            dist.all_reduce(losses)
            self.events.set_position()
            losses /= common.SIZE
        micro_tokens = self.options["batch_size"] * self.options["seq_len"]
        tokens = common.SIZE * self.options["grad_accum"] * micro_tokens
        return [
            {
                "step": step,
                "lr": self.rates[step],
                "tokens": tokens,
                "loss": float(losses[step]),
                "grad_norm": float(self.norms[step]),
                **self.watch.read(self.steps[step]),
            }
            for step in range(steps)
        ]
