"""The peer process: times cases with torch.utils.benchmark, one JSON line for each on stdin.

It prepares a case with the same function as trainrig's workers, so that both time
the same call on the same operands with the same number of threads.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time

import torch
from torch.utils.benchmark import Timer


def main() -> None:
    """Answer until stdin closes."""
    device, min_run_time = sys.argv[1], float(sys.argv[2])
    for line in sys.stdin:
        start = time.perf_counter()
        request = json.loads(line)
        half = importlib.import_module(request["module"])
        prepared = half.prepare(request["case"], device)
        timer = Timer(
            "call()", globals={"call": prepared.call}, num_threads=torch.get_num_threads()
        )
        found = timer.blocked_autorange(min_run_time=min_run_time)
        answer = {"median_s": found.median, "iqr_s": found.iqr, "count": len(found.times)}
        print(json.dumps({**answer, "seconds": time.perf_counter() - start}), flush=True)
        del prepared, timer
    os._exit(0)


if __name__ == "__main__":
    main()
