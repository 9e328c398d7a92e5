"""``trainrig qualify``: the main job."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from trainrig.cli.verb import (
    DETACH,
    OUT,
    RUN,
    STRICT,
    budget,
    json_option,
    option,
    options,
    rows,
    verb,
)


@verb()
@budget("4m", "Time limit for all of it: 5s, 4m, 1h.", group="What is measured")
@options(
    rows(
        "What is measured",
        (
            "--devices",
            "0,2",
            "all",
            "GPUs by nvidia-smi's numbers, as CUDA_VISIBLE_DEVICES has them; cpu: none.",
        ),
        ("--only", "NAMES", "all", "Benchmarks, and links."),
    )
)
@OUT
@option("--resume", **RUN, help="Resume an interrupted run.")
@options(
    rows(
        "Judgement",
        (
            *("--min,least", ["NAME=RATE"], "none"),
            "The least that you accept: bf16=600TFLOPS, memory=3TB/s, link=50GB/s; repeatable.",
        ),
        (
            *("--baseline", RUN, "none"),
            "Judge by this run on the same model of card, a folder or a bundle.",
        ),
    )
)
@DETACH
@STRICT
@json_option("Print the verdict as one JSON object, last.")
def command(
    budget: float,
    devices: str | None,
    only: str | None,
    out: Path,
    resume: Path | None,
    least: tuple[str, ...],
    baseline: Path | None,
    detach: str,
    strict: bool,
    as_json: bool,
) -> int:
    """Inspect this machine, measure it, compare each number with what is claimed and expected.

    \b
    trainrig qualify
    trainrig qualify --budget 15m
    trainrig qualify --devices 0,2 --only matmul,links
    trainrig qualify --min bf16=600TFLOPS --min memory=3TB/s
    trainrig qualify --baseline runs/20270101T000000Z-accepted-qualify-1a2b3c
    trainrig qualify --resume runs/20270101T000000Z-host-qualify-1a2b3c

    Ends in PASS (exit code 0), MEASURED (0: nothing is known to judge it by),
    FAIL (1) or INCOMPLETE (3), a report in the terminal, and report.html in the
    run's folder.
    """
    from trainrig.cli import progress
    from trainrig.runner import session
    from trainrig.runner.expectations import demands_of

    session.check_budget(budget)
    demands = demands_of(least, baseline) if least or baseline else None
    if detach:
        return progress.detach(out, resume, detach, as_json=as_json)
    result = session.qualify(
        budget=budget,
        out=out,
        resume=resume,
        watch=progress.on_stderr(),
        devices=(devices or "").replace(",", " ").split(),
        only=(only or "").replace(",", " ").split(),
        demands=demands,
    )
    progress.print_end(as_json, partial(session.summary, result), result.run)
    return result.exit_code(strict=strict)
