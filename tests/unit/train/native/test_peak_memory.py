"""Peak memory of one training after another in one process."""

from __future__ import annotations

import subprocess
import sys

TWICE = """
import torch
from trainrig.train.drivers.common import memory_before, memory_of
from trainrig.process.child import tune_malloc
tune_malloc()
for _ in range(2):
    before = memory_before("cpu")
    held = [torch.ones(1 << 18) for _ in range(64)]
    print(int(memory_of(["cpu"], before)["peak"]))
    del held
"""


def test_what_the_first_freed_does_not_hide_the_seconds_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWICE], check=True, capture_output=True, text=True, timeout=120
    )
    first, second = (int(line) for line in done.stdout.split())
    assert first > 60e6
    assert second > 0.9 * first
