"""How long a case will take, from the ones that ran before it.

By the speed of the nearest smaller case of the same kind: that overstates cases that launches
bound, and is close where it matters, at the large ones.
"""

from __future__ import annotations

from trainrig.benchmarks.spec import Role, role_of
from trainrig.process.worker import Reply
from trainrig.record import dtype_of
from trainrig.runner.plan import Task
from trainrig.stats import median

# Before anything is known: work units (FLOPs or bytes) a second, as a modest device has them.  A
# guess that is too slow would skip a case for nothing; one too fast costs its hard time limit.
_FIRST_GUESS = {False: 4e10, True: 2e13}
# Before any layer or step was seen: it reaches this share of its dtype's products.
_OF_PRODUCTS = 0.5


class Pace:
    """Learns the speed of each kind of case on each device."""

    def __init__(self) -> None:
        """Start knowing nothing."""
        self._seen: dict[tuple[str, ...], list[tuple[float, float]]] = {}

    def learn(self, task: Task, reply: Reply) -> None:
        """Remember how long one call of a case took."""
        if reply.samples:
            self._seen.setdefault(_kind(task), []).append((_units(task), median(reply.samples)))

    def call_time(self, task: Task) -> float:
        """Projected seconds of one call."""
        units = _units(task)
        seen = sorted(self._seen.get(_kind(task), ()))
        smaller = [pair for pair in seen if pair[0] <= units] or seen[:1]
        if not smaller:
            return units / self._guess(task)
        known_units, seconds = smaller[-1]
        return seconds * max(units / known_units, 1.0)

    def _guess(self, task: Task) -> float:
        """Work units a second of a kind of which nothing is known yet."""
        if task.spec.role in (Role.BLOCK, Role.STEP):
            device, dtype = task.target.torch_device, str(dtype_of(task.case))
            rates = [
                units / seconds
                for (where, name, kind, *_), seen in list(self._seen.items())
                if (where, kind) == (device, dtype) and role_of(name) is Role.PRODUCT
                for units, seconds in seen
            ]
            if rates:
                return _OF_PRODUCTS * max(rates)
        return _FIRST_GUESS[task.target.is_gpu]

    def overhead(self, task: Task) -> float:
        """Projected seconds of everything but the sampling: operands, checks, first calls."""
        spec, cost = task.spec, task.spec.cost
        if spec.role is Role.STEP:
            return spec.around
        fill = spec.memory(task.case) / cost.fill[task.target.is_gpu]
        calls = cost.calls * self.call_time(task) if cost.calls else 0.0
        return cost.fixed + cost.once(task.case) + fill + calls


def _kind(task: Task) -> tuple[str, ...]:
    """Cases whose speeds resemble each other."""
    words = [str(task.case.get(name)) for name in ("op", "direction", "memory", "code")]
    return (task.target.torch_device, task.benchmark, str(dtype_of(task.case)), *words)


def _units(task: Task) -> float:
    work = task.spec.work(task.case)
    return float(max(work.flops, work.num_bytes))
