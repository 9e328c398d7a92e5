"""Refit the constants that turn claims into rates, and say how far the rates are from the figures.

    python tools/fit_rates.py                 print the errors of the constants as they stand
    python tools/fit_rates.py --leave-out     and what they are worth on sources not fitted to
    python tools/fit_rates.py --write         refit, print, and write predict/rates.toml

Fitted to the published products, streams, collectives and attentions that the package carries.
What is minimised is the mean over groups (one source on one chip) of |log(predicted/measured)|,
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
from collections.abc import Callable, Iterable
from typing import Any

from trainrig.predict import rates_errors
from trainrig.predict.rates.from_chip import PATH, constants
from trainrig.predict.rates_errors import TABLES, Compared, quantile

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
attention on Hopper, and plain flash attention on any chip (published steps by length of sequence);
attention on Blackwell (its longest kernels alone, since shorter ones outrun its power);
the classes turing, cdna, gaudi, tpu and other (one figure or none: stated)."""
PULL = 0.003


def compared(table: str, keep: Callable[[str], bool] = lambda _: True) -> list[Compared]:
    """A table's figures under the constants as they are now."""
    rates_errors.forget()
    return [one for one in TABLES[table]() if keep(one.family)]


def loss(found: Iterable[Compared]) -> float:
    """Mean over groups of the mean absolute logarithm, blunted."""
    groups = defaultdict(list)
    for one in found:
        size = abs(math.log(one.ratio))
        groups[one.family, one.device].append(min(size, 0.5 + 0.1 * size))
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
    found: list[Compared] = []
    families = sorted({one.family for one in compared(table)})
    for family in families if len(families) > 1 else ():
        fit(table, family.__ne__, rounds=3)
        found += compared(table, family.__eq__)
        for path, value in before.items():
            put(path, value)
    rates_errors.forget()
    return found


def line(words: str, found: list[Compared]) -> str:
    """One line of the table of errors, in per cent."""
    errors = [one.error for one in found]
    bias = quantile([one.ratio for one in found], 0.5) - 1.0
    return (
        f"{words:44.44s} {len(found):5d} {100 * quantile(errors, 0.5):8.1f} "
        f"{100 * quantile(errors, 0.9):8.1f} {100 * bias:+8.1f}"
    )


def show(left_out: bool) -> None:
    """Print the errors by table, by source and chip."""
    print(f"{'error of time, %':44s} {'n':>5s} {'median':>8s} {'p90':>8s} {'bias':>8s}")
    for table in TABLES:
        found = compared(table)
        print(line(table, found))
        groups = defaultdict(list)
        for one in found:
            groups[one.device, one.family].append(one)
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
