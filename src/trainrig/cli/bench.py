"""``trainrig bench``: one family, the cases that were asked for."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Measure one family: matmul, vector, copy, layer or storage.")
@click.argument("family")
@click.option("--dtype", multiple=True, help="fp64 fp32 tf32 bf16 fp16 int8 fp8; may be repeated.")
@click.option(
    "--size",
    multiple=True,
    help="4096, or 4096x1024x8192 (m,k,n); elements; bytes as 256MiB; "
    "layer: batch x sequence, 64x128.",
)
@click.option(
    "--op",
    multiple=True,
    help="vector: scale, add, gelu; copy: h2d, d2h, read, triad ...; "
    "storage: read, write, randread, fsync, tokens; "
    "layer: bert-large, gpt2-medium, t5-large-encoder, t5-large-decoder, llama-7b, "
    "and of BERT's the parts dense, dense-gelu, ffn, attention.",
)
@click.option(
    "--path",
    type=click.Path(path_type=Path),
    help="storage: a folder on the disk to measure; the run's own without it.",
)
@click.option("--device", help="cpu, gpu or cuda:1; every device without it.")
@click.option("--peak", is_flag=True, help="matmul: search for the shape with the highest rate.")
@click.option("--budget", default="60s", show_default=True, help="Time for everything.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder in which the run's folder is made.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the records as one JSON object, last.")
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
    """Measure FAMILY (matmul, vector, copy, layer or storage) and show what came out.

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
