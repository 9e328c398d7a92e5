"""A row of a table of training runs: the model, layout and rates it means, and its prediction.

Answers what `trainrig predict --cases` asks: for each row of a CSV with the published table's
columns, seconds of a step and bytes a GPU with an interval each, or a reason why not.  A blank
cell is not stated: a default stands for it (`cases_words`, or what follows from the other cells)
and widens the interval.  Where a row comes from and what is noted about it is not read: `READ`
lists all columns that are.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from trainrig.catalog import Chip, find_chip
from trainrig.errors import DataError, TrainrigError, UsageError
from trainrig.predict.cases_chip import chip_of
from trainrig.predict.cases_habits import offload_of, software_of
from trainrig.predict.cases_model import head_share, shape_of
from trainrig.predict.cases_sizes import sizes_of, whole
from trainrig.predict.cases_words import (
    BINNED,
    Unstated,
    cell,
    engine_of,
    fabric_of,
    is_binned,
    kernels_of,
    link_of,
    precision_of,
    recompute_of,
    states_of,
)
from trainrig.predict.legal import check
from trainrig.predict.rates import Rates
from trainrig.predict.rates.from_chip import rates_of_chip
from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape

Row = Mapping[str, str]

NEEDED = ("chip", "layers", "hidden", "seq")
"""Columns that a table must have."""
READ = (
    *("chip", "hardware", "num_gpus", "gpus_per_node", "link", "fabric_gbps_per_node", "framework"),
    "interconnect",
    *("model", "params_b", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq"),
    *("global_batch", "micro_batch", "dp", "tp", "pp", "vpp", "cp", "ep", "grad_accum"),
    *("zero_stage", "seq_parallel", "precision", "dtype", "kernel_stack", "recompute", "kind"),
    "memory_kind",
    "offload",
)
"""Every column that a prediction may depend on."""
LONGEST_CELL = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a row asks."""

    shape: ModelShape
    layout: Layout
    rates: Rates
    chip: Chip
    head: float = 1.0
    """Share of the tokens that logits are computed for."""
    mean_seq: int = 0
    """Tokens of a sequence on average, where the layout's are the most; 0: they are the mean."""
    unstated: tuple[str, ...] = field(default=())
    """Cells that a default stands for."""
    spread: float = 0.0
    """What they add to the half width of the interval of the time (natural logarithm)."""


def case_of(row: Row) -> Case:
    """The case that a row means.  UsageError with the reason where it means none."""
    missing = Unstated()
    _refuse(row)
    chip = chip_of(row, missing)
    shape = shape_of(row)
    for name in ("heads", "ffn", "vocab"):
        if not cell(row, name):
            missing.add(name)
    sizes = sizes_of(row, missing)
    engine = engine_of(row, sizes)
    precision = precision_of(row, chip, missing)
    rates = _rates(chip.name, link_of(row, missing), fabric_of(row, sizes, missing))
    layout = Layout(
        **sizes,  # type: ignore[arg-type]
        seq=whole(row, "seq"),
        precision=precision,
        recompute=recompute_of(row, sizes["zero"], missing),
        kernels=kernels_of(row, chip, precision, missing),
        engine=engine,
        optimizer="adamw-fused",
        states=states_of(row, shape),
        software=software_of(row),
        offload=offload_of(row, engine, sizes["zero"], missing),
        lora_rank=8 if row.get("kind", "") == "lora" else 0,
    )
    check(*_evened(row, shape, layout))
    if "micro_batch" in missing.names:
        layout = _fitting(shape, layout, rates.memory_bytes)
    mean_seq = round(BINNED * layout.seq) if is_binned(row) else 0
    if mean_seq:
        missing.add("seq")
    return Case(
        shape=shape,
        layout=layout,
        rates=rates,
        chip=chip,
        head=head_share(row, shape),
        mean_seq=mean_seq,
        unstated=tuple(missing.names),
        spread=missing.spread,
    )


def _evened(row: Row, shape: ModelShape, layout: Layout) -> tuple[ModelShape, Layout]:
    """What has to be legal: DeepSpeed deals layers to stages by weight, so they need not divide."""
    stages = int(layout.pp * layout.interleave)
    if "deepspeed" not in cell(row, "framework").lower() or shape.num_decoder_layers:
        return shape, layout
    return dataclasses.replace(shape, num_layers=-(-shape.num_layers // stages) * stages), layout


def _fitting(shape: ModelShape, layout: Layout, capacity: float) -> Layout:
    """Micro-batches that are not stated: the largest that memory holds, else of one sample.

    A pipeline gets four for each stage where there are as many samples.
    """
    from trainrig.workload.memory import memory

    samples = int(layout.micro_batch * layout.grad_accum)
    least = min(samples, 4 * int(layout.pp)) if layout.pp > 1 else 1
    sizes = [samples] + [1 << n for n in range(10, -1, -1) if 1 << n < samples]
    for size in sizes:
        one = layout.replace(micro_batch=size, grad_accum=samples // size)
        dealt = layout.interleave == 1 or one.grad_accum % layout.pp == 0
        can_be = samples % size == 0 and one.grad_accum >= least and dealt
        if can_be and memory(shape, one).total <= capacity:
            return one
    return layout.replace(micro_batch=1, grad_accum=samples)


@lru_cache(maxsize=256)
def _rates(chip: str, link: str | None, fabric: float | None) -> Rates:
    found = find_chip(chip)
    assert found is not None
    return rates_of_chip(found, link=link, fabric=fabric)


def _refuse(row: Row) -> None:
    for name, what in (("cp", "context parallelism"), ("ep", "expert parallelism")):
        if whole(row, name, 1) > 1:
            raise UsageError(f"{what} ({name} = {row[name]}) comes later")
    model = row.get("model", "").lower()
    for word in ("moe", "mixtral", "expert", "switch"):
        if word in model.replace("-", " ").split() or f"{word}-" in model:
            raise UsageError("mixture of experts comes later: dense models only so far")
    if "transformer-xl" in model:
        raise UsageError("Transformer-XL attends to what it remembers: not modelled")


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a CSV, one by one, however many.  DataError where it is none."""
    try:
        # A letter of another encoding in a name or a note is no reason to refuse the numbers.
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
            yield from _rows(lines, path.name)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", "name a CSV file") from None
    except csv.Error as error:
        raise DataError(f"{path} is no CSV: {error}", "name a CSV file") from None


def _rows(lines: Iterable[str], name: str) -> Iterator[dict[str, str]]:
    lines = iter(lines)
    head = next(lines, "")
    between = max(",;\t", key=head.count)
    csv.field_size_limit(LONGEST_CELL)
    table = csv.DictReader(chain([head], lines), restkey="", restval="", delimiter=between)
    columns = [column.strip() for column in table.fieldnames or ()]
    table.fieldnames = columns
    lacking = [column for column in NEEDED if column not in columns]
    if lacking and "\ufffd" in head:
        raise DataError(f"{name} is no CSV in UTF-8", "name a CSV file")
    if lacking:
        raise DataError(f"{name}: no column {', '.join(lacking)}", "it needs: " + ", ".join(NEEDED))
    for row in table:
        yield {key: value for key, value in row.items() if isinstance(value, str)}


def predict_row(row: Row) -> dict[str, Any]:
    """`step_time_s`, `memory_bytes_per_gpu`, `interval` of each, and `reason` where one is null."""
    found = _known(tuple(cell(row, name) for name in READ))
    ends = {name: band and [*band] for name, band in found["interval"].items()}
    return found | {"interval": ends}  # not the one that is kept: an answer may be changed


@lru_cache(maxsize=1 << 14)
def _known(cells: tuple[str, ...]) -> dict[str, Any]:
    """The answer to a row, of which long tables have many alike."""
    row = dict(zip(READ, cells, strict=True))
    found: dict[str, Any] = {
        "step_time_s": None,
        "memory_bytes_per_gpu": None,
        "interval": {"step_time_s": None, "memory_bytes_per_gpu": None},
        "reason": None,
    }
    try:
        case = case_of(row)
        low, found["step_time_s"], high = time_of(case)
        least, found["memory_bytes_per_gpu"], most = memory_of(case, row)
        found["interval"] = {
            "step_time_s": [low, high],
            "memory_bytes_per_gpu": [least, most],
        }
    except (TrainrigError, OverflowError) as error:
        found["reason"] = str(error)
    return found


def time_of(case: Case) -> tuple[float, float, float]:
    """Low, predicted, high seconds of a step."""
    from trainrig.predict.step import predict_step

    layout = case.layout.replace(seq=case.mean_seq) if case.mean_seq else case.layout
    step = predict_step(case.shape, layout, case.rates, head=case.head)
    factor = math.exp(math.hypot(step.spread, case.spread))
    return step.total / factor, step.total, step.total * factor


_MEMORY_UNSURE = {
    "kernel_stack": 0.25,
    "recompute": 0.5,
    "micro_batch": 0.3,
    "precision": 0.3,
    "zero_stage": 0.3,
    "ffn": 0.1,
    "vocab": 0.1,
}
"""What a cell that is not stated adds to the uncertainty of memory (natural logarithm)."""


def memory_of(case: Case, row: Row) -> tuple[float, float, float]:
    """Low, predicted, high bytes on each GPU, of the kind that the row states."""
    from trainrig.workload.memory import memory

    found = memory(case.shape, case.layout, head=case.head)
    kind = cell(row, "memory_kind")
    kind = kind if kind in ("allocated", "reserved", "device") else "allocated"
    low, high = found.interval(kind)
    if "offload" in case.unstated:
        away = memory(case.shape, case.layout.replace(offload="host"), head=case.head)
        low = min(low, away.interval(kind)[0])
    wider = math.exp(math.hypot(*(_MEMORY_UNSURE.get(name, 0.0) for name in case.unstated)))
    middle = {"allocated": found.allocated, "reserved": found.reserved, "device": found.total}
    return low / wider, middle[kind], high * wider


def predict_rows(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """One object for each row, in order."""
    for number, row in enumerate(rows):
        yield {"row": number} | predict_row(row)
