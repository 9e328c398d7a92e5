"""Open the batches of a prepared folder for a training objective.

    causal    GPT and Llama: the next token
    masked    BERT: tokens behind masks
    spans     T5: spans behind sentinels

A tokenizer without the special tokens that an objective needs is refused here, before
anything is trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from trainrig.data.batches import Batches, CausalBatches, MaskedBatches, Shard, SpanBatches
from trainrig.data.manifest import open_part, read_manifest
from trainrig.errors import DataError, UsageError

T = TypeVar("T")
OBJECTIVES = ("causal", "masked", "spans")


def open_batches(
    folder: Path,
    part: str,
    objective: str,
    *,
    seq_len: int,
    shard: Shard,
    vocab_size: int | None = None,
) -> Batches:
    """Return the batches of one part (train, heldout) for one of OBJECTIVES.

    ``vocab_size`` is the model's, the tokenizer's unless given: ids beyond it are refused.
    Raises DataError for data that do not fit, UsageError for a sequence that cannot be.
    """
    info = read_manifest(folder).tokens
    tokens = open_part(folder, part, vocab_size).tokens
    common: dict[str, Any] = {"tokens": tokens, "seq_len": seq_len, "shard": shard}
    if objective == "causal":
        return CausalBatches(**common)
    if objective == "masked":
        around = None if info.cls is None or info.sep is None else (info.cls, info.sep)
        mask = _needed(folder, "mask token", info.mask)
        return MaskedBatches(**common, mask=mask, vocab_size=info.vocab_size, around=around)
    if objective == "spans":
        sentinels = "sentinels <extra_id_0>, <extra_id_1>, ..."
        return SpanBatches(
            **common,
            sentinels=tuple(_needed(folder, sentinels, info.sentinels or None)),
            end=_needed(folder, "end token", info.end),
            pad=_needed(folder, "padding token", info.pad),
        )
    raise UsageError(f"no objective {objective}", f"use one of {', '.join(OBJECTIVES)}")


def _needed(folder: Path, noun: str, tokens: T | None) -> T:
    if tokens is None:
        raise DataError(
            f"the tokenizer of {folder} has no {noun}",
            "prepare the text with trainrig data prepare without --tokenizer, which trains one "
            "that has all special tokens",
        )
    return tokens
