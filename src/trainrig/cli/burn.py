"""`trainrig burn`: minutes of heavy work, every result compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainrig.cli.verb import DETACH, OUT, PATH, budget, json_option, option, verb

if TYPE_CHECKING:
    from trainrig.runner.burn import Look


@verb()
@budget("20m", "Time limit for all of it: 10m, 2h.")
@option(
    "--devices",
    metavar="0,2",
    default="",
    default_text="all",
    help="GPUs by nvidia-smi's numbers, as CUDA_VISIBLE_DEVICES has them; cpu: processors.",
)
@option(
    "--mode",
    default="all",
    metavar="MODE",
    help="matmul, step, memory, cpu or all.",
)
@option(
    "--dtype",
    multiple=True,
    default_text="what the device is fastest in; on processors fp32, too",
    help="bf16, fp16, tf32, fp32 or fp64; repeatable.",
)
@option(
    "--memory",
    metavar="SIZE",
    default="",
    default_text="nearly all that is free",
    help="Amount of each device's memory to test: 4GiB.",
)
@option(
    "--golden",
    type=PATH,
    metavar="FILE",
    default_text="none",
    help="Compare training steps with its digests; a kind that it lacks is added.",
)
@OUT
@DETACH
@json_option("Print the verdict and the devices as one JSON object, last.")
def command(
    budget: float,
    devices: str,
    mode: str,
    dtype: tuple[str, ...],
    memory: str,
    golden: Path | None,
    out: Path,
    detach: str,
    as_json: bool,
) -> int:
    """Heat every device with work whose every result is compared, and watch its sensors.

    \b
    trainrig burn
    trainrig burn --budget 1h --mode matmul --dtype bf16 --dtype fp64
    trainrig burn --devices 0,2 --mode memory
    trainrig burn --budget 10m --devices cpu
    trainrig burn --golden golden.jsonl --mode step

    matmul: products at full rate, bit for bit; step: training steps that must come
    out the same; memory: patterns over nearly all that is free; cpu: each processor
    by itself, and stress-ng where it is installed.  GPUs burn side by side, then
    the processors.

    Ends in PASS (exit code 0), FAIL (1: something was wrong) or INCOMPLETE (3: not
    all was done, or not all was watched), and report.html in the run's folder.
    """
    from trainrig.cli import progress
    from trainrig.runner import burn
    from trainrig.runner.burn_plan import BurnRequest, memory_of

    request = BurnRequest(
        seconds=budget,
        devices=tuple(devices.replace(",", " ").split()),
        mode=mode,
        dtypes=dtype,
        memory_bytes=memory_of(memory) if memory else None,
        golden=golden,
    )
    if detach:
        burn.plan_burn(request)
        return progress.detach(out, None, detach, as_json=as_json)
    with _live() as look:
        result = burn.burn(request, out=out, watch=progress.on_stderr(), look=look)
    progress.print_end(as_json, partial(burn.summary, result), result.run)
    return result.exit_code()


@contextmanager
def _live() -> Iterator[Look | None]:
    """Return one line a device, drawn anew each second, where stderr is a terminal."""
    import os
    import sys

    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    from trainrig.report.burn_report import burn_table

    console = Console(stderr=True)
    with Live(console=console, refresh_per_second=2, transient=True) as live:
        update: Callable[..., None] = live.update
        yield lambda states: update(burn_table(states))
