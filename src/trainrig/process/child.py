"""Duties of a child process beside its work: die with its parent, report a failure, exit.

The kernel sends SIGKILL when the parent goes, once it was asked to; a parent that went before is
known by its number, which `supervisor` hands on as TRAINRIG_PARENT.

A rank leaves by barrier, destroy, flush and os._exit: a thread of gloo that frees a tensor while
the interpreter shuts down aborts the process, and a training that went well would count as failed.

Pure standard library; torch is looked at only where the child has loaded it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from trainrig.errors import TrainrigError
from trainrig.process.events import Events

PARENT = "TRAINRIG_PARENT"
"""Environment variable with the parent's process id."""
DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
)
"""A program for ``python -c`` that becomes another program and dies with its parent."""
_PR_SET_PDEATHSIG = 1
# What torch and the libraries under it say: of an operation that is not there for this device,
# dtype or shape, ...
_UNSUPPORTED = (
    "not implemented",
    "STATUS_NOT_SUPPORTED",
    "only supported on",
    "compute capability",
    "needs to be greater than 16",  # torch._int_mm
    "a multiple of 8",
    "divisible by 16",  # torch._scaled_mm
    "could not create a primitive",  # oneDNN, of int8 and fp8 on a processor with AVX2 alone
)
# ... of a host or device without memory: allocators, the driver, cuBLAS, cuDNN, NCCL, HIP, ...
_NO_MEMORY = (
    *("allocate memory", "out of memory", "OUT_OF_MEMORY", "ErrorMemoryAllocation"),
    *("STATUS_ALLOC_FAILED", "Cuda failure 2 ", "Failed to CUDA calloc", "Failed to CUDA malloc"),
)
# ... of a device that torch was not built for or that there is not, ...
_OF_THE_BUILD = ("no kernel image", "invalid device ordinal", "forward compatibility")
# ... and of a device or driver that failed.
_DEVICE_FAULTS = (
    *("CUDA error", "HIP error", "CUBLAS_STATUS", "CUDNN_STATUS", "ECC error", "GPU is lost"),
    *(f"was ended by {name}" for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE")),
)
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def run_rank(train: Callable[[Path, Events], None]) -> NoReturn:
    """Return ``train(folder, events)`` for the folder on the command line.

    Then the process ends at once.

    Emits ``start``, then ``done``, or ``failed`` with a reason and a kind.
    """
    die_with_parent()
    events = Events(Path(sys.argv[1]), int(os.environ.get("RANK", "0")))
    events.start()
    code = 1
    try:
        train(Path(sys.argv[1]), events)
        gc.collect()
        if (distributed := _distributed()) is not None:
            distributed.barrier()
        events.emit("done")
        code = 0
    except Exception as error:  # noqa: BLE001 - the edge: torch raises nearly everything
        events.emit("failed", **failure_of(error))
        traceback.print_exc()
    leave(code)


def _distributed() -> Any | None:
    """torch.distributed where this process is part of a group."""
    module = sys.modules.get("torch.distributed")
    is_member = module is not None and module.is_available() and module.is_initialized()
    return module if is_member else None


def leave(code: int = 0) -> NoReturn:
    """End this process at once, with its output written."""
    # After a failure the other end may be gone, and destroying the group would wait for it.
    if code == 0 and (distributed := _distributed()) is not None:
        distributed.destroy_process_group()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def failure_of(error: BaseException) -> dict[str, str]:
    """Return why a rank failed: ``reason`` in one line, and its ``kind``.

    oom: too little memory; port: another program has the ranks' port; peer: another rank may be to
    blame; the class of one of our own errors; error: anything else.
    """
    if isinstance(error, TrainrigError):
        return {"reason": error.message, "kind": type(error).__name__}
    text = first_line(error)
    if "EADDRINUSE" in str(error):
        return {"reason": f"port {os.environ.get('MASTER_PORT', '?')} is in use", "kind": "port"}
    if is_out_of_memory(error):
        return {"reason": f"out of memory: {text}", "kind": "oom"}
    distributed = sys.modules.get("torch.distributed")
    lost = distributed is not None and isinstance(error, distributed.DistError)
    lost = lost or "gloo" in text or "peer" in text
    return {"reason": f"{type(error).__name__}: {text}", "kind": "peer" if lost else "error"}


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that Python, a GPU's or the CPU's allocator had no memory."""
    torch = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or _has_message(str(error), _NO_MEMORY)


def is_unsupported(error: BaseException) -> bool:
    """Return whether an error means that a device or torch's build lacks an operation."""
    return not is_out_of_memory(error) and _has_message(str(error), _UNSUPPORTED)


def device_fault(reason: str) -> bool:
    """Return whether a GPU or its driver failed: CUDA's errors, or a crash in native code.

    After an error of CUDA all that the process still asks of the device fails too.
    """
    is_other = _has_message(reason, (*_UNSUPPORTED, *_NO_MEMORY, *_OF_THE_BUILD))
    return _has_message(reason, _DEVICE_FAULTS) and not is_other


def _has_message(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip().splitlines() or ["no message"])[0][:300]


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent goes; leave at once if it went before.

    That the parent is process 1 says nothing: in a container it is.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if _has_ended(os.environ.get(PARENT, "")):
            os._exit(1)


def _has_ended(parent: str) -> bool:
    """Return whether a process has ended.  It need not be our parent: a script may lie between."""
    if not parent.isdecimal() or os.getppid() == int(parent):
        return False
    try:
        state = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return state == "Z"


def tune_malloc() -> None:
    """Let malloc keep what is freed instead of handing it back to the kernel (glibc only).

    By default each tensor above some size is mapped anew and its pages are touched for the first
    time in every step: on the CPU that costs more than the arithmetic of a softmax.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_TOP_PAD, 1 << 26)
