"""Where a chip stands: what launches its kernels, and how the devices of a node are joined."""

from __future__ import annotations

from trainrig.catalog.chip import Chip


def host_of(chip: Chip) -> str:
    """Return what launches kernels: a desktop's, a server's or the chip's own processor."""
    if "superchip" in (chip.product.form_factor or ""):
        return "superchip"
    is_own = chip.product.form_factor == "SoC"  # with a processor's quick cores on the same die
    return "desktop" if chip.board.cooling == "active" or is_own else "server"


def topology_of(chip: Chip) -> str:
    """Return how the devices of a node are joined: see [link.…] of the constants."""
    if chip.link.name == "NVLink bridge":
        return "bridge"
    if chip.vendor == "NVIDIA":
        return "switch" if (chip.product.year or 0) >= 2020 else "cube"
    return "mesh" if chip.vendor in ("AMD", "Intel") else "switch"
