"""The layout that was asked for, the one that was found, and what sets them apart.

A layout as found comes from the facts that a rank read from its live objects (`look`, and the
drivers): the request is never repeated as a result.  A difference is a fault of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainrig.train.config import Experiment

Layout = dict[str, Any]
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_SHARE = 0.75
"""A rank that holds less than this share of something does not hold it all."""
_OPTIMIZERS = {
    "adamw": ("AdamW", False),
    "adamw-fused": ("AdamW", True),
    "adamw-8bit": ("AdamW8bit", False),
    "sgd": ("SGD", False),
}


def requested_layout(experiment: Experiment) -> Layout:
    """What an experiment asks for."""
    optimizer, fused = _OPTIMIZERS[experiment.optimizer]
    auto = experiment.attention == "auto"
    return {
        "ranks": experiment.mesh.ranks,
        "zero": experiment.zero,
        "shard_ranks": (experiment.shard_size or experiment.mesh.dp) if experiment.zero else 1,
        "grad_accum": experiment.grad_accum,
        "micro_tokens": experiment.batch_size * experiment.seq_len,
        "precision": experiment.precision,
        "gradient_precision": "fp32",
        "master_precision": "fp32",
        "recompute": experiment.recompute != "none",
        "optimizer": optimizer,
        "fused_optimizer": fused,
        "compile": experiment.compile,
        "offload": experiment.offload == "host",
        "device": experiment.device or "cpu",
        # What is compiled is not seen; "auto" asks for nothing.
        **({} if auto or experiment.compile else {"attention": experiment.attention}),
    }


def observed_layout(facts: Mapping[str, Any]) -> Layout:
    """What the facts say, in the same words, and what they rest on."""
    summed = facts.get("reduce_dtype") or facts.get("gradient_dtype")
    whole = facts["num_parameters"]
    held = facts["states"] if facts["moments"] else facts["masters"]
    return {
        "ranks": _ranks(facts, held),
        "zero": _zero(facts, held),
        "shard_ranks": round(whole / held) if held else 1,
        "grad_accum": facts["micro_batches"],
        "micro_tokens": facts.get("micro_tokens"),
        "precision": _DTYPES.get(facts["weight_dtype"], facts["weight_dtype"]),
        "gradient_precision": _DTYPES.get(str(summed), summed),
        "master_precision": _DTYPES.get(facts["master_dtype"], facts["master_dtype"]),
        "recompute": facts["block_forwards"] >= 2 * facts["micro_batches"],
        "optimizer": facts["optimizer"],
        "fused_optimizer": facts["fused"],
        "attention": facts.get("attention"),
        "compile": facts["compiled"],
        "offload": facts["offloaded"],
        "device": facts["device"].split(":")[0],
        "wrapped": facts["wrapped"],
        "placements": facts["placements"],
        "transport": facts["transport"],
        "threads": facts["threads"],
        "num_parameters": whole,
        "held_weights": facts["weights"] / whole,
        "held_weights_in_backward": facts["weights_between"] / whole,
        "held_gradients": facts["gradients"] / whole,
        "held_states": held / whole,
        "state_precision": _DTYPES.get(facts["state_dtype"], facts["state_dtype"]),
        "gradient_collectives": facts.get("gradient_collectives"),
    }


def _ranks(facts: Mapping[str, Any], held: int) -> int:
    """Ranks that train one model: those that neither sum gradients nor share states are alone."""
    whole = held >= _SHARE * facts["num_parameters"]
    silent = facts["transport"] is not None and facts.get("gradient_collectives") == 0
    return 1 if silent and whole else int(facts["ranks"])


def _zero(facts: Mapping[str, Any], held: int) -> int:
    """Which stage of ZeRO it is, by what a rank holds of states, gradients and weights.

    Under stage 3 some weights are not there between forward and backward; embedding and head are.
    """
    whole = facts["num_parameters"]
    if facts["ranks"] == 1 or held >= _SHARE * whole:
        return 0
    if facts["gradients"] >= _SHARE * whole:
        return 1
    return 2 if facts["weights_between"] >= whole else 3


def differences(requested: Layout, found: Layout) -> list[str]:
    """What was asked for and is not there, each with both values."""
    return [
        f"{name}: asked {requested[name]}, found {found.get(name)} ({found.get('wrapped')})"
        for name in requested
        if requested[name] != found.get(name)
    ]
