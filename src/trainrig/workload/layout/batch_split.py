"""A step's samples by two of three numbers: global batch = micro-batch · accumulation · ranks.

The three options mean the same in every verb: ``--global-batch`` is samples of an optimizer step
over all GPUs, ``--micro-batch`` samples that one data-parallel rank processes at once, and
``--grad-accum`` micro-batches of a step.
"""

from __future__ import annotations

from trainrig.errors import UsageError
from trainrig.units import parse_length


def split_batch(
    global_batch: int, micro: int | None, accum: int | None, ranks: int
) -> tuple[int, int]:
    """Return the micro-batch and the accumulation steps of a global batch.

    Args:
        global_batch: Samples of an optimizer step over all GPUs.
        micro: Samples at once on a rank; None: 1, or what the accumulation leaves.
        accum: Micro-batches of a step; None: as many as the global batch takes.
        ranks: Data-parallel ranks.

    Raises:
        UsageError: The numbers contradict each other.
    """
    if global_batch < 1:
        raise UsageError(f"--global-batch {global_batch}", "a whole number from 1")
    stated = {"--micro-batch": micro, "--grad-accum": accum}
    words = [f"{name} {value}" for name, value in stated.items() if value is not None]
    shared = ranks * (micro or 1) * (accum or 1)
    is_all = micro is not None and accum is not None
    if global_batch % shared or (is_all and global_batch != shared):
        parts = " × ".join([*words, f"{ranks} data-parallel ranks" if ranks > 1 else "1 rank"])
        wanted = "" if is_all else " a multiple of"
        raise UsageError(
            f"--global-batch {global_batch} is not{wanted} {parts}",
            f"as --global-batch {max(1, round(global_batch / shared)) * shared}"
            + ("" if not is_all else ", or leave one of them out"),
        )
    share = global_batch // shared
    if micro is None and accum is not None:
        return share, accum
    return micro or 1, accum or share


def samples_of(global_batch: int | str, seq_len: int) -> int:
    """Return the samples of a global batch that may be said in tokens: ``4M``."""
    if isinstance(global_batch, int):
        return global_batch
    tokens = parse_length(global_batch, "global-batch")
    samples = round(tokens / seq_len)
    if samples < 1:
        raise UsageError(
            f"--global-batch {global_batch} is {tokens} tokens, less than a sample of {seq_len}",
            "samples as a plain number: --global-batch 512",
        )
    return samples
