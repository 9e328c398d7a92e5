"""Buy, rent or cloud: what each costs over some years, and from when on owning is cheaper.

    owning  = capital + electricity + hosting + staff, over the years, at a utilisation
    capital = (price − resale / (1 + i)^years) × i / (1 − (1 + i)^−years) × years, the annuity of a
              loan at i a year; price − resale without interest
    electricity = watts × PUE × hours of use × price of a kWh
    renting = price of an hour × hours of use; reserved and by the month: of all hours, used or not
    spot    = price of an hour × hours of use / goodput, since interruptions waste time (`goodput`)

Break-even days: of full use, 24 hours a day, and of the stated utilisation, after which renting by
the hour has cost as much as the machine's capital and its running until then.  Break-even
utilisation: the share of the years' hours from which on owning is cheaper.  A year has 365 days.
What has no price is not counted, and is named.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.catalog.chip import Chip
from trainrig.errors import UsageError, unknown
from trainrig.procure.goodput import (
    Failures,
    daly_interval,
    goodput,
    simulate_goodput,
    young_interval,
)
from trainrig.procure.price_list import Per, Price, newest, price_of
from trainrig.procure.quoted_prices import HOURLY, QuotedPrice, presumed_kwh
from trainrig.procure.training_rate import TrainingRate
from trainrig.units import DAY, counted, format_money, format_share

HOURS_A_YEAR = 365.0 * 24.0
HOURS_A_MONTH = HOURS_A_YEAR / 12.0
SPREAD = 0.2
"""Share by which each input is moved in the tornado, up and down."""
PRESUMED_CURRENCY = "USD"
"""Currency of amounts where none is named: that of the presumed price of a kWh."""
WAYS = ("buy", "rent", "month", "reserved", "spot")
_PAID_IDLE = ("buy", "month", "reserved")
"""Ways whose price does not depend on the hours of use, electricity aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Prices of one machine, and how it is used; the numbers that a cost question turns on."""

    buy: float | None = None
    """Price of one machine: a parts list's total, or a server's quote."""
    rent_per_hour: float | None = None
    rent_per_month: float | None = None
    reserved_per_hour: float | None = None
    spot_per_hour: float | None = None
    machines: int = 1
    years: float = 3.0
    utilisation: float = 1.0
    """Share of all hours in which the machine works."""
    resale: float = 0.0
    """Share of the price that the machine brings after its years."""
    interest: float = 0.0
    """Interest rate a year."""
    watts: float | None = None
    """Watts of one machine at the wall, at full load."""
    gpus_alone: bool = False
    """True where the watts are those of the GPUs alone."""
    kwh_price: float | None = None
    pue: float = 1.0
    """Power of the whole site over that of the machine: cooling, losses."""
    hosting_per_month: float = 0.0
    staff_hours_per_month: float = 0.0
    staff_rate: float = 0.0
    """Price of an hour of staff."""
    failures: Failures | None = None
    """Failures of the whole; None: none are counted."""
    interruptions_per_day: float | None = None
    """Interruptions of spot machines in a day."""

    def replace(self, **changes: Any) -> Terms:
        """Return a copy with some terms changed."""
        return dataclasses.replace(self, **changes)

    @property
    def hours(self) -> float:
        """Hours of use over the years."""
        return self.years * HOURS_A_YEAR * self.utilisation

    @property
    def goodput(self) -> float:
        """Share of the hours of use that failures leave; 1 where none are counted."""
        return _best_goodput(self.failures) if self.failures else 1.0

    @property
    def spot_goodput(self) -> float:
        """Share of the hours of use that failures and interruptions leave of spot machines."""
        if self.interruptions_per_day is None:
            return self.goodput
        base = self.failures or _UNSAID
        rate = self.interruptions_per_day / DAY + 1.0 / base.mtbf_s
        return _best_goodput(dataclasses.replace(base, mtbf_s=1.0 / rate)) if rate else 1.0


_UNSAID = Failures(mtbf_s=math.inf, checkpoint_s=60.0, restart_s=300.0)
"""Failures of spot machines of which none were stated; an answer that takes it says so."""


def _best_goodput(failures: Failures) -> float:
    return goodput(failures, daly_interval(failures))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to have the machines, over the years."""

    name: str
    total: float
    parts: tuple[tuple[str, float], ...]
    """Parts of the price by name; they sum to the total."""
    per_hour: float
    """Price of an hour of useful work, which failures leave of the hours of use."""
    break_even_days: float | None = None
    """Days of full use after which owning is cheaper; None where it never is."""
    break_even_days_used: float | None = None
    """Days at the terms' utilisation after which owning is cheaper."""
    break_even_utilisation: float | None = None
    """Share of the hours from which owning is cheaper; None where it never is."""

    def break_even_hours(self, terms: Terms) -> float | None:
        """Return the hours of use over the terms' years from which owning is cheaper."""
        share = self.break_even_utilisation
        return None if share is None else share * terms.years * HOURS_A_YEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Cost of an hour as one input moves."""

    term: str
    low: float
    high: float
    """Cost of a useful hour with the input lower and higher by SPREAD."""

    @property
    def size(self) -> float:
        """Width of the bar."""
        return abs(self.high - self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAnswer:
    """Ways side by side, and what they mean for a training."""

    terms: Terms
    currency: str
    quotes: tuple[QuotedPrice, ...]
    """Prices of an hour as they were quoted, which the terms have of one machine."""
    presumed: tuple[str, ...]
    """Inputs that nobody stated and that are counted nonetheless, as text."""
    ways: tuple[Way, ...]
    sensitivities: tuple[Sensitivity, ...]
    """Sensitivity of the cheapest way to each input, the widest first."""
    not_counted: tuple[str, ...]
    rate: TrainingRate | None = None
    """Rate of the training; None: no training was asked about."""
    tokens: float | None = None
    days: float | None = None
    """Days that are given for the training."""
    peak: float | None = None
    """Claimed peak of all GPUs of a machine in FLOP/s."""
    memory: float | None = None
    """Memory of all GPUs of a machine in bytes."""
    is_one_training: bool = False
    """True where the machines are had for this training alone."""

    @property
    def cheapest(self) -> Way:
        """Way with the cheapest useful hour."""
        return min(self.ways, key=lambda way: way.per_hour)

    def way(self, name: str) -> Way | None:
        """Return one of WAYS, where it has a price."""
        return next((way for way in self.ways if way.name == name), None)

    def checkpoints(self) -> dict[str, float]:
        """Return checkpoint intervals and goodput; empty where no failures are counted."""
        return checkpoints_dict(self.terms.failures) if self.terms.failures else {}

    def goodput_of(self, way: Way) -> float:
        """Return the share of a way's hours that are work."""
        return self.terms.spot_goodput if way.name == "spot" else self.terms.goodput

    def per_million_tokens(self, way: Way) -> tuple[float, float, float] | None:
        """Return the price of a million tokens: middle, low and high."""
        if self.rate is None:
            return None
        if self.is_one_training and self.tokens and way.name in _PAID_IDLE:
            price = way.total / self.tokens * 1e6  # the same however long it takes
            return price, price, price
        middle, high, low = (
            way.per_hour / (speed * 3600.0) * 1e6
            for speed in (self.rate.tokens_per_s, self.rate.low, self.rate.high)
        )
        return middle, low, high

    def of_training(self, way: Way) -> tuple[float, float, float] | None:
        """Return the price of the whole training: middle, low and high."""
        per_million = self.per_million_tokens(way)
        if per_million is None or self.tokens is None:
            return None
        middle, low, high = (price * self.tokens / 1e6 for price in per_million)
        return middle, low, high

    def days_of_training(self) -> tuple[float, float, float] | None:
        """Return days of wall time on a machine that works all day: middle, low and high."""
        if self.rate is None or self.tokens is None:
            return None
        share = self.terms.goodput
        middle, low, high = (days / share for days in self.rate.days(self.tokens))
        return middle, low, high

    def kwh_of_training(self) -> float | None:
        """Return the energy of the training at the meter, in kWh, with the site's."""
        days, watts = self.days_of_training(), self.terms.watts
        if days is None or watts is None:
            return None
        return days[0] * 24.0 * watts * self.terms.machines * self.terms.pue / 1000.0


def ask_costs(
    terms: Terms,
    currency: str,
    *,
    quotes: Sequence[QuotedPrice] = (),
    chip: Chip | None = None,
    gpus_per_machine: float | None = None,
    rate: TrainingRate | None = None,
    tokens: float | None = None,
    days: float | None = None,
    peak: float | None = None,
    memory: float | None = None,
    is_one_training: bool = False,
) -> CostAnswer:
    """Compare all ways that have a price.

    Args:
        terms: Prices of one machine and how it is used.
        currency: Three letters, or empty.
        quotes: Prices of an hour as they were quoted; they become the terms' of one machine.
        chip: The GPU, whose power limit stands for the watts that nobody states.
        gpus_per_machine: GPUs of one machine; None where nothing tells: one is presumed.
        rate: How fast a training goes; None: none was asked about.
        tokens: Of that training.
        days: That are given for it.
        peak: FLOP/s that all GPUs of a machine claim.
        memory: B of all GPUs of a machine.
        is_one_training: Whether the machines do this training and nothing else over their years;
            else they work for the terms' utilisation.

    Raises:
        UsageError: Terms that cannot be, or no price at all.
    """
    terms = terms.replace(**{HOURLY[quote.way]: quote.per_machine for quote in quotes})
    presumed: tuple[str, ...] = ()
    if not currency:
        currency = PRESUMED_CURRENCY
        presumed += (f"amounts in {currency}; --currency has another",)
    presumed += rate.presumed if rate is not None else ()
    if is_one_training and rate is not None and tokens is not None:
        terms, use = _with_one_training(terms, rate.days(tokens)[0] * 24.0)
        presumed += (use,)
    else:
        is_one_training = False
    terms, electricity = _with_electricity(terms, currency, chip, gpus_per_machine)
    presumed += electricity
    _check(terms)
    ways = tuple(_ways(terms))
    if not ways:
        raise UsageError(
            "which prices?",
            "--buy, --parts FILE, --rent-per-gpu-hour …; trainrig invents none",
        )
    cheapest = min(ways, key=lambda way: way.per_hour)
    return CostAnswer(
        terms=terms,
        currency=currency,
        quotes=tuple(_all_quotes(terms, quotes)),
        presumed=presumed,
        ways=ways,
        sensitivities=tuple(_sensitivities(terms, cheapest.name, is_one_training=is_one_training)),
        not_counted=tuple(_not_counted(terms)),
        rate=rate,
        tokens=tokens,
        days=days,
        peak=peak,
        memory=memory,
        is_one_training=is_one_training,
    )


def _with_electricity(
    terms: Terms, currency: str, chip: Chip | None, gpus_per_machine: float | None
) -> tuple[Terms, tuple[str, ...]]:
    """Return terms with the electricity of owning, and what was presumed for it."""
    if terms.buy is None or terms.kwh_price == 0.0:
        return terms, ()
    presumed = []
    if terms.watts is None and chip is not None and chip.board.tdp is not None:
        gpus = gpus_per_machine or 1.0
        terms = terms.replace(watts=chip.board.tdp * gpus, gpus_alone=True)
        limit = f"{counted(round(gpus), 'GPU')} × {chip.board.tdp:g} W, their power limit"
        presumed.append(f"power of a machine: {limit}; --watts has another")
    price = presumed_kwh(currency)
    if terms.watts is not None and terms.kwh_price is None and price is not None:
        terms = terms.replace(kwh_price=price.kwh)
        money = format_money(price.kwh, currency)
        presumed.append(
            f"electricity at {money} a kWh ({price.what}); --kwh-price has another, 0 leaves it out"
        )
    return terms, tuple(presumed)


def _with_one_training(terms: Terms, hours: float) -> tuple[Terms, str]:
    """Return terms whose utilisation is that of one training, and the sentence that says so.

    Args:
        terms: How long the machines are kept, and how much time failures leave.
        hours: Length of the training without failures.
    """
    wall_hours = hours / terms.goodput
    utilisation = min(1.0, wall_hours / (terms.years * HOURS_A_YEAR))
    share = f"{100.0 * utilisation:.2g} %" if utilisation < 0.01 else format_share(utilisation)
    text = f"utilisation {share}: this training alone in {terms.years:g} years"
    return terms.replace(utilisation=utilisation), f"{text}; --utilisation has another"


def _all_quotes(terms: Terms, quotes: Sequence[QuotedPrice]) -> Iterator[QuotedPrice]:
    """Return prices of an hour in the order of the ways; those of a price list are of a machine."""
    quoted = {quote.way: quote for quote in quotes}
    for way, term in HOURLY.items():
        if way in quoted:
            yield quoted[way]
        elif (price := getattr(terms, term)) is not None:
            yield QuotedPrice(way=way, price=price, per="machine", gpus_per_machine=None)


def _ways(terms: Terms) -> Iterator[Way]:
    owned = _owned(terms) if terms.buy is not None else None
    if owned is not None:
        yield _way("buy", owned, terms, terms.goodput)
    all_hours = terms.years * HOURS_A_YEAR
    month = terms.rent_per_month
    for name, price, hours in (
        ("rent", terms.rent_per_hour, terms.hours),
        ("month", month and month / HOURS_A_MONTH, all_hours),
        ("reserved", terms.reserved_per_hour, all_hours),
        ("spot", terms.spot_per_hour, terms.hours),
    ):
        if price is None:
            continue
        paid = price * terms.machines * hours
        share = terms.spot_goodput if name == "spot" else terms.goodput
        way = _way(name, {f"{hours:,.0f} hours": paid}, terms, share)
        if owned is not None:
            way = dataclasses.replace(
                way,
                break_even_days=_break_even_days(terms, price * terms.goodput / share, 1.0),
                break_even_days_used=_break_even_days(
                    terms,
                    price * terms.goodput / share,
                    terms.utilisation,
                    is_idle_paid=name in ("month", "reserved"),
                ),
                break_even_utilisation=_break_even_utilisation(terms, price, name),
            )
        yield way


def _way(name: str, parts: dict[str, float], terms: Terms, share: float) -> Way:
    total = sum(parts.values())
    useful = terms.hours * share
    return Way(
        name=name,
        total=total,
        parts=tuple(parts.items()),
        per_hour=total / useful if useful else math.inf,
    )


def _owned(terms: Terms) -> dict[str, float]:
    """Return the parts of the price of owning."""
    price = (terms.buy or 0.0) * terms.machines
    resale = price * terms.resale
    capital = _capital(terms)
    parts = {
        "price": price,
        "resale": -resale,
        "interest": capital - (price - resale),
        "electricity": _electricity_per_hour(terms) * terms.hours,
        "hosting": _standing_per_month(terms)[0] * 12.0 * terms.years,
        "staff": _standing_per_month(terms)[1] * 12.0 * terms.years,
    }
    return {name: value for name, value in parts.items() if abs(value) > 1e-9 or name == "price"}


def _capital(terms: Terms) -> float:
    """Return annuities of a loan for the machine, less what it brings at the end."""
    price = (terms.buy or 0.0) * terms.machines
    if terms.interest == 0.0:
        return price * (1.0 - terms.resale)
    exponent = terms.years * math.log1p(terms.interest)
    annuity = terms.interest / -math.expm1(-exponent)
    return price * (1.0 - terms.resale * math.exp(-exponent)) * annuity * terms.years


def _electricity_per_hour(terms: Terms) -> float:
    """Return the price of an hour's electricity at full load; 0 where not known."""
    if terms.kwh_price is None or terms.watts is None:
        return 0.0
    return terms.watts * terms.machines * terms.pue / 1000.0 * terms.kwh_price


def _standing_per_month(terms: Terms) -> tuple[float, float]:
    """Return the monthly prices of hosting and staff, used or not."""
    hosting = terms.hosting_per_month * terms.machines
    return hosting, terms.staff_hours_per_month * terms.staff_rate


def _break_even_days(
    terms: Terms, price: float, utilisation: float, *, is_idle_paid: bool = False
) -> float | None:
    """Return days at a utilisation after which rent has cost as much as owning until then."""
    rented = price * terms.machines * (1.0 if is_idle_paid else utilisation)
    daily = 24.0 * (rented - _electricity_per_hour(terms) * utilisation)
    daily -= sum(_standing_per_month(terms)) * 24.0 / HOURS_A_MONTH
    return _capital(terms) / daily if daily > 0.0 else None


def _break_even_utilisation(terms: Terms, price: float, name: str) -> float | None:
    """Return the share of the hours from which owning is cheaper, or None."""
    all_hours = terms.years * HOURS_A_YEAR
    standing = _capital(terms) + sum(_standing_per_month(terms)) * 12.0 * terms.years
    by_hour = _electricity_per_hour(terms) * all_hours
    rent = price * terms.machines * all_hours
    if name in ("month", "reserved"):
        return 0.0 if standing + by_hour <= rent else None
    if name == "spot":
        rent *= terms.goodput / terms.spot_goodput
    if rent <= by_hour:
        return None
    share = standing / (rent - by_hour)
    return share if share <= 1.0 else None


_MOVED = (
    *("buy", "rent_per_hour", "rent_per_month", "reserved_per_hour", "spot_per_hour"),
    *("years", "utilisation", "resale", "interest", "watts", "kwh_price", "pue"),
    *("hosting_per_month", "staff_hours_per_month", "interruptions_per_day"),
)


def _sensitivities(terms: Terms, name: str, *, is_one_training: bool) -> Iterator[Sensitivity]:
    """Return the cost of a useful hour of one way as each input moves, the widest first.

    The hours of one training stay what they are: neither years nor utilisation move them.
    """

    def cost(**changes: float) -> float:
        moved = terms.replace(**changes)
        return next(way.per_hour for way in _ways(moved) if way.name == name)

    sensitivities = []
    for term in _MOVED:
        value = getattr(terms, term)
        if not value or (is_one_training and term in ("years", "utilisation")):
            continue
        upper_bound = 1.0 if term in ("utilisation", "resale") else math.inf
        lower, higher = value * (1.0 - SPREAD), min(upper_bound, value * (1.0 + SPREAD))
        if term == "pue":
            lower = max(1.0, lower)
        sensitivity = Sensitivity(term=term, low=cost(**{term: lower}), high=cost(**{term: higher}))
        if sensitivity.size > 1e-12:
            sensitivities.append(sensitivity)
    yield from sorted(sensitivities, key=lambda sensitivity: -sensitivity.size)


def _not_counted(terms: Terms) -> Iterator[str]:
    if terms.buy is not None:
        yield from _not_counted_of_owning(terms)
    if terms.failures is None:
        yield "failures: --mtbf-hours and --checkpoint-seconds"
    if terms.spot_per_hour is not None and terms.interruptions_per_day is None:
        yield "interruptions of spot: --interruptions-per-day"
    if terms.interruptions_per_day and terms.failures is None:
        saving, restart = _UNSAID.checkpoint_s, _UNSAID.restart_s
        yield f"saving and restart of spot, taken as {saving:g} s and {restart:g} s: --mtbf-hours …"


def _not_counted_of_owning(terms: Terms) -> Iterator[str]:
    if terms.kwh_price == 0.0:
        yield "electricity: left out by --kwh-price 0"
    elif terms.watts is None or terms.kwh_price is None:
        unknown_power = "the machine's power is not known: " if terms.watts is None else ""
        yield f"electricity: {unknown_power}--kwh-price and --watts (or --parts, --on)"
    elif terms.pue == 1.0:
        yield "electricity of cooling: --pue"
    if terms.gpus_alone and terms.kwh_price:
        yield "electricity of all but the GPUs: --watts at the wall, or --parts"
    if not terms.hosting_per_month:
        yield "hosting: --hosting-per-month"
    if not terms.staff_hours_per_month or not terms.staff_rate:
        yield "staff: --staff-hours-per-month and --staff-rate"
    if not terms.resale:
        yield "resale: --resale, a share of the price"
    if not terms.interest:
        yield "interest: --interest, a share a year"


def _check(terms: Terms) -> None:
    """Refuse numbers that cannot be."""
    bounds = {
        "utilisation": (1e-12, 1.0),
        "resale": (0.0, 1.0),
        "interest": (0.0, 1.0),
        "years": (0.01, 50.0),
        "pue": (1.0, 5.0),
        "machines": (1, 1e6),
    }
    for field in dataclasses.fields(terms):
        value = getattr(terms, field.name)
        if value is None or isinstance(value, Failures):
            continue
        lower, upper = bounds.get(field.name, (0.0, 1e15))
        if not lower <= value <= upper:
            word = field.name.replace("_", "-")
            raise UsageError(f"{word} = {value:g}", f"a number from {lower:g} to {upper:g}")
    if terms.failures is not None:
        terms.failures.check()
    for share, cause in (
        (terms.goodput, "failures, checkpoints and restarts"),
        (terms.spot_goodput, "interruptions of spot"),
    ):
        if share < _LEAST_YIELD:
            raise UsageError(
                f"{cause} leave {share:.2g} of the time to work: no training ends",
                "a longer time between them, or shorter saving and restart",
            )


_LEAST_YIELD = 0.001


def checkpoints_dict(failures: Failures) -> dict[str, float]:
    """Return checkpoint intervals and goodput, by formula and simulated."""
    best = daly_interval(failures)
    return {
        "young_interval_s": young_interval(failures),
        "daly_interval_s": best,
        "goodput": goodput(failures, best),
        "goodput_simulated": simulate_goodput(failures, best),
    }


def listed_terms(prices: Iterable[Price], machine: str, currency: str) -> dict[str, float]:
    """Return terms that a price list states of a machine, and of a kWh: the newest of each.

    Raises UsageError where the list does not know the machine in that currency.
    """
    all_prices = tuple(prices)
    term_rows: tuple[tuple[str, Per, str], ...] = (
        ("buy", "piece", "machine"),
        ("rent_per_hour", "hour", "cloud"),
        ("rent_per_month", "month", "machine"),
        ("reserved_per_hour", "hour", "reserved"),
        ("spot_per_hour", "hour", "spot"),
    )
    terms = {
        term: one.price
        for term, per, kind in term_rows
        if (one := price_of(all_prices, machine, currency, per=per, kind=kind)) is not None
        and (one.kind or kind not in ("reserved", "spot"))  # an hour of no kind is on demand
    }
    if not terms:
        names = sorted({price.part for price in all_prices if price.currency == currency})
        raise unknown(f"machine, in prices of {currency},", machine, names or ["an empty list"])
    kwh = [
        price for price in newest(all_prices) if (price.per, price.currency) == ("kWh", currency)
    ]
    return terms | ({"kwh_price": max(kwh, key=lambda one: one.date).price} if kwh else {})
