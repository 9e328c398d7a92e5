"""link: copies from one GPU to another, rate and latency of each pair.

Definition, as in CUDA samples' p2pBandwidthLatencyTest: ``from`` and ``to`` are GPUs as torch
counts them.  One way (``ways`` 1): bytes over the time of one copy; both ways (2): two copies at
once, their bytes added up.  Latency (``clock`` gpu): seconds of a copy of 16 bytes, by the GPU's
events.
``peer_access``: the GPUs reach each other's memory directly (NVLink, or PCIe with P2P), or, where
it is switched off, the driver copies through the host's memory.  What arrived is compared.

Its records have the keys of `importers.p2p_test`, and stand beside that tool's.
Unverified on hardware: no machine with two GPUs has run it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from trainrig.benchmarks import spec
from trainrig.errors import UsageError
from trainrig.record import Case
from trainrig.workload import Work

SIZE = 1 << 26
"""Bytes of a copy whose rate is measured."""
SMALL = 16
MAX_GPUS = 64


def pair_case(first: int, second: int, *, peer_access: bool, ways: int | None = None) -> Case:
    """Return a case of two GPUs: the rate one or both ways, or latency without ``ways``."""
    pair: Case = {
        "direction": "p2p", "peer_access": peer_access, "from": first, "to": second
    }  # fmt: skip
    return {**pair, "clock": "gpu"} if ways is None else {**pair, "ways": ways}


def size_of(case: Case) -> int:
    """Return bytes of one copy of a case."""
    return SMALL if "clock" in case else SIZE


def _check_more(case: Case) -> None:
    ends = {case["from"], case["to"]}
    if len(ends) != 2 or not ends <= set(range(MAX_GPUS)):
        raise UsageError("a link has two GPUs, from and to")
    if ("clock" in case) == ("ways" in case):
        raise UsageError("a link has ways, of its rate, or a clock, of its latency")


def _metrics(case: Case) -> tuple[spec.Metric, ...]:
    latency = spec.Metric(name="time", unit="s", amount=None, formula="time of a copy of 16 bytes")
    return (latency,) if "clock" in case else (spec.byte_rate(_work(case)),)


def _work(case: Case) -> Work:
    return Work(flops=0, num_bytes=size_of(case) * int(spec.number_in(case, "ways") or 1))


def pairs(first: int, num_gpus: int) -> Iterator[spec.PlannedCase]:
    """Yield the cases that GPU ``first`` starts: to every other GPU, both ways once a pair."""
    others = [other for other in range(num_gpus) if other != first]
    # Peer access last: torch switches it on and leaves it on.
    for peer_access, second, ways in itertools.product((False, True), others, (1, 2, None)):
        if ways != 2 or second > first:
            case = pair_case(first, second, peer_access=peer_access, ways=ways)
            step = f"links of GPU {first}, peer access {'on' if peer_access else 'off'}"
            yield spec.PlannedCase(case=case, step=step, required=not peer_access, shared=True)


def _label(case: Case) -> str:
    is_within = case.get("direction") == "d2d"
    words = [f"GPU {case.get('from')} to GPU {case.get('to')}"]
    if is_within:
        words = [f"within GPU {case['gpu']}" if "gpu" in case else "within the GPU"]
    elif case.get("direction") != "p2p":
        words = [{"h2d": "host to GPU", "d2h": "GPU to host"}.get(str(case.get("direction")), "")]
    elif "from" not in case or "to" not in case:
        words = ["GPU to GPU"]
    words += ["both ways"] if case.get("ways") == 2 else []
    words += [f"latency by the {str(case['clock']).upper()}"] if "clock" in case else []
    if isinstance(access := case.get("peer_access"), bool):
        words.append(f"peer access {'on' if access else 'off'}")
    shown_elsewhere = {"direction", "from", "to", "gpu", "ways", "clock", "peer_access"}
    words += [f"{key.replace('_', ' ')} {case[key]}" for key in case if key not in shown_elsewhere]
    return ", ".join(filter(None, words))


BENCHMARK = spec.Benchmark(
    name="link",
    version=1,
    title="links of GPUs: host and pairs, rate, latency, peer access on and off",
    order=65,
    module="trainrig.measure.link",
    role=spec.Role.LINK,
    example=pair_case(0, 1, peer_access=True, ways=1),
    fields={"direction": ("p2p",), "peer_access": (True, False), "from": (), "to": ()},
    optional={"ways": (1, 2), "clock": ("gpu",)},
    check_more=_check_more,
    work=_work,
    metrics=_metrics,
    memory=lambda case: 4 * size_of(case),
    options={"device": ""},
    select=lambda _: (),
    label=_label,
    nature=lambda case: tuple(case.get(key) for key in ("direction", "peer_access", "ways")),
)
