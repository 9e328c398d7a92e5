"""``trainrig bench``: one benchmark, the cases that were asked for."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from trainrig.benchmarks.collective import BENCHMARK as COLLECTIVE
from trainrig.benchmarks.collective import MAX_RANKS
from trainrig.benchmarks.spec import benchmarks
from trainrig.cli.verb import (
    OUT,
    PATH,
    STRICT,
    TIME,
    Names,
    budget,
    json_option,
    option,
    options,
    rows,
    verb,
)

_SPECS = tuple(spec for spec in benchmarks() if spec.options)
_NAMES = tuple(spec.name for spec in _SPECS)


def _help(name: str) -> str:
    """Return the help of an option that differs by benchmark."""
    chosen = [f"{spec.name}: {spec.options[name]}" for spec in _SPECS if spec.options.get(name)]
    return "; ".join(chosen) + "."


_TEXT = f"""Run BENCHMARK and show its records.

\b
trainrig bench matmul
trainrig bench matmul --dtype bf16 --size 4096 --size 8192
trainrig bench matmul --peak --budget 4m
trainrig bench collective --ranks 2,4 --op all_reduce,all_gather --max 16M
trainrig bench numa

\b
{chr(10).join(f"{spec.name + ':':12}{spec.title}" for spec in _SPECS)}

Without options the usual dtypes and sizes are measured.  storage writes
two files without a name, each at most 512 MiB and a fortieth of what is free, and
leaves nothing.
"""


@verb(help=_TEXT)
@click.argument("benchmark", shell_complete=Names(lambda: _NAMES).complete)
@option("--dtype", multiple=True, default_text="the usual ones", help=_help("dtype"))
@option("--size", multiple=True, default_text="the usual ones", help=_help("size"))
@option("--op", multiple=True, default_text="all", help=_help("op"))
@option("--path", type=PATH, default_text="the run's own disk", help=_help("path"))
@option("--device", default_text="every device", help="cpu, gpu or cuda:1.")
@option("--peak", is_flag=True, help=_help("peak"))
@options(
    rows(
        "What ranks exchange",
        ("--ranks,--nproc", "N,…", "all GPUs, or 2", _help("ranks")),
        ("--min", "SIZE", "1K", _help("min")),
        ("--max", "SIZE", "64M by gloo, 1G by nccl", _help("max")),
        ("--backend", "NAME", "nccl with GPUs", _help("backend")),
        ("--peer-access", "WORD", "both", _help("peer-access")),
        ("--timeout", TIME, "60s", _help("timeout")),
    )
)
@budget("60s", "Time limit for all of it: 10s, 4m.")
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
    ranks: str | None,
    min: str | None,  # noqa: A002
    max: str | None,  # noqa: A002
    backend: str | None,
    peer_access: str | None,
    timeout: float | None,
    budget: float,
    out: Path,
    strict: bool,
    as_json: bool,
) -> int:
    """Run one benchmark and show its records; the help text is made from the specs."""
    from trainrig.cli import progress
    from trainrig.runner import bench
    from trainrig.runner import ranks as ranks_of_run
    from trainrig.units import parse_count

    request = bench.BenchRequest(
        benchmark=benchmark,
        dtypes=dtype,
        sizes=size,
        ops=tuple(word for word_list in op for word in word_list.split(",")),
        device=device,
        peak=peak,
        path=path,
        ranks=tuple(
            parse_count(word_list, MAX_RANKS) for word_list in (ranks or "").split(",") if word_list
        ),
        low=min or "",
        high=max or "",
        backend=backend or "",
        peer_access=peer_access or "",
        timeout=timeout,
    )
    rank_place = ranks_of_run.place() if benchmark == COLLECTIVE.name else None
    if rank_place is not None and rank_place.rank:  # the first one keeps the run
        return ranks_of_run.follow_first(rank_place, backend or "gloo")
    result = bench.bench(request, budget=budget, out=out, watch=progress.on_stderr())
    progress.print_end(as_json, partial(bench.summary, result), result.run)
    return result.exit_code(strict=strict)
