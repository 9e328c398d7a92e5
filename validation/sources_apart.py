"""How far apart two sources are that print one set-up: what no predictor from such rows can mend.

    python -m validation.sources_apart           print it
    python -m validation.sources_apart --pairs   and each pair, the furthest apart first

A set-up is what a row's columns say, as they are read: chip, model, program, precision, adapters,
number of chips, how they are split, length, and what is computed again.  What no column says
(clocks, power limits, versions, data, hosts, who else was there) remains.  Two sources are rows of
two owners; each stands for its median time per token.  The error of one as the prediction of the
other is their times' ratio - 1, both ways round; a set-up's is the mean over its pairs, and each
set-up weighs alike.  Beside it, on the same rows: this predictor, which had most of these rows in
sight, and a flat MFU.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean, median

import numpy as np

from trainrig.catalog.published import training
from trainrig.errors import TrainrigError
from validation.normalise.answers import time_of
from validation.normalise.case import Case, case_of
from validation.normalise.cells import Row
from validation.normalise.row_errors import measured_time
from validation.out_of_family import FIFTH, FOURTH, SIXTH, TABLE, THIRD, flat_error, read

SHAPE = ("num_layers", "hidden", "ffn", "num_heads", "num_kv_heads", "vocab", "num_experts")
SPLIT = ("gpus", "tp", "pp", "ep", "cp", "zero", "interleave")
WORK = (
    "framework",
    "precision",
    "quantize",
    "lora_rank",
    "seq_len",
    "batch_size",
    "recompute",
    "optimizer",
)
HOST = re.compile(r"^(?:https?://)?(?:raw\.githubusercontent\.com/|github\.com/|docs\.|www\.)?")


@dataclass(frozen=True, slots=True)
class Print:
    """What one source prints of one set-up: medians over its rows."""

    owner: str
    per_token: float
    """Seconds a token of the whole job."""
    ours: float
    """Predicted / measured - 1, of the absolute value."""
    flat: float | None
    """The same of a flat MFU."""


def owner_of(row: Row) -> str:
    """Whose measurement a row is: a repository or site's owner, or whom the group is named after.

    >>> owner_of({"source": "NVIDIA-NeMo/Megatron-Bridge@067f docs/x.md", "group": "mbridge"})
    'nvidia'
    >>> owner_of({"source": "https://docs.nvidia.com/nemo/performance.html", "group": "nemo-docs"})
    'nvidia'
    >>> owner_of({"source": "SFT report, 8 nodes", "group": "trl-sft-h100"})
    'trl'
    """
    source = HOST.sub("", row["source"].lower())
    name = source if re.match(r"[\w.\-]+/", source) else row["group"]
    return re.split(r"[/.\-]", name, maxsplit=1)[0]


def set_up(case: Case) -> tuple[object, ...]:
    """Return what must be the same of two rows."""
    shape = (getattr(case.shape, name) for name in SHAPE)
    return (case.chip.name, *shape, *(case.layout.get(name) for name in (*SPLIT, *WORK)))


def prints(rows: Iterable[Row]) -> dict[tuple[object, ...], list[Print]]:
    """The set-ups that more than one owner prints."""
    prints_by_setup: dict[tuple[object, ...], dict[str, list[Print]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        try:
            case = case_of(row)
            measured, (_, predicted, _) = measured_time(row, case), time_of(case)
        except TrainrigError:
            continue
        tokens = float(case.layout.global_batch) * case.timed.batch.seq_len
        prints_by_setup[set_up(case)][owner_of(row)].append(
            Print(
                owner_of(row),
                measured / tokens,
                abs(predicted / measured - 1.0),
                flat_error(case, measured),
            )
        )
    return {
        what: [_middle(members) for members in owners.values()]
        for what, owners in prints_by_setup.items()
        if len(owners) > 1
    }


def _middle(members: Sequence[Print]) -> Print:
    """A source's medians."""
    flats = [abs(member.flat) for member in members if member.flat is not None]
    return Print(
        members[0].owner,
        median(member.per_token for member in members),
        median(member.ours for member in members),
        median(flats) if flats else None,
    )


def apart(members: Sequence[Print]) -> float:
    """Mean error of one source as the prediction of another.

    >>> apart([Print("a", 1.0, 0, 0), Print("b", 2.0, 0, 0)])
    0.75
    """
    both = permutations(members, 2)
    return fmean(abs(one.per_token / other.per_token - 1.0) for one, other in both)


def table(prints_by_setup: dict[tuple[object, ...], list[Print]]) -> str:
    """The three predictors of the same rows, one a line."""
    others = [apart(members) for members in prints_by_setup.values()]
    ours = [fmean(print_.ours for print_ in members) for members in prints_by_setup.values()]
    flat = [
        fmean(known)
        for members in prints_by_setup.values()
        if (known := [print_.flat for print_ in members if print_.flat is not None])
    ]
    owners = {print_.owner for members in prints_by_setup.values() for print_ in members}
    lines = [
        f"| {name} | {fmean(x):.1%} | {median(x):.1%} | {np.quantile(x, 0.9):.1%} |"
        for name, x in (
            ("another source's print of it", others),
            ("this predictor, these rows in sight", ours),
            ("a flat 40 % MFU", flat),
        )
    ]
    return (
        f"{len(prints_by_setup)} set-ups that are the same by every column are printed by "
        "more than one of"
        f" {len(owners)} owners (`python -m validation.sources_apart`):\n\n"
        "| predicted by | mean | median | p90 |\n|---|---|---|---|\n" + "\n".join(lines)
    )


def every_row() -> Iterable[Row]:
    """The rows of all published tables."""
    yield from training.read()
    for path in (TABLE, THIRD, FOURTH, FIFTH, SIXTH):
        yield from read(path)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", action="store_true", help="each set-up, furthest apart first")
    options = parser.parse_args(argv)
    prints_by_setup = prints(every_row())
    print(table(prints_by_setup))
    if options.pairs:
        print()
        for what, members in sorted(prints_by_setup.items(), key=lambda item: -apart(item[1])):
            who = ", ".join(f"{print_.owner} {print_.ours:.0%}" for print_ in members)
            print(f"{apart(members):7.1%}  {', '.join(map(str, what))}: {who}")


if __name__ == "__main__":
    main()
