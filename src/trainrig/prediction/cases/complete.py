"""The question that a row asks, and which defaults stand for what it leaves blank.

First of the two stages of a case, and pure: the same row gives the same case, whatever other rows
or columns a table has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainrig.prediction.cases.columns import CaseRow
from trainrig.prediction.scenario import NOTHING, Question, check_values, question


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The question of one row of a table."""

    question: Question
    presumed: tuple[str, ...] = ()
    """Options that were not given, and for which a default other than "none" stands."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Measured values by column."""


def check_row(row: CaseRow) -> None:
    """Raise UsageError for a word, number or name that no model or machine makes valid."""
    check_values(_options(row))


def complete(row: CaseRow) -> Case:
    """Return the case of a row: defaults stand for options that it does not give.

    Raises:
        UsageError: The layout cannot be run, or the model or the machine is not given.
    """
    asked = question(_options(row), row.options.get("rates", NOTHING))
    return Case(question=asked, presumed=_presumed(row, asked), measured=row.measured)


def _options(row: CaseRow) -> dict[str, Any]:
    return {name: value for name, value in row.options.items() if name != "rates"}


def _presumed(row: CaseRow, question: Question) -> tuple[str, ...]:
    """Return the options that a default stands for which does something."""
    presumed, mesh = question.presumed, question.layout.mesh
    columns = ["framework"] if presumed is not None and presumed.because else []
    columns += (
        [presumption.key for presumption in presumed.values if presumption.value not in _NONE]
        if presumed
        else []
    )
    if mesh.gpus > 1:
        columns.append("link")
    if mesh.gpus > mesh.gpus_per_node:
        columns.append("fabric_gbps")
    return tuple(name for name in dict.fromkeys(columns) if name not in row.options)


_NONE = ("none", "auto", 0)
