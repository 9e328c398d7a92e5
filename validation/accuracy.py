"""How far off the predicted steps are: the one command that makes docs/accuracy.md.

    python -m validation.accuracy            print it
    python -m validation.accuracy --write    and write docs/accuracy.md
    python -m validation.accuracy --fit      refit the step's constants first (prediction/step.toml)

What is left out: rows of grade C, rows that are no step (memory only), rows without a shape or a
chip of the catalog, 4-bit weights, and cards that are printed as limited below their data sheet
(`cases` refuses all of these); and BERT's second phase in NVIDIA's examples, whose loader fills
batches from bins of 64 tokens (its README), so that the printed 512 is a maximum.  These last were
noticed by their errors; they are predicted with a presumed mean length, which was chosen by them.

Rows that came into the table after the constants were settled take no part in any of this: they are
what nobody had looked at, and stand in a line of their own (`unseen`).  Reads the published steps
that the package carries; takes some seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from scipy.stats import spearmanr

from trainrig.catalog.published import training
from trainrig.errors import TrainrigError
from trainrig.prediction.step.calibration import fitted
from trainrig.stats import ErrorSummary
from validation import sources_apart
from validation.cases import table as case_table
from validation.fit_step import BOUNDS, SIDES, fit, is_stated, left_out, profiled, stated, write
from validation.normalise.answers import memory_of
from validation.normalise.case import case_of
from validation.normalise.cells import Row
from validation.normalise.row_errors import (
    TIMED,
    RowError,
    is_unseen,
    line,
    lines,
    mean_of_medians,
    positive,
    row_errors,
    weak,
)
from validation.out_of_family import (
    EIGHTH,
    FIFTH,
    FOURTH,
    SIXTH,
    THIRD,
    cell_lines,
    outcome,
    read,
    summary,
)
from validation.peers import page_table
from validation.protocols import conformal, folds, over_time, protocols

PAGE = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"

FIRST_CONTACTS = """\
| **eighth**, 2026-11-28 | 1925 | 66 | 96% | **28.7%** | 22.1% | 45.7% | 82% | 24.7% |
| seventh, 2026-11-24 | 368 | 13 | 92% | 50.2% | | 50.0% | 58% | 13.3% |
| sixth, 2026-11-23 | 936 | 34 | 91% | 37.0% | 29.3% | 45.5% | 80% | 22.5% |
| fifth, 2026-11-23 | 1192 | 50 | 96% | 37.3% | 28.2% | 48.7% | 76% | 22.0% |
| fourth, 2026-11-23 | 1865 | 285 | 92% | 42.1% | | | 55% | |
| third, 2026-11-23 | 1616 | 200 | 75% | 35.9% | | | 58% | |"""
"""Printed once each, before anybody had seen an error of these rows (commits: docs/log.md)."""
FIRST_CONTACT_WORDS = (
    "Six tables of public sources that nobody here had read (512 in all) were collected by people"
    " who did not run the predictor, and each was scored once, before anybody had seen an error of"
    " it: its *first contact*. A cell is a source on a chip; each weighs alike and counts at most"
    " 100 %, for a row that leaves its batch or length unsaid can be ten times off. A refused row"
    " counts as wrong. From the fifth table on cells of eight rows and more are counted (the"
    " seventh: all 13); of the older two all cells, without rows that neither the predictor nor a"
    " flat MFU answers."
)
FIRST_CONTACT_NOTES = """\
- Without the bound of 100 %: eighth 28.7 %, p90 62 %; sixth 39.9 %, p90 144 %; fifth 43.1 %, p90
  125 % (45.1 with refused rows as wrong). All cells, those of one row, too: eighth 29.1, sixth 48.4
  (37.1 bounded), fifth 74.4 (56.3), fourth 295.8 (six rows of a chip that no catalog has among
  them), third 55.6.
- Tables differ: the eighth has many systematic sweeps on A100 and H100 with all cells filled, the
  seventh two cells that count 100 % (a processor that is no chip of the catalog; a window without a
  width, 6.9 times too slow). In every table the median cell is predicted too fast, by 13 to 21 %.
- What is learnt from tables in sight helps others little: a day's rules were worth 7 points on the
  fourth table, which was in sight, 0.3 on the fifth and 0.1 on the sixth, which were not. Halves of
  the fourth and third that stayed shut went from 38.9 to 36.9 % and from 33.1 to 32.2.
- What remains is not in the columns: below, how far apart two sources are that print one set-up. A
  correction of first contacts' errors by trees, fitted to other tables' first contacts, is worth 0
  to 2 points, a factor on all times nothing (docs/log.md, 2026-11-28)."""
IN_SHORT = """\
| a step's time, of | is off by | in the stated 80 % |
|---|---|---|
| tables that nobody here had read, the last of six | 29 % (a median cell 22 %) | 82 % |
| the same, the six of them | 29 to 50 % | 55 to 82 % |
| programs whose family was left out of the fit | FAMILY | FAMILY_HELD |
| other owners' prints of the same set-up, as a prediction | 31 % (median 18 %) | |
| a flat 40 % MFU, on the same tables | 46 to 50 % | |

So reckon with a quarter to a half off for what somebody prints, and with a factor of two where the
row leaves much unsaid; with a tenth for a program and a card that were compared. Memory of tables
that nobody had read is a quarter off, 3 to 8 % where all of its cells are stated. Not known: what a
GPU of your own does beside these figures (no result of a GPU is recorded yet), several GPUs
measured by ourselves, and programs of later months than the last table's."""
OPENED_WORDS = (
    "The same tables now, when most misreadings that they showed are mended: how well they are"
    " read, not what to expect. All cells, each alike; of the eighth one half was mended after the"
    " other had been scored once more (29.0 to 28.5 %, large cells)."
)

PEER_WORDS = (
    "Calculon, llm-analysis and SimuMax were asked for every row of the seven tables that they can"
    " express, with their own system files and defaults and with shape and layout as we read the"
    " row (`python -m validation.peers`, which also says it by table; their answers and commits"
    " stand in `validation/published/peers.csv`). *Ours* is what was not fitted to or mended by"
    " these rows: of tables 1 and 2 (`training.csv`, `training-2.csv`) with the row's family of"
    " software left out of the fit, of tables 3 to 8 what the tree of its day said at first"
    " contact; a row that it refused then counts as the flat MFU. *Home* are the rows that a peer"
    " was validated on by its authors. Cells (a source on a chip) count alike; memory has no flat"
    " answer."
)
PEER_DOUBTS = (
    "What speaks for whom: today's reading of a row, which the peers are given, was mended in sight"
    " of some rows of tables 3 to 6, which first contacts had to read without. Asked once by the"
    " readings of those days (tables 3 to 6), llm-analysis is 81.5 % off in 102 cells, ours 79.1"
    " (43.1 and 36.4 with a cell at most 100 %; median cell 34.1 and 25.9; ours is nearer in 62),"
    " Calculon 79.0 and 47.3 in 3, SimuMax 309.9 and 141.2 in 10 (53.5 and 47.9; 39.8 and 25.9)."
    " Against that, rules were chosen in sight of tables 1 and 2. Peers are asked of chips that"
    " they ship a file of, and of no mixture, flash attention or sharding that they have no word"
    " for; llm-analysis reckons with half of the peak whatever the row, as its documents say to."
    " Their own papers report, on rows that they chose: Calculon 3.65 % mean of 8, vTrain 8.4 % in"
    " a node and 14.7 % across nodes, SimuMax 5.6 % with a kernel table of the same card, AMPeD at"
    " most 12 %."
)

CAUSES = """\
- milabench, tf-bench and small batches anywhere: the time is the host's, which is not printed.
- bigscience-176b at tensor parallel 8: the source found and fixed a fault of the hosts (NUMA, PCIe)
  in the middle of the table; rows before it are slow by as much as the bias shows.
- modded-nanogpt: Muon, SOAP and Shampoo compute more than AdamW does, and no column says so.
- tf-bench with DeepSpeed: its optimizer ran on the host of a desktop, slower than is presumed.
- torchtune's 8B on one card: an 8-bit Adam in paged memory, inside backward; no column says so.
- jax-toolbox: recomputation and kernels are not stated; versions of one model differ by 1.5 times.
- vtrain-multi: a few rows of one layout differ by twice from their neighbours in micro-batch."""


FIRST_TRY = (
    "Predicted once before anything was changed: median error 34.3 %, worst 75.2 %, none inside the"
    " interval, for attention that is printed as eager was taken for fused under torch 2.0 (the"
    " libraries call torch's since 2.1). That was put right in the reader of the table with these"
    " rows in sight; no constant was touched. Rates of this card's products were not unseen: the"
    " owner's micro-benchmarks are among the figures that they come from."
)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, fit, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md")
    parser.add_argument("--fit", action="store_true", help="refit the step's constants first")
    options = parser.parse_args(argv)
    kept, profiles = profiled(stated())
    if options.fit:
        write(conformal(fit(kept, profiles)))
    found, refused = row_errors(stated())
    text = page(found, refused, left_out(kept, profiles), later())
    print(text)
    if options.write:
        PAGE.write_text(text + "\n", encoding="utf-8")


def later() -> str:
    """The rows that were added after the constants were settled: one line."""
    errors, refused = unseen(training.read())
    if not errors:
        return "Added after the constants were settled: no row that can be predicted."
    one = line("", errors)
    groups = ", ".join(dict.fromkeys(o.group for o in errors))
    words = f"Added after the constants were settled, and unseen by them ({groups}): {one.count}"
    words += f" rows, median error {one.median_error:.1%}, worst {abs(one.worst_error):.1%},"
    words += f" bias {one.bias:+.1%}, {one.coverage:.0%} of them inside the 80 % interval"
    left = "; ".join(f"{n} × {why}" for why, n in refused.items())
    return words + (f"; not predicted: {left}." if left else ".")


def printed() -> str:
    """The rows whose chip is read from what is printed of the hardware: one line."""
    rows = [row for row in training.read() if not is_stated(row)]
    errors, refused = row_errors(rows, weak)
    one = line("", errors)
    return (
        "Rows that state no chip, only the hardware, or a limit of its power:"
        f" {one.count} answered and {sum(refused.values())} not; no constant was fitted to"
        " them. At first contact 42 were answered: median error 18.0%, p90 42.6%, 64% inside. Now:"
        f" median error {one.median_error:.1%}, p90 {one.p90_error:.1%}, bias {one.bias:+.1%},"
        f" {one.coverage:.0%} inside the 80 % interval."
    )


def page(
    errors: list[RowError], refused: dict[str, int], without: list[RowError], unseen: str
) -> str:
    """The whole of docs/accuracy.md."""
    ours, theirs = (lines(one, lambda o: o.group) for one in (errors, without))
    everything, out = line("all", errors), line("all", without)
    layouts = [one for one in errors if one.group == "vtrain-multi"]
    parts = [
        "# How far off the predictions are",
        "Made by `python -m validation.accuracy --write`; do not edit. An error is predicted /"
        " measured - 1; medians, 90th percentiles and worst are of its absolute value; `in 80 %` is"
        " the share of rows whose measured time lies in the stated interval. Rows are published"
        " training steps (`src/trainrig/catalog/published/training.csv`), grade A and B. "
        + accuracy_words(),
        "## In short",
        in_short(),
        "## Tables that nobody here had read",
        unread_tables(),
        "## With a family of software, a class of chips or later years left out of the fit",
        protocol_table(),
        "Each family by itself. The interval has the same two sides for all families, wider by what"
        " a row leaves unsaid and by how far its chip and program are from what was compared: so"
        " it holds more than 80 % of the regular sweeps of Megatron, and less where one of few"
        " sources is off, as torchtitan's four rows in mxfp8.",
        folds_table(),
        "The curve over time, of all three tables: what a year's rows came to by constants that"
        " were fitted to the years before. Rules and defaults are today's, so it says what the fit"
        " is worth forward in time (little more than its priors), not what an older version said.",
        years_table(),
        "By cell, on the second table, which no constant was fitted to:",
        out_of_family(),
        "## The tables of others, opened",
        opened_tables(),
        "## How far apart sources are",
        APART_WORDS,
        sources_apart.table(sources_apart.prints(sources_apart.every_row())),
        "## Cases that people ask about",
        case_table(),
        "## On the rows that constants were fitted to",
        short(ours, theirs, everything, out, spearman(layouts)),
        f"{unseen} {FIRST_TRY}",
        printed(),
        "## Time, with constants fitted to all groups",
        fenced(ours),
        "## Time, each group by constants fitted without it",
        "Refitted without the group are the constants below and the interval's width. Not refitted:"
        " the rates (from products, streams and collectives; but plain flash attention on Hopper"
        " and Blackwell and the power of Ada were chosen with steps in view), the passes of kernel"
        " stacks, what engines hide, DeepSpeed's single ring, what unaligned rows cost, defaults of"
        " blank cells, and the values that the fit is pulled to. All of these were settled while"
        " these rows were in sight, so figures of sources that nobody has looked at will be worse.",
        fenced(theirs),
        "## Time by chip",
        fenced(lines(errors, lambda o: o.case.chip.name)),
        "## Memory, by kind of figure and source",
        memory_table(),
        MEMORY_WORDS,
        "## Beside other predictors",
        PEER_WORDS,
        page_table(),
        PEER_DOUBTS,
        "## The worst rows",
        worst(errors),
        "Likely causes:\n\n" + CAUSES,
        "## What was left out, and why",
        "\n".join(f"- {n} × {why}" for why, n in sorted(refused.items(), key=lambda i: -i[1])),
        "## The constants",
        constants(),
    ]
    return "\n\n".join(parts)


def unread_tables() -> str:
    """Return what tables of unread sources came to at first contact."""
    head = (
        "| table | rows | cells | answered | mean of cells | median cell | a flat 40 % MFU |"
        " in 80 % | memory |\n|---|---|---|---|---|---|---|---|---|\n"
    )
    return "\n\n".join((FIRST_CONTACT_WORDS, head + FIRST_CONTACTS, FIRST_CONTACT_NOTES))


def in_short() -> str:
    """Return what to expect, in a few lines."""
    family = protocols()["one family of software left out"][0]
    held, median, p90 = (f"{100 * one:.0f} %" for one in (family.inside, family.median, family.p90))
    return IN_SHORT.replace("FAMILY_HELD", held).replace(
        "FAMILY", f"{median}, a tenth of rows by more than {p90}"
    )


def opened_tables() -> str:
    """Say what the tables that are in the tree come to now, in sight of whoever chose the rules."""
    head = (
        "| table | rows | cells | answered | median | at most 100 % a cell | p90 | in 80 % |"
        " memory | in 80 % |\n|---|---|---|---|---|---|---|---|---|---|\n"
    )
    tables = {"eighth": EIGHTH, "sixth": SIXTH, "fifth": FIFTH, "fourth": FOURTH, "third": THIRD}
    lines = [_opened_line(name, read(path)) for name, path in tables.items()]
    return OPENED_WORDS + "\n\n" + head + "\n".join(lines)


def _opened_line(name: str, rows: Sequence[Row]) -> str:
    """One table as it is predicted now."""
    outcomes = [(row, outcome(row)) for row in rows]
    cells = cell_lines(one for _, one in outcomes)
    all_cells = summary(cells)
    timed = [one for row, one in outcomes if any(row[name] for name in TIMED)]
    bounded = fmean(min(1.0, one.median) for one in cells)
    answered = fmean(one.error is not None for one in timed)
    memory, held = all_cells.memory or 0.0, all_cells.memory_inside or 0.0
    return (
        f"| {name} | {len(rows)} | {len(cells)} | {answered:.0%} | {all_cells.median:.1%} |"
        f" {bounded:.1%} | {all_cells.p90:.1%} | {all_cells.inside:.0%} | {memory:.1%} |"
        f" {held:.0%} |"
    )


def years_table() -> str:
    """The curve over time: each year's rows by constants of the years before."""
    rows = [
        f"| {year} | {len(ours.cells)} | {ours.median:.1%} | {ours.p90:.1%} | {ours.inside:.0%} |"
        f" {priors.median:.1%} | {flat.median:.1%} |"
        for year, (ours, priors, flat) in over_time().items()
    ]
    head = (
        "| printed in | cells | fitted to the years before | p90 | in 80 % | unfitted priors |"
        " a flat 40 % MFU |\n|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows)


def folds_table() -> str:
    """Each family of software, left out."""
    head = (
        "| family left out | rows | cells | median | p90 | in 80 % |\n|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(
        f"| {name} | {sum(cell[1] for cell in fold.cells)} | {len(fold.cells)} "
        f"| {fold.median:.1%} |"
        f" {fold.p90:.1%} | {fold.inside:.0%} |"
        for name, fold in folds().items()
    )


def protocol_table() -> str:
    """The three protocols, with what stands beside them."""
    found = protocols()
    family = found["one family of software left out"][0]
    rows = [
        f"| {name} "
        + "".join(
            f"| {len(one.cells)} | {one.median:.1%} | {one.p90:.1%} |"
            f" {f'{one.inside:.0%}' if one.answered else ''} "
            for one in both
        )
        + "|"
        for name, both in found.items()
    ]
    table = "\n".join(rows)
    return (
        f"**{family.median:.1%}** is the error of a step's time where the constants are fitted"
        " without the family of software that is scored: mean over cells (a source on a chip) of"
        " their medians, no source with more than 5 % of the weight, over the first two tables"
        " (`python -m validation.protocols --cells` prints each). Defaults of blank cells and"
        " rules of the model were chosen with these rows in sight, from documents and physics:"
        " tables that nobody here has seen will be further off.\n\n"
        "The same of all three tables, the third's sources each a family, on the right: their rules"
        " were chosen in sight, too.\n\n"
        "| fitted and scored | cells | median | p90 | in 80 % | of all three: cells | median | p90"
        " | in 80 % |\n|---|---|---|---|---|---|---|---|---|\n" + table
    )


MEMORY_WORDS = (
    "`allocated`: the framework's peak. `reserved` and `device` include what the allocator"
    " holds and the context; what counts for them is the interval. One number of memory was chosen"
    " with these rows in sight (the share of cached blocks that a card shows, 0.12); what else was"
    " wrong was looked for in the sources of the"
    " frameworks, with the rows in sight. The intervals were stated before. `later`: added after"
    " that; not all of it is the GPU's peak, for Hugging Face's rows of tf-bench and tf-bench-4090"
    " are a sum that contains a figure of the host (`catalog/published/NOTICE.md`). torchtune's"
    " worst row updates each weight in backward, with states in paged memory, which no cell says."
)


APART_WORDS = (
    "Two owners who print the same set-up (chip, model, program, precision, split, length,"
    " micro-batch) do not print the same time: clocks, power limits, versions, hosts and data are"
    " in no column. This is how far off the one is as a prediction of the other, and what no"
    " predictor from such columns can mend. Most of these rows were in sight of whoever chose the"
    " rules."
)


def out_of_family() -> str:
    """Cells of the tables that nothing is fitted to, and what their figures are worth."""
    cells = cell_lines(map(outcome, read()))
    known = summary(cells)
    table = "\n".join(
        f"| {one.name} | {one.num} | {one.answered:.0%} | {one.median:.1%} | {one.p90:.1%} |"
        f" {one.inside:.0%} | {one.flat or 0.0:.1%} |"
        for one in [*cells, known]
    )
    head = "| source, chip | rows | answered | median | p90 | in 80 % | a flat 40 % MFU |\n"
    return (
        f"{known.num} rows of later software, other programs and other cards. A row that is refused"
        f" counts with the error of the flat MFU.\n\n{head}|---|---|---|---|---|---|---|\n{table}"
    )


def memory_table() -> str:
    """Errors by kind, then by kind and source; unseen rows apart."""
    read = stated()
    known, later = (memory_outcomes(read, later=late) for late in (False, True))
    table = lines(known, lambda o: o.case.memory_kind)
    table += lines(known, lambda o: f"{o.case.memory_kind}, {o.group}")
    table += lines(later, lambda o: f"{o.case.memory_kind}, {o.group}, later")
    return fenced(table)


def accuracy_words() -> str:
    """Return what is excluded, from the module that excludes it."""
    words = (__doc__ or "").split("\n\n")[2]
    return " ".join(words.split())


def short(
    ours: list[ErrorSummary],
    theirs: list[ErrorSummary],
    everything: ErrorSummary,
    out: ErrorSummary,
    rank: float,
) -> str:
    """The figures that matter, each with what was aimed at."""
    coverage = out.coverage
    return "\n".join(
        [
            "| | reached | aimed at |",
            "|---|---|---|",
            f"| mean over groups of the median error, groups used for the fit | "
            f"{mean_of_medians(ours):.1%} | 7 % |",
            f"| the same, leaving one group out at a time | {mean_of_medians(theirs):.1%} | 10 % |",
            f"| 90th percentile over all {everything.count} rows | "
            f"{everything.p90_error:.1%} | 25 % |",
            f"| the same, leaving groups out | {out.p90_error:.1%} | |",
            f"| rows of left-out groups inside the 80 % interval | {coverage:.0%} | 70 to 90 % |",
            f"| rank of layouts of equal work (vtrain-multi, Spearman) | {rank:.3f} | 0.9 |",
        ]
    )


def fenced(table: list[ErrorSummary]) -> str:
    """A table in monospace."""
    wide = max(len(summary.name) for summary in table)
    head = f"{'':{wide}}     n  median     p90   worst    bias  in 80 %"
    rows = [
        f"{summary.name:{wide}} {summary.count:5d} {summary.median_error:7.1%} "
        f"{summary.p90_error:7.1%}"
        f" {abs(summary.worst_error):7.1%} {summary.bias:+7.1%} {summary.coverage or 0.0:8.0%}"
        for summary in table
    ]
    return "\n".join(["```text", head, *rows, "```"])


def worst(errors: list[RowError], num: int = 15) -> str:
    """The rows that are furthest off."""
    ordered = sorted(errors, key=lambda row_error: -abs(row_error.error))[:num]
    rows = [
        f"| {row_error.number} | {row_error.group} | {label_of(row_error)} "
        f"| {row_error.measured:.4g} |"
        f" {row_error.predicted:.4g} |"
        for row_error in ordered
    ]
    return "\n".join(
        ["| row | group | what | measured s | predicted s |", "|---|---|---|---|---|", *rows]
    )


def label_of(row_error: RowError) -> str:
    """``MPT-7b on 8 A100 SXM4 80GB, tp 1 pp 1 zero 3, 2 × 16 of 2048, flash``."""
    case, x = row_error.case, row_error.case.layout
    how = (
        f"tp {x.mesh.tp} pp {x.mesh.pp} zero {x.sharding.zero}, {x.batch.micro} × "
        f"{x.batch.grad_accum}"
    )
    name = (row_error.row.get("model") or case.shape.name)[:32]
    return (
        f"{name} on {x.mesh.gpus} {case.chip.name}, {how} of {x.batch.seq_len}, "
        f"{x.precision.compute}, {x.kernels.stack}, recompute {x.memory.recompute}"
    )


def constants() -> str:
    """The fitted numbers."""
    now = fitted()
    listed = ", ".join(f"{name} {getattr(now, name):.3g}" for name in (*BOUNDS, *SIDES))
    return f"{listed}. `prediction/step/calibration.py` says what each means."


def unseen(rows: Iterable[Row]) -> tuple[list[RowError], dict[str, int]]:
    """Step times of the rows that were added after the constants were settled, of these alone."""
    return row_errors(filter(is_unseen, rows), weak)


def memory_outcomes(rows: Iterable[Row], *, later: bool = False) -> list[RowError]:
    """Bytes a GPU of all rows that state them, with their kind.

    ``later``: of the unseen rows alone.
    """
    outcomes = []
    for number, row in enumerate(rows):
        kind = row.get("memory_kind", "")
        if (
            is_unseen(row) is not later
            or weak(row)
            or kind not in ("allocated", "reserved", "device")
        ):
            continue
        try:
            case = case_of(row)
            low, predicted, high = memory_of(case)
            measured = positive(row, "memory_bytes_per_gpu")
        except TrainrigError:
            continue
        outcomes.append(
            RowError(
                number=number,
                row=row,
                case=case,
                measured=measured,
                low=low,
                predicted=predicted,
                high=high,
            )
        )
    return outcomes


def spearman(errors: list[RowError]) -> float:
    """Rank correlation of measured and predicted times."""
    return float(spearmanr([o.measured for o in errors], [o.predicted for o in errors]).statistic)


if __name__ == "__main__":
    main()
