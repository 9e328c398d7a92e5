"""A published row's case as a strict row: columns of `predict --cases`, what was measured besides.

Pure: the row of a case depends on nothing else.  Every option of a layout is written out.
What no option says has the nearest that one does: the share of tokens with logits is a
short list of words, blocks of which some are computed again are so by the nearest word, dispatch to
experts that overlaps or leaves a node once has ``overlap=experts``.  Left out are a power limit,
whole experts beside tensor parallelism, products of 8-bit integers, and disks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from trainrig.catalog.chip import Chip, peak
from trainrig.errors import DataError, UsageError
from trainrig.prediction.cluster import FLASH_VERSIONS
from trainrig.prediction.rates.from_chip import rates_of_chip, widens_bf16
from trainrig.prediction.scenario import WORDS_AND_LENGTHS
from trainrig.workload.layout import Layout
from trainrig.workload.model import SHAPE_KEYS, ModelShape
from trainrig.workload.model_lookup import find
from trainrig.workload.presets import custom
from validation.normalise.case import Case, case_of
from validation.normalise.cells import Row
from validation.normalise.row_errors import measured_time, says_time

_STATED = (
    *("num_layers", "hidden", "num_heads", "num_kv_heads", "head_dim", "ffn", "vocab"),
    *("rope_dim", "kv_rank", "value_dim", "q_rank"),
)
"""Numbers of a shape that each model's text states."""
GBIT = 1e9 / 8.0
_SIZES = (
    *("gpus", "gpus_per_node", "framework", "batch_size", "grad_accum", "zero"),
    *("tp", "pp", "cp", "ep", "interleave", "shard_size", "sequence_parallel"),
)
"""Options of a layout besides WORDS_AND_LENGTHS.  All are stated: one that is not is as the named
program does, and the case has what the row's program does already."""
_COLUMN = {"batch_size": "micro_batch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalised:
    """A published row in the product's words."""

    row: Mapping[str, str]
    """Cells by column of `predict --cases`."""
    presumed: tuple[str, ...]
    """Published columns that a default stands for, or another reading than the printed."""


def normalise(row: Row) -> Normalised:
    """Turn a published row into a strict one, with what was measured where it says so.

    Raises:
        UsageError: The row means no training step that can be predicted.
    """
    case = case_of(row)
    strict = strict_row(case)
    if says_time(row):
        with suppress(DataError):
            strict["measured_step_s"] = repr(measured_time(row, case))
    return Normalised(row=strict, presumed=case.presumed)


def strict_row(case: Case) -> dict[str, str]:
    """Return the options that ask about the step of a case."""
    layout, chip = case.timed, case.chip
    row: dict[str, Any] = {"model": model_text(_with_head(case)), "on": chip.name}
    for name in (*_SIZES, *WORDS_AND_LENGTHS):
        if name != "scaled":
            value = layout.get(name)
            row[_COLUMN.get(name, name)] = int(value) if isinstance(value, bool) else value
    row["precision"] = _precision(case)
    row["kernels"] = _kernels(layout, chip)
    row["recompute"] = _recompute(layout)
    if case.shape.num_layers % int(layout.mesh.pp * layout.pipeline.interleave):
        row.pop("interleave", None)  # stages of equal length are all that options can ask for
    row["gpus_per_node"] = layout.mesh.gpus_per_node // case.trays
    if (version := _flash_version(case)) != "auto":
        row["flash_version"] = version
    if layout.overlap.dispatch or layout.moe.dedup_internode_dispatch:
        row["overlap"] = "experts"
    if layout.mesh.gpus > 1 and case.link:
        row["link"] = case.link
    if layout.mesh.gpus > layout.mesh.gpus_per_node and case.fabric:
        row["fabric_gbps"] = round(case.fabric / case.trays / GBIT, 3)
    return {name: str(value) for name, value in row.items()}


def _with_head(case: Case) -> ModelShape:
    """Return the shape with as many logits of a token as the share of tokens that have any."""
    shape = case.shape
    if case.head == 1.0:
        return shape
    return shape.replace(shortlist=max(1, round(case.head * shape.num_logits)))


def _recompute(layout: Layout) -> str:
    """Return the word for a share of the blocks that is computed again."""
    share = layout.memory.recomputed_share
    if layout.memory.recompute != "full" or share > _MOST_BLOCKS:
        return layout.memory.recompute
    return "selective" if share > _FEW_BLOCKS else "none"


_FEW_BLOCKS, _MOST_BLOCKS = 0.25, 0.6
"""Shares of the blocks, from which on the next word is nearer: the core of attention is computed
again for less than half of what a block costs."""


def _precision(case: Case) -> str:
    """Return the number format of products.

    bf16 where the catalog claims no narrower ones, and fp32 where a compiler widens bf16 to that.
    """
    precision, rates = case.layout.precision, case.rates.matmuls.sustained
    if precision.compute == "fp8" and peak(case.chip, "fp8") is None:
        return "bf16"
    if precision.compute == "bf16" and widens_bf16(case.chip) and rates["bf16"] == rates["fp32"]:
        return "fp32"
    return precision.number_format


def _kernels(layout: Layout, chip: Chip) -> str:
    """Return the kernels: fused attention of chips before 2020 is a compiler's or xformers'."""
    stack = layout.kernels.stack
    if layout.kernels.plain_attention and stack != "eager":
        return "fused"
    if "flash" in stack and (chip.product.year or 2020) < 2020:
        return "compiled"
    return stack


def _flash_version(case: Case) -> str:
    """Return the version of FlashAttention whose rates a case has."""
    rates = rates_of_chip(case.chip, link=case.link)
    wanted = case.rates.attentions
    same = (word for word, version in FLASH_VERSIONS.items() if version(rates).attentions == wanted)
    return next(same, "auto")


@lru_cache(maxsize=4096)
def model_text(shape: ModelShape) -> str:
    """Return what ``--model`` is asked for to mean a shape: a name, or its family and numbers."""
    for name in (shape.name, f"{shape.name}:num_layers={shape.num_layers}"):
        try:
            if find(name).replace(name=shape.name) == shape:
                return name
        except UsageError:
            pass
    numbers = {name: SHAPE_KEYS.get(shape, name) for name in _STATED}
    usual = custom(shape.family, **numbers)
    for key, value in SHAPE_KEYS.flat(shape).items():
        if key in ("name", "family", "rope_scaling", *_STATED):
            continue
        if value != SHAPE_KEYS.get(usual, key):
            numbers[key] = value
    return f"{shape.family}:" + ",".join(
        f"{name}={_text(value)}" for name, value in numbers.items()
    )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        period = next(n for n in range(1, len(value) + 1) if _repeats(value, n))
        return "/".join(map(str, value[:period]))
    return str(value)


def _repeats(widths: tuple[int, ...], period: int) -> bool:
    """Return whether each layer's width is that of the layer a period before it."""
    return all(width == widths[at % period] for at, width in enumerate(widths))
