"""How long a case will take, projected from the ones that ran before it.

The projection assumes the speed of the nearest smaller case of the same kind: it
overstates cases that launches bound, and is close where it matters, at the
large ones.
"""

from __future__ import annotations

from trainrig.measure.family import family
from trainrig.measure.worker import Reply
from trainrig.runner.plan import Task
from trainrig.stats import median

# Before anything is known: work units (FLOPs or bytes) a second, as a modest device has them.  A
# guess that is too slow would skip a case for nothing; one too fast costs its hard time limit.
_FIRST_GUESS = {False: 4e10, True: 2e13}
# Operands and the check of the answer, bytes a second: matmul draws normal values and checks in
# fp64, the others fill patterns and compare.
_PREPARE_SPEED = {False: 3e8, True: 3e10}
_FILL_SPEED = {False: 1.5e9, True: 1e11}
# A disk's file is laid down, read back, and after writing once more; fio starts and ends.
_DISK_SPEED = 5e8
_DISK_FIXED = 0.3
_FIXED = 0.03

# A case is prepared, checked, warmed, sampled and checked again: this many calls at the least.
_MIN_CALLS = 4.0
# A layer's reference is computed in a wider type, which takes a few calls' time more; the first
# of Hugging Face's waits for its import.
_LAYER_CALLS = 8.0
_LAYER_IMPORT = 2.0
# A training's model is built and its text opened; its first steps settle memory and kernels.
_STEP_FIXED = 1.0
_STEP_CALLS = 4.0
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
        if task.family in ("layer", "step"):
            products = ("matmul", str(task.case["dtype"]))
            rates = [
                units / seconds
                for kind, seen in self._seen.items()
                if (kind[0], kind[1:3]) == (task.target.torch_device, products)
                for units, seconds in seen
            ]
            if rates:
                return _OF_PRODUCTS * max(rates)
        return _FIRST_GUESS[task.target.is_gpu]

    def overhead(self, task: Task) -> float:
        """Projected seconds of everything but the sampling: operands, checks, first calls."""
        if task.family == "storage":
            return _DISK_FIXED + family(task.family).memory(task.case) / _DISK_SPEED
        if task.family == "layer":
            theirs = task.case.get("code") == "huggingface"
            imports = _LAYER_IMPORT if theirs else 0.0
            fill = family(task.family).memory(task.case) / _FILL_SPEED[task.target.is_gpu]
            return _FIXED + imports + fill + _LAYER_CALLS * self.call_time(task)
        if task.family == "step":
            fill = family(task.family).memory(task.case) / _FILL_SPEED[task.target.is_gpu]
            return _STEP_FIXED + fill + _STEP_CALLS * self.call_time(task)
        speed = _PREPARE_SPEED if task.family == "matmul" else _FILL_SPEED
        prepare = family(task.family).memory(task.case) / speed[task.target.is_gpu]
        return _FIXED + prepare + _MIN_CALLS * self.call_time(task)


def _kind(task: Task) -> tuple[str, ...]:
    """Cases whose speeds resemble each other."""
    words = [str(task.case.get(name)) for name in ("dtype", "op", "direction", "memory", "code")]
    return (task.target.torch_device, task.family, *words)


def _units(task: Task) -> float:
    work = family(task.family).work(task.case)
    return float(max(work.flops, work.num_bytes))
