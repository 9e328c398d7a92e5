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

__all__ = [
    "Published",
    "ceiling",
    "claim_for",
    "expect",
    "gpu_claims",
    "host_claims",
    "link_claims",
    "of_device",
]
