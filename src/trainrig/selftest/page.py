"""A self-test as a document: what was planted, who had to see it, whether and when it was seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainrig.report import document as doc
from trainrig.selftest.registry import Fault, FaultResult, SelfTest
from trainrig.units import counted, format_time


def summary(result: SelfTest) -> str:
    """Return a sentence with the numbers of faults, misses and false alarms."""
    planted = [result_row for result_row in result.results if result_row.caught is not None]
    caught = sum(result_row.caught is True for result_row in planted)
    trials = sum(result_row.trials for result_row in planted)
    lacking = len(result.results) - len(planted)
    lacking_text = f"; {lacking} not here, for want of the part" if lacking else ""
    return (
        f"{caught} of {counted(len(planted), 'fault')} caught ({trials} trials){lacking_text}; "
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
    lacking = [fault_result for fault_result in result.results if fault_result.caught is None]
    if lacking:
        blocks.append(doc.Section("Not here", tuple(_lines(lacking))))
    blocks.append(doc.Section("Faults", (_table(result.results),)))
    return doc.Document(title="selftest", blocks=tuple(blocks))


def listed(faults: Sequence[Fault]) -> doc.Document:
    """Return the table of faults, none of them planted."""
    table = doc.table(
        faults,
        doc.words("check", lambda fault: doc.Cell(fault.check, is_name=True)),
        doc.words("fault", lambda fault: fault.name),
        doc.column("trials", lambda fault: str(len(fault.variants))),
    )
    title = f"{counted(len(faults), 'fault')} of {counted(len({f.check for f in faults}), 'check')}"
    return doc.Document(title="selftest", blocks=(doc.Paragraph(title), table))


def _lines(results: Sequence[FaultResult]) -> Iterator[doc.Paragraph]:
    for fault_result in results:
        yield doc.Paragraph(f"{fault_result.check}: {fault_result.fault}: {fault_result.reason}")


def _table(results: Sequence[FaultResult]) -> doc.Table:
    return doc.table(
        results,
        doc.words("check", lambda fault_result: fault_result.check),
        doc.words("fault", lambda fault_result: fault_result.fault),
        doc.words("caught", _caught),
        doc.column(
            "after",
            lambda fault_result: (
                "" if fault_result.seconds is None else format_time(fault_result.seconds)
            ),
        ),
    )


def _caught(fault_result: FaultResult) -> doc.Cell:
    if fault_result.caught is None:
        return doc.Cell("not here", tone="dim")
    words = "yes" if fault_result.caught else "no"
    if fault_result.trials > 1:
        words = f"{fault_result.caught_trials} of {fault_result.trials}"
    return doc.Cell(words, tone="good" if fault_result.caught else "bad")
