"""What a burn's sampler costs: products of this process with it reading once a second, and without.

The sampler is the burn's own (`measure.noise.Telemetry`, in detail: load, clocks, heat and energy
of the processors, and of GPUs errors and joules by a child), in a thread of this process, which is
worse than in a burn: there it is in the parent.  Turns of about three seconds.  Also printed:
processor time of one row.  Peer: the same products without it.  Target: under 1 %.
"""

from __future__ import annotations

import threading
import time
from statistics import median

from _shared import in_turns, options, say_load

from trainrig.measure.burn_matmul import Products
from trainrig.measure.noise import Telemetry

PERIOD_S = 1.0


def main() -> None:
    """Print a row's processor time and the ratio of both rates."""
    arguments = options(__doc__).parse_args()
    rounds, seconds, shape = (2, 0.05, (256, 256, 256)) if arguments.quick else (12, 3.0, None)
    say_load()
    telemetry = Telemetry(in_detail=True)
    cost = row_cost(telemetry)
    products = Products("fp32", "cpu", shape)
    products.run(seconds)
    products.run(seconds)
    found = in_turns(
        rounds,
        {
            "sampled": lambda: sampled(products, telemetry, seconds),
            "alone": lambda: rate(products, seconds),
        },
    )
    pairs = [one / other for one, other in zip(found["sampled"], found["alone"], strict=True)]
    print(f"one row takes {cost * 1e3:.2f} ms of processor time, {cost / PERIOD_S:.3%} of one core")
    print(f"ratio {median(pairs):.4f} of the rate with the sampler to without (target 0.99)")
    telemetry.close()


def row_cost(telemetry: Telemetry) -> float:
    """Processor seconds of one row."""
    count, start = 200, time.process_time()
    for _ in range(count):
        telemetry.row()
    return (time.process_time() - start) / count


def sampled(products: Products, telemetry: Telemetry, seconds: float) -> float:
    """FLOP/s while a thread reads the sensors."""
    over = threading.Event()

    def sample() -> None:
        while not over.wait(PERIOD_S):
            telemetry.row()

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        return rate(products, seconds)
    finally:
        over.set()
        thread.join()


def rate(products: Products, seconds: float) -> float:
    """FLOP/s of one turn."""
    done = products.run(seconds)
    return done.work / done.seconds


if __name__ == "__main__":
    main()
