"""Where the command begins, as ``trainrig`` and as ``python -m trainrig``.

Reading click and the verbs takes a tenth of a second.  Ctrl-C within it ends the process in one
line, like every Ctrl-C later, and not in the traceback of an import.
"""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line; it ends the process with its exit code."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # of a job in the background
        signal.signal(signal.SIGINT, _end)
    from trainrig.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _end(*_: object) -> None:
    """End in one line: nothing has been begun."""
    os.write(2, b"trainrig: interrupted\n")
    raise SystemExit(130)


if __name__ == "__main__":
    main()
