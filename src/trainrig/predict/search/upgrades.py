"""What to buy next: each upgrade is a changed cluster, and its gain is what is predicted there.

    nvlink, pcie               the link inside a node
    pcie3, pcie4, pcie5        the slot's generation
    p2p, no-p2p                whether one GPU reads another's memory over PCIe
    ib-400, eth-100, 8xib-400  the network of a node, Gb/s a port
    +1gpu, +2node              more of the same
    +24GB                      more memory on each GPU (GB as data sheets say it: GiB)
    power=300W                 another power limit

A power limit moves the rate of products by the rule that the rates of chips follow
(`rates.from_chip`): it holds for limits near those that such chips are sold with.

An upgrade is worth what it brings to one layout, or to the best layout that can then be run.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.catalog.chip import Chip
from trainrig.errors import TrainrigError, UsageError, unknown
from trainrig.predict.prediction import Prediction, predict
from trainrig.predict.scenario import Cluster, Question
from trainrig.predict.search import search
from trainrig.predict.search.space import Space
from trainrig.units import format_memory
from trainrig.workload.layout import check_layout


def upgrades_of_answer(found: Prediction, text: str) -> tuple[Ranked, ...]:
    """Upgrades ranked by tokens/s of the very same layout; more GPUs are more data parallel."""

    def rate_of(cluster: Cluster) -> float:
        layout = found.layout.replace(gpus=cluster.gpus, gpus_per_node=cluster.gpus_per_node)
        check_layout(found.question.shape, layout)
        there = predict(Question(shape=found.question.shape, layout=layout, cluster=cluster))
        if not there.fits:
            needed = format_memory(float(there.memory.total))
            raise UsageError(
                f"needs {needed}, and a GPU has {format_memory(there.rates.memory_bytes)}"
            )
        return there.tokens_per_s

    upgrades = parse(text)
    if not found.fits:  # nothing to compare with: a memory that is large enough comes first
        return rank(found.question.cluster, upgrades, rate_of, before=None)
    return rank(found.question.cluster, upgrades, rate_of, before=found.tokens_per_s)


def upgrades_of_search(
    space: Space, cluster: Cluster, before: float | None, text: str
) -> tuple[Ranked, ...]:
    """Upgrades ranked by tokens/s of the best layout that each allows.

    ``before`` is the best time without any; None where nothing fits.
    """
    tokens = space.global_batch * space.base.seq_len

    def rate_of(there: Cluster) -> float:
        base = space.base.replace(gpus=there.gpus, gpus_per_node=there.gpus_per_node)
        best = search(space.replace(base=base), there.rates(), top=1).best[0]
        if not best.fits:
            raise UsageError(
                f"nothing fits: the smallest layout needs {format_memory(best.memory)}"
            )
        return tokens / best.time

    return rank(cluster, parse(text), rate_of, before=None if before is None else tokens / before)


GBIT = 1e9 / 8.0
GIB = 1024.0**3
_KNOWN = ("nvlink", "pcie", "pcie3", "pcie4", "pcie5", "pcie6", "p2p", "no-p2p", "ib-400") + (
    "eth-100",
    "+1gpu",
    "+1node",
    "+24GB",
    "power=300W",
)
_NETWORK = re.compile(r"(?:(\d{1,3})\s*x\s*)?(ib|eth)-?(\d{1,5})")
_MORE = re.compile(r"\+(\d{1,6})\s*(gpus?|nodes?)")
_MEMORY = re.compile(r"\+(\d{1,5}(?:\.\d+)?)\s*gi?b")
_POWER = re.compile(r"power\s*=\s*(\d{1,5}(?:\.\d+)?)\s*w?")
_SLOT = re.compile(r"pcie-?([3-7])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """One thing that could be changed."""

    name: str
    says: str
    """What changes, with numbers."""
    apply: Callable[[Cluster], Cluster]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """What an upgrade brings."""

    name: str
    says: str
    rate: float | None
    """Tokens/s with it; None where it cannot be had."""
    gain: float | None
    """Against the rate without it: 0.25 is a quarter more."""
    reason: str | None = None
    """Why there is none."""

    def to_dict(self) -> dict[str, Any]:
        """As others script against it."""
        return {
            "name": self.name,
            "says": self.says,
            "tokens_per_s": self.rate,
            "gain": self.gain,
            "reason": self.reason,
        }


def parse(text: str) -> tuple[Upgrade, ...]:
    """The upgrades in ``nvlink, ib-400, +1gpu``.  UsageError names one that is not understood."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"an upgrade is missing in {text!r}", "one of: " + ", ".join(_KNOWN))
    return tuple(_upgrade(word) for word in words)


def _upgrade(word: str) -> Upgrade:
    plain = word.lower()
    if plain in ("nvlink", "pcie"):
        return Upgrade(name=word, says=f"{word} inside a node", apply=_linked(plain))
    if plain in ("p2p", "no-p2p"):
        who = "each GPU reads" if plain == "p2p" else "no GPU reads"
        return Upgrade(
            name=word,
            says=f"{who} another's memory",
            apply=lambda cluster: cluster.replace(p2p=plain == "p2p"),
        )
    for pattern, make in _PATTERNS:
        found = pattern.fullmatch(plain)
        if found:
            return make(word, *found.groups())
    raise unknown("upgrade", word, _KNOWN)


def _linked(link: str) -> Callable[[Cluster], Cluster]:
    def apply(cluster: Cluster) -> Cluster:
        chip = _chip(cluster)
        if link == "nvlink" and (chip.link or "none") == "none":
            raise UsageError(f"{chip.name} has no NVLink")
        return cluster.replace(link=link)

    return apply


def _slot(word: str, generation: str) -> Upgrade:
    def apply(cluster: Cluster) -> Cluster:
        chip = _chip(cluster)
        if chip.pcie_lanes is None:
            raise UsageError(f"{chip.name} sits in no PCIe slot that is known")
        return cluster.with_chip(pcie_generation=int(generation))

    return Upgrade(name=word, says=f"slots and cards of PCIe {generation}.0", apply=apply)


def _network(word: str, ports: str | None, kind: str, gbit: str) -> Upgrade:
    num = int(ports or 1)
    rate = num * float(gbit)
    if not 0 < rate <= 1e6:
        raise UsageError(f"a network of {rate:g} Gb/s", "as ib-400: one port of 400 Gb/s a node")
    name = {"ib": "InfiniBand", "eth": "Ethernet"}[kind]
    says = f"{num} × {gbit} Gb/s {name} a node" if num > 1 else f"{gbit} Gb/s {name} a node"
    return Upgrade(name=word, says=says, apply=lambda cluster: cluster.replace(fabric=rate * GBIT))


def _more(word: str, number: str, of: str) -> Upgrade:
    num = int(number)
    if num < 1:
        raise UsageError(f"{word} adds nothing", "as +1gpu")

    def apply(cluster: Cluster) -> Cluster:
        if of.startswith("node"):
            return cluster.replace(gpus=cluster.gpus + num * cluster.gpus_per_node)
        gpus = cluster.gpus + num
        if cluster.gpus <= cluster.gpus_per_node:  # one machine, which is filled up
            return cluster.replace(gpus=gpus, gpus_per_node=max(cluster.gpus_per_node, gpus))
        return cluster.replace(gpus=gpus)

    return Upgrade(name=word, says=f"{num} more {of}", apply=apply)


def _memory(word: str, gib: str) -> Upgrade:
    more = float(gib) * GIB

    def apply(cluster: Cluster) -> Cluster:
        chip = _chip(cluster)
        if chip.memory is None:
            raise UsageError(f"the catalog does not know the memory of {chip.name}")
        return cluster.with_chip(memory=chip.memory + more)

    return Upgrade(name=word, says=f"{format_memory(more)} more on each GPU", apply=apply)


def _power(word: str, watts: str) -> Upgrade:
    def apply(cluster: Cluster) -> Cluster:
        chip = _chip(cluster)
        if chip.tdp is None or not 0.4 * chip.tdp <= float(watts) <= 1.5 * chip.tdp:
            raise UsageError(f"{watts} W is no limit that {chip.name} ({_watts(chip)}) takes")
        return cluster.with_chip(tdp=float(watts))

    return Upgrade(name=word, says=f"{watts} W for each GPU", apply=apply)


def _watts(chip: Chip) -> str:
    return "power unknown" if chip.tdp is None else f"{chip.tdp:g} W"


_PATTERNS: Sequence[tuple[re.Pattern[str], Callable[..., Upgrade]]] = (
    (_SLOT, _slot),
    (_NETWORK, _network),
    (_MORE, _more),
    (_MEMORY, _memory),
    (_POWER, _power),
)


def _chip(cluster: Cluster) -> Chip:
    if cluster.chip is None:
        raise UsageError("what is not in the catalog cannot be upgraded", "name a chip with --on")
    return cluster.chip


def rank(
    cluster: Cluster,
    upgrades: Iterable[Upgrade],
    rate_of: Callable[[Cluster], float],
    before: float | None,
) -> tuple[Ranked, ...]:
    """The upgrades, the most worthwhile first; those that cannot be had are last, with the reason.

    ``rate_of`` predicts tokens/s at a cluster, and raises TrainrigError where nothing can run;
    ``before`` is the rate without any, None where nothing can.
    """
    found = [_ranked(cluster, upgrade, rate_of, before) for upgrade in upgrades]
    return tuple(sorted(found, key=lambda one: -(one.rate or 0.0)))


def _ranked(
    cluster: Cluster, upgrade: Upgrade, rate_of: Callable[[Cluster], float], before: float | None
) -> Ranked:
    bare = Ranked(name=upgrade.name, says=upgrade.says, rate=None, gain=None)
    try:
        rate = rate_of(upgrade.apply(cluster))
    except TrainrigError as error:
        return dataclasses.replace(bare, reason=error.message)
    return dataclasses.replace(
        bare, rate=rate, gain=None if before is None else rate / before - 1.0
    )
