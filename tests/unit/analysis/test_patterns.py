"""Explanations: each classic case as published yields its sentence, a near miss none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import pytest

import report_views as made
from report_views import claimed_memory, matmul_case, point
from reports import markdown
from trainrig.analysis.compare import compare_runs, to_dict
from trainrig.analysis.patterns import Pattern, find_patterns
from trainrig.catalog import find_chip
from trainrig.catalog.published import published_records
from trainrig.prediction.expected import gpu_claims
from trainrig.record import Record, RunView, Status
from trainrig.report.compare_report import comparison_document
from trainrig.report.render.markdown import to_markdown

OWNER = "the owner of two RTX 4090s"
QHDUAN = "qhduan"
MLI = "mli/transformers-benchmarks micro_bench.ipynb @3370b2b"
PAIR = "mli/transformers-benchmarks transformers.ipynb"


def published(device: str, source: str) -> list[Record]:
    """One person's figures of one card, as the package carries them, and what the card claims."""
    chip = find_chip(device)
    assert chip is not None
    return [
        *gpu_claims(chip, None),
        *(
            record.replace(device_index=0)
            for record in published_records()
            if record.device == device and (record.source or "").startswith(source)
        ),
    ]


def view_of(records: Iterable[Record]) -> RunView:
    return RunView(name="run", config={"origin": "published figures"}, records=tuple(records))


def text(records: Iterable[Record], name: str) -> list[Pattern]:
    return [pattern for pattern in find_patterns(view_of(records)) if pattern.id == name]


def only(records: Iterable[Record], name: str) -> str:
    (pattern,) = text(records, name)
    assert pattern.records
    return pattern.text


def changed(
    records: Iterable[Record], test: Callable[[Record], bool], factor: float
) -> list[Record]:
    """The records, those that pass the test times ``factor``."""
    found = list(records)
    assert any(test(record) for record in found)
    return [
        record.replace(value=record.value * factor) if test(record) and record.value else record
        for record in found
    ]


# ---- times that do not grow


def is_bert(record: Record, *batches: int) -> bool:
    case = {"layer": "BERT-large layer", "pass": "forward+backward", "seq_len": 128}
    return case.items() <= dict(record.case).items() and record.case.get("batch_size") in batches


def test_equal_times_from_batch_2_to_64_are_launch_bound() -> None:
    text = only(published("RTX 4090", OWNER), "launch-bound")
    assert text.startswith("RTX 4090, fp16 BERT-large layer, seq 128, ")
    assert (
        "forward + backward: 6.22 to 6.36 ms at every batch from 2 to 64. It is launch-bound"
        in text
    )


def test_the_same_card_on_a_faster_host_is_not() -> None:
    assert text(published("RTX 4090", QHDUAN), "launch-bound") == []


def test_times_that_grow_with_the_batch_are_not_launch_bound() -> None:
    """The middle of the row 30 % and more slower: no three neighbours are alike any more."""
    layers = [r for r in published("RTX 4090", OWNER) if is_bert(r, 2, 4, 8, 16, 32, 64, 128)]
    rising = [
        record.replace(value=(record.value or 0.0) / 1.3**step)
        for step, record in enumerate(sorted(layers, key=lambda r: int(str(r.case["batch_size"]))))
    ]
    assert text(layers, "launch-bound")
    assert text(rising, "launch-bound") == []


def test_disturbed_layers_are_no_row() -> None:
    busy = [
        r.replace(disturbed="busy") for r in published("RTX 4090", OWNER) if is_bert(r, 2, 4, 8, 16)
    ]
    assert text(busy, "launch-bound") == []


def test_a_processor_waits_for_no_launch() -> None:
    """On a host the same pattern is the framework's overhead."""
    layers = [r for r in published("RTX 4090", OWNER) if is_bert(r, 2, 4, 8, 16)]
    text = only([r.replace(device=made.CPU, device_index=None) for r in layers], "launch-bound")
    assert "framework's overhead" in text
    assert "GPU" not in text


# ---- in cache (b)


def is_scale(record: Record) -> bool:
    return record.benchmark == "vector" and record.case.get("num_elements") == 4194304


def test_a_vector_above_the_memory_lives_in_l2() -> None:
    text = only(published("RTX 4090", OWNER), "lives-in-cache")
    assert text.startswith("RTX 4090, scale fp32, 4 Mi elements, hot: 3.78 TB/s against 1.01 TB/s")
    assert "It lives in L2: 32.0 MiB of 72.0 MiB" in text


def test_a_vector_below_the_memory_is_the_memorys() -> None:
    assert text(published("RTX 3090 Ti", MLI), "lives-in-cache") == []


def test_a_vector_beyond_the_cache_does_not_live_in_it() -> None:
    """The same rate on 64 Mi elements: wrong somewhere, but not in L2."""
    claims = [r for r in published("RTX 4090", OWNER) if r.benchmark == "memory"]
    (vector,) = (r for r in published("RTX 4090", OWNER) if is_scale(r))
    large = vector.replace(case={**vector.case, "num_elements": 2**26})
    assert text([*claims, vector], "lives-in-cache")
    assert text([*claims, large], "lives-in-cache") == []


def test_a_hosts_last_cache_is_read_from_its_machine() -> None:
    case = {"op": "scale", "dtype": "fp32", "num_elements": 2**20, "cache": "hot"}
    vector = point("vector", case, 90e9, device=made.CPU, device_index=None)
    machine = made.machine(0)
    machine["cpu"]["caches"] = [
        {"name": "L2", "total_bytes": 2**20, "instance_bytes": 2**20},
        {"name": "L3", "total_bytes": 2**25, "instance_bytes": 2**25},
    ]
    view = RunView(name="r", records=(claimed_memory(40e9, made.CPU), vector), machine=machine)
    (pattern,) = find_patterns(view)
    assert "It lives in L3: 8.0 MiB of 32.0 MiB" in pattern.text
    assert find_patterns(dataclasses.replace(view, machine=made.machine(0))) == ()


# ---- above the data sheet (c)


def is_fast_product(record: Record) -> bool:
    return record.benchmark == "matmul" and record.case.get("m") == 16384


def test_174_against_165_is_the_boost_clock() -> None:
    text = only(published("RTX 4090", OWNER), "boost-clock")
    assert text.startswith(
        "RTX 4090, fp16 matmul: 174 TFLOPS against 165.2 TFLOPS claimed with fp32 accumulation "
        "(+5.3 %)."
    )
    assert "not an error" in text


def products(value: float, **conditions: float) -> list[Record]:
    claims = [r for r in published("RTX 4090", OWNER) if r.kind == "claimed"]
    case = matmul_case("fp16", 16384)
    return [*claims, point("matmul", case, value, conditions=conditions)]


@pytest.mark.parametrize(
    ("value", "clock", "told"),
    [
        (174e12, None, True),
        (174e12, 2.73e9, True),
        (174e12, 2.4e9, False),  # a clock that cannot have done it
        (166e12, None, False),  # at the claim
        (156e12, None, False),
        (260e12, None, False),  # no card boosts that far: another definition
    ],
)
def test_only_what_a_clock_can_do_is_a_clock(value: float, clock: float | None, told: bool) -> None:
    conditions = {"sm_clock_hz": clock} if clock else {}
    assert bool(text(products(value, **conditions), "boost-clock")) is told


def test_the_claim_with_fp16_accumulation_is_not_the_one() -> None:
    """174 of 330 is 53 %: against the wrong claim nothing would be above it."""
    twice = [
        r.replace(case={**r.case, "accumulate": "fp16"}) if r.case.get("dtype") == "fp16" else r
        for r in products(174e12)
        if r.kind == "claimed"
    ]
    assert text([*twice, products(174e12)[-1]], "boost-clock") == []


# ---- what GELU costs (d)


def is_gelu(record: Record) -> bool:
    return record.case.get("layer") == "dense+GELU"


@pytest.mark.parametrize(
    ("device", "source", "numbers"),
    [
        (
            "RTX 3090 Ti",
            MLI,
            "from 74.3 TFLOPS to 64.0 TFLOPS. It is memory-bound: its 128.0 MiB at 1.01 TB/s "
            "predict 64.9 TFLOPS, a loss of 9.35 TFLOPS where 10.3 TFLOPS were lost (10 % more",
        ),
        (
            "RTX 4090",
            OWNER,
            "from 161 TFLOPS to 126 TFLOPS. It is memory-bound: its 128.0 MiB at 911 GB/s "
            "predict 120 TFLOPS, a loss of 41.3 TFLOPS where 34.7 TFLOPS were lost (16 % less",
        ),
    ],
)
def test_gelus_cost_is_its_counted_bytes(device: str, source: str, numbers: str) -> None:
    assert numbers in only(published(device, source), "memory-bound")


@pytest.mark.parametrize("factor", [0.7, 1.15, 1.3])
def test_a_loss_of_another_size_is_not_the_bytes(factor: float) -> None:
    """Twice what the bytes explain, a third of it, or no loss at all."""
    records = changed(published("RTX 4090", OWNER), is_gelu, factor)
    assert text(records, "memory-bound") == []


# ---- no P2P (e)


def test_one_rate_with_and_without_p2p_is_no_p2p() -> None:
    text = only(published("RTX 4090", OWNER), "no-p2p")
    assert text.startswith(
        "Two RTX 4090: 22.5 GB/s from card to card with P2P on, 22.5 GB/s with P2P off. There is "
        "no P2P between them"
    )


def test_a_bridge_makes_a_difference() -> None:
    assert any(r.benchmark == "link" for r in published("RTX 3090 Ti", PAIR))
    assert text(published("RTX 3090 Ti", PAIR), "no-p2p") == []


@pytest.mark.parametrize(("factor", "told"), [(1.05, True), (1.3, False)])
def test_a_little_faster_is_p2p_too(factor: float, told: bool) -> None:
    def with_it(record: Record) -> bool:
        return record.benchmark == "link" and record.case.get("peer_access") is True

    records = changed(published("RTX 4090", OWNER), with_it, factor)
    assert bool(text(records, "no-p2p")) is told


def test_one_side_alone_says_nothing() -> None:
    pairs = [r for r in published("RTX 4090", OWNER) if r.benchmark == "link"]
    assert text(pairs, "no-p2p")
    for on in (True, False):
        assert text([r for r in pairs if r.case["peer_access"] is on], "no-p2p") == []
    failed = [
        r.replace(status=Status.FAILED, value=None) if r.case["peer_access"] else r for r in pairs
    ]
    assert text(failed, "no-p2p") == []


# ---- where they stand


def test_a_healthy_run_says_nothing_of_the_kind() -> None:
    """Its hot vectors do lie above the memory; that is said, and nothing else."""
    assert [pattern.id for pattern in find_patterns(made.gpu_view())] == ["lives-in-cache"]


def test_answers_stand_in_the_markdown() -> None:
    text = markdown(view_of(published("RTX 4090", OWNER)))
    assert "#### Explanations" in text
    assert "There is no P2P between them" in text


def test_compare_says_of_which_run() -> None:
    old, new = view_of(published("RTX 4090", OWNER)), view_of(published("RTX 4090", QHDUAN))
    found = to_dict(compare_runs(old, new))["patterns"]
    assert {(each["run"], each["id"]) for each in found} == {
        ("old", "launch-bound"),
        ("old", "boost-clock"),
        ("old", "no-p2p"),
        ("old", "lives-in-cache"),
        ("new", "lives-in-cache"),
        ("old", "memory-bound"),
        ("new", "memory-bound"),
    }
    same = to_dict(compare_runs(old, old))["patterns"]
    assert {each["run"] for each in same} == {"both"}
    assert "at every batch from 2 to 64" in to_markdown(comparison_document(compare_runs(old, new)))
