"""What an upgrade is worth for one layout, or for the best layout that can then be had."""

from __future__ import annotations

from trainrig.errors import UsageError
from trainrig.predict.answer import Answer, answer
from trainrig.predict.ask import Question
from trainrig.predict.layouts import Space
from trainrig.predict.legal import check
from trainrig.predict.search import search
from trainrig.predict.site import Site
from trainrig.predict.upgrades import Ranked, parse, rank
from trainrig.units import format_memory


def upgrades_of_answer(found: Answer, text: str) -> tuple[Ranked, ...]:
    """Upgrades ranked by tokens/s of the very same layout; more GPUs are more data parallel."""

    def rate_of(site: Site) -> float:
        layout = found.layout.replace(gpus=site.gpus, gpus_per_node=site.gpus_per_node)
        if layout.engine == "plain" and site.gpus > 1:
            layout = layout.replace(engine="ddp")
        check(found.asked.shape, layout)
        there = answer(Question(shape=found.asked.shape, layout=layout, site=site))
        if not there.fits:
            needed = format_memory(float(there.memory.total))
            raise UsageError(
                f"needs {needed}, and a GPU has {format_memory(there.rates.memory_bytes)}"
            )
        return there.tokens_per_s

    upgrades = parse(text)
    if not found.fits:  # nothing to compare with: a memory that is large enough comes first
        return rank(found.asked.site, upgrades, rate_of, before=None)
    return rank(found.asked.site, upgrades, rate_of, before=found.tokens_per_s)


def upgrades_of_search(
    space: Space, site: Site, before: float | None, text: str
) -> tuple[Ranked, ...]:
    """Upgrades ranked by tokens/s of the best layout that each allows.

    ``before`` is the best time without any; None where nothing fits.
    """
    tokens = space.global_batch * space.base.seq

    def rate_of(there: Site) -> float:
        base = space.base.replace(gpus=there.gpus, gpus_per_node=there.gpus_per_node)
        best = search(space.replace(base=base), there.rates(), top=1).best[0]
        if not best.fits:
            raise UsageError(
                f"nothing fits: the smallest layout needs {format_memory(best.memory)}"
            )
        return tokens / best.time

    return rank(site, parse(text), rate_of, before=None if before is None else tokens / before)
