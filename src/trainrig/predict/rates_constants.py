"""The few constants that turn claims into rates, read from rates.toml.

Answers which class a chip belongs to and what its class reaches; not how the constants were found
(docs/definitions.md, and the command that refits them).  A class is a generation of silicon of one
vendor: chips of one class share a process and a design, and no constant knows who measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from trainrig.catalog.chip import Chip

PATH = Path(__file__).parent / "rates.toml"
_NVIDIA = {
    "7.0": "volta",
    "7.5": "turing",
    "8.0": "ga100",
    "8.6": "ga102",
    "8.9": "ada",
    "9.0": "hopper",
    "10.0": "blackwell",
    "10.3": "blackwell",
    "12.0": "blackwell-consumer",
}
_ARCHITECTURES = {"Hopper": "hopper", "Blackwell": "blackwell", "Gaudi": "gaudi", "TPU": "tpu"}


class Class(NamedTuple):
    """What chips of one generation share."""

    power: float
    """κ of the power rule."""
    cap: float
    """Most of the claimed tensor peak that large products reach."""
    lanes: float
    """Share of the claimed fp32 peak that ordinary lanes reach."""
    bandwidth: float
    """Share of the claimed memory bandwidth that a stream reaches."""
    flash: float
    """Rate of a fused attention's forward against large products'."""
    flash_backward: float
    own: float = 0.0
    """The same of kernels that were written for this generation; 0: no others are known."""
    own_backward: float = 0.0
    flash_rows: int = 128
    """Queries that one processor works on at a time in the forward."""
    drain: float = 0.0
    """s to fill and drain a large tile's pipeline; 0: as elsewhere."""
    per_processor: float = 0.0
    """B/s that one SM streams at most; 0: no such limit seen."""
    multicast: float = 0.0
    """Rate of the switch's own reduction against the link's; 0: none."""


@cache
def constants() -> Mapping[str, Any]:
    """The whole file."""
    import tomllib

    return tomllib.loads(PATH.read_text(encoding="utf-8"))


def class_of(chip: Chip) -> str:
    """The name of a chip's class; ``other`` where none fits."""
    if chip.vendor == "AMD":
        return "cdna"
    found = _NVIDIA.get(chip.compute_capability or "")
    return found or _ARCHITECTURES.get(chip.architecture or "", "other")


def class_constants(name: str) -> Class:
    """What a class reaches."""
    return Class(**constants()["class"][name])
