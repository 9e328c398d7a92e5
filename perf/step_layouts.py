"""Layouts a second: the step's model over arrays, against the same model one layout at a time.

    python perf/step_layouts.py

Prices a million layouts of GPT-3 175B on 1,024 A100s, in processor time of one core: blocks once
for each unique share (tensor parallel, micro-batch, sequence parallel), the rest as arrays.  Beside
it the same function called once for each of a thousand layouts.  Other predictors that were
published evaluate 71 to 253 layouts a second (Calculon) or 3 to 20 (SimuMax) by the clock of those
who ran them; they cannot be installed from an index, and are not run here.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time

import numpy as np
from _shared import options, say_load, verdict

from trainrig.catalog import find_chip
from trainrig.prediction.rates.from_chip import rates_of_chip
from trainrig.prediction.step import predict_step
from trainrig.workload import named
from trainrig.workload.layout import Layout

MANY = 1_000_000
FEW = 1_000


def layouts(num: int) -> Layout:
    """``num`` layouts of 1,024 devices, all sizes drawn alike."""
    random = np.random.default_rng(0)
    return Layout.of(
        gpus=1024,
        tp=random.choice([1, 2, 4, 8], num),
        pp=random.choice([1, 2, 4, 8, 16], num),
        interleave=random.choice([1, 2, 3], num),
        batch_size=random.choice([1, 2, 4, 8], num),
        grad_accum=random.choice([1, 8, 64, 192], num),
        zero=random.choice([0, 1, 2, 3], num),
        sequence_parallel=random.choice([0, 1], num),
        seq_len=2048,
        recompute="full",
        kernels="fused",
        framework="megatron",
    )


def main() -> None:
    """Both, and their ratio."""
    many_of = FEW if options(str(__doc__)).parse_args().quick else MANY
    say_load()
    chip = find_chip("A100 SXM4 80GB")
    assert chip is not None
    rates, shape = rates_of_chip(chip, link="nvlink", fabric=200e9), named("gpt3-175B")
    many = layouts(many_of)
    predict_step(shape, layouts(FEW), rates)  # what is loaded once
    start = time.process_time()
    together = predict_step(shape, many, rates)
    quick = many_of / (time.process_time() - start)
    start = time.process_time()
    alone = [predict_step(shape, many.at(index), rates).total for index in range(FEW)]
    slow = FEW / (time.process_time() - start)
    np.testing.assert_allclose(together.total[:FEW], alone, rtol=1e-9)
    print(f"arrays       {quick:12,.0f} layouts a second")
    print(f"one by one   {slow:12,.0f} layouts a second")
    told = verdict(quick >= MANY, can_tell=many_of == MANY)
    print(f"ratio {quick / slow:.1f} of one by one (target a million layouts a second: {told})")


if __name__ == "__main__":
    main()
