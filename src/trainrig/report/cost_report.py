"""Owning and renting as a document: ways side by side, the training, what matters most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainrig.report.document import (
    Block,
    Cell,
    Document,
    Facts,
    Line,
    Paragraph,
    Section,
    Table,
    Whisker,
    column,
    table,
    words,
)
from trainrig.report.presumed_text import program_line
from trainrig.units import (
    counted,
    format_count,
    format_money,
    format_share,
    format_time,
    plain_name,
    signed_share,
)

if TYPE_CHECKING:  # numpy, where a training is predicted
    from trainrig.procure.ownership import CostAnswer, Sensitivity, Way

WAY_WORDS = {
    "buy": "buy",
    "rent": "rent by the hour",
    "month": "rent by the month",
    "reserved": "reserved hours",
    "spot": "spot",
}


def cost_document(answer: CostAnswer, changed: Sequence[dict[str, Any]] = ()) -> Document:
    """Return all ways that have a price, and which is cheapest at which use."""
    terms = answer.terms
    machines = counted(terms.machines, "machine")
    title = f"{machines}, {terms.years:g} years, {_used_share(terms.utilisation)} of the hours used"
    blocks: list[Block] = [
        *_training_verdict(answer),
        Paragraph(_verdict(answer), "strong"),
        *_break_even_line(answer),
        Paragraph(title),
        *_program_paragraphs(answer),
        _ways_table(answer),
        *_price_facts(answer),
    ]
    if facts := tuple(_break_even_facts(answer)):
        blocks.append(Facts(facts, "Break-even of buying"))
    if answer.rate is not None:
        blocks.append(Section("The training", tuple(_training_blocks(answer))))
    if changed:
        blocks.append(Section("What measuring changed", (_changes_table(changed),)))
    if facts := tuple(_unit_prices(answer)):
        blocks.append(Section("Price of what it has", (Facts(facts),)))
    if terms.failures is not None:
        blocks.append(Section("Failures", (Facts(tuple(_failure_facts(answer))),)))
    if answer.sensitivities:
        blocks.append(Section("What matters most", (_tornado(answer),)))
    if (owned := answer.way("buy")) is not None:
        blocks.append(Section("What owning consists of", (_parts_table(answer, owned),)))
    if answer.not_counted:
        rows = tuple(Paragraph(text, "dim") for text in answer.not_counted)
        blocks.append(Section("Not counted, for want of a number", rows))
    return Document(title="cost", blocks=tuple(blocks), foot=(_FOOT,))


def _program_paragraphs(answer: CostAnswer) -> Iterator[Paragraph]:
    """Yield the program, where a training is predicted."""
    if answer.rate is not None and answer.rate.prediction is not None:
        yield from program_line(answer.rate.prediction.question)


_FOOT = (
    "Prices are those that were given or imported, with date and source; built in is only what a "
    "kWh is presumed to cost. A year "
    "has 365 days. A productive hour is one that failures and interruptions leave."
)


def _money(answer: CostAnswer, amount: float) -> str:
    return format_money(amount, answer.currency)


def _training_verdict(answer: CostAnswer) -> Iterator[Block]:
    """Yield the price of the training that was asked about, by the cheapest way."""
    price, days = answer.of_training(answer.cheapest), answer.days_of_training()
    if price is not None and days is not None and answer.tokens is not None:
        text = f"{format_count(answer.tokens)} tokens: {_money_range(answer, price)}"
        way = WAY_WORDS[answer.cheapest.name]
        if answer.cheapest.name == "buy":
            used = _used_share(answer.terms.utilisation)
            way += f", its share of {answer.terms.years:g} years at {used} use"
        yield Paragraph(f"{text}, {_long_time(days[0])}; {way}", "strong")


def _verdict(answer: CostAnswer) -> str:
    best = answer.cheapest
    used = _used_share(answer.terms.utilisation)
    if len(answer.ways) == 1:
        hour = f"{_money(answer, best.per_hour)} a productive hour at {used} use"
        return f"{WAY_WORDS[best.name]}: {hour}, {_money(answer, best.total)} in all"
    others = [way for way in answer.ways if way is not best]
    second = min(others, key=lambda way: way.per_hour)
    times = second.per_hour / best.per_hour
    factor = f"{times:,.0f}" if times >= 100.0 else f"{times:.3g}"
    return (
        f"Cheapest at {used} use: {WAY_WORDS[best.name]}, "
        f"{_money(answer, best.per_hour)} a productive hour; "
        f"{WAY_WORDS[second.name]} costs {_money(answer, second.per_hour)}, "
        f"{factor} times as much"
    )


def _break_even_line(answer: CostAnswer) -> Iterator[Block]:
    """Yield the use from which on buying is cheaper than each other way."""
    shares = {
        WAY_WORDS[way.name]: format_share(way.break_even_utilisation)
        for way in answer.ways
        if way.name != "buy" and way.break_even_utilisation
    }
    if shares and answer.way("buy") is not None:
        ways = ", ".join(f"{way} below {share} use" for way, share in shares.items())
        yield Paragraph(f"Cheaper than to buy: {ways}")


def _price_facts(answer: CostAnswer) -> Iterator[Block]:
    """Prices as they were taken, what was presumed, and what the totals leave out."""
    terms, pairs = answer.terms, []
    if terms.buy is not None:
        total = _money(answer, terms.buy * terms.machines)
        times = counted(terms.machines, "machine")
        pairs.append(("buy", f"{_money(answer, terms.buy)} per machine × {times} = {total}"))
    pairs += [
        (WAY_WORDS[quote.way], quote.text(terms.machines, answer.currency))
        for quote in answer.quotes
    ]
    if terms.rent_per_month is not None:
        total = _money(answer, terms.rent_per_month * terms.machines)
        month_price = f"{_money(answer, terms.rent_per_month)} per machine-month"
        times = counted(terms.machines, "machine")
        pairs.append((WAY_WORDS["month"], f"{month_price} × {times} = {total} a month"))
    pairs += [("presumed", text) for text in answer.presumed]
    if terms.buy is not None and answer.not_counted:
        names = dict.fromkeys(text.partition(":")[0] for text in answer.not_counted)
        pairs.append(("not counted", ", ".join(names)))
    yield Facts(tuple(pairs))


def _money_range(answer: CostAnswer, three: tuple[float, float, float] | None) -> str:
    if three is None:
        return ""
    middle, low, high = three
    if low == high:
        return _money(answer, middle)
    first = f"{low:#.3g}" if high < 1.0 else format_money(low, "")
    last = f"{high:#.3g} {answer.currency}".strip() if high < 1.0 else _money(answer, high)
    return f"{_money(answer, middle)} ({first} to {last})"


def _ways_table(answer: CostAnswer) -> Table:
    def tone(way: Way, cells: tuple[str | Cell, ...]) -> Line:
        return Line(cells, "good" if way is answer.cheapest and len(answer.ways) > 1 else "")

    return table(
        answer.ways,
        words("", lambda way: WAY_WORDS[way.name]),
        column("total", lambda way: _money(answer, way.total)),
        column("a productive hour", lambda way: _money(answer, way.per_hour)),
        column(
            "a million tokens", lambda way: _money_range(answer, answer.per_million_tokens(way))
        ),
        column("the training", lambda way: _money_range(answer, answer.of_training(way))),
        line=tone,
    )


def _break_even_facts(answer: CostAnswer) -> Iterator[tuple[str, str]]:
    if answer.way("buy") is None:
        return
    for way in answer.ways:
        if way.name == "buy":
            continue
        name = f"against {WAY_WORDS[way.name]}"
        if way.break_even_days is None:
            yield name, "never: renting costs less than running one's own"
            continue
        share, hours = way.break_even_utilisation, way.break_even_hours(answer.terms)
        years = f"{answer.terms.years:g} years"
        used = (
            f"more hours than {years} have"
            if share is None or hours is None
            else f"over {years} from {format_share(share)} of the hours on ({hours:,.0f} hours)"
            if share
            else "whatever its use"
        )
        months = way.break_even_days / (365.0 / 12.0)
        full = f"{way.break_even_days:,.0f} days at 100 % of the hours (month {months:.1f})"
        share_used = _used_share(answer.terms.utilisation)
        if way.break_even_days_used is None:
            full += f", never at {share_used}"
        elif (
            way.break_even_days_used > answer.terms.years * 365.0 and answer.terms.utilisation < 1.0
        ):
            full += f", not within {years} at {share_used}"
        elif answer.terms.utilisation < 1.0:
            full += f", {way.break_even_days_used:,.0f} days at {share_used}"
        yield name, f"{full}; {used}"


def _used_share(utilisation: float) -> str:
    """Return a utilisation as a percentage, with two digits that count below 1 %."""
    return f"{100.0 * utilisation:.2g} %" if utilisation < 0.01 else format_share(utilisation)


def _training_blocks(answer: CostAnswer) -> Iterator[Block]:
    rate = answer.rate
    assert rate is not None
    noun = "device" if rate.is_measured else "GPU"  # a run may have been of a processor
    ranges = f" ({format_count(rate.low)} to {format_count(rate.high)})" * (rate.low != rate.high)
    pairs = [
        (
            "rate",
            f"{format_count(rate.tokens_per_s)} tokens/s{ranges} on {counted(rate.gpus, noun)}; "
            f"{rate.source}",
        )
    ]
    if rate.limits:
        pairs.append(("waits for", rate.limits))
    days = answer.days_of_training()
    if days is not None and answer.tokens is not None:
        text = _long_time(days[0])
        if days[1] != days[2]:
            text += f" ({_long_time(days[1])} to {_long_time(days[2])})"
        if answer.days is not None:
            late = days[0] > answer.days
            text += f", {'more than' if late else 'within'} the {answer.days:g} that are given"
        pairs.append((f"{format_count(answer.tokens)} tokens", text))
    if rate.limit_watts is not None:
        pairs.append(("watts", "as predicted: the run measured none"))
    if (kwh := answer.kwh_of_training()) is not None:
        scope = "of the GPUs alone" if answer.terms.gpus_alone else "at the meter"
        pairs.append(
            ("energy", f"{kwh:,.0f} kWh {scope}" if kwh >= 100.0 else f"{kwh:.3g} kWh {scope}")
        )
    yield Facts(tuple(pairs))


def _long_time(days: float) -> str:
    """Return ``2 h 58 min``, ``41.3 days``."""
    return f"{days:,.3g} days" if days >= 2.0 else format_time(days * 86400.0)


def _unit_prices(answer: CostAnswer) -> Iterator[tuple[str, str]]:
    buy = answer.terms.buy
    if buy is None:
        return
    if answer.peak:
        yield "a TFLOPS", f"{_money(answer, buy / (answer.peak / 1e12))} of claimed dense peak"
    if answer.memory:
        yield "a GiB", f"{_money(answer, buy / (answer.memory / 2.0**30))} of GPU memory"


def _failure_facts(answer: CostAnswer) -> Iterator[tuple[str, str]]:
    numbers, failures = answer.checkpoints(), answer.terms.failures
    assert failures is not None
    yield (
        "a failure every",
        f"{failures.mtbf_s / 3600.0:,.4g} h; saving takes {format_time(failures.checkpoint_s)}, "
        f"a restart {format_time(failures.restart_s)}",
    )
    yield (
        "save every",
        f"{format_time(numbers['daly_interval_s'])} (Daly; Young: "
        f"{format_time(numbers['young_interval_s'])})",
    )
    yield (
        "goodput",
        f"{100.0 * numbers['goodput']:.1f} % of the hours are work; simulated "
        f"{100.0 * numbers['goodput_simulated']:.1f} %",
    )


def _tornado(answer: CostAnswer) -> Table:
    """Bars of the cheapest way's hour, the widest first; the line is its cost as it stands."""
    base = answer.cheapest.per_hour
    ends = [
        end for sensitivity in answer.sensitivities for end in (sensitivity.low, sensitivity.high)
    ]
    least, most = min([base, *ends]), max([base, *ends])
    room = (most - least) or 1.0

    def place(value: float) -> float:
        return 0.02 + 0.96 * (value - least) / room

    def bar(sensitivity: Sensitivity) -> Cell:
        low, high = sorted((sensitivity.low, sensitivity.high))
        drawing = Whisker(place(base), place(low), place(base), place(high))
        return Cell("", drawing=drawing)

    cheapest_words = WAY_WORDS[answer.cheapest.name]
    return table(
        answer.sensitivities,
        words("20 % less or more", lambda sensitivity: plain_name(sensitivity.term)),
        column("less", lambda sensitivity: _money(answer, sensitivity.low)),
        column("more", lambda sensitivity: _money(answer, sensitivity.high)),
        column(f"a productive hour of: {cheapest_words}", bar, kind="drawing"),
    )


def _parts_table(answer: CostAnswer, owned: Way) -> Table:
    return table(
        owned.parts,
        words("", lambda part: part[0]),
        column("total", lambda part: _money(answer, part[1])),
        column("share", lambda part: format_share(part[1] / owned.total) if owned.total else ""),
        sums=[Line(("all", _money(answer, owned.total), ""), "strong")],
    )


def _changes_table(changed: Sequence[dict[str, Any]]) -> Table:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:,.4g}"

    return table(
        changed,
        words("", lambda row: plain_name(row["what"])),
        column("predicted", lambda row: number(row["predicted"])),
        column("measured", lambda row: number(row["measured"])),
        column("change", lambda row: "" if row["change"] is None else signed_share(row["change"])),
    )
