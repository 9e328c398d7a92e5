"""Collectives: nccl-tests' definitions; ranks that fail are named; real ranks where it counts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainrig.analysis.judge import judge
from trainrig.analysis.judge_links import findings_of
from trainrig.benchmarks.collective import BENCHMARK, bus_factor, collective_case, ranks_of
from trainrig.benchmarks.spec import Scope, Selection
from trainrig.errors import UsageError
from trainrig.measure.collective import AllRanks, CheckedCollective, Projection
from trainrig.measure.collective_faults import LOST, WRONG
from trainrig.process.supervisor import Ended
from trainrig.process.worker import Reply
from trainrig.record import Kind, Outcome, Record, Status
from trainrig.report.link_report import _exchanges
from trainrig.runner import ranks
from trainrig.runner.bench import BenchRequest, bench, summary
from trainrig.runner.plan import Task
from trainrig.runner.ranks import place
from trainrig.runner.targets import Target
from trainrig.store import create_run, read_run


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [
        # Worked by hand from nccl-tests' doc/PERFORMANCE.md.
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("sendrecv", 8, 1.0),
        ("all_reduce", 1, 1.0),
    ],
)
def test_bus_bandwidth_is_as_nccl_tests_defines_it(op: str, ranks: int, factor: float) -> None:
    assert bus_factor(op, ranks) == factor
    case = collective_case(op, ranks, 1 << 20, "gloo")
    rates = {metric.name: metric.of(0.5) for metric in BENCHMARK.metrics(case)}
    assert rates == {"bus_rate": factor * (1 << 21), "alg_rate": 1 << 21, "time": 0.5}


def test_sizes_go_from_the_smallest_to_the_largest_and_are_cut_to_whole_parts() -> None:
    planned = BENCHMARK.select(Selection(ranks=(3,), low="1K", high="10KiB", ops=("all_gather",)))
    assert [one.case["bytes"] for one in planned] == [1020, 4092, 10236]
    for one in planned:
        BENCHMARK.check(one.case)


def test_pairs_are_all_ordered_ones() -> None:
    planned = BENCHMARK.select(Selection(ranks=(3,), sizes=("1Mi",), ops=("send",)))
    pairs = [(one.case["from"], one.case["to"]) for one in planned]
    assert pairs == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


def test_both_ways_of_peer_access_are_cases_of_nccl_alone() -> None:
    def access(backend: str) -> set[object]:
        chosen = Selection(ranks=(2,), sizes=("1Mi",), backend=backend)
        return {one.case.get("peer_access", True) for one in BENCHMARK.select(chosen)}

    assert (access("nccl"), access("gloo")) == ({True, False}, {True})


@pytest.mark.parametrize(("gpus", "planned"), [(1, 0), (4, 6)])
def test_a_qualification_lets_several_gpus_exchange_once(gpus: int, planned: int) -> None:
    first = Scope(is_gpu=True, budget=240.0, peers=gpus)
    assert len(list(BENCHMARK.qualify(first))) == planned
    assert not BENCHMARK.qualify(Scope(is_gpu=True, budget=240.0, peers=gpus, is_first=False))
    assert not BENCHMARK.qualify(Scope(is_gpu=False, budget=240.0))


def test_what_would_not_fit_is_left_out_by_what_its_operation_took() -> None:
    pace = Projection()
    small, large = ({"collective": "all_reduce", "bytes": size} for size in (1 << 20, 1 << 24))
    assert pace.why_not(large, 2.0) is None
    pace.learn(small, 1.0)
    assert "projected to take 16.0 s" in str(pace.why_not(large, 10.0))
    assert pace.why_not(large, 17.0) is None


class OneRank:
    """torch.distributed of a single rank: a sum is what it was."""

    def all_reduce(self, _: object) -> None:
        pass


def test_a_sum_that_was_taken_thousands_of_times_is_no_error() -> None:
    import torch

    group = AllRanks(torch=torch, dist=OneRank(), host=None, rank=0, size=2, device="cpu")
    own = CheckedCollective(group, collective_case("all_reduce", 2, 4096, "gloo"))
    assert "of 1024 numbers of all_reduce are wrong" in str(own.wrong())  # nothing was added
    for _ in range(5000):
        own.call()
    assert own._target_error() is None  # infinite by then: not known


# ---- what is judged


def sent(first: int, second: int, rate: float, **more: object) -> Record:
    case = collective_case("send", 3, 1 << 20, "gloo", **{"from": first, "to": second})
    record = Record(
        kind=Kind.MEASURED,
        benchmark="collective",
        case=case,
        metric="bus_rate",
        unit="B/s",
        value=rate,
        interval=(0.98 * rate, 1.02 * rate),
        device="CPU",
        device_count=3,
    )
    return record.replace(**more)


def test_a_slow_link_is_named_and_healthy_ones_are_not() -> None:
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    healthy = [sent(a, b, 1e9 + 1e8 * a) for a, b in pairs]
    assert list(findings_of(healthy)) == []
    hosts = {"hosts": "north 10.0.0.1,south 10.0.0.2,west 10.0.0.3"}
    slowed = [
        record.replace(value=1e8, interval=(0.9e8, 1.1e8), conditions=hosts)
        if record.case["from"] == 2 and record.case["to"] == 0
        else record
        for record in healthy
    ]
    (found,) = findings_of(slowed)
    assert (found.id, found.severity) == ("slow-link", "error")
    assert "rank 2 (west 10.0.0.3) to rank 0 (north 10.0.0.1): 100 MB/s" in found.evidence
    assert judge(slowed).outcome is Outcome.FAIL


@pytest.mark.parametrize("status", [Status.FAILED, Status.TIMEOUT])
def test_a_lost_rank_fails_the_run(status: Status) -> None:
    lost = sent(0, 1, 1.0, value=None, interval=None, status=status, reason="rank 1 is stopped")
    verdict = judge([sent(1, 0, 1e9), lost])
    assert verdict.outcome is Outcome.FAIL
    assert [found.id for found in verdict.findings] == ["rank-lost"]
    assert "rank 1 is stopped" in verdict.reason


# ---- ranks that others start


def test_a_place_among_ranks_is_read_from_what_torchrun_sets() -> None:
    env = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
    own = place(env | {"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3", "HOME": "/root"})
    assert own is not None
    assert (own.rank, own.ranks, own.nodes) == (3, 8, 2)
    assert "HOME" not in own.env
    assert own.env["LOCAL_RANK"] == "3"
    assert place({}) is None
    assert place(env | {"WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize("wrong", [{"RANK": "8"}, {"RANK": "-1"}, {"LOCAL_WORLD_SIZE": "0"}])
def test_a_place_that_is_none_is_refused(wrong: dict[str, str]) -> None:
    env = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
    with pytest.raises(UsageError, match="no place of a rank"):
        place(env | wrong)


# ---- real ranks

TWO = {"benchmark": "collective", "ranks": (2,), "backend": "gloo"}


@pytest.mark.smoke
def test_two_ranks_exchange_everything_and_leave_nothing_behind(tmp_path: Path) -> None:
    outcome = bench(BenchRequest(**TWO, high="64Ki"), budget=30.0, out=tmp_path)
    rows = summary(outcome)["sizes"]
    assert outcome.exit_code() == 0, outcome.verdict
    assert {row["collective"] for row in rows} == set(BENCHMARK.fields["collective"]) - {"send"}
    assert all(row["algorithm_bandwidth"] > 0.0 for row in rows)
    assert all(row["bus_bandwidth"] for row in rows)
    run = read_run(outcome.run)
    assert all(r.samples for r in run.records if r.attempt is not None)
    assert "Bus bandwidth over size, 2 ranks, gloo" in (outcome.run / "report.html").read_text()
    assert ranks_left() == ""


def fault(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "trainrig.measure.collective_faults", name)


def ranks_left() -> str:
    listed = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True, check=True)
    own = f"{os.getpid()} "
    lines = [line for line in listed.stdout.splitlines() if line.lstrip().startswith(own)]
    return "\n".join(line for line in lines if "measure.collective" in line)


@pytest.mark.acceptance
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_is_caught(tmp_path: Path, name: str) -> None:
    ops = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv")
    request = BenchRequest(**TWO, sizes=("16Ki",), ops=ops)
    outcome = bench(request, budget=30.0, out=tmp_path, program=fault(name))
    assert outcome.exit_code() == 1
    wrong = [found for found in outcome.verdict.findings if found.id == "wrong-answer"]
    assert len(wrong) == len(ops), outcome.verdict
    assert all("rank 1:" in found.evidence for found in wrong)


@pytest.mark.acceptance
@pytest.mark.parametrize("name", LOST)
def test_a_lost_rank_is_named_with_its_operation(tmp_path: Path, name: str) -> None:
    request = BenchRequest(**TWO, sizes=("4Ki", "16Ki"), ops=("all_reduce",), timeout=3.0)
    outcome = bench(request, budget=30.0, out=tmp_path, program=fault(name))
    assert outcome.exit_code() == 1
    (found,) = [found for found in outcome.verdict.findings if found.id == "rank-lost"]
    named = {"stop": "rank 1 is stopped", "hang": "rank 1 waits", "leave": "rank 1 ended with"}
    assert named.get(name, "rank 1 was ended by SIGKILL") in found.evidence
    assert "all_reduce" in found.evidence
    assert "16384 bytes" in found.evidence
    assert ranks_left() == ""


@pytest.mark.acceptance
def test_a_slowed_sender_is_named(tmp_path: Path) -> None:
    request = BenchRequest(**TWO, sizes=("1Mi",), ops=("send",))
    outcome = bench(request, budget=30.0, out=tmp_path, program=fault("slow"))
    (found,) = [found for found in outcome.verdict.findings if found.id == "slow-link"]
    assert "from rank 1 to rank 0" in found.evidence
    healthy = bench(request, budget=30.0, out=tmp_path, program=fault("none"))
    assert healthy.exit_code() == 0, healthy.verdict


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        env = os.environ | {"MASTER_PORT": str(taken.getsockname()[1])}
        done = subprocess.run(
            [sys.executable, "-m", "trainrig", "bench", "collective", "--max", "1K", "--backend"]
            + ["gloo", "--out", str(tmp_path)],
            capture_output=True,
            text=True,
            env=env,
            timeout=120,
            check=False,
        )
    assert done.returncode == 2
    assert "is not available" in done.stderr
    assert json.dumps(list(map(str, tmp_path.glob("*")))) == "[]"


# ---- two nodes

NEEDS_ROOT = "needs root and ip: two nodes in network namespaces"


@pytest.fixture
def two_nodes() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them, named for this process."""
    names = (f"trainrig-a-{os.getpid()}", f"trainrig-b-{os.getpid()}")

    def ip(*words: str) -> int:
        done = subprocess.run(["ip", *words], capture_output=True, check=False, timeout=20)
        return done.returncode

    if shutil.which("ip") is None or os.geteuid() or ip("netns", "add", names[0]):
        pytest.skip(NEEDS_ROOT)
    try:
        ip("netns", "add", names[1])
        first = ("link", "add", "va", "netns", names[0], "type", "veth")
        if ip(*first, "peer", "name", "vb", "netns", names[1]):
            pytest.skip(NEEDS_ROOT)
        for name, end, address in zip(names, ("va", "vb"), ("10.77.0.1", "10.77.0.2"), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", end, "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


@pytest.mark.acceptance
def test_a_slowed_link_between_two_nodes_is_found_and_named(
    two_nodes: tuple[str, str], tmp_path: Path
) -> None:
    def on_both(out: Path) -> tuple[int, str]:
        started = []
        for rank, (name, end) in enumerate(zip(two_nodes, ("va", "vb"), strict=True)):
            env = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
            env |= {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29555"}
            words = [sys.executable, "-m", "trainrig", "bench", "collective", "--op", "all_reduce"]
            words += ["--op", "send", "--size", "1M", "--backend", "gloo", "--out", str(out)]
            started.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", name, *words],
                    env=env | {"GLOO_SOCKET_IFNAME": end},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
        said, _ = started[0].communicate(timeout=100)
        started[1].communicate(timeout=100)
        return started[0].returncode, said

    code, said = on_both(tmp_path / "healthy")
    assert "slow-link" not in said and code in (0, 3), said
    shaped = ["tbf", "rate", "100mbit", "burst", "64kb", "latency", "400ms"]
    subprocess.run(
        ["ip", "netns", "exec", two_nodes[1], "tc", "qdisc", "add", "dev", "vb", "root", *shaped],
        check=True,
    )
    code, said = on_both(tmp_path / "slowed")
    assert code == 1
    (folder,) = (tmp_path / "slowed").iterdir()
    verdict = read_run(folder).verdict
    assert verdict is not None
    (found,) = [each for each in verdict.findings if each.id == "slow-link"]
    assert re.search(r"from rank 1 \(\S+ 10.77.0.2\) to rank 0 \(\S+ 10.77.0.1\)", found.evidence)


# ---- what is shown, and what it needs


def test_the_table_has_a_line_for_each_operation_and_size() -> None:
    """In text, Markdown and HTML alike: they render one document."""
    records = []
    for op in ("broadcast", "all_reduce"):
        for size in (1 << 20, 1 << 10):
            case = collective_case(op, 4, size, "gloo")
            for metric in BENCHMARK.metrics(case):
                value = metric.of(0.5)
                own = sent(0, 1, value).replace(case=case, metric=metric.name, unit=metric.unit)
                records.append(own)
    (table,) = _exchanges(records)
    assert table.title == "What ranks exchange by gloo, 4 ranks"
    rows = [[cell.text for cell in cells] for _, cells in table.lines()]
    assert [row[:2] for row in rows] == [
        ["all_reduce", "1 KiB"],
        ["all_reduce", "1 MiB"],
        ["broadcast", "1 KiB"],
        ["broadcast", "1 MiB"],
    ]
    assert rows[1][2:] == ["500 ms", "2.10 MB/s", "3.15 MB/s"]


def test_buffers_of_all_ranks_of_a_host_must_fit_its_memory_together() -> None:
    def needed(backend: str, ranks: int, nodes: int = 1) -> int:
        return BENCHMARK.memory(collective_case("all_reduce", ranks, 1 << 30, backend, nodes=nodes))

    assert needed("gloo", 16) == 16 * needed("gloo", 1) == 16 * needed("nccl", 16)
    assert needed("gloo", 16, nodes=4) == 4 * needed("gloo", 1)


# ---- the budget


def test_ranks_that_do_not_come_up_cost_the_budget_and_one_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = [100.0]
    limits: list[float] = []

    def never_up(*_: object, limit: float, **__: object) -> Ended:
        limits.append(limit)
        now[0] += limit
        return Ended(status=Status.TIMEOUT, reason="no rank came up", duration=limit)

    monkeypatch.setattr(ranks, "launch", never_up)
    monkeypatch.setattr(ranks.time, "monotonic", lambda: now[0])
    planned = [
        one
        for count in (2, 3, 4)
        for one in BENCHMARK.select(Selection(ranks=(count,), sizes=("1Ki", "1Mi")))
    ]
    host = Target(torch_device="cpu", name="EPYC", index=None, memory_bytes=1 << 34, chip=None)
    tasks = [
        Task(target=host, benchmark="collective", planned=one, count=ranks_of(one.case))
        for one in planned
    ]
    replies: list[Reply] = []
    with create_run(tmp_path, "bench", {}) as run:
        ranks.Exchanger(run)(tasks, now[0] + 15.0, lambda _, reply: replies.append(reply))
    assert len(replies) == len(tasks)
    assert {reply.status for reply in replies} == {Status.SKIPPED}
    assert limits == [ranks._JOINED_BY + ranks._PATIENCE]
