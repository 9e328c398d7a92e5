"""Rules for what each framework does not train, each with a hint, checked before anything starts.

A layout is refused for what another one may train (`Framework.refuses_layout`), an experiment for
something besides its layout (`Framework.refuses`); what a machine or an environment lacks is asked
elsewhere (`engines.check_site`).  Imports no torch.
"""

from __future__ import annotations

from typing import Any

from trainrig.errors import NeedsGpuError, UnavailableError, UsageError
from trainrig.process.python_env import interpreter_for, missing_requirement
from trainrig.train.config import Experiment
from trainrig.train.trainer_arguments import lacking, parsed
from trainrig.workload import ModelShape, find
from trainrig.workload.hf_config import class_names, library_config
from trainrig.workload.layout import Layout
from trainrig.workload.model import matrices

Refusal = tuple[str, str] | None
"""Message and hint of a refusal; None: not refused."""

_TRAINED = {
    "precision": ("fp32", "tf32", "bf16", "fp16", "fp8"),
    "optimizer": ("adamw", "adamw-fused", "adamw-8bit", "sgd", "adafactor"),
    "offload": ("none", "host", "disk"),
}


def refused_by_all(layout: Layout) -> Refusal:
    """Return why no framework trains a layout, or None."""
    rules = (
        (
            layout.memory.optimizer_in_backward > 0,
            "updates inside backward are not trained yet",
            "leave optimizer_in_backward out",
        ),
        *(
            (
                layout.get(name) not in known,
                f"{name} {layout.get(name)} is not trained yet",
                "one of: " + ", ".join(known),
            )
            for name, known in _TRAINED.items()
        ),
        (
            layout.memory.offload != "none" and layout.sharding.zero < 1,
            f"offload {layout.memory.offload} moves shards of weights, and there are none",
            "zero 1, 2 or 3, or offload none",
        ),
    )
    return next(((words, hint) for is_broken, words, hint in rules if is_broken), None)


def part_not_built(shape: ModelShape) -> str | None:
    """Return part of a model that `trainrig.models` has no code for; None: it builds the model."""
    if not shape.is_only_predicted:
        return None
    moe = shape.moe
    parts = (
        (shape.latent.kv_rank, "latent attention"),
        (shape.state.width, "layers with a state"),
        (shape.attention.memory_segments, "attention to a memory"),
        (moe.expert_ffn or moe.shared_experts or moe.dense_layers, "its mixture of experts"),
        (shape.variant, f"the architecture {shape.variant}"),
    )
    return next(name for is_there, name in parts if is_there)


def model_refused_by_native(shape: ModelShape) -> Refusal:
    """Return why our own engine does not train a model: it has no code for a part of it."""
    if (part := part_not_built(shape)) is None:
        return None
    words = f"{shape.name}: trainrig's own models do not have {part}"
    return words, "--framework huggingface or deepspeed, which train it by its configuration"


def model_refused_by_transformers(shape: ModelShape) -> Refusal:
    """Return why no model of transformers' is made for a shape: its configuration is not known."""
    if not shape.is_only_predicted:
        return None
    try:
        library_config(shape)
    except UsageError as error:
        return error.message, error.hint or ""
    return None


def _refused_of_library_model(experiment: Experiment) -> Refusal:
    """Return what is not done with a model that transformers alone builds."""
    if not experiment.init or not find(experiment.model).is_only_predicted:
        return None
    words = f"init: {experiment.model} begins with transformers' own random weights"
    return words, "leave init out"


def refused_by_stages(layout: Layout, shape: ModelShape) -> Refusal:
    """Stages that are not equal: ours alone are trained, though others' are predicted."""
    stages = layout.mesh.pp * layout.pipeline.interleave
    if layout.traits.models.own_models or layout.mesh.pp == 1 or shape.num_layers % stages == 0:
        return None
    words = f"{shape.num_layers} layers cannot be divided over {stages} stages of equal length"
    return words, "--framework native, or another number of stages"


_SPLITS = {
    "tp": "tensor parallelism",
    "pp": "pipeline parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
}


def _refused_but_by_trainer(layout: Layout) -> Refusal:
    """Return why only Trainer trains a layout, or None."""
    if layout.memory.optimizer == "adafactor":
        return "adafactor is trained by Hugging Face's Trainer", "--framework huggingface, or adamw"
    if layout.lora.rank > 0:
        words = "adapters (LoRA) are trained by Hugging Face's Trainer with PEFT"
        return words, "--framework huggingface, or lora_rank 0"
    return None


def layout_refused_by_native(layout: Layout) -> Refusal:
    """Layouts that our own engine does not train."""
    if (refused := _refused_but_by_trainer(layout)) is not None:
        return refused
    if layout.memory.offload == "disk":
        return "offload disk is DeepSpeed's", "offload host, or --framework deepspeed"
    if (
        layout.mesh.pp > 1
        and layout.pipeline.interleave == 1
        and layout.batch.grad_accum < layout.mesh.pp
    ):
        reason = (
            f"{layout.batch.grad_accum} micro-batches do not fill {layout.mesh.pp} pipeline stages"
        )
        return reason, f"grad_accum {layout.mesh.pp} or more"
    if layout.precision.compute == "fp8" and layout.mesh.tp > 1:
        reason = "fp8 beside tensor parallelism comes later: torchao has other layers for it"
        return reason, "tp 1, or bf16"
    if layout.precision.compute == "fp8" and layout.pipeline.schedule in ("zb", "zbv"):
        reason = (
            f"schedule {layout.pipeline.schedule} has two backward passes, and torchao's layers one"
        )
        return reason, "schedule 1f1b, or bf16"
    return None


_FP8_MULTIPLE = 16
"""Sizes of products of 8-bit floats (torch._scaled_mm)."""


def _fp8_refused(experiment: Experiment) -> Refusal:
    """Products of 8-bit floats that no kernel computes, and their words without them."""
    if experiment.precision != "fp8":
        words = (
            f"fp8_recipe {experiment.kernels.fp8_recipe} says how fp8 is scaled, and precision is "
        )
        return (
            (f"{words}{experiment.precision}", "precision = fp8")
            if experiment.kernels.fp8_recipe
            else None
        )
    shape, layout = find(experiment.model), experiment.predicted_layout
    sizes = {matrix.wide_in for matrix in matrices(shape)} | {
        matrix.wide_out for matrix in matrices(shape)
    }
    tokens = {experiment.batch_size * experiment.seq_len // experiment.cp}
    tokens |= {experiment.batch_size * layout.batch.written} if shape.num_decoder_layers else set()
    for quantity, numbers in (
        (f"widths of {experiment.model}", sizes),
        ("tokens of a micro-batch", tokens),
    ):
        if broken := [number for number in sorted(numbers) if number % _FP8_MULTIPLE]:
            words = (
                f"fp8 multiplies sizes that are multiples of {_FP8_MULTIPLE}: {quantity}: "
                f"{broken[0]}"
            )
            return words, "another batch_size or seq_len, another model, or bf16"
    return None


def refused_by_native(experiment: Experiment) -> Refusal:
    """Return why our own engine refuses an experiment, or None."""
    if (fp8 := _fp8_refused(experiment)) is not None:
        return fp8
    if experiment.kernels.trainer:
        words = "trainer is Hugging Face's"
        return words, "framework = huggingface, or leave them out"
    if experiment.kernels.liger or experiment.placement.loader_workers:
        words = "liger and loader_workers are options of another framework's trainer"
        return words, "framework = huggingface, or leave them out"
    if not experiment.placement.python:
        return None
    words = (
        "python names the interpreter of another project's engine, and "
        f"{experiment.framework} is ours"
    )
    return words, "leave it out, or name it in the experiments of another project's engine"


def _no_fp8(layout: Layout) -> Refusal:
    """8-bit products of other frameworks: by Transformer Engine, which is not driven here."""
    words = f"fp8 of {layout.framework} is not trained here"
    return (words, "--framework native, or bf16") if layout.precision.compute == "fp8" else None


def layout_refused_by_trainer(layout: Layout) -> Refusal:
    """Layouts that Trainer does not train."""
    if (fp8 := _no_fp8(layout)) is not None:
        return fp8
    for name, split_name in _SPLITS.items():
        if layout.get(name) > 1:
            return f"{split_name} ({name}) is the native framework's", "--framework native"
    if layout.sharding.zero == 1:
        words = (
            f"huggingface with zero {layout.sharding.zero}: Trainer shards through FSDP, "
            "which has no"
        )
        return f"{words} such stage", "zero 2 or 3, or --framework native"
    if layout.memory.offload != "none" or layout.sharding.shard_size > 0:
        return "offload and shard_size are the native framework's", "--framework native"
    if layout.precision.compute == "fp16" and layout.sharding.zero > 0:
        words = "fp16 scales its loss, and Trainer's shards cannot see where another one overflows"
        return words, "bf16, zero 0, or --framework native"
    words = "Trainer knows no selective recomputation"
    selective = (
        (words, "recompute full or none") if layout.memory.recompute == "selective" else None
    )
    wrapped = "torch.nn.DataParallel is the native framework's", "--framework native"
    return selective or (wrapped if layout.sharding.parallel == "dataparallel" else None)


def _native_only_key(experiment: Experiment) -> str | None:
    """Return the first key that is set and only our own engine knows."""
    known = {
        "heldout_every": experiment.heldout.every,
        "decay_embeddings": not experiment.update.decay_embeddings,
        "max_restarts": experiment.recovery.max_restarts,
        "min_nproc": experiment.recovery.min_nproc,
        "unfused": experiment.kernels.unfused,
        "fp8_recipe": experiment.kernels.fp8_recipe,
        "cuda_graph": experiment.kernels.cuda_graph,
    }
    return next((name for name, is_set in known.items() if is_set), None)


def refused_by_trainer(experiment: Experiment) -> Refusal:
    """Return why Trainer does not train an experiment, or trains it otherwise without saying so."""
    if (refused := _refused_of_library_model(experiment)) is not None:
        return refused
    family = find(experiment.model).family
    name = _native_only_key(experiment) or ""
    parsed(experiment.kernels.trainer)
    rules = (
        (
            experiment.quantize != "none" and experiment.expected.comparable,
            f"quantize {experiment.quantize} rounds the weights themselves: its losses are its own",
            "comparable = false, with why",
        ),
        (
            experiment.zero > 0 and not experiment.device.startswith("cuda"),
            f"huggingface with zero {experiment.zero} on a CPU: accelerate would run "
            "DDP and not say so",
            "zero 0, or --framework native",
        ),
        (
            experiment.kernels.liger and family != "llama",
            f"liger: it has no kernels for {family}",
            "leave it out, or a llama model",
        ),
        (
            experiment.kernels.attention == "tiles",
            "attention = tiles: only the native framework has it, on a CPU",
            "attention sdpa, plain or auto",
        ),
        (
            experiment.dropout > 0 and experiment.expected.comparable,
            f"dropout {experiment.dropout:g}: Trainer's masks come from a generator: "
            "no other training "
            "has them",
            "comparable = false, with why, or dropout 0",
        ),
        (
            experiment.dropout > 0 and family == "llama",
            "Hugging Face's Llama drops of attention alone",
            "dropout 0, or another family",
        ),
        (
            bool(name),
            f"{name} is the native framework's",
            f"--framework native, or leave {name} out",
        ),
        (
            experiment.steps > MOST_STEPS,
            f"steps = {experiment.steps}: Trainer is told the learning rate of each, "
            f"{MOST_STEPS} at most",
            "fewer steps, or --framework native",
        ),
    )
    return next(((words, hint) for is_broken, words, hint in rules if is_broken), None)


MOST_STEPS = 1_000_000
"""Most steps of another project's engine, whose learning rates are a list."""


def lacking_for_trainer(experiment: Experiment) -> UnavailableError | None:
    """Return the package or GPU that adapters, 4-bit weights or Trainer's arguments lack here."""
    python = interpreter_for(experiment.placement.python, experiment.framework)
    if experiment.quantize != "none" and not experiment.device.startswith("cuda"):
        words = "unverified: needs CUDA: QLoRA's 4-bit weights are multiplied by bitsandbytes"
        return NeedsGpuError(words, "lora_rank without quantize on a CPU")
    needs = {"peft": experiment.lora_rank > 0, "bitsandbytes": experiment.quantize != "none"}
    for package, is_needed in needs.items():
        if is_needed and missing_requirement(python, {package: ""}) is not None:
            return UnavailableError(f"lora_rank needs {package}", f"pip install {package}")
    return (
        lacking(experiment.kernels.trainer, python, experiment.device)
        if experiment.kernels.trainer
        else None
    )


def layout_refused_by_deepspeed(layout: Layout) -> Refusal:
    """Layouts that DeepSpeed's engine of Hugging Face's models does not train."""
    if (refused := _refused_but_by_trainer(layout)) is not None:
        return refused
    if (fp8 := _no_fp8(layout)) is not None:
        return fp8
    rules = (
        *(
            (
                layout.get(name) > 1,
                f"{split_name} ({name}) of Hugging Face's models is not trained by DeepSpeed here",
                "--framework native or megatron",
            )
            for name, split_name in _SPLITS.items()
            if name != "pp"
        ),
        *(_pipeline_refused_by_deepspeed(layout) if layout.mesh.pp > 1 else ()),
        (
            layout.sharding.zero == 0
            and layout.precision.compute in ("bf16", "fp16")
            and (layout.mesh.pp == 1 or layout.mesh.dp > 1),
            f"deepspeed with zero 0 in {layout.precision.compute} sums its gradients in that, "
            "not in fp32",
            "zero 1, or fp32",
        ),
        (
            layout.memory.offload == "disk" and layout.sharding.zero < 3,
            f"offload disk with zero {layout.sharding.zero}: DeepSpeed reads NVMe under stage "
            "3 alone, and "
            "would keep all in memory and not say so",
            "zero 3, or offload host",
        ),
        (
            layout.sharding.shard_size > 0,
            "only the native framework shards over some of the ranks (shard_size)",
            "--framework native, or shard_size 0",
        ),
        (
            layout.memory.recompute == "selective",
            "Hugging Face's models know no selective recomputation",
            "recompute full or none",
        ),
        (
            layout.kernels.stack == "compiled",
            "compile is not tried with DeepSpeed here",
            "leave --compile out",
        ),
        (
            layout.memory.optimizer in ("adamw-8bit", "adafactor"),
            f"DeepSpeed's engine has no {layout.memory.optimizer}",
            "adamw, adamw-fused or sgd",
        ),
    )
    return next(((words, hint) for is_broken, words, hint in rules if is_broken), None)


def _pipeline_refused_by_deepspeed(layout: Layout) -> tuple[tuple[Any, str, str], ...]:
    return (
        (layout.memory.offload != "none", "DeepSpeed's pipeline offloads nothing", "offload none"),
        (
            layout.pipeline.interleave > 1 or layout.pipeline.schedule != "1f1b",
            "DeepSpeed's pipeline has one schedule, 1f1b, with one group of layers on a stage",
            "schedule 1f1b and interleave 1, or --framework native or megatron",
        ),
        (
            layout.memory.recompute != "none",
            "recomputation in DeepSpeed's pipeline is not trained here",
            "recompute none, or --framework native",
        ),
        (
            layout.precision.compute == "fp16",
            "DeepSpeed's pipeline is trained in bf16 or fp32",
            "bf16",
        ),
        (
            layout.batch.grad_accum < layout.mesh.pp,
            f"{layout.batch.grad_accum} micro-batches do not fill {layout.mesh.pp} pipeline stages",
            f"grad_accum {layout.mesh.pp} or more",
        ),
    )


_PIPED_BY_DEEPSPEED = ("GPT2LMHeadModel", "LlamaForCausalLM")


def refused_by_deepspeed(experiment: Experiment) -> Refusal:
    """Return why DeepSpeed does not train an experiment, or None."""
    if experiment.precision == "fp16" and not experiment.device.startswith("cuda"):
        words = "deepspeed in fp16, whose loss is scaled, on a CPU: its CPU kernels have no fp16"
        return words, "bf16 or fp32, or --device cuda"
    if (refused := _refused_of_library_model(experiment)) is not None:
        return refused
    shape = find(experiment.model)
    is_piped = not shape.is_only_predicted and class_names(shape)[1] in _PIPED_BY_DEEPSPEED
    if experiment.pp > 1 and not is_piped:
        words = (
            f"{experiment.model} is not cut into stages for DeepSpeed's pipeline: "
            "gpt2 and llama are"
        )
        return words, "gpt2 or llama, or --framework native"
    return _refused_options(experiment)


def layout_refused_by_megatron(layout: Layout) -> Refusal:
    """Layouts that Megatron-Core's models and optimizers do not train."""
    if (refused := _refused_but_by_trainer(layout)) is not None:
        return refused
    if (fp8 := _no_fp8(layout)) is not None:
        return fp8
    rules = (
        (
            layout.mesh.ep > 1,
            "expert parallelism (ep) is the native framework's",
            "--framework native",
        ),
        (
            layout.mesh.cp > 1,
            "Megatron's context parallelism is Transformer Engine's, which is not driven here",
            "--framework native",
        ),
        (
            layout.sharding.zero > 1,
            f"megatron with zero {layout.sharding.zero}: its distributed optimizer is ZeRO 1",
            "zero 1, or --framework native",
        ),
        (
            layout.sharding.shard_size > 0,
            "only the native framework shards over some of the ranks (shard_size)",
            "--framework native, or shard_size 0",
        ),
        (
            layout.memory.offload != "none",
            "offload is DeepSpeed's and the native framework's",
            "zero 1",
        ),
        (
            layout.pipeline.schedule != "1f1b",
            "Megatron's schedule is 1f1b, interleaved where stages are, not "
            f"{layout.pipeline.schedule}",
            "schedule 1f1b, or --framework native",
        ),
        (
            layout.kernels.stack == "compiled",
            "Megatron's layers are not compiled as a whole",
            "leave --compile out",
        ),
        (
            layout.memory.optimizer in ("adamw-8bit", "adafactor"),
            f"Megatron has no {layout.memory.optimizer}",
            "adamw or sgd",
        ),
        (
            layout.mesh.pp > 1 and layout.batch.grad_accum < layout.mesh.pp,
            f"{layout.batch.grad_accum} micro-batches do not fill {layout.mesh.pp} pipeline stages",
            f"grad_accum {layout.mesh.pp} or more",
        ),
    )
    return next(((words, hint) for is_broken, words, hint in rules if is_broken), None)


def model_refused_by_megatron(shape: ModelShape) -> Refusal:
    """Models that Megatron-Core computes otherwise."""
    others = (
        shape.moe.num_experts,
        shape.is_only_predicted,
        shape.position.rope_scaling is not None,
    )
    if shape.family in ("gpt2", "llama", "bert") and not any(others):
        return None
    words = f"{shape.name} ({shape.family}): Megatron-Core computes another model"
    return words, "gpt2, llama or bert, or --framework native"


def checkpoint_refused_by_megatron(shape: ModelShape) -> Refusal:
    """Models whose weights no checkpoint of Megatron-Core's holds."""
    if shape.family == "bert":
        words = f"{shape.name} (bert): Megatron-Core's own BERT has its norms before the sums"
        return words, "--to huggingface"
    return model_refused_by_megatron(shape)


def refused_by_megatron(experiment: Experiment) -> Refusal:
    """Return why Megatron-Core does not train an experiment, or None."""
    if experiment.precision == "fp16" and not experiment.device.startswith("cuda"):
        return "megatron in fp16 on a CPU has no kernels", "bf16 or fp32, or --device cuda"
    return _refused_options(experiment)


def lacking_for_megatron(experiment: Experiment) -> UnavailableError | None:
    """Return the part of an experiment that Megatron-Core needs CUDA for, or None."""
    if experiment.recompute != "none" and not experiment.device.startswith("cuda"):
        words = "unverified: needs CUDA: Megatron's recomputation keeps CUDA's random numbers"
        return NeedsGpuError(words, "recompute none on a CPU, or --framework native")
    return None


def _refused_options(experiment: Experiment) -> Refusal:
    if experiment.dropout > 0:
        words = (
            f"dropout {experiment.dropout:g}: no other training has the masks of "
            f"{experiment.framework}'s"
        )
        return words, "dropout 0, or --framework native"
    if (
        experiment.kernels.liger
        or experiment.placement.loader_workers
        or experiment.kernels.trainer
    ):
        words = "liger, loader_workers and trainer are options of Hugging Face's trainer"
        return words, "framework = huggingface, or leave them out"
    if experiment.kernels.attention == "tiles":
        words = "attention = tiles: only the native framework has it, on a CPU"
        return words, "attention sdpa, plain or auto"
    if name := _native_only_key(experiment):
        return f"{name} is the native framework's", f"--framework native, or leave {name} out"
    if experiment.steps > MOST_STEPS:
        words = (
            f"steps = {experiment.steps}: {experiment.framework} is told the learning "
            "rate of each, "
        )
        return f"{words}{MOST_STEPS} at most", "fewer steps, or --framework native"
    return None
