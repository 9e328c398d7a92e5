"""The published steps as options of `predict`: makes `catalog/published/steps.csv` of training.csv.

    python -m validation.steps_table            compare the file with what it should be
    python -m validation.steps_table --write    and write it

training.csv holds what sources printed, in their words; what a row asks is read once, here, by the
reader of such tables, so that no prediction reads words when it looks for runs of the same step.
Columns are named like the options of `predict` and the numbers of a model; a blank one was not
stated.  Left out are rows that say nothing of a step's time, or not what was trained on how many
GPUs.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator

from trainrig.catalog.published import training
from trainrig.errors import TrainrigError
from trainrig.prediction.published_runs import SAME, SAME_MODEL
from validation.normalise.case import Case, case_of
from validation.normalise.cells import Row
from validation.normalise.row_errors import measured_time

COLUMNS = ("source", "program", "on", "link_name", *SAME, "kernels", *SAME_MODEL, "vocab")


def steps() -> Iterator[dict[str, str]]:
    """Each published step that says how long it took, in the table's order."""
    for row in training.read():
        try:
            case = case_of(row)
            seconds = measured_time(row, case)
        except TrainrigError:
            continue
        if not _is_stated(row, case):
            continue
        numbers = case.shape.flat()
        yield {
            "source": row["source"],
            "program": row["framework"],
            "on": case.chip.name,
            "link_name": "" if _may_have_another_link(case) else case.rates.links.inside.name,
            **{name: str(case.layout.get(name)) for name in (*SAME, "kernels")},
            **({"interleave": ""} if "vpp" in case.presumed else {}),
            **{name: str(numbers[name]) for name in (*SAME_MODEL, "vocab")},
            "step_time_s": repr(seconds),
        }


def _is_stated(row: Row, case: Case) -> bool:
    """Say whether the model's depth and width, the length and the number of GPUs were printed."""
    sizes = {"layers": case.shape.num_layers, "hidden": case.shape.hidden}
    sizes |= {"seq": case.layout.batch.seq_len, "num_gpus": int(case.layout.mesh.gpus)}
    return all(row[name] == str(size) for name, size in sizes.items())


def _may_have_another_link(case: Case) -> bool:
    """Return whether nobody says how cards reach each other that may be bridged."""
    chip = case.chip
    may_be_bridged = chip.link.name not in (None, "none") and chip.board.cooling != "module"
    return "link" in case.presumed and may_be_bridged


def text() -> str:
    """The file as it should be."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, (*COLUMNS, "step_time_s"), lineterminator="\n")
    writer.writeheader()
    writer.writerows(steps())
    return out.getvalue()


def main() -> int:
    """Compare, or write."""
    wanted = text()
    if "--write" in sys.argv:
        training.STEPS.write_text(wanted, encoding="utf-8")
        return 0
    is_same = training.STEPS.read_text(encoding="utf-8") == wanted
    print(f"{training.STEPS.name}: {'as it should be' if is_same else 'write it with --write'}")
    return int(not is_same)


if __name__ == "__main__":
    sys.exit(main())
