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
class MachineComparison(Generic[Answer]):
    """The answer about one of several machines."""

    name: str
    """The machine as it was typed."""
    answer: Answer | None
    reason: str | None = None
    """Reason why there is no answer."""
    price: float | None = None
    """Price of one GPU."""

    @property
    def may_fit(self) -> bool:
        """Return whether the machine can run it, and memory is enough or may be."""
        return self.answer is not None and self.answer.verdict != DOES_NOT_FIT

    @property
    def per_watt(self) -> float | None:
        """Return tokens/s for each watt of the GPUs."""
        power = _power(self.answer)
        if not isinstance(self.answer, Prediction) or power is None:
            return None
        return self.answer.tokens_per_s / power

    @property
    def per_price(self) -> float | None:
        """Return tokens/s for each unit of money that the GPUs cost."""
        if not isinstance(self.answer, Prediction) or self.price is None:
            return None
        return self.answer.tokens_per_s / (int(self.answer.layout.mesh.gpus) * self.price)


def compare_machines(
    questions: Sequence[Mapping[str, Any]],
    ask: Callable[[Mapping[str, Any]], Answer],
    prices: Sequence[str] = (),
) -> tuple[MachineComparison[Answer], ...]:
    """Return the answers about several machines.

    Args:
        questions: The options for each machine.
        ask: Answers one of them.
        prices: Prices of a GPU, as ``--price`` takes them.

    Raises:
        UsageError: No machine can run it, or a price is none.
    """
    names = [str(question.get("on", "these rates")) for question in questions]
    costs = parse_prices(prices, names)
    comparisons: list[MachineComparison[Answer]] = []
    first: TrainrigError | None = None
    for question in questions:
        if "on" in question:
            # A slip of the keyboard is no machine that cannot.
            find_server(question["on"])
    for question, name in zip(questions, names, strict=True):
        try:
            answer = ask(question)
        except TrainrigError as error:
            first = first or error
            comparisons.append(
                MachineComparison(
                    name=name, answer=None, reason=error.message, price=costs.get(name)
                )
            )
        else:
            comparisons.append(MachineComparison(name=name, answer=answer, price=costs.get(name)))
    if first is not None and all(comparison.answer is None for comparison in comparisons):
        raise first
    return tuple(comparisons)


def parse_prices(texts: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Return ``RTX 4090=1600``, or numbers in the machines' order.

    One in each text, or some in one.

    Raises UsageError for what is no price, of an unknown machine, or one too many.
    """
    prices: dict[str, float] = {}
    known = {normalise(name): name for name in names}
    places = iter(names)
    for text in texts:
        name, equals, number = text.rpartition("=")
        if equals:
            if normalise(name) not in known:
                hint = "one of: " + ", ".join(names)
                raise UsageError(f"--price names {name.strip()}, which is not in --on", hint)
            prices[known[normalise(name)]] = _price(number)
            continue
        for word in text.replace(",", " ").split():
            if (place := next(places, None)) is None:
                raise UsageError(f"more prices than machines ({len(names)})", "one for each --on")
            prices[place] = _price(word)
    return prices


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise UsageError(f"a price of {text!r}", 'as --price 1600, or --price "RTX 4090=1600"')
    return value


def comparison_dict(
    comparisons: Sequence[MachineComparison[Answer]], content: Callable[[Answer], dict[str, Any]]
) -> dict[str, Any]:
    """Return what ``--json`` prints of several machines."""
    return {
        "machines": [
            {
                "machine": comparison.name,
                "reason": comparison.reason,
                "price": comparison.price,
                "power_w": _power(comparison.answer),
                "tokens_per_s_per_w": comparison.per_watt,
                "tokens_per_s_per_price": comparison.per_price,
                **({} if comparison.answer is None else content(comparison.answer)),
            }
            for comparison in comparisons
        ]
    }


def _power(answer: Prediction | FitAnswer | None) -> float | None:
    return answer.power if isinstance(answer, Prediction) else None
