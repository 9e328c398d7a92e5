"""Each format: what its samples are read as, in units, definitions and states."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainrig.errors import DataError, TrainrigError
from trainrig.importers import ImportHints, Reading, importers, read_file
from trainrig.machine.snapshot import Missing
from trainrig.record import Record, Status, from_json, to_json

SAMPLES = Path(__file__).parent / "samples"
EVERY = [(one.name, name) for one in importers() for name in one.tested_on]


def read(name: str, hints: ImportHints | None = None) -> Reading:
    return read_file(SAMPLES / name, None, hints)[0][1]


def one(records: Sequence[Record], metric: str, **case: object) -> Record:
    """The only record of a metric whose case has these fields."""
    found = [
        record
        for record in records
        if record.metric == metric
        and all(record.case.get(name) == value for name, value in case.items())
    ]
    assert len(found) == 1, [(record.metric, record.case) for record in found]
    return found[0]


@pytest.mark.parametrize(("tool", "name"), EVERY)
def test_it_is_recognised_and_every_record_is_marked_and_can_be_stored(
    tool: str, name: str
) -> None:
    ((found, reading),) = read_file(SAMPLES / name)
    assert found == tool
    for record in reading.records:
        assert from_json(to_json(record)) == record
        assert (record.conditions["tool"], record.conditions["file"]) == (tool, name)
        assert record.conditions.get("tool_version") == reading.version
        assert record.source is not None and record.source.startswith(tool)
        assert (record.value is None) == (record.status is not Status.OK)
        assert record.reason or record.status is Status.OK


def test_a_packed_file_is_read_as_the_plain_one(tmp_path: Path) -> None:
    (tmp_path / "torch-trace.json.gz").write_bytes(
        gzip.compress((SAMPLES / "torch-trace.json").read_bytes())
    )
    values = [
        [record.value for record in read_file(path)[0][1].records]
        for path in (tmp_path / "torch-trace.json.gz", SAMPLES / "torch-trace.json")
    ]
    assert values[0] == values[1]


# ---- collectives and links


@pytest.mark.parametrize("name", ["nccl-all-reduce-8xa100.txt", "nccl-all-reduce.json"])
def test_nccl_tests(name: str) -> None:
    records = read(name).records
    case = {"collective": "all_reduce", "ranks": 8, "nodes": 1, "bytes": 67108864}
    rate = one(records, "bus_rate", **case, in_place=None)
    assert rate.case == case, "the case of published collectives, which it stands beside"
    assert (rate.device, rate.device_count) == ("A100 SXM4 80GB", 8)
    assert rate.value == pytest.approx(67108864 / 640e-6 * 1.75, rel=1e-3)
    assert one(records, "time", **case, in_place=None).value == pytest.approx(640e-6)
    assert one(records, "alg_rate", **case, in_place=True).value == pytest.approx(
        67108864 / 646.4e-6, rel=1e-3
    )


def test_wrong_values_are_a_wrong_answer_however_fast() -> None:
    records = read("nccl-all-reduce-wrong.txt").records
    wrong = [record for record in records if record.is_wrong_answer]
    assert {record.case.get("bytes") for record in wrong} == {67108864, 1073741824, None}
    assert not any(record.case.get("in_place") for record in wrong)
    assert "1000 wrong values" in str([record.reason for record in wrong])


def test_nvbandwidth() -> None:
    records = read("nvbandwidth-4x5090.json").records
    there = [record for record in records if record.case.get("direction") == "h2d"]
    assert [(r.device, r.device_index, r.value) for r in there] == [
        ("RTX 5090", 0, 56.38e9),
        ("RTX 5090", 1, 56.37e9),
    ]
    latency = one(records, "time", test="host_device_latency_sm")
    assert latency.value == pytest.approx(712.5e-9)
    waived = one(records, "byte_rate", test="device_to_device_memcpy_read_ce")
    assert waived.status is Status.SKIPPED
    text = read("nvbandwidth-gh200.txt").records
    assert one(text, "byte_rate", direction="h2d").value == pytest.approx(370.1e9)


def test_bandwidth_test_and_its_shmoo_mode() -> None:
    quick = read("bandwidthTest-quick.txt").records
    rates = {str(record.case["direction"]): record.value for record in quick}
    assert rates == {"h2d": 25.1e9, "d2h": 6.6e9, "d2d": 1890e9}
    assert {record.case["memory"] for record in quick} == {"pinned", "device"}
    sizes = [record.case["bytes"] for record in read("bandwidthTest-shmoo.txt").records]
    assert sizes == [1000, 1000000, 32000000, 67186688]


def test_a_kernel_log_is_for_the_doctor(tmp_path: Path) -> None:
    file = tmp_path / "my dmesg.txt"
    file.write_text("[    0.000000] Linux version 6.8.0-47-generic\n[    1.234567] pci 0000:01\n")
    with pytest.raises(DataError) as caught:
        read_file(file)
    assert caught.value.hint is not None
    assert f"trainrig doctor '{file}'" in caught.value.hint


def test_a_table_without_its_title_is_not_of_the_title_before(tmp_path: Path) -> None:
    samples = Path(__file__).parent / "samples"
    quick = (samples / "bandwidthTest-quick.txt").read_text()
    file = tmp_path / "cut.txt"
    file.write_text(quick.replace(" Device to Device Bandwidth, 1 Device(s)\n", ""))
    ((_, reading),) = read_file(file)
    rates = {str(record.case["direction"]): record.value for record in reading.records}
    assert rates == {"h2d": 25.1e9, "d2h": 6.6e9}
    assert "rows below no heading" in " ".join(reading.notes)
    file.write_text(quick.replace(" PINNED Memory Transfers\n", ""))
    ((_, reading),) = read_file(file)
    assert {record.case.get("memory") for record in reading.records} == {None, "device"}
    pairs = (samples / "p2p-2x4090.txt").read_text()
    file.write_text(pairs.replace("Bidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n", ""))
    ((_, reading),) = read_file(file)
    one_way = [r.value for r in reading.records if r.case.get("ways") == 1 and "from" in r.case]
    assert sorted(value / 1e9 for value in one_way if value) == [21.9, 22.4, 22.5, 22.5]


def test_bandwidth_test_s_former_megabytes_are_of_1000_times_1024_bytes(tmp_path: Path) -> None:
    file = tmp_path / "old.txt"
    row = "bandwidthTest-H2D-Pinned, Bandwidth = 10000.0 MB/s, Time = 0.0031 s, "
    file.write_text(f"{row}Size = 33554432 bytes, NumDevsUsed = 1\nResult = PASS\n")
    (record,) = read_file(file)[0][1].records
    assert record.value == pytest.approx(10000.0 * 1000.0 * 1024.0)


def test_deepspeed_s_whole_steps_come_before_its_micro_batches(tmp_path: Path) -> None:
    file = tmp_path / "ds.log"
    speed = "global_step=10, RunningAvgSamplesPerSec=8.0, CurrSamplesPerSec=8.0, "
    file.write_text(
        "time (ms) | fwd_microstep: 10.0 | bwd_microstep: 20.0 | step_microstep: 5.0\n"
        "time (ms) | fwd_microstep: 10.0 | bwd_microstep: 20.0 | step_microstep: 5.0\n"
        "time (ms) | fwd: 20.0 | bwd: 40.0 | step: 10.0\n"
        f"{speed}MemAllocated=1.0GB, MaxMemAllocated=2.0GB\n"
    )
    records = read_file(file)[0][1].records
    assert one(records, "time.forward").value == pytest.approx(0.02)
    assert one(records, "time.backward").value == pytest.approx(0.04)


def test_what_is_no_file_of_a_tool_has_a_hint(tmp_path: Path) -> None:
    (tmp_path / "empty.log").touch()
    for path, word in ((tmp_path / "empty.log", "is empty"), (tmp_path, "Is a directory")):
        with pytest.raises(DataError, match=word) as caught:
            read_file(path)
        assert "docs/import.md" in (caught.value.hint or "")


def test_a_pipe_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainrig.importers.file.MOST_PIPED", 1 << 12)
    with pytest.raises(DataError, match="more than"):
        read_file(Path("/dev/zero"))


def test_a_trace_that_unpacks_to_one_endless_value_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainrig.importers.torch_trace._MOST_WITHOUT_EVENT", 1 << 20)
    file = tmp_path / "trace.json.gz"
    file.write_bytes(gzip.compress(b'{"traceEvents": ["' + b"a" * (1 << 23) + b'"]}'))
    with pytest.raises(DataError, match="without an event"):
        read_file(file)


def test_pairs_of_gpus_stand_beside_the_published_ones() -> None:
    from trainrig.catalog.published import published_for

    records = read("p2p-2x4090.txt").records
    pair = {"direction": "p2p", "from": 0, "to": 1}
    rate = one(records, "byte_rate", **pair, peer_access=True, ways=1)
    assert (rate.value, rate.conditions["can_access"]) == (pytest.approx(22.4e9), False)
    assert any(rate.key == published.key for published in published_for("link", "RTX 4090"))
    assert one(records, "time", **pair, peer_access=False, clock="gpu").value == pytest.approx(
        10.2e-6
    )
    within = one(records, "byte_rate", direction="d2d", gpu=1, peer_access=False, ways=1)
    assert (within.value, within.device_count) == (pytest.approx(920.7e9), 1)


# ---- health


def test_a_skip_is_no_pass_and_an_allocation_error_is_a_failure() -> None:
    skipped = read("dcgm-diag-skip.json").records
    states = {(r.case["test"], r.device_index): r.status for r in skipped}
    assert states["memory", 0] is Status.SKIPPED
    assert states["software", 1] is Status.OK
    failed = {
        (r.case["test"], r.device_index): r for r in read("dcgm-diag-allocation.json").records
    }
    assert failed["memory", 0].status is Status.OK
    assert failed["memory", 1].status is Status.FAILED, "it passed in its own words"
    assert "could not allocate" in str(failed["memory", 1].reason)
    assert "3 miscompares" in str(failed["diagnostic", 1].reason)
    older = read("dcgm-diag-pass.json").records
    assert [r.device_index for r in older] == [0, 1, 0, 1]
    assert {r.status for r in older} == {Status.OK}


def test_gpu_burn_is_judged_by_errors_and_verdicts_and_not_by_its_exit_code() -> None:
    good, faulty, cut = (
        read(f"gpu-burn-{name}.txt").records for name in ("2x-ok", "faulty", "cut-off")
    )
    assert [r.value for r in good if r.benchmark == "burn"] == [58000e9, 57100e9]
    assert [r.status for r in good if r.benchmark == "diagnostic"] == [Status.OK, Status.OK]
    (bad,) = [r for r in faulty if r.status is not Status.OK]
    assert (bad.device_index, bad.is_wrong_answer) == (1, True)
    assert "41 errors" in str(bad.reason) and "FAULTY" in str(bad.reason)
    undone = [r for r in cut if r.benchmark == "diagnostic"]
    assert {r.status for r in undone} == {Status.MISSING}


def test_gpu_fryer() -> None:
    records = read("gpu-fryer-unhealthy.txt").records
    rates = [r for r in records if r.metric == "flop_rate"]
    assert [r.value for r in rates] == [681200e9, 527400e9]
    assert rates[1].conditions["throttle_reasons"] == "hw_thermal_slowdown"
    assert rates[0].case["dtype"] == "bf16"
    states = [r.status for r in records if r.benchmark == "diagnostic"]
    assert states == [Status.OK, Status.FAILED]


def test_nvidia_smi_is_read_by_the_reader_of_nvml() -> None:
    reading = read("nvidia-smi-q-ecc.txt")
    good, bad = reading.gpus
    assert (good.name, good.ecc.uncorrected_aggregate) == ("NVIDIA A100-SXM4-40GB", 0)
    assert (bad.ecc.uncorrected_aggregate, bad.ecc.remap_pending, bad.link.width) == (5, True, 8)
    assert (bad.power.limit_w, bad.power.limit_default_w) == (300.0, 400.0)
    assert isinstance(bad.num_cores, Missing)
    assert one(reading.records[7:], "ecc_uncorrected").value == 5.0


def test_nvidia_smi_s_other_forms_are_read_as_its_list() -> None:
    table = read("nvidia-smi-table.txt")
    assert [gpu.power.draw_w for gpu in table.gpus] == [61.0, 312.0]
    assert [gpu.ecc.uncorrected_volatile for gpu in table.gpus] == [0, 2]
    assert {gpu.memory.total_bytes for gpu in table.gpus} == {81920 << 20}
    rows = read("nvidia-smi-query.csv")
    (power,) = [r for r in rows.records if r.metric == "power"]
    assert (power.value, power.samples) == (305.25, (300.25, 310.25)), "GPU 1 says [N/A]"
    assert [gpu.ecc.uncorrected_aggregate for gpu in rows.gpus] == [0, 3]
    (gpu,) = read("nvidia-smi-q.xml").gpus
    assert (gpu.power.limit_w, gpu.power.limit_default_w) == (300.0, 400.0)
    assert (gpu.ecc.uncorrected_aggregate, gpu.ecc.remap_pending, gpu.link.width) == (2, True, 8)
    assert gpu.clocks.throttle_reasons == ("hw_slowdown",)


def test_a_name_that_the_table_cuts_off_is_not_known(tmp_path: Path) -> None:
    text = (SAMPLES / "nvidia-smi-table.txt").read_text()
    (tmp_path / "smi.txt").write_text(
        text.replace("NVIDIA A100-SXM4-80GB     ", "NVIDIA GeForce RTX 2080 ...")
    )
    ((_, reading),) = read_file(tmp_path / "smi.txt")
    assert all(isinstance(gpu.name, Missing) for gpu in reading.gpus)
    assert "cuts its name off" in " ".join(reading.notes)


TRAININGS = [
    ("neox.txt", {"time": 3.6367, "sample_rate": 8.799, "peak_memory": 60.25 * 2**30}),
    ("neox.txt", {"train_loss": 9.118665, "printed_flop_rate": 102.9e12}),
    ("neox.txt", {"time.communication": 0.1626}),
    ("deepspeed-0.7.txt", {"sample_rate": 27.5, "peak_memory": 8.5 * 2**30}),
    ("hf-tqdm.txt", {"train_loss": 2.25}),
    ("llama-factory.jsonl", {"token_rate": 4144.0, "train_loss": 1.9}),
    ("nanogpt.txt", {"time": 0.252, "token_rate": 491520 / 0.252, "train_loss": 8.0}),
    ("modded-nanogpt.txt", {"time": 0.092, "train_loss": 9.9}),
    ("nanochat.txt", {"time": 0.452, "train_loss": 10.0}),
    ("llm-c.txt", {"time": 3.01, "token_rate": 174500.0}),
    ("torchtitan.txt", {"token_rate_per_gpu": 6543.0, "peak_memory": 50.25 * 2**30}),
    ("torchtitan.txt", {"printed_flop_rate": 345.12e12}),
    ("nemo.txt", {"time": 8.0, "sample_rate": 512 / 8.0, "train_loss": 10.7}),
]
"""Log of a training: what is read of it."""


@pytest.mark.parametrize(("name", "expected"), TRAININGS)
def test_logs_of_trainings(name: str, expected: dict[str, float]) -> None:
    records = read(name).records
    for metric, value in expected.items():
        assert one(records, metric).value == pytest.approx(value), metric
    assert {record.device_count for record in records} == {None}, "no log says of how many GPUs"


def test_steps_are_those_that_the_log_says() -> None:
    assert [row["step"] for row in read("hf-tqdm.txt").steps] == [10, 20]
    assert [row["step"] for row in read("deepspeed-0.7.txt").steps] == [30, 40]
    assert not any("step" in row for row in read("hf-three-folds.txt").steps)


def test_each_training_of_a_file_has_its_own_records() -> None:
    rates = [r.value for r in read("hf-three-folds.txt").records if r.metric == "sample_rate"]
    assert rates == [50.2, 50.0, 49.8]


def test_topology() -> None:
    eight = read("topo-8xa100.txt")
    assert {link.path for link in eight.links} == {"NV12"}
    assert len(eight.links) == 28
    (link,) = read("topo-2x4090.txt").links
    assert link.path == "SYS"


# ---- arithmetic, disks, processors


def test_mamf_finder_names_what_its_rate_is_of() -> None:
    mean = one(read("mamf-finder-h100.txt").records, "flop_rate", statistic="mean")
    assert mean.value == pytest.approx(756.1e12)
    sizes = {axis: mean.case[axis] for axis in "mnk"}
    assert sizes == {"m": 8192, "n": 12288, "k": 16384}, "printed M × N × K"
    assert (mean.case["dtype"], mean.device) == ("bf16", "H100 SXM5 80GB")
    sustained = one(read("mamf-finder-msmf.txt").records, "flop_rate", statistic="msmf")
    assert sustained.case["sustained"] is True


def test_fio() -> None:
    records = read("fio-randrw.json").records
    rate = one(records, "byte_rate", op="randread")
    assert rate.value == pytest.approx(10463010816 / 30.0)
    assert {key: rate.case[key] for key in ("block", "depth", "jobs", "io", "mixed")} == {
        "block": 4096,
        "depth": 64,
        "jobs": 4,
        "io": "direct",
        "mixed": True,
    }
    assert rate.conditions["latency_p99_s"] == pytest.approx(2.2e-3)
    assert one(records, "op_rate", op="randwrite").value == pytest.approx(2552297 / 30.0)


def test_stress_ng() -> None:
    rate = one(read("stress-ng-cpu-vm.yaml").records, "bogo_op_rate", stressor="vm")
    assert rate.value == pytest.approx(106785.171174)
    assert rate.case["version"] == "0.15.06", "bogus operations of two versions never meet"


# ---- trainings


def test_the_classic_log_is_ten_teraflops_by_our_formula() -> None:
    from trainrig.workload import find, model_flops

    records = read("hf-bert-large-4090.txt").records
    rate = one(records, "flop_rate")
    assert rate.case["model"] == "bert-large"
    assert (rate.case["precision"], rate.case["seq_len"], rate.case["batch_size"]) == (
        "fp32",
        512,
        8,
    )
    assert rate.value is not None
    assert round(rate.value / 1e12, 1) == 10.0
    # Within what 9.0, printed with one digit, stands for.
    per_sample = model_flops(find("bert-large"), 1, 512)
    assert 8.95 * per_sample <= rate.value <= 9.05 * per_sample
    assert one(records, "peak_memory").value == 20.9e9


def test_a_log_without_a_name_is_inferred_where_one_model_alone_fits(tmp_path: Path) -> None:
    lines = (SAMPLES / "hf-bert-large-4090.txt").read_text().splitlines(keepends=True)[1:]
    (tmp_path / "bare.txt").write_text("".join(lines))
    rate = one(read_file(tmp_path / "bare.txt")[0][1].records, "flop_rate")
    assert (rate.case["model"], rate.case["seq_len"]) == ("bert-large", 512)
    assert "names no model" in str(rate.conditions["inferred"])
    # Half of the TFLOPS at the same speed fits no model that is known: it is not guessed.
    (tmp_path / "bare.txt").write_text("".join(lines).replace("10.0", "0.10"))
    printed = [r.metric for r in read_file(tmp_path / "bare.txt")[0][1].records]
    assert "flop_rate" not in printed and "printed_flop_rate" in printed


def test_what_the_user_states_makes_up_for_the_log() -> None:
    bare = one(read("hf-trainer-state.json").records, "flop_rate")
    assert (bare.status, "--model" in str(bare.reason)) == (Status.MISSING, True)
    stated = {"model": "gpt2", "seq_len": 1024, "precision": "bf16", "device": "RTX-4090"}
    uncounted = one(read("hf-trainer-state.json", ImportHints(**stated)).records, "flop_rate")
    assert (uncounted.status, uncounted.device_count) == (Status.MISSING, None)
    assert "of how many GPUs" in str(uncounted.reason)
    hints = ImportHints(**stated, num_gpus=1)
    rate = one(read("hf-trainer-state.json", hints).records, "flop_rate")
    assert (rate.status, rate.device) == (Status.OK, "RTX 4090")


def test_ranks_that_print_the_same_end_are_one_training() -> None:
    reading = read("hf-trainer-16-ranks.txt")
    assert one(reading.records, "sample_rate").value == 3.663
    assert [row["loss"] for row in reading.steps if "loss" in row] == [2.51]


def test_megatron_timers() -> None:
    records = read("megatron-timers.txt").records
    assert one(records, "time").value == pytest.approx(128.75, rel=1e-3), "behind the first steps"
    assert one(records, "sample_rate").value == pytest.approx(1024 / 128.75, rel=1e-3)
    assert one(records, "time.forward").value == pytest.approx(32.05416)
    assert one(records, "time.communication").value == pytest.approx(0.02606 + 4.18182)
    newer = read("megatron-new-format.txt").records
    assert one(newer, "time.backward").value == pytest.approx(2.5204), "the slowest rank's"


def test_timers_that_read_zero_are_missing_and_not_zero() -> None:
    records = read("megatron-zero-timers.txt").records
    assert {r.metric for r in records} == {
        "time.forward_backward",
        "time.communication",
        "time.optimizer",
    }
    assert {(r.status, r.value) for r in records} == {(Status.MISSING, None)}
    absent = one(read("deepspeed-sft.txt").records, "time.forward")
    assert (absent.status, absent.reason) == (Status.MISSING, "the log has no timer of it")


def test_deepspeed() -> None:
    records = read("deepspeed-sft.txt").records
    assert one(records, "sample_rate").value == pytest.approx(172.381)
    assert one(records, "peak_memory").value == pytest.approx(22.95 * 2**30)


def test_a_trace_s_shares_unite_streams() -> None:
    """Of each 1000 µs: kernels 0-400, a collective 300-500, a copy 900-1000; the rest is idle."""
    records = read("torch-trace.json").records
    shares = {record.metric: record.value for record in records}
    assert shares["kernel_share"] == pytest.approx(0.4)
    assert shares["communication_share"] == pytest.approx(0.2)
    assert shares["exposed_communication_share"] == pytest.approx(0.1)
    assert shares["overlap_share"] == pytest.approx(0.5)
    assert shares["copy_share"] == pytest.approx(0.1)
    assert shares["idle_share"] == pytest.approx(0.4)
    assert shares["time"] == pytest.approx(4e-3)
    assert shares["step_time"] == pytest.approx(1e-3)


def test_milabench() -> None:
    rate = one(read("milabench-rate.jsonl").records, "item_rate")
    assert (rate.value, rate.device) == (861.0, "A100 SXM4 80GB"), "without the first one"
    (failed,) = read("milabench-error.jsonl").records
    assert failed.reason == "ModuleNotFoundError: No module named 'datasets' (return code 1)"


# ---- captured outputs of real machines, where they lie beside the checkout


def test_captured_outputs_are_read_or_refused_with_their_line(captures: Path) -> None:
    tools, refused, machines = set(), [], set()
    for path in sorted(captures.rglob("*")):
        if path.is_file():
            try:
                tools.add(read_file(path)[0][0])
            except TrainrigError as error:
                if "holds no results" in error.message and "trainrig doctor" in str(error.hint):
                    machines.add(path.parent.name)
                elif not re.search("not a file of a tool|: the log of a ", error.message):
                    refused.append(error.message)
    without = {"gpu-fryer", "mamf-finder", "torch-profiler", "nanogpt", "nanochat", "llm.c"}
    without |= {"llama-factory", "torchtitan", "nemo", "nvidia-smi-p2p", "amd-smi"}
    without |= {"dcgm-text", "fio-text"}
    assert tools == {each.name for each in importers()} - without
    assert [message.partition(":")[0] for message in refused] == ["diag_malformed.json"]
    assert machines >= {"kernel", "disk", "dmidecode", "lsblk", "lscpu", "lspci", "memory"}
    assert refused[0].startswith("diag_malformed.json:3: ")


def test_captured_collectives_keep_their_printed_rates(captures: Path) -> None:
    folder = captures / "nccl-tests"
    ((_, old),) = read_file(folder / "allreduce_8xa100_old_format.txt")
    rate = one(old.records, "bus_rate", bytes=8589934592, in_place=None)
    assert (rate.value, rate.device) == (pytest.approx(235.26e9), "A100 SXM4 40GB")
    ((_, two),) = read_file(folder / "allreduce_2x8_h100_a3mega.txt")
    assert {(r.case["ranks"], r.case["nodes"]) for r in two.records} == {(16, 2)}


def test_a_trace_of_a_processor_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cpu.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    with pytest.raises(DataError, match="no GPU kernel in it"):
        read_file(tmp_path / "cpu.json")
