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
_WORDS = {"ok": "holds", "warning": "close", "error": "broken", "unknown": "not known"}


def build_document(report: BuildReport) -> Document:
    """A parts list: legal or not, what is not in order, the parts and all arithmetic."""
    build = report.build
    errors = [one for one in report.findings if one.severity == "error"]
    reason = (
        "; ".join(f"{e.message or e.arithmetic} ({e.rule})" for e in errors)
        if errors
        else _held(report)
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
    if found := tuple(finding_item(one) for one in report.findings if one.severity != "unknown"):
        blocks.append(Section("What is not in order", (Findings(found),)))
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
        learned = tuple(Item(text=one.text, fix=one.fix, tone="warn") for one in report.warnings)
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


def finding_item(one: Check) -> Item:
    """A rule that is broken or close, with its arithmetic."""
    text = f"{capital(one.message)}: {one.arithmetic}" if one.message else one.arithmetic
    return Item(text=text, fix=one.fix, label=one.rule, tone=_TONES[one.severity])


def _unknown_items(checks: Sequence[Check]) -> Iterator[Item]:
    """What is asked for, once each: several rules may wait for one figure."""
    waiting: dict[tuple[str, str, str], list[Check]] = {}
    for one in checks:
        waiting.setdefault((one.message, one.arithmetic, one.fix), []).append(one)
    for found in waiting.values():
        names = ", ".join(dict.fromkeys(one.rule for one in found))
        yield dataclasses.replace(finding_item(found[0]), label=names)


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


def _held(report: BuildReport) -> str:
    held = {one.rule for one in report.checks} - {one.rule for one in report.not_known}
    text = "1 rule holds" if len(held) == 1 else f"{len(held)} rules hold"
    if not report.not_known:
        return text
    waiting = ", ".join(dict.fromkeys(one.rule for one in report.not_known))
    return f"{text}; not known: {waiting}"


_DOUBT = "A part with (?) lacks a figure that a rule compares."


def _doubt(item: PartCount) -> str:
    from trainrig.procure.parts import unknown_fields

    return " (?)" if unknown_fields(item.part) else ""


def _parts_table(report: BuildReport) -> Table:
    build = report.build

    def amount(item: PartCount) -> str:
        return "" if item.price is None else f"{item.price * item.count:,.0f}"

    rows = table(
        build.items,
        words("kind", lambda item: "PC case" if item.kind == "case" else item.kind),
        words("part", lambda item: item.part.name + _doubt(item)),
        column("count", lambda item: str(item.count)),
        column("each", lambda item: "" if item.price is None else f"{item.price:,.0f}"),
        column(build.currency or "price", amount),
        words("price from", lambda item: Cell(item.priced, "dim")),
        notes=[_DOUBT] if any(map(_doubt, build.items)) else [],
    )
    if build.total is None:
        return rows
    total = Line(("", "all", "", "", f"{build.total:,.0f}", ""), "strong")
    return Table(rows.columns, (*rows.rows, total), rows.title, rows.notes)


def _checks_table(report: BuildReport) -> Table:
    def bar(one: Check) -> Cell:
        if one.used is None:
            return Cell("")
        return Cell("", drawing=Strip(0.0, min(1.0, one.used), muted=one.severity == "ok"))

    return table(
        report.checks,
        words("rule", lambda one: one.rule),
        words("", lambda one: Cell(_WORDS[one.severity], _TONES[one.severity])),
        words("arithmetic", lambda one: one.arithmetic),
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


def suggestions_document(found: Suggestions) -> Document:
    """The best builds: what they do, cost and wait for; and the parts of each."""
    title = (
        f"{counted(len(found.builds), 'build')} for {format_money(found.budget, found.currency)}, "
        f"of {counted(found.offers, 'part')} with a price"
    )

    def limit(one: Suggestion) -> str:
        tight = one.report.tightest
        near = f"; {tight.rule}, {format_share(tight.used)} used" if tight and tight.used else ""
        return one.rate.limits + near

    ranked = table(
        found.builds,
        words("build", lambda one: one.gpus),
        column("tokens a day", lambda one: format_count(one.tokens_per_day)),
        column(
            "80 % interval",
            lambda one: (
                f"{format_count(one.rate.low * DAY)} to {format_count(one.rate.high * DAY)}"
            ),
            optional=2,
        ),
        column("W", lambda one: f"{one.report.power.wall:,.0f}"),
        column(found.currency, lambda one: f"{one.price:,.0f}"),
        words("waits for; nearest limit", limit),
        title="Fastest first",
    )
    steps = table(
        [(one, step) for one, step in zip(found.builds, found.next_step, strict=True)],
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
    if len(found.builds) < 5:
        few = "No other GPU, and no other number of one, makes a legal build for the money."
        blocks.append(Paragraph(few, "dim"))
    blocks += [
        Section(f"{number}: {one.gpus}", (_parts_table(one.report),))
        for number, one in enumerate(found.builds, 1)
    ]
    return Document(title="builds", blocks=tuple(blocks), foot=(_SOURCES,))


def cluster_document(report: BuildReport, plans: Sequence[ClusterPlan], budget: float) -> Document:
    """What a budget for several machines trains, on each network."""
    build = report.build
    title = f"What {format_money(budget, build.currency)} buys of machines: {build.cards[0].name}"

    def layout(one: ClusterPlan) -> str:
        found = one.rate.prediction
        return "" if found is None else layout_text(found.layout, fixed=False)

    def span(one: ClusterPlan) -> str:
        middle, low, high = one.days
        return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"

    ranked = table(
        plans,
        words("network", lambda one: f"{one.gbps:g} Gb/s"),
        column("machines", lambda one: f"{one.machines} of {one.affordable}"),
        column("GPUs", lambda one: str(one.rate.gpus)),
        column(build.currency, lambda one: f"{one.price:,.0f}"),
        column("tokens/s", lambda one: format_count(one.rate.tokens_per_s)),
        column("days", span),
        column("kWh", lambda one: f"{one.kwh:,.0f}"),
        words("waits for", lambda one: one.rate.limits),
        line=lambda one, cells: Line(cells, note=layout(one)),
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
    shown = table(
        sorted(rows, key=lambda one: (one.kind, one.part)),
        words("kind", lambda one: one.kind),
        words("part", lambda one: one.part),
        column("price", lambda one: format_money(one.price, one.currency)),
        words("per", lambda one: one.per),
        column("date", lambda one: one.date.isoformat()),
        words("source", lambda one: Cell(one.source, "dim")),
    )
    return Document(title="prices", blocks=(shown,))
