"""What others published of the cases that a run's experiments train, as the run recorded it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AliasChoices, Field, TypeAdapter, ValidationError

from trainrig.analysis.training_results import BENCHMARK, Amount
from trainrig.record import Kind, Record, RunView, read_by


@read_by({"extra": "ignore", "allow_inf_nan": False})
class PublishedFigure:
    """Published result of an experiment's case."""

    experiment: str
    device: str
    precision: str
    """The model's."""
    tokens_per_s_per_device: Amount
    source: str
    software: str | None = None
    memory_bytes: Amount | None = None
    model: str | None = None
    printed_precision: str | None = None
    """Precision in the source's words."""
    batch_size: Annotated[int, Field(validation_alias=AliasChoices("batch_size", "batch"))] = 0
    grad_accum: int = 1
    seq_len: Annotated[int, Field(validation_alias=AliasChoices("seq_len", "seq"))] = 0
    recompute: str = "none"
    num_devices: int = 1
    optimizer: str | None = None
    interconnect: str | None = None
    """The link between cards, as printed, and whether peer access was off."""


def published_figures(view: RunView) -> tuple[PublishedFigure, ...]:
    """Return the published figures that were recorded beside the run's experiments.

    An older run wrote them as series ``published``; a line of it that is none of ours is left out.
    """
    adapter, figures = TypeAdapter(PublishedFigure), []
    for row in view.series.get("published", ()):
        try:
            figures.append(adapter.validate_python(_renamed(row)))
        except ValidationError:
            return ()
    for record in view.records:
        name = record.conditions.get("experiment")
        if record.kind is Kind.BASELINE and record.benchmark == BENCHMARK and name is not None:
            figures.append(adapter.validate_python(_published(str(name), record)))
    return tuple(figures)


def _renamed(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of a run before its keys were those of an experiment."""
    if "dtype" not in row:
        return row
    return {**row, "precision": row["dtype"], "printed_precision": row.get("precision")}


def _published(name: str, record: Record) -> dict[str, Any]:
    conditions = record.conditions
    printed = conditions.get("interconnect")
    return {
        **record.case,
        "printed_precision": conditions.get("precision"),
        "optimizer": conditions.get("optimizer"),
        "experiment": name,
        "device": record.device,
        "tokens_per_s_per_device": record.value,
        "memory_bytes": conditions.get("memory"),
        "software": conditions.get("framework"),
        "source": record.source,
        "num_devices": record.device_count,
        "interconnect": f"{printed}{'' if record.case.get('p2p') else ', P2P off'}"
        if record.num_devices > 1 and printed
        else None,
    }
