"""docs/cases.md: the columns of `trainrig predict --cases`, from the options' declarations.

    python tools/cases_table.py --write

Without --write it prints the page.  A test compares the file with what this prints.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

PAGE = ROOT / "docs" / "cases.md"
HEAD = """\
# Tables of cases

Written by `python tools/cases_table.py --write`.

`trainrig predict --cases FILE` answers one question in each row of a CSV or JSON Lines file. A
column is an option of `trainrig predict` under its own name, and a row asks exactly what the same
flags ask:

    id,model,on,gpus,tp,zero,micro_batch,global_batch,seq_len,framework,kernels,measured_tokens_per_s_per_gpu
    ours,llama-7B,H100 SXM5 80GB,8,,3,1,64,4096,huggingface,,9100
    half,llama-7B,H100 SXM5 80GB,4,,3,1,64,4096,huggingface,,
    split,llama3-70B,H100 SXM5 80GB,64,8,1,1,256,8192,megatron,flash+fused,

    trainrig predict --cases cases.csv
    trainrig predict --cases cases.csv --json > answers.jsonl

The same as JSON Lines, an object in each line:

    {"id": "ours", "model": "llama-7B", "on": "8x H100 SXM", "zero": 3, "global_batch": 64}

- A blank cell, or a key that is absent or null, is an option that was not given: its default stands
  for it, and `presumed` of the answer names the defaults that matter.
- A column that is not listed here, a word that an option does not know and a number out of its
  range are errors (exit code 2) with the line of the file and the nearest name. Nothing is
  answered then.
- A row whose layout cannot be run, as a batch that the ranks do not divide, has a `reason` in place
  of an answer; the others are answered.
- Files that cells name (`chip`, `cluster`, `rates`, a model's config.json) are found from the
  current folder, as on the command line.
- Remarks, sources and other text that is no option have no place in the file.

## Options
"""
MEASURED_HEAD = """
## What was measured

Where one of these is given, the answer has the prediction's error, predicted / measured - 1, and
whether the measured time lies in the 80 % interval; below the table stand the errors by chip. Of
several that say how long a step took the first in this list counts.
"""


def page() -> str:
    """Return the whole text."""
    return "\n".join([HEAD, *_options(), MEASURED_HEAD, *_measured()]) + "\n"


def _options() -> Iterator[str]:
    from trainrig.cli.predict_options import case_columns

    yield "| column | takes | meaning |"
    yield "|---|---|---|"
    yield "| `id` | text | Name of the row, which its answer repeats. |"
    for column in case_columns():
        yield f"| `{column.name}` | {column.takes} | {column.help.replace('|', '/')} |"


def _measured() -> Iterator[str]:
    from trainrig.prediction.cases.columns import MEASURED

    yield "| column | meaning |"
    yield "|---|---|"
    for name, text in MEASURED.items():
        yield f"| `{name}` | {text} |"


def main() -> None:
    """Print the page, or write it."""
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
