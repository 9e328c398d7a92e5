"""What others published of an experiment's case, and which of those figures is odd.

A figure stands beside an experiment that trains the same model on the same samples at once in the
same precision, by as many kernels of the optimizer, on as many devices.  Software differs, and is
shown; beside Hugging Face's engine only its own figures stand.  A card whose matrix units are
faster by its data sheet and whose figure is lower is named: one of the two figures, or what ran on
that card, wants an explanation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from trainrig.catalog.chip import Chip, peak
from trainrig.catalog.lookup import find_chip
from trainrig.record import Case, Record
from trainrig.units import format_memory, format_quantity, one_line

Row = Mapping[str, Any]
_FASTER = 1.1
"""A data sheet that says less is no reason to expect more."""
SERIES = "published"
TITLE = "Published by others, at full scale: tokens/s of a device, and its memory"
CASE = "published case"


def published_for(case: Case, baselines: Sequence[Record]) -> list[Record]:
    """The baselines of an experiment's case."""
    return [
        record
        for record in baselines
        if _is_of(str(case.get("backend")), record)
        and all(case.get(name) == value for name, value in record.case.items())
    ]


def _is_of(backend: str, record: Record) -> bool:
    """Whether a figure says something about an engine; beside ours any may stand."""
    theirs = str(record.conditions.get("framework")).startswith("HF ")
    return backend == "native" or (backend == "huggingface" and theirs)


def row_of(experiment: str, record: Record) -> dict[str, Any]:
    """A baseline as a run's series keeps it."""
    case, how = record.case, record.conditions
    return {
        "experiment": experiment,
        "device": record.device,
        "precision": case["precision"],
        "tokens_per_s_per_device": record.value,
        "memory_bytes": how.get("memory"),
        "software": how.get("framework"),
        "source": record.source,
        "model": case["model"],
        "printed_precision": how.get("precision"),
        "batch_size": case["batch_size"],
        "grad_accum": case["grad_accum"],
        "seq_len": case["seq_len"],
        "recompute": case["recompute"],
        "num_devices": record.device_count,
        "optimizer": how.get("optimizer"),
        "interconnect": _between(record),
    }


def _between(record: Record) -> str | None:
    """The way between cards, as printed, and whether a direct one was switched off."""
    printed = record.conditions.get("interconnect")
    off = "" if record.case["p2p"] else ", P2P off"
    return None if record.device_count == 1 or not printed else f"{printed}{off}"


def columns(rows: Sequence[Row]) -> tuple[str, ...]:
    """Heads of the table: a column for each device."""
    return ("experiment", CASE, *_devices(rows))


def texts(rows: Sequence[Row]) -> tuple[tuple[str, ...], ...]:
    """Its rows: an experiment and a case each."""
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        head = one_line(row["experiment"]), one_line(_case_words(row))
        cells.setdefault(head, {}).setdefault(one_line(row["device"]), []).append(_figure(row))
    devices = _devices(rows)
    return tuple(
        (*head, *(" or ".join(own.get(device, ["-"])) for device in devices))
        for head, own in cells.items()
    )


def _devices(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(one_line(row["device"]) for row in rows))


def _case_words(row: Row) -> str:
    """``HF Transformers, bert-large, bf16, 11 × 4 of 512``: samples × micro-batches of tokens."""
    engine = re.split(r"[,(]| \d", str(row["software"]))[0].strip()
    if "model" not in row:
        return f"{engine}, {row['precision']}"
    times = f" × {row['grad_accum']}" if row["grad_accum"] > 1 else ""
    words = f"{engine}, {row['model']}, {row['precision']}, {row['batch_size']}{times}"
    words += f" of {row['seq_len']}"
    return words + (", recomputed" if row["recompute"] != "none" else "")


def _figure(row: Row) -> str:
    """``8008 (tf32), 20.3 GiB``: the printed precision where it is another than the model's."""
    printed = row.get("printed_precision") or row["precision"]
    words = f"{row['tokens_per_s_per_device']:.0f}"
    words += f" ({one_line(printed)})" if printed != row["precision"] else ""
    memory = row["memory_bytes"]
    return words if memory is None else f"{words}, {format_memory(memory)}"


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Where the figures come from and what ran there: a line for a device and a source."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        head = one_line(row["device"]), one_line(row["source"])
        said = found.setdefault(head, {})
        said[one_line(str(row["software"]))] = None
        if row.get("interconnect"):
            said[f"cards over {one_line(row['interconnect'])}"] = None
    for (device, source), said in found.items():
        yield f"{device}: {source}; {'; '.join(said)}"


def notices(rows: Sequence[Row]) -> Iterator[str]:
    """Figures of a faster card that lie below a slower one's, of the same experiment; each once."""
    said = set()
    for own, other in permutations(rows, 2):
        if own["experiment"] != other["experiment"] or own["precision"] != other["precision"]:
            continue
        rate, below = own["tokens_per_s_per_device"], other["tokens_per_s_per_device"]
        pair = (own["device"], rate, other["device"], below)
        if rate >= below or pair in said or not _claim(own) > _FASTER * _claim(other) > 0.0:
            continue
        said.add(pair)
        yield one_line(
            f"{own['experiment']}: the {own['device']} is published at "
            f"{format_quantity(rate, 'token/s')}, below the slower {other['device']}'s "
            f"{format_quantity(below, 'token/s')}: its data sheet says "
            f"{_claim(own) / _claim(other):.1f} times as fast; {_why(own, other)}; no target"
        )


def _why(own: Row, other: Row) -> str:
    """What is known of the difference."""
    ways = own.get("interconnect"), other.get("interconnect")
    if None not in ways and ways[0] != ways[1]:
        return f"its cards exchange over {ways[0]}; the other's over {ways[1]}"
    return "other software, less bandwidth, another link or a misprint"


def _claim(row: Row) -> float:
    chip: Chip | None = find_chip(row["device"])
    found = None if chip is None else peak(chip, _UNITS.get(row["precision"]) or row["precision"])
    return found.rate if found is not None else 0.0


_UNITS = {"fp32": "tf32"}
"""What torch multiplies fp32 by in the published rows that are not called fp32."""
