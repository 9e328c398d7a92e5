"""Numbers without running: what is claimed for a case, what to expect of it.  Pure; no torch."""

from trainrig.predict.claims import (
    ceiling,
    claim_for,
    gpu_claims,
    host_claims,
    link_claims,
    of_device,
)
from trainrig.predict.expect import Published, expect
from trainrig.predict.rates import Rates
from trainrig.predict.rates_chip import rates_of_chip
from trainrig.predict.rates_records import rates_of_records

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
