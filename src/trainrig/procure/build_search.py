"""The best builds under a budget: parts with prices, rules of builds, predicted tokens a day.

A mixed-integer program (scipy's HiGHS) chooses one board, processor, case and cooler, a number of
cards, modules and disks, and one or two supplies.  What is linear of the rules stands in it: watts,
peaks, plugs, sizes, sockets, formats.  What is not (where cards stand, how supplies share them) is
checked afterwards by `check_build` itself; what that refuses is cut off, by the parts of the broken
rule, and it is solved again: so a build that comes out is legal by the same rules.

A GPU's rate is at first an upper bound (one GPU without an end of memory, times their number); what
is chosen by its bound is predicted and solved again, until all that is chosen is predicted: the
optimum is that of predicting everything.  Lanes count: of x8 and x4 slots the prediction is of x8
and x4.  Builds differ in their GPU or its number; of those that are within a thousandth of the
fastest with that GPU and number, the cheapest is taken.  Modules fill all channels of the board.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainrig.catalog.chip import Chip
from trainrig.errors import UsageError
from trainrig.prediction.cluster import Cluster
from trainrig.prediction.search.space import Space
from trainrig.procure.build_choices import (
    PAIRS,
    Choice,
    Offer,
    choices_of,
    eight_pins,
    radiators,
    rating_at,
    undominated_offers,
)
from trainrig.procure.build_rules import BuildReport, check_build
from trainrig.procure.load_rules import card_watts, disk_need
from trainrig.procure.part_catalog import chip_of, find_part
from trainrig.procure.parts import (
    KINDS,
    NEEDED,
    Board,
    Chassis,
    DiskPart,
    GpuCard,
    MemoryModule,
    PowerSupply,
    Processor,
    known_value,
    unknown_fields,
)
from trainrig.procure.parts_list import Build, PartCount, Room, Use, Wiring
from trainrig.procure.placement import positions
from trainrig.procure.price_list import Price, newest
from trainrig.procure.rule_book import rule_book
from trainrig.procure.supply_rules import peak_factor
from trainrig.procure.training_rate import TrainingRate, bound_of, rate_at, training_space
from trainrig.units import DAY
from trainrig.workload.model_lookup import find

ROUNDS = 150
"""Rounds of solving before the best build so far is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A legal build, and what it does."""

    report: BuildReport
    rate: TrainingRate
    lanes: int

    @property
    def price(self) -> float:
        """Price of all parts."""
        return self.report.build.priced_total

    @property
    def tokens_per_day(self) -> float:
        """Return tokens a day at the predicted rate."""
        return self.rate.tokens_per_s * DAY

    @property
    def gpus(self) -> str:
        """Number and name of the GPUs: ``2 × ASUS Turbo RTX 3090``."""
        (card, count) = self.report.build.part_counts(GpuCard)[0]
        return f"{count} × {card.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestions:
    """What a budget buys."""

    builds: tuple[Suggestion, ...]
    """Most tokens a day first."""
    next_step: tuple[Suggestion | None, ...]
    """Best build for 10 % more money, for each build; None where that is no faster."""
    offers: int
    rounds: int
    budget: float
    currency: str


def offers_of(prices: Iterable[Price], own_build: Build | None, currency: str) -> tuple[Offer, ...]:
    """Return the parts that the list prices, and a user's own with their prices.

    One of which the catalog lacks a figure is none: no build with it is known to be legal.  Watts
    of a cooler are no such figure, since most makers give none: the build says so.
    """
    offers = {}
    for price in newest(prices):
        if price.currency != currency or price.per != "piece":
            continue
        for kind in (price.kind,) if price.kind in KINDS else () if price.kind else tuple(KINDS):
            if (part := find_part(kind, price.part)) is not None:
                origin = f"{price.source}, {price.date}"
                offers[kind, part.name] = Offer(part=part, price=price.price, origin=origin)
    for item in own_build.items if own_build is not None else ():
        if item.price is not None:
            offer = Offer(part=item.part, price=item.price, origin="the list")
            offers[item.kind, item.part.name] = offer
    return tuple(one for one in offers.values() if unknown_fields(one.part) in ((), ("watts",)))


@dataclass(slots=True, kw_only=True)
class _Program:
    """The mixed-integer program, and what was learnt while it was solved."""

    offers: tuple[Offer, ...]
    training_options: Mapping[str, Any]
    """Options of the model and its numerics, as `trainrig predict` has them."""
    use: Use
    room: Room
    currency: str
    choices: list[Choice] = field(default_factory=list)
    spaces: dict[str, Space | None] = field(default_factory=dict)
    rates: dict[tuple[str, int, int], TrainingRate | None] = field(default_factory=dict)
    rows: list[tuple[dict[int, float], float]] = field(default_factory=list)
    """Sum of coefficients × variables ≥ bound."""
    cuts: list[tuple[dict[int, float], float]] = field(default_factory=list)
    """Rows that forbid combinations which broke a rule."""
    matrix: Any = None
    """Coefficients of the rows, built once."""
    rounds: int = 0

    # ---- variables and rows

    def build(self, most_price: float) -> None:
        """Make the variables and the linear rules."""
        boards = [offer.part for offer in self.offers if isinstance(offer.part, Board)]
        for offer in self.offers:
            if offer.price <= most_price:
                self.choices += choices_of(offer, most_price, boards)
        for kind in NEEDED:
            there = self._of(kind)
            if not there:
                raise UsageError(
                    f"no {kind} that can be had has a price in {self.currency}",
                    f"trainrig prices template, then import rows of kind {kind}",
                )
            self.rows += [(dict.fromkeys(there, 1.0), 1.0), (dict.fromkeys(there, -1.0), -1.0)]
        self._compatible()
        self._sizes()

    def _of(self, kind: str) -> list[int]:
        return [n for n, choice in enumerate(self.choices) if choice.kind == kind]

    def _compatible(self) -> None:
        """Add rows: a choice needs one of those of another kind that go with it."""
        for first, second, goes in PAIRS:
            second_choices = self._of(second)
            for n in self._of(first):
                fitting = [m for m in second_choices if goes(self.choices[n], self.choices[m])]
                if len(fitting) < len(second_choices):
                    self.rows.append((dict.fromkeys(fitting, 1.0) | {n: -1.0}, 0.0))

    def _sizes(self) -> None:
        """Add rows for sums: RAM, watts, peaks, plugs and disks."""
        book = rule_book()
        ram: dict[int, float] = {}
        watts: dict[int, float] = {}
        peaks: dict[int, float] = {}
        plugs: dict[int, float] = {}
        disks: dict[int, float] = {}
        factors = book.rules["psu-transients"].values
        most_load = book.value("psu-watts", "most")
        least_ram = book.value("memory-size", "least")
        for n, choice in enumerate(self.choices):
            part, count = choice.offer.part, choice.count
            match part:
                case GpuCard():
                    chip, draw = chip_of(part), card_watts(part) * count
                    ram[n] = -least_ram * (chip.memory.size or 0.0) / 2.0**30 * count
                    watts[n] = -draw
                    peaks[n] = -draw * factors.get(chip.name, factors["factor"])
                    plugs[n] = -float(eight_pins(part) * count)
                case PowerSupply():
                    rated, cables = rating_at(part, self.room), known_value(part.connectors)
                    watts[n] = most_load * rated * count
                    peaks[n] = factors["atx2" if part.atx == "2" else "atx3"] * rated * count
                    plugs_of_8 = cables.get("8-pin", 0)
                    plugs[n] = float((plugs_of_8 + 3 * cables.get("12V-2x6", 0)) * count)
                case MemoryModule():
                    ram[n] = float(part.capacity_gib * count)
                    watts[n] = peaks[n] = -part.watts * count
                case Processor():
                    watts[n] = peaks[n] = -part.watts
                case DiskPart():
                    watts[n] = peaks[n] = -part.watts * count
                    disks[n] = part.capacity_tb * count
        rest_watts = book.value("psu-watts", "rest_watts")
        need = disk_need(self.use)[0] / 1e12 / book.value("disk-capacity", "most")
        self.rows += [
            (ram, 0.0),
            (watts, rest_watts),
            (peaks, rest_watts),
            (plugs, 0.0),
            (disks, need),
        ]
        self.rows.append(({n: radiators(one) for n, one in enumerate(self.choices)}, 0.0))

    # ---- rates

    def rate(self, choice: Choice) -> float:
        """Return tokens a second, as predicted; or the bound, where it is not predicted yet."""
        card = choice.offer.part
        assert isinstance(card, GpuCard)
        key = card.chip, choice.count, choice.lanes
        if key in self.rates:
            tokens_per_s = self.rates[key]
            return tokens_per_s.tokens_per_s if tokens_per_s else 0.0
        chip = chip_of(card)
        layout_space = self._space(chip)
        return 0.0 if layout_space is None else bound_of(layout_space, chip) * choice.count

    def _space(self, chip: Chip) -> Space | None:
        """Return all layouts with a chip's numerics; None where it cannot run the model."""
        if chip.name not in self.spaces:
            try:
                layout_space = training_space({**self.training_options, "on": chip.name})[0]
            except UsageError:
                layout_space = None
            self.spaces[chip.name] = layout_space
        return self.spaces[chip.name]

    def predict(self, choice: Choice) -> bool:
        """Predict a choice's rate, and return whether it was new."""
        card = choice.offer.part
        assert isinstance(card, GpuCard)
        key = card.chip, choice.count, choice.lanes
        if key in self.rates:
            return False
        chip = chip_of(card)
        cluster = Cluster(chip=chip, gpus=choice.count, gpus_per_node=max(1, choice.count))
        if chip.pcie.lanes and choice.lanes < chip.pcie.lanes and choice.count > 1:
            cluster = cluster.with_chip(pcie_lanes=choice.lanes)
        layout_space = self._space(chip)
        self.rates[key] = None if layout_space is None else rate_at(layout_space, cluster)
        return True

    # ---- solving

    def solve(
        self, budget: float, forbidden: Sequence[tuple[str, int]], *, cheapest: bool = False
    ) -> Suggestion | None:
        """Return the best legal build, other than of ``forbidden`` GPUs, counts and lanes."""
        while self.rounds < ROUNDS:
            self.rounds += 1
            chosen = self._optimum(budget, forbidden, cheapest=cheapest)
            if chosen is None:
                return None
            gpu = next(n for n in chosen if self.choices[n].kind == "gpu")
            if self.predict(self.choices[gpu]):
                continue
            rate = self.rates[_key(self.choices[gpu])]
            assert rate is not None
            report = check_build(self._build(chosen))
            broken = {check.rule for check in report.checks if check.severity == "error"}
            if not broken:
                return Suggestion(report=report, rate=rate, lanes=self.choices[gpu].lanes)
            for rule in broken:
                self._forbid(rule, [self.choices[n] for n in chosen])
        return None

    def _forbid(self, rule: str, chosen: Sequence[Choice]) -> None:
        """Forbid a choice that broke a rule, and all that break it at least as much."""
        kinds = _BLAMED.get(rule, frozenset(NEEDED))
        blamed = [choice for choice in chosen if choice.kind in kinds]
        row = {
            n: -1.0
            for n, other in enumerate(self.choices)
            if any(other.kind == kind.kind and _breaks_alike(rule, other, kind) for kind in blamed)
        }
        self.cuts.append((row, 1.0 - len(blamed)))

    def _build(self, chosen: Iterable[int]) -> Build:
        items = [self.choices[n] for n in chosen]
        supplies = next(item.count for item in items if item.kind == "psu")
        counts = sorted(
            (
                PartCount(
                    kind=item.kind,
                    part=item.offer.part,
                    count=item.count,
                    price=item.offer.price,
                    priced=item.offer.origin,
                )
                for item in items
            ),
            key=lambda item: list(KINDS).index(item.kind),
        )
        card = next(item for item in counts if item.kind == "gpu")
        return Build(
            name=f"{card.count} × {card.part.name}",
            items=tuple(counts),
            currency=self.currency,
            use=self.use,
            room=self.room,
            wiring=Wiring(psu_sync=supplies > 1),
        )

    def _optimum(
        self, budget: float, forbidden: Sequence[tuple[str, int]], *, cheapest: bool
    ) -> list[int] | None:
        """Return the chosen variables, or None where nothing is left."""
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import vstack

        size = len(self.choices)
        prices = np.array([choice.price for choice in self.choices])
        later = [*self.cuts, (dict(enumerate(-prices)), -budget)]
        if self.matrix is None:
            self.matrix = _matrix(self.rows, size)
        highest, speed = np.ones(size), np.zeros(size)
        for n in self._of("gpu"):
            choice = self.choices[n]
            speed[n] = self.rate(choice)
            if _key(choice)[:2] in forbidden or speed[n] == 0.0:
                highest[n] = 0.0
        scale = max(float(speed.max(initial=0.0)), 1e-9)
        # Of builds with one rate the cheapest: all of the budget weighs a thousandth of the rate.
        goal = prices / prices.sum() if cheapest else -speed / scale + 1e-3 * prices / budget
        matrix = vstack([self.matrix, _matrix(later, size)])
        bounds = np.array([bound for _, bound in (*self.rows, *later)])
        solution = milp(
            goal * 1e3,  # HiGHS is content within 1e-6
            integrality=np.ones(size),
            bounds=Bounds(np.zeros(size), highest),
            constraints=LinearConstraint(matrix, lb=bounds),
            options={"mip_rel_gap": 1e-7, "time_limit": 20.0},
        )
        if solution.x is None:
            return None
        return [int(n) for n in np.flatnonzero(solution.x > 0.5)]


def _breaks_alike(rule: str, other: Choice, choice: Choice) -> bool:
    """Return whether ``other`` in the place of ``choice`` breaks the rule as well."""
    if other == choice:
        return True
    if rule in _OF_SUPPLIES:
        return _loads_alike(other, choice)
    match other.offer.part, choice.offer.part:
        case GpuCard() as card, GpuCard() as refused if rule in ("slots", "airflow"):
            same = positions(card) >= positions(refused) and card.cooling == refused.cooling
            return same and other.count >= choice.count
        case Chassis() as case, Chassis() as refused if rule == "slots":
            fewer = known_value(case.room("slots")) <= known_value(refused.room("slots"))
            return fewer and case.riser_cards <= refused.riser_cards
    return False


def _loads_alike(other: Choice, choice: Choice) -> bool:
    """Return whether ``other`` in the place of ``choice`` loads supplies as much."""
    match other.offer.part, choice.offer.part:
        case GpuCard() as card, GpuCard() as refused:
            same = card_watts(card) >= card_watts(refused) and other.count >= choice.count
            return same and peak_factor(card) >= peak_factor(refused)
        case PowerSupply() as part, PowerSupply() as refused:
            low = (part.watts_115v or part.watts) <= (refused.watts_115v or refused.watts)
            same = part.watts <= refused.watts and low and other.count <= choice.count
            return same and (part.atx == "2" or refused.atx != "2")
        case (
            (Processor() as part, Processor() as refused)
            | (MemoryModule() as part, MemoryModule() as refused)
            | (DiskPart() as part, DiskPart() as refused)
        ):
            return part.watts * other.count >= refused.watts * choice.count
    return False


def _matrix(rows: Sequence[tuple[dict[int, float], float]], size: int) -> Any:
    """Return coefficients of rows as a sparse matrix."""
    from scipy.sparse import csr_array

    entries = [(r, n, value) for r, (row, _) in enumerate(rows) for n, value in row.items()]
    places = [entry[0] for entry in entries], [entry[1] for entry in entries]
    return csr_array(([entry[2] for entry in entries], places), shape=(len(rows), size))


def _key(choice: Choice) -> tuple[str, int, int]:
    card = choice.offer.part
    assert isinstance(card, GpuCard)
    return card.chip, choice.count, choice.lanes


_OF_SUPPLIES = ("psu-rails", "psu-transients", "psu-rating")
_OF_MEMORY = ("memory-channels", "memory-slots", "memory-module", "memory-capacity")
_BLAMED = {
    **dict.fromkeys(_OF_SUPPLIES, frozenset(["gpu", "psu", "cpu", "ram", "disk"])),
    "slots": frozenset(["gpu", "board", "case"]),
    "airflow": frozenset(["gpu", "board", "case"]),
    "lanes": frozenset(["gpu", "board", "cpu", "case"]),
    "psu-connectors": frozenset(["gpu", "psu"]),
    "noise": frozenset(["gpu", "case", "cooling"]),
    "rack-units": frozenset(["case"]),
    **dict.fromkeys(_OF_MEMORY, frozenset(["ram", "board", "cpu"])),
    "disk-ports": frozenset(["disk", "board", "gpu"]),
}
"""Which parts a broken rule speaks of; all where it is not here."""


def suggest(
    offers: Sequence[Offer],
    training_options: Mapping[str, Any],
    *,
    budget: float,
    currency: str,
    use: Use | None = None,
    room: Room | None = None,
    top: int = 5,
) -> Suggestions:
    """Return the ``top`` builds with most tokens a day that ``budget`` buys.

    Raises UsageError where a kind of part has no price, and where nothing legal is cheap enough: it
    names the price of the cheapest build that trains the model.
    """
    if not 0.0 < budget < math.inf:
        raise UsageError(f"a budget of {budget:g}", "a number above 0")

    useful_offers = undominated_offers(offers)

    def program_up_to(most_price: float) -> _Program:
        started = _Program(
            offers=tuple(useful_offers),
            training_options=training_options,
            use=use or Use(),
            room=room or Room(),
            currency=currency,
        )
        started.build(most_price)
        return started

    model = find(str(training_options.get("model", ""))) if training_options.get("model") else None
    if model is None:
        raise UsageError("missing --model", "as --model gpt3-1.3B; or a path to a config.json")
    program = program_up_to(1.1 * budget)
    suggestions: list[Suggestion] = []
    while len(suggestions) < top:
        suggestion = program.solve(budget, [_kind_of_build(previous) for previous in suggestions])
        if suggestion is None:
            break
        suggestions.append(suggestion)
    if not suggestions:
        cheapest_build = program_up_to(100.0 * budget).solve(100.0 * budget, (), cheapest=True)
        if cheapest_build is None:
            raise UsageError(
                "no legal build trains that model with the parts that have a price",
                "prices of more parts, or a smaller model",
            )
        raise UsageError(
            f"no legal build for {budget:,.0f} {currency} trains {model.name}",
            f"the cheapest costs {cheapest_build.price:,.0f} {currency}: {cheapest_build.gpus}",
        )
    steps = tuple(_next_step(program, suggestion) for suggestion in suggestions)
    return Suggestions(
        builds=tuple(suggestions),
        next_step=steps,
        offers=len(offers),
        rounds=program.rounds,
        budget=budget,
        currency=currency,
    )


def _kind_of_build(suggestion: Suggestion) -> tuple[str, int]:
    ((card, count),) = suggestion.report.build.part_counts(GpuCard)
    return card.chip, count


def _next_step(program: _Program, suggestion: Suggestion) -> Suggestion | None:
    better = program.solve(1.1 * suggestion.price, ())
    if better is None or better.tokens_per_day <= suggestion.tokens_per_day * 1.001:
        return None
    return better


def suggestions_dict(suggestions: Suggestions) -> dict[str, Any]:
    """Return the JSON of ``build suggest``."""

    def entry(suggestion: Suggestion) -> dict[str, Any]:
        tight = suggestion.report.tightest
        return {
            "gpus": suggestion.gpus,
            "tokens_per_day": suggestion.tokens_per_day,
            "interval": {"tokens_per_day": [suggestion.rate.low * DAY, suggestion.rate.high * DAY]},
            "price": suggestion.price,
            "watts": suggestion.report.power.wall,
            "lanes": suggestion.lanes,
            "waits_for": suggestion.rate.limits,
            "nearest_limit": tight.rule if tight else None,
            "nearest_limit_used": tight.used if tight else None,
            "parts": [
                {
                    "kind": item.kind,
                    "part": item.part.name,
                    "count": item.count,
                    "price": item.price,
                    "priced": item.priced,
                }
                for item in suggestion.report.build.items
            ],
        }

    return {
        "budget": suggestions.budget,
        "currency": suggestions.currency,
        "offers": suggestions.offers,
        "builds": [
            entry(suggestion)
            | {
                "next_10_percent": None
                if step is None
                else entry(step) | {"gain": step.tokens_per_day / suggestion.tokens_per_day - 1.0}
            }
            for suggestion, step in zip(suggestions.builds, suggestions.next_step, strict=True)
        ],
    }
