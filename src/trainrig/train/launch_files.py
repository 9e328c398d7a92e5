"""What another project's own launcher reads of an experiment: files that a person can take along.

    deepspeed_config     ds_config.json, as deepspeed.ai/docs/config-json has it

Numbers are written out; nothing is "auto", so that what was trained stands there.  Imports no
torch.
"""

from __future__ import annotations

import json
from typing import Any

from trainrig.train.config import Experiment
from trainrig.train.parity import probe_of
from trainrig.workload import find


def deepspeed_files(own: Experiment) -> dict[str, str]:
    """ds_config.json, and that of the comparison's five steps."""
    configs = {"ds_config": own, "ds_config-probe": probe_of(own)}
    return {
        f"{name}.json": json.dumps(deepspeed_config(each), indent=2) + "\n"
        for name, each in configs.items()
    }


def deepspeed_config(own: Experiment) -> dict[str, Any]:
    """DeepSpeed's configuration of an experiment.

    Learning rates and weight decay of groups are what `deepspeed.initialize` is given besides: the
    rate here is the highest.  Gradients are accumulated and summed in fp32, as in our own engine.
    """
    zero: dict[str, Any] = {"stage": own.zero}
    if own.offload != "none":
        where: dict[str, Any] = {"device": "cpu"}
        if own.offload == "disk":
            where = {"device": "nvme", "nvme_path": "nvme"}
        zero["offload_optimizer"] = where
        if own.zero == 3:
            zero["offload_param"] = where
    if own.zero == 3:  # what Hugging Face's "auto" comes to: norms and biases stay whole
        zero["stage3_param_persistence_threshold"] = 10 * find(own.model).hidden
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": own.batch_size,
        "gradient_accumulation_steps": own.grad_accum,
        "train_batch_size": own.global_samples,
        "gradient_clipping": own.clip,
        "steps_per_print": 10**9,
        "zero_optimization": zero,
        "optimizer": _deepspeed_optimizer(own),
    }
    if own.optimizer == "sgd":
        config["zero_allow_untested_optimizer"] = True
    if own.offload != "none" and own.optimizer != "adamw-fused":
        config["zero_force_ds_cpu_optimizer"] = False
    if own.precision in ("bf16", "fp16"):
        config[own.precision] = {"enabled": True}
        config["communication_data_type"] = "fp32"
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config


def _deepspeed_optimizer(own: Experiment) -> dict[str, Any]:
    """adamw is torch's; adamw-fused DeepSpeed's: FusedAdam, or CPUAdam where it is offloaded."""
    if own.optimizer == "sgd":
        return {"type": "SGD", "params": {"lr": own.lr}}
    params: dict[str, Any] = {
        "lr": own.lr,
        "betas": [own.beta1, own.beta2],
        "eps": own.eps,
        "weight_decay": own.weight_decay,
    }
    if own.optimizer == "adamw":
        params["torch_adam"] = True
    return {"type": "AdamW", "params": params}
