"""What a training in one process adds to its points: shares of the peaks, the losses at its end."""

from __future__ import annotations

from trainrig.record import Derivation, Record, Status, new_id


def shares(point: Record, ceiling: Record | None) -> list[Record]:
    """Model FLOPs utilisation: of the claim and of the measured ceiling, where known."""
    if point.status is not Status.OK:
        return []
    found = []
    if point.limit is not None:
        found.append(_share("mfu", point, point.limit.value, point.limit.source, ()))
    if ceiling is not None and ceiling.value:
        source = f"matmul {ceiling.case['dtype']} measured in this run"
        found.append(_share("mfu_of_matmul", point, ceiling.value, source, (ceiling.id,)))
    return found


def _share(metric: str, point: Record, peak: float, source: str, more: tuple[str, ...]) -> Record:
    """Model FLOP/s over a peak, as a record of its own."""
    assert point.value is not None and point.interval is not None
    low, high = point.interval
    return point.replace(
        id=new_id(),
        metric=metric,
        unit="1",
        value=point.value / peak,
        interval=(low / peak, high / peak),
        derived=Derivation(ids=(point.id, *more), formula=f"model FLOP/s over {source}"),
        limit=None,
    )


def losses(first: Record) -> list[Record]:
    """The losses at the end, of the worker that trained to the end; a busy machine is no matter."""
    names = {"train_loss": "last_loss", "heldout_loss": "heldout_loss"}
    return [
        first.replace(
            id=new_id(),
            metric=metric,
            unit="nat",
            value=value,
            samples=None,
            derived=Derivation(ids=(first.id,), formula=f"its condition {name}"),
            interval=None,
            confidence=None,
            attempt=None,
            stop=None,
            disturbed=None,
        )
        for metric, name in names.items()
        if isinstance(value := first.conditions.get(name), float)
    ]
