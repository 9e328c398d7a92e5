"""Published training steps: rows for the predictor to be checked against, not records.

Each row is a whole training step as its source printed it: model, devices, layout, seconds of a
step or tokens a second, memory.  ``grade`` A: every field that the layout needs is known; B: up to
two are missing or presumed; C: weaker.  ``group`` names the source's family: its rows share what is
not printed (software, clocks), so that a fair test leaves out whole groups.  ``unseen_since`` is
when a row came here, for rows that came after the predictor's constants had been settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trainrig.catalog.published.tables import Row, conditions, device_name, number, read_rows
from trainrig.record import Case, Kind, Record

PATH = Path(__file__).parent / "training.csv"
STEPS = Path(__file__).parent / "steps.csv"
"""Training steps as options of `predict`, written by `python -m validation.steps_table`."""


_MODELS = {"BERT-large": "bert-large", "GPT-2 medium": "gpt2-medium"}
_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_OPTIMIZERS = {
    "adamw_hf": "adamw",
    "adamw_apex_fused": "adamw-fused",
    "apex FusedAdam": "adamw-fused",
}
"""Optimizer by its printed name: adamw-fused where one kernel does the update."""
_AS_PRINTED = ("framework", "interconnect", "precision", "kind", "link", "optimizer")


def read() -> Iterator[Row]:
    """Return the rows, in the table's order.  Raises DataError."""
    for _, row in read_rows(PATH):
        yield row


def steps() -> Iterator[Row]:
    """Return the steps that say how long they took, by the options of `predict` that ask for them.

    A blank option was not stated.  Raises DataError.
    """
    for _, row in read_rows(STEPS):
        yield row


def baselines() -> Iterator[Record]:
    """Return the steps that experiments are held against, as baseline records in tokens/s.

    Rows of data-parallel training of models that the classic sequence trains.
    Raises DataError.
    """
    return _records(_case, _AS_PRINTED)


def figures() -> Iterator[Record]:
    """Return each row whose rate was printed, as a baseline record: tokens a second of a GPU.

    The case is the model and the layout as printed, so that rows of one layout meet.
    Raises DataError.
    """
    columns = ("framework", "interconnect", "grade", "link")
    return _records(_layout_case, columns, step_time="step_time_s")


def _records(
    case_of: Callable[[Row], Case | None], columns: Sequence[str], **measured: str
) -> Iterator[Record]:
    """Return the rows with a case and a printed rate, as records."""
    for record_id, row in read_rows(PATH):
        case, value = case_of(row), number(row["tokens_per_s_per_gpu"])
        if case is None or value is None:
            continue
        more = {name: number(row[column]) for name, column in measured.items()}
        more["memory"] = number(row["memory_bytes_per_gpu"])
        yield Record(
            id=record_id,
            kind=Kind.BASELINE,
            benchmark="training",
            case=case,
            metric="token_rate_per_device",
            unit="token/s",
            value=value,
            device=device_name(row["hardware"]),
            device_count=int(row["num_gpus"]),
            source=row["source"],
            conditions=conditions(row, *columns, **more),
        )


_SIZES = (
    ("seq", "seq_len"),
    ("micro_batch", "batch_size"),
    *((name, name) for name in ("global_batch", "tp", "pp", "cp", "ep", "grad_accum")),
    ("zero_stage", "zero"),
)
"""Columns and their names in a layout; sizes 0 and 1 are left out."""
_LAYOUT = ("kind", "kernel_stack", "recompute", "optimizer", "offload", "p2p")


def _layout_case(row: Row) -> Case | None:
    """Return the layout as printed; None without a number of GPUs."""
    if not row["num_gpus"]:
        return None
    sizes = {name: row[head] for head, name in _SIZES if row[head] not in ("", "0", "1")}
    words = {name: row[name] for name in _LAYOUT if row[name] not in ("", "none")}
    numbers = {name: int(float(text)) for name, text in sizes.items()}
    return {"model": row["model"], "precision": row["precision"], **numbers, **words}


def _case(row: Row) -> Case | None:
    """Return an experiment's case; None for what no experiment is, and for grade C."""
    if row["grade"] == "C":  # as runs that a slow host may explain: nothing to stand beside
        return None
    split = any(row[name] not in ("", "1") for name in ("pp", "cp", "ep"))
    sharded = split or row["zero_stage"] not in ("", "0")
    precision = row["precision"]
    sizes = [row[name] for name in ("micro_batch", "seq", "dp")]
    if row["model"] not in _MODELS or precision not in _PRECISIONS or sharded or not all(sizes):
        return None
    optimizer = _OPTIMIZERS.get(row["optimizer"])
    return {
        **({"optimizer": optimizer} if optimizer else {}),
        "model": _MODELS[row["model"]],
        "precision": precision,
        "batch_size": int(row["micro_batch"]),
        "seq_len": int(row["seq"]),
        "grad_accum": int(row["grad_accum"] or 1),
        "recompute": row["recompute"] or "none",
        "nproc": int(row["dp"]) * int(row["tp"] or 1),
        "zero": 0,
        "p2p": row["p2p"] != "off",
        **({} if row["tp"] in ("", "1") else {"tp": int(row["tp"])}),
    }


def baselines_of_case(case: Case, known: Sequence[Record]) -> list[Record]:
    """Return the baselines of an experiment's case.

    Same model, samples at once, precision, optimizer and devices; software may differ, but beside
    another framework's trainer only figures of its own stand, and none beside DataParallel.
    """
    framework = str(case["framework"])
    prefix = _PREFIXES.get(framework)
    return [
        record
        for record in known
        if all(case.get(name) == value for name, value in record.case.items())
        if all(case.get(name, 1) == record.case.get(name, 1) for name in _SPLITS)
        if prefix is not None and str(record.conditions["framework"]).startswith(prefix)
        if case.get("parallel") != "dataparallel"
    ]


_SPLITS = ("tp", "pp", "cp", "ep")
"""Layout sizes that a case leaves out where they are 1."""
_PREFIXES = {"native": "", "huggingface": "HF ", "megatron": "Megatron"}
"""Beginnings of software names that count as a framework's experiment."""
