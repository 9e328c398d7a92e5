"""Exposed communication and pipeline bubbles that are known beforehand, as a profiled step shows.

    python perf/step_breakdown.py

Four ranks whose work is sleep, which needs no processor: any machine carries them, and what each
waits for is known.  Two of them sum a tensor at the end of a step, to which rank 1 comes 20 ms
late: what rank 0 shows as exposed beyond a twin of the step, in which nobody is late, must be
that much (within 3 ms).  The twin has what a collective takes and the machine's own unevenness,
and has its turn in the same round.  Stages of a pipeline sleep 100 ms forward and 200 ms backward
for each of 8 micro-batches: the bubble must be (p - 1)/(v m) of a rank's own work (within 0.05;
Narayanan et al. 2021).  Medians of five rounds, the subjects in turns.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _shared import in_turns, middle, options, say_load, verdict

from trainrig.process.supervisor import Command, launch
from trainrig.record import Status

RANKS, MICROS, ROUNDS = 4, 8, 5
LATE = 0.02
NAPS = {"full": (0.1, 0.2), "quick": (0.004, 0.008)}
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 2}


def late_step(pair: Any, late: float) -> Callable[[], None]:
    """Ranks 0 and 1 work 20 ms, rank 1 ``late`` seconds more, then both sum a tensor."""
    import torch
    import torch.distributed as dist

    tensor, rank = torch.zeros(1000), dist.get_rank()

    def step() -> None:
        if rank > 1:
            return
        time.sleep(0.02 + late * rank)
        dist.all_reduce(tensor, group=pair)

    return step


def piped_step(schedule: str, naps: tuple[float, float]) -> Callable[[], None]:
    """A pipeline whose stages sleep; at the end all sum one number, as a norm."""
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
    )

    class Nap(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, _weight: Tensor, share: float) -> Tensor:
            ctx.share = share
            time.sleep(naps[0] * share)
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
            time.sleep(naps[1] * ctx.share)
            return grads[0], torch.zeros(1), None

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return Nap.apply(x, self.weight, 1.0 / SCHEDULES[schedule])

    turns, rank = SCHEDULES[schedule], dist.get_rank()
    numbers = [rank + RANKS * turn for turn in range(turns)]
    total = RANKS * turns
    stages = [PipelineStage(Stage(), each, total, torch.device("cpu")) for each in numbers]
    how: dict[str, Any] = {"loss_fn": lambda out, _: out.mean(), "scale_grads": False}
    run: Any
    if turns > 1:
        run = ScheduleInterleaved1F1B(stages, MICROS, **how)
    else:
        kind = ScheduleGPipe if schedule == "gpipe" else Schedule1F1B
        run = kind(stages[0], MICROS, **how)
    x, number = torch.randn(MICROS, 4), torch.zeros(1)
    given = (x,) if 0 in numbers else ()
    wanted = {"target": x, "losses": []} if total - 1 in numbers else {}

    def step() -> None:
        run.step(*given, **wanted)
        dist.all_reduce(number)

    return step


def rank_main(folder: Path, rounds: int, naps: tuple[float, float]) -> None:
    """One of the ranks: all subjects in turns."""
    import torch
    import torch.distributed as dist

    from trainrig.process.child import die_with_parent, leave
    from trainrig.process.events import Events
    from trainrig.train.native.breakdown import profiled

    die_with_parent()
    torch.set_num_threads(1)
    events = Events(folder, int(os.environ["RANK"]))
    dist.init_process_group("gloo")

    def subject(step: Callable[[], None], *, piped: bool) -> Callable[[], dict[str, float]]:
        def run() -> dict[str, float]:
            dist.barrier()
            events.emit("alive")
            # The first step begins when each rank's profiler stands, which is not at once.
            recorded = profiled(step, piped=piped, steps=1 if piped else 8)
            steps = recorded["steps"][0 if piped else 1 :]
            found = {
                name: statistics.median(each[name] for each in steps)
                for name in ("own_s", "bubble_s", "communication_s")
            }
            every: list[Any] = [None] * RANKS
            dist.all_gather_object(every, found)
            return {name: statistics.mean(each[name] for each in every) for name in found} | {
                "first_communication_s": every[0]["communication_s"]
            }

        return run

    pair = dist.new_group([0, 1])
    subjects = {"in time": subject(late_step(pair, 0.0), piped=False)}
    subjects["late"] = subject(late_step(pair, LATE), piped=False)
    for schedule in SCHEDULES:
        subjects[schedule] = subject(piped_step(schedule, naps), piped=True)
    found = in_turns(rounds, subjects)
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    events.emit("done")
    leave(0)


def main() -> None:
    """Start the ranks, and print what they found beside what is known."""
    if "RANK" in os.environ:
        rank_main(Path(sys.argv[1]), int(sys.argv[2]), (float(sys.argv[3]), float(sys.argv[4])))
        return
    quick = options(str(__doc__)).parse_args().quick
    rounds, naps = (1, NAPS["quick"]) if quick else (ROUNDS, NAPS["full"])
    say_load()
    with tempfile.TemporaryDirectory() as name:
        argv = (sys.executable, __file__, name, str(rounds), *map(str, naps))
        path = {"PYTHONPATH": str(Path(__file__).parent)}
        ended = launch(Command(argv=argv, ranks=RANKS, env=path), Path(name), stall_timeout=120.0)
        if ended.status is not Status.OK:
            raise RuntimeError(ended.reason)
        found = json.loads((Path(name) / "found.json").read_text())
    late, twin = (
        [each["first_communication_s"] for each in found[subject]]
        for subject in ("late", "in time")
    )
    beyond = [a - b for a, b in zip(late, twin, strict=True)]
    met = verdict(abs(statistics.median(beyond) - LATE) <= 0.003, can_tell=not quick)
    print(f"a sleep of {LATE * 1e3:.0f} ms in a collective, exposed beyond the twin's ({met}):")
    for name, values in (("beyond", beyond), ("late", late), ("twin", twin)):
        print(f"  {name:<7} {middle(values)}")
    ratio = 1.0
    for schedule, turns in SCHEDULES.items():
        shares = [each["bubble_s"] / each["own_s"] for each in found[schedule]]
        share, formula = statistics.median(shares), (RANKS - 1) / (turns * MICROS)
        met = verdict(abs(share - formula) <= 0.05, can_tell=not quick)
        print(f"bubble of {schedule}: {share:.3f} of the work, formula {formula:.3f} ({met})")
        ratio = max(ratio, share / formula)
    print(f"ratio {ratio:.2f} of (p - 1)/(v m), the bubble furthest above it")


if __name__ == "__main__":
    main()
