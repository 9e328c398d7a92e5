"""What programs for fine-tuning do by default, where a row of a table does not say otherwise.

Answers whether a trainer computes activations again by itself, how wide adapters are, how long
examples of a task are and how much longer the longest of them.  Sources are the programs' own
documentation and code, named at each rule; what follows from them is presumed, and stated so.
"""

from __future__ import annotations

import re

from trainrig.predict.table_words import LIBRARY, Cells
from trainrig.workload.model import ModelShape

_CHECKPOINTING = re.compile(
    r"llama-?factory|unsloth|xtuner|swift|fastchat|lmflow|torchtune|axolotl|open-?instruct"
)
"""Trainers that switch gradient checkpointing on: LLaMA-Factory (`disable_gradient_checkpointing`
is false), Unsloth (`use_gradient_checkpointing`), XTuner (`use_activation_checkpointing`), ms-swift
(`gradient_checkpointing`), and in their scripts FastChat, LMFlow, torchtune, Axolotl, Open
Instruct."""
_TRL = "2025-08"
"""Since when TRL's SFTConfig does, unlike the TrainingArguments that it is made of."""


def usual_recompute(cells: Cells, zero: int, quantize: str) -> str:
    """One of RECOMPUTE for a blank cell; where memory cannot hold it, `table` computes more again.

    peft's `prepare_model_for_kbit_training` switches checkpointing on beside quantised weights.
    XLA's programs that shard weights compute blocks again by default (MaxText's `remat_policy`);
    torch's wrappers, DeepSpeed and transformers' Trainer leave it off unless asked.
    """
    framework = cells.word("framework")
    is_trl = re.search(r"\btrl\b", framework) is not None and cells.is_since(_TRL)
    if cells.is_tuning and (is_trl or _CHECKPOINTING.search(framework)):
        return "full"
    return "full" if quantize != "none" or (zero == 3 and cells.is_xla) else "none"


def rank_of(cells: Cells, quantize: str) -> int:
    """Rank of adapters, 0 where all weights are trained; not stated: peft's default."""
    if not cells.is_adapted and quantize == "none":
        return 0
    found = re.search(r"\br(?:ank)?[-_ =]*(\d{1,4})\b", cells.adapters)
    return min(max(int(found[1]), 1), _WIDEST) if found else 8


_WIDEST = 1024


def usual_length(cells: Cells, shape: ModelShape) -> int:
    """Tokens of a sequence that is not stated: 2048, or as many as the model knows.

    Examples of a task are short, and a batch is padded to its longest: Alpaca's have 100 to 200
    tokens, Dolly's 200, OpenAssistant's 400.  transformers' own scripts cut plain text into pieces
    of 1024 (run_clm, `block_size`).
    """
    is_text = cells.is_finetuning and LIBRARY.search(cells.word("framework"))
    usual = 1024 if is_text else 512 if cells.is_tuning else 2048
    return min(shape.max_positions, usual)


def usual_samples(cells: Cells) -> int:
    """Samples of a micro-batch, at most, where no batch is stated.

    Of a tuning two: torchtune's recipes, and at most so many LLaMA-Factory's examples.
    """
    return 2 if cells.is_tuning and not cells["global_batch"] else 1 << 10


def longest(cells: Cells, seq: int) -> int:
    """Tokens of the longest batch, where what is printed is what examples have on average.

    Lengths that are set are round; an average is not.  Memory is the longest batch's.
    """
    is_mean = cells.is_tuning and seq % 8 and seq > 32
    return -(-round(_LONGEST * seq) // 64) * 64 if is_mean else 0


_LONGEST = 3.5
"""Of the average, presumed: lengths of instructions and answers are skewed, and one published table
(peft's, memory beside an average length) shows by how much."""
