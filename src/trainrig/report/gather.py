"""Several nodes' numbers for the programs that gather them: CSV, JUnit XML, Prometheus' text.

CSV has a line for each node and metric, values in base SI units.  JUnit has a suite for each node:
its verdict is a test, and so is each metric, which fails where the node is an outlier or below what
was expected of it, and is skipped where it is noisy, missing, or too few nodes have it.
Prometheus' text format (version 0.0.4, for node_exporter's textfile collector) has a gauge for each
metric's name.  Names in records are hostile input: each format escapes them, and a cell of CSV that
a spreadsheet would take for a formula begins with an apostrophe.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

from trainrig.analysis.rack import MIN_NODES, Node, NodeValue, Rack, RackMetric
from trainrig.analysis.rows import reason_not_judged
from trainrig.units import format_quantity, one_line, signed_share

COLUMNS = (
    *("node", "run", "verdict", "device", "device_index", "benchmark", "case", "metric", "unit"),
    *("value", "noisy", "median", "deviation", "outlier"),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(rack: Rack) -> str:
    """Return a line for each node and metric."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for node, metric, node_value in _values(rack):
        record = node_value.record
        writer.writerow(
            [
                *map(_cell, (node.name, node.run, node.verdict, metric.device)),
                "" if record is None or record.device_index is None else record.device_index,
                *map(_cell, (metric.benchmark, metric.what, metric.metric, metric.unit)),
                "" if node_value.value is None else repr(node_value.value),
                _cell(record.disturbed or "" if record else "missing"),
                "" if metric.median is None else repr(metric.median),
                "" if node_value.deviation is None else f"{node_value.deviation:.4f}",
                _judgement(metric, node_value),
            ]
        )
    return file.getvalue()


def _values(rack: Rack) -> Iterator[tuple[Node, RackMetric, NodeValue]]:
    for metric in rack.metrics:
        for node, node_value in zip(rack.nodes, metric.values, strict=True):
            yield node, metric, node_value


def _cell(text: str) -> str:
    plain = one_line(text)
    return f"'{plain}" if plain.startswith(_FORMULA) else plain


def _judgement(metric: RackMetric, node_value: NodeValue) -> str:
    if not metric.is_judged or not node_value.is_judged:
        return "not judged"
    return "yes" if node_value.is_outlier else "no"


# ---- JUnit


def to_junit(rack: Rack) -> str:
    """Return a suite for each node."""
    root = ET.Element("testsuites", name="trainrig")
    for number, node in enumerate(rack.nodes):
        suite = ET.SubElement(root, "testsuite", name=_xml(node.name))
        tests = [_verdict_test(node)]
        tests += [_metric_test(node, metric, metric.values[number]) for metric in rack.metrics]
        suite.extend(tests)
        for attribute, tag in (("failures", "failure"), ("skipped", "skipped")):
            suite.set(attribute, str(sum(test.find(tag) is not None for test in tests)))
        suite.set("tests", str(len(tests)))
        suite.set("errors", "0")
        if node.taken:
            suite.set("timestamp", node.taken.removesuffix("Z"))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _verdict_test(node: Node) -> ET.Element:
    test = ET.Element("testcase", classname=_xml(node.name), name="verdict")
    if node.verdict == "FAIL":
        ET.SubElement(test, "failure", message=_xml(node.reason), type="verdict")
    elif node.verdict not in ("PASS", "MEASURED"):
        ET.SubElement(test, "skipped", message=_xml(f"{node.verdict}: {node.reason}"))
    return test


def _metric_test(node: Node, metric: RackMetric, node_value: NodeValue) -> ET.Element:
    name = f"{metric.benchmark} {metric.what}, {metric.metric}"
    test = ET.Element("testcase", classname=_xml(node.name), name=_xml(name))
    if node_value.record is None:
        ET.SubElement(test, "skipped", message="this node has no such case")
    elif (note := reason_not_judged(node_value.record)) is not None:
        ET.SubElement(test, "skipped", message=_xml(note))
    elif node_value.is_outlier and node_value.value and metric.median:
        deviation = signed_share(node_value.deviation or 0.0)
        text = (
            f"{format_quantity(node_value.value, metric.unit)}, {deviation} from "
            f"the nodes' median of {format_quantity(metric.median, metric.unit)}"
        )
        ET.SubElement(test, "failure", message=_xml(text), type="outlier")
    elif not metric.is_judged:
        text = f"fewer than {MIN_NODES} nodes to compare with"
        ET.SubElement(test, "skipped", message=text)
    return test


_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _xml(text: str) -> str:
    """Return a text without the characters that XML 1.0 cannot hold."""
    return _NO_XML.sub("?", one_line(text))


# ---- Prometheus


def to_prometheus(rack: Rack) -> str:
    """Return a gauge for each metric's name, one for outliers, one for verdicts."""
    lines = []
    names = dict.fromkeys((metric.metric, metric.unit) for metric in rack.metrics)
    for name, unit in names:
        gauge = "trainrig_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
        lines += [
            f"# HELP {gauge} Measured by trainrig, in {unit}; of a node its slowest device.",
            f"# TYPE {gauge} gauge",
        ]
        for node, metric, node_value in _values(rack):
            if (metric.metric, metric.unit) == (name, unit) and node_value.value is not None:
                lines.append(f"{gauge}{_labels(node, metric, node_value)} {node_value.value:.6g}")
    lines += [
        "# HELP trainrig_outlier Whether a node is behind the others in a case.",
        "# TYPE trainrig_outlier gauge",
    ]
    lines += [
        f"trainrig_outlier{_labels(node, metric, node_value)} {int(node_value.is_outlier)}"
        for node, metric, node_value in _values(rack)
        if _judgement(metric, node_value) != "not judged"
    ]
    lines += [
        "# HELP trainrig_verdict The verdict on a node's run, as a label.",
        "# TYPE trainrig_verdict gauge",
    ]
    lines += [
        f'trainrig_verdict{{node="{_escape(node.name)}",run="{_escape(node.run)}",'
        f'verdict="{_escape(node.verdict)}"}} 1'
        for node in rack.nodes
    ]
    return "\n".join(lines) + "\n"


def _labels(node: Node, metric: RackMetric, node_value: NodeValue) -> str:
    record = node_value.record
    noisy = "" if record is None or not record.disturbed else "1"
    count = str(record.device_count) if record is not None else "1"
    pairs = {
        "node": node.name,
        "benchmark": metric.benchmark,
        "case": metric.what,
        "device": metric.device,
        "devices": count,
        **({"noisy": noisy} if noisy else {}),
    }
    inside = ",".join(f'{name}="{_escape(value)}"' for name, value in pairs.items())
    return f"{{{inside}}}"


def _escape(text: str) -> str:
    """Escape backslash, quote and line break for Prometheus' text format."""
    return one_line(text).replace("\\", "\\\\").replace('"', '\\"')
