"""How far the rates derived from claims are from what others measured, and the refit of constants.

    python -m validation.rates                 print the errors of the constants as they stand
    python -m validation.rates --leave-out     and what they are worth on sources not fitted to
    python -m validation.rates --write         refit, print, and write prediction/rates/rates.toml

Every published product, stream, collective and attention is compared with what the catalog's rule
says of it; how far a whole step is off is `accuracy`'s.  An error is |predicted/measured - 1| of
the time.  Left out: products that hold in cache what was measured cold, peaks of single
instructions, and figures that a source searched for (the best of many shapes), which are marked.

What a fit minimises is the mean over groups (one source on one chip) of |log(predicted/measured)|,
each group counting the same, errors beyond one half counting a tenth; a weak pull keeps what the
figures say nothing about where it was.  The search goes through the constants one by one in
ever smaller steps: no luck is involved.  FIXED says what is not fitted here, and why.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainrig.catalog.chip import Chip
from trainrig.catalog.lookup import find_chip
from trainrig.catalog.published import published_for
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_chip import PATH, constants, rates_of_chip
from trainrig.prediction.rates.links import FACTORS
from trainrig.record import Record

# Cards whose memory size or form the source leaves out: the usual one.
_PRESUMED = {
    "V100 32GB": "V100 SXM2 32GB",
    "V100 SXM2": "V100 SXM2 32GB",
    "V100": "V100 SXM2 32GB",
    "A100 80GB": "A100 SXM4 80GB",
    "A100 40GB": "A100 SXM4 40GB",
    "A100 SXM4": "A100 SXM4 80GB",
}
# 300 or 400 W: a stream does not mind, a product does.
_FORM_UNKNOWN = ("A100 80GB",)
# What a node sends into the fabric, B/s, by the words that sources print.
_FABRICS = {
    "8x50 GB/s": 400e9,
    "400 Gb/s per GPU": 400e9,
    "3.2 Tb/s": 400e9,
    "Omni-Path 100 Gb": 12.5e9,
}
_LARGE = 4e9  # B, where a source printed its best or fitted rate
_SMALL = 1e6  # B: smaller collectives are latency alone, and no step waits for those
_LAUNCHED = 8e6  # B: smaller streams were bound by launches on those machines
_BACKWARD = re.compile(r"bwd-only .*=> ([0-9.]+) TFLOPS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One published figure and what the rule says of it."""

    table: str
    """``matmul``, ``stream``, ``collective``, ``attention``."""
    source: str
    device: str
    case: str
    measured: float
    """s."""
    predicted: float
    """s."""

    @property
    def family(self) -> str:
        """The source without the file and the version: rows of one share hidden conditions."""
        return self.source.partition(" ")[0].partition("@")[0]

    @property
    def ratio(self) -> float:
        """Predicted time against measured."""
        return self.predicted / self.measured

    @property
    def error(self) -> float:
        return abs(self.ratio - 1.0)


def chip_named(device: str | None) -> Chip | None:
    """The chip that a published figure is about, or None where no single one is meant."""
    return find_chip(_PRESUMED.get(device or "", device or ""))


@cache
def _rates(device: str) -> Rates | None:
    chip = chip_named(device)
    return None if chip is None else rates_of_chip(chip)


def forget() -> None:
    """Build rates anew: the constants have changed."""
    _rates.cache_clear()
    _rates_linked.cache_clear()


def products() -> Iterator[Compared]:
    """Published products of matrices."""
    for benchmark in ("matmul", "matmul_accumulate", "batched_matmul"):
        for record in published_for(benchmark):
            rates = _rates(record.device or "")
            if record.device in _FORM_UNKNOWN:
                continue
            if rates is not None and record.value and _is_product(record):
                yield _product(record, rates)


def _dtype(record: Record, rates: Rates) -> str:
    """Return what the product ran in: TF32 where a source allowed it and the chip has it."""
    allowed = "TF32" in str(record.conditions.get("printed_dtype", "")).upper()
    return "tf32" if allowed and rates.peaks.get("tf32") else str(record.case["dtype"])


def _is_product(record: Record) -> bool:
    """It has a shape, was not searched for, and takes longer than a launch."""
    sizes = [int(record.case.get(axis) or 0) for axis in ("m", "k", "n")]
    if not all(sizes) or "search" in str(record.conditions.get("kind")):
        return False
    return 2.0 * sizes[0] * sizes[1] * sizes[2] > 1e9


def _product(record: Record, rates: Rates) -> Compared:
    m, k, n = (int(record.case[axis] or 0) for axis in ("m", "k", "n"))
    batch, dtype = int(record.case.get("batch") or 1), _dtype(record, rates)
    wide = {"matmul_accumulate": 8.0}.get(record.benchmark)
    return Compared(
        table="matmul",
        source=record.source or "",
        device=record.device or "",
        case=f"{record.conditions.get('kind', '')} {dtype} {batch}×{m}×{k}×{n}",
        measured=2.0 * batch * m * k * n / float(record.value or 1.0),
        predicted=float(rates.matmul(m, n, k, batch=batch, dtype=dtype, output_bytes=wide)),
    )


def streams() -> Iterator[Compared]:
    """Published streams of bytes in a chip's memory, elementwise kernels and copies."""
    for benchmark in ("vector", "copy"):
        for record in published_for(benchmark):
            rates = _rates(record.device or "")
            if rates is not None and record.value and record.metric == "byte_rate":
                yield from _stream(record, rates)


def _stream(record: Record, rates: Rates) -> Iterator[Compared]:
    if record.case.get("direction") in ("h2d", "d2h"):
        return
    if record.benchmark == "vector" and record.case.get("op") != "scale":
        return
    elements = record.case.get("num_elements")
    moved = 8.0 * float(elements) if elements else _LARGE
    if moved < _LAUNCHED:
        return
    yield Compared(
        table="stream",
        source=record.source or "",
        device=record.device or "",
        case=f"{record.case.get('direction', 'scale')} {moved:.3g} B",
        measured=moved / float(record.value or 1.0),
        predicted=float(rates.stream(moved)),
    )


def collectives() -> Iterator[Compared]:
    """Published collectives whose topology the source states."""
    for record in published_for("collective"):
        rates = _rates_linked(record.device or "", _words(record))
        if rates is None or not record.value:
            continue
        if int(record.case.get("bytes") or _LARGE) >= _SMALL and _is_possible(record, rates):
            yield _collective(record, rates)


def _is_possible(record: Record, rates: Rates) -> bool:
    """One source prints more than the links of its node can carry."""
    several = int(record.case["nodes"] or 1) > 1
    return several or (record.value or 0.0) < 1.5 * rates.links.inside.bandwidth


def _words(record: Record) -> str:
    return str(record.conditions.get("interconnect") or "")


@cache
def _rates_linked(device: str, words: str) -> Rates | None:
    """Rates of a chip with the links that a source prints beside its collectives."""
    chip = chip_named(device)
    if chip is None:
        return None
    fabric = next((rate for part, rate in _FABRICS.items() if part in words), None)
    link = "pcie" if words.startswith("PCIe") else "nvlink"
    return rates_of_chip(chip, link=link, fabric=fabric, p2p=True)


def _collective(record: Record, rates: Rates) -> Compared:
    kind, ranks = str(record.case["collective"]), int(record.case["ranks"] or 1)
    num_bytes = float(record.case.get("bytes") or _LARGE)
    per_node = ranks // int(record.case["nodes"] or 1)
    moved = FACTORS[kind] * (1.0 if kind == "broadcast" else (ranks - 1) / ranks) * num_bytes
    return Compared(
        table="collective",
        source=record.source or "",
        device=record.device or "",
        case=f"{kind} {ranks} ranks {num_bytes:.3g} B {record.conditions.get('algo', '')}",
        measured=moved / float(record.value or 1.0),
        predicted=float(rates.links.collective(kind, num_bytes, ranks, per_node)),
    )


def attentions() -> Iterator[Compared]:
    """Published fused attention, whose sources count a causal one's scores in full."""
    for record in published_for("layer"):
        layer = str(record.case.get("layer"))
        rates = _rates(record.device or "")
        if layer.startswith("flash attention (causal)") and rates is not None and record.value:
            yield from _attention(record, rates, layer)


def _attention(record: Record, rates: Rates, layer: str) -> Iterator[Compared]:
    sizes = dict(pair.split("=") for pair in layer.split() if "=" in pair)
    batch, seq, heads = (
        int(record.case.get(axis) or 0) for axis in ("batch_size", "seq_len", "heads")
    )
    inner, outer = int(sizes["d_qk"]), int(sizes["d_v"])
    if inner != outer:  # the rule knows one size of head
        return
    both = {"forward": float(record.value or 1.0)}
    printed = _BACKWARD.search(str(record.conditions.get("notes")))
    if printed:
        both["backward"] = float(printed.group(1)) * 1e12
    for direction, rate in both.items():
        flops = 2.0 * (5.0 if direction == "backward" else 2.0) * batch * heads * seq * seq * inner
        if direction == "backward":  # counted as twice the forward
            flops *= 4.0 / 5.0
        yield Compared(
            table="attention",
            source=record.source or "",
            device=record.device or "",
            case=f"{direction} {heads} heads of {inner} seq {seq}",
            measured=flops / rate,
            predicted=float(
                rates.attention(
                    batch=batch,
                    heads=heads,
                    kv_heads=int(sizes["kv_heads"]),
                    queries=seq,
                    keys=seq,
                    head_dim=inner,
                    dtype="bf16",
                    causal=True,
                    backward=direction == "backward",
                    kernels="flash+fused",
                )
            ),
        )


TABLES = {
    "matmul": products,
    "stream": streams,
    "collective": collectives,
    "attention": attentions,
}


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which ``share`` of them lie; NaN of none."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


# Table: the constants that its figures speak of (a path in rates.toml), least and most of each.
FITTED: dict[str, dict[str, tuple[float, float]]] = {
    "matmul": {
        "matmul.split_k": (500.0, 2e4),
        "matmul.drain": (1e-7, 5e-6),
        "class.blackwell.drain": (1e-7, 5e-6),
        "matmul.overlap": (2.5, 8.0),
        "matmul.tiles.128x128": (0.5, 1.0),
        "matmul.tiles.128x64": (0.3, 1.0),
        "class.volta.cap": (0.5, 1.0),
        "class.volta.lanes": (0.5, 1.0),
        "class.ga100.power": (0.4, 1.2),
        "class.ga100.cap": (0.5, 1.0),
        "class.ga102.power": (0.2, 0.8),
        "class.ga102.cap": (0.5, 1.1),
        "class.ada.cap": (0.5, 1.1),
        "class.ada.lanes": (0.4, 1.0),
        "class.hopper.power": (0.4, 1.4),
        "class.blackwell.power": (0.4, 1.4),
        "class.blackwell-consumer.cap": (0.5, 1.2),
    },
    "stream": {
        f"class.{name}.bandwidth": (0.5, 1.0)
        for name in ("volta", "ga100", "ga102", "ada", "hopper", "blackwell")
    }
    | {"class.hopper.per_processor": (1.5e10, 5e10), "stream.cache_per_processor": (2e10, 8e10)},
    "collective": {
        "link.switch.share": (0.5, 1.0),
        "link.switch.latency": (5e-6, 8e-5),
        "link.switch.hop": (5e-7, 2e-5),
        "link.switch.ramp": (5e-6, 5e-4),
        "link.cube.share": (0.5, 1.0),
        "link.cube.ramp": (5e-6, 5e-4),
        "link.pcie.share": (0.3, 0.9),
        "link.fabric.share": (0.5, 1.0),
        "link.fabric.ramp": (1e-5, 1e-3),
        "class.hopper.multicast": (0.6, 1.0),
        "class.blackwell.multicast": (0.6, 1.0),
    },
    "attention": {
        "attention.tail": (0.1, 2.0),
        "attention.tail_backward": (0.05, 2.0),
        "class.ga100.own": (0.3, 1.3),
        "class.ga100.own_backward": (0.3, 1.3),
    },
}
FIXED = """Not fitted here, since no table speaks of it: the power exponent and energies (pairs of
cards of one silicon); launches and the power of Ada (published layers and steps were looked at);
attention on Hopper (FlashAttention-3's paper); plain flash attention before its second version
on any chip (published steps by length of sequence);
attention on Blackwell (its longest kernels alone, since shorter ones outrun its power);
the classes turing, cdna, cdna2, gaudi, tpu and other (one figure or none: stated)."""
PULL = 0.003


def compared(table: str, keep: Callable[[str], bool] = lambda _: True) -> list[Compared]:
    """A table's figures under the constants as they are now."""
    forget()
    return [figure for figure in TABLES[table]() if keep(figure.family)]


def loss(comparisons: Iterable[Compared]) -> float:
    """Mean over groups of the mean absolute logarithm, blunted."""
    groups = defaultdict(list)
    for comparison in comparisons:
        size = abs(math.log(comparison.ratio))
        groups[comparison.family, comparison.device].append(min(size, 0.5 + 0.1 * size))
    return sum(sum(errors) / len(errors) for errors in groups.values()) / len(groups)


def fit(table: str, keep: Callable[[str], bool] = lambda _: True, rounds: int = 5) -> None:
    """Change the constants that a table speaks of, in place."""
    bounds = FITTED[table]
    believed = {path: value_at(path) for path in bounds}

    def cost() -> float:
        pull = sum(math.log(value_at(path) / believed[path]) ** 2 for path in bounds)
        return loss(compared(table, keep)) + PULL * pull

    best, step = cost(), 0.16
    for _ in range(rounds):
        for path, (least, most) in bounds.items():
            for factor in (1.0 + step, 1.0 / (1.0 + step)):
                old = value_at(path)
                put(path, min(max(old * factor, least), most))
                new = cost()
                if new < best - 1e-6:
                    best = new
                    break
                put(path, old)
        step /= 2.0


def _keys(path: str) -> tuple[str, ...]:
    """``class.blackwell-consumer.cap``: tables, then the name."""
    return tuple(path.split("."))


def value_at(path: str) -> float:
    """A constant by its path."""
    place: Any = constants()
    for key in _keys(path):
        place = place[key]
    return float(place)


def put(path: str, value: float) -> None:
    """Set a constant by its path."""
    *tables, name = _keys(path)
    place: Any = constants()
    for key in tables:
        place = place[key]
    place[name] = value
    if name == "128x64":  # a tile and its mirror image are one constant
        place["64x128"] = value


def leave_out(table: str) -> list[Compared]:
    """Each source's figures under constants refitted to all others; the constants are restored.

    Empty where there is one source alone.
    """
    before = {path: value_at(path) for path in FITTED[table]}
    comparisons: list[Compared] = []
    families = sorted({one.family for one in compared(table)})
    for family in families if len(families) > 1 else ():
        fit(table, family.__ne__, rounds=3)
        comparisons += compared(table, family.__eq__)
        for path, value in before.items():
            put(path, value)
    forget()
    return comparisons


def line(words: str, comparisons: list[Compared]) -> str:
    """One line of the table of errors, in per cent."""
    errors = [comparison.error for comparison in comparisons]
    bias = quantile([comparison.ratio for comparison in comparisons], 0.5) - 1.0
    return (
        f"{words:44.44s} {len(comparisons):5d} {100 * quantile(errors, 0.5):8.1f} "
        f"{100 * quantile(errors, 0.9):8.1f} {100 * bias:+8.1f}"
    )


def show(left_out: bool) -> None:
    """Print the errors by table, by source and chip."""
    print(f"{'error of time, %':44s} {'n':>5s} {'median':>8s} {'p90':>8s} {'bias':>8s}")
    for table in TABLES:
        comparisons = compared(table)
        print(line(table, comparisons))
        groups = defaultdict(list)
        for comparison in comparisons:
            groups[comparison.device, comparison.family].append(comparison)
        for (device, family), some in sorted(groups.items()):
            print(line(f"    {device}: {family}", some))
        if left_out:
            print(line(f"{table}, each source left out", leave_out(table)))
    print(FIXED)


def write() -> None:
    """Put the constants into rates.toml, number by number: its comments stay."""
    text, table = PATH.read_text(encoding="utf-8").splitlines(), ""
    paths = {path for bounds in FITTED.values() for path in bounds} | {"matmul.tiles.64x128"}
    for number, row in enumerate(text):
        head = re.match(r"\[([^\]]+)\]", row)
        table = head[1] if head else table
        found = re.match(r'("?)([\w-]+)\1 = \S+', row)
        if found and f"{table}.{found[2]}" in paths:
            value = _three_digits(value_at(f"{table}.{found[2]}"))
            new = f"{found[1]}{found[2]}{found[1]} = {value}"
            text[number] = f"{new:{found.end()}s}{row[found.end() :]}".rstrip()
    PATH.write_text("\n".join(text) + "\n", encoding="utf-8")


def _three_digits(value: float) -> str:
    """As TOML has a float: 0.82, 2590.0, 3.72e+10."""
    if 1e-3 <= value < 1e6:
        return repr(float(f"{value:.3g}"))
    return f"{value:.2e}"


def main(words: list[str] | None = None) -> int:
    """Refit if asked to, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="refit and write rates.toml")
    parser.add_argument("--leave-out", action="store_true", help="refit without each source")
    asked = parser.parse_args(words)
    if asked.write:
        for table in FITTED:
            fit(table)
        write()
    show(asked.leave_out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
