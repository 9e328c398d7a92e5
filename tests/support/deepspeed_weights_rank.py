"""Real DeepSpeed that loads an exported universal checkpoint into a model of other weights.

``python deepspeed_weights_rank.py EXPORTED CONFIG OUT STAGE`` with torchrun's variables: CONFIG
is a config.json; OUT gets the weights that the engine then holds, in fp32, and AdamW's state.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"

import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from transformers import AutoConfig, AutoModelForCausalLM


def main() -> None:
    exported, config, out, stage = *sys.argv[1:4], int(sys.argv[4])
    deepspeed.init_distributed("gloo", verbose=False)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config))
    engine: Any = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": stage},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "checkpoint": {"load_universal": True},
            "zero_allow_untested_optimizer": True,
        },
    )[0]
    path, _ = engine.load_checkpoint(exported)
    assert path is not None
    found = {
        name: (
            safe_get_full_fp32_param(weight),
            safe_get_full_optimizer_state(weight, "exp_avg"),
        )
        for name, weight in engine.module.named_parameters()
    }
    torch.save({"weights": found, "steps": engine.global_steps}, out)
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort at exit


if __name__ == "__main__":
    main()
