"""What to buy next: each upgrade is a changed cluster, and its gain is what is predicted there.

    nvlink, pcie               the link inside a node
    pcie3, pcie4, pcie5        the slot's generation
    p2p, no-p2p                whether one GPU reads another's memory over PCIe
    ib-400, eth-100, 8xib-400  the network of a server, or of a rack's tray, Gb/s a port
    +1gpu, +2node              more of the same
    +24GB                      more memory on each GPU (GB as data sheets say it: GiB)
    power=300W                 another power limit

A power limit moves the rate of products by the rule that the rates of chips follow
(`rates.from_chip`): it holds for limits near those that such chips are sold with.

An upgrade is worth what it brings to one layout, or to the best layout that can then be run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from trainrig.catalog.chip import Chip
from trainrig.errors import TrainrigError, UsageError, unknown
from trainrig.prediction.cluster import Cluster
from trainrig.prediction.prediction import Prediction, predict
from trainrig.prediction.scenario import GBIT, Question
from trainrig.prediction.search import SIMULATED, search
from trainrig.prediction.search.space import Space
from trainrig.prediction.setting import network_text
from trainrig.prediction.verdict import DOES_NOT_FIT
from trainrig.units import counted, format_memory
from trainrig.workload.layout import check_layout

_KNOWN = (
    *("nvlink", "pcie", "pcie3", "pcie4", "pcie5", "pcie6", "p2p", "no-p2p", "ib-400"),
    *("eth-100", "+1gpu", "+1node", "+24GB", "power=300W"),
)


Change = tuple[str, Callable[[Cluster], Cluster]]
"""Text of an upgrade with numbers, and its effect; UsageError where it cannot be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One upgrade with its gain."""

    name: str
    says: str
    present: str
    """Value that the machines have in its place now."""
    tokens_per_s: float | None = None
    """With it; None where it cannot be had."""
    gain: float | None = None
    """Against the rate without it: 0.25 is a quarter more."""
    verdict: str = ""
    """``faster``, ``slower`` or ``no change``, where the gain is known; within NO_CHANGE none."""
    reason: str | None = None
    """Reason that there is none."""


def upgrades_of_answer(prediction: Prediction, text: str) -> tuple[Ranked, ...]:
    """Upgrades ranked by tokens/s of the very same layout; more GPUs are more data parallel."""

    def rate_of(cluster: Cluster) -> float:
        layout = prediction.layout.replace(gpus=cluster.gpus, gpus_per_node=cluster.gpus_per_node)
        check_layout(prediction.question.shape, layout)
        there = predict(Question(shape=prediction.question.shape, layout=layout, cluster=cluster))
        if there.verdict == DOES_NOT_FIT:
            needed = format_memory(float(there.memory.total))
            raise UsageError(
                f"needs {needed}, and a GPU has {format_memory(there.rates.memory_bytes)}"
            )
        return there.tokens_per_s

    before = (
        prediction.tokens_per_s if prediction.verdict != DOES_NOT_FIT else None
    )  # nothing to compare with
    return rank(prediction.question.cluster, text, rate_of, before)


def upgrades_of_search(
    space: Space, cluster: Cluster, before: float | None, text: str
) -> tuple[Ranked, ...]:
    """Upgrades ranked by tokens/s of the best layout that each allows.

    ``before`` is the best time without any; None where nothing fits.
    """
    tokens = space.global_batch * space.base.batch.seq_len

    def rate_of(there: Cluster) -> float:
        best = search(space.on(there), there.rates(), top=1, simulate=SIMULATED).best[0]
        if not best.fits:
            raise UsageError(
                f"nothing fits: the smallest layout needs {format_memory(best.memory)}"
            )
        return tokens / best.ranked_by

    return rank(cluster, text, rate_of, before=None if before is None else tokens / before)


def rank(
    cluster: Cluster, text: str, rate_of: Callable[[Cluster], float], before: float | None
) -> tuple[Ranked, ...]:
    """Return the upgrades of ``text``, the most worthwhile first.

    Last, with reasons, what cannot be had.

    ``rate_of`` predicts tokens/s at a cluster, and raises TrainrigError where nothing can run;
    ``before`` is the rate without any, None where nothing can.
    """
    ranked = []
    for name, (says, apply) in parse(text):
        present = present_of(name, cluster)
        try:
            rate = rate_of(apply(cluster))
        except TrainrigError as error:
            ranked.append(Ranked(name=name, says=says, present=present, reason=error.message))
            continue
        gain = None if before is None else rate / before - 1.0
        word = "" if gain is None else verdict_of(gain)
        ranked.append(
            Ranked(
                name=name, says=says, present=present, tokens_per_s=rate, gain=gain, verdict=word
            )
        )
    return tuple(sorted(ranked, key=lambda upgrade: -(upgrade.tokens_per_s or 0.0)))


NO_CHANGE = 0.005
"""Share of the rate below which a gain or a loss is none."""


def verdict_of(gain: float) -> str:
    """Return whether a change makes a training faster or slower, or neither."""
    if abs(gain) < NO_CHANGE:
        return "no change"
    return "faster" if gain > 0.0 else "slower"


def parse(text: str) -> list[tuple[str, Change]]:
    """Return the upgrades in ``nvlink, ib-400, +1gpu``.

    UsageError names one that is not understood.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"an upgrade is missing in {text!r}", "one of: " + ", ".join(_KNOWN))
    upgrades = []
    for word in words:
        matches = ((make, re.fullmatch(kind, word.lower())) for kind, make in _KINDS.items())
        change = next((make(*match.groups()) for make, match in matches if match), None)
        if change is None:
            raise unknown("upgrade", word, _KNOWN)
        upgrades.append((word, change))
    return upgrades


def _link(link: str) -> Change:
    def apply(cluster: Cluster) -> Cluster:
        chip = _chip(cluster)
        if link == "nvlink" and (chip.link.name or "none") == "none":
            raise UsageError(f"{chip.name} has no NVLink")
        return cluster.replace(link=link).on(cluster.gpus)  # PCIe joins no trays

    return f"{link} inside a node", apply


def _peers(no: str | None) -> Change:
    says = "no GPU reads another's memory" if no else "each GPU reads another's memory"
    return says, lambda cluster: cluster.replace(p2p=not no)


def _slot(generation: str) -> Change:
    def apply(cluster: Cluster) -> Cluster:
        chip = _chip(cluster)
        if chip.pcie.lanes is None:
            raise UsageError(f"{chip.name} sits in no PCIe slot that is known")
        return cluster.with_chip(pcie_generation=int(generation))

    return f"slots and cards of PCIe {generation}.0", apply


def _network(ports: str | None, kind: str, gbit: str) -> Change:
    num = int(ports or 1)
    rate = num * float(gbit)
    if not 0 < rate <= 1e6:
        raise UsageError(f"a network of {rate:g} Gb/s", "as ib-400: one port of 400 Gb/s a host")
    name = {"ib": "InfiniBand", "eth": "Ethernet"}[kind]
    says = f"{num} × {gbit} Gb/s {name} a host" if num > 1 else f"{gbit} Gb/s {name} a host"
    return says, lambda cluster: cluster.replace(fabric=rate * GBIT * cluster.trays)


def _more(number: str, of: str) -> Change:
    num = int(number)
    if num < 1:
        raise UsageError(f"+{number}{of} adds nothing", "as +1gpu")

    def apply(cluster: Cluster) -> Cluster:
        if of.startswith("node"):
            return cluster.on(cluster.gpus + num * cluster.gpus_per_node)
        gpus = cluster.gpus + num
        if cluster.trays > 1:  # a rack
            return cluster.on(gpus)
        if cluster.gpus <= cluster.gpus_per_node:  # one machine, which is filled up
            return cluster.replace(gpus=gpus, gpus_per_node=max(cluster.gpus_per_node, gpus))
        return cluster.replace(gpus=gpus)

    return f"{num} more {of}", apply


def _memory(gib: str) -> Change:
    more = float(gib) * 1024.0**3

    def apply(cluster: Cluster) -> Cluster:
        chip = _chip(cluster)
        if chip.memory.size is None:
            raise UsageError(f"the catalog does not know the memory of {chip.name}")
        return cluster.with_chip(memory=chip.memory.size + more)

    return f"{format_memory(more)} more on each GPU", apply


def _power(watts: str) -> Change:
    def apply(cluster: Cluster) -> Cluster:
        chip = _chip(cluster)
        tdp = chip.board.tdp
        if tdp is None or not 0.4 * tdp <= float(watts) <= 1.5 * tdp:
            known = "power unknown" if tdp is None else f"{tdp:g} W"
            raise UsageError(f"{watts} W is no limit that {chip.name} ({known}) takes")
        return cluster.with_chip(tdp=float(watts))

    return f"{watts} W for each GPU", apply


_KINDS: dict[str, Callable[..., Change]] = {
    r"(nvlink|pcie)": _link,
    r"(no-)?p2p": _peers,
    r"pcie-?([3-7])": _slot,
    r"(?:(\d{1,3})\s*x\s*)?(ib|eth)-?(\d{1,5})": _network,
    r"\+(\d{1,6})\s*(gpus?|nodes?)": _more,
    r"\+(\d{1,5}(?:\.\d+)?)\s*gi?b": _memory,
    r"power\s*=\s*(\d{1,5}(?:\.\d+)?)\s*w?": _power,
}


def present_of(word: str, cluster: Cluster) -> str:
    """Return what machines have now in the place of what an upgrade changes."""
    word = word.lower()
    if re.match(r"nvlink|pcie$|(no-)?p2p", word):
        return cluster.rates().links.inside.name if cluster.gpus_per_node > 1 else "one GPU a node"
    if re.match(r"pcie", word):
        generation = None if cluster.chip is None else cluster.chip.pcie.generation
        return "not known" if generation is None else f"PCIe {generation}.0"
    if re.match(r"power", word):
        tdp = None if cluster.chip is None else cluster.chip.board.tdp
        return "not known" if tdp is None else f"{tdp:g} W"
    if re.match(r"\+.*(gpu|node)", word):
        nodes = -(-cluster.gpus // cluster.gpus_per_node)
        return f"{counted(cluster.gpus, 'GPU')} in {counted(nodes, 'node')}"
    if word.startswith("+"):
        return format_memory(cluster.rates().memory_bytes)
    return network_text(cluster)


def _chip(cluster: Cluster) -> Chip:
    if cluster.chip is None:
        raise UsageError("what is not in the catalog cannot be upgraded", "name a chip with --on")
    return cluster.chip
