"""Files that other projects' launchers read of an experiment, usable without trainrig.

    deepspeed_files     ds_config.json, as deepspeed.ai/docs/config-json has it
    accelerate_files    accelerate_config.json, as ``accelerate config`` writes it
    megatron_files      pretrain.sh: arguments of Megatron-LM's pretrain_gpt.py or pretrain_bert.py

Numbers are written out; nothing is "auto", so that what was trained stands there.  Imports no
torch.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from trainrig.train.config import Experiment
from trainrig.train.parity import probe_of
from trainrig.workload import find


def deepspeed_files(experiment: Experiment) -> dict[str, str]:
    """ds_config.json, and that of the comparison's five steps."""
    configs = {"ds_config": experiment, "ds_config-probe": probe_of(experiment)}
    return {
        f"{name}.json": json.dumps(deepspeed_config(variant), indent=2) + "\n"
        for name, variant in configs.items()
    }


def deepspeed_config(experiment: Experiment) -> dict[str, Any]:
    """DeepSpeed's configuration of an experiment.

    Learning rates and weight decay of groups are what `deepspeed.initialize` is given besides: the
    rate here is the highest.  Gradients are accumulated and summed in fp32, as in our own engine.
    """
    # In bf16 its stage 0 sums gradients in bf16; stage 1 over the one rank of each stage of the
    # pipeline shards nothing, and sums in fp32.
    narrow_stages = experiment.pp > 1 and experiment.precision == "bf16"
    zero: dict[str, Any] = {"stage": max(experiment.zero, 1) if narrow_stages else experiment.zero}
    if experiment.offload != "none":
        where: dict[str, Any] = {"device": "cpu"}
        if experiment.offload == "disk":
            where = {"device": "nvme", "nvme_path": "nvme"}
        zero["offload_optimizer"] = where
        if experiment.zero == 3:
            zero["offload_param"] = where
    if experiment.zero == 3:  # what Hugging Face's "auto" comes to: norms and biases stay whole
        zero["stage3_param_persistence_threshold"] = 10 * find(experiment.model).hidden
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": experiment.batch_size,
        "gradient_accumulation_steps": experiment.grad_accum,
        "train_batch_size": experiment.global_samples,
        "gradient_clipping": experiment.update.clip,
        "steps_per_print": 10**9,
        "zero_optimization": zero,
        "optimizer": _deepspeed_optimizer(experiment),
    }
    if experiment.pp > 1:
        config["pipeline"] = {"stages": experiment.pp, "activation_checkpoint_interval": 0}
    if experiment.optimizer == "sgd":
        config["zero_allow_untested_optimizer"] = True
    if experiment.offload != "none" and experiment.optimizer != "adamw-fused":
        config["zero_force_ds_cpu_optimizer"] = False
    if experiment.precision in ("bf16", "fp16"):
        config[experiment.precision] = {"enabled": True}
        config["communication_data_type"] = "fp32"
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config


def _deepspeed_optimizer(experiment: Experiment) -> dict[str, Any]:
    """adamw is torch's; adamw-fused DeepSpeed's: FusedAdam, or CPUAdam where it is offloaded."""
    if experiment.optimizer == "sgd":
        return {"type": "SGD", "params": {"lr": experiment.lr.peak}}
    params: dict[str, Any] = {
        "lr": experiment.lr.peak,
        "betas": [experiment.update.beta1, experiment.update.beta2],
        "eps": experiment.update.eps,
        "weight_decay": experiment.update.weight_decay,
    }
    if experiment.optimizer == "adamw":
        params["torch_adam"] = True
    return {"type": "AdamW", "params": params}


def accelerate_files(experiment: Experiment) -> dict[str, str]:
    """accelerate_config.json, for ``accelerate launch --config_file``."""
    return {"accelerate_config.json": json.dumps(accelerate_config(experiment), indent=2) + "\n"}


def accelerate_config(experiment: Experiment) -> dict[str, Any]:
    """Return the configuration that accelerate's questionnaire would write.

    DDP, or FSDP2 from ZeRO 2 on.

    Numbers of the training itself (batch, accumulation, rates) are the program's arguments.
    """
    on_cpu, ranks = not experiment.device.startswith("cuda"), experiment.mesh.ranks
    sharded = experiment.zero >= 2 and not on_cpu
    several = "MULTI_CPU" if on_cpu else "FSDP" if sharded else "MULTI_GPU"
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": several if ranks > 1 else "NO",
        "mixed_precision": experiment.precision
        if experiment.precision in ("bf16", "fp16")
        else "no",
        "num_machines": 1,
        "num_processes": ranks,
        "machine_rank": 0,
        "use_cpu": on_cpu,
        "main_training_function": "main",
    }
    if sharded:
        config["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": experiment.zero == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": experiment.recompute == "full",
            "fsdp_offload_params": experiment.offload == "host",
        }
    return config


def megatron_files(experiment: Experiment) -> dict[str, str]:
    """pretrain.sh: the layout for Megatron-LM's own program, to be read before it is run."""
    program = "pretrain_bert.py" if find(experiment.model).family == "bert" else "pretrain_gpt.py"
    words = [
        f"--{name}" if text is None else f"--{name} {shlex.quote(text)}"
        for name, text in megatron_arguments(experiment)
    ]
    lines = " \\\n    ".join(words)
    title = experiment.name or experiment.model
    notes = "are like those of `trainrig train`, not the same."
    if program == "pretrain_bert.py":
        notes += "\n# Its BERT has the norms before the sums, and is another model than BERT."
    return {
        "pretrain.sh": f"""#!/bin/sh
# {title!r} by Megatron-LM's own {program}, run in its checkout.  Its data
# loader and first weights are its own: losses {notes}
set -eu
export CUDA_DEVICE_MAX_CONNECTIONS=1
exec torchrun --standalone --nproc-per-node {experiment.mesh.ranks} {program} \\
    {lines}
"""
    }


def megatron_arguments(experiment: Experiment) -> list[tuple[str, str | None]]:
    """Return names and values of Megatron-LM's arguments (megatron/training/arguments.py)."""
    shape = find(experiment.model)
    sizes: dict[str, Any] = {
        "num-layers": shape.num_layers,
        "hidden-size": shape.hidden,
        "num-attention-heads": shape.attention.num_heads,
        "kv-channels": shape.attention.head_dim,
        "ffn-hidden-size": shape.ffn.width,
        "seq-length": experiment.seq_len,
        "max-position-embeddings": max(experiment.seq_len, shape.position.max_positions),
        "norm-epsilon": shape.norm_eps,
        "init-method-std": shape.init_std,
        "attention-dropout": experiment.dropout,
        "hidden-dropout": experiment.dropout,
        "tensor-model-parallel-size": experiment.tp,
        "pipeline-model-parallel-size": experiment.pp,
        "context-parallel-size": experiment.cp,
        "micro-batch-size": experiment.batch_size,
        "global-batch-size": experiment.global_samples,
        "train-iters": experiment.steps,
        "lr": experiment.lr.peak,
        "min-lr": experiment.lr.peak * experiment.lr.min_factor,
        "lr-decay-style": {"wsd": "WSD"}.get(experiment.lr.shape, experiment.lr.shape),
        "lr-warmup-iters": experiment.warmup_steps,
        "lr-decay-iters": experiment.planned_steps,
        "weight-decay": experiment.update.weight_decay,
        "adam-beta1": experiment.update.beta1,
        "adam-beta2": experiment.update.beta2,
        "adam-eps": experiment.update.eps,
        "clip-grad": experiment.update.clip,
        "seed": experiment.seed,
        "data-path": f"{experiment.data or 'DATA'}/train",
        "split": "100,0,0",
        "tokenizer-type": "NullTokenizer",
        "vocab-size": shape.vocab - 1,  # it adds an end token
        "make-vocab-size-divisible-by": 1,
        "eval-iters": 0,
        "log-interval": 1,
    }
    if experiment.lr.shape == "wsd":
        sizes["lr-wsd-decay-style"] = "linear"
        sizes["lr-wsd-decay-iters"] = max(
            1, round(experiment.lr.decay_ratio * experiment.planned_steps)
        )
    if experiment.optimizer == "sgd":
        sizes |= {"optimizer": "sgd", "sgd-momentum": 0.0}
    if shape.attention.num_kv_heads != shape.attention.num_heads:
        sizes["num-query-groups"] = shape.attention.num_kv_heads
    if experiment.interleave > 1:
        stages = experiment.pp * experiment.interleave
        sizes["num-layers-per-virtual-pipeline-stage"] = shape.num_layers // stages
    if shape.family == "llama":
        sizes |= {"position-embedding-type": "rope", "rotary-base": int(shape.position.rope_theta)}
    if not shape.norm_bias:
        sizes["normalization"] = "RMSNorm"
    if experiment.recompute == "full":
        sizes |= {"recompute-granularity": "full", "recompute-method": "uniform"}
        sizes["recompute-num-layers"] = 1
    elif experiment.recompute == "selective":
        sizes["recompute-granularity"] = "selective"
    switches = {
        "group-query-attention": shape.attention.num_kv_heads != shape.attention.num_heads,
        "swiglu": shape.ffn.gated,
        "disable-bias-linear": not shape.ffn.bias,
        "add-qkv-bias": shape.attention.qkv_bias and not shape.ffn.bias,
        "untie-embeddings-and-output-weights": not shape.head.tied,
        "sequence-parallel": experiment.sequence_parallel,
        "use-distributed-optimizer": experiment.zero == 1,
        "bf16": experiment.precision == "bf16",
        "fp16": experiment.precision == "fp16",
        "calculate-per-token-loss": True,  # gradients are divided in fp32, last, as in our engine
        "bert-no-binary-head": shape.family == "bert",
    }
    arguments: list[tuple[str, str | None]] = [(name, str(value)) for name, value in sizes.items()]
    return arguments + [(name, None) for name, is_on in switches.items() if is_on]
