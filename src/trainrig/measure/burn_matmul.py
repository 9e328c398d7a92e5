"""One product again and again, each result compared with the first one, bit for bit.

Definition.  C = A·B of (m, k)·(k, n), operands in the dtype of the case with random signs, random
mantissas and magnitudes in [1, 2): no term of a sum is too small to matter, so that a wrong low bit
of an operand changes some elements of C.  2mkn FLOPs over the wall time of the slice, checks
included.

What is compared, all of it on the device:

    every product   the sum of each row of C as 64-bit integers (modulo 2^64) with the first one's:
                    any single flipped bit changes it by ± 2^b, NaN and -0 are words like others.
                    On a GPU the sums run in a stream of their own beside the next product, since
                    they take memory's bandwidth and a product does not.
    every slice     A and B in the same way (what lies in memory must stay); the last C whole
    at the start    the first C element by element with the product in fp64, within what rounding
                    explains: half a unit of the result's last place, 8·ε·k·2.33 for sums that are
                    rounded (√k steps of accumulation of terms of √k·2.33), and what tensor cores
                    cut off: at each addition of four products up to a last place of the sum so
                    far, always towards zero, so that it grows with k/4 and not with its root

What it cannot see: a wrong bit of an accumulator that rounding to the result's dtype takes away
again, and a fault that spoils the first product as all others within the bounds of rounding.

Source of the accumulation's model: Higham and Mary, A new approach to probabilistic rounding error
analysis, 2019; Huang and Abraham, Algorithm-based fault tolerance for matrix operations, 1984;
that tensor cores truncate, and how many products they add at a time: Fasi, Higham, Mikaitis and
Pranesh, Numerical behavior of NVIDIA tensor cores, 2021.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainrig.measure import EPS, torch_dtype
from trainrig.measure.burn_slice import (
    MOST_SHOWN,
    Slice,
    UnitTime,
    as_words,
    bits_of,
    error_slice,
    flipped_bit,
)
from trainrig.measure.timing import Unsupported, unsupported_as

if TYPE_CHECKING:
    import torch

Shape = tuple[int, int, int]
"""m, k, n."""
_MOST_PRODUCTS = 256
"""Most products in a slice: 256 × 8192 row sums take 16 MiB."""
_ACCUMULATE_EPS = {"fp64": 2.0**-52}
_ACCUMULATION_MARGIN = 8.0
_CUT_OFF = ("bf16", "fp16", "tf32")
"""Types whose products tensor cores add, in fp32."""
_CUT_EPS, _CUT_EVERY = 2.0**-23, 4
"""The last place of fp32; products that are added at a time, at least (V100, tf32 of A100)."""
_MEAN_OF_END, _MEAN_BESIDE = 0.5, 1.25
"""The mean size of a sum on its way: half its end, and what it strays from there, in √k·2.33."""
_MEAN_SQUARE = 7.0 / 3.0
"""Mean square of a number uniform in [1, 2): the typical size of one term of the product."""
_CHECK_ELEMENTS = 1 << 24
"""Elements in fp64 at a time: 128 MiB."""
_MEMORY_SHARE = 0.4
_MANY_THREADS = 16
_TF32_MASK = -(1 << 13)
"""The bits of an fp32 word that tf32 keeps."""


def usual_shape(dtype: str, device: str) -> Shape:
    """Large enough that comparing costs little, and small enough for the device's memory."""
    import torch

    if device == "cpu":
        size = 2048 if torch.get_num_threads() <= _MANY_THREADS else 4096
        return size, size, size
    free = torch.cuda.mem_get_info(device)[0]
    m, k = 8192, 16384
    width = torch_dtype(dtype).itemsize
    while m > 256 and width * (2 * m * k + 3 * m * m) > _MEMORY_SHARE * free:
        m, k = m // 2, k // 2
    return m, k, m


class Products:
    """The check of products on one device."""

    unit = "FLOP/s"
    what = "products"

    def __init__(
        self,
        dtype: str,
        device: str,
        shape: Shape | None = None,
        *,
        seed: int = 0,
        is_checked: bool = True,
    ) -> None:
        """Draw operands, make the first product and hold it against fp64.

        ``is_checked`` False computes alone, for what the checks cost.  Unsupported where the
        device or this torch has no such product.
        """
        import torch

        if dtype == "tf32" and device == "cpu":
            raise Unsupported("tf32 is a mode of NVIDIA's tensor cores; this is a CPU")
        matmul = torch.backends.cuda.matmul
        matmul.allow_tf32 = dtype == "tf32"
        # Sums of parts in the narrow type would be another, coarser product.
        matmul.allow_bf16_reduced_precision_reduction = False
        matmul.allow_fp16_reduced_precision_reduction = False
        self.dtype, self.device = dtype, device
        self.m, self.k, self.n = shape or usual_shape(dtype, device)
        self._checked, self._unit_time = is_checked, UnitTime(_MOST_PRODUCTS)
        generator = torch.Generator(device=device).manual_seed(seed)
        self._left = self._operand(self.m, self.k, generator)
        self._right = self._operand(self.k, self.n, generator)
        kind = torch_dtype(dtype)
        self._out = [torch.empty(self.m, self.n, dtype=kind, device=device) for _ in range(2)]
        self._width = self._out[0].element_size()
        self._done = 0
        with unsupported_as(f"{dtype} products do not run here"):
            torch.matmul(self._left, self._right, out=self._out[0])
        self._first = self._out[0].clone()
        self._first_sums = as_words(self._first).sum(dim=1)
        self._held = {"A": self._sums(self._left), "B": self._sums(self._right)}
        self._rows = torch.empty(_MOST_PRODUCTS, self.m, dtype=torch.int64, device=device)
        self._wrong_first = self._against_fp64() if is_checked else []
        self._side = torch.cuda.Stream(device) if device != "cpu" else None
        self._wait()

    def _operand(self, rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
        import torch

        kind, device = torch_dtype(self.dtype), self.device
        values = torch.rand(rows, columns, dtype=kind, device=device, generator=generator)
        # Near 1, narrow types round up to 2, which is as good.
        values.add_(1.0)
        signs = torch.randint(0, 2, (rows, columns), device=device, generator=generator)
        values.mul_(signs.to(kind).mul_(2.0).sub_(1.0))
        if self.dtype == "tf32":  # what is cut off on the way in would be no fault
            values.view(torch.int32).bitwise_and_(_TF32_MASK)
        return values

    def _sums(self, operand: torch.Tensor) -> torch.Tensor:
        return as_words(operand).sum(dim=1)

    def _wait(self) -> None:
        import torch

        if self.device != "cpu":
            torch.cuda.synchronize(self.device)

    # ---- what is run

    def run(self, seconds: float) -> Slice:
        """Multiply for about ``seconds`` and compare every product."""
        count = self._unit_time.count(seconds)
        start = time.perf_counter()
        if self._side is None or not self._checked:
            self._multiply(count)
        else:
            self._multiply_beside(count)
        errors, num_errors = self._compare(count) if self._checked else ([], 0)
        self._wait()
        took = time.perf_counter() - start
        self._unit_time.learn(count, took)
        first_errors, self._wrong_first = self._wrong_first, []
        self._done += count
        return Slice(
            work=2.0 * self.m * self.k * self.n * count,
            seconds=took,
            num_checked=count,
            num_errors=num_errors + len(first_errors),
            errors=tuple([*first_errors, *errors][:MOST_SHOWN]),
        )

    def _multiply(self, count: int) -> None:
        import torch

        for number in range(count):
            out = self._out[number % 2]
            torch.matmul(self._left, self._right, out=out)
            if self._checked:
                torch.sum(as_words(out), dim=1, out=self._rows[number])

    def _multiply_beside(self, count: int) -> None:
        """Multiply in the default stream and sum rows in a second one, with two result buffers."""
        import torch

        assert self._side is not None
        main = torch.cuda.current_stream(self.device)
        product_done = [torch.cuda.Event() for _ in self._out]
        free = [torch.cuda.Event() for _ in self._out]
        for number in range(count):
            turn = number % 2
            if number >= 2:
                main.wait_event(free[turn])
            torch.matmul(self._left, self._right, out=self._out[turn])
            product_done[turn].record(main)
            self._side.wait_event(product_done[turn])
            with torch.cuda.stream(self._side):
                torch.sum(as_words(self._out[turn]), dim=1, out=self._rows[number])
                free[turn].record(self._side)
        main.wait_stream(self._side)

    # ---- what is compared

    def _compare(self, count: int) -> tuple[list[str], int]:
        """Return the errors of the latest ``count`` products and the operands, and their number."""
        differs = self._rows[:count] != self._first_sums
        errors = self._operands_changed()
        if not bool(differs.any()):
            element_error = self._elements(self._out[(count - 1) % 2])
            product_errors = (
                [f"product {self._done + count}: {element_error}"] if element_error else []
            )
            return [*errors, *product_errors], len(errors) + len(product_errors)
        wrong = differs.any(dim=1)
        for number in wrong.nonzero().flatten().tolist()[:MOST_SHOWN]:
            errors.append(self._product_text(number, differs[number], count))
        num_wrong = int(wrong.sum())
        return errors, num_wrong + len(errors) - min(num_wrong, MOST_SHOWN)

    def _product_text(self, number: int, differs: torch.Tensor, count: int) -> str:
        """Return ``product 17 differs from the first: row 3, bit 0 (the lowest)``."""
        rows = differs.nonzero().flatten().tolist()
        name = f"product {self._done + number + 1} differs from the first"
        if number >= count - 2 and (exact := self._elements(self._out[number % 2])):
            return f"{name}: {exact}"
        change = int(self._rows[number, rows[0]]) - int(self._first_sums[rows[0]])
        if len(rows) == 1:
            return f"{name}: row {rows[0]}, {flipped_bit(change, self._width)}"
        return f"{name}: {len(rows)} of {self.m} rows, the first is row {rows[0]}"

    def _elements(self, out: torch.Tensor) -> str:
        """Say where a result differs from the first one, element by element; empty if equal."""
        import torch

        words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[self._width]
        found, first = out.view(words), self._first.view(words)
        if torch.equal(found, first):
            return ""
        places = (found != first).nonzero()
        row, column = places[0].tolist()
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        changed = [int(found[row, column]) ^ int(first[row, column])]
        is_is = f"{float(out[row, column]):.9g} instead of {float(self._first[row, column]):.9g}"
        bits = bits_of(changed, self._width)
        return f"element [{row}, {column}]{more}: {bits}, {is_is}"

    def _operands_changed(self) -> list[str]:
        """Return errors for operands whose bits have changed since they were drawn."""
        errors = []
        for name, operand in (("A", self._left), ("B", self._right)):
            sums = self._sums(operand)
            differs = sums != self._held[name]
            if not bool(differs.any()):
                continue
            row = int(differs.nonzero()[0])
            bit = flipped_bit(int(sums[row]) - int(self._held[name][row]), self._width)
            errors.append(f"operand {name} changed in memory: row {row}, {bit}")
            self._held[name] = sums  # named once; the products that it spoils name it again
        return errors

    def _against_fp64(self) -> list[str]:
        """Compare the first product with fp64; report elements that rounding does not explain."""
        worst, num_bad, place, allowed_there = 0.0, 0, (0, 0), 0.0
        for row, column, error, allowed in self._errors():
            excess = (error - allowed).nan_to_num(nan=math.inf, posinf=math.inf)
            num_bad += int((excess > 0.0).sum())
            highest = float(excess.max())
            if highest > 0.0 and highest > worst:
                block_index = divmod(int(excess.argmax()), excess.shape[1])
                worst, place = highest, (row + block_index[0], column + block_index[1])
                allowed_there = float(allowed[block_index[0], block_index[1]])
        if not num_bad:
            return []
        product_value = float(self._first[place[0], place[1]])
        return [
            f"the first product: {num_bad} of {self.m * self.n} elements are not what fp64 gives; "
            f"element [{place[0]}, {place[1]}] is {product_value:.6g}, and rounding explains "
            f"{allowed_there:.3g} of error"
        ]

    def _errors(self) -> Iterator[tuple[int, int, torch.Tensor, torch.Tensor]]:
        """Blocks of the result: first row and column, error, and what rounding explains."""
        import torch

        eps = _ACCUMULATE_EPS.get(self.dtype, 2.0**-23)
        sums = _ACCUMULATION_MARGIN * eps * self.k * _MEAN_SQUARE
        share = EPS["fp32" if self.dtype == "tf32" else self.dtype]
        if self.dtype in _CUT_OFF:
            cut = _CUT_EPS * self.k / _CUT_EVERY
            sums += cut * _MEAN_BESIDE * _MEAN_SQUARE * math.sqrt(self.k)
            share += cut * _MEAN_OF_END
        rows = max(1, _CHECK_ELEMENTS // self.k)
        for column in range(0, self.n, rows):
            right = self._right[:, column : column + rows].to(torch.float64)
            for row in range(0, self.m, rows):
                exact = self._left[row : row + rows].to(torch.float64) @ right
                product_block = self._first[row : row + rows, column : column + rows].to(
                    torch.float64
                )
                yield row, column, (product_block - exact).abs(), exact.abs().mul_(share).add_(sums)

    def finish(self) -> Slice:
        """Compare both results and the operands in full."""
        start = time.perf_counter()
        errors = self._operands_changed()
        return error_slice(time.perf_counter() - start, errors)

    def facts(self) -> dict[str, Any]:
        """Return the sizes m, k and n."""
        return {"m": self.m, "k": self.k, "n": self.n}
