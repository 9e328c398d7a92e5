"""A self-test as a document: what was planted, who had to see it, whether and when it was seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainrig.report import document as doc
from trainrig.selftest.registry import Fault, FaultResult, SelfTest
from trainrig.units import counted, format_time


def summary(result: SelfTest) -> str:
    """In a sentence: how many were planted, caught, missed; false alarms."""
    planted = [one for one in result.results if one.caught is not None]
    caught = sum(one.caught is True for one in planted)
    trials = sum(one.trials for one in planted)
    lacking = len(result.results) - len(planted)
    rest = f"; {lacking} not here, for want of the part" if lacking else ""
    return (
        f"{caught} of {counted(len(planted), 'fault')} caught ({trials} trials){rest}; "
        f"{counted(len(result.alarms), 'false alarm')} in {counted(result.clean_runs, 'clean run')}"
        f"; {format_time(result.seconds)}; seed {result.seed}"
    )


def selftest_document(result: SelfTest) -> doc.Document:
    """Misses and false alarms first, then every fault."""
    blocks: list[doc.Block] = [doc.Paragraph(summary(result))]
    if result.missed:
        blocks.append(doc.Section("Missed", tuple(_lines(result.missed))))
    if result.alarms:
        alarms = (
            doc.Paragraph(f"{alarm.check}: {alarm.message} (clean run {alarm.run}, {alarm.fault})")
            for alarm in result.alarms
        )
        blocks.append(doc.Section("False alarms", tuple(alarms)))
    lacking = [one for one in result.results if one.caught is None]
    if lacking:
        blocks.append(doc.Section("Not here", tuple(_lines(lacking))))
    blocks.append(doc.Section("Faults", (_table(result.results),)))
    return doc.Document(title="selftest", blocks=tuple(blocks))


def listed(faults: Sequence[Fault]) -> doc.Document:
    """What there is to plant, without planting it."""
    table = doc.table(
        faults,
        doc.words("check", lambda fault: doc.Cell(fault.check, is_name=True)),
        doc.words("fault", lambda fault: fault.name),
        doc.column("trials", lambda fault: str(len(fault.variants))),
    )
    title = f"{counted(len(faults), 'fault')} of {counted(len({f.check for f in faults}), 'check')}"
    return doc.Document(title="selftest", blocks=(doc.Paragraph(title), table))


def _lines(results: Sequence[FaultResult]) -> Iterator[doc.Paragraph]:
    for one in results:
        yield doc.Paragraph(f"{one.check}: {one.fault}: {one.reason}")


def _table(results: Sequence[FaultResult]) -> doc.Table:
    return doc.table(
        results,
        doc.words("check", lambda one: one.check),
        doc.words("fault", lambda one: one.fault),
        doc.words("caught", _caught),
        doc.column("after", lambda one: "" if one.seconds is None else format_time(one.seconds)),
    )


def _caught(one: FaultResult) -> doc.Cell:
    if one.caught is None:
        return doc.Cell("not here", tone="dim")
    words = "yes" if one.caught else "no"
    if one.trials > 1:
        words = f"{one.caught_trials} of {one.trials}"
    return doc.Cell(words, tone="good" if one.caught else "bad")
