"""A crash explained: its signal, faulthandler's stack, the kernel's line, a likely cause.

Read are the logs of the newest run, and what the kernel wrote about processes that died.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainrig.doctor.check import HealthCheck, finding
from trainrig.machine.health import Crash, Health, KernelEvent
from trainrig.machine.snapshot import Missing, Snapshot, value_or
from trainrig.record import Finding

_MOST_FRAMES = 12
_FATAL = re.compile(
    r"Fatal Python error: (Segmentation fault|Illegal instruction|Bus error|Aborted|Floating point)"
)
_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Illegal instruction": "SIGILL",
    "Bus error": "SIGBUS",
    "Aborted": "SIGABRT",
    "Floating point": "SIGFPE",
}
_EXITED = re.compile(
    r"(?:exitcode\s*:\s*-|Signal |signal )(\d{1,2})\b|\b(SIGKILL|SIGSEGV|SIGILL|SIGBUS)\b"
)
_NUMBERS = {"4": "SIGILL", "6": "SIGABRT", "7": "SIGBUS", "9": "SIGKILL", "11": "SIGSEGV"}
_FRAME = re.compile(r'^\s*File "[^"]+", line \d+ in \S+', re.MULTILINE)
# Where the innermost frame or the library lies → what is to be suspected.
_EXTENSIONS = re.compile(
    r"flash_attn|apex|deepspeed|xformers|transformer_engine|triton|bitsandbytes"
)
# The package index's "apex" is another project.
_PACKAGES = {
    "apex": "git+https://github.com/NVIDIA/apex",
    "flash_attn": "flash-attn",
    "transformer_engine": "'transformer-engine[pytorch]'",
}


def parse_crash(text: str, run: str, log: str) -> Crash | None:
    """Return the last crash that a log tells of: faulthandler's stack, else an exit by a signal."""
    fatal = list(_FATAL.finditer(text))
    if fatal:
        last = fatal[-1]
        stack = text[last.end() :]
        current = stack.find("Current thread")
        lines = _FRAME.findall(stack[max(current, 0) :])
        frames = tuple(line.strip()[:200] for line in lines[:_MOST_FRAMES])
        return Crash(run=run, log=log, signal=_SIGNALS[last[1]], frames=frames)
    for match in _EXITED.finditer(text):
        signal = match[2] or _NUMBERS.get(match[1] or "")
        if signal:
            return Crash(run=run, log=log, signal=signal, frames=())
    return None


def explain(crash: Crash, events: tuple[KernelEvent, ...]) -> Finding:
    """Explain a crash by its stack and the kernel's log."""
    kinds = {
        "SIGSEGV": "segfault",
        "SIGBUS": "segfault",
        "SIGILL": "illegal-instruction",
        "SIGKILL": "out-of-memory",
    }
    line = next((event for event in events if event.kind == kinds.get(crash.signal)), None)
    where = f"; innermost: {crash.frames[0]}" if crash.frames else ""
    logged = f"; kernel: {line.text}" if line is not None else ""
    evidence = f"run {crash.run}, {crash.log}: ended by {crash.signal}{where}{logged}"
    cause, fix = _likely(crash, line)
    return finding("run-crashed", "warning", evidence, fix, cause=cause)


_CAUSES = {
    "SIGKILL": (
        "killed from outside: memory limit of a container, a scheduler, or by hand",
        "look for the limit: cat /sys/fs/cgroup/memory.events; sudo dmesg | grep -i oom",
    ),
    "SIGKILL, logged": (
        "the kernel killed it because main memory was full",
        "fewer data loader workers, a smaller batch or offload less; watch: free -h",
    ),
    "SIGILL": (
        "a library was built for a newer processor than this one",
        "reinstall it from source here: "
        "python -m pip install --force-reinstall --no-deps --no-binary PACKAGE PACKAGE",
    ),
    "SIGBUS": (
        "/dev/shm was full, or a file that was mapped was cut short",
        "start the container with --ipc=host or --shm-size=8g; df -h /dev/shm",
    ),
}


def _likely(crash: Crash, line: KernelEvent | None) -> tuple[str, str]:
    """Return cause and next step by signal, stack and library."""
    signal = "SIGKILL, logged" if crash.signal == "SIGKILL" and line is not None else crash.signal
    if signal in _CAUSES:
        return _CAUSES[signal]
    place = " ".join([*crash.frames[:3], (line.library or "") if line else ""])
    extension = _EXTENSIONS.search(place)
    if extension:
        return (
            f"a fault in the extension {extension[0]}, mostly built for another torch",
            "python -m pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps "
            f"{_PACKAGES.get(extension[0], extension[0])}",
        )
    if "nccl" in place:
        return (
            "a fault in NCCL, mostly after another rank had died or two versions were mixed",
            "NCCL_DEBUG=INFO shows the version that is loaded; look at the other ranks' logs first",
        )
    return (
        "a fault in compiled code: an extension built for another version, or bad memory",
        "run it again with python -X faulthandler; other places each time mean memory: memtest86+",
    )


def _crashes(snapshot: Snapshot) -> Iterator[Finding]:
    health = snapshot.health
    if isinstance(health, Missing):
        return
    events = value_or(health.kernel_log, ())
    crash = value_or(health.crash, None)
    if crash is not None:
        yield explain(crash, events)
    yield from _logged(health, skip=crash is not None)


def _logged(health: Health, *, skip: bool) -> Iterator[Finding]:
    """Find the processes that died by the kernel's log, whoever started them."""
    for event in value_or(health.kernel_log, ()):
        program, quoted = event.program or "a process", event.text
        is_once = event.count == 1
        if event.kind == "out-of-memory":
            evidence = (
                f"the kernel killed {program} because memory was full: {quoted}"
                if is_once
                else f"the kernel killed {program} {event.count} times because memory was full: "
                f"{quoted}"
            )
            fix = "find what uses it: ps aux --sort=-rss; fewer workers or a smaller batch"
            yield finding("killed-out-of-memory", "warning", evidence, fix)
        elif event.kind in ("segfault", "illegal-instruction") and not skip:
            where = f" in {event.library}" if event.library else ""
            fault = "a segmentation fault" if event.kind == "segfault" else "an illegal instruction"
            died = "died" if is_once else f"died {event.count} times"
            evidence = f"{program} {died} of {fault}{where}"
            fix = "run it with python -X faulthandler to see where"
            yield finding("process-crashed", "info", evidence, fix)


def _note(snapshot: Snapshot) -> str:
    """Say nothing of runs where none was looked at."""
    health = snapshot.health
    only_log = isinstance(health, Missing) or isinstance(health.crash, Missing)
    return "The kernel logged no crash of a program" if only_log else ""


CHECKS = (
    HealthCheck(
        id="crash",
        title="Nothing crashed: the newest run, and what the kernel logged",
        reads="logs/ of the newest run in runs/, the kernel's log",
        finds=("run-crashed", "killed-out-of-memory", "process-crashed"),
        judge=_crashes,
        facts=("health.kernel_log|health.crash",),
        note=_note,
    ),
)
