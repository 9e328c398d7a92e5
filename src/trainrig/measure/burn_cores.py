"""Every processor by itself, all at once: products and vector arithmetic, compared with core 0's.

Definition.  A thread pinned to each processor that this process may use, one thread of torch in
each: a product of (n, n)·(n, n) in fp64 and fp32, square roots, exponentials, a sort and integer
products of the same numbers.  The words of all results of a round are compared with those of the
first round of the first processor: equal instructions on equal numbers, so that a processor that
computes something else is named.  2n³ FLOPs a product over the wall time.

Products that use all processors together are `burn_matmul`'s; they load memory and caches more,
and cannot say which processor was wrong.  Where stress-ng is installed, its verified stressors run
beside (`runner.burn`): integer, string and other units that torch does not reach.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainrig.measure.burn_slice import MOST_SHOWN, Slice, UnitTime, as_words, error_slice

if TYPE_CHECKING:
    import torch

SIZE = 512
_MOST_ROUNDS = 1024
_PARTS = ("product fp64", "product fp32", "square roots", "exponentials", "sort", "integers")


@dataclass(slots=True)
class _CoreOutcome:
    """Rounds and errors of one processor in a slice."""

    errors: list[str] = field(default_factory=list)
    num_errors: int = 0
    rounds: int = 0
    failure: BaseException | None = None


class Cores:
    """The check of each processor."""

    unit = "FLOP/s"
    what = "rounds"

    def __init__(self, *, size: int = SIZE) -> None:
        """Draw the numbers and make the first round on the first processor."""
        import torch

        self.size = size
        # A team of threads for each of them would have every processor do a part of each round.
        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(0)
        draw = {"generator": generator}
        self._wide = [torch.randn(size, size, dtype=torch.float64, **draw) for _ in range(2)]
        self._narrow = [torch.randn(size, size, **draw) for _ in range(2)]
        self._integers = torch.randint(-(2**31), 2**31, (size, size), **draw)
        self.cores = tuple(sorted(os.sched_getaffinity(0)))
        self._unit_time = UnitTime(_MOST_ROUNDS)
        first_core = [_CoreOutcome()]
        self._first: list[torch.Tensor] = []
        self._on_all(first_core, self.cores[:1], self._make_first)
        self._done = 0

    def _round(self) -> list[torch.Tensor]:
        """Return the results of one round as integer words, one tensor for each part."""
        import torch

        wide, narrow = self._wide, self._narrow
        results = [
            wide[0] @ wide[1],
            narrow[0] @ narrow[1],
            wide[0].abs().sqrt().reciprocal(),
            torch.exp(narrow[0]) + torch.tanh(narrow[1]),
            torch.sort(narrow[0], dim=1).values,
            self._integers * self._integers.t().contiguous() ^ self._integers,
        ]
        return [as_words(result.contiguous()) for result in results]

    def _make_first(self, _: _CoreOutcome, __: int) -> None:
        self._first = self._round()

    def _compare_rounds(self, outcome: _CoreOutcome, core: int, count: int) -> None:
        import torch

        for number in range(count):
            results = self._round()
            for part_name, result, reference in zip(_PARTS, results, self._first, strict=True):
                if torch.equal(result, reference):
                    continue
                outcome.num_errors += 1
                row = (result != reference).nonzero()[0].tolist()
                verdict = (
                    f"{part_name} differ" if part_name.endswith("s") else f"{part_name} differs"
                )
                text = f"processor {core}, round {self._done + number + 1}: {verdict} at {row}"
                outcome.errors.append(text)
            outcome.rounds += 1

    def _on_all(self, outcomes: Sequence[_CoreOutcome], cores: Sequence[int], work: Any) -> None:
        """Call ``work(outcome, core)`` in a thread on each processor; raise the first failure."""
        import torch

        def run(core_outcome: _CoreOutcome, core: int) -> None:
            try:
                os.sched_setaffinity(0, {core})  # of this thread alone
                torch.set_num_threads(1)
                work(core_outcome, core)
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                core_outcome.failure = error

        threads = [
            threading.Thread(target=run, args=pair) for pair in zip(outcomes, cores, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures := [
            core_outcome.failure for core_outcome in outcomes if core_outcome.failure is not None
        ]:
            raise failures[0]

    def run(self, seconds: float) -> Slice:
        """Compute and compare rounds on all processors for about ``seconds``."""
        count = self._unit_time.count(seconds)
        outcomes = [_CoreOutcome() for _ in self.cores]
        start = time.perf_counter()
        self._on_all(
            outcomes,
            self.cores,
            lambda core_outcome, core: self._compare_rounds(core_outcome, core, count),
        )
        took = time.perf_counter() - start
        self._unit_time.learn(count, took)
        self._done += count
        rounds = sum(core_outcome.rounds for core_outcome in outcomes)
        errors = [text for core_outcome in outcomes for text in core_outcome.errors[:MOST_SHOWN]]
        return Slice(
            work=2 * 2.0 * self.size**3 * rounds,
            seconds=took,
            num_checked=rounds,
            num_errors=sum(core_outcome.num_errors for core_outcome in outcomes),
            errors=tuple(errors[:MOST_SHOWN]),
        )

    def finish(self) -> Slice:
        """Return an empty slice: every round has been compared already."""
        return error_slice(0.0, ())

    def facts(self) -> dict[str, Any]:
        """Return the number of processors and the matrix size n."""
        return {"processors": len(self.cores), "n": self.size}
