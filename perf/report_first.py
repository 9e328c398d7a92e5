"""Processor time until the first text of ``trainrig report``, beside ``pip --help``, in turns.

The run has as many records as a qualification of four minutes leaves.  Peer: pip's help, as of
`help_cpu`.  What comes behind the first text (waterfalls, tables) is not counted: a reader has the
answer by then.  Target: 0.5 s of processor time.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from _shared import cost_of, first_text_cpu_s, in_turns, middle, options, say_load, verdict
from report_10k import write_run

TARGET_S = 0.5
_RECORDS = 360


def main() -> None:
    """Write a run, report on it in turns with the peer, print the ratio."""
    arguments = options(__doc__).parse_args()
    say_load()
    rounds = 1 if arguments.quick else 20
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder), _RECORDS)
        report = [sys.executable, "-m", "trainrig", "report", str(run)]
        pip = [sys.executable, "-m", "pip", "--help"]
        cost_of(report)  # compiles what has no .pyc yet
        found = in_turns(
            rounds,
            {
                "trainrig report": lambda: first_text_cpu_s(report),
                "pip --help": lambda: cost_of(pip).cpu_s,
            },
        )
    for name, values in found.items():
        print(f"{name:16s} {middle(values)} CPU")
    ours, peer = (statistics.median(values) for values in found.values())
    print(
        f"ratio {ours / peer:.2f} of pip --help; "
        f"{ours * 1e3:.0f} ms CPU, target under {TARGET_S * 1e3:.0f}: {verdict(ours < TARGET_S)}"
    )


if __name__ == "__main__":
    main()
