"""arithmetic.toml, as pydantic reads it: what devices have in hardware, each with its source."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, StringConstraints

from trainrig.catalog.cuda import DocumentRead
from trainrig.errors import DataError
from trainrig.record import read_by, read_toml

PATH = Path(__file__).parent / "arithmetic.toml"
_CONFIG = ConfigDict(extra="forbid")

Version = Annotated[str, StringConstraints(pattern=r"^\d+\.\d+$")]


@read_by(_CONFIG)
class GpuRow:
    """Fastest data type of GPUs from a compute capability on, until the next row's."""

    capability: Version
    fastest: Literal["bf16", "fp16", "fp32"]
    sources: tuple[str, ...]


@read_by(_CONFIG)
class InstructionRow:
    """Instructions of a processor that multiply a format of 16 bits."""

    flag: str
    """Flag of the instructions in /proc/cpuinfo."""
    dtype: Literal["bf16", "fp16"]
    masked_by: tuple[str, ...]
    """Values of ONEDNN_MAX_CPU_ISA that forbid them."""
    sources: tuple[str, ...]


@read_by(_CONFIG)
class EmulationRow:
    """Slowdown of a format that torch emulates, against fp32 on the same processor."""

    dtype: Literal["bf16", "fp16"]
    flag: str
    """Flag of the processors that the row is for; empty: all others."""
    masked_by: tuple[str, ...]
    times: float
    sources: tuple[str, ...]


@read_by(_CONFIG)
class ArithmeticTable:
    """All rows of arithmetic.toml."""

    schema: Literal[1]
    sources: dict[str, DocumentRead]
    gpu: tuple[GpuRow, ...]
    instruction: tuple[InstructionRow, ...]
    emulation: tuple[EmulationRow, ...]


@cache
def arithmetic_table(path: Path = PATH) -> ArithmeticTable:
    """Return the table, checked: each row names sources that are listed.  Raises DataError."""
    table = read_toml(path, ArithmeticTable, path.name)
    named = [row.sources for row in table.gpu]
    named += [row.sources for row in table.instruction]
    named += [row.sources for row in table.emulation]
    if missing := {name for names in named for name in names} - table.sources.keys():
        raise DataError(f"{path.name}: no source is called {min(missing)!r}")
    return table
