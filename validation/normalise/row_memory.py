"""What a row's run keeps on each GPU, and whose bytes it prints.

Answers what is computed again or offloaded, what weights, gradients and optimizer states are held
in, and whether the bytes printed are the framework's, its allocator's or the device's.  How many
bytes that is, is `answers`'.
"""

from __future__ import annotations

import re

from trainrig.catalog import Chip
from trainrig.workload.layout.groups import OFFLOAD, RECOMPUTE, SCALED, STATES
from trainrig.workload.model import ModelShape
from validation.normalise.cells import Cells, means, mentions


def recompute_of(cells: Cells, shape: ModelShape, zero: int, quantize: str) -> str:
    """One of RECOMPUTE: as stated, else as is usual.

    Megatron's ``block`` and a number is of so many layers of a stage (--recompute-num-layers):
    none, where that is less than half of them.  Of a stated share of the FLOPs, the nearest: all
    blocks again are a quarter of them, a selection of operators some seventh.
    """
    if share := re.search(r"(\d+(?:\.\d+)?) ?% of (?:the |all )?flops", cells.word("recompute")):
        percent = float(share[1])
        return "none" if percent < 7.0 else "selective" if percent < 20.0 else "full"
    some = re.search(r"block\D{0,12}(\d{1,3})", cells.word("recompute"))
    if some and 2 * int(some[1]) * max(cells.whole("pp", 1), 1) < shape.num_layers:
        return "none"
    return cells.choice("recompute", RECOMPUTE, _usual_recompute(cells, zero, quantize))


def _usual_recompute(cells: Cells, zero: int, quantize: str) -> str:
    """One of RECOMPUTE for a blank cell; where memory cannot hold it, `feasible` recomputes more.

    peft's `prepare_model_for_kbit_training` switches checkpointing on beside quantised weights.
    Programs in JAX for models that are sharded compute blocks again by default, plain JAX does not;
    torch's wrappers, DeepSpeed and transformers' Trainer leave it off unless asked.  LitGPT's
    scripts, which leave it off, have it where a tuning's weights are sharded.  What goes to the
    host beside torch's wrappers is what checkpointing keeps (prime-rl's ac_offloading and
    torchtune's enable_activation_offloading ask for it).
    """
    if _sends_activations(cells) and cells.program.trains_as in _CHECKPOINTING:
        return "full"
    program = cells.program
    if cells.is_tuning and cells.does(program.saving.checkpoints_tuning):
        return "full" if zero == 3 or not program.saving.recompute else program.saving.recompute
    if program.saving.recompute:
        return program.saving.recompute
    if "memory budget" in cells.text_of("kernel_stack"):  # of torch.compile: part is made again
        return "selective"
    is_sharded = zero == 3 and program.saving.checkpoints_sharded
    return "full" if quantize != "none" or is_sharded else "none"


_CHECKPOINTING = ("fsdp", "trainer")
"""What programs train as whose checkpointing keeps the inputs of blocks, on the host if asked."""


def _sends_activations(cells: Cells) -> bool:
    """Return whether activations, and no optimizer, are said to go to the host."""
    return re.match(r"activ", cells.word("offload")) is not None


def moves_activations(cells: Cells, chip: Chip, zero: int) -> bool:
    """Say whether activations that do not fit go to the host and back, instead of being made again.

    Where that is said, and with sharded weights on Grace, whose link to the chip hides the way.
    """
    is_named = _sends_activations(cells) and cells.program.trains_as not in _CHECKPOINTING
    is_named = is_named or "swap" in cells.word("recompute")
    is_usual = cells.program.saving.moves_activations and zero == 3 and chip.link.domain is not None
    return is_named or bool(is_usual)


def offloads_checkpoints(cells: Cells) -> bool:
    """Return whether blocks that are computed again have their inputs on the host, as words say."""
    return mentions("checkpoints_away", cells.text_of("recompute", "offload"))


def states_away_of(cells: Cells, scheme: str) -> str:
    """What of FSDP's states is on the host, but not its weights: gradients (too), states, or ""."""
    if scheme != "fsdp":
        return ""
    if words := cells.word("offload"):
        return "gradients" if mentions("gradients_away", words) else ""
    return "states" if cells.does(cells.program.saving.offloads_states) else ""


def sends_experts(cells: Cells, shape: ModelShape) -> bool:
    """Say whether a mixture's experts are on the host: what says so names no states of theirs."""
    return shape.moe.num_experts > 0 and mentions("experts_away", cells.word("offload"))


def rank_of(cells: Cells, quantize: str) -> int:
    """Rank of adapters, 0 where all weights are trained; not stated: peft's default."""
    if not cells.is_adapted and quantize == "none":
        return 0
    match = re.search(r"\br(?:ank)?[-_ =]*(\d{1,4})\b", cells.adapters)
    return min(max(int(match[1]), 1), 1024) if match else 8


def grad_reduce_of(cells: Cells, precision: str) -> str:
    """One of GRAD_REDUCE: what gradients are summed over ranks in, by words or the program."""
    if precision in ("fp16", "fp32", "tf32"):  # in no other format than their own
        return "auto"
    dtype = means("grad_reduce", cells.text_of("kernel_stack", "dtype"))
    return dtype or cells.program.numbers.grad_reduce or "auto"


def has_narrow_weights(cells: Cells, precision: str) -> bool:
    """Whether weights of blocks are held in fp8 alone: by the program, but for scales of blocks."""
    words = cells.text_of("precision", "dtype")
    is_wide = has_scaled_blocks(cells) or re.search(r"fp-?4", words) is not None
    return precision == "fp8" and cells.program.numbers.fp8_weights is True and not is_wide


def has_scaled_blocks(cells: Cells) -> bool:
    """Say whether fp8's scales are of blocks, in Transformer Engine's own format and not MXFP8."""
    return re.search(r"block|sub-?channel", cells.text_of("precision", "dtype")) is not None


def scaled_of(cells: Cells, precision: str, narrow: str, vendor: str) -> str:
    """One of SCALED where a row names it: ``mxfp8``, ``FP8-MX``, ``NV FP4``; else empty.

    ``narrow``: what is multiplied (`narrow_of`); FP4 that is not named is its ``vendor``'s.
    """
    words = cells.text_of("precision", "dtype")
    named = re.search(r"\b(mx|nv)[-_ ]?(fp-?[48])\b|\bfp8[-_ ](mx)\b", words)
    scaled = "mxfp8" if named and named[3] else "".join(named.groups("")) if named else ""
    scaled = scaled.replace("-", "")
    if not scaled and narrow == "fp4":
        scaled = "nvfp4" if vendor == "NVIDIA" else "mxfp4"
    return scaled if precision == "fp8" and scaled in SCALED else ""


def states_of(cells: Cells, family: str) -> str:
    """One of STATES; not stated: what the format's cell says besides, else the program's.

    Models that are published in bf16 (the Llama family) are loaded, and by scripts of one device
    trained, as they are; by transformers since its version 5, whose `from_pretrained` does so where
    nobody says, and in a tuning's own script, of which no program is known.
    """
    program, words = cells.program, cells.text_of("dtype", "model")
    is_torchs = program.trains_as in ("trainer", "fsdp")  # others hold masters of their own
    is_loaded = program.numbers.loads_published or (is_torchs and cells.is_transformers_5)
    is_loaded = is_loaded or (not program.name and cells.is_tuning)
    is_pure = is_loaded and family == "llama" and cells.word("precision") == "bf16"
    is_pure = is_pure and re.search("mix|amp|autocast", words) is None
    is_pure = is_pure or mentions("pure", words)
    if not program.trains_as:  # torch's optimizers have states of their parameters' type
        is_pure = is_pure or re.search(_NARROW_MOMENTS, cells.word("optimizer")) is not None
    usual = "pure" if is_pure else "auto"
    return cells.choice("states", STATES, cells.program.numbers.states or usual, is_unsure=False)


def moments_in(cells: Cells, shape: ModelShape) -> str:
    """One of MOMENTS_IN: by their own cell, or states' or optimizer's words, else the program's."""
    words = cells.text_of("states", "optimizer", "framework")
    if re.search(r"fp-?32|float32", cells.word("moments")):
        return "fp32"
    if "bf" in cells.word("moments") or re.search(_NARROW_MOMENTS, words):
        return "bf16"
    program = cells.program
    return (
        program.numbers.moments
        or (program.numbers.latent_moments if shape.latent.kv_rank else "")
        or "auto"
    )


_NARROW_MOMENTS = r"bf\w*-?16[ -](moment|(optimizer )?state)|(moments|exp.?avg\w*)\W+(in )?bf"


def optimizer_of(cells: Cells) -> str:
    """One of OPTIMIZERS; not stated: fused AdamW, but for Trainer's of some years.

    Its words ``adamw_hf`` and ``adamw_torch`` are for many kernels; the latter was its default.
    Moments in fp8 are a byte, as torchao's and bitsandbytes' of 8 bits; to those of 4 bits these
    are the nearest.
    """
    word = cells.word("optimizer").replace("_", "-")
    is_narrow, is_paged = bool(re.search(r"[48]-?bit|fp-?8", word)), "paged" in word
    if is_narrow or is_paged:
        return "adamw" + "-8bit" * is_narrow + "-paged" * is_paged
    is_trainer = cells.program.code.transformers_models and cells.program.trains_as == "trainer"
    is_plain = not word and is_trainer and cells.is_since(_PLAIN[0]) and cells.is_before(_PLAIN[1])
    usual = "adamw" if is_plain or word in ("adamw-hf", "adamw-torch") else "adamw-fused"
    return next((name for name in ("adafactor", "muon", "galore", "sgd") if name in word), usual)


_PLAIN = ("2023-06", "2025-08")
"""Since when, and until when, `TrainingArguments.optim` was adamw_torch by default: from version
4.30 of transformers to torch 2.8, with which it is the fused one."""


def updates_in_backward(cells: Cells) -> bool:
    """Return whether the optimizer updates each weight inside backward."""
    word = cells.word("optimizer")
    return bool(re.search(r"(in|fused)[-_ ]*(the[-_ ]*)?(bwd|backward)|lomo", word))


def offload_of(cells: Cells, framework: str, zero: int) -> tuple[str, str]:
    """One of OFFLOAD, and one of OFFLOAD_OVERLAP where its cell says more than what is offloaded.

    DeepSpeed's usual configurations of ZeRO 2 and 3 keep the optimizer on the host, which takes
    less memory: there a blank cell is not known, and memory's interval begins with it.
    """
    is_unsure = framework == "deepspeed" and zero >= 2
    offload = cells.choice("offload", OFFLOAD, "none", is_unsure=is_unsure)
    if offload == "none":
        return offload, "auto"
    return offload, means("offload_overlap", cells.word("offload")) or "auto"


def memory_kind_of(cells: Cells) -> str:
    """Whose bytes a row prints: allocated, reserved or device; not stated: what the program logs.

    "" where neither says.
    """
    return means("memory_kind", cells.word("memory_kind")) or cells.program.saving.logged_memory
