"""A worker that goes wrong as its cases ask: the real `serve` loop over families of faults.

Started like the real one, with the device last; the family's name is the fault.  Its torch is
a stand-in, so that it starts in a fraction of a second.  A device that begins with ``start-``
names a fault at the start.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from trainrig.measure import worker_main
from trainrig.measure.timing import Prepared, Unsupported


class OutOfMemoryError(RuntimeError):
    """As torch raises it for a GPU."""


sys.modules["torch"] = types.SimpleNamespace(
    __version__="0.0-stand-in",
    OutOfMemoryError=OutOfMemoryError,
    cuda=types.SimpleNamespace(is_available=lambda: False),
    get_num_threads=lambda: 1,
)

_take_stdout = worker_main._take_stdout
_emit = worker_main._emit
streams: list[Any] = []
leave_after_reply = False


def take_stdout() -> Any:
    streams.append(_take_stdout())
    return streams[0]


def emit(replies: Any, event: str, **content: Any) -> None:
    _emit(replies, event, **content)
    if leave_after_reply and event == "reply":
        os._exit(0)


def say(data: bytes) -> None:
    """Write to the parent past the protocol."""
    os.write(streams[0].fileno(), data)


def answer_another_request() -> None:
    """A whole reply, left over from a case before this one."""
    stale = {
        "event": "reply",
        "id": 0,
        "status": "ok",
        "samples": [1e-3] * 10,
        "started": "then",
        "duration": 1.0,
    }
    say(json.dumps(stale).encode() + b"\n")


def fail_with(error: Exception) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def leave_later() -> None:
    global leave_after_reply
    leave_after_reply = True


def chatter() -> None:
    """What libraries print, by every road that there is to stdout."""
    print("python was here", flush=True)
    os.write(1, b"a C library was here\n")
    subprocess.run([sys.executable, "-c", "print('a child was here')"], check=True)


def die_of(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


CALLS: dict[str, Callable[[], object]] = {
    "fine": lambda: None,
    "abort": os.abort,
    "kill": die_of(signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(7),
    "system-exit": lambda: sys.exit(9),
    "hang": lambda: time.sleep(600.0),
    "chatter": chatter,
    "leave": leave_later,
    "no-memory": fail_with(MemoryError("cannot allocate 8 GiB")),
    "gpu-memory": fail_with(OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")),
    "cpu-memory": fail_with(
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
    ),
    "error": fail_with(RuntimeError("no such thing\nsecond line")),
    "cuda-error": fail_with(RuntimeError("CUDA error: an illegal memory access\nsecond line")),
    "unsupported": fail_with(Unsupported("no such operation here")),
    # Garbage instead of a reply.
    "no-json": lambda: say(b"Segmentation fault (core dumped)\n"),
    "half": lambda: (say(b'{"id": 1, "status": "o'), os._exit(0)),
    "endless": lambda: [say(b"x" * 65536) for _ in range(100)],
    "stale": answer_another_request,
}


def prepare(name: str) -> Prepared:
    answers = {"wrong": ["one row is off"], "wrong-when-warm": [None, "one row is off"]}
    left = answers.get(name, [])
    return Prepared(
        call=CALLS.get(name, CALLS["fine"]), wrong=lambda: left.pop(0) if left else None
    )


def start_fault(device: str) -> None:
    match device:
        case "start-exit":
            sys.exit("no torch for you")
        case "start-hang":
            time.sleep(600.0)
        case "start-garbage":
            say(b"Welcome!\n")
        case "start-other":
            say(b'{"hello": 1}\n')


def introduce(device: str) -> dict[str, Any]:
    start_fault(device)
    return {"torch": "stand-in", "threads": 1}


def main() -> None:
    worker_main._take_stdout = take_stdout
    worker_main._emit = emit
    worker_main.introduce = introduce
    worker_main.prepare = lambda request, device: prepare(request["benchmark"])
    worker_main.clock_for = lambda device: serve_clock()
    worker_main.main()


def serve_clock() -> Any:
    from trainrig.measure.clock import HostClock

    return HostClock()


if __name__ == "__main__":
    main()
