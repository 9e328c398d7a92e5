"""What an answer stands on, and nobody asked for: how GPUs come in nodes, their network, stages.

Each is a line that an answer prints (`setting_of`): what was presumed is marked so, because
"64x H100" is one node of 64 where "H100" and 64 GPUs are eight nodes of 8, and because Gb/s of a
node are an eighth of Gb/s of a network card where each GPU has its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from trainrig.prediction.cluster import Cluster
from trainrig.prediction.rates.from_chip import usual_fabric
from trainrig.prediction.step.communication import MeshSizes
from trainrig.units import counted
from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape

GBIT = 1e9 / 8.0
_THIN = 0.5
"""Share of the usual network below which a stated one is asked about: is it of one card?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingLine:
    """One thing that an answer stands on."""

    name: str
    text: str
    is_presumed: bool = False
    is_doubtful: bool = False
    """True if it was stated, and is likely meant otherwise."""


def setting_of(shape: ModelShape, layout: Layout, cluster: Cluster) -> tuple[SettingLine, ...]:
    """Return what a layout on a cluster stands on.

    Args:
        shape: The model.
        layout: One layout.
        cluster: The machines.
    """
    return (*_machines(cluster), *_network(cluster), *_stages(shape, layout))


def _machines(cluster: Cluster) -> Iterator[SettingLine]:
    if cluster.gpus < 2:
        return
    nodes = -(-cluster.gpus // cluster.gpus_per_node)
    node_gpus = min(cluster.gpus, cluster.gpus_per_node)
    text = f"{counted(nodes, 'node')} of {counted(node_gpus, 'GPU')}"
    inside = cluster.rates().links.inside.name if node_gpus > 1 else ""
    yield SettingLine(name="machines", text=text + (f", {inside} inside" if inside else ""))


def network_text(cluster: Cluster) -> str:
    """``3,200 Gb/s a node, 400 Gb/s a GPU``: what a node has into the network, one way."""
    stated = cluster.fabric
    node = stated if stated is not None else _presumed(cluster)
    if node is None:
        return "not known"
    gbps = node / GBIT
    gpus = max(1, min(cluster.gpus, cluster.gpus_per_node))
    return f"{gbps:,.0f} Gb/s a node, {gbps / gpus:,.3g} Gb/s a GPU"


def _presumed(cluster: Cluster) -> float | None:
    return None if cluster.chip is None else usual_fabric(cluster.chip)


def _network(cluster: Cluster) -> Iterator[SettingLine]:
    if cluster.gpus <= cluster.gpus_per_node:
        return
    text = network_text(cluster)
    if cluster.fabric is None:
        text += "; --fabric-gbps states a node's"
        yield SettingLine(name="network", text=text, is_presumed=True)
        return
    usual = _presumed(cluster)
    if usual is None or cluster.fabric >= _THIN * usual:
        yield SettingLine(name="network", text=text)
        return
    text += f"; nodes of this chip usually have {usual / GBIT:,.0f}"
    gpus = min(cluster.gpus, cluster.gpus_per_node)
    if cluster.fabric * gpus <= 2.0 * usual:
        text += f": if {cluster.fabric / GBIT:,.0f} Gb/s are of each GPU's card, "
        text += f"--fabric-gbps {cluster.fabric * gpus / GBIT:.0f}"
    yield SettingLine(name="network", text=text, is_doubtful=True)


def stage_layers(shape: ModelShape, layout: Layout) -> list[int]:
    """Return how many layers each stage of a pipeline has, first to last, as it is simulated."""
    sizes = MeshSizes(shape, layout)
    layers = [int(sizes.stage_layers)] * int(sizes.pp)
    layers[0] -= int(sizes.fewer_first)
    layers[-1] -= int(sizes.fewer_last)
    lacking = sum(layers) - int(sizes.layers)
    for place in range(1, len(layers) - 1):
        if lacking > 0:
            layers[place] -= 1
            lacking -= 1
    return layers


def _stages(shape: ModelShape, layout: Layout) -> Iterator[SettingLine]:
    if layout.mesh.pp < 2 or layout.pipeline.schedule in ("zbv", "dualpipe"):
        return
    counts = Counter(stage_layers(shape, layout))
    if len(counts) < 2:
        return
    listed = ", ".join(
        f"{counted(number, 'stage')} of {counted(layers, 'layer')}"
        for layers, number in sorted(counts.items(), reverse=True)
    )
    text = f"uneven: {listed}; the longest sets the pace"
    yield SettingLine(name="stages", text=text)
