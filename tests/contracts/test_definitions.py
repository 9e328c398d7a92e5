"""Every number that the program writes has its definition in docs/definitions.md."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from trainrig.benchmarks import copy as copy_spec
from trainrig.benchmarks import layer as layer_spec
from trainrig.benchmarks import matmul as matmul_spec
from trainrig.benchmarks import storage as storage_spec
from trainrig.benchmarks import vector as vector_spec
from trainrig.benchmarks.spec import Benchmark, benchmarks
from trainrig.machine.counters import HostConditions
from trainrig.machine.snapshot import FAULTY_REASONS, Gpu, Missing, PcieLink
from trainrig.measure import buffers, disk_activity, fio, layer, noise, timing
from trainrig.process.events import OTHER, PARTS
from trainrig.record import Kind
from trainrig.stats import AGREEMENT, FLAT, FLAT_GROWTH, Change

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "definitions.md").read_text()

SPECS = benchmarks()
NAMES = tuple(spec.name for spec in SPECS)


def section(title: str) -> str:
    """The text under a heading, up to the next one of its level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
    assert found is not None, f"docs/definitions.md has no section {title!r}"
    return found[1]


def named(text: str) -> set[str]:
    """Words in code marks."""
    return set(re.findall(r"`([^`\n]+)`", text))


@pytest.mark.parametrize("spec", SPECS, ids=NAMES)
def test_every_benchmark_and_every_field_of_its_cases_is_defined(spec: Benchmark) -> None:
    spec.check(spec.example)
    assert len(section(spec.name)) > 500
    assert set(spec.example) <= named(section(spec.name))


@pytest.mark.parametrize("spec", SPECS, ids=NAMES)
def test_every_metric_is_defined(spec: Benchmark) -> None:
    for metric in spec.metrics(spec.example):
        assert f"**{metric.name}**" in section(spec.name)
        rows = [line for line in TEXT.splitlines() if line.startswith(f"| `{spec.name}`")]
        assert "higher" in rows[0] or "lower" in rows[0]
        assert any(f"`{metric.name}`" in line and metric.unit in line for line in rows)


def test_every_result_of_a_step_is_defined() -> None:
    parts = {f"time.{part}" for part in (*PARTS, OTHER)}
    more = {"train_loss", "heldout_loss", "mfu", "mfu_of_matmul", "peak_memory"}
    assert parts | more <= named(section("training"))


def test_every_term_and_result_of_a_cost_is_defined() -> None:
    from trainrig.procure.cost_json import cost_dict
    from trainrig.procure.ownership import Terms, ask_costs

    found = cost_dict(ask_costs(Terms(buy=2e5, rent_per_hour=32.0), "USD"))
    results = {*found, *found["ways"]["rent"]} - {"currency", "ways", "terms", "parts"}
    written = named(section("Cost")) | set(re.findall(r"\*\*(\w+)\*\*", section("Cost")))
    ends = ("_interval", "_wanted")
    assert {one for one in results if not one.endswith(ends)} <= written
    assert {field.name for field in dataclasses.fields(Terms)} <= written


def test_layers_stand_there_with_their_numbers() -> None:
    text = " ".join(section("layer").split())
    parts = {name for part in layer_spec.PARTS for name in layer_spec.part_case(part, "", 1)}
    choices = {
        *layer_spec.LAYERS,
        *layer_spec.PARTS,
        *layer_spec.PASSES,
        *layer_spec.CODES,
        *layer_spec.ATTENTIONS,
    }
    assert parts | choices <= named(text)
    for dtype in layer_spec.DTYPES:
        assert re.search(rf"\b{dtype}\b", text), dtype
    allowed = [f"{layer._ROUNDINGS[dtype]:g}" for dtype in layer_spec.DTYPES]
    assert (
        f"{', '.join(allowed[:-1])} and {allowed[-1]} roundings ({', '.join(layer_spec.DTYPES)})"
        in text
    )
    assert f"more than {percent(FLAT)} above another" in text
    assert FLAT_GROWTH == 4


def test_every_choice_is_defined() -> None:
    assert {*vector_spec.OPS, *vector_spec.CACHES} <= named(section("vector"))
    memories = {memory for choices in copy_spec.MEMORIES.values() for memory in choices}
    assert {*copy_spec.DIRECTIONS, *memories} <= named(section("copy"))
    for dtype in matmul_spec.DTYPES:
        assert re.search(rf"\b{dtype}\b", section("matmul")), dtype
    for dtype in vector_spec.DTYPES:
        assert re.search(rf"\b{dtype}\b", section("vector")), dtype


def unknown(kind: type) -> dict[str, Missing]:
    return {name: Missing("") for name in kind.__dataclass_fields__}  # type: ignore[attr-defined]


def test_every_condition_is_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    monkeypatch.setattr(noise, "known", lambda values: seen.update(values) or {})
    own = noise.OwnThreads(main_ran=1.0, worst_wait=0.0)
    noise.describe_host(HostConditions(**unknown(HostConditions)), own)
    link = PcieLink(**unknown(PcieLink))
    noise.describe_gpu(Gpu.unknown(Missing(""), index=0, vendor="nvidia", link=link))
    assert len(seen) >= 13
    defined = named(section("Was the machine quiet?"))
    assert seen <= defined
    assert {"clock", "calls_per_sample", "threads", "t", "cpu_share", "utilization"} <= defined


def percent(share: float) -> str:
    return f"{share * 100:g} %"


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("a thread waited for a core", noise.MAX_THREAD_WAIT),
        ("the measuring thread ran less than", noise.MIN_MAIN_THREAD),
        ("CPU quota held it back", noise.MAX_QUOTA),
        ("the hypervisor took processors", noise.MAX_STEAL),
        ("other processes used of the GPU", noise.MAX_OTHER),
        ("other processes used processors", noise.MAX_OTHER),
        ("a thread of the worker waited for a core", noise.MAX_GPU_THREAD_WAIT),
    ],
)
def test_the_rules_stand_there_with_their_thresholds(words: str, value: float) -> None:
    lines = section("Was the machine quiet?").splitlines()
    (line,) = [line for line in lines if f"{words} |" in line]
    assert f"| {percent(value)}" in line


def test_faulty_clock_reasons_are_listed() -> None:
    for reason in FAULTY_REASONS:
        assert reason in section("Was the machine quiet?")


def test_the_loop_and_the_settle_rule_stand_there_with_their_numbers() -> None:
    text = " ".join(section("Time, and how it becomes a point").split())
    assert {"converged", "time", "samples"} <= named(text)
    assert f"at most {percent(timing.TARGET_HALF_WIDTH)} of the median" in text
    assert f"at least {timing._MIN_TIME:g} s" in text
    assert f"{timing._MAX_SAMPLES} samples" in text
    assert f"lie within {percent(AGREEMENT)} of their fastest" in text
    cold = " ".join(section("vector").split())
    assert "four times the last-level cache" in cold
    assert buffers.COLD_FACTOR == 4
    assert f"more than {buffers._MAX_SETS} sets" in cold


def test_storage_stands_there_with_its_numbers() -> None:
    text = " ".join(section("storage").split())
    cases = [
        storage_spec.storage_case(op, tool)
        for op in storage_spec.OPS
        for tool in storage_spec.TOOLS
    ]
    assert {name for case in cases for name in case} <= named(text)
    assert {*storage_spec.OPS, *storage_spec.TOOLS, "direct", "mapped", "loader"} <= named(text)
    for case in cases:
        for metric in storage_spec.BENCHMARK.metrics(case):
            assert f"**{metric.name}**" in text
            assert f"`{metric.name}`" in TEXT
            assert f"{metric.unit}" in TEXT
    rows = {line.split("|")[1].strip(" `"): line for line in TEXT.splitlines() if "| `" in line}
    for op in storage_spec.IO_OPS:
        assert f"| {storage_spec.DEPTHS[op]}, 1 |" in rows[op]
        assert {1 << 24: "16 MiB", 1 << 20: "1 MiB", 4096: "4 KiB"}[
            storage_spec.BLOCKS[op]
        ] in rows[op]
    assert (
        "(`storage`): there more than half of the quiet attempts must lie within 25 %"
        in " ".join(TEXT.split())
    )
    assert storage_spec.BENCHMARK.agreement == 0.25 and storage_spec.BENCHMARK.two_sided
    assert {"latency_p50_s", "latency_p99_s", "indicative", "mount", "filesystem"} <= named(text)
    assert "write_cache" in named(text)
    assert (storage_spec.BATCH, storage_spec.SEQ) == (8, 1024)
    assert fio.MIN_VERSION <= (3, 16)


def test_what_disturbs_a_disk_stands_there() -> None:
    text = section("Was the machine quiet?")
    assert f"others moved of the disk's bytes | {percent(disk_activity.MAX_OTHER_IO)}" in text
    assert (
        f"other processes used of the processors | {percent(disk_activity.MAX_OTHER_CPU)}" in text
    )
    assert {"other_read_rate", "other_write_rate"} <= named(text)


def test_kinds_of_records_and_calls_are_explained() -> None:
    text = section("Claims, expectations, published figures")
    for kind in (Kind.CLAIMED, Kind.PREDICTED, Kind.BASELINE):
        assert f"**{kind}**" in text
    for change in Change:
        assert str(change) in section("compare")


def test_every_benchmark_name_in_the_package_is_in_the_table() -> None:
    source = Path(noise.__file__).parents[1]
    names = {
        name
        for path in source.rglob("*.py")
        for name in re.findall(r'benchmark="(\w+)"', path.read_text())
    }
    table = {name for line in TEXT.splitlines() if line.startswith("| `") for name in named(line)}
    assert names | {"memory", "link", *NAMES} <= table
