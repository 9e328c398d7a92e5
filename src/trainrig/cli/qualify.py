"""``trainrig qualify``: the main job."""

from __future__ import annotations

from pathlib import Path

from trainrig.cli.verb import DETACH, OUT, PATH, STRICT, json_option, option, verb


@verb()
@option("--budget", group="What is measured", default="4m", help="Time for all: 5s, 4m, 1h.")
@option(
    "--devices",
    group="What is measured",
    metavar="0,2",
    default="",
    default_text="all",
    help="GPUs: by the driver's numbers; cpu: none.",
)
@option(
    "--only",
    group="What is measured",
    metavar="NAMES",
    default="",
    default_text="all",
    help="Benchmarks, and links.",
)
@OUT
@option("--resume", type=PATH, metavar="RUN", help="Resume an interrupted run.")
@option(
    "--min",
    "least",
    group="Judgement",
    multiple=True,
    metavar="NAME=RATE",
    default_text="none",
    help="The least that you accept: bf16=600TFLOPS, memory=3TB/s, link=50GB/s; repeatable.",
)
@option(
    "--baseline",
    group="Judgement",
    type=PATH,
    metavar="RUN",
    default_text="none",
    help="Judge by this run on the same model of card, a folder or a bundle.",
)
@DETACH
@STRICT
@json_option("Print the verdict as one JSON object, last.")
def command(
    budget: str,
    devices: str,
    only: str,
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
    from trainrig.units import parse_duration

    seconds = parse_duration(budget)
    session.check_budget(seconds)
    demands = demands_of(least, baseline) if least or baseline else None
    if detach:
        return progress.detach(out, resume, detach, as_json=as_json)
    result = session.qualify(
        budget=seconds,
        out=out,
        resume=resume,
        watch=progress.on_stderr(),
        devices=devices.replace(",", " ").split(),
        only=only.replace(",", " ").split(),
        demands=demands,
    )
    if as_json:
        progress.print_json(session.summary(result))
    else:
        progress.print_run(result.run)
    return result.exit_code(strict=strict)
