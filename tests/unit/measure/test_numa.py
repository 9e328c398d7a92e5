"""NUMA: who is bound where, on made-up trees and by real threads; copies, and the advice."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from machine_fakes import FakeHost
from trainrig.analysis.numa_advice import advice
from trainrig.benchmarks.numa import ALL, ANY, BENCHMARK, OWN, TURNS, numa_case, placements
from trainrig.errors import UsageError
from trainrig.machine import inspect
from trainrig.machine.numa_nodes import beside_gpus, node_cpus, spread
from trainrig.machine.nvidia import read_device
from trainrig.machine.parse import cpu_numbers
from trainrig.machine.pci import pci_gpus
from trainrig.machine.snapshot import Missing
from trainrig.measure import numa
from trainrig.measure.timing import Unsupported
from trainrig.record import Case, Kind, Record
from trainrig.runner import bench, train_prepare
from trainrig.train.config import Experiment

NODE, CPU = "/sys/devices/system/node", "/sys/devices/system/cpu"
PAIRED = {  # two sockets of two cores with two threads each, as Linux numbers them; memory alone
    f"{NODE}/node0/cpulist": "0-1,4-5",
    f"{NODE}/node1/cpulist": "2-3,6-7",
    f"{NODE}/node2/cpulist": "",
    **{f"{CPU}/cpu{n}/topology/thread_siblings_list": f"{n % 4},{n % 4 + 4}" for n in range(8)},
}
TWO = {0: frozenset({0, 1, 4, 5}), 1: frozenset({2, 3, 6, 7})}


def test_nodes_are_those_with_processors_of_this_process() -> None:
    host = FakeHost(files=PAIRED)
    assert node_cpus(host, range(8)) == TWO
    assert node_cpus(host, [2, 3]) == {1: frozenset({2, 3})}
    assert isinstance(node_cpus(host, [99]), Missing)
    assert isinstance(node_cpus(FakeHost(files={}), range(8)), Missing)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, ["0-7"]),  # one process is not cut in half
        (2, ["0-1,4-5", "2-3,6-7"]),
        (4, ["0,4", "1,5", "2,6", "3,7"]),  # a core's threads are one rank's
        (3, ["0,4", "1,5", "2-3,6-7"]),
        (6, ["0-1,4-5"] * 3 + ["2-3,6-7"] * 3),  # fewer cores than ranks: they share
    ],
)
def test_ranks_without_gpus_divide_the_nodes_then_their_cores(
    ranks: int, expected: list[str]
) -> None:
    assert list(spread(FakeHost(files=PAIRED), TWO, ranks)) == [cpu_numbers(e) for e in expected]


def test_a_rank_is_bound_beside_its_gpu_by_the_drivers_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bus has a third GPU before them, which the driver does not show in this container."""
    addresses = ("0000:01:00.0", "0000:41:00.0", "0000:81:00.0")
    tree = dict(PAIRED)
    for address, node in zip(addresses, ("0", "1", "-1"), strict=True):
        folder = f"/sys/bus/pci/devices/{address}"
        tree |= {f"{folder}/class": "0x030200", f"{folder}/vendor": "0x10de"}
        tree |= {f"{folder}/device": "0x20b2", f"{folder}/numa_node": node}
    on_bus = pci_gpus(FakeHost(files=tree))
    assert isinstance(on_bus, tuple)
    gpus = tuple(
        dataclasses.replace(read_device(number, {}), pci_address=address)
        for number, address in enumerate(addresses[1:])
    )
    found = dataclasses.replace(inspect(), pci_gpus=on_bus, gpus=gpus)
    assert beside_gpus(found, TWO, [0, 1, 7]) == (TWO[1], frozenset(), frozenset())
    monkeypatch.setattr(train_prepare, "usable_cpus", lambda: frozenset(range(8)))
    host = FakeHost(files=tree)
    own = Experiment.of(device="cuda", devices="0,1", nproc=2, bind=True)
    assert train_prepare.cpus_of_ranks(own, found, host) == (TWO[1], frozenset())
    assert train_prepare.cpus_of_ranks(own.replace(bind=False), found, host) == ()
    on_host = Experiment.of(device="cpu", nproc=2, bind=True)
    assert train_prepare.cpus_of_ranks(on_host, found, host) == (TWO[0], TWO[1])
    halves = train_prepare.cpus_of_ranks(on_host, found, FakeHost(files={}))
    assert halves == (frozenset(range(4)), frozenset(range(4, 8)))  # no nodes: cores all the same


# ---- what is measured


SIZE = 1 << 16


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's first and last processor as nodes of their own."""
    usable = sorted(os.sched_getaffinity(0))
    nodes = {0: frozenset(usable[:1]), 1: frozenset(usable[-1:])}
    monkeypatch.setattr(numa, "node_cpus", lambda *_: nodes)
    monkeypatch.setattr(numa.os, "getppid", os.getpid)


def maps(monkeypatch: pytest.MonkeyPatch, nodes: Sequence[int]) -> None:
    """The kernel says that this process's memory lies on these nodes, in equal parts."""
    text = "00000000 default anon=9 " + " ".join(f"N{node}=99999" for node in nodes)
    read = numa.ThisMachine.read
    monkeypatch.setattr(
        numa.ThisMachine,
        "read",
        lambda self, path: text if "numa_maps" in path else read(self, path),
    )


@pytest.mark.usefixtures("two_nodes")
@pytest.mark.parametrize(
    "place", [(ANY, ANY), ("node 0", "node 0"), ("node 0", "node 1"), (ALL, OWN)]
)
def test_copies_arrive_and_a_lost_element_is_seen(
    place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    maps(monkeypatch, [0, 1])
    prepared = numa.prepare(numa_case("copy", SIZE, *place), "cpu")
    assert prepared.wrong() is None
    copy = np.copyto

    def lossy(target: Any, source: Any) -> None:
        copy(target[1:], source[1:])

    monkeypatch.setattr(np, "copyto", lossy)
    prepared = numa.prepare(numa_case("copy", SIZE, *place), "cpu")
    assert "elements of the copy are not those of its source" in str(prepared.wrong())


@pytest.mark.usefixtures("two_nodes")
def test_each_thread_runs_where_it_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    maps(monkeypatch, [0, 1])
    seen: list[set[int]] = []
    copy = np.copyto

    def watched(target: Any, source: Any) -> None:
        seen.append(os.sched_getaffinity(0))
        copy(target, source)

    before = os.sched_getaffinity(0)
    monkeypatch.setattr(np, "copyto", watched)
    prepared = numa.prepare(numa_case("copy", SIZE, "node 1", "node 0"), "cpu")
    prepared.call()
    assert seen == [{max(before)}] * TURNS
    assert os.sched_getaffinity(0) == before  # the process itself stays where it was


@pytest.mark.usefixtures("two_nodes")
def test_memory_that_lies_elsewhere_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    maps(monkeypatch, [0])
    with pytest.raises(Unsupported, match="node 1 touched first lies on node 0: the node is full"):
        numa.prepare(numa_case("copy", SIZE, "node 0", "node 1"), "cpu")
    with pytest.raises(Unsupported, match="node 5 has no processor"):
        numa.prepare(numa_case("copy", SIZE, "node 5", "node 5"), "cpu")


def test_pages_are_those_of_the_mappings_that_hold_the_arrays() -> None:
    text = (
        "7f0000000000 default anon=2 N0=2 kernelpagesize_kB=4\n"
        "7f0000010000 default file=/x/N7=9 mapped=1 N1=1\n"
        "7f0000020000 default anon=8 dirty=8 N0=3 N1=5 kernelpagesize_kB=4\n"
    )
    assert numa.pages_by_node(text, [0x7F0000020000, 0x7F0000020800]) == {0: 3, 1: 5}
    assert numa.pages_by_node(text, [0x7F0000000010, 0x7F0000030000]) == {0: 5, 1: 5}
    assert numa.pages_by_node("", [1]) == {}


def test_what_is_measured_of_one_node_and_of_two() -> None:
    def places(nodes: list[int], *, is_gpu: bool) -> list[tuple[object, ...]]:
        planned = list(placements(nodes, SIZE, is_gpu=is_gpu))
        for one in planned:
            BENCHMARK.check(one.case)
        return [(one.case["direction"], one.case["cpus"], one.case["memory"]) for one in planned]

    one = ("copy", "node 0", "node 0")
    assert places([0], is_gpu=False) == [("copy", ANY, ANY), one]
    two = places([0, 1], is_gpu=False)
    assert len(two) == 6
    assert ("copy", ALL, OWN) in two
    assert ("copy", "node 1", "node 0") in two
    assert len(places([0, 1], is_gpu=True)) == 6  # unbound and each node, both ways
    with pytest.raises(UsageError, match="no binding"):
        BENCHMARK.check(numa_case("h2d", SIZE, "node 0", "node 1"))


def test_a_system_without_nodes_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trainrig: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.setattr(bench, "ThisMachine", lambda: FakeHost({}))
    code, out, err = trainrig("bench", "numa", "--budget", "5s", "--out", str(tmp_path))
    assert (code, out) == (3, "")
    assert err.splitlines()[-2].startswith(f"trainrig: this system shows no NUMA nodes: {NODE}")
    assert "trainrig bench copy" in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


# ---- what it advises


def rate(case: Case, value: float, index: int | None = None) -> Record:
    return Record(
        kind=Kind.MEASURED,
        benchmark="numa",
        case=case,
        metric="byte_rate",
        unit="B/s",
        value=value,
        interval=(0.98 * value, 1.02 * value),
        device="CPU",
        device_index=index,
    )


def copies(bound: float, unbound: float) -> list[Record]:
    rates = {
        (ANY, ANY): unbound,
        (ALL, OWN): bound,
        ("node 0", "node 0"): 1e11,
        ("node 1", "node 1"): 1e11,
        ("node 0", "node 1"): 5e10,
        ("node 1", "node 0"): 6e10,
    }
    return [rate(numa_case("copy", SIZE, *place), value) for place, value in rates.items()]


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (2.0e11, "numactl --cpunodebind=0 --membind=0 COMMAND; numactl --cpunodebind=1"),
        (1.0e11, "Leave it unbound"),
        (1.52e11, "cannot be told from no binding"),
    ],
)
def test_the_host_is_advised_where_intervals_are_clear(bound: float, words: str) -> None:
    far, binding = advice(copies(bound, 1.5e11))
    assert (
        far
        == "Memory of node 1 gives the processors of node 0 50 % of what their own node's gives."
    )
    assert words in binding


def test_one_node_has_nothing_to_choose() -> None:
    points = [rate(numa_case("copy", SIZE, *p), 1e10) for p in ((ANY, ANY), ("node 0", "node 0"))]
    (said,) = advice(points)
    assert said.startswith("One NUMA node (node 0)")


@pytest.mark.parametrize(("far", "words"), [(1.2e10, "GPU 3: node 1 ("), (2.49e10, "cannot tell")])
def test_a_gpu_s_node_is_named_where_its_link_shows_it(far: float, words: str) -> None:
    def of(node: int, value: float) -> list[Record]:
        name = f"node {node}"
        return [rate(numa_case(way, SIZE, name, name), value, 3) for way in ("h2d", "d2h")]

    (said,) = advice([*of(0, far), *of(1, 2.5e10)])
    assert words in said
