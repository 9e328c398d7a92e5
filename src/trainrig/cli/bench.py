"""``trainrig bench``: one benchmark, the cases that were asked for."""

from __future__ import annotations

from pathlib import Path

import click

from trainrig.benchmarks.spec import benchmarks
from trainrig.cli.verb import OUT, PATH, STRICT, Names, json_option, option, verb

_SPECS = tuple(spec for spec in benchmarks() if spec.options)
_NAMES = tuple(spec.name for spec in _SPECS)


def _help(name: str) -> str:
    """What an option chooses, benchmark by benchmark."""
    chosen = [f"{spec.name}: {spec.options[name]}" for spec in _SPECS if spec.options.get(name)]
    return "; ".join(chosen) + "."


_TEXT = f"""Run BENCHMARK and show its records.

\b
trainrig bench matmul
trainrig bench matmul --dtype bf16 --size 4096 --size 8192
trainrig bench matmul --peak --budget 4m

\b
{chr(10).join(f"{spec.name + ':':10}{spec.title}" for spec in _SPECS)}

Without options the usual dtypes and sizes are measured.  storage writes one file
without a name, at most 1 GiB and a twentieth of what is free, and leaves nothing.
"""


@verb(help=_TEXT)
@click.argument("benchmark", shell_complete=Names(lambda: _NAMES).complete)
@option("--dtype", multiple=True, default_text="the usual ones", help=_help("dtype"))
@option("--size", multiple=True, default_text="the usual ones", help=_help("size"))
@option("--op", multiple=True, default_text="all", help=_help("op"))
@option("--path", type=PATH, default_text="the run's own disk", help=_help("path"))
@option("--device", default_text="every device", help="cpu, gpu or cuda:1.")
@option("--peak", is_flag=True, help=_help("peak"))
@option("--budget", default="60s", help="Time for everything.")
@OUT
@STRICT
@json_option("Print the records as one JSON object, last.")
def command(
    benchmark: str,
    dtype: tuple[str, ...],
    size: tuple[str, ...],
    op: tuple[str, ...],
    path: Path | None,
    device: str | None,
    peak: bool,
    budget: str,
    out: Path,
    strict: bool,
    as_json: bool,
) -> int:
    """Run one benchmark and show its records; the help text is made from the specs."""
    from trainrig.cli import progress
    from trainrig.runner import bench
    from trainrig.units import parse_duration

    request = bench.BenchRequest(
        benchmark=benchmark, dtypes=dtype, sizes=size, ops=op, device=device, peak=peak, path=path
    )
    result = bench.bench(
        request, budget=parse_duration(budget), out=out, watch=progress.on_stderr()
    )
    if as_json:
        progress.print_json(bench.summary(result))
    else:
        progress.print_run(result.run)
    return result.exit_code(strict=strict)
