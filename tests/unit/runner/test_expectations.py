"""What experiments should take, foretold before they are trained, and what joins it later."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runner_fakes import NATIVE
from trainrig.analysis.machine_key import machine_key
from trainrig.analysis.prediction_error import entries_of
from trainrig.catalog.lookup import require_chip
from trainrig.errors import UsageError
from trainrig.prediction.expected import EARLIER_VALUE, NOISY_EARLIER_RUNS, Demands, expect
from trainrig.record import Finding, Kind, Outcome, Record, Severity, Status, Verdict
from trainrig.runner.expectations import (
    Grounds,
    demands_of,
    expectations,
    forecast,
    grounds_of,
    history_of,
)
from trainrig.runner.history import CALIBRATION, earlier_runs_of
from trainrig.runner.plan import Task, qualify_plan
from trainrig.runner.targets import Target
from trainrig.store import create_run, find_runs, read_run
from trainrig.train.config import Experiment, case_of
from trainrig.workload import find, parameters
from trainrig.workload.numerics import scheme_of

HOST = Target(
    torch_device="cpu",
    name="EPYC",
    index=None,
    memory_bytes=1 << 34,
    chip=None,
    arithmetic=NATIVE,
)
CARD = Target(
    torch_device="cuda:0",
    name="RTX 4090",
    index=0,
    memory_bytes=24 << 30,
    chip=require_chip("RTX 4090"),
)
OWN = Experiment.of(
    threads=1,
    model="gpt2-small-cpu",
    batch_size=4,
    seq_len=128,
    precision="fp32",
    device="cpu",
    name="own",
)


def product(flops: float = 2e11, dtype: str = "fp32", **more: Any) -> Record:
    case = {"dtype": dtype, "m": 1024, "k": 1024, "n": 1024, "cache": "hot"}
    return rate("matmul", case, "flop_rate", "FLOP/s", flops, **more)


def stream(bytes_: float = 2e10, **more: Any) -> Record:
    case = {"direction": "triad", "bytes": 1 << 28, "memory": "host", "cache": "cold"}
    return rate("copy", case, "byte_rate", "B/s", bytes_, **more)


def rate(benchmark: str, case: Any, metric: str, unit: str, value: float, **more: Any) -> Record:
    return Record(
        kind=Kind.MEASURED, benchmark=benchmark, case=case, metric=metric, unit=unit, value=value,
        **({"device": "EPYC"} | more),
    )  # fmt: skip


GROUNDS = Grounds(points=(product(), stream()), cores=2)


def predicted(
    own: Experiment, target: Target = HOST, grounds: Grounds = GROUNDS
) -> dict[str, Record]:
    return {one.metric: one for one in forecast(own, case_of(own, "text"), target, "env", grounds)}


def test_a_step_and_its_memory_are_predicted_from_what_was_measured_here() -> None:
    found = predicted(OWN)
    assert set(found) == {"time", "peak_memory", "flop_rate"}
    for one in found.values():
        assert one.kind is Kind.PREDICTED and one.value and one.interval and one.source
        assert one.interval[0] < one.value < one.interval[1]
        assert (one.device, one.device_count, one.confidence) == ("EPYC", 1, 0.8)
        assert one.band is None, "it judges nothing"
        assert "1/2 of it" in one.source
    faster = predicted(OWN, grounds=Grounds(points=(product(4e11), stream(4e10)), cores=2))
    assert faster["time"].value == pytest.approx(found["time"].value / 2, rel=0.05)
    assert faster["peak_memory"].value == found["peak_memory"].value


def test_a_rank_is_a_core_and_exchanges_in_the_open() -> None:
    alone, both = predicted(OWN)["time"], predicted(OWN.replace(nproc=2))["time"]
    assert alone.value < both.value, "the same samples on each rank, and a sum of gradients"
    halves = predicted(OWN.replace(nproc=2, batch_size=2))["time"]
    assert halves.value < both.value
    four = predicted(OWN.replace(nproc=4))["time"]
    assert four.value > 1.5 * both.value, "four ranks have half a core each"
    assert "gloo" in (both.source or "") and "gloo" not in (alone.source or "")
    sums = predicted(OWN.replace(nproc=2, grad_accum=4))["time"].value - 4 * alone.value
    assert 0 < sums < 2 * (both.value - alone.value), "exchanged once a step"


def test_nothing_hides_an_exchange_where_every_core_computes() -> None:
    """The gradients' bytes go through the loopback device, whatever is computed beside them."""
    alone, both = (predicted(OWN.replace(nproc=n, batch_size=64))["time"].value for n in (1, 2))
    least = 4 * parameters(find(OWN.model)).total / 4e8
    assert least < both - alone < 2 * least


def test_without_grounds_it_says_so() -> None:
    for own, grounds, words in (
        (OWN, Grounds(), "no measured product of matrices"),
        (OWN, Grounds(points=(product(),)), "no measured stream of bytes"),
        (OWN.replace(precision="bf16"), GROUNDS, "no rate of bf16 products"),
        (OWN, Grounds(points=(product(device="other"), stream(device="other"))), "no measured"),
    ):
        (missing,) = predicted(own, grounds=grounds).values()
        assert (missing.status, missing.value, missing.metric) == (Status.MISSING, None, "time")
        assert (missing.reason or "").startswith("no target known: ")
        assert words in (missing.reason or "")
        assert missing.value is None


def test_a_card_of_the_catalog_needs_no_measurement() -> None:
    own = OWN.replace(device="cuda", precision="bf16", model="gpt2-medium", seq_len=1024)
    one, two = (predicted(own.replace(nproc=n), CARD, Grounds()) for n in (1, 2))
    assert one["time"].value and "claimed" in (one["time"].source or "")
    assert two["time"].value > one["time"].value
    sharded = predicted(own.replace(nproc=2, zero=3), CARD, Grounds())
    assert sharded["peak_memory"].value < two["peak_memory"].value
    away = predicted(own.replace(nproc=2, zero=3, offload="host"), CARD, Grounds())
    assert away["time"].value > sharded["time"].value
    assert away["peak_memory"].value < sharded["peak_memory"].value


def test_the_newest_undisturbed_point_of_a_case_counts() -> None:
    points = (product(1e11), product(), product(4e9, disturbed="a neighbour"), stream())
    assert predicted(OWN, grounds=Grounds(points=points, cores=2)) != {}
    quiet = predicted(OWN, grounds=Grounds(points=points, cores=2))["time"].value
    assert quiet == predicted(OWN)["time"].value


def test_an_experiment_contains_the_layout_that_is_predicted() -> None:
    assert OWN.layout.scheme == "none"
    assert OWN.replace(nproc=2, zero=1).layout.scheme == "ddp"
    assert OWN.replace(nproc=2, zero=3).layout.scheme == "fsdp"
    assert OWN.replace(framework="huggingface").layout.autocasts
    assert scheme_of(OWN.replace(nproc=2, precision="bf16").layout) == "masters"
    assert OWN.replace(optimizer="adamw").layout.memory.optimizer == "adamw"
    assert OWN.replace(compile=True).layout.kernels.stack == "compiled"


def test_the_ledger_joins_what_was_written_first() -> None:
    own = OWN.replace(nproc=2)
    foretold_ = forecast(own, case_of(own, "text"), HOST, "env", GROUNDS)
    point = dataclasses.replace(
        foretold_[0], kind=Kind.MEASURED, value=0.5, interval=None, confidence=None, source=None,
        conditions={},
    )  # fmt: skip
    (entry,) = entries_of("run", "here", [*foretold_, point])
    assert entry.is_from_rates
    assert entry.error == pytest.approx(float(foretold_[0].value or 0) / 0.5 - 1.0)
    assert not entries_of("run", "here", [point, *foretold_]), "told afterwards is not foretold"


def test_a_correction_of_the_ledger_is_applied() -> None:
    plain = predicted(OWN)["time"]
    grounds = dataclasses.replace(GROUNDS, corrections={"EPYC training time": 1.25})
    corrected = predicted(OWN, grounds=grounds)["time"]
    assert corrected.value == pytest.approx(1.25 * plain.value)
    assert corrected.conditions["correction"] == 1.25


def test_grounds_are_this_hosts_and_of_runs_that_measured_rates(tmp_path: Path) -> None:
    for verb, host, flops in (
        ("qualify", "here", 1e11),
        ("train", "here", 2e11),
        ("bench", "there", 3e11),
        ("bench", "here", 4e11),
    ):
        with create_run(tmp_path, verb, {}) as run:
            run.write_machine({"host": {"hostname": host}})
            run.append(product(flops))
            run.append(rate("step", {"model": "m"}, "time", "s", 1.0))
    (tmp_path / "20990101T000000Z-here-bench-zzzzzz").mkdir()
    (tmp_path / CALIBRATION).write_text('{"schema": 1, "hosts": {"here": {"p": 1.1}}}')
    found = grounds_of(tmp_path, "here", 2)
    assert sorted(point.value or 0.0 for point in found.points) == [1e11, 4e11]
    assert found.corrections == {"p": 1.1}
    assert grounds_of(tmp_path / "none", "here", 0) == Grounds(cores=1)


def machine(uuid: str = "GPU-1", power: float = 450.0, **host: str) -> dict[str, Any]:
    gpu = {"uuid": uuid, "power_limit_w": power}
    return {"host": {"hostname": "vm", **host}, "cpu": {"model": "EPYC"}, "gpus": [gpu]}


def earlier_run(
    parent: Path, of: dict[str, Any], *records: Record, severity: Severity = "error"
) -> None:
    with create_run(parent, "qualify", {}) as run:
        run.write_machine(of)
        for record in records:
            run.append(record)
        finding = Finding(
            id="below-band", severity=severity, evidence="slow", fix="-", records=("faulty",)
        )
        run.write_verdict(Verdict(outcome=Outcome.FAIL, reason="slow", findings=(finding,)))


def test_history_is_of_this_machine_in_this_state(tmp_path: Path) -> None:
    own = product(1e11)
    earlier_run(tmp_path, machine(), own)
    earlier_run(tmp_path, machine("GPU-2"), own)  # another machine of the same name
    earlier_run(tmp_path, machine(power=300.0), own)
    renamed = machine()
    renamed["host"]["hostname"] = "a name drawn anew"
    earlier_run(tmp_path, renamed, own)
    earlier_run(tmp_path, {}, own)
    found = history_of(tmp_path, "", machine())
    assert [point.value for point in found] == [1e11, 1e11]
    assert len(history_of(tmp_path, "", machine(power=300.0))) == 1
    assert history_of(tmp_path, "", machine("GPU-3")) == ()
    other_software = {**machine(), "software": {"torch": "2.14.0"}}
    assert history_of(tmp_path, "", other_software) == ()
    beside = {**machine(), "software": {"packages": {"transformers": "5.0"}}}
    assert len(history_of(tmp_path, "", beside)) == 2, "nothing of ours loads it"


def test_what_was_noisy_or_found_faulty_is_no_model_for_the_next(tmp_path: Path) -> None:
    good, faulty = product(1e11), product(7e10, id="faulty")
    noisy = product(5e10, disturbed="a neighbour")
    earlier_run(tmp_path, machine(), good, faulty, noisy)
    found = history_of(tmp_path, "", machine())
    assert [point.value for point in found] == [1e11, 5e10], "that there was a run is known"
    assert expect(good, None, found, []).conditions[EARLIER_VALUE] == 1e11
    alone = expect(good, None, [noisy.replace(run="one"), noisy.replace(run="two")], [])
    assert (alone.status, alone.conditions[NOISY_EARLIER_RUNS]) == (Status.MISSING, 2)
    other = tmp_path / "warned"
    other.mkdir()
    earlier_run(other, machine(), good, faulty, severity="warning")
    assert len(history_of(other, "", machine())) == 2


def test_a_comparison_learns_from_runs_up_to_its_baseline(tmp_path: Path) -> None:
    for uuid in ("GPU-1", "GPU-2", "GPU-1", "GPU-1", "GPU-1"):
        earlier_run(tmp_path, machine(uuid), product(1e11))
    first, _, base, between, new = map(read_run, find_runs(tmp_path))
    assert [run.name for run in earlier_runs_of(new, base)] == [first.name, base.name]
    assert [run.name for run in earlier_runs_of(between, first)] == [first.name]


def test_a_machine_is_told_by_its_id_its_processor_and_its_gpus() -> None:
    bare = {"host": {"hostname": "vm"}, "cpu": {"model": "EPYC"}, "gpus": []}
    assert machine_key(bare) == "vm", "nothing else is known of it"
    assert machine_key(None) == machine_key({"gpus": {"missing": "x"}, "host": 3}) == ""
    with_id = {**bare, "host": {"hostname": "vm", "machine": "abc"}}
    keys = [
        machine_key(one)
        for one in (
            bare,
            with_id,
            {**with_id, "cpu": {"model": "Xeon"}},
            {**with_id, "gpus": [{"uuid": "GPU-1"}]},
            {**with_id, "gpus": [{"uuid": "GPU-2"}]},
        )
    ]
    assert len(set(keys)) == 5
    renamed = {**with_id, "host": {"hostname": "other", "machine": "abc"}}
    assert machine_key(renamed) == machine_key(with_id)


def tasks(*targets: Target) -> list[Task]:
    blocks = qualify_plan(targets, 240.0)
    return [task for block in blocks for task in block.tasks]


def floors(own: Sequence[Task], demands: Demands) -> dict[str, set[float]]:
    """The least that is demanded, by what the source calls it and the device."""
    found: dict[str, set[float]] = {}
    for one in expectations(own, (), (), (), "env", demands):
        if one.interval is not None:
            found.setdefault(f"{one.source} on {one.device}", set()).add(one.interval[0])
    return found


def test_demands_are_read_as_people_write_them() -> None:
    demands = demands_of(["bf16=600TFLOPS", "int8=1.2 POPS", "memory=3TB/s", "link=50GB/s"])
    assert demands.least == {"bf16": 6e14, "int8": 1.2e15, "memory": 3e12, "link": 50e9}
    words = "bf16,bf16=,bf16=600,bf16=600TB/s,int8=1TFLOPS,x=1TFLOPS,memory=0B/s"
    for wrong in words.split(","):
        with pytest.raises(UsageError):
            demands_of([wrong])


def test_what_is_demanded_of_a_machine_is_demanded_of_its_gpus() -> None:
    demands = demands_of(["fp32=1TFLOPS", "memory=100GB/s", "link=20GB/s"])
    assert floors(tasks(CARD, HOST), demands) == {
        "--min fp32 on RTX 4090": {1e12},
        "--min memory on RTX 4090": {1e11},
        "--min link on RTX 4090": {2e10},
    }
    assert set(floors(tasks(HOST), demands_of(["memory=9GB/s"]))) == {"--min memory on EPYC"}
    with pytest.raises(UsageError, match="--min link"):
        floors(tasks(HOST), demands_of(["link=20GB/s"]))


def test_a_baseline_is_a_run_of_the_same_devices(tmp_path: Path) -> None:
    planned = next(task for task in tasks(CARD) if task.spec.is_large(task.case))
    metric = planned.spec.metrics(planned.case)[0]
    own = rate(planned.benchmark, planned.case, metric.name, metric.unit, 1e14, device="RTX 4090")
    earlier_run(tmp_path, machine(), own, own.replace(id="b", disturbed="a neighbour", value=1e13))
    (path,) = find_runs(tmp_path)
    demands = demands_of(baseline=path)
    found = floors(tasks(CARD), demands)
    assert found.pop(f"the baseline {path.name}, n = 1 on RTX 4090") == {0.92e14}
    assert found == {}, "without claims nothing else is expected"
    with pytest.raises(UsageError, match="no usable point"):
        floors(tasks(HOST), demands)


def test_predicting_loads_no_torch() -> None:
    code = (
        "import sys; from trainrig.runner import expectations as f; "
        "from trainrig.train.config import Experiment; "
        "Experiment.of().predicted_layout; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
