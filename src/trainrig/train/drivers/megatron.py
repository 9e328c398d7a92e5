"""Megatron-Core on our data and our first weights: one rank.

Run as ``python start.py megatron FOLDER`` (`start`) by a Python that has numpy, torch and
megatron-core; FOLDER is laid out by `trainrig.train.driver_files`.  Models, schedules, data
parallelism and optimizers are Megatron's own; without CUDA they run under `megatron_cpu`.

Where Transformer Engine is installed its layers are used; else Megatron's local ones ("unfused"
among the versions), with torch's scaled_dot_product_attention in the place of a kernel and torch's
norms marked as Megatron marks its own, so that sequence parallelism sums their gradients.

Interleaved stages send to each other twice at once.  Over gloo, which matches messages by their
order alone, Megatron's batched sends are mixed up when there are two stages: the loss is wrong and
nothing says so.  There each message is sent by itself (batch_p2p_comm False).

The loss of a micro-batch is a sum, and gradients are divided by the step's targets in fp32, last,
as in our own engine (Megatron's calculate_per_token_loss).  With a mean, the 1/N that begins
backward is narrowed to bf16 at the logits, in every gradient alike: N = 5 x 2^k makes all of them 1
to 2 thousandths too large or too small, N a power of two nothing.

The distributed optimizer is Adam's alone.  In the comparison's steps of plain gradient descent it
is Adam with beta1 0 and an eps beside which the gradient's own size vanishes in fp32: the update is
rate · gradient.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from trainrig.data.batches import Shard
from trainrig.data.open_batches import open_batches
from trainrig.process.child import run_rank
from trainrig.train.drivers import common, megatron_bert, megatron_cpu, steps
from trainrig.train.native.traffic import Traffic, in_backward

_ACTIVATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LOSS_SCALE = {"initial_loss_scale": 2.0**16, "hysteresis": 1, "loss_scale_window": 2000}
"""Loss scale of fp16 as in our engine; Megatron's own, 2^32, overflows for five steps."""
_LARGE = 1e6
"""An eps that no square root of a gradient's square adds anything to."""


def main() -> None:
    """Train, tell, leave."""
    run_rank(lambda folder, events: steps.train(folder, events, Core))


class SdpaCore(torch.nn.Module):
    """torch's attention where Megatron has a place for a kernel.  (T, B, H, D) → (T, B, H·D)"""

    def __init__(self, *_: Any, causal: bool = True, **__: Any) -> None:
        super().__init__()
        self._causal = causal

    def forward(self, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> torch.Tensor:
        """Fewer heads of keys and values are shared by groups of queries."""
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (q, k, v))
        few = k.shape[1] < q.shape[1]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self._causal, enable_gqa=few)
        return out.permute(2, 0, 1, 3).flatten(2)


class Norm:
    """torch's norm, with Megatron's mark of what sequence parallelism sums."""

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        norm: Any = kind(hidden_size, eps=eps)
        for weight in norm.parameters():
            weight.sequence_parallel = config.sequence_parallel
        return norm


class Core:
    """Megatron-Core's GPT or BERT under any of its layouts."""

    def __init__(self, task: steps.StepTask) -> None:
        self.task, options = task, task.options
        self._on_gpu = task.device.startswith("cuda")
        self._join(options)
        from megatron.core import parallel_state as places

        self.places: Any = places
        self.data_ranks = places.get_data_parallel_world_size()
        self.narrowing = 1.0  # backward begins with a sum
        self._config = self._transformer()
        self.chunks = self._wrapped([self._stage(number) for number in range(self._stages)])
        self.optimizer = self._make_optimizer()
        samples = options["batch_size"] * options["grad_accum"]
        self._make = open_batches(
            Path(options["data"]),
            "train",
            task.given["objective"],
            seq_len=options["seq_len"],
            shard=Shard(
                batch=samples,
                rank=places.get_data_parallel_rank(),
                num_ranks=self.data_ranks,
                seed=options["seed"],
            ),
            vocab_size=task.given["vocab"],
        )
        self._facts: common.Facts = {"micro_batches": 0, "block_forwards": 0}
        self._traffic: Traffic | None = None
        starts: list[Any] = []

        def began(*_: Any) -> None:
            starts.append(task.watch.mark())

        def ended(*_: Any) -> None:
            task.watch.inner("forward", starts.pop())

        for chunk in self.chunks:
            chunk.register_forward_pre_hook(began)
            chunk.register_forward_hook(ended)

    def _join(self, options: dict[str, Any]) -> None:
        """Megatron's groups of ranks, once a process."""
        if not self._on_gpu and torch.cuda.Stream is not megatron_cpu.Nothing:
            megatron_cpu.install()
        from megatron.core import parallel_state as places
        from megatron.core.tensor_parallel import random as randoms

        if places.model_parallel_is_initialized():
            return
        places.initialize_model_parallel(
            tensor_model_parallel_size=options["tp"],
            pipeline_model_parallel_size=options["pp"],
            virtual_pipeline_model_parallel_size=self._virtual,
        )
        if self._on_gpu:
            randoms.model_parallel_cuda_manual_seed(options["seed"] % 2**31)
        else:  # there is no dropout, and the first weights are ours: nothing is drawn
            randoms.initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)

    @property
    def _stages(self) -> int:
        """That this rank holds."""
        return int(self.task.options["interleave"])

    @property
    def _virtual(self) -> int | None:
        return self._stages if self._stages > 1 else None

    # ---- the model

    def _transformer(self) -> Any:
        from megatron.core.distributed import finalize_model_grads
        from megatron.core.transformer.transformer_config import TransformerConfig

        description, options = self.task.given, self.task.options
        dtype = _DTYPES.get(options["precision"], torch.float32)
        unfused = dict.fromkeys(
            (
                *("bias_activation_fusion", "bias_dropout_fusion", "masked_softmax_fusion"),
                *("apply_rope_fusion", "gradient_accumulation_fusion"),
            ),
            False,
        )
        recompute: dict[str, Any] = {}
        if options["recompute"] == "full":
            recompute = {"recompute_method": "uniform", "recompute_num_layers": 1}
            recompute["recompute_granularity"] = "full"
        elif options["recompute"] == "selective":
            recompute = {"recompute_granularity": "selective"}
        # Asked for by a test alone: the comparison sees what gloo makes of batched sends.
        batched = self.task.request.get("batch_p2p_comm", self._on_gpu)
        config = TransformerConfig(
            **description["transformer"],
            **({} if self._fused else unfused),
            **recompute,
            activation_func=_ACTIVATIONS[description["activation"]],
            use_cpu_initialization=True,
            perform_initialization=False,
            tensor_model_parallel_size=options["tp"],
            pipeline_model_parallel_size=options["pp"],
            virtual_pipeline_model_parallel_size=self._virtual,
            sequence_parallel=bool(options["sequence_parallel"]),
            pipeline_dtype=dtype,
            params_dtype=dtype,
            bf16=options["precision"] == "bf16",
            fp16=options["precision"] == "fp16",
            batch_p2p_comm=batched,
            calculate_per_token_loss=True,
        )
        config.finalize_model_grads_func = finalize_model_grads
        return config

    @property
    def _fused(self) -> bool:
        """Transformer Engine's layers; unverified on hardware."""
        here = importlib.util.find_spec("transformer_engine") is not None
        return here and self._on_gpu and not self._is_bert

    @property
    def _is_bert(self) -> bool:
        return bool(self.task.given["family"] == "bert")

    def _spec(self) -> Any:
        from megatron.core.models.gpt import gpt_layer_specs as specs
        from megatron.core.transformer import transformer_block

        if self._fused:
            return specs.get_gpt_layer_with_transformer_engine_spec()
        rms = self._config.normalization
        spec = specs.get_gpt_layer_local_spec(normalization=rms)
        parts = spec.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = Norm
        transformer_block.LayerNormImpl = Norm  # the last norm's
        if self.task.options["attention"] != "plain":
            parts.self_attention.submodules.core_attention = SdpaCore
        return spec

    def _stage(self, number: int) -> Any:
        """Return one of this rank's stages with its part of the first weights."""
        from megatron.core.models.gpt.gpt_model import GPTModel

        places, description = self.places, self.task.given
        stage_argument = {"vp_stage": number} if self._virtual else {}
        ways = self.task.options["tp"]
        vocab = -(-description["vocab"] // ways) * ways  # padded as far as ranks need
        place = {
            "pre_process": places.is_pipeline_first_stage(ignore_virtual=False, **stage_argument),
            "post_process": places.is_pipeline_last_stage(ignore_virtual=False, **stage_argument),
            **stage_argument,
        }
        if self._is_bert:
            plain = self.task.options["attention"] == "plain"
            core = None if plain else partial(SdpaCore, causal=False)
            model = megatron_bert.bert(
                self._config, Norm, core, vocab=vocab, given=description["model"], **place
            )
        else:
            model = GPTModel(
                self._config, self._spec(), vocab_size=vocab, **description["model"], **place
            )
        self._fill(model, stage_argument)
        return model.to(self.task.device)

    @torch.no_grad()
    def _fill(self, model: Any, stage_argument: dict[str, int]) -> None:
        from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

        state = torch.load(self.task.folder / "weights.pt", weights_only=True, mmap=True)
        first = get_transformer_layer_offset(self._config, **stage_argument)
        ways = self.task.options["tp"]
        rank = self.places.get_tensor_model_parallel_rank()
        for name, weight in model.named_parameters():
            key = _name_of(name, first)
            if key not in state and key == "output_layer.weight":  # a tied one, of the last stage
                key = "embedding.word_embeddings.weight"
            whole = state[key]
            gated = name.endswith("linear_fc1.weight") and self._config.gated_linear_unit
            dim = _split_along(weight, whole)
            if dim is not None:
                _mark(weight, dim)
                turns = 2 if gated else 1
                rows = weight.shape[dim] * ways - whole.shape[dim]
                if rows:  # the vocabulary's padding
                    whole = torch.cat([whole, whole.new_zeros(rows, *whole.shape[1:])])
                parts = [piece.chunk(ways, dim)[rank] for piece in whole.chunk(turns, dim)]
                whole = torch.cat(parts, dim)
            weight.copy_(whole)

    def _wrapped(self, stages: list[Any]) -> list[Any]:
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
        )
        from megatron.core.transformer.module import Float16Module

        how = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=True,
            use_distributed_optimizer=self._is_distributed,
        )
        if self.task.options["precision"] in _DTYPES:
            stages = [Float16Module(self._config, stage) for stage in stages]
        return [DistributedDataParallel(self._config, how, stage) for stage in stages]

    @property
    def _is_distributed(self) -> bool:
        return bool(self.task.options["zero"] == 1)

    def _make_optimizer(self) -> Any:
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        options = self.task.options
        plain = options["optimizer"] == "sgd"
        settings: dict[str, Any] = {
            "optimizer": "adam",
            "lr": options["lr"],
            "adam_beta1": options["beta1"],
            "adam_beta2": options["beta2"],
            "adam_eps": options["eps"],
        }
        if plain and self._is_distributed:
            settings |= {"adam_beta1": 0.0, "adam_eps": _LARGE, "lr": options["lr"] * _LARGE}
        elif plain:
            settings = {"optimizer": "sgd", "lr": options["lr"], "sgd_momentum": 0.0}
        config = OptimizerConfig(
            **settings,
            weight_decay=options["weight_decay"],
            clip_grad=options["clip"] or math.inf,  # the norm is taken where it clips
            use_distributed_optimizer=self._is_distributed,
            params_dtype=self._config.params_dtype,
            bf16=self._config.bf16,
            fp16=self._config.fp16,
            **_LOSS_SCALE,
        )
        optimizer = get_megatron_optimizer(config, self.chunks)
        if self._config.fp16:  # Megatron-LM's own loop does this
            self._config.grad_scale_func = optimizer.scale_loss
        return optimizer

    # ---- a step

    def step(self, number: int, rate: float) -> tuple[torch.Tensor, Any]:
        """Return a step's micro-batches by Megatron's schedule, then its update."""
        if self.task.is_probe or self._traffic is not None:
            return self._step(number, rate)
        self._traffic = Traffic(self._axes())
        leave = self._watch()
        with self._traffic:
            loss_and_norm = self._step(number, rate)
        for handle in leave:
            handle.remove()
        return loss_and_norm

    def _step(self, number: int, rate: float) -> tuple[torch.Tensor, Any]:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        task, options = self.task, self.task.options
        plain = options["optimizer"] == "sgd" and self._is_distributed
        for group in self.optimizer.param_groups:
            group["lr"] = rate * _LARGE if plain else rate
        with task.watch.part("data_wait"):
            micros = self._micros(number)
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        with task.watch.part("backward"):
            several = self._stages > 1
            micro_losses = get_forward_backward_func()(
                forward_step_func=self._forward,
                data_iterator=[iter(micros) for _ in self.chunks] if several else iter(micros),
                model=self.chunks if several else self.chunks[0],
                num_microbatches=options["grad_accum"],
                seq_length=options["seq_len"],
                micro_batch_size=options["batch_size"],
                forward_only=False,
            )
        with task.watch.part("optimizer"):
            _, norm_found, _ = self.optimizer.step()
            self.optimizer.zero_grad()
            total, targets = torch.zeros(2, device=task.device).unbind()
            if micro_losses and self.places.get_tensor_model_parallel_rank() == 0:
                total = torch.stack([micro_loss["loss"] for micro_loss in micro_losses]).sum()
                targets = torch.stack([micro_loss["targets"] for micro_loss in micro_losses]).sum()
            loss = steps.summed(total.clone()) / steps.summed(targets.clone())
        return loss, norm_found

    def _micros(self, number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        batch, accum = self._make(number), self.task.options["grad_accum"]
        parts = (
            torch.from_numpy(part).to(self.task.device) for part in (batch.inputs, batch.labels)
        )
        inputs, labels = (part.chunk(accum) for part in parts)
        return list(zip(inputs, labels, strict=True))

    def _forward(self, micros: Iterator[Any], model: Any) -> tuple[torch.Tensor, Any]:
        inputs, labels = next(micros)
        here = labels >= 0  # of a masked model's: the others are no targets
        if self._is_bert:
            segments, seen = torch.zeros_like(inputs), torch.ones_like(inputs)
            losses = model(inputs, seen, tokentype_ids=segments, lm_labels=labels.clamp(min=0))
            losses = losses[0] if isinstance(losses, tuple) else losses
        else:
            positions = torch.arange(inputs.shape[1], device=inputs.device)[None]
            losses = model(inputs, positions.expand_as(inputs), None, labels=labels)

        def total(token_losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
            loss, count = (token_losses.float() * here).sum(), here.sum().int()
            return loss, count, {"loss": loss.detach(), "targets": count.float()}

        return losses, total

    # ---- what live objects say

    def _axes(self) -> dict[str, str]:
        places = self.places
        axes = {
            places.get_tensor_model_parallel_group(): "tp",
            places.get_pipeline_model_parallel_group(): "pp",
            places.get_data_parallel_group(with_context_parallel=True): "dp_shard",
            places.get_data_parallel_group(): "dp_shard",
        }
        return {group.group_name: axis for group, axis in axes.items() if group.size() > 1}

    def _layers(self) -> list[Any]:
        from megatron.core.transformer.transformer_layer import TransformerLayer

        stages = (chunk.modules() for chunk in self.chunks)
        return [part for parts in stages for part in parts if isinstance(part, TransformerLayer)]

    def _watch(self) -> list[Any]:
        """Count the first layer's forwards, and look at what comes out."""

        def began(*_: Any) -> None:
            self._facts["block_forwards"] += 1
            self._facts["micro_batches"] += not in_backward()

        def ended(_: Any, __: Any, out: Any) -> None:
            self._facts |= common.of_result(out[0] if isinstance(out, tuple) else out)

        layer = self._layers()[0]
        return [layer.register_forward_pre_hook(began), layer.register_forward_hook(ended)]

    def facts(self) -> common.Facts:
        """Return the layout's facts."""
        weights = [weight for chunk in self.chunks for weight in chunk.parameters()]
        inner = getattr(self.optimizer, "chained_optimizers", [self.optimizer])[0]
        base = inner.optimizer
        masters = [weight for group in base.param_groups for weight in group["params"]]
        traffic = self._traffic
        assert traffic is not None
        facts = common.facts_of(
            self.chunks[0], masters, base, self.task.device, "megatron-core", *self._kernels()
        )
        gradients = [w.main_grad for w in weights if getattr(w, "main_grad", None) is not None]
        software = facts.pop("software") | {"kernels": "fused" if self._fused else "unfused"}
        name = type(base).__name__
        return {
            **facts,
            "software": software,
            "wrapped": f"megatron.{type(self.chunks[0]).__name__}, {type(inner).__name__}",
            "optimizer": {"Adam": "AdamW", "FusedAdam": "AdamW"}.get(name, name),
            "fused": name == "FusedAdam" or facts["fused"],
            **self._facts,
            "num_parameters": sum(w.numel() for w in weights),
            "weights": common.elements(weights),
            "weights_between": common.elements(weights),
            "gradients": common.elements(gradients),
            "gradient_dtype": common.kind(gradients),
            "exchanges": [
                {name: getattr(exchange, name) for name in exchange.__dataclass_fields__}
                for exchange in traffic.exchanges
            ],
            "axes": traffic.sizes,
            "split": {"tp": self._ways()},
            "master_device": masters[0].device.type,
            "placements": None,
            "attention": "plain" if self.task.options["attention"] == "plain" else "sdpa",
            "attention_kernel": " and ".join(sorted(traffic.attention_kernels)) or None,
            "compiled": False,
            "stages": len(self.chunks),
        }

    def _kernels(self) -> tuple[str, ...]:
        names = ("transformer_engine", "apex")
        return tuple(name for name in names if importlib.util.find_spec(name) is not None)

    def _ways(self) -> int:
        """Ranks that every matrix of the layers is split over, by the sizes that it has here."""
        config, ways = self._config, []
        for layer in self._layers():
            heads = config.num_attention_heads + 2 * config.num_query_groups
            whole = {
                layer.self_attention.linear_qkv: heads * config.kv_channels * config.hidden_size,
                layer.self_attention.linear_proj: (
                    config.num_attention_heads * config.kv_channels * config.hidden_size
                ),
                layer.mlp.linear_fc1: (
                    (1 + config.gated_linear_unit) * config.ffn_hidden_size * config.hidden_size
                ),
                layer.mlp.linear_fc2: config.ffn_hidden_size * config.hidden_size,
            }
            ways += [round(size / part.weight.numel()) for part, size in whole.items()]
        return min(ways)


def _split_along(weight: torch.Tensor, whole: torch.Tensor) -> int | None:
    """Return the dimension that ranks of tensor parallelism share; None: each has it whole."""
    sizes = enumerate(zip(weight.shape, whole.shape, strict=True))
    return next((dim for dim, (here, there) in sizes if here != there), None)


def _mark(weight: Any, dim: int) -> None:
    """Megatron marks what it has initialised itself; what is not marked counts once in the norm."""
    from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes

    if not hasattr(weight, "tensor_model_parallel"):
        set_tensor_model_parallel_attributes(weight, is_parallel=True, dim=dim, stride=1)


def _name_of(name: str, first: int) -> str:
    """Return the whole model's name of a stage's weight; layers count from the model's first.

    Transformer Engine's products hold the norm before them.
    """
    for fused, plain in (
        ("self_attention.linear_qkv.layer_norm_", "input_layernorm."),
        ("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."),
    ):
        name = name.replace(fused, plain)
    if name.startswith(("decoder.layers.", "encoder.layers.")):
        base_name, _, number, name_in_layer = name.split(".", 3)
        return f"{base_name}.layers.{int(number) + first}.{name_in_layer}"
    return name
