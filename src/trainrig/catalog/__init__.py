"""What vendors claim: chips, host parts, and what others measured on them.

`load` reads the chips' data files, `lookup` leads from a name or PCI id to a
chip, `chip` defines the fields and the peaks, `fields` their units, `host_parts`
states claims of CPUs, memory and PCIe, `published` holds measured baselines.
"""

from trainrig.catalog.chip import Chip, Peak, Provenance, Source, peak
from trainrig.catalog.load import load_chips
from trainrig.catalog.lookup import (
    candidates,
    chip_by_pci_id,
    did_you_mean,
    find_chip,
    require_chip,
)

__all__ = [
    "Chip",
    "Peak",
    "Provenance",
    "Source",
    "candidates",
    "chip_by_pci_id",
    "did_you_mean",
    "find_chip",
    "load_chips",
    "peak",
    "require_chip",
]
