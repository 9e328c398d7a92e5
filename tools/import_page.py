"""Print docs/import.md: what `trainrig import` reads, from the importers' specs.

    python tools/import_page.py > docs/import.md

Run it after a change to an importer; tests/unit/importers/test_page.py compares the two.
"""

from __future__ import annotations

import sys

from trainrig.importers import importers

HEAD = """# What `trainrig import` reads

    trainrig import all_reduce.txt
    trainrig import nvbandwidth.json p2p.txt smi-q.txt --out runs
    trainrig import train.log --model bert-large --on RTX-4090 --precision fp32
    ssh host nvidia-smi -q | trainrig import -

A file is recognised by its content; `--as FORMAT` names its tool where it is not; `-` is standard
input, so that a paste is enough. A file may hold several runs of several tools: each is read by
itself, and the lines that no format knows are counted and listed. Prefixes of srun, mpirun,
kubectl, docker, journald, torchrun and loggers, colours, gzip, UTF-16 and Windows' line ends are
taken off. A training's log may have any size; other formats are read up to 64 MiB of results.

Several files become one run of one machine, which `report`, `compare` and `ledger` read like any
other; every record names the tool, its version where the file states it, the file and the line.
What a file does not state (`--on`, `--model`, `--precision`, `--seq-len`,
`--gpus`, `--batch-size`) may be added; what is in neither is missing, with a reason, and never 0.

All files are read to their ends before anything is written. One that cannot be read is refused with
its line (exit code 2) and leaves nothing. Otherwise the exit code is the verdict's: 1 where a tool
found a fault (wrong values, FAULTY, Fail, an allocation error, a point below its band), 3 where a
health test was skipped or cut off, else 0. A skipped test is no pass, and neither is a tool's exit
code 0.

An imported number keeps its tool's definition. Where that differs from ours the tool is part of the
case, so that the two are shown side by side and never compared as one.

Every number that was read stands on the screen and on the page ("What was read"), with four digits
as the file has them. Beside it stands what others published of the same operation on the same card:
the same metric, data type and tool; for collectives, copies between GPUs and trainings also as many
devices, and for the first two the same link. The link is known where a file with the paths is
imported too (`nvidia-smi topo -m`), where the card's form has one link alone, where peer access is
off, or where a rate is beyond what PCIe carries. A training is compared where its log or the
command states model, precision, tokens of a sample, batch and accumulation. What is not known is
not compared. The card is the one that the file names, else one that another file of the same
command names for that GPU, else `--on`; numbers without a card stand alone, and a note asks for it.

A run is PASS where something was judged: a value reached a target, or a health test passed and the
file shows that the GPU computed. Values without a target are counted in the reason. A rate of less
than two thirds of the least that is published is a warning, and then nothing passes. MEASURED:
there was nothing to judge the values by.
"""


def page() -> str:
    """The file's text, with a newline at its end."""
    rows = [
        f"| `{one.name}` | {one.title} | {', '.join(f'`{name}`' for name in one.tested_on)} |"
        for one in importers()
    ]
    sections = [
        f"### {one.name}\n\n{one.title.capitalize() if one.title[:1].islower() else one.title}.\n\n"
        f"- Numbers: {one.definition}.\n- Judged by: {one.judged_by}.\n- Format: {one.source}.\n"
        for one in importers()
    ]
    table = ["| format | what is read | tested on |", "|---|---|---|", *rows]
    where = (
        "The samples lie in tests/unit/importers/samples; the tests also read captured outputs of "
        "real\nmachines where these lie beside the checkout."
    )
    return "\n".join([HEAD, "## Formats\n", *table, "", where, "", "## Definitions\n", *sections])


if __name__ == "__main__":
    sys.stdout.write(page())
