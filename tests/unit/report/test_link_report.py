"""The diagram of a machine's links, and heat maps of pairs: on captured and made-up machines."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from trainrig.benchmarks.link import pair_case
from trainrig.importers import read_file
from trainrig.machine import inspect
from trainrig.machine.nvidia import read_device
from trainrig.machine.snapshot import Gpu, GpuLink, Missing, PcieLink, Snapshot, Topology
from trainrig.record import Kind, Record, Status
from trainrig.report.charts.link_diagram import DrawnGpu, LinkDiagram, draw, sockets
from trainrig.report.document import Table
from trainrig.report.link_report import _maps, diagram_of, topology_blocks

SAMPLES = Path(__file__).parents[1] / "importers" / "samples"


def card(index: int, name: str = "NVIDIA A100-SXM4-80GB", width: int = 16) -> Gpu:
    link = PcieLink(generation=4, width=width, max_generation=4, max_width=16)
    return dataclasses.replace(read_device(index, {}), name=name, link=link)


def machine(gpus: tuple[Gpu, ...], paths: dict[tuple[int, int], str]) -> Snapshot:
    unknown = Missing("")
    links = tuple(
        GpuLink(a=a, b=b, path=path, p2p_read=unknown, p2p_write=unknown)
        for (a, b), path in paths.items()
    )
    return dataclasses.replace(inspect(), gpus=gpus, topology=Topology(links=links))


def captured(name: str) -> dict[tuple[int, int], str]:
    reading = read_file(SAMPLES / name)[0][1]
    return {(link.a, link.b): str(link.path) for link in reading.links}


def cells(table: Table) -> list[list[str]]:
    return [
        [cell if isinstance(cell, str) else cell.text for cell in getattr(row, "cells", row)]
        for row in table.rows
    ]


def test_what_nvlinks_should_give_is_the_data_sheet_s() -> None:
    found = diagram_of(machine((card(0), card(1)), {(0, 1): "NV12"}))
    assert found is not None
    assert dict(found.rates) == {"NV12": "300 GB/s"}  # 600 GB/s both ways, of 12 links
    assert found.nodes[0].pcie == "PCIe 4 x16, 31.5 GB/s"
    assert "NV12: 300 GB/s each way" in draw(found)


def test_an_x8_link_gives_half() -> None:
    blocks = topology_blocks(machine((card(0), card(1, width=8)), {(0, 1): "SYS"}))
    (table,) = [block for block in blocks if isinstance(block, Table)]
    assert [row[-1] for row in cells(table)] == ["PCIe 4 x16, 31.5 GB/s", "PCIe 4 x8, 15.8 GB/s"]


@pytest.mark.parametrize(
    ("paths", "homes"),
    [
        ({(0, 1): "PIX", (2, 3): "PXB"}, [[[0, 1]], [[2, 3]]]),
        ({(0, 1): "PHB", (2, 3): "NODE"}, [[[0], [1]], [[2], [3]]]),
        ({(0, 1): "NV4", (2, 3): "NV4"}, [[[0]], [[1]], [[2]], [[3]]]),
    ],
)
def test_sockets_and_switches_follow_from_the_paths(
    paths: dict[tuple[int, int], str], homes: list[list[list[int]]]
) -> None:
    across = {(a, b): "SYS" for a in (0, 1) for b in (2, 3)}
    nodes = tuple(DrawnGpu(number=number, name="GPU", pcie="") for number in range(4))
    every = tuple((a, b, path) for (a, b), path in (paths | across).items())
    assert sockets(LinkDiagram(title="", nodes=nodes, paths=every)) == homes


def test_captured_topologies_are_drawn_whole() -> None:
    eight = diagram_of(machine(tuple(map(card, range(8))), captured("topo-8xa100.txt")))
    assert eight is not None
    drawn = draw(eight)
    assert drawn.count("<rect") == 9  # GPUs and the processor
    assert "NVLink between all, NV12" in drawn
    two = diagram_of(machine((card(0), card(1)), captured("topo-2x4090.txt")))
    assert two is not None
    assert "nvlink" not in draw(two)


def test_a_name_is_no_markup() -> None:
    found = diagram_of(machine((card(0, "<b>x"), card(1)), {(0, 1): "PIX"}))
    assert found is not None
    assert "<b>" not in draw(found)


def test_one_gpu_has_no_diagram() -> None:
    assert topology_blocks(machine((card(0),), {})) == []
    assert topology_blocks(machine((card(0), card(1)), {})) == []


def pair(first: int, second: int, rate: float | None, *, peer_access: bool) -> Record:
    return Record(
        kind=Kind.MEASURED,
        benchmark="link",
        case=pair_case(first, second, peer_access=peer_access, ways=1),
        metric="byte_rate",
        unit="B/s",
        value=rate,
        status=Status.OK if rate else Status.SKIPPED,
        reason=None if rate else "no peer access",
        device="RTX 4090",
        device_index=first,
    )


def test_a_heat_map_s_shades_compare_peer_access_on_with_off() -> None:
    four = [(a, b) for a in range(4) for b in range(4) if a != b]
    records = [pair(a, b, 5e10, peer_access=True) for a, b in four]
    records += [pair(a, b, 1e10, peer_access=False) for a, b in four]
    records[0] = pair(0, 1, None, peer_access=True)
    on, off = _maps(records)
    assert re.search("one way, P2P on, GB/s", on.title)
    assert cells(on)[0] == ["GPU 0", "·", "skipped", "50.0", "50.0"]
    shades = [cell.shade for table in (on, off) for cell in table.rows[1][1:]]
    assert shades == [5, None, 5, 5, 1, None, 1, 1]


def latency(first: int, second: int, seconds: float, **more: Any) -> Record:
    case = {"from": first, "to": second, "direction": "p2p", "ways": 1, "peer_access": True}
    made = pair(first, second, 1.0, peer_access=True)
    return made.replace(case=case, metric="time", unit="s", value=seconds, **more)


def test_latencies_are_in_microseconds_and_a_noisy_one_is_the_most_that_it_takes() -> None:
    (table,) = _maps([latency(0, 1, 1.02e-5), latency(1, 0, 9e-6, disturbed="busy")])
    assert table.title.endswith("µs")
    assert [row[1:] for row in cells(table)] == [["·", "10.2"], ["≤ 9.00", "·"]]


def test_of_one_pair_measured_twice_the_best_is_shown() -> None:
    slow, fast = pair(0, 1, 2e10, peer_access=True), pair(0, 1, 3e10, peer_access=True)
    other = {**fast.case, "memory": "another"}
    for records in ([slow, fast.replace(case=other)], [fast.replace(case=other), slow]):
        (table,) = _maps(records)
        assert cells(table)[0][2] == "30.0"
