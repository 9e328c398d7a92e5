"""The layout of a training that trainrig runs: from what a file or a case says to a `Layout`.

One translation for all that ask what such a training takes: the search for a batch size, what is
predicted before it is trained, the size of the step that a qualification trains.  Our own engine
computes with narrow weights of fp32 masters, in blocks whose norms and activations are single
kernels and with a loss in chunks, on several ranks as on one; what another project trains is
autocast, with the model's family as it is.
"""

from __future__ import annotations

from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape
from trainrig.workload.span_corruption import written_tokens


def training_layout(
    shape: ModelShape,
    *,
    batch_size: int,
    seq_len: int,
    precision: str,
    grad_accum: int = 1,
    recompute: str = "none",
    compiled: bool = False,
    optimizer: str = "adamw-fused",
    native: bool = True,
    nproc: int = 1,
    zero: int = 0,
    shard_size: int = 0,
    offload: str = "none",
) -> Layout:
    """How ``nproc`` data-parallel ranks train ``shape``; ``native``: by our own engine."""
    sharded = nproc > 1 and zero >= 2
    several = "fsdp" if sharded else "ddp"
    return Layout(
        gpus=nproc,
        batch_size=batch_size,
        grad_accum=grad_accum,
        zero=zero,
        shard_size=shard_size,
        seq_len=seq_len,
        target_seq_len=written_tokens(shape, seq_len),
        precision=precision,
        recompute=recompute,
        kernels="compiled" if compiled else "flash+fused" if native and nproc > 1 else "flash",
        engine="plain" if native and nproc == 1 else several,
        optimizer=optimizer,
        offload=offload,
        states="masters" if native and not sharded else "auto",
        dropout="no",
    )
