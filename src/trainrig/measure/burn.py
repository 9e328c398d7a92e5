"""Run a burn's checks in one process for each device, and the burn case of a qualification.

    python -m trainrig.measure.burn FOLDER

FOLDER holds plan.json: ``{"device": "cuda:0", "phases": [{"mode", "dtype", "seconds", ...}]}``.
What happens is told by events (`process.events`): ``ready`` with what torch says of the device, for
each phase ``phase`` once it is prepared, ``slice`` about once a second, ``phase_over`` with its
facts, or ``phase_failed`` with a status and a reason; then the next phase begins.  An error of CUDA
stays with its process and ends it.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainrig.benchmarks.burn import CORES, MATMUL, MEMORY, STEP
from trainrig.errors import TrainrigError, UnavailableError
from trainrig.machine.cgroup import memory_left
from trainrig.machine.memory import meminfo_sizes
from trainrig.machine.snapshot import value_or
from trainrig.machine.system_access import ThisMachine
from trainrig.measure.burn_cores import SIZE, Cores
from trainrig.measure.burn_matmul import Products
from trainrig.measure.burn_memory import CHUNK, MemoryPatterns, usual_bytes
from trainrig.measure.burn_slice import BurnCheck
from trainrig.measure.burn_step import DeterministicSteps
from trainrig.measure.timing import Samples, SelfTimed, Settings, Unsupported, from_another_loop
from trainrig.measure.worker_main import introduce
from trainrig.process.child import device_fault, first_line, is_out_of_memory, run_rank
from trainrig.process.events import Events
from trainrig.record import Case, Status

Phase = Mapping[str, Any]
"""``mode``, ``dtype``, ``seconds``; ``shape``, ``memory_bytes``, ``chunk``, ``sizes``, ``size``
where the usual ones are not meant."""
PLAN = "plan.json"
_SLICE_S = 1.0
_LEAST_SHARE = 0.5
"""Smallest share of a phase's seconds spent burning, however long its preparation takes."""


def make_check(phase: Phase, device: str) -> BurnCheck:
    """Prepare the check of a phase.  Raises Unsupported, UnavailableError: not on this device."""
    mode, dtype = str(phase["mode"]), phase.get("dtype")
    if mode == MATMUL:
        shape = phase.get("shape")
        return Products(str(dtype), device, None if shape is None else tuple(shape))
    if mode == STEP:
        return DeterministicSteps(str(dtype), device, sizes=str(phase.get("sizes", "")))
    if mode == MEMORY:
        num_bytes = phase.get("memory_bytes") or usual_bytes(device, _free_bytes(phase, device))
        return MemoryPatterns(device, int(num_bytes), chunk=int(phase.get("chunk", CHUNK)))
    if mode == CORES:
        return Cores(size=int(phase.get("size", SIZE)))
    raise Unsupported(f"no such mode: {mode}")


def _free_bytes(phase: Phase, device: str) -> int:
    """Return the free bytes of a GPU; of the host, at most the parent's reading."""
    import torch

    if device == "cpu":
        host = ThisMachine()
        sizes = value_or(meminfo_sizes(host.read("/proc/meminfo")), {})
        limits = [sizes.get("MemAvailable"), value_or(memory_left(host), None)]
        return min([int(phase["free_bytes"]), *(size for size in limits if size is not None)])
    return int(torch.cuda.mem_get_info(device)[0])


# ---- the burn's own process


def burn(folder: Path, events: Events) -> None:
    """Carry out the plan in ``folder``: each phase ends when its time and those before are over."""
    until = time.monotonic()
    plan = json.loads((folder / PLAN).read_text())
    # cuBLAS adds in one order only with a workspace of its own; it is read when the first
    # product is made.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = str(plan["device"])
    events.emit("ready", **introduce(device), **_software(device))
    for number, phase in enumerate(plan["phases"]):
        events.set_position(step=number, part=str(phase["mode"]))
        until += float(phase["seconds"])
        _run_phase(number, phase, device, until, events)


def _software(device: str) -> dict[str, Any]:
    """Return the software versions on which results may depend bit for bit."""
    import torch

    return {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if device != "cpu" else None,
        "capability": torch.backends.cpu.get_cpu_capability() if device == "cpu" else None,
    }


def _run_phase(number: int, phase: Phase, device: str, until: float, events: Events) -> None:
    import torch

    threads = torch.get_num_threads()
    try:
        _work(number, phase, device, until, events)
    except TrainrigError as error:
        status = Status.SKIPPED if isinstance(error, Unsupported) else Status.FAILED
        status = Status.OOM if isinstance(error, UnavailableError) else status
        events.emit("phase_failed", number=number, status=status, reason=error.message)
    except (RuntimeError, MemoryError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        if device_fault(reason):
            raise
        status = Status.OOM if is_out_of_memory(error) else Status.FAILED
        events.emit("phase_failed", number=number, status=status, reason=reason)
    finally:
        gc.collect()
        torch.set_num_threads(threads)
        reset_torch()


def _work(number: int, phase: Phase, device: str, until: float, events: Events) -> None:
    """Prepare one check, run its slices and report its facts; its memory is freed on return."""
    began = time.monotonic()
    check = make_check(phase, device)
    now = time.monotonic()
    events.emit("phase", number=number, prepared_s=now - began)
    end = max(until, now + _LEAST_SHARE * float(phase["seconds"]))
    if isinstance(check, MemoryPatterns):
        check.seconds = end - now
    while True:
        slice_result = check.run(min(_SLICE_S, max(end - time.monotonic(), 0.0)))
        events.emit("slice", number=number, clock=time.perf_counter(), **asdict(slice_result))
        if time.monotonic() >= end:
            break
    events.emit("slice", number=number, **asdict(check.finish()))
    digests = {}
    if isinstance(check, DeterministicSteps):
        digests = {"names": check.names, "steps": check.digests()}
    events.emit("phase_over", number=number, facts=check.facts(), **digests)


def reset_torch() -> None:
    """Free a phase's GPU memory and restore torch's settings."""
    import torch

    torch.use_deterministic_algorithms(False)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# ---- a case of a qualification


def prepare(case: Case, device: str) -> SelfTimed:
    """Return a case that multiplies matrices for some seconds and compares every product."""
    shape = tuple(int(str(case[axis])) for axis in "mkn")
    products = Products(str(case["dtype"]), device, (shape[0], shape[1], shape[2]))
    error_texts: list[str] = []
    checked = [0]

    def sample(settings: Settings) -> Samples:
        times: list[float] = []
        end = time.perf_counter() + settings.max_time
        while time.perf_counter() < end or not times:
            slice_result = products.run(_SLICE_S / 4.0)
            times.append(slice_result.seconds / max(slice_result.num_checked, 1))
            checked[0] += slice_result.num_checked
            if slice_result.num_errors:
                error_texts.extend(slice_result.errors)
                break
        return from_another_loop(times, 1, settings.target, {"checked": checked[0]})

    return SelfTimed(sample=sample, wrong=lambda: "; ".join(error_texts[:2]) or None)


def main(before: Callable[[], object] = lambda: None) -> None:
    """Run the burn's process; ``before`` is called first."""
    before()
    run_rank(burn)


if __name__ == "__main__":
    main()
