"""A whole training step: the parts that its time is split into."""

from __future__ import annotations

PARTS = ("data_wait", "forward", "backward", "optimizer")

COMMUNICATION = "communication"
"""Exposed: beside it nothing was computed.  A part only where there are several ranks."""

OTHER = "other"

MAX_OTHER = 0.05
"""Beyond this share of a step, time that belongs to no part is a finding."""
