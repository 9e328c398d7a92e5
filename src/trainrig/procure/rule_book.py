"""The rules of a build as data: what each says, its numbers, its source; and warnings with it.

Numbers stand in catalog/build_rules.toml; `fit_rules` and `load_rules` are the arithmetic.  A check
is one rule applied to one build: its arithmetic in figures, whether it holds, and what to do.
Where the catalog lacks a figure that a rule compares, the check is of severity ``unknown``: it
names part and field, and neither passes nor fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

import trainrig.catalog
from trainrig.errors import DataError
from trainrig.procure.part_catalog import load_parts
from trainrig.procure.parts import GpuCard, Part, kind_of
from trainrig.procure.parts_list import Build
from trainrig.record import read_toml

RULES_FILE = Path(trainrig.catalog.__file__).parent / "build_rules.toml"
Severity = Literal["ok", "warning", "error", "unknown"]
Rule = Callable[[Build], Iterator["Check"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Result of one rule, applied to a build."""

    rule: str
    severity: Severity
    message: str
    """Meaning of the result for this build, in a sentence."""
    arithmetic: str
    """Arithmetic of the rule: ``2 × 450 W + 253 W + 95 W = 1,248 W > 0.9 × 1,000 W``."""
    fix: str = ""
    used: float | None = None
    """Share of the limit that is used, where the rule is a bound: 1 is the limit."""
    not_known: tuple[str, ...] = ()
    """Fields that a check of severity ``unknown`` asks for: ``case.gpu_length_mm``."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RuleSource(_Strict):
    """A document that a rule comes from."""

    title: str
    url: Annotated[str, Field(pattern=r"^https?://")]
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class BuildRule(_Strict):
    """Rule that every build is held against, with its numbers and source."""

    id: str
    says: str
    source: str
    values: dict[str, float] = Field(default_factory=dict)


class When(_Strict):
    """Conditions of a warning; all that are stated hold."""

    min_gpus: int | None = None
    min_psus: int | None = None
    chips: tuple[str, ...] | None = None
    connector: str | None = None
    cooling: str | None = None
    wider_than: float | None = None
    on_board: bool | None = None
    registered: bool | None = None
    risers: bool | None = None
    qlc: bool | None = None
    chipset_gpu: bool | None = None
    management: bool | None = None


class BuildWarning(_Strict):
    """Warning from experience, and the conditions under which it is shown."""

    id: str
    text: str
    fix: str
    source: str
    when: When


class _RulesFile(_Strict):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    sources: dict[str, RuleSource]
    rule: list[BuildRule]
    warning: list[BuildWarning]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleBook:
    """All rules and warnings, with their sources."""

    rules: Mapping[str, BuildRule]
    warnings: tuple[BuildWarning, ...]
    sources: Mapping[str, RuleSource]

    def value(self, rule: str, name: str) -> float:
        """Return a number of a rule."""
        return self.rules[rule].values[name]

    def source_of(self, rule: str) -> RuleSource:
        """Return the document that a rule or a warning comes from."""
        rule_row = self.rules.get(rule) or next(
            warning for warning in self.warnings if warning.id == rule
        )
        return self.sources[rule_row.source]


@cache
def rule_book() -> RuleBook:
    """Return the rules as they stand in their file.  Raises DataError where it is broken."""
    book = read_toml(RULES_FILE, _RulesFile, RULES_FILE.name)
    source_by_id = {rule.id: rule.source for rule in book.rule}
    source_by_id |= {warning.id: warning.source for warning in book.warning}
    for name, source in source_by_id.items():
        if source not in book.sources:
            raise DataError(f"{RULES_FILE.name}: {name}: unknown source {source!r}")
    return RuleBook(
        rules={rule.id: rule for rule in book.rule},
        warnings=tuple(book.warning),
        sources=book.sources,
    )


def check(
    rule: str, holds: bool, message: str, arithmetic: str, fix: str = "", used: float | None = None
) -> Check:
    """Return a check that holds, or an error with its fix."""
    severity: Severity = "ok" if holds else "error"
    return Check(
        rule=rule,
        severity=severity,
        message=message,
        arithmetic=arithmetic,
        fix="" if holds else fix,
        used=used,
    )


def graded(
    rule: str,
    used: float,
    good: float,
    message: str,
    arithmetic: str,
    fix: str,
) -> Check:
    """Return a check of a bound: an error above 1, a warning above ``good``."""
    severity: Severity = "error" if used > 1.0 + 1e-9 else "warning" if used > good else "ok"
    return Check(
        rule=rule,
        severity=severity,
        message=message,
        arithmetic=arithmetic,
        fix="" if severity == "ok" else fix,
        used=used,
    )


_FORMS = {
    ("board", "slots"): "[{ position = …, lanes = …, generation = … }]",
    ("case", "form_factors"): '["ATX", …]',
    ("cooling", "sockets"): '["AM5", …]',
    ("disk", "interface"): '"m2", "u2" or "sata"',
    ("gpu", "connectors"): '{ "8-pin" = …, "12V-2x6" = … }',
    ("psu", "atx"): '"2", "3.0" or "3.1"',
    ("psu", "connectors"): '{ eps = …, "8-pin" = …, "12V-2x6" = … }',
}
"""TOML of fields that are no plain number or word."""


def not_known(rule: str, part: Part, *names: str) -> Check:
    """Return a check that waits for fields of a part, which the catalog does not know."""
    kind = kind_of(part)
    forms = {name: _FORMS.get((kind, name), "…") for name in names}
    table, toml = f"[[{kind}]]", ", ".join(f"{name} = {form}" for name, form in forms.items())
    listed = tuple(f"{kind}.{name}" for name in names)
    return Check(
        rule=rule,
        severity="unknown",
        message=f"not known of {part.name}",
        arithmetic="; ".join(listed),
        fix=f"add {toml} to {table} from the maker's sheet{_by_name(part, names)}",
        not_known=listed,
    )


def _by_name(part: Part, names: Sequence[str]) -> str:
    """Return the advice to name a card of the same chip of which the catalog has the figures."""
    if not isinstance(part, GpuCard):
        return ""
    cards = [
        card.name
        for card in load_parts()["gpu"]
        if isinstance(card, GpuCard)
        and card.chip == part.chip
        and all(getattr(card, name) is not None for name in names)
    ]
    cards.sort(key=lambda name: "Founders" not in name)  # the reference design first
    return f', or name the card: --gpu "{cards[0]}"' if cards else ""


def bounded(
    rule: str,
    need: float,
    limit: float | None,
    message: str,
    *,
    part: Part | None,
    field: str,
    ceiling: float | None,
    ceiling_text: str,
    fix: str,
    unit: str = "",
) -> Check:
    """Compare a need with a part's limit, or with its platform's where the part's is not known.

    Args:
        rule: Identifier in catalog/build_rules.toml.
        need: What the build asks for.
        limit: What the part states; within it the rule holds.
        message: Meaning, with a place for the limit.
        part: The part that states the limit; None where the build does not name it.
        field: Name of the part's field.
        ceiling: Largest limit of any such part; above it the rule is broken, within it unknown.
        ceiling_text: How the ceiling comes about.
        fix: Advice where the rule is broken.
        unit: Unit of the figures, with its space.
    """
    if limit is not None:
        fits = need <= limit
        text = f"{need:,g}{unit} {'≤' if fits else '>'} {limit:,g}{unit}"
        used = need / limit if limit else None
        return check(rule, fits, message.format(f"{limit:,g}"), text, fix, used=used)
    if ceiling is not None and need > ceiling:
        text = f"{need:,g}{unit} > {ceiling:,g}{unit}, {ceiling_text}"
        return check(rule, False, message.format(f"{ceiling:,g}"), text, fix, used=need / ceiling)
    if part is not None:
        return not_known(rule, part, field)
    return Check(
        rule=rule,
        severity="unknown",
        message="not known: the board",
        arithmetic=f"board.{field}",
        fix="add [[board]] with its part, or --board",
        not_known=(f"board.{field}",),
    )


def awaits_processor(judge: Rule) -> Rule:
    """Guard a rule on watts: without a processor a sum is not known to hold."""

    @wraps(judge)
    def guarded(build: Build) -> Iterator[Check]:
        has_processor = any(item.kind == "cpu" for item in build.items)
        for check in judge(build):
            if has_processor or check.severity in ("error", "unknown"):
                yield check
                continue
            yield Check(
                rule=check.rule,
                severity="unknown",
                message="not known: watts of the processor",
                arithmetic=f"{check.arithmetic}, without a processor",
                fix="add [[cpu]] with its part, or --cpu",
                not_known=("cpu.watts",),
            )

    return guarded


def needs(rule: str, *field_paths: str) -> Callable[[Rule], Rule]:
    """Guard a rule that compares fields of parts, ``case.gpu_length_mm``.

    It is applied where all of them are known; where one is not, it yields which.  A kind of which
    the build has no part asks for nothing: that is a rule of its own.
    """
    fields = [name.split(".") for name in field_paths]

    def guard(judge: Rule) -> Rule:
        @wraps(judge)
        def guarded(build: Build) -> Iterator[Check]:
            kinds = {item.kind for item in build.items}
            if not {kind for kind, _ in fields} <= kinds:
                yield from judge(build)
                return
            gaps = []
            for item in {item.part.name: item for item in build.items}.values():
                names = [
                    name
                    for kind, name in fields
                    if kind == item.kind and getattr(item.part, name) is None
                ]
                if names:
                    gaps.append(not_known(rule, item.part, *names))
            yield from gaps or judge(build)

        return guarded

    return guard
