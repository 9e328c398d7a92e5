"""The worker's side: read a case, check the answer, time it, write one reply line.

Started as ``python -m trainrig.measure.worker_main DEVICE``.  Requests and replies are
JSON lines on stdin and on a private copy of stdout; whatever libraries print
goes to stderr, which is the worker's log.  The worker dies with its parent.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, TextIO

from trainrig.errors import TrainrigError
from trainrig.machine.cgroup import cpu_quota
from trainrig.machine.memory import NODES, has_several_nodes
from trainrig.machine.parse import cpu_numbers, integer
from trainrig.machine.snapshot import Missing, if_known, value_or
from trainrig.machine.system_access import ThisMachine
from trainrig.measure import disk_activity, noise
from trainrig.measure.clock import Clock, clock_for
from trainrig.measure.noise import Watched
from trainrig.measure.timing import Prepared, Samples, SelfTimed, Settings, Unsupported, sample
from trainrig.process.child import die_with_parent, first_line, is_out_of_memory, leave
from trainrig.process.events import event_line
from trainrig.record import TOLD_SHARE, WRONG_ANSWER, Status


def main() -> None:
    """Serve cases of the benchmarks that requests name, until stdin closes."""
    device = sys.argv[1]
    replies = _take_stdout()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _emit(replies, "ready", **introduce(device))
    # No garbage collection while a case is timed; between cases it need not look at torch.
    gc.collect()
    gc.freeze()
    gc.disable()

    def wait_for_word() -> None:
        _emit(replies, "holding")
        sys.stdin.readline()

    for line in sys.stdin:
        request = json.loads(line)
        hold = wait_for_word if request.get("hold") else _go_on
        _emit(replies, "reply", **run_case(request, device, hold))
    leave()  # an interpreter's shutdown with live CUDA or OpenMP threads is where crashes hide


def _go_on() -> None:
    """Do nothing: a case that waits for no other between preparing and timing."""


def run_case(
    request: dict[str, Any], device: str, hold: Callable[[], None] = _go_on
) -> dict[str, Any]:
    """Return one reply for one request; every failure of the case itself becomes a status."""
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    start = time.perf_counter()
    reply: dict[str, Any] = _classify(lambda: measure_case(request, device, hold))
    return {
        "id": request.get("id"),
        **reply,
        "started": started,
        "duration": time.perf_counter() - start,
        "clock": (start, time.perf_counter()),
    }


def measure_case(request: dict[str, Any], device: str, hold: Callable[[], None]) -> dict[str, Any]:
    """Prepare a case, check its answer, time it, check again."""
    clock = clock_for(device)
    prepared = prepare(request, device)
    wrong = prepared.wrong()
    if wrong is not None:
        return {"status": Status.FAILED, "reason": f"{WRONG_ANSWER} before timing: {wrong}"}
    hold()
    with (disk_activity if disk_activity.is_disk(device) else noise).watch(device) as watched:
        samples = _sample(clock, prepared, Settings(**request["settings"]), watched)
    wrong = prepared.wrong()  # again: a device may only fail when it is warm
    if wrong is not None:
        return {"status": Status.FAILED, "reason": f"{WRONG_ANSWER} after timing: {wrong}"}
    return {
        "status": Status.OK,
        "samples": samples.times,
        "stop": samples.stop,
        "conditions": {
            "clock": clock.name,
            **noise.known({"numa_node": bind_to_node(device)} if device.startswith("cuda") else {}),
            "calls_per_sample": samples.calls_per_sample,
            **watched.conditions,
            **samples.conditions,
        },
        "disturbed": watched.disturbed,
    }


def prepare(request: dict[str, Any], device: str) -> Prepared | SelfTimed:
    """Prepare the request's case with the measuring module that it names."""
    half = importlib.import_module(request["module"])
    prepared: Prepared | SelfTimed = half.prepare(request["case"], device)
    return prepared


def _sample(
    clock: Clock, prepared: Prepared | SelfTimed, settings: Settings, watched: Watched
) -> Samples:
    if isinstance(prepared, SelfTimed):
        return prepared.sample(settings)
    samples = sample(clock, prepared.call, settings, watched.is_quiet)
    watched.quiet_share = samples.quiet_share if samples.quiet_share < 1.0 else None
    if samples.accounted_share is not None:
        watched.conditions[TOLD_SHARE] = samples.accounted_share
    watched.keep_busy = noise.queue_more(prepared.call, samples.median)
    return replace(samples, conditions=prepared.conditions)


def _classify(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Turn the ways in which a case can fail into a status and a reason."""
    try:
        return measure()
    except Unsupported as error:
        return {"status": Status.SKIPPED, "reason": error.message}
    except TrainrigError as error:
        return {"status": Status.FAILED, "reason": error.message}
    except Exception as error:  # noqa: BLE001 - the edge: torch raises nearly everything
        status = Status.OOM if is_out_of_memory(error) else Status.FAILED
        return {"status": status, "reason": f"{type(error).__name__}: {first_line(error)}"}
    finally:
        gc.collect()  # a failed case's frames hold its buffers
        _free_gpu_memory()


def _free_gpu_memory() -> None:
    torch = sys.modules.get("torch")
    with contextlib.suppress(RuntimeError):
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()


def introduce(device: str) -> dict[str, Any]:
    """Describe this worker's device as torch names it, and make its GPU the current one.

    machine.json has the rest.
    """
    if disk_activity.is_disk(device):
        return {"folder": disk_activity.folder_of(device)}
    os.environ.pop("NVIDIA_TF32_OVERRIDE", None)  # it would round fp32 products, too
    if device == "cpu" and has_several_nodes(ThisMachine()):
        # A thread that moves to another node leaves its part of the operands behind.
        os.environ.setdefault("OMP_PROC_BIND", "true")
    import torch

    # torch takes a thread for each processor that it sees, also where it may use two of sixty.
    if isinstance(quota := cpu_quota(ThisMachine()), float):
        torch.set_num_threads(max(1, min(torch.get_num_threads(), int(quota))))
    about: dict[str, Any] = {"torch": torch.__version__}
    if device != "cpu":
        about["numa_node"] = value_or(bind_to_node(device), None)
        torch.cuda.set_device(device)  # else events lie in the streams of GPU 0, which are empty
        about["num_gpus"] = torch.cuda.device_count()
        about["name"] = torch.cuda.get_device_name(device)
        about["uuid"] = noise.gpu_uuid(device)
        about["compute_capability"] = _capability(device)
        about["memory_bytes"] = torch.cuda.mem_get_info(device)[0]
        torch.ones(1, device=device).add_(1)  # creates the context, so that no case pays for it
    return {**about, "threads": torch.get_num_threads()}


def _capability(device: str) -> str | None:
    """NVIDIA's compute capability, ``8.9``; AMD's numbers say something else."""
    import torch

    if torch.version.hip is not None:
        return None
    return ".".join(map(str, torch.cuda.get_device_capability(device)))


@cache
def bind_to_node(device: str) -> int | Missing:
    """Bind this process to the GPU's NUMA node and return the node's number.

    Of two sockets one is nearer: unbound, a link's rate depends on where the worker started.
    """
    import torch

    gpu, host = torch.cuda.get_device_properties(device), ThisMachine()
    if not hasattr(gpu, "pci_bus_id"):
        return Missing("torch does not say where the GPU is")
    address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
    node = integer(host.read(f"/sys/bus/pci/devices/{address}/numa_node"), "node")
    cpu_list = if_known(lambda number: host.read(f"{NODES}/node{number}/cpulist"), node)
    cpus = if_known(cpu_numbers, cpu_list)
    own_cpus = if_known(lambda found: found & os.sched_getaffinity(0), cpus)
    if isinstance(own_cpus, Missing) or not own_cpus:
        return own_cpus or Missing("none of the processors beside the GPU is this process's")
    os.sched_setaffinity(0, own_cpus)
    torch.set_num_threads(min(torch.get_num_threads(), len(own_cpus)))
    return node


def _take_stdout() -> TextIO:
    """Keep stdout for replies and send what anybody prints to stderr."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return private


def _emit(replies: TextIO, event: str, **content: Any) -> None:
    replies.write(event_line(event, **content).decode())
    replies.flush()


if __name__ == "__main__":
    main()
