"""One rule for the best, as properties over made-up runs: headline, numbers, bars and charts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from report_views import CPU, GPU, claimed, matmul_case, point
from reports import markdown
from trainrig.analysis.best import (
    ABOUT,
    AT_LEAST,
    AT_MOST,
    best_record,
    bound_of,
    share_bound,
    value_text,
)
from trainrig.analysis.first_screen import KeyNumber, headline, key_numbers
from trainrig.analysis.rows import rows
from trainrig.analysis.waterfall import (
    CLAIM,
    REFERENCE,
    build_waterfalls,
    exceeded_points,
    headline_waterfall,
)
from trainrig.benchmarks.spec import case_text
from trainrig.record import Kind, Record, RunView, Status, dtype_of
from trainrig.report import document as doc
from trainrig.report.charts.roofline import roofline
from trainrig.report.run_report import run_document
from trainrig.units import format_quantity

NOISE = "the machine was busy"
STEP = {"model": "gpt2-medium", "seq_len": 1024, "batch_size": 4}
FLOPS = {"metric": "flop_rate", "unit": "FLOP/s"}
GPU_DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp8")


def on_host(record: Record) -> Record:
    return record.replace(device=CPU, device_index=None)


def view_of(*records: Record) -> RunView:
    return RunView(name="run", records=records)


def noisy(record: Record) -> Record:
    return record.replace(disturbed=NOISE)


def matmul(dtype: str, size: int, value: float) -> Record:
    return point("matmul", matmul_case(dtype, size), value)


def step(dtype: str, value: float) -> Record:
    return point("training", {**STEP, "precision": dtype}, value, **FLOPS)


def layer(dtype: str, batch: int, value: float, **more: Any) -> Record:
    case = {"layer": "GPT-2 medium block", "dtype": dtype, "pass": "forward+backward"}
    case |= {"batch_size": batch, "seq_len": 512, "hidden": 1024, "heads": 16, "ffn": 4096}
    return point("layer", case | more, value, **FLOPS)


def stream(size: int, value: float) -> Record:
    return point(
        "vector", {"op": "add", "dtype": "fp32", "num_elements": size, "cache": "cold"}, value
    )


def disk(op: str, value: float) -> Record:
    case = {"op": op, "bytes": 1 << 28, "tool": "fio", "block": 1 << 20, "depth": 1}
    return point("storage", case, value, device="a disk", device_index=None)


def numbers_of(view: RunView) -> dict[str, KeyNumber]:
    return {one.name: one for one in key_numbers(view, build_waterfalls(view))}


def headline_of(view: RunView) -> str:
    return headline(view, build_waterfalls(view))


# ---- the six faults of a first screen


def test_a_small_clean_dtype_is_no_headline_beside_a_fast_one() -> None:
    """bf16 is emulated at 1.20 GFLOPS there; fp32 reached 127."""
    slow, fast = on_host(matmul("bf16", 512, 1.2e9)), on_host(matmul("fp32", 4096, 127e9))
    view = view_of(slow, fast)
    assert headline_of(view).startswith("Multiplies fp32 matrices at 127 GFLOPS")
    assert (numbers_of(view)["Best matmul"].value, numbers_of(view)["Best matmul"].what) == (
        127e9,
        "fp32",
    )


def test_a_clean_small_matmul_does_not_outrank_a_noisy_large_one() -> None:
    large = noisy(matmul("bf16", 8192, 140e12))
    view = view_of(matmul("bf16", 128, 9e12), large)
    number = numbers_of(view)["Best matmul"]
    assert (number.value, number.is_least) == (140e12, True)
    assert "140 TFLOPS or more" in headline_of(view)


def test_a_step_is_never_more_than_what_its_matmuls_reach() -> None:
    """85.3 under a clean 80.4 and a noisy 78: no share, and both are to be measured again."""
    small, large = matmul("fp32", 128, 80.4e9), noisy(matmul("fp32", 4096, 78e9))
    view = view_of(*map(on_host, (small, large, step("fp32", 85.3e9))))
    text = headline_of(view)
    assert "what its matmuls reach (80.4 GFLOPS) was not measured well enough to judge that" in text
    assert "%" not in text
    assert {record.value for record in exceeded_points(view.records)} == {80.4e9, 78e9}


def test_what_was_written_is_not_called_read() -> None:
    view = view_of(on_host(matmul("fp32", 4096, 1e11)), disk("write", 676e6))
    (number,) = [one for one in numbers_of(view).values() if one.unit == "B/s"]
    assert "read" not in f"{number.name} {number.what}"
    assert number.name == "Disk, sequential write"


def test_a_noisy_read_stands_before_a_clean_write() -> None:
    read = noisy(disk("read", 500e6)).replace(interval=(450e6, 550e6))
    names = numbers_of(view_of(read, disk("write", 676e6)))
    assert names["Disk, sequential read"].value == 500e6


def test_the_first_chart_is_the_headlines() -> None:
    slow, fast = on_host(matmul("bf16", 512, 1.2e9)), on_host(matmul("fp32", 4096, 127e9))
    first = next(blocks_of(run_document([view_of(slow, fast)]).blocks, doc.WaterfallBars))
    assert first.title == "fp32 compute"


def test_a_noisy_point_is_a_roof_and_no_mark_lies_above_it() -> None:
    low, high = matmul("fp32", 1024, 80.4e9), noisy(matmul("fp32", 4096, 127e9))
    view = view_of(*map(on_host, (low, high, stream(1 << 26, 2e10))))
    figure = roofline(view, rows(view))
    assert figure is not None
    lines = getattr(figure.chart, "series")  # noqa: B009
    (roof,) = [line for line in lines if line.label.startswith("fp32")]
    marks = [mark.y for line in lines if not line.line for mark in line.points]
    assert roof.points[0].y == max(y for y in marks if y > 5e10)
    assert roof.label.endswith("≥ 127 GFLOPS")


def test_a_layer_above_its_matmul_says_so_where_it_stands_for_the_dtype() -> None:
    """``fp32 65 %: Best layer`` stood above its matmul without a word."""
    records = (matmul("bf16", 4096, 2e12), step("bf16", 4e11))
    slow = (matmul("fp32", 4096, 80.4e9), layer("fp32", 1, 108e9))
    view = view_of(claimed("fp32", 166e9, CPU), *map(on_host, (*records, *slow)))
    tables = blocks_of(run_document([view]).blocks, doc.Table)
    (line,) = [
        [cell.text for cell in cells]
        for table in tables
        for _, cells in table.lines()
        if cells[0].text == "fp32 compute"
    ]
    assert line[-1] == "Best layer; best matmul (80.4 GFLOPS) was not measured well enough"
    assert "≥" not in line[2]


def peers(first: int, second: int, rate: float, **more: Any) -> Record:
    case = {"from": first, "to": second, "direction": "p2p", "ways": 1, "bytes": 1 << 28}
    return point("link", {**case, "peer_access": True}, rate, **more)


def test_a_noisy_link_is_the_fastest_way_from_gpu_to_gpu() -> None:
    view = view_of(peers(0, 1, 20e9), noisy(peers(1, 0, 24e9)))
    number = numbers_of(view)["GPU to GPU"]
    assert (number.value, number.is_least, number.what) == (24e9, True, "with peer access")
    assert headline_of(view).startswith("Moves at least 24.0 GB/s: ")


def test_an_unstated_path_is_not_called_the_hosts_memory() -> None:
    one = peers(0, 1, 20e9)
    case = {name: each for name, each in one.case.items() if name != "peer_access"}
    assert numbers_of(view_of(one.replace(case=case)))["GPU to GPU"].what == ""


def test_a_burns_best_rate_is_of_right_results() -> None:
    """A device that answers wrong may well be fast."""
    case = {"mode": "matmul", "dtype": "bf16"}
    right = point("burn", case, 90e12, **FLOPS, conditions={"rate": 90e12, "checked": 9.0})
    wrong = right.replace(id="wrong", device_index=1, value=None, interval=None)
    wrong = wrong.replace(status=Status.FAILED, reason="wrong answer: 3", conditions={"rate": 2e14})
    view = RunView(name="burn", config={"verb": "burn"}, records=(right, wrong))
    assert numbers_of(view)["Best rate"].value == 90e12


def test_steps_on_several_devices_are_the_rate_of_each() -> None:
    two = step("bf16", 5e13).replace(device_count=2)
    assert ", on each of 2 devices" in headline_of(view_of(two))


def test_a_claim_that_is_exceeded_many_times_is_no_share() -> None:
    """A data sheet of another card, or a guess: 49096 % is no number of anything."""
    view = view_of(claimed("bf16", 1e12), step("bf16", 491e12))
    assert headline_of(view) == "Trains gpt2-medium in bf16 at 491 TFLOPS, more than its claim."
    assert "%" not in numbers_of(view)["Training"].what


@pytest.mark.parametrize("rate", [0.0, -1e10])
def test_a_rate_that_is_not_above_zero_is_none(rate: float) -> None:
    (found,) = build_waterfalls(view_of(matmul("fp32", 4096, rate)))
    assert [level.value for level in found.levels[1:]] == [None]
    assert found.levels[1].note == "not above zero"
    assert "Best matmul" not in numbers_of(view_of(matmul("fp32", 4096, rate)))


# ---- properties

value = st.floats(1e9, 1e12).map(lambda number: float(f"{number:.6g}"))
flag = st.booleans()


@st.composite
def runs(draw: st.DrawFn) -> RunView:
    """A run of matmuls, layers, steps, streams and disks, noisy or not, on a GPU or the host.

    No two values are equal, so that each number tells its record.
    """
    is_gpu = draw(flag)
    dtypes = GPU_DTYPES if is_gpu else ("fp32", "bf16")
    of_dtype = st.sampled_from(dtypes)
    makers = st.one_of(
        st.builds(partial, st.just(matmul), of_dtype, st.sampled_from((128, 512, 2048, 8192))),
        st.builds(partial, st.just(step), st.sampled_from([one for one in dtypes if one != "fp8"])),
        st.builds(partial, st.just(layer), of_dtype, st.sampled_from((1, 4))),
        st.builds(partial, st.just(stream), st.sampled_from((1 << 20, 1 << 26))),
        st.builds(partial, st.just(disk), st.sampled_from(("read", "write", "flushed-write"))),
    )
    chosen = draw(st.lists(st.tuples(makers, flag), min_size=1, max_size=14))
    values = draw(st.lists(value, unique=True, min_size=len(chosen), max_size=len(chosen)))
    found: dict[tuple[object, ...], Record] = {}
    for (make, is_noisy), own in zip(chosen, values, strict=True):
        one = make(own)
        one = one if is_gpu or one.benchmark == "storage" else on_host(one)
        found[one.key] = noisy(one) if is_noisy else one
    claims = [claimed(dtype, 2e12, GPU if is_gpu else CPU) for dtype in dtypes]
    return view_of(*(claims if draw(flag) else []), *found.values())


def measured(view: RunView, benchmark: str) -> list[Record]:
    return [r for r in view.records if r.kind is Kind.MEASURED and r.benchmark == benchmark]


@settings(max_examples=60, deadline=None)
@given(runs())
def test_each_number_is_the_largest_of_its_valid_values(view: RunView) -> None:
    numbers, steps = numbers_of(view), measured(view, "training")
    products = measured(view, "matmul")
    if products:
        number = numbers["Best matmul"]
        dtype = number.what.split(",")[0]
        assert number.value == max(r.value or 0.0 for r in products if dtype_of(r.case) == dtype)
        if not steps:
            assert number.value == max(record.value or 0.0 for record in products)
    if steps:
        fastest = max(steps, key=lambda record: record.value or 0.0)
        assert numbers["Training"].value == fastest.value
        assert f" in {dtype_of(fastest.case)} at " in headline_of(view)
    if streams := measured(view, "vector"):
        assert numbers["Memory bandwidth"].value == max(record.value or 0.0 for record in streams)
    for number in numbers.values():
        (shown,) = [r for r in view.records if r.value == number.value and r.unit == number.unit][
            :1
        ]
        assert number.is_least == (bound_of(shown) == AT_LEAST)


@settings(max_examples=60, deadline=None)
@given(runs())
def test_no_share_of_a_measured_ceiling_is_above_one(view: RunView) -> None:
    for each in build_waterfalls(view):
        for level in each.levels[1:]:
            if level.gap is not None and level.ceiling not in (CLAIM, REFERENCE):
                assert level.gap.share <= 0.0
    said = re.findall(r"(\d+) % of (?:what|the layer|its matmul)", headline_of(view))
    assert all(int(share) <= 100 for share in said)


@settings(max_examples=60, deadline=None)
@given(runs())
def test_the_page_shows_no_share_of_a_matmul_above_one(view: RunView) -> None:
    for table in blocks_of(run_document([view]).blocks, doc.Table):
        if any("best matmul" in note for note in table.notes):
            smalls = [cell.small for _, cells in table.lines() for cell in cells]
            assert all(int(float(text.split()[0])) <= 100 for text in smalls if text)


@settings(max_examples=40, deadline=None)
@given(runs())
def test_no_two_tiles_show_one_number(view: RunView) -> None:
    numbers = key_numbers(view, build_waterfalls(view))
    assert len({(one.value, one.unit) for one in numbers}) == len(numbers)
    assert len({one.name for one in numbers}) == len(numbers)


@settings(max_examples=40, deadline=None)
@given(runs())
def test_every_words_of_a_disks_label_are_its_cases(view: RunView) -> None:
    for number in key_numbers(view, build_waterfalls(view)):
        if not number.name.startswith("Disk, "):
            continue
        (own,) = [r for r in measured(view, "storage") if r.value == number.value][:1]
        words = set(re.findall(r"\w+", case_text(own.benchmark, own.case).lower()))
        assert set(re.findall(r"\w+", number.name.lower())) - {"disk"} <= words


@settings(max_examples=40, deadline=None)
@given(runs())
def test_the_first_chart_belongs_to_the_headline(view: RunView) -> None:
    lead = headline_waterfall(build_waterfalls(view))
    if lead is None:
        return
    first = next(blocks_of(run_document([view]).blocks, doc.WaterfallBars))
    assert (first.title, first.subtitle) == (lead.quantity, lead.label)
    assert build_waterfalls(view)[0] == lead
    steps = measured(view, "training")
    if steps or measured(view, "matmul"):
        assert lead.dtype in headline_of(view)


@settings(max_examples=40, deadline=None)
@given(runs())
def test_what_is_exceeded_is_measured_again(view: RunView) -> None:
    """Whoever is exceeded by what it bounds is among the points to measure again."""
    again = {record.id for record in exceeded_points(view.records)}
    for each in build_waterfalls(view):
        of_name = {level.name: level.record for level in each.levels[1:]}
        for level in each.levels[1:]:
            if level.doubted:
                assert of_name[level.doubted] in again
    best = {}
    for record in measured(view, "matmul"):
        dtype = dtype_of(record.case)
        best[dtype] = max(best.get(dtype, 0.0), record.value or 0.0)
    for record in (*measured(view, "layer"), *measured(view, "training")):
        dtype = dtype_of(record.case)
        half = {"bf16", "fp16"}
        if (record.value or 0.0) > best.get(dtype, 1e30) and dtype not in half:
            assert {r.id for r in measured(view, "matmul") if dtype_of(r.case) == dtype} & again


# ---- the rule itself


@given(st.lists(st.tuples(value, flag), min_size=1))
def test_of_durations_the_smallest_upper_bound_is_the_best(
    times: Sequence[tuple[float, bool]],
) -> None:
    made = [
        point(
            "link",
            {"from": 0, "to": n},
            seconds,
            metric="time",
            unit="s",
            disturbed="x" if is_noisy else None,
        )
        for n, (seconds, is_noisy) in enumerate(times)
    ]
    best = best_record(made)
    assert best is not None
    assert best.value == min(seconds for seconds, _ in times)
    assert bound_of(best) == (AT_MOST if best.disturbed else "")


def test_a_clean_value_is_preferred_to_a_noisy_one_that_is_equal() -> None:
    one = matmul("bf16", 512, 1e12)
    assert best_record([noisy(one), one]) is one


@pytest.mark.parametrize("status", [Status.FAILED, Status.SKIPPED, Status.TIMEOUT])
def test_what_failed_is_no_best(status: Status) -> None:
    assert best_record([matmul("bf16", 512, 1e12).replace(status=status)]) is None


def test_a_noisy_disk_counts_with_its_slow_end() -> None:
    """A cache answers too fast: 2 GB/s by two workers that disagree are no bound."""
    wild = noisy(disk("read", 2e9)).replace(interval=(3e8, 4e9))
    clean = disk("read", 5e8).replace(case={**wild.case, "bytes": 1 << 20})
    assert best_record([wild, clean]) is clean
    assert bound_of(wild) == ABOUT
    assert value_text(wild) == "~ 2.00 GB/s"


def test_the_bound_of_a_share_follows_from_both() -> None:
    assert share_bound("", "") == ""
    assert share_bound(AT_LEAST, "") == AT_LEAST
    assert share_bound("", AT_LEAST) == AT_MOST
    assert share_bound(AT_LEAST, AT_LEAST) == ABOUT


def test_the_peak_that_a_reported_clock_gives_is_a_reference() -> None:
    """A processor at 105 % of it is no finding: it does not run at that clock."""
    claim = claimed("fp32", 332e9, CPU)
    text = markdown(view_of(claim, on_host(matmul("fp32", 2048, 350e9))))
    assert "105 % of its reference" in text
    assert "of its claim" not in text


def blocks_of(blocks: Sequence[doc.Block], kind: type[Any]) -> Iterator[Any]:
    """Every block of a kind, in the page's order."""
    for block in blocks:
        if isinstance(block, kind):
            yield block
        yield from blocks_of(getattr(block, "blocks", ()), kind)


def test_equal_numbers_read_alike() -> None:
    assert value_text(matmul("bf16", 512, 6e12)) == format_quantity(6e12, "FLOP/s") == "6.00 TFLOPS"
