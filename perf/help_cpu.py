"""Processor time of ``trainrig --help`` beside ``pip --help``, in turns.

Peer: pip's help, the command line that everyone who installs trainrig has just
used.  Floor: ``python -c pass``.  Target: under 120 ms of processor time.
"""

from __future__ import annotations

import statistics
import sys

from _shared import cost_of, in_turns, middle, options, say_load, verdict

TARGET_S = 0.120
COMMANDS = {
    "trainrig --help": [sys.executable, "-m", "trainrig", "--help"],
    "pip --help": [sys.executable, "-m", "pip", "--help"],
    "python -c pass": [sys.executable, "-c", "pass"],
}


def main() -> None:
    """Print the three medians and the ratio."""
    arguments = options(__doc__).parse_args()
    say_load()
    rounds = 2 if arguments.quick else 20
    subjects = {name: lambda c=command: cost_of(c).cpu_s for name, command in COMMANDS.items()}
    in_turns(1, subjects)  # compiles what has no .pyc yet
    found = in_turns(rounds, subjects)
    for name, values in found.items():
        print(f"{name:16s} {middle(values)} CPU")
    ours, peer, _ = (statistics.median(values) for values in found.values())
    print(
        f"ratio {ours / peer:.2f} of pip --help; "
        f"{ours * 1e3:.0f} ms CPU, target under {TARGET_S * 1e3:.0f}: {verdict(ours < TARGET_S)}"
    )


if __name__ == "__main__":
    main()
