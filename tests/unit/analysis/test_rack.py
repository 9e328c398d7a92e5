"""Several nodes beside each other: who is behind, when that cannot be told, what gatherers read."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from prometheus_client.parser import text_string_to_metric_families

from report_views import gpu_view, hostile_view, matmul_case, point
from trainrig.analysis.rack import MIN_NODES, Rack, rack_of, shown_metrics
from trainrig.record import RunView
from trainrig.report.gather import COLUMNS, to_csv, to_junit, to_prometheus
from trainrig.report.run_report import run_document
from trainrig.store import create_run

RATES = (160e12, 161e12, 159e12, 160.5e12, 159.5e12)


def node(name: str, *rates: float, **more: Any) -> RunView:
    """A node whose GPUs reach these rates in one product."""
    records = [
        point("matmul", matmul_case("fp16", 8192), rate, device_index=index, **more)
        for index, rate in enumerate(rates)
    ]
    return RunView(name=f"run-{name}", records=tuple(records), machine={"host": {"hostname": name}})


def rack(*rates: float) -> Rack:
    return rack_of([node(f"node{n}", rate) for n, rate in enumerate(rates)])


def behind(found: Rack) -> list[str]:
    return [one.node for _, one in found.outliers]


def test_a_slow_node_is_behind_and_its_healthy_twin_is_not() -> None:
    assert behind(rack(*RATES, 130e12)) == ["node5"]
    assert behind(rack(*RATES, 158e12)) == []


def test_two_sick_nodes_do_not_hide_each_other() -> None:
    assert behind(rack(*RATES, 100e12, 101e12)) == ["node5", "node6"]


def test_a_node_stands_with_its_slowest_gpu() -> None:
    views = [node(f"node{n}", 160e12, 161e12) for n in range(5)]
    views[3] = node("node3", 161e12, 120e12)
    found = rack_of(views)
    (pair,) = found.outliers
    assert pair[1].record is not None
    assert (pair[1].node, pair[1].record.device_index) == ("node3", 1)


@pytest.mark.parametrize("count", range(2, MIN_NODES))
def test_few_nodes_cannot_tell(count: int) -> None:
    found = rack(*RATES[: count - 1], 80e12)
    assert behind(found) == []
    assert not found.can_judge


def test_nodes_that_scatter_by_themselves_have_no_outlier() -> None:
    assert behind(rack(100e12, 120e12, 140e12, 160e12, 180e12)) == []


def test_a_faster_node_is_no_fault() -> None:
    assert behind(rack(*RATES, 200e12)) == []


def test_a_noisy_value_is_shown_and_not_judged() -> None:
    views = [node(f"node{n}", rate) for n, rate in enumerate(RATES)]
    views.append(node("node5", 90e12, disturbed="another process"))
    found = rack_of(views)
    assert behind(found) == []
    assert found.metrics[0].values[5].value == 90e12
    assert "not judged" in to_csv(found)


def test_equal_hosts_are_numbered() -> None:
    found = rack_of([node("one", rate) for rate in RATES])
    assert [each.name for each in found.nodes][:2] == ["one", "one #2"]
    assert found.noun == "run"


def test_csv_has_a_line_a_node_and_metric() -> None:
    found = rack(*RATES, 130e12)
    lines = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert tuple(lines[0]) == COLUMNS
    assert [line["outlier"] for line in lines] == ["no"] * 5 + ["yes"]
    assert float(lines[5]["value"]) == 130e12


def test_csv_of_a_single_run_has_its_values() -> None:
    (line,) = csv.DictReader(io.StringIO(to_csv(rack(130e12))))
    assert (float(line["value"]), line["outlier"]) == (130e12, "not judged")


def test_junit_fails_the_outlier_and_skips_the_rest() -> None:
    root = ET.fromstring(to_junit(rack(*RATES, 130e12)))
    assert [suite.get("failures") for suite in root] == ["0"] * 5 + ["1"]
    assert root[5].find(".//failure[@type='outlier']") is not None
    few = ET.fromstring(to_junit(rack(160e12, 80e12)))
    assert {suite.get("failures") for suite in few} == {"0"}
    # Without a verdict, and with too few nodes: nothing has passed.
    assert {suite.get("skipped") for suite in few} == {suite.get("tests") for suite in few}


def parsed(text: str) -> list[Any]:
    """The samples, by the parser of Prometheus' own client."""
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def test_prometheus_text_can_be_parsed() -> None:
    text = to_prometheus(rack(*RATES, 130e12))
    samples = parsed(text)
    (slow,) = [one for one in samples if one.name == "trainrig_outlier" and one.value]
    assert slow.labels["node"] == "node5"
    assert sum(one.name == "trainrig_flop_rate" for one in samples) == 6
    assert text.endswith("\n")


def test_hostile_names_stay_text_everywhere() -> None:
    bad = 'x"} 1\n=cmd()</testcase>\x00'
    views = [dataclasses.replace(hostile_view(), name=bad, machine=None) for _ in range(5)]
    found = rack_of(views)
    assert len(ET.fromstring(to_junit(found))) == 5
    verdicts = [one for one in parsed(to_prometheus(found)) if one.name == "trainrig_verdict"]
    assert len(verdicts) == 5
    assert verdicts[0].labels["run"] == bad.replace("\n", "?").replace("\x00", "?")
    rows = list(csv.reader(io.StringIO(to_csv(found))))
    assert {len(row) for row in rows} == {len(COLUMNS)}
    assert not any(cell.startswith(("=", "@")) for row in rows for cell in row)


def test_of_each_family_the_case_with_an_outlier_is_shown() -> None:
    views = []
    for n in range(5):
        slow = 0.7 if n == 4 else 1.0
        records = [
            point("matmul", matmul_case("fp16", 8192), 160e12),
            point("matmul", matmul_case("fp16", 1024), 100e12 * slow),
        ]
        host = {"host": {"hostname": f"n{n}"}}
        views.append(RunView(name=f"r{n}", records=tuple(records), machine=host))
    (shown,) = shown_metrics(rack_of(views).metrics, 12)
    assert shown.what == "fp16 1024 × 1024 × 1024"


def test_eight_runs_are_one_page() -> None:
    views = []
    for n in range(8):
        view = gpu_view(2, slow_card=1 if n == 3 else None)
        host = {**(view.machine or {}), "host": {"hostname": f"node{n}"}}
        views.append(dataclasses.replace(view, machine=host, name=f"run{n}"))
    text = repr(run_document(views))
    assert "1 BEHIND" in text
    assert "behind in" in text


def test_the_verb_writes_what_is_gathered(trainrig: Any, tmp_path: Path) -> None:
    runs = []
    for n, rate in enumerate((*RATES, 120e12)):
        with create_run(tmp_path / "runs", "qualify", {}) as run:
            run.append(node(f"node{n}", rate).records[0])
            runs.append(str(run.path))
    files = {name: tmp_path / f"rack.{name}" for name in ("csv", "junit", "prometheus", "html")}
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    code, out, err = trainrig("report", *runs, *options)
    assert (code, out) == (0, "")
    assert all(path.stat().st_size > 500 for path in files.values())
    assert err.count("wrote ") == 4
    code, out, _ = trainrig("report", *runs, "--json")
    assert len([json.loads(line) for line in out.splitlines()]) == len(runs)
