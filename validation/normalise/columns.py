"""Which columns a table of training runs has, and its rows as they stand in a CSV file.

Answers how columns are called, in trainrig's words and in others', and where a file is no such
table.  What the cells mean is `cells`'s.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

from trainrig.errors import DataError
from trainrig.record import read_toml

NEEDED = (("chip", "hardware"), ("layers", "model", "params_b"))
"""Columns of which a table must have one each."""
READ = (
    *("chip", "hardware", "num_gpus", "gpus_per_node", "link", "fabric_gbps_per_node", "framework"),
    *("model", "params_b", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq"),
    *("global_batch", "micro_batch", "dp", "tp", "pp", "vpp", "cp", "ep", "grad_accum"),
    *("zero_stage", "seq_parallel", "precision", "dtype", "kernel_stack", "recompute", "kind"),
    *("memory_kind", "offload", "states", "mean_seq", "masked_share", "optimizer"),
    *("num_experts", "topk", "moe_ffn", "shared_experts", "first_dense_layers", "nodes"),
    *("parallel", "cp_comm", "schedule", "moments", "date"),
)
"""Every column that a prediction may depend on."""
LONGEST_CELL = 1 << 24
_EXAMPLE = (
    "as model,chip,num_gpus,seq,micro_batch,global_batch,tp,pp,zero_stage,precision,framework"
)


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


def _rows(lines: Iterator[str], name: str) -> Iterator[dict[str, str]]:
    head = next(lines, "")
    between = max(",;\t", key=head.count)
    csv.field_size_limit(LONGEST_CELL)
    table = csv.DictReader(chain([head], lines), restkey="", restval="", delimiter=between)
    columns = [column.strip() for column in table.fieldnames or ()]
    for at, column in enumerate(columns):
        columns[at] = _heading(column, columns)
    table.fieldnames = columns
    if not any(columns):
        raise DataError(f"{name}: its first line names no columns", _EXAMPLE)
    lacking = [" or ".join(any_of) for any_of in NEEDED if not set(any_of) & set(columns)]
    if lacking and "\ufffd" in head:
        raise DataError(f"{name} is no CSV in UTF-8", "name a CSV file")
    if lacking:
        raise DataError(f"{name}: no column {', '.join(lacking)}", "it reads: " + ", ".join(READ))
    for row in table:
        yield {key: value for key, value in row.items() if isinstance(value, str)}


def _heading(column: str, columns: list[str]) -> str:
    """``Seq Length`` and ``# GPUs`` as the columns that are read; others stay as they are."""
    plain = re.sub("[^a-z0-9]+", "_", column.lower()).strip("_")
    other = _headings().get(plain)
    if other is not None and other not in columns:
        return other
    return plain if plain in READ and (plain == column or plain not in columns) else column


@cache
def _headings() -> dict[str, str]:
    """Columns by their other headings."""
    path = Path(__file__).with_name("headings.toml")
    found = read_toml(path, dict[str, list[str]], path.name)
    return {heading: column for column, headings in found.items() for heading in headings}
