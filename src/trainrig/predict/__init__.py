"""Numbers without running: what is claimed for a case, what to expect of it, what a step costs.

No torch.  Names load their modules when they are used, so that a prediction does not wait for what
only looks at machines.

    expected     what vendors claim for a case, and what to expect of it here
    rates        how fast operations go, from claims or from this machine's records
    step         the time of a training step by part
    search       all layouts, and the best of them; memory options, upgrades, how many GPUs
    scenario     what is to be predicted: model, layout, machines
    prediction   what a predicted step means: tokens a day, MFU, days, energy
    table        tables of published steps, and how far off the predictions are
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Not lazy: the module has its function's name, and would hide it once it is loaded.
from trainrig.predict.expected import Published, expect

if TYPE_CHECKING:
    from trainrig.predict.expected import (
        ceiling,
        claim_for,
        gpu_claims,
        host_claims,
        link_claims,
        of_device,
    )
    from trainrig.predict.rates import Rates
    from trainrig.predict.rates.from_chip import rates_of_chip
    from trainrig.predict.rates.from_records import rates_of_records

__all__ = [
    "Published",
    "Rates",
    "ceiling",
    "claim_for",
    "expect",
    "gpu_claims",
    "host_claims",
    "link_claims",
    "of_device",
    "rates_of_chip",
    "rates_of_records",
]

_CLAIMS = ("ceiling", "claim_for", "gpu_claims", "host_claims", "link_claims", "of_device")
_MODULES = dict.fromkeys(_CLAIMS, "expected") | {
    "Rates": "rates",
    "rates_of_chip": "rates.from_chip",
    "rates_of_records": "rates.from_records",
}


def __getattr__(name: str) -> Any:
    """A name of ``__all__``, from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
