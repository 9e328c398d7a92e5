"""collective: what ranks exchange, by operation, size and number of ranks.

Definition, as in nccl-tests: the size is that of the whole buffer (what each rank ends up with of
an all_gather, begins with of a reduce_scatter; of sendrecv and send one message); the time is the
mean over the ranks of a call's seconds, out of a batch of calls without a pause; algorithm
bandwidth is the size over that time, bus bandwidth that times 2(n-1)/n for all_reduce, (n-1)/n for
all_gather, reduce_scatter and all_to_all, and 1 for broadcast, sendrecv and send: so that it
compares with the rate of one rank's link in one direction.  sendrecv: every rank sends to the next
one at once; send: one rank to another one, one way, while all others wait.  Elements are fp32 and
are added up; what arrived is compared for equality.

Source: NVIDIA/nccl-tests doc/PERFORMANCE.md and src/*.cu (read 2026-11-22).
"""

from __future__ import annotations

from collections.abc import Iterator

from trainrig.benchmarks import spec
from trainrig.errors import UsageError
from trainrig.record import Case
from trainrig.units import binary, parse_count
from trainrig.workload import Work

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv", "send")
USUAL_OPS = OPS[:6]
SHARED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Operations whose buffer has a part for each rank, or a sum of all."""
BACKENDS = ("gloo", "nccl")
MAX_BYTES = 1 << 36
MAX_RANKS = 1 << 16
ELEMENT = 4
"""Bytes of an fp32."""
START_TIME = 6.0
"""Seconds in which ranks load torch and join each other."""
_LOW, _HIGH = "1Ki", {"gloo": "64Mi", "nccl": "1Gi"}
_STEP = 4
_LARGE_BYTES = 1 << 26


def bus_factor(op: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth of ``ranks``; 1 of a single rank, as nothing moves."""
    if ranks < 2 or op not in SHARED:
        return 1.0
    return (2.0 if op == "all_reduce" else 1.0) * (ranks - 1) / ranks


def collective_case(
    op: str, ranks: int, num_bytes: int, backend: str, *, nodes: int = 1, **more: str | int | bool
) -> Case:
    """Build a case; its size is cut to whole elements of each rank's share."""
    share_bytes = ELEMENT * ranks
    size = max(num_bytes // share_bytes, 1) * share_bytes
    case: Case = {"collective": op, "ranks": ranks, "nodes": nodes, "bytes": size}
    return {**case, "backend": backend, **more}


def ranks_of(case: Case) -> int:
    """Ranks that share a case."""
    return int(spec.number_in(case, "ranks"))


def _check_more(case: Case) -> None:
    size, ranks = spec.size_in(case, "bytes"), ranks_of(case)
    if ranks < 1:
        raise UsageError(f"{ranks} ranks", "one or more")
    if size % (ELEMENT * ranks):
        raise UsageError(f"{size} bytes for {ranks} ranks", f"a multiple of {ELEMENT * ranks}")
    ends = {case.get(name) for name in ("from", "to")}
    is_pair = len(ends & set(range(ranks))) == 2
    if is_pair if case["collective"] != "send" else not is_pair:
        raise UsageError("a send has two ranks, from and to; other operations have none")


def _work(case: Case) -> Work:
    return Work(flops=0, num_bytes=spec.size_in(case, "bytes"))


def _memory(case: Case) -> int:
    """Return the bytes of one rank on its GPU, or through gloo of all ranks of a node."""
    together = -(-ranks_of(case) // spec.size_in(case, "nodes")) if case["backend"] == "gloo" else 1
    return 3 * spec.size_in(case, "bytes") * together


def _metrics(case: Case) -> tuple[spec.Metric, ...]:
    size = float(spec.size_in(case, "bytes"))
    factor = bus_factor(str(case["collective"]), ranks_of(case))
    bus = f"{factor:.4g} · bytes / time" if factor != 1.0 else "bytes / time"
    return (
        spec.Metric(
            name="bus_rate", unit="B/s", amount=factor * size, formula=bus, is_claimed=True
        ),
        spec.Metric(name="alg_rate", unit="B/s", amount=size, formula="bytes / time"),
        spec.Metric(name="time", unit="s", amount=None, formula="time of a call, mean of ranks"),
    )


def _bytes(text: str) -> int:
    """Return a size as nccl-tests reads it: 1K, 1KB and 1Ki are 1024 bytes."""
    plain = text.strip().rstrip("bB")
    is_decimal = plain[-1:].lower() in ("k", "m", "g")
    return parse_count(f"{plain}i" if is_decimal else plain, MAX_BYTES)


def _sizes(selection: spec.Selection, backend: str) -> list[int]:
    """Return sizes from ``--min`` to ``--max`` in steps of four times, both ends included."""
    if selection.sizes:
        if selection.low or selection.high:
            raise UsageError("--size beside --min or --max", "name sizes, or from which to which")
        return [_bytes(size) for size in selection.sizes]
    low = _bytes(selection.low or _LOW)
    high = _bytes(selection.high or _HIGH[backend])
    if not 0 < low <= high:
        raise UsageError(
            f"from {low} to {high} bytes there is no size", "--min 1K is below --max 1M"
        )
    sizes = [low]
    while sizes[-1] * _STEP < high:
        sizes.append(sizes[-1] * _STEP)
    return sorted({*sizes, high})


def _pairs(op: str, ranks: int) -> Iterator[dict[str, int]]:
    if op != "send":
        yield {}
        return
    for first in range(ranks):
        yield from ({"from": first, "to": second} for second in range(ranks) if second != first)


def _select(selection: spec.Selection) -> list[spec.PlannedCase]:
    backend = selection.backend
    spec.check_options("collective", "--backend", [backend], BACKENDS)
    spec.check_options("collective", "--op", selection.ops, OPS)
    ranks = list(selection.ranks) or [2]
    if wrong := [number for number in ranks if not 1 <= number <= MAX_RANKS]:
        raise UsageError(f"--ranks {wrong[0]}", f"from 1 to {MAX_RANKS}")
    usual = USUAL_OPS if selection.nodes == 1 else (*USUAL_OPS, "send")
    access = selection.peer_access if backend == "nccl" else (True,)
    cases = [
        collective_case(
            op,
            number,
            size,
            backend,
            nodes=selection.nodes,
            **pair,
            **({} if peers else {"peer_access": False}),
        )
        for number in ranks
        for peers in (access if number > 1 else (True,))
        for op in selection.ops or usual
        for pair in _pairs(op, number)
        for size in _sizes(selection, backend)
    ]
    # Cut to whole elements, two sizes may be one.
    distinct = {tuple(sorted(case.items())): case for case in cases}
    return [
        spec.PlannedCase(case=case, step=f"{case['collective']} of {case['ranks']}", required=True)
        for case in distinct.values()
    ]


def _qualify(scope: spec.Scope) -> list[spec.PlannedCase]:
    """Plan collectives over all GPUs if time is left: wrong answers and lost ranks are judged.

    A host alone exchanges nothing that a verdict needs.
    """
    if not scope.is_gpu or scope.peers < 2 or not scope.is_first or scope.is_small:
        return []
    return [
        spec.PlannedCase(
            case=collective_case(op, scope.peers, size, "nccl"),
            step=f"{op} of {scope.peers}",
            seconds=1.0,
            shared=True,
        )
        for op in ("all_reduce", "all_gather", "all_to_all")
        for size in (1 << 20, 1 << 28)
    ]


def _label(case: Case) -> str:
    words = [str(case.get("collective") or "a collective").replace("_", "-")]
    if case.get("from") is not None:
        words[0] += f" from rank {case['from']} to {case.get('to')}"
    if isinstance(size := case.get("bytes"), int):
        words.append(f"{binary(size)}B")
    if isinstance(ranks := case.get("ranks"), int):
        words.append(f"{ranks} ranks" if ranks != 1 else "1 rank")
    if isinstance(nodes := case.get("nodes"), int) and nodes > 1:
        words.append(f"{nodes} nodes")
    words += [str(case[name]) for name in ("backend", "dtype", "reduction") if case.get(name)]
    words += ["in place"] if case.get("in_place") else []
    words += ["peer access off"] if case.get("peer_access") is False else []
    return ", ".join(words)


BENCHMARK = spec.Benchmark(
    name="collective",
    version=1,
    title="what ranks exchange: collectives by size and number of ranks",
    order=70,
    module="trainrig.measure.collective",
    role=spec.Role.COLLECTIVE,
    example=collective_case("all_reduce", 2, 1 << 20, "gloo"),
    fields={
        "collective": OPS,
        "ranks": MAX_RANKS,
        "nodes": MAX_RANKS,
        "bytes": MAX_BYTES,
        "backend": BACKENDS,
    },
    optional={"from": (), "to": (), "peer_access": (False,)},
    check_more=_check_more,
    work=_work,
    metrics=_metrics,
    memory=_memory,
    workers=lambda _: 1,
    ranks=ranks_of,
    cost=spec.CaseCost(fixed=0.02, fill=(5e8, 1e11)),
    qualify=_qualify,
    max_share=0.15,
    launch_seconds=1.0,
    options={
        "op": ", ".join(OPS),
        "size": "bytes of the buffer: 1MiB",
        "ranks": "ranks that are started here, several numbers are measured in turn: 2,4",
        "min": "smallest size, 1K is 1024 bytes; the next ones are four times as large each",
        "max": "largest size",
        "backend": "gloo or nccl",
        "peer-access": "with nccl: on, off or both, which shows what NVLink and P2P are worth",
        "timeout": "how long no rank moves until the one that hangs is named",
    },
    select=_select,
    label=_label,
    sizes=frozenset(["bytes"]),
    is_large=lambda case: "bytes" not in case or spec.number_in(case, "bytes") >= _LARGE_BYTES,
    nature=lambda case: tuple(
        case.get(name) for name in ("collective", "ranks", "nodes", "backend", "peer_access")
    ),
)
