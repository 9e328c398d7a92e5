"""From a prepared folder to batches, by the name of what a model learns.

    causal    GPT and Llama: the next token
    masked    BERT: tokens behind masks
    spans     T5: spans behind sentinels

A tokenizer without the special tokens that an objective needs is refused here, before
anything is trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from trainrig.data.batches import CausalBatches, MaskedBatches, Shard, SpanBatches
from trainrig.data.manifest import Tokens, open_part, read_manifest
from trainrig.errors import DataError, UsageError

Batches: TypeAlias = CausalBatches | MaskedBatches | SpanBatches
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
    """The batches of one part (train, heldout) for one of OBJECTIVES.

    ``vocab_size`` is the model's, the tokenizer's unless given: ids beyond it are refused.
    Raises DataError for data that do not fit, UsageError for a sequence that cannot be.
    """
    info = read_manifest(folder).tokens
    tokens = open_part(folder, part, vocab_size).tokens
    common: dict[str, Any] = {"tokens": tokens, "seq_len": seq_len, "shard": shard}
    if objective == "causal":
        return CausalBatches(**common)
    if objective == "masked":
        return MaskedBatches(**common, **_masked(folder, info))
    if objective == "spans":
        return SpanBatches(**common, **_spans(folder, info))
    raise UsageError(f"no objective {objective}", f"use one of {', '.join(OBJECTIVES)}")


def _masked(folder: Path, info: Tokens) -> dict[str, Any]:
    around = None if info.cls is None or info.sep is None else (info.cls, info.sep)
    mask = _needed(folder, "mask", info.mask)
    return {"mask": mask, "vocab_size": info.vocab_size, "around": around}


def _spans(folder: Path, info: Tokens) -> dict[str, Any]:
    if not info.sentinels:
        raise _lacks(folder, "sentinels <extra_id_0>, <extra_id_1>, ...")
    end, pad = _needed(folder, "end", info.end), _needed(folder, "padding", info.pad)
    return {"sentinels": tuple(info.sentinels), "end": end, "pad": pad}


def _needed(folder: Path, name: str, token: int | None) -> int:
    if token is None:
        raise _lacks(folder, f"{name} token")
    return token


def _lacks(folder: Path, what: str) -> DataError:
    return DataError(
        f"the tokenizer of {folder} has no {what}",
        "prepare the text with trainrig data prepare without --tokenizer, which trains one "
        "that has all special tokens",
    )
