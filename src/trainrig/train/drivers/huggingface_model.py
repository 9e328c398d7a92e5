"""Hugging Face's models on our data and our first weights, for whichever engine trains them.

Used by the drivers of Trainer and of DeepSpeed, in their environments; a folder is laid out by
`trainrig.train.driver_files`.
"""

from __future__ import annotations

import importlib
import inspect
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.loss.loss_utils import ForCausalLMLoss

import trainrig.train.native.host_sums as host_sums
from trainrig.data.batches import Shard
from trainrig.data.open_batches import open_batches
from trainrig.train.drivers import common

TAKES_SHIFTED = "shift_labels" in inspect.signature(ForCausalLMLoss).parameters
"""True where a causal model's loss takes labels that are shifted already (transformers 4.51)."""


def model_for(folder: Path, options: dict[str, Any], hf: dict[str, Any]) -> Any:
    """A new model in fp32 on the host, of our first weights or, without those, of the seed's."""
    transformers.set_seed(options["seed"] % 2**32)  # numpy takes no more
    config = _config_of(hf, options["dropout"])
    if options["attention"] != "auto":
        config._attn_implementation = {"plain": "eager"}.get(
            options["attention"], options["attention"]
        )
    model_class = getattr(transformers, hf["model_class"])
    if hf["config_class"] is None:
        model = model_class.from_config(config, dtype=torch.float32)
    else:
        model = model_class(config)
        model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True), strict=False)
    if not options["device"].startswith("cuda"):
        host_sums.apply(model)
    return model


def _config_of(hf: dict[str, Any], dropout: float) -> Any:
    """Return the model's configuration; without a class it is that of its ``model_type``."""
    if hf["config_class"] is not None:
        return getattr(transformers, hf["config_class"])(**hf["config"])
    config = transformers.AutoConfig.for_model(**hf["config"])
    for name in config.to_dict():
        if "drop" in name and isinstance(getattr(config, name), float):
            setattr(config, name, dropout)
    return config


def with_adapters(model: Any, options: dict[str, Any]) -> Any:
    """Return model frozen, with PEFT's LoRA beside each of its blocks' matrices; alpha is 2 · rank.

    ``quantize``: the frozen weights are rounded to 4 or 8 bits by bitsandbytes first; unverified on
    hardware.
    """
    peft: Any = importlib.import_module("peft")
    again = options["recompute"] == "full"
    if options["quantize"] != "none":
        model = _quantized(model, options)
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=again)
    elif again:  # else nothing before the first adapter has a gradient
        model.enable_input_require_grads()
    rank = options["lora_rank"]
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    return peft.get_peft_model(model, config)


def _quantized(model: Any, options: dict[str, Any]) -> Any:
    """Return a model of equal weights on this rank's GPU, the blocks' rounded by bitsandbytes.

    By way of a folder: transformers rounds where it loads, and leaves a head as it is.
    """
    hugging_face: Any = transformers
    if (kind := options["quantize"]) == "int8":
        quantization = hugging_face.BitsAndBytesConfig(load_in_8bit=True)
    else:
        narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}
        quantization = hugging_face.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=kind.removesuffix("-double"),
            bnb_4bit_use_double_quant=kind.endswith("-double"),
            bnb_4bit_compute_dtype=narrow.get(options["precision"], torch.float32),
        )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return type(model).from_pretrained(
            folder,
            quantization_config=quantization,
            device_map={"": int(os.environ.get("LOCAL_RANK", "0"))},
            attn_implementation=model.config._attn_implementation,
        )


def rank_of_adapters(model: Any) -> int | None:
    """Return the rank of the adapters that live modules have; None: there are none."""
    ranks = {weight.shape[0] for name, weight in model.named_parameters() if ".lora_A." in name}
    return max(ranks, default=None)


def attention_of(model: Any) -> str:
    """Return the attention implementation of a transformers model, by our words."""
    attention = str(getattr(model.config, "_attn_implementation", "sdpa"))
    return {"eager": "plain"}.get(attention, attention)


def sum_over_targets(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """Cross-entropy summed over the targets, over those of the whole step."""
    logits = outputs.logits.float().flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
    return loss / num_items_in_batch


class Micros(torch.utils.data.Dataset[Any]):
    """Our micro-batches of this rank, in order."""

    def __init__(
        self,
        options: dict[str, Any],
        hf: dict[str, Any],
        more: int = 0,
        rank: int = common.RANK,
        num_ranks: int = common.SIZE,
    ) -> None:
        """``more``: steps behind those that are asked for; ``rank``: of those that share data."""
        self._accum, self._objective = options["grad_accum"], hf["objective"]
        samples = options["batch_size"] * self._accum
        self._length = (options["steps"] + more) * self._accum
        self._make = open_batches(
            Path(options["data"]),
            "train",
            self._objective,
            seq_len=options["seq_len"],
            shard=Shard(batch=samples, rank=rank, num_ranks=num_ranks, seed=options["seed"]),
            vocab_size=hf["vocab"],
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
        if self._objective == "causal" and TAKES_SHIFTED:  # ours are shifted already
            return {"input_ids": inputs, "labels": labels, "shift_labels": labels}
        if self._objective == "spans":
            start = torch.zeros_like(labels[:, :1])
            moved = torch.cat([start, labels[:, :-1]], dim=1)
            return {"input_ids": inputs, "labels": labels, "decoder_input_ids": moved}
        return {"input_ids": inputs, "labels": labels}
