"""A search's result as others script against it."""

from __future__ import annotations

from typing import Any

from trainrig.predict.answer import DAY, layout_dict
from trainrig.predict.layouts import Space
from trainrig.predict.search import Candidate, Found
from trainrig.predict.site import Site


def plan_dict(space: Space, site: Site, found: Found, device: str) -> dict[str, Any]:
    """What ``plan --json`` prints."""
    first = found.best[0]
    told: dict[str, Any] = {
        "model": space.shape.name,
        "on": device,
        "gpus": site.gpus,
        "gpus_per_node": site.gpus_per_node,
        "global_batch": space.global_batch,
        "layouts_considered": found.considered,
        "layouts_fitting": found.fitting,
        "seconds": found.seconds,
        "fits": first.fits,
        "best": [_candidate(space, one) for one in found.best],
        "front": [_candidate(space, one) for one in found.front],
        "gap_to_next": None,
    }
    if len(found.best) > 1:
        second = found.best[1]
        told["gap_to_next"] = {
            "step_time_s": second.time - first.time,
            "parts_s": first.gap(second),
        }
    return told


def _candidate(space: Space, one: Candidate) -> dict[str, Any]:
    tokens = space.global_batch * space.base.seq
    return {
        "step_time_s": one.time,
        "memory_bytes_per_gpu": one.memory,
        "fits": one.fits,
        "tokens_per_s": tokens / one.time,
        "tokens_per_day": tokens / one.time * DAY,
        "parts_s": dict(one.parts),
        "layout": layout_dict(one.layout),
    }
