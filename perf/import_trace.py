"""`trainrig import` of a profiler's trace of 200 MB, the whole process, beside json.load of it.

Peer: a process that loads the same file with json.load and does nothing else: what reading it
without streaming takes.  Target: under 20 s of wall time and 1 GB of memory.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

from _shared import middle, options, say_load, verdict

TARGET_S, TARGET_BYTES = 20.0, 1e9
_LOAD = "import json,sys; json.load(open(sys.argv[1]))"


def main() -> None:
    """Write a trace, import it in turns with the peer, print the ratio."""
    arguments = options(__doc__).parse_args()
    say_load()
    size, rounds = (2_000_000, 1) if arguments.quick else (200_000_000, 2)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with trace.open("w") as file:
            num = write_trace(file, size)
        print(f"{num} events, {trace.stat().st_size / 1e6:.0f} MB")
        runs = ["--out", str(Path(folder) / "runs"), "--json"]
        ours = [sys.executable, "-m", "trainrig", "import", str(trace), *runs]
        peer = [sys.executable, "-c", _LOAD, str(trace)]
        found = [(cost_of(ours), cost_of(peer)) for _ in range(rounds)]
    for name, values in zip(("import", "json.load"), zip(*found, strict=True), strict=True):
        peak = max(memory for _, memory in values)
        print(
            f"{name:10s} {middle([wall for wall, _ in values])} wall, {peak / 1e6:.0f} MB at most"
        )
    wall = statistics.median(each[0][0] for each in found)
    other = statistics.median(each[1][0] for each in found)
    memory = max(each[0][1] for each in found)
    met = wall < TARGET_S and memory < TARGET_BYTES
    print(
        f"ratio {wall / other:.1f} of json.load alone; {wall:.1f} s and {memory / 1e6:.0f} MB, "
        f"target under {TARGET_S:.0f} s and {TARGET_BYTES / 1e6:.0f} MB: {verdict(met)}"
    )


def cost_of(command: list[str]) -> tuple[float, float]:
    """Wall seconds and the peak of memory, in bytes, of a command.

    Raises RuntimeError where it fails: a program that dies early is not a fast one.
    """
    start = time.perf_counter()
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"exit code {process.returncode}: {' '.join(command)}")
    return time.perf_counter() - start, used.ru_maxrss * 1024.0


def write_trace(file: TextIO, size: int) -> int:
    """A trace as Kineto writes it: operators, their kernels and a collective; its events."""
    chance, start, written, num = random.Random(0), 1.7e15, 0, 0
    file.write('{"schemaVersion": 1,\n "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}],\n')
    file.write(' "traceEvents": [\n')
    while written < size:
        took = chance.uniform(5.0, 200.0)
        rows = [
            f'  {{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 123, "tid": 123,\n'
            f'    "ts": {start:.3f}, "dur": {took:.3f}, "args": {{"External id": {num},\n'
            '    "Input type": ["c10::BFloat16", "c10::BFloat16"],\n'
            f'    "Input Dims": [[8192, 4096], [4096, 4096]], "Ev Idx": {num}}}}},\n',
            '  {"ph": "X", "cat": "kernel", "name": "ampere_bf16_s16816gemm_bf16_128x256",\n'
            f'    "pid": 0, "tid": 7, "ts": {start + 3.0:.3f}, "dur": {took:.3f}, "args": {{\n'
            f'    "External id": {num}, "device": 0, "stream": 7, "correlation": {num},\n'
            '    "grid": [16, 16, 1], "block": [256, 1, 1], "shared memory": 147456}},\n',
        ]
        if num % 4 == 0:
            rows.append(
                '  {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16",\n'
                f'    "pid": 0, "tid": 20, "ts": {start + 10.0:.3f}, "dur": {0.8 * took:.3f},\n'
                f'    "args": {{"device": 0, "stream": 20, "correlation": {num}}}}},\n'
            )
        written += sum(file.write(row) for row in rows)
        start, num = start + took + 2.0, num + len(rows)
    file.write('  {"ph": "i", "name": "end", "ts": 0}\n ],\n "traceName": "trace.json"}\n')
    return num


if __name__ == "__main__":
    main()
