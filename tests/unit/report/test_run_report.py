"""What the report says: joined rows, waterfalls and their causes, and the words around them."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import pytest

import report_views as made
from report_views import GPU, claimed, claimed_link, claimed_memory, matmul_case, point
from reports import markdown, print_report
from trainrig.analysis.device_ranking import peer_groups, run_groups
from trainrig.analysis.evidence import intensity_of
from trainrig.analysis.rows import join, rows
from trainrig.analysis.run_summary import device_names, missing, summarise, verdict_of
from trainrig.analysis.waterfall import Gap, Waterfall, build_waterfalls, largest_gap
from trainrig.benchmarks.spec import case_text
from trainrig.record import Kind, Limit, Outcome, Record, RunView, Status, Verdict
from trainrig.report import document as doc
from trainrig.report.point_table import MAX_ROWS, metric_text
from trainrig.report.render.html import to_html
from trainrig.report.run_report import run_document


def run_of(*records: Record, **more: Any) -> RunView:
    return RunView(**({"name": "run", "records": records, "verdict": passed()} | more))


def passed() -> Verdict:
    return Verdict(outcome=Outcome.PASS, reason="all required steps ran")


def only(view: RunView) -> Waterfall:
    (found,) = build_waterfalls(view)
    return found


def gap_of(view: RunView) -> Gap:
    """The gap of the last level of the only waterfall."""
    gap = only(view).levels[-1].gap
    assert gap is not None
    return gap


def big(value: float, **more: Any) -> Record:
    return point("matmul", matmul_case("fp16", 8192), value, **more)


CLAIM = claimed("fp16", 165.2e12)


# Joining


def test_equal_cards_share_a_prediction_and_have_rows_of_their_own() -> None:
    first, second = big(160e12), big(150e12, device_index=1)
    expected = made.predicted(first, 140e12, 170e12).replace(device_index=None)
    rows = join([CLAIM, expected, first, second])
    assert [(row.index, row.measured) for row in rows] == [(0, first), (1, second)]
    assert all(row.predicted is expected for row in rows)


def test_a_prediction_of_one_card_is_not_another_cards() -> None:
    first, second = big(160e12), big(150e12, device_index=1)
    mine = made.predicted(second, 140e12, 170e12)
    assert [row.predicted for row in join([mine, first, second])] == [None, mine]


def test_a_repeated_point_replaces_the_one_before() -> None:
    (row,) = join([big(100e12, disturbed="busy"), again := big(160e12)])
    assert row.measured is again


def test_attempts_and_other_versions_do_not_meet_a_point() -> None:
    one = big(160e12)
    rows = join([*made.settled(one, 1e12), one.replace(version=2)])
    assert len(rows) == 2
    assert all(row.measured is not None and row.measured.attempt is None for row in rows)


def test_published_figures_meet_by_key() -> None:
    theirs = big(172e12, kind=Kind.BASELINE, device_index=None, source="someone")
    other = theirs.replace(device="RTX 3090 Ti")
    (row,) = join([big(160e12)], [theirs, other])
    assert row.baselines == (theirs,)


def test_a_case_that_was_only_predicted_has_a_row() -> None:
    expected = made.predicted(big(160e12), 140e12, 170e12)
    (row,) = join([expected])
    assert (row.measured, row.predicted) == (None, expected)


# Waterfalls


def test_the_claim_with_the_right_accumulation_is_the_ceiling() -> None:
    twice = claimed("fp16", 330.3e12, accumulate="fp16")
    found = only(run_of(twice, CLAIM, big(130e12)))
    assert [level.value for level in found.levels] == [165.2e12, 130e12]
    assert found.levels[1].gap is not None
    assert found.levels[1].gap.share == pytest.approx(130 / 165.2 - 1)


def test_without_a_claim_record_the_points_limit_is_the_ceiling() -> None:
    found = only(run_of(big(130e12, limit=Limit(value=165.2e12, source="data sheet"))))
    assert (found.levels[0].value, found.levels[0].provenance) == (165.2e12, "data sheet")


def test_without_any_claim_there_is_no_gap() -> None:
    found = only(run_of(big(130e12)))
    assert found.levels[0].note == "no claim known"
    assert found.levels[1].gap is None


def test_a_noisy_level_is_at_least_its_number_and_cases_are_counted_once() -> None:
    noisy = big(100e12, disturbed="load 9")
    time = noisy.replace(id="t" + noisy.id[1:], metric="time", unit="s", value=1e-3)
    text = markdown(run_of(CLAIM, noisy, time))
    assert "≥ 100 TFLOPS" in text
    assert "matmul: 1 point, 1 noisy" in text


def test_what_a_lower_bound_lost_is_a_bound_too() -> None:
    bar = _bars_of(run_of(CLAIM, big(0.002 * 165.2e12, disturbed="busy")))[-1]
    assert (bar.gap, bar.share) == ("≥ −165 TFLOPS", "≥ −99.8 %")
    assert _bars_of(run_of(CLAIM, big(100e12)))[-1].share == "−39 %"


def _bars_of(view: RunView) -> tuple[doc.Bar, ...]:
    sections = [block for block in run_document([view]).blocks if isinstance(block, doc.Section)]
    (section,) = [one for one in sections if one.title == "From claim to measurement"]
    (drawn,) = [block for block in section.blocks if isinstance(block, doc.WaterfallBars)]
    return drawn.bars


def test_sustained_hangs_below_burst_and_all_at_once_below_that() -> None:
    sustained = point("matmul", matmul_case("fp16", 8192, sustained=True), 150e12)
    together = big(140e12, device_count=2)
    found = only(run_of(CLAIM, big(160e12), sustained, together))
    names = [level.name for level in found.levels]
    assert names == ["Claim", "Best matmul", "Sustained matmul", "Matmul, all GPUs at once"]
    assert found.levels[2].gap is not None
    assert found.levels[2].gap.amount == pytest.approx(-10e12)


def test_the_largest_lower_bound_is_the_best_though_it_is_noisy() -> None:
    disturbed = point("matmul", matmul_case("fp16", 4096), 170e12, disturbed="busy")
    found = only(run_of(CLAIM, disturbed, big(150e12)))
    assert (found.levels[1].value, found.levels[1].bound) == (170e12, "≥")


def test_a_skipped_case_says_why() -> None:
    skipped = big(None, status=Status.SKIPPED, reason="would take 90 s")
    level = only(run_of(CLAIM, skipped)).levels[1]
    assert (level.value, level.note, level.gap) == (None, "skipped: would take 90 s", None)


def test_hot_vectors_are_no_level_of_the_memory_waterfall() -> None:
    case = {"op": "scale", "dtype": "fp32", "num_elements": 4096, "cache": "hot"}
    assert build_waterfalls(run_of(claimed_memory(1e12), point("vector", case, 3e12))) == ()


def test_a_machine_with_two_cards_numbers_them() -> None:
    titles = [
        each.title for each in build_waterfalls(run_of(CLAIM, big(1e14), big(1e14, device_index=1)))
    ]
    assert titles == [f"fp16 compute of {GPU} #0", f"fp16 compute of {GPU} #1"]
    assert only(run_of(CLAIM, big(1e14))).title == f"fp16 compute of {GPU}"


# Causes: each is named when, and only when, the records show it


def link_copy(value: float, memory: str = "pinned") -> Record:
    case = {"direction": "h2d", "bytes": 2**28, "memory": memory, "cache": "cold"}
    return point("copy", case, value)


def machine_with(**link: int) -> dict[str, Any]:
    machine = made.machine(1)
    machine["gpus"][0]["link"] |= link
    return machine


def host_with(**cpu: Any) -> dict[str, Any]:
    machine = made.machine(0)
    machine["cpu"] |= cpu
    return machine


def on_cpu(value: float) -> Record:
    return big(value, device=made.CPU, device_index=None)


CPU_CLAIM = claimed("fp16", 165.2e12, made.CPU)
SHEET = {"sm_clock_hz": 2.52e9}

CAUSES: dict[str, tuple[RunView, str]] = {
    "disturbed": (run_of(CLAIM, big(100e12, disturbed="load 9")), "noisy: load 9"),
    "boost clock": (
        run_of(CLAIM, big(174e12, conditions={"sm_clock_hz": 2.73e9})),
        "ran at 2.73 GHz; the data sheet counts with 2.52 GHz: not an error",
    ),
    "above, clock unknown": (run_of(CLAIM, big(174e12)), "boost clock above the data sheet's"),
    "at the claim": (run_of(CLAIM, big(166e12)), "at the claim"),
    "close": (run_of(CLAIM, big(162e12)), "close to its ceiling"),
    "thermal": (
        run_of(
            CLAIM,
            big(
                100e12,
                conditions={"throttle_reasons": "hw_thermal_slowdown", "temperature_c": 91.0},
            ),
        ),
        "thermal slowdown at 91 °C",
    ),
    "power": (
        run_of(
            CLAIM,
            big(130e12, conditions={"throttle_reasons": "sw_power_cap"} | SHEET),
            machine=made.machine(1),
        ),
        "power cap of 450 W: 2.52 GHz under load",
    ),
    "clock": (
        run_of(CLAIM, big(130e12, conditions={"sm_clock_hz": 2.1e9})),
        "clock: 2.10 GHz under load, 2.52 GHz behind the ceiling; that is 78 % of the gap",
    ),
    "memory-bound": (
        run_of(CLAIM, claimed_memory(1008e9), point("matmul", matmul_case("fp16", 128), 9e12)),
        "memory-bound shape: 43 FLOP/B, the ridge lies at 164",
    ),
    "rising": (
        run_of(CLAIM, big(120e12), point("matmul", matmul_case("fp16", 4096), 90e12)),
        "still rising at 8192",
    ),
    "narrow link": (
        run_of(claimed_link(31.5e9), link_copy(12e9), machine=machine_with(width=8)),
        "PCIe link at x8 of x16",
    ),
    "old link": (
        run_of(claimed_link(31.5e9), link_copy(12e9), machine=machine_with(generation=3)),
        "PCIe link at generation 3 of generation 4",
    ),
    "pageable": (
        run_of(claimed_link(31.5e9), link_copy(25e9), link_copy(11e9, "pageable")),
        "pageable memory is copied into a pinned buffer",
    ),
    "quota": (
        run_of(CPU_CLAIM, on_cpu(60e12), machine=host_with(quota_cpus=2.0)),
        "this process may use 2 of the 32 threads",
    ),
    "affinity": (
        run_of(CPU_CLAIM, on_cpu(60e12), machine=host_with(usable_threads=4)),
        "this process may use 4 of the 32 threads",
    ),
    "uncertain claim": (
        run_of(CPU_CLAIM.replace(interval=(80e12, 165.2e12)), on_cpu(90e12)),
        "the claim itself is uncertain: 80.0 to 165 TFLOPS",
    ),
    "no peer access": (
        run_of(
            point("step", {"model": "BERT", "precision": "fp16"}, 70e12, metric="flop_rate"),
            point(
                "step",
                {"model": "BERT", "precision": "fp16"},
                52e12,
                metric="flop_rate",
                device_count=2,
            ),
        ),
        "exposed communication: these cards have no P2P",
    ),
    "unknown": (run_of(CLAIM, big(130e12)), "cause not known"),
}


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_is_named_from_the_records(name: str) -> None:
    view, said = CAUSES[name]
    gap = gap_of(view)
    assert gap.cause.startswith(said)
    assert gap.known == (name != "unknown")


@pytest.mark.parametrize("name", sorted(set(CAUSES) - {"unknown"}))
def test_without_its_fault_the_cause_is_not_named(name: str) -> None:
    """The same step without conditions, machine and neighbours: the cause is gone."""
    view, said = CAUSES[name]
    last = only(view).levels[-1]
    record = next(record for record in view.records if record.id == last.record)
    assert last.value is not None
    bare = big(130e12, device=record.device, device_index=record.device_index)
    cause = gap_of(run_of(claimed("fp16", 165.2e12, bare.device or ""), bare)).cause
    assert not cause.startswith(said)


def test_what_needs_doing_comes_with_the_next_command() -> None:
    for name in ("disturbed", "thermal", "power", "clock", "memory-bound", "rising", "narrow link"):
        assert gap_of(CAUSES[name][0]).next, name


def test_intensity_of_a_square_matmul() -> None:
    """2n³ over 3·2n² bytes: n / 3 for two-byte types."""
    assert intensity_of(big(1.0)) == pytest.approx(8192 / 3)
    assert intensity_of(link_copy(1.0)) is None


# Words


def test_the_worst_level_is_the_one_below_its_band() -> None:
    """fp16 lost more of its claim, but fp32 is what is not as expected."""
    slow = point("matmul", matmul_case("fp32", 8192), 60e12)
    view = run_of(
        CLAIM, claimed("fp32", 82.6e12), big(80e12), made.predicted(slow, 70e12, 80e12), slow
    )
    assert summarise(view).largest_gap.startswith(
        f"fp32 compute of {GPU}: best matmul reaches 60.0 of 82.6 TFLOPS (−27 %), below"
    )
    without = dataclasses.replace(
        view, records=tuple(r for r in view.records if r.interval is None)
    )
    assert largest_gap(build_waterfalls(without)) is None


def test_disturbed_levels_are_never_the_worst() -> None:
    view = run_of(CLAIM, big(10e12, disturbed="busy"))
    assert largest_gap(build_waterfalls(view)) is None
    assert summarise(view).largest_gap == "No level can be judged: every point was noisy."


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (run_of(), "No point has a value"),
        (run_of(big(1e14)), "No claim is known"),
        (run_of(CLAIM, big(164e12)), "No level that can be judged is clearly more than 3 % below"),
    ],
)
def test_no_worst_level_is_said(view: RunView, said: str) -> None:
    assert summarise(view).largest_gap.startswith(said)


def test_the_verdict_is_never_guessed() -> None:
    assert verdict_of(run_of())[0] == "PASS"
    assert verdict_of(run_of(verdict=None))[0] == "NO VERDICT"
    published = run_of(verdict=None, config={"origin": "published figures"})
    assert verdict_of(published)[0] == "NOT JUDGED"


def test_devices_are_counted() -> None:
    assert device_names(made.gpu_view(8)) == "8 × RTX 4090"
    assert device_names(made.cpu_view()) == made.CPU


@pytest.mark.parametrize("verb", ["qualify", "import"])
def test_what_two_cards_do_together_makes_no_more_cards(verb: str) -> None:
    """A link between two models is of both, and a number of the machine is of no card more."""
    case = {"direction": "p2p", "from": 0, "to": 1, "bytes": 1 << 28}
    link = made.point("link", case, 2e10, device_count=2)
    back = link.replace(case={**case, "from": 1, "to": 0}, device="RTX 3090", device_index=1)
    config = {"verb": verb, "imported": [{"tool": "p2p-test", "file": "x"}]}
    view = RunView(name="run", config=config if verb == "import" else {}, records=(link, back))
    assert device_names(view) == "RTX 3090, RTX 4090"
    alike = dataclasses.replace(view, records=(link, back.replace(device=link.device)))
    assert device_names(alike) == "2 × RTX 4090"
    whole = link.replace(metric="power", unit="W", device_index=None, device_count=None)
    if verb == "import":
        with_it = dataclasses.replace(alike, records=(*alike.records, whole))
        assert device_names(with_it) == "2 × RTX 4090"


# The page


def points_of(view: RunView) -> doc.Section:
    """The section of all points."""
    for block in run_document([view]).blocks:
        if isinstance(block, doc.Group) and block.kind == "page":
            (section,) = block.blocks
            if isinstance(section, doc.Section) and section.title == "All points":
                return section
    raise AssertionError("no points")


def test_the_outlier_is_marked_and_no_other() -> None:
    def outliers(view: RunView) -> set[str]:
        groups = peer_groups(view, rows(view))
        return {peer.label for group in groups for peer in group.peers if peer.is_outlier}

    assert outliers(made.gpu_view(8, slow_card=3)) == {"GPU 3"}
    assert outliers(made.gpu_view(8)) == set()


def test_the_judge_decides_which_card_is_an_outlier() -> None:
    """A card that is behind but was not named by the verdict is shown with its deviation only."""
    view = dataclasses.replace(made.gpu_view(8, slow_card=3), verdict=passed())
    groups = peer_groups(view, rows(view))
    behind = [peer for group in groups for peer in group.peers if peer.deviation < -0.15]
    assert behind
    assert not any(peer.is_outlier for peer in behind)


def test_what_went_wrong_is_never_left_out_of_a_full_table() -> None:
    good = [point("matmul", matmul_case("fp16", size), 1e14) for size in range(1, MAX_ROWS + 50)]
    bad = big(None, status=Status.FAILED, reason="wrong answer: 3 of 4 probes")
    section = points_of(run_of(*good, bad))
    (fold,) = section.blocks
    assert isinstance(fold, doc.Section)
    (table,) = fold.blocks
    assert isinstance(table, doc.Table)
    assert len(table.rows) == MAX_ROWS
    assert "50 more points" in section.note
    assert any(line.note == "failed: wrong answer: 3 of 4 probes" for line, _ in table.lines())
    assert fold.note == f"{MAX_ROWS + 50:,} points, 1 failed"


def test_provenance_names_workers_samples_and_conditions() -> None:
    folds = points_of(made.gpu_view()).blocks
    lines = [
        (cells[0].text, line)
        for fold in folds
        if isinstance(fold, doc.Section)
        for table in fold.blocks
        if isinstance(table, doc.Table)
        for line, cells in table.lines()
    ]
    facts = dict(next(line.details for case, line in lines if case == "fp16 8192 × 8192 × 8192"))
    assert facts["Worker 1"].startswith("6.85 ms; 11 samples, 6.82 to 6.89 ms; converged")
    assert facts["Conditions"] == "sm clock 2.52 GHz; power 431 W; temperature 71 °C"
    assert facts["Formula"] == "2·m·k·n / time"
    assert facts["Expected"].startswith("157 TFLOPS (145 to 169 TFLOPS): published, n = 3")
    assert "data sheet" in facts["Ceiling"]


def test_runs_are_compared_at_the_case_that_they_share() -> None:
    """Different cards at one case, at its fastest size; a noisy point is marked."""
    a100 = {"device": "A100 SXM4 80GB"}
    small = point("matmul", matmul_case("fp16", 128), 1e12)
    first = run_of(big(160e12), small)
    second = run_of(big(240e12, **a100), small.replace(**a100, id="other"))
    (group,) = run_groups([first, second])
    assert group.name == "fp16 8192 × 8192 × 8192"
    shown = [(peer.label, peer.value, peer.deviation) for peer in group.peers]
    assert shown == [
        ("1. RTX 4090", 160e12, pytest.approx(-1 / 3)),
        ("2. A100 SXM4 80GB", 240e12, 0.0),
    ]
    third = run_of(big(240e12, disturbed="busy"))
    (group,) = run_groups([first, third])
    assert [peer.bound for peer in group.peers] == ["", "≥"]


def test_of_a_case_with_many_metrics_the_first_stands_for_it() -> None:
    """A training has a rate of its hardware's FLOPs, too, which is larger and no headline."""
    case = {"model": "gpt2", "precision": "fp16", "batch_size": 8, "seq_len": 1024, "grad_accum": 1}
    model, hardware, tokens = (
        point("training", case | {"recompute": "none"}, value, metric=metric, unit=unit)
        for metric, value, unit in (
            ("flop_rate", 408e9, "FLOP/s"),
            ("hardware_flop_rate", 414e9, "FLOP/s"),
            ("token_rate", 1e13, "token/s"),
        )
    )
    for records in ((model, hardware, tokens), (tokens, hardware, model)):
        (group,) = run_groups([run_of(*records)] * 2)
        assert [(peer.value, group.unit) for peer in group.peers] == [(408e9, "FLOP/s")] * 2


def test_planned_cases_without_a_result_are_counted() -> None:
    seen, planned = big(160e12), point("matmul", matmul_case("fp16", 4096), 1e14)
    view = run_of(seen, made.predicted(seen, 1e14, 2e14), made.predicted(planned, 1e14, 2e14))
    assert missing(view) == ("the machine was not described", "1 of 2 planned cases have no result")


def test_a_strangers_dtype_never_becomes_a_command() -> None:
    evil = point("matmul", matmul_case("fp16; rm -rf ~", 128), 1e12, disturbed="busy")
    view = run_of(evil.replace(limit=Limit(value=2e12, source="sheet")))
    assert gap_of(view).next == "on a quiet machine: trainrig bench matmul"


# Terminal and markdown


def printed(view: RunView, width: int = 80, **more: Any) -> str:
    from rich.console import Console

    stream = io.StringIO()
    print_report(view, Console(file=stream, width=width, **more))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 160])
def test_the_terminal_report_keeps_its_width(width: int) -> None:
    text = printed(made.gpu_view(2, slow_card=1), width)
    assert max(map(len, text.splitlines())) <= width
    for said in (
        "FAIL",
        "Multiplies fp16 matrices at",
        "GPU 1 is an outlier",
        "unverified on hardware",
        "Error:",
    ):
        assert said in text


def test_no_colour_where_none_is_wanted() -> None:
    assert "\x1b" not in printed(made.gpu_view())
    assert "\x1b[" in printed(made.gpu_view(), force_terminal=True, color_system="standard")


def test_one_gpu_says_nothing_of_links_between_gpus() -> None:
    assert "NVLink" not in printed(made.gpu_view(1))


def test_a_run_that_was_cut_off_is_said_to_be() -> None:
    for text in (printed(made.cut_off_view()), markdown(made.cut_off_view())):
        assert "NO VERDICT" in text
        assert "cut off before its machine.json" in text
        assert "nothing was measured" in text


def test_hostile_names_do_not_reach_the_terminal() -> None:
    text = printed(made.hostile_view())
    assert "\x1b" not in text
    assert "\x07" not in text


def test_hostile_names_stay_text_in_markdown() -> None:
    text = markdown(made.hostile_view())
    assert "\x1b" not in text
    assert "<script" not in text.replace("\\<script", "")
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("| ")]
    assert tables
    for table in tables:  # every row has its heading's cells
        assert len({line.replace("\\|", "").count("|") for line in table}) == 1


def test_markdown_holds_the_waterfall_and_the_findings() -> None:
    text = markdown(made.gpu_view())
    assert "| Best matmul | 160 TFLOPS | −4.80 TFLOPS (−2.9 %) | close to its ceiling |" in text
    assert "- Note: matmul fp16" in text
    assert len(text) < 5000


def listed(*records: Record) -> tuple[list[doc.Table], str]:
    """The tables of a run's points, and their text in a terminal."""
    view = run_of(*records)
    section = points_of(view)
    found = [fold.blocks[0] for fold in section.blocks if isinstance(fold, doc.Section)]
    return [table for table in found if isinstance(table, doc.Table)], printed(view)


@pytest.mark.parametrize(("share", "is_marked"), [(0.45, True), (1.9, False), (2.2, True)])
def test_a_prediction_that_missed_by_two_is_marked(share: float, is_marked: bool) -> None:
    forecast = big(100e12)
    tables, text = listed(
        made.predicted(forecast, 95e12, 105e12), forecast.replace(value=share * 100e12)
    )
    (line, cells), *_ = tables[0].lines()
    marked = [cell.text for cell in cells if cell.tone == "bad"]
    assert marked == ([f"{share:.2f} ×"] if is_marked else [])
    assert ("times what was predicted" in line.note) is is_marked
    assert ("times what was predicted" in text) is is_marked


def test_a_stream_is_listed_by_its_bytes_alone() -> None:
    case = {"op": "scale", "dtype": "fp32", "num_elements": 2**26, "cache": "cold"}
    bytes_ = point("vector", case, 9e11)
    (table,), _ = listed(bytes_, bytes_.replace(id="f", metric="flop_rate", unit="FLOP/s"))
    assert [cells[1].text for _, cells in table.lines()] == ["900 GB/s"]


def test_no_raw_key_stands_in_a_table() -> None:
    assert metric_text("time.data_wait") == "data wait time"
    assert metric_text("mfu") == "MFU"
    case = {"direction": "p2p", "peer_access": False, "from": 0, "to": 1}
    assert case_text("link", case) == "GPU 0 to GPU 1, peer access off"


def test_small_rates_are_never_printed_as_zero() -> None:
    """A processor's best matmul is GFLOPS, where the published cards' are TFLOPS."""
    case = {"layer": "BERT-large layer", "dtype": "bf16", "pass": "forward+backward"}
    layers = [
        point(
            "layer",
            {**case, "batch_size": size, "seq_len": 128},
            2e11,
            metric="flop_rate",
            unit="FLOP/s",
        )
        for size in (1, 2)
    ]
    view = run_of(point("matmul", matmul_case("bf16", 1024), 4.3e11), *layers)
    assert "best matmul 430 GFLOPS" in printed(view)


def test_a_line_is_not_repeated_for_each_quantity_of_a_case() -> None:
    vector = {"op": "add", "dtype": "fp32", "num_elements": 1 << 24, "cache": "cold"}
    rates = [
        point("vector", vector, 1e10, metric=metric, unit=unit, disturbed="busy")
        for metric, unit in (("byte_rate", "B/s"), ("flop_rate", "FLOP/s"))
    ]
    points = printed(run_of(*rates)).partition("Points\n")[2]
    assert points.count("add fp32, 16 Mi elements, cold") == 1


# Through the command line


def test_json_has_every_level(capsys: pytest.CaptureFixture[str]) -> None:
    from trainrig.cli.demo import command

    command.main(["--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "MEASURED"
    assert "boost-clock" in [pattern["id"] for pattern in found["patterns"]]
    shares = found["waterfalls"][0]["levels"][2]["gap"]["shares"]
    assert shares[-1]["name"] == "not explained"
    levels = [r["name"] for r in found["waterfalls"][0]["levels"]]
    assert levels == [
        "Claim",
        "Best matmul",
        "Best layer",
        "Training step",
        "Training step, all devices",
    ]
    assert all(
        r["kind"] in ("claimed", "baseline") for each in found["waterfalls"] for r in each["levels"]
    )


def test_what_may_be_off_by_more_than_all_of_it_has_its_ends_printed() -> None:
    """A share of what lies far from the middle of its interval would say nothing."""
    close, far = big(150e12, interval=(140e12, 160e12)), big(20e12, interval=(10e12, 80e12))
    narrow, wide = (to_html(run_document([run_of(CLAIM, one)])) for one in (close, far))
    assert "± 6.7\xa0%" in narrow
    assert "±" not in wide and "10.0 to 80.0\xa0TFLOPS" in wide
