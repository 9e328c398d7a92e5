"""One rank of `benchmarks.collective`: it exchanges what the first rank says, and checks it.

Started as ``python -m trainrig.measure.collective FOLDER`` with RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT in its environment, by `process.supervisor` or, a node each, by torchrun.  The first
rank reads FOLDER/cases.json and tells the others what comes next, so that no folder need be shared;
what they say to each other beside the measurement goes through gloo, on a group of its own.

The one timing loop (`measure.timing`) runs in the first rank.  Its clock is the group's: all ranks
meet, time the same number of calls, and the mean of their seconds counts, as in nccl-tests.

Buffers hold whole numbers below 251 that depend on place, rank and round, so that sums are exact in
fp32 and what went to the wrong place, or stayed where it was, is seen.  Checked is one call before
and one after the timed ones, into buffers that were poisoned with NaN, and what the last timed call
left, where that is known (an all_reduce in place multiplies it each time).
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainrig.benchmarks import spec
from trainrig.measure import noise
from trainrig.measure.clock import Clock, clock_for
from trainrig.measure.timing import Settings, sample
from trainrig.process.child import first_line, is_out_of_memory, run_rank
from trainrig.process.events import Events
from trainrig.record import WRONG_ANSWER, Case, Status

if TYPE_CHECKING:
    import torch

CASES = "cases.json"
"""File name of the cases that the first rank reads from its folder (`settings_of`)."""
PATIENCE = timedelta(hours=2)
"""Timeout of a collective.  The parent's is shorter: it sees which rank is missing."""
_PERIOD = 251
"""Numbers repeat after so many elements: a prime, no divisor of any part's size."""
_BLOCK = _PERIOD * 4096
_DOUBLINGS = 100
"""Number of doublings, over all ranks of any group, that fp32 can hold exactly."""


def main() -> None:
    """Exchange, emit a row for each case, leave with 0, or with 1 and a reason among the events."""
    run_rank(_serve)


def _serve(folder: Path, events: Events) -> None:
    import torch
    import torch.distributed as dist

    rank, size = events.rank, int(os.environ.get("WORLD_SIZE", "1"))
    requested = json.loads((folder / CASES).read_text()) if rank == 0 else settings_of((), 0.0, 0.0)
    events.set_position(part="joining the other ranks")
    if size == 1:  # it has no place, and is alone
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0"}
        os.environ["WORLD_SIZE"] = "1"
    backend = os.environ["TRAINRIG_BACKEND"]
    device = "cpu"
    if backend == "nccl":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)  # ranks side by side, one core each
    dist.init_process_group("cpu:gloo,cuda:nccl" if device != "cpu" else "gloo", timeout=PATIENCE)
    host = dist.new_group(backend="gloo", timeout=PATIENCE)
    group = AllRanks(torch=torch, dist=dist, host=host, rank=rank, size=size, device=device)
    hosts = group.gather(_host())
    events.emit("joined", hosts=hosts)
    host_row = {"hosts": ",".join(hosts)} if len(set(hosts)) > 1 else {}
    pace, end = Projection(), time.monotonic() + requested["room"]
    for number in range(group.count(len(requested["cases"]))):
        next_case = requested["cases"][number] if rank == 0 else None
        if next_case and (late := pace.why_not(next_case, end - time.monotonic())):
            next_case = None
            events.emit("row", step=number + 1, status=Status.SKIPPED, reason=late)
        if (received := group.broadcast(next_case and (next_case, requested["seconds"]))) is None:
            continue
        case, seconds = received
        label = f"{case['bytes']} bytes"
        events.set_position(step=number + 1, part=label, operation="")
        row = _measure(group, case, seconds, events)
        if rank == 0:
            pace.learn(case, row["duration"])
            row["conditions"] = {**row.get("conditions", {}), **host_row}
            events.emit("row", step=number + 1, **row)


def _host() -> str:
    """Return this host's name and the address by which it reaches the first rank."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))
        return f"{socket.gethostname()} {probe.getsockname()[0]}"
    return socket.gethostname()


class Projection:
    """Estimate of a case's duration from the last one of its operation, kept by the first rank."""

    def __init__(self) -> None:
        self._took: dict[str, tuple[float, float]] = {}

    def learn(self, case: Case, seconds: float) -> None:
        """Record the case's duration in seconds."""
        self._took[str(case["collective"])] = (spec.number_in(case, "bytes"), seconds)

    def why_not(self, case: Case, left_s: float) -> str | None:
        """Return why a case is skipped with ``left_s`` seconds left, or None."""
        size, took = self._took.get(str(case["collective"]), (1.0, 0.0))
        projected = took * max(spec.number_in(case, "bytes") / size, 1.0)
        if projected < max(left_s, 1.0):
            return None
        return f"projected to take {projected:.1f} s, and {max(left_s, 0.0):.1f} s are left"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllRanks:
    """All ranks: what they tell each other beside what is measured."""

    torch: Any
    dist: Any
    host: Any
    """A group through gloo, for words and numbers."""
    rank: int
    size: int
    device: str

    def broadcast(self, value: Any) -> Any:
        """Return the first rank's value in all ranks."""
        box = [value]
        self.dist.broadcast_object_list(box, src=0, group=self.host)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the list of all ranks' values in all ranks."""
        values: list[Any] = [None] * self.size
        self.dist.all_gather_object(values, value, group=self.host)
        return values

    def count(self, value: int) -> int:
        """Broadcast an integer of the first rank; faster than `broadcast` of an object."""
        number = self.torch.tensor([value])
        self.dist.broadcast(number, src=0, group=self.host)
        return int(number)

    def mean(self, value: float) -> float:
        """Return the mean of a value over all ranks."""
        number = self.torch.tensor([value], dtype=self.torch.float64)
        self.dist.all_reduce(number, group=self.host)
        return float(number) / self.size

    def barrier(self) -> None:
        """Wait until all ranks have arrived (barrier)."""
        self.dist.barrier(group=self.host)


class GroupClock:
    """The clock of all ranks, for the loop in the first one; the others follow it."""

    def __init__(self, group: AllRanks, beat: Callable[[], None]) -> None:
        self._own: Clock = clock_for(group.device)
        self._group, self._beat = group, beat
        self.name = f"{self._own.name}, mean of {group.size} ranks"
        self.resolution = self._own.resolution
        self.overhead = self._own.overhead

    def time(self, call: Callable[[], object], count: int) -> float:
        """Time ``count`` calls; return the mean over ranks in seconds, in all ranks."""
        self._group.count(count)
        return self._timed(call, count)

    def _timed(self, call: Callable[[], object], count: int) -> float:
        self._beat()
        self._group.barrier()
        return self._group.mean(self._own.time(call, count))

    def now(self) -> float:
        """Return seconds of the first rank's clock, for budgets."""
        return self._own.now()

    def follow(self, call: Callable[[], object]) -> None:
        """Repeat the first rank's calls in the other ranks until it is done."""
        while count := self._group.count(0):
            self._timed(call, count)

    def release(self) -> None:
        """Tell the other ranks that the first one is done."""
        self._group.count(0)


def _measure(group: AllRanks, case: Case, seconds: float, events: Events) -> dict[str, Any]:
    """Measure one case in all ranks and return the first rank's row."""
    began = time.perf_counter()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")

    def beat() -> None:
        events.set_position(operation=str(case["collective"]))

    def row(status: Status, reason: str | None = None, **more: Any) -> dict[str, Any]:
        spent = time.perf_counter() - began
        return {"status": status, "reason": reason, "started": started, "duration": spent, **more}

    exchange, problem = _prepared(group, case)
    if any(problems := group.gather(problem)):
        first_problem = next(
            (rank, problem_in_rank)
            for rank, problem_in_rank in enumerate(problems)
            if problem_in_rank
        )
        return row(Status(first_problem[1][0]), f"rank {first_problem[0]}: {first_problem[1][1]}")
    assert exchange is not None
    beat()
    try:
        wrong = exchange.wrong()
    except (RuntimeError, ValueError) as error:
        if "support" not in str(error):  # a backend that lacks it says so in every rank
            raise
        missing = f"{case['backend']} has no {case['collective']} in this torch: "
        return row(Status.MISSING, missing + first_line(error))
    if (rank_error := _first_error(group, wrong)) is not None:
        return row(Status.FAILED, f"{WRONG_ANSWER} before timing: {rank_error}")
    clock = GroupClock(group, beat)
    with noise.watch(group.device) as watched:
        if group.rank == 0:
            samples = sample(clock, exchange.call, Settings(max_time=seconds))
            clock.release()
        else:
            samples = None
            clock.follow(exchange.call)
    beat()
    if (rank_error := _first_error(group, exchange.wrong())) is not None:
        return row(Status.FAILED, f"{WRONG_ANSWER} after timing: {rank_error}")
    if samples is None:
        return row(Status.OK)
    return row(
        Status.OK,
        samples=samples.times,
        stop=samples.stop,
        # Ranks share the processors, and each waits for the others: that is what is measured.
        conditions={
            "clock": clock.name,
            "calls_per_sample": samples.calls_per_sample,
            **watched.conditions,
        },
    )


def _prepared(
    group: AllRanks, case: Case
) -> tuple[CheckedCollective | None, tuple[str, str] | None]:
    """Return the exchange, or its status and reason: no memory, no such operation."""
    try:
        exchange = CheckedCollective(group, case)
    except Exception as error:  # noqa: BLE001 - the edge: torch raises nearly everything
        status = Status.OOM if is_out_of_memory(error) else Status.FAILED
        return None, (status, f"{type(error).__name__}: {first_line(error)}")
    return exchange, None


def _first_error(group: AllRanks, wrong: str | None) -> str | None:
    """Return the error of the first rank that has one, with its number, or None."""
    errors = group.gather(wrong)
    return next((f"rank {rank}: {error}" for rank, error in enumerate(errors) if error), None)


TORCH_NAMES = {
    "all_gather": ("all_gather_single", "all_gather_into_tensor"),
    "reduce_scatter": ("reduce_scatter_single", "reduce_scatter_tensor"),
    "all_to_all": ("all_to_all_single",),
}
"""Names in torch.distributed by operation: of torch 2.13 and of earlier versions."""


class CheckedCollective:
    """The buffers of a case in one rank, its call and the check of what came."""

    def __init__(self, group: AllRanks, case: Case) -> None:
        torch, self._group = group.torch, group
        self.op, ranks = str(case["collective"]), group.size
        names = (name for name in TORCH_NAMES.get(self.op, ()) if hasattr(group.dist, name))
        self._function: Any = getattr(group.dist, next(names, self.op), None)
        num_elements = int(str(case["bytes"])) // 4
        self._part = num_elements // ranks
        self._ends = (case.get("from"), case.get("to"))
        make: Callable[[int], Any] = lambda count: torch.zeros(  # noqa: E731
            count, dtype=torch.float32, device=group.device
        )
        in_place = self.op in ("all_reduce", "broadcast")
        self.source = make(self._part if self.op == "all_gather" else num_elements)
        self.target = (
            self.source
            if in_place
            else make(self._part if self.op == "reduce_scatter" else num_elements)
        )
        self._block = torch.arange(_BLOCK, device=group.device).remainder(_PERIOD)
        self._round = 0
        self._calls = 0
        self.call = self._operation()

    def _operation(self) -> Callable[[], object]:
        """Return the operation to time: it is done, or enqueued on a GPU, when it returns."""
        source, target, function = self.source, self.target, self._function

        def reduced() -> None:
            self._calls += 1
            function(source)

        if self.op == "all_reduce":
            return reduced
        if self.op == "broadcast":
            return lambda: function(source, src=0)
        return (lambda: function(target, source)) if self.op in TORCH_NAMES else self._passing()

    def _passing(self) -> Callable[[], object]:
        """Return a call that sends from rank to rank; a copy where there is one rank."""
        dist, rank, size = self._group.dist, self._group.rank, self._group.size
        source, target = self.source, self.target
        if size == 1:
            return lambda: target.copy_(source)
        first, second = self._ends
        operations = []
        if self.op == "sendrecv" or rank == first:
            peer = (rank + 1) % size if first is None else second
            operations.append(dist.P2POp(dist.isend, source, peer))
        if self.op == "sendrecv" or rank == second:
            peer = (rank - 1) % size if first is None else first
            operations.append(dist.P2POp(dist.irecv, target, peer))

        def run() -> None:
            for work in dist.batch_isend_irecv(operations) if operations else ():
                work.wait()

        return run

    def wrong(self) -> str | None:
        """Return what is wrong with the results so far or with one further call, or None."""
        self._wait()
        error = self._target_error() if self._round else None
        self._fill()
        self.call()  # also where something was wrong: the other ranks do not know, and call it
        self._wait()
        return error or self._target_error()

    def _wait(self) -> None:
        if self._group.device != "cpu":
            self._group.torch.cuda.synchronize()

    def _fill(self) -> None:
        """Another round's numbers in the source, nothing that could be right in the target."""
        self._round, self._calls = self._round + 1, 0
        rank = self._group.rank
        if self.target is not self.source:
            self.target.fill_(self._group.torch.nan)
        if self.op == "broadcast" and rank:
            self.source.fill_(self._group.torch.nan)
        else:
            self._for_each_piece(
                self.source, self._numbers(rank), lambda piece, right: piece.copy_(right)
            )

    def _numbers(self, rank: int, offset: int = 0) -> Any:
        """Return the values of ``rank`` from element ``offset`` on, repeating after a block."""
        return (self._block + (offset + 17 * rank + 31 * self._round)).remainder(_PERIOD).float()

    def _target_error(self) -> str | None:
        """Return what is wrong with the target, or None."""
        for words, part, right in self._expected():
            bad = 0

            def look(piece: Any, expected: Any) -> None:
                nonlocal bad
                bad += int((piece != expected).sum())

            self._for_each_piece(part, right, look)
            if bad:
                return f"{bad} of {part.numel()} numbers of {self.op}{words} are wrong"
        return None

    def _expected(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Yield a description, a part of the target and the block it should repeat."""
        rank, size, part = self._group.rank, self._group.size, self._part
        match self.op:
            case "all_reduce":
                # By a factor that is no power of two a sum is rounded; beyond fp32 it is infinite.
                is_exact = self._calls == 1 or not size & (size - 1)
                if is_exact and (self._calls - 1) * math.log2(size) < _DOUBLINGS:
                    total = sum(self._numbers(peer).double() for peer in range(size))
                    times = float(size) ** (self._calls - 1)
                    yield "", self.target, (total * times).float()
            case "reduce_scatter":
                total = sum(self._numbers(peer, rank * part) for peer in range(size))
                yield "", self.target, total
            case "all_gather" | "all_to_all":
                offset = rank * part if self.op == "all_to_all" else 0
                for peer in range(size):
                    received = self.target[peer * part : (peer + 1) * part]
                    yield f", from rank {peer},", received, self._numbers(peer, offset)
            case "broadcast":
                yield "", self.target, self._numbers(0)
            case _:
                first, second = self._ends
                if self.op == "sendrecv" or rank == second or size == 1:
                    sender = (rank - 1) % size if first is None else int(str(first))
                    yield f", from rank {sender},", self.target, self._numbers(sender)

    def _for_each_piece(self, values: Any, block: Any, do: Callable[[Any, Any], object]) -> None:
        """Call ``do`` with each piece of ``values`` and the matching piece of the block."""
        for start in range(0, values.numel(), _BLOCK):
            piece = values[start : start + _BLOCK]
            do(piece, block[: piece.numel()])


def settings_of(cases: Sequence[Case], seconds: float, room: float) -> Mapping[str, Any]:
    """Return the content of `CASES`: sampling ``seconds`` per case, ``room`` seconds for all."""
    return {"cases": [dict(case) for case in cases], "seconds": seconds, "room": room}


if __name__ == "__main__":
    main()
