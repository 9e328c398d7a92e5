"""Builds as documents: whether one is legal, the best under a budget, the order of assembly."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainrig.report.document import (
    Badge,
    Block,
    Cell,
    Document,
    Facts,
    Findings,
    Item,
    Line,
    Paragraph,
    Section,
    Strip,
    Table,
    Tone,
    column,
    table,
    words,
)
from trainrig.report.prediction_report import layout_text
from trainrig.units import (
    DAY,
    capital,
    counted,
    format_count,
    format_money,
    format_share,
    plain_name,
    signed_share,
)

if TYPE_CHECKING:  # the catalog of parts is read where a build is checked
    from trainrig.procure.build_rules import BuildReport
    from trainrig.procure.build_search import Suggestion, Suggestions
    from trainrig.procure.parts import Part
    from trainrig.procure.parts_list import PartCount
    from trainrig.procure.price_list import Price
    from trainrig.procure.rule_book import Check
    from trainrig.procure.several_machines import ClusterPlan

_TONES: dict[str, Tone] = {"ok": "good", "warning": "warn", "error": "bad", "unknown": "warn"}
_WORDS = {"ok": "holds", "warning": "close", "error": "broken", "unknown": "cannot tell"}


def build_document(report: BuildReport) -> Document:
    """Return a parts list: legal or not, what is not in order, the parts and all arithmetic."""
    build = report.build
    errors = [check for check in report.findings if check.severity == "error"]
    reason = (
        "; ".join(f"{e.message or e.arithmetic} ({e.rule})" for e in errors)
        if errors
        else _rules_text(report)
    )
    blocks: list[Block] = [
        Badge(
            build.name,
            _badge(report),
            reason,
            "bad" if not report.legal else "warn" if report.not_known else "good",
        ),
        Facts(tuple(_facts(report))),
    ]
    if findings := tuple(
        finding_item(check) for check in report.findings if check.severity != "unknown"
    ):
        blocks.append(Section("What is not in order", (Findings(findings),)))
    if missing := tuple(_unknown_items(report.not_known)):
        lead = Paragraph(
            "The catalog has no source for these figures, so these rules neither hold nor break: "
            "look each one up in the maker's sheet, write it into the list, and check again.",
            "dim",
        )
        blocks.append(Section("What is not known", (lead, Findings(missing))))
    blocks.append(Section("Parts", (_parts_table(report),)))
    blocks.append(Section("The arithmetic", (_checks_table(report),)))
    if report.warnings:
        learned = tuple(
            Item(text=check.text, fix=check.fix, tone="warn") for check in report.warnings
        )
        blocks.append(Section("What people learned the hard way", (Findings(learned),)))
    if report.not_checked:
        rows = tuple(Paragraph(text, "dim") for text in report.not_checked)
        blocks.append(Section("Not checked: the list does not state it", rows))
    return Document(title=build.name, blocks=tuple(blocks), foot=(_SOURCES,))


_SOURCES = (
    "Rules and their sources: catalog/build_rules.toml. Parts: catalog/parts/, each figure with "
    "its source, most from BuildCores OpenDB (ODC-By 1.0) and linuxhw/DMI (CC-BY 4.0). Hold all of "
    "them against the maker's sheet before you order."
)


def _badge(report: BuildReport) -> str:
    if not report.legal:
        return "REFUSED"
    return "LEGAL AS FAR AS KNOWN" if report.not_known else "LEGAL"


def finding_item(check: Check) -> Item:
    """Return a rule that is broken or close, with its arithmetic."""
    text = f"{capital(check.message)}: {check.arithmetic}" if check.message else check.arithmetic
    return Item(text=text, fix=check.fix, label=check.rule, tone=_TONES[check.severity])


def _unknown_items(checks: Sequence[Check]) -> Iterator[Item]:
    """Yield one item for each missing figure: several rules may wait for it."""
    waiting: dict[tuple[str, str, str], list[Check]] = {}
    for check in checks:
        waiting.setdefault((check.message, check.arithmetic, check.fix), []).append(check)
    for waiting_checks in waiting.values():
        names = ", ".join(dict.fromkeys(check.rule for check in waiting_checks))
        yield dataclasses.replace(finding_item(waiting_checks[0]), label=names)


def _facts(report: BuildReport) -> Iterator[tuple[str, str]]:
    build, power = report.build, report.power
    if build.total is not None:
        yield "price", format_money(build.total, build.currency)
    elif build.priced_total:
        yield (
            "price",
            f"{format_money(build.priced_total, build.currency)} without "
            f"{', '.join(build.unpriced)}",
        )
    else:
        yield "price", "none of the parts has one: price = in the list, or trainrig prices import"
    yield (
        "power",
        f"{power.wall:,.0f} W from the wall at full load "
        f"({power.gpus:,.0f} W GPUs, {power.cpu:,.0f} W processor, {power.rest:,.0f} W rest, "
        f"{format_share(power.efficiency)} efficient)"
        if power.cpu
        else f"{power.wall:,.0f} W from the wall without a processor, which the list does not name "
        f"({power.gpus:,.0f} W GPUs, {power.rest:,.0f} W rest, "
        f"{format_share(power.efficiency)} efficient)",
    )
    if report.placement and (seats := report.placement.gpus()):
        yield "GPUs in", ", ".join(seat.text for seat in seats)
    if report.tightest is not None and report.tightest.used is not None:
        yield "nearest limit", f"{report.tightest.rule}, {format_share(report.tightest.used)} used"


def _rules_text(report: BuildReport) -> str:
    held_rules = {check.rule for check in report.checks} - {
        check.rule for check in report.not_known
    }
    text = "1 rule holds" if len(held_rules) == 1 else f"{len(held_rules)} rules hold"
    if not report.not_known:
        return text
    waiting = ", ".join(dict.fromkeys(check.rule for check in report.not_known))
    return f"{text}; cannot tell: {waiting}"


_DOUBT = "A part with (?) lacks a figure that a rule compares."


def _doubt_mark(item: PartCount) -> str:
    from trainrig.procure.parts import unknown_fields

    return " (?)" if unknown_fields(item.part) else ""


def _parts_table(report: BuildReport) -> Table:
    build = report.build

    def amount(item: PartCount) -> str:
        return "" if item.price is None else f"{item.price * item.count:,.0f}"

    total = Line(("", "all", "", "", f"{build.total or 0.0:,.0f}", ""), "strong")
    return table(
        build.items,
        words("kind", lambda item: "PC case" if item.kind == "case" else item.kind),
        words("part", lambda item: item.part.name + _doubt_mark(item)),
        column("count", lambda item: str(item.count)),
        column("each", lambda item: "" if item.price is None else f"{item.price:,.0f}"),
        column(build.currency or "price", amount),
        words("price from", lambda item: Cell(item.priced, "dim")),
        notes=[_DOUBT] if any(map(_doubt_mark, build.items)) else [],
        sums=[] if build.total is None else [total],
    )


def _checks_table(report: BuildReport) -> Table:
    def bar(check: Check) -> Cell:
        if check.used is None:
            return Cell("")
        return Cell("", drawing=Strip(0.0, min(1.0, check.used), muted=check.severity == "ok"))

    return table(
        report.checks,
        words("rule", lambda check: check.rule),
        words("", lambda check: Cell(_WORDS[check.severity], _TONES[check.severity])),
        words("arithmetic", lambda check: check.arithmetic),
        column("of the limit", bar, kind="drawing", optional=1),
    )


def part_document(part: Part) -> Document:
    """Return a part of the catalog: each known figure with the document it was read in."""
    from trainrig.procure.part_catalog import part_dict

    content = part_dict(part)

    def shown(name: str) -> str:
        value = content["fields"][name]
        return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)

    stated = [name for name in content["fields"] if name in part.provenance]
    rows = table(
        stated,
        words("", plain_name),
        words("value", shown),
        words("source", lambda name: Cell(content["sources"][name]["title"], "dim")),
    )
    return Document(title=part.name, blocks=(Paragraph(part.name, "strong"), rows))


def suggestions_document(suggestions: Suggestions) -> Document:
    """Return the best builds: what they do, cost and wait for; and the parts of each."""
    budget = format_money(suggestions.budget, suggestions.currency)
    title = (
        f"{counted(len(suggestions.builds), 'build')} for {budget}, "
        f"of {counted(suggestions.offers, 'part')} with a price"
    )

    def limit(suggestion: Suggestion) -> str:
        tight = suggestion.report.tightest
        near = f"; {tight.rule}, {format_share(tight.used)} used" if tight and tight.used else ""
        return suggestion.rate.limits + near

    ranked = table(
        suggestions.builds,
        words("build", lambda suggestion: suggestion.gpus),
        column("tokens a day", lambda suggestion: format_count(suggestion.tokens_per_day)),
        column(
            "80 % interval",
            lambda suggestion: " to ".join(
                format_count(rate * DAY) for rate in (suggestion.rate.low, suggestion.rate.high)
            ),
            optional=2,
        ),
        column("W", lambda suggestion: f"{suggestion.report.power.wall:,.0f}"),
        column(suggestions.currency, lambda suggestion: f"{suggestion.price:,.0f}"),
        words("waits for; nearest limit", limit),
        title="Fastest first",
    )
    steps = table(
        [
            (suggestion, step)
            for suggestion, step in zip(suggestions.builds, suggestions.next_step, strict=True)
        ],
        words("build", lambda pair: pair[0].gpus),
        words("10 % more money buys", lambda pair: pair[1].gpus if pair[1] else "nothing faster"),
        column("for", lambda pair: f"{pair[1].price:,.0f}" if pair[1] else ""),
        column(
            "tokens a day",
            lambda pair: (
                signed_share(pair[1].tokens_per_day / pair[0].tokens_per_day - 1.0)
                if pair[1]
                else ""
            ),
        ),
        title="The next 10 % of money",
    )
    blocks: list[Block] = [Paragraph(title, "strong"), ranked, steps]
    if len(suggestions.builds) < 5:
        few = "No other GPU, and no other number of one, makes a legal build for the money."
        blocks.append(Paragraph(few, "dim"))
    blocks += [
        Section(f"{number}: {suggestion.gpus}", (_parts_table(suggestion.report),))
        for number, suggestion in enumerate(suggestions.builds, 1)
    ]
    return Document(title="builds", blocks=tuple(blocks), foot=(_SOURCES,))


def cluster_document(report: BuildReport, plans: Sequence[ClusterPlan], budget: float) -> Document:
    """Show the training that a budget for several machines buys, on each network."""
    build = report.build
    title = f"What {format_money(budget, build.currency)} buys of machines: {build.cards[0].name}"

    def layout(cluster: ClusterPlan) -> str:
        prediction = cluster.rate.prediction
        return "" if prediction is None else layout_text(prediction.layout, fixed=False)

    def span(cluster: ClusterPlan) -> str:
        middle, low, high = cluster.days
        return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"

    ranked = table(
        plans,
        words("network", lambda cluster: f"{cluster.gbps:g} Gb/s"),
        column("machines", lambda cluster: f"{cluster.machines} of {cluster.affordable}"),
        column("GPUs", lambda cluster: str(cluster.rate.gpus)),
        column(build.currency, lambda cluster: f"{cluster.price:,.0f}"),
        column("tokens/s", lambda cluster: format_count(cluster.rate.tokens_per_s)),
        column("days", span),
        column("kWh", lambda cluster: f"{cluster.kwh:,.0f}"),
        words("waits for", lambda cluster: cluster.rate.limits),
        line=lambda cluster, cells: Line(cells, note=layout(cluster)),
    )
    tokens = format_count(plans[0].tokens)
    says = f"{tokens} tokens; a machine costs {format_money(build.priced_total, build.currency)}"
    return Document(title="cluster", blocks=(Paragraph(title, "strong"), Paragraph(says), ranked))


def prices_document(rows: Sequence[Price]) -> Document:
    """Prices, the newest of each thing."""
    if not rows:
        empty = Paragraph(
            "No prices.  trainrig prices template > mine.csv, fill in, and import it."
        )
        return Document(title="prices", blocks=(empty,))
    price_table = table(
        sorted(rows, key=lambda price: (price.kind, price.part)),
        words("kind", lambda price: price.kind),
        words("part", lambda price: price.part),
        column("price", lambda price: format_money(price.price, price.currency)),
        words("per", lambda price: price.per),
        column("date", lambda price: price.date.isoformat()),
        words("source", lambda price: Cell(price.source, "dim")),
    )
    return Document(title="prices", blocks=(price_table,))
