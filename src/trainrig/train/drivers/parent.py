"""A process that ends with the one that started it, however early that went.

The kernel sends SIGKILL when the parent goes, once it was asked to; a parent that went before is
known by its number, which `trainrig.train.launch` hands on as TRAINRIG_PARENT.  Imports the
standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent goes; leave at once if it went before."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if _is_gone(os.environ.get("TRAINRIG_PARENT", "")):
            os._exit(1)


def _is_gone(parent: str) -> bool:
    """Whether that process is no more.  It need not be our own parent: a script may lie between."""
    if not parent.isdecimal() or os.getppid() == int(parent):
        return False
    try:
        state = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return state == "Z"
