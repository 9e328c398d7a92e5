"""What the words in a table's cells mean, and what is presumed where they are blank."""

from __future__ import annotations

from collections.abc import Mapping

from trainrig.catalog import Chip
from trainrig.errors import UsageError
from trainrig.workload.layout import KERNELS, PRECISIONS, RECOMPUTE

Row = Mapping[str, str]

_ENGINES = (
    # The first that the framework's name contains, so the most particular first.
    ("megatron", "megatron"),
    ("fsdp", "fsdp"),
    ("torchtitan", "fsdp"),
    ("pax", "fsdp"),
    ("jax", "fsdp"),
    ("nemo", "megatron"),
    ("deepspeed", "deepspeed"),
)


class Unstated:
    """Names of the cells that a default stands for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add(self, name: str) -> None:
        self.names.append(name)


def _word(row: Row, name: str) -> str:
    return (row.get(name) or "").strip().lower()


def engine_of(row: Row, sizes: Mapping[str, int]) -> str:
    """From the framework's name; where it says nothing, from how the model is split."""
    framework = _word(row, "framework")
    named = next((engine for word, engine in _ENGINES if word in framework), None)
    if named == "deepspeed" and (sizes["tp"] > 1 or sizes["pp"] > 1):
        return "megatron"
    if named == "fsdp" and sizes["zero"] == 0:
        named = "ddp"
    if named:
        return named
    if sizes["tp"] > 1 or sizes["pp"] > 1:
        return "megatron"
    if sizes["zero"] == 3:
        return "fsdp"
    if sizes["zero"] > 0:
        return "deepspeed"
    return "ddp" if sizes["gpus"] > 1 else "plain"


def precision_of(row: Row) -> str:
    """One of PRECISIONS; microscaled fp8 is timed as fp8."""
    word = {"mxfp8": "fp8", "half": "fp16", "float32": "fp32", "bfloat16": "bf16"}.get(
        _word(row, "precision"), _word(row, "precision")
    )
    if word in PRECISIONS:
        return word
    if not word:
        raise UsageError("precision: not stated")
    raise UsageError(f"precision {word[:40]!r}: one of {', '.join(PRECISIONS)}")


def recompute_of(row: Row, missing: Unstated) -> str:
    """One of RECOMPUTE; not stated: none."""
    return _choice(row, "recompute", RECOMPUTE, "none", missing)


def kernels_of(row: Row, chip: Chip, precision: str, missing: Unstated) -> str:
    """One of KERNELS; not stated: fused attention where the chip and precision have it."""
    half = precision in ("bf16", "fp16", "fp8")
    modern = half and (chip.year or 2020) >= 2020
    default = "flash" if modern else "eager"
    framework = _word(row, "framework")
    if "jax" in framework or "pax" in framework:
        default = "flash+fused" if "transformer engine" in framework else "compiled"
    return _choice(row, "kernel_stack", KERNELS, default, missing)


def _choice(
    row: Row, name: str, known: tuple[str, ...], default: str, missing: Unstated
) -> str:  # fmt: skip
    word = _word(row, name)
    if not word:
        missing.add(name)
        return default
    if word not in known:
        raise UsageError(f"{name} {word[:40]!r}: one of {', '.join(known)}")
    return word


def link_of(row: Row, missing: Unstated) -> str | None:
    """The link inside a node; blank: the chip's own."""
    word = _word(row, "link")
    if not word:
        missing.add("link")
        return None
    if word not in ("nvlink", "pcie", "ici", "hccs", "none"):
        raise UsageError(f"link {word[:40]!r}: one of nvlink, pcie, ici, hccs, none")
    return word


def fabric_of(row: Row, sizes: Mapping[str, int], missing: Unstated) -> float | None:
    """B/s of a node into the network; blank: as such nodes are usually sold."""
    text = _word(row, "fabric_gbps_per_node")
    if not text:
        if sizes["gpus"] > sizes["gpus_per_node"]:
            missing.add("fabric_gbps_per_node")
        return None
    try:
        rate = float(text) / 8.0 * 1e9
    except ValueError:
        raise UsageError(f"fabric_gbps_per_node = {text[:40]!r}: not a number") from None
    if not 1e6 < rate < 1e15:
        raise UsageError(f"fabric_gbps_per_node = {text[:40]}: Gbit/s of one node")
    return rate
