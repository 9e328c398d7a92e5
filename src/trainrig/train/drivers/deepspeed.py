"""DeepSpeed on Hugging Face's models, our data and our first weights: one rank.

Run as ``python start.py deepspeed FOLDER`` (`start`) by a Python that has numpy, torch,
transformers and deepspeed; FOLDER is laid out by `trainrig.train.driver_files`.  The engine is
made of FOLDER/ds_config.json (`trainrig.train.launch_files`) and of nothing else:
what was trained can be started by hand.  What is offloaded to NVMe lies in FOLDER/nvme meanwhile.

DeepSpeed divides gradients by micro-batches and ranks; the loss that it is given is the sum over
this micro-batch's targets, times micro-batches and ranks, over all targets of the step.  ZeRO's
stage 0 takes no norm unless it clips; there it is taken of the gradients before the update.

With stages (pp) the engine is DeepSpeed's own pipeline (`deepspeed_pipeline`): it runs a step's
micro-batches by its schedule, whose instructions are timed one by one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainrig.process.child import run_rank
from trainrig.process.events import Events
from trainrig.train.drivers import common, deepspeed_pipeline, steps
from trainrig.train.drivers.huggingface_model import Micros, attention_of, model_for
from trainrig.train.native.traffic import Traffic

_OPTIMIZERS = {"DeepSpeedCPUAdam": "AdamW", "FusedAdam": "AdamW"}
"""DeepSpeed's own kernels, each in one pass; both are told to decay weights as AdamW does."""


def main() -> None:
    """Train, tell, leave."""
    run_rank(_train)


def _train(folder: Path, events: Events) -> None:
    steps.train(folder, events, Zero)
    if (swapped := folder / NVME).exists():  # as large as the states that it held
        dist.barrier()
        shutil.rmtree(swapped, ignore_errors=True)


NVME = "nvme"
"""First part of a relative ``nvme_path``: a folder in the run's folder."""


class Zero:
    """DeepSpeed's engine with any of ZeRO's stages."""

    def __init__(self, task: steps.StepTask) -> None:
        on_gpu = task.device.startswith("cuda")
        os.environ.setdefault("DS_ACCELERATOR", "cuda" if on_gpu else "cpu")
        os.environ.setdefault("LOCAL_RANK", "0")
        import deepspeed

        self.task, self._stages = task, task.options["pp"]
        self.data_ranks = common.SIZE // self._stages
        self._accum = task.options["grad_accum"]
        self.narrowing = 0.0
        deepspeed.init_distributed("nccl" if on_gpu else "gloo", verbose=False)
        name = "ds_config-probe.json" if task.is_probe else "ds_config.json"
        config = json.loads((task.folder / name).read_text())
        for where in config["zero_optimization"].values():
            if isinstance(where, dict) and "nvme_path" in where:
                where["nvme_path"] = str(task.folder / where["nvme_path"])
        decay = task.options["weight_decay"]
        model = self._build_model()
        self.engine: Any = deepspeed.initialize(
            model=model, config=config, model_parameters=_groups(model, decay)
        )[0]
        # Stages lie side by side on the ranks: those of one stage share the data.
        self._micros = Micros(
            task.options,
            task.given,
            rank=common.RANK % self.data_ranks,
            num_ranks=self.data_ranks,
        )
        self._facts: common.Facts = {"micro_batches": 0, "block_forwards": 0, "gradients": 0}
        self._traffic: Traffic | None = None
        self._targets = torch.zeros(())
        self._norm: Any = None
        self._looks = False
        if self._stages > 1:
            self._time_instructions()

    def _build_model(self) -> Any:
        task = self.task
        if self._stages > 1:
            model = deepspeed_pipeline.pipelined(
                task.folder, task.options, task.given, self._stages, self._loss_of_stage
            )
            for weight in model.parameters():  # else clipping takes the first stage's norm alone
                weight.model_parallel = not weight.ds_pipe_replicated
            return model
        model = model_for(task.folder, task.options, task.given)
        if task.options["recompute"] == "full":
            model.gradient_checkpointing_enable()
        model.train()
        return model

    def step(self, number: int, rate: float) -> tuple[torch.Tensor, Any]:
        """Return a step's micro-batches, then DeepSpeed's update."""
        if self.task.is_probe or self._traffic is not None:
            return self._step(number, rate, look=False)
        self._traffic = Traffic(self._axes())
        leave = common.watch_matrix(self._first_block(), self._facts)
        self._facts["weights"] = self._facts["weights_between"] = _held(self._model)
        with self._traffic:
            loss_and_norm = self._step(number, rate, look=True)
        leave()
        return loss_and_norm

    def _step(self, number: int, rate: float, *, look: bool) -> tuple[torch.Tensor, Any]:
        watch, engine = self.task.watch, self.engine
        for group in engine.optimizer.param_groups:
            group["lr"] = rate
        with watch.part("data_wait"):
            micros = self._micros_of(number)
            self._targets = self._all_targets(micros)
        if self._stages > 1:
            return self._by_schedule(micros, look=look)
        loss = torch.zeros((), device=self.task.device)
        norm = None
        for micro in micros:
            labels = micro.pop("labels")
            with watch.part("forward"):
                part = self._share_of_loss(engine(**micro).logits, labels)
            self._facts["micro_batches"] += look
            with watch.part("backward"):
                engine.backward(part * (self._accum * common.SIZE))
            if look:
                self._backward_over()
            loss += part.detach()
            with watch.part("optimizer"):
                if engine.is_gradient_accumulation_boundary() and not engine.zero_optimization():
                    norm = self._whole_norm()
                engine.step()
        with watch.part("optimizer"):
            loss = steps.summed(loss)
            if engine.zero_optimization():
                norm = engine.get_global_grad_norm()
        return loss, norm

    def _share_of_loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return a micro-batch's part of the mean loss over all targets of the step."""
        logits = logits.float().flatten(0, 1)
        if not self.narrowing:  # once: the host waits for the number of targets
            begun = self.data_ranks / float(self._targets)
            precision = self.task.options["precision"]
            self.narrowing = common.narrowing(logits, labels, begun, precision)
        total = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
        return total / self._targets

    # ---- stages

    def _loss_of_stage(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self._share_of_loss(logits, labels) * (self._accum * self.data_ranks)

    def _by_schedule(self, micros: list[Any], *, look: bool) -> tuple[torch.Tensor, Any]:
        """Return a step by DeepSpeed's schedule.

        What lies between its instructions is backward's.
        """
        self._looks = look
        with self.task.watch.part("backward"):
            pairs = iter([(micro["input_ids"], micro["labels"]) for micro in micros])
            loss = self.engine.train_batch(pairs)
        if self.engine.global_steps == 1:  # the last stage alone has logits
            narrowing = torch.tensor(self.narrowing, device=self.task.device)
            dist.all_reduce(narrowing, op=dist.ReduceOp.MAX)
            self.narrowing = float(narrowing)
        return loss, self._norm

    def _time_instructions(self) -> None:
        """Each instruction of the pipeline's schedule in its part of the step.

        Sending and waiting for another stage stays in backward, as under Megatron's schedule.
        """
        from deepspeed.runtime.pipe import schedule

        instructions, watch = dict(self.engine._INSTRUCTION_MAP), self.task.watch
        parts: dict[Any, str] = {
            schedule.LoadMicroBatch: "data_wait",
            schedule.ForwardPass: "forward",
            schedule.OptimizerStep: "optimizer",
        }

        def timed(name: str, act: Callable[..., None]) -> Callable[..., None]:
            def run(engine: Any, **how: Any) -> None:
                with watch.within(name):
                    act(engine, **how)

            return run

        def backward(engine: Any, **how: Any) -> None:
            instructions[schedule.BackwardPass](engine, **how)
            if self._looks:
                self._facts["micro_batches"] += 1
                self._backward_over()

        def update(engine: Any, **how: Any) -> None:
            if not engine.zero_optimization():
                self._norm = self._norm_of_stages()
            instructions[schedule.OptimizerStep](engine, **how)
            if engine.zero_optimization():
                self._norm = engine.get_global_grad_norm()

        changed = instructions | {schedule.BackwardPass: backward, schedule.OptimizerStep: update}
        changed |= {
            instruction: timed(name, changed[instruction]) for instruction, name in parts.items()
        }
        self.engine._INSTRUCTION_MAP = changed

    def _norm_of_stages(self) -> torch.Tensor:
        """Return the norm of all stages' gradients; one that two stages share counts once."""
        weights = [w for w in self._model.parameters() if w.grad is not None]
        squares = [w.grad.float().square().sum() for w in weights if not w.ds_pipe_replicated]
        total = torch.stack(squares).sum()
        dist.all_reduce(total, group=self.engine.grid.get_pipe_parallel_group())
        return total.sqrt()

    def _axes(self) -> dict[str, str]:
        world = dist.group.WORLD.group_name
        if self._stages == 1:
            return {world: "dp_shard"}
        grid = self.engine.grid
        return {
            grid.get_data_parallel_group().group_name: "dp_shard",
            grid.get_pipe_parallel_group().group_name: "pp",
            world: "pp",  # its messages between stages
        }

    def _first_block(self) -> Any:
        if self._stages > 1:
            kind = deepspeed_pipeline.PipedBlock
            return next(m for m in self._model.modules() if isinstance(m, kind))
        blocks = next(m for m in self._model.modules() if isinstance(m, torch.nn.ModuleList))
        return blocks[0]

    def _micros_of(self, number: int) -> list[dict[str, torch.Tensor]]:
        number %= max(1, len(self._micros) // self._accum)  # profiled steps follow the last one
        parts = [self._micros[number * self._accum + micro] for micro in range(self._accum)]
        for part in parts:
            part.pop("shift_labels", None)
        device = self.task.device
        return [{name: t.to(device) for name, t in part.items()} for part in parts]

    def _all_targets(self, micros: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        """Return the number of the step's targets on all data-parallel ranks."""
        count = torch.stack([(micro["labels"] >= 0).sum() for micro in micros]).sum()
        if common.SIZE > 1:
            dist.all_reduce(count)
        return count // self._stages

    def _whole_norm(self) -> torch.Tensor:
        optimizer = self.engine.optimizer
        get_grads = getattr(optimizer, "get_grads_for_norm", None)  # bf16's: it holds fp32 sums
        grads = list(get_grads()) if get_grads is not None else []
        grads = grads or [p.grad for p in self._model.parameters() if p.grad is not None]
        return torch.nn.utils.get_total_norm(_flat(grads))

    @property
    def _model(self) -> Any:
        return self.engine.module

    # ---- what live objects say

    def _backward_over(self) -> None:
        """The most gradients that a rank held when a micro-batch was over."""
        weights = list(self._model.parameters())
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        gradients = [grad for grad in gradients if grad.numel()]
        averaged = getattr(self.engine.optimizer, "averaged_gradients", None) or {}
        gradients += _flat(averaged.values())
        # In bf16 those of one micro-batch are narrow, and added up in fp32 beside.
        gradients = (
            _flat(getattr(self.engine.optimizer, "fp32_groups_gradients_flat", None)) or gradients
        )
        self._facts["gradients"] = max(self._facts["gradients"], common.elements(gradients))
        if gradients:
            self._facts["gradient_dtype"] = common.kind(gradients)

    def facts(self) -> common.Facts:
        """Return the layout's facts."""
        model, optimizer = self._model, self.engine.optimizer
        weights = list(model.parameters())
        base = getattr(optimizer, "optimizer", optimizer)
        while hasattr(base, "optimizer"):
            base = base.optimizer
        masters = _masters(optimizer, base)
        facts = common.facts_of(
            self.engine, masters, base, self.task.device, "deepspeed", "transformers"
        )
        optimizer_name = type(base).__name__
        traffic = self._traffic
        assert traffic is not None
        return {
            **facts,
            "optimizer": _OPTIMIZERS.get(optimizer_name, optimizer_name),
            "fused": optimizer_name in _OPTIMIZERS or facts["fused"],
            **self._facts,
            "gradients": self._facts["gradients"] or common.elements(masters),
            "num_parameters": sum(getattr(w, "ds_numel", w.numel()) for w in weights),
            "exchanges": [
                {name: getattr(exchange, name) for name in exchange.__dataclass_fields__}
                for exchange in traffic.exchanges
            ],
            "axes": self._sizes(),
            "master_device": masters[0].device.type if masters else None,
            "placements": f"ZeRO stage {self.engine.zero_optimization_stage()}",
            "attention": attention_of(self._first_block() if self._stages > 1 else model),
            "attention_kernel": " and ".join(sorted(traffic.attention_kernels)) or None,
            "compiled": bool(getattr(self.engine, "is_compiled", False)),
            "stages": 1,
        }

    def _sizes(self) -> dict[str, int]:
        """Ranks of each axis; a pipeline's are those of its grid, whatever group it sends over."""
        assert self._traffic is not None
        sizes = dict(self._traffic.sizes)
        if "pp" in sizes:
            sizes["pp"] = self.engine.grid.pipe_parallel_size
        return sizes


def _groups(model: torch.nn.Module, decay: float) -> list[dict[str, Any]]:
    """Matrices decay; biases and norms do not."""
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.ndim >= 2], "weight_decay": decay},
        {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _held(model: torch.nn.Module) -> int:
    """Elements of the weights that a rank holds between steps: of shared ones its share.

    Between forward and backward stage 3 keeps what it has gathered, up to 1e9 weights unless it is
    told otherwise (stage3_max_live_parameters): that says nothing of the stage.
    """
    weights: list[Any] = list(model.parameters())
    return sum(
        w.numel() or (w.ds_tensor.numel() if hasattr(w, "ds_tensor") else 0) for w in weights
    )


def _masters(optimizer: Any, base: Any) -> list[torch.Tensor]:
    """Return the master weights, from the attribute in which each optimizer has them."""
    for name in (
        "fp32_partitioned_groups_flat",
        "single_partition_of_fp32_groups",
        "fp32_groups_flat_partition",
    ):
        if masters := getattr(optimizer, name, None):
            return _flat(masters)
    return [weight for group in base.param_groups for weight in group["params"]]


def _flat(nested: Any) -> list[torch.Tensor]:
    """Tensors in lists of lists."""
    if isinstance(nested, torch.Tensor):
        return [nested]
    return [] if nested is None else [tensor for part in nested for tensor in _flat(part)]
