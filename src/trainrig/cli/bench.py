"""``trainrig bench``: one family, the cases that were asked for."""

from __future__ import annotations

from pathlib import Path

import click

from trainrig.cli.verb import OUT, PATH, completes, json_option, option, verb


def _families() -> tuple[str, ...]:
    from trainrig.measure.family import FAMILIES

    return tuple(name for name in FAMILIES if name != "step")


@verb("Run one benchmark: matmul, vector, copy, layer or storage.")
@click.argument("family", shell_complete=completes(_families))
@option(
    "--dtype",
    multiple=True,
    default_text="the usual ones",
    help="fp64 fp32 tf32 bf16 fp16 int8 fp8; may be repeated.",
)
@option(
    "--size",
    multiple=True,
    default_text="the usual ones",
    help="4096, or 4096x1024x8192 (m,k,n); elements; bytes as 256MiB; "
    "layer: batch x sequence, 64x128.",
)
@option(
    "--op",
    multiple=True,
    default_text="all",
    help="vector: scale, add, gelu; copy: h2d, d2h, read, triad ...; "
    "storage: read, write, randread, fsync, tokens; "
    "layer: bert-large, gpt2-medium, t5-large-encoder, t5-large-decoder, llama-7b, "
    "and of BERT's the parts dense, dense-gelu, ffn, attention.",
)
@option(
    "--path",
    type=PATH,
    default_text="the run's own disk",
    help="storage: a folder on the disk to measure.",
)
@option("--device", default_text="every device", help="cpu, gpu or cuda:1.")
@option("--peak", is_flag=True, help="matmul: search for the shape with the highest rate.")
@option("--budget", default="60s", help="Time for everything.")
@OUT
@json_option("Print the records as one JSON object, last.")
def command(
    family: str,
    dtype: tuple[str, ...],
    size: tuple[str, ...],
    op: tuple[str, ...],
    path: Path | None,
    device: str | None,
    peak: bool,
    budget: str,
    out: Path,
    as_json: bool,
) -> int:
    """Run the benchmark FAMILY (matmul, vector, copy, layer or storage) and show its records.

    \b
    trainrig bench matmul
    trainrig bench matmul --dtype bf16 --size 4096 --size 8192
    trainrig bench matmul --peak --budget 4m

    Without options the usual dtypes and sizes are measured.  storage writes one file
    without a name, at most 1 GiB and a twentieth of what is free, and leaves nothing.
    """
    from trainrig.cli import progress
    from trainrig.runner import bench, session
    from trainrig.units import parse_duration

    request = bench.BenchRequest(
        family=family, dtypes=dtype, sizes=size, ops=op, device=device, peak=peak, path=path
    )
    result = bench.bench(
        request, budget=parse_duration(budget), out=out, watch=progress.on_stderr()
    )
    if as_json:
        progress.print_json(bench.summary(result))
    else:
        progress.print_run(result.run)
    return session.exit_code(result.verdict.outcome, result.interrupted)
