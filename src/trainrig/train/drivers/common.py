"""What every driver does around the engine that it drives: tell events, weigh, leave.

Imports the standard library and torch alone: a driver runs in its engine's environment.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
_PR_SET_PDEATHSIG = 1


def run(train: Callable[[Path, Callable[..., None]], None]) -> None:
    """``train(folder, tell)`` for the folder on the command line; then the process ends at once."""
    if sys.platform == "linux":  # no orphan, should the parent be killed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    folder, code = Path(sys.argv[1]), 1
    events = os.open(folder / f"events-{RANK}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(event: str, **content: Any) -> None:
        os.write(events, json.dumps({"event": event, **content}).encode() + b"\n")

    try:
        train(folder, tell)
        gc.collect()
        if dist.is_initialized():
            dist.barrier()
        tell("done")
        code = 0
    except Exception as error:  # noqa: BLE001 - the edge: anything may come out of another's code
        tell("failed", **failure_of(error))
        traceback.print_exc()
    if code == 0 and dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread of gloo may not outlive the interpreter


def failure_of(error: BaseException) -> dict[str, str]:
    """Why it failed, in one line, and of which kind."""
    text = (str(error).strip().splitlines() or ["no message"])[0][:300]
    oom = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in text
    lost = "gloo" in text or isinstance(error, dist.DistError)
    kind = "oom" if oom else "peer" if lost else "error"
    return {"reason": f"{type(error).__name__}: {text}", "kind": kind}


def elements(tensors: Any) -> int:
    """Elements on this rank."""
    return sum((t.to_local() if hasattr(t, "to_local") else t).numel() for t in tensors)


def kind(tensors: Any) -> str | None:
    """The dtypes of tensors, in words."""
    return ", ".join(sorted({str(t.dtype).removeprefix("torch.") for t in tensors})) or None


def resident() -> int:
    """Resident memory in bytes; its peak begins anew."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return _status("VmRSS")


def peak(asked: dict[str, Any], before: int) -> float:
    """The most memory beyond ``before``; a GPU's as torch's allocator has it."""
    if asked["device"].startswith("cuda"):
        return float(torch.cuda.max_memory_allocated())
    return float(max(0, _status("VmHWM") - before))


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
