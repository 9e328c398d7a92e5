"""One question about several machines: answers side by side, and what they cost.

Answers, for each machine, what `predict` or `fits` says of it alone, and of a prediction tokens/s
for each watt (GPUs at their power limit) and for each unit of money (a GPU's price, to buy or an
hour; any currency).  A machine that cannot run it keeps its place with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from trainrig.catalog.lookup import normalise
from trainrig.catalog.servers import find_server
from trainrig.errors import TrainrigError, UsageError
from trainrig.prediction.prediction import Prediction
from trainrig.prediction.verdict import DOES_NOT_FIT

if TYPE_CHECKING:
    from trainrig.prediction.fit.methods import FitAnswer

Answer = TypeVar("Answer", Prediction, "FitAnswer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside(Generic[Answer]):
    """What is found of one of several machines."""

    name: str
    """As it was named."""
    found: Answer | None
    reason: str | None = None
    """Why there is nothing."""
    price: float | None = None
    """Of one GPU."""

    @property
    def may_fit(self) -> bool:
        """Whether it can run, and memory is enough or may be."""
        return self.found is not None and self.found.verdict != DOES_NOT_FIT

    @property
    def per_watt(self) -> float | None:
        """Tokens/s for each watt of the GPUs."""
        power = _power(self.found)
        if not isinstance(self.found, Prediction) or power is None:
            return None
        return self.found.tokens_per_s / power

    @property
    def per_price(self) -> float | None:
        """Tokens/s for each unit of money that the GPUs cost."""
        if not isinstance(self.found, Prediction) or self.price is None:
            return None
        return self.found.tokens_per_s / (int(self.found.layout.mesh.gpus) * self.price)


def beside(
    questions: Sequence[Mapping[str, Any]],
    ask: Callable[[Mapping[str, Any]], Answer],
    prices: Sequence[str] = (),
) -> tuple[Beside[Answer], ...]:
    """Ask about each machine.  Raises UsageError where none of them can run it, or for a price."""
    names = [str(one.get("on", "these rates")) for one in questions]
    costs = parse_prices(prices, names)
    found: list[Beside[Answer]] = []
    first: TrainrigError | None = None
    for one in questions:
        if "on" in one:
            # A slip of the keyboard is no machine that cannot.
            find_server(one["on"])
    for one, name in zip(questions, names, strict=True):
        try:
            answer = ask(one)
        except TrainrigError as error:
            first = first or error
            found.append(Beside(name=name, found=None, reason=error.message, price=costs.get(name)))
        else:
            found.append(Beside(name=name, found=answer, price=costs.get(name)))
    if first is not None and all(one.found is None for one in found):
        raise first
    return tuple(found)


def parse_prices(texts: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """``RTX 4090=1600``, or numbers in the machines' order: one in each text, or some in one.

    Raises UsageError for what is no price, of an unknown machine, or one too many.
    """
    found: dict[str, float] = {}
    known = {normalise(name): name for name in names}
    places = iter(names)
    for text in texts:
        name, equals, number = text.rpartition("=")
        if equals:
            if normalise(name) not in known:
                hint = "one of: " + ", ".join(names)
                raise UsageError(f"a price of {name.strip()}, and nobody asks about it", hint)
            found[known[normalise(name)]] = _price(number)
            continue
        for word in text.replace(",", " ").split():
            if (place := next(places, None)) is None:
                raise UsageError(f"more prices than machines ({len(names)})", "one for each --on")
            found[place] = _price(word)
    return found


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise UsageError(f"a price of {text!r}", 'as --price 1600, or --price "RTX 4090=1600"')
    return value


def beside_dict(
    several: Sequence[Beside[Answer]], content: Callable[[Answer], dict[str, Any]]
) -> dict[str, Any]:
    """What ``--json`` prints of several machines; others script against it."""
    return {
        "machines": [
            {
                "machine": one.name,
                "reason": one.reason,
                "price": one.price,
                "power_w": _power(one.found),
                "tokens_per_s_per_w": one.per_watt,
                "tokens_per_s_per_price": one.per_price,
                **({} if one.found is None else content(one.found)),
            }
            for one in several
        ]
    }


def _power(found: Prediction | FitAnswer | None) -> float | None:
    return found.power if isinstance(found, Prediction) else None
