"""Workers, clocks and runs for the runner's tests: nothing is measured, nothing sleeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from trainrig.catalog.arithmetic import Accelerator, HostProcessor, arithmetic_of
from trainrig.catalog.lookup import find_chip
from trainrig.errors import UnavailableError
from trainrig.process.worker import Reply, Request
from trainrig.record import Kind, Record, Status
from trainrig.runner.targets import Target

NATIVE = arithmetic_of(HostProcessor(flags=("avx512f", "avx512_bf16")))
EMULATED = arithmetic_of(HostProcessor(flags=("avx2", "fma")))
"""What processors with bf16 instructions have, and those without."""
HOST = Target(
    torch_device="cpu",
    name="Test CPU",
    index=None,
    memory_bytes=1 << 34,
    chip=None,
    arithmetic=NATIVE,
)


def gpu(number: int, memory_bytes: int = 24 << 30) -> Target:
    chip = find_chip("RTX 4090")
    return Target(
        torch_device=f"cuda:{number}",
        name="RTX 4090",
        index=number,
        memory_bytes=memory_bytes,
        chip=chip,
        arithmetic=arithmetic_of(Accelerator(chip=chip)),
    )


def quiet(seconds: float, count: int = 10) -> Reply:
    """A converged reply with samples within a tenth of a percent."""
    samples = tuple(seconds * (1.0 + 0.0001 * step) for step in range(count))
    return Reply(
        status=Status.OK,
        samples=samples,
        stop="converged",
        started="2026-11-20T00:00:00.000+00:00",
        duration=seconds * count,
    )


class FakeWorker:
    """Answers each request by a function; keeps what it was asked."""

    def __init__(
        self,
        device: str,
        log: Path,
        answer: Callable[[str, Request], Reply],
        asked: list[tuple[str, Request]],
    ) -> None:
        self.device = device
        self.log = log
        self._answer = answer
        self._asked = asked
        self.stopped = False

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stopped = True

    def wait_ready(self, timeout: float = 1.0) -> dict[str, Any]:
        return {"torch": "fake"}

    def run(self, request: Request, released: Callable[[], None] = lambda: None) -> Reply:
        if request.hold:
            released()
        self._asked.append((self.device, request))
        return self._answer(self.device, request)


class DeadWorker(FakeWorker):
    """A device that torch cannot use."""

    def wait_ready(self, timeout: float = 1.0) -> dict[str, Any]:
        raise UnavailableError(f"the worker for {self.device} did not start: no CUDA")


def point(
    value: float | None,
    *,
    device: str = "RTX 4090",
    index: int | None = 0,
    size: int = 4096,
    spread: float = 0.01,
    **changes: Any,
) -> Record:
    """A measured fp16 matmul point with an interval of ± ``spread``."""
    record = Record(
        kind=Kind.MEASURED,
        benchmark="matmul",
        case={"dtype": "fp16", "m": size, "k": size, "n": size, "cache": "hot"},
        metric="flop_rate",
        unit="FLOP/s",
        value=value,
        interval=None if value is None else (value * (1 - spread), value * (1 + spread)),
        confidence=None if value is None else 0.95,
        device=device,
        device_index=index,
    )
    return record.replace(**changes)


def planned(measured: Record, low: float, high: float, **changes: Any) -> Record:
    """The prediction that was written before ``measured``, as a required step."""
    return measured.replace(
        id="p" + measured.id[1:],
        kind=Kind.PREDICTED,
        value=(low + high) / 2,
        interval=(low, high),
        confidence=None,
        status=Status.OK,
        reason=None,
        disturbed=None,
        source="published, n = 3",
        conditions={"step": "fp16 matmul", "required": True},
    ).replace(**changes)


def ids(findings: Iterable[Any]) -> list[str]:
    return [finding.id for finding in findings]
