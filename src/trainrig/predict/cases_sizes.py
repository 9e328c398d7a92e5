"""Numbers of a table's cells: devices, their split and the batch, from what is stated of them."""

from __future__ import annotations

from collections.abc import Mapping

from trainrig.errors import UsageError
from trainrig.predict.cases_words import Unstated, cell, is_fsdp

Row = Mapping[str, str]

_TRUE = ("true", "yes", "1", "1.0")


def sizes_of(row: Row, missing: Unstated) -> dict[str, int]:
    """Devices and batch; what is blank follows from the other numbers."""
    tp, pp = whole(row, "tp", 1), whole(row, "pp", 1)
    dp = whole(row, "dp", 0)
    gpus = whole(row, "num_gpus", dp * tp * pp)
    if not gpus:
        raise UsageError("num_gpus: not stated, nor does it follow from dp")
    if gpus % (tp * pp):
        raise UsageError(f"{gpus} GPUs are no multiple of tp {tp} × pp {pp}")
    if dp not in (0, gpus // (tp * pp)):
        raise UsageError(f"dp = {dp}: {gpus} GPUs by tp {tp} × pp {pp} are {gpus // (tp * pp)}")
    dp = gpus // (tp * pp)
    micro, accum = batch_of(row, dp, missing)
    if not cell(row, "zero_stage") and dp > 1:
        missing.add("zero_stage")
    zero = whole(row, "zero_stage", 3 if is_fsdp(row) and pp == 1 else 0)
    if zero > 3:
        raise UsageError(f"zero_stage = {zero}: 0 to 3")
    return {
        "gpus": gpus,
        "gpus_per_node": whole(row, "gpus_per_node", max(n for n in range(1, 9) if gpus % n == 0)),
        "tp": tp,
        "pp": pp,
        "interleave": whole(row, "vpp", 1),
        "micro_batch": micro,
        "grad_accum": accum,
        "zero": zero,
        "sequence_parallel": int(
            tp > 1 and cell(row, "seq_parallel").lower() in ("true", "1", "1.0")
        ),
    }


def batch_of(row: Row, dp: int, missing: Unstated) -> tuple[int, int]:
    """Micro-batch and how many: from two of global batch, micro-batch and accumulation."""
    micro, accum = whole(row, "micro_batch", 0), whole(row, "grad_accum", 0)
    batch = whole(row, "global_batch", 0)
    if not batch and not micro:
        raise UsageError("neither global_batch nor micro_batch is stated")
    if not micro:
        if not accum:
            missing.add("micro_batch")
        micro = max(1, batch // (dp * max(accum, 1)))
    if not accum:
        accum = max(1, round(batch / (dp * micro))) if batch else 1
        if not batch:
            missing.add("grad_accum")
    if batch and not 0.95 < batch / (micro * accum * dp) < 1.05:
        raise UsageError(
            f"a global batch of {batch} is not micro-batches of {micro} × {accum} × {dp} ranks"
        )
    return micro, accum


def whole(row: Row, name: str, default: int | None = None) -> int:
    """A whole number from 0 of a cell.  UsageError where it is none, or blank without default."""
    text = cell(row, name)
    if not text:
        if default is None:
            raise UsageError(f"{name}: not stated")
        return default
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{name} = {text[:40]!r}: not a number") from None
    if value != value or value != int(min(max(value, -1e18), 1e18)) or not 0 <= value < 2**31:
        raise UsageError(f"{name} = {text[:40]}: a whole number from 0 was expected")
    if value == 0 and name not in ("zero_stage", "dp", "cp", "ep"):
        raise UsageError(f"{name} = 0: a whole number from 1 was expected")
    return int(value)
