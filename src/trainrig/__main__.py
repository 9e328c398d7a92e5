"""Entry point of the command, as ``trainrig`` and as ``python -m trainrig``.

Reading click and the verbs takes a tenth of a second.  Ctrl-C within it ends the process in one
line, like every Ctrl-C later, and not in the traceback of an import.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line; it ends the process with its exit code."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # of a job in the background
        signal.signal(signal.SIGINT, _end)
    try:
        from trainrig.cli.main import main as run

        signal.signal(signal.SIGINT, before)
        run()
    except Exception as error:  # noqa: BLE001 - the edge: a fault of ours is no finding
        from trainrig.cli.internal_error import report_crash

        sys.exit(report_crash(error))


def _end(*_: object) -> None:
    """End in one line, at once: nothing has been begun that wants an end.

    An exception would be lost where it meets code that takes none, such as a finalizer.
    """
    os.write(2, b"trainrig: interrupted\n")
    os._exit(130)  # noqa: TID251 - nothing is open, and no rank is one yet


if __name__ == "__main__":
    main()
