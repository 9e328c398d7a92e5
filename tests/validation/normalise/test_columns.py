"""What tables leave out or spell in their own way: a stated default, and a wider interval."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
from validation.normalise.answers import predict_row
from validation.normalise.case import case_of
from validation.normalise.cells import UNSURE
from validation.normalise.columns import read_rows

ROW = {
    "chip": "A100 SXM4 80GB",
    "num_gpus": "8",
    "gpus_per_node": "8",
    "link": "nvlink",
    "framework": "PyTorch FSDP",
    "model": "Llama-2-7B",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "32",
    "ffn": "11008",
    "vocab": "32000",
    "seq": "4096",
    "global_batch": "32",
    "micro_batch": "2",
    "dp": "8",
    "tp": "1",
    "pp": "1",
    "zero_stage": "3",
    "grad_accum": "2",
    "precision": "bf16",
    "kernel_stack": "flash",
    "recompute": "none",
    "kind": "pretrain",
}


def row(**changes: str) -> dict[str, str]:
    return ROW | changes


def width(found: dict[str, Any]) -> float:
    low, high = found["interval"]["step_time_s"]
    return float(high / low)


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("bf16 (amp)", "bf16"),
        ("amp_bf16", "bf16"),
        ("bf16-mixed", "bf16"),
        ("torch.bfloat16", "bf16"),
        ("16-mixed", "fp16"),
        ("FP16", "fp16"),
        ("float16", "fp16"),
        ("mxfp8", "fp8"),
        ("fp8 (TE)", "fp8"),
        ("TF32", "tf32"),
        ("float32", "fp32"),
    ],
)
def test_a_precision_is_known_however_it_is_spelled(text: str, precision: str) -> None:
    case = case_of(row(precision=text))
    assert case.layout.precision.compute == precision and "precision" not in case.presumed
    assert case_of(row(precision="", dtype=text)).layout.precision.compute == precision


@pytest.mark.parametrize(
    ("text", "quantize"), [("nf4", "nf4"), ("int8", "int8"), ("bnb 4-bit bf16", "nf4")]
)
def test_weights_that_are_quantised_lie_beside_adapters(text: str, quantize: str) -> None:
    layout = case_of(row(precision=text, kind="lora")).layout
    assert (layout.lora.quantize, layout.lora.rank, layout.precision.compute) == (
        quantize,
        8,
        "bf16",
    )


@pytest.mark.parametrize(
    ("column", "words", "field", "meaning"),
    [
        ("kernel_stack", "flash, no torch.compile", "kernels", "flash"),
        ("kernel_stack", "torch.compile: off, SDPA", "kernels", "flash"),
        ("kernel_stack", "flash_attn=False", "kernels", "eager"),
        ("kernel_stack", "w/o flash attention", "kernels", "eager"),
        ("kernel_stack", "FA2, FusedAdam, no liger", "kernels", "flash"),
        ("kernel_stack", "flex attention", "kernels", "flash"),
        ("recompute", "gc", "recompute", "full"),
        ("recompute", "w/o checkpointing", "recompute", "none"),
        ("recompute", "nothing_saveable", "recompute", "full"),
        ("recompute", "layernorm, moe_act", "recompute", "selective"),
        ("recompute", "full, no offload", "recompute", "full"),
        ("precision", "bf16 (no fp8)", "precision", "bf16"),
        ("zero_stage", "SHARD_GRAD_OP", "zero", 2),
        ("zero_stage", "FSDP2", "zero", 3),
        ("zero_stage", "NO_SHARD", "zero", 0),
        ("offload", "w/o offload", "offload", "none"),
        ("seq", "4096 packed", "seq_len", 4096),
        ("seq", "2^11", "seq_len", 2048),
        ("precision", "no AMP", "precision", "fp32"),
        ("precision", "16-true", "precision", "fp16"),
        ("precision", "MXFP6", "precision", "fp8"),
    ],
)
def test_words_mean_what_they_say_and_not_what_they_deny(
    column: str, words: str, field: str, meaning: object
) -> None:
    found = case_of(row(**{"date": "2025-01", column: words})).layout
    assert found.get(field) == meaning


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": ""},
        {"precision": "mixed"},
        {"chip": "A100"},
        {"ffn": ""},
        {"heads": ""},
        {"zero_stage": ""},
        {"micro_batch": "", "grad_accum": ""},
    ],
)
def test_what_a_default_stands_for_widens_the_interval(changes: dict[str, str]) -> None:
    named = {"model": "our Llama"}  # what is known by its name lends what is blank
    found = predict_row(row(**named | changes))
    assert found["reason"] is None
    assert width(found) > 1.005 * width(predict_row(row(**named)))


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("H100 SXM", "H100 SXM5 80GB"),
        ("H100", "H100 SXM5 80GB"),
        ("RTX 4090 24GB", "RTX 4090"),
        ("GB200 (per GPU)", "GB200"),
        ("RTX PRO 6000", "RTX PRO 6000 Blackwell"),
    ],
)
def test_a_chip_is_known_by_what_tables_call_it(name: str, chip: str) -> None:
    assert case_of(row(chip=name, link="")).chip.name == chip
    assert case_of(row(chip="", hardware=chip, link="")).chip.name == chip


@pytest.mark.parametrize("name", ["RTX 3090 12GB", "RTX", "TPU", "A", "GTX 970M Laptop GPU"])
def test_no_chip_stands_for_another(name: str) -> None:
    assert "not in the catalog" in predict_row(row(chip=name, link=""))["reason"]


@pytest.mark.parametrize("blank", ["NaN", "nan", "None", "null", "N/A", "-", "  "])
def test_what_tables_write_for_nothing_is_nothing(blank: str) -> None:
    changes = dict.fromkeys(("kv_heads", "grad_accum", "vpp", "cp", "ep", "dp"), blank)
    assert predict_row(row(**changes)) == predict_row(row(**dict.fromkeys(changes, "")))
    assert predict_row(row(layers=blank, model=""))["reason"] == "layers: not stated"
    assert case_of(row(link="none", recompute="None")).presumed == ()


def test_fsdp_shards_weights_where_no_stage_is_stated() -> None:
    layout = case_of(row(zero_stage="")).layout
    assert (layout.sharding.zero, layout.scheme) == (3, "fsdp")
    small = {"model": "ours", "params_b": "", "layers": "4"}
    assert case_of(row(zero_stage="", framework="", **small)).layout.sharding.zero == 0


def test_sequence_parallel_without_tensor_parallel_is_nothing() -> None:
    assert predict_row(row(seq_parallel="True")) == predict_row(ROW)
    megatron = row(tp="2", dp="4", zero_stage="1", framework="Megatron-LM", grad_accum="4")
    assert case_of(megatron | {"seq_parallel": "True"}).layout.mesh.sequence_parallel == 1


def test_micro_batches_that_are_not_stated_fit_in_memory() -> None:
    case = case_of(row(batch_size="", grad_accum="", global_batch="2048"))
    found = predict_row(row(batch_size="", grad_accum="", global_batch="2048"))
    assert found["memory_bytes_per_gpu"] < case.rates.memory_bytes
    assert case.layout.batch.micro * case.layout.batch.grad_accum == 256
    pipeline = row(
        batch_size="",
        grad_accum="",
        global_batch="64",
        pp="8",
        dp="1",
        zero_stage="0",
        framework="Megatron-LM",
    )
    assert case_of(pipeline).layout.batch.grad_accum >= 32


@pytest.mark.parametrize(
    ("word", "link"), [("NVLink 4", "NVLink"), ("NVSwitch", "NVLink"), ("PCIe 4.0 x16", "PCIe")]
)
def test_a_link_is_known_however_it_is_spelled(word: str, link: str) -> None:
    assert case_of(row(link=word)).rates.provenance["collective"].startswith(link)


def test_nodes_that_are_not_stated_are_filled() -> None:
    case = case_of(row(num_gpus="12", dp="12", gpus_per_node="", global_batch="48"))
    assert case.layout.mesh.gpus_per_node == 6


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_a_table_is_read_as_programs_write_it(tmp_path: Path, between: str) -> None:
    path = tmp_path / "table.csv"
    lines = [between.join(ROW), between.join(ROW.values())]
    path.write_bytes("\r\n".join(lines).replace("Llama-2-7B", "Llama-2-7B \xd7").encode("latin-1"))
    (found,) = read_rows(path)
    assert predict_row(found) == predict_row(ROW)


def test_a_long_cell_costs_its_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    rows = [",".join(ROW), ",".join(row(layers="9" * 200_000).values()), ",".join(ROW.values())]
    path.write_text("\n".join(rows), encoding="utf-8")
    first, second = (predict_row(one) for one in read_rows(path))
    assert first["reason"] and second["reason"] is None


def test_memory_is_of_the_kind_that_the_row_states() -> None:
    allocated, reserved, device = (
        predict_row(row(memory_kind=kind)) for kind in ("allocated", "reserved", "device")
    )
    assert predict_row(row(memory_kind="torch.cuda.max_memory_allocated")) == allocated
    unnamed = predict_row(ROW)
    assert unnamed["memory_bytes_per_gpu"] == reserved["memory_bytes_per_gpu"], "between the two"
    low, high = unnamed["interval"]["memory_bytes_per_gpu"]
    assert low == allocated["interval"]["memory_bytes_per_gpu"][0]
    assert high == device["interval"]["memory_bytes_per_gpu"][1]
    assert allocated["memory_bytes_per_gpu"] < device["memory_bytes_per_gpu"]
    assert (
        reserved["interval"]["memory_bytes_per_gpu"]
        != allocated["interval"]["memory_bytes_per_gpu"]
    )


def test_a_loss_and_an_optimizer_are_known_by_their_words() -> None:
    def layout(**cells: str) -> Any:
        return case_of(row(**cells)).layout

    assert layout(framework="torchtune").kernels.loss == "chunked"
    assert layout(kernel_stack="Cut Cross-Entropy").kernels.loss == "fused"
    assert layout().kernels.loss == "auto"
    light = layout(optimizer="PagedAdamW8bit, in backward", global_batch="", grad_accum="1")
    assert (light.memory.optimizer, light.memory.optimizer_in_backward) == ("adamw-8bit-paged", 1)
    narrow = {
        layout(optimizer=f"ao {how} AdamW").memory.optimizer for how in ("8-bit", "fp8", "4-bit")
    }
    assert narrow == {"adamw-8bit"}


def test_a_case_knows_no_more_than_an_answer_where_a_row_came_from() -> None:
    named = row(source="Megatron-LM", group="megatron2021", notes="DeepSpeed, fp16", grade="C")
    assert case_of(named) == case_of(ROW)


@pytest.mark.parametrize(
    ("printed", "chip", "is_sure"),
    [
        ("8x A100-SXM4-80GB (AWS)", "A100 SXM4 80GB", True),
        ("4 x NVIDIA A100 80GB PCIe", "A100 PCIe 80GB", True),
        ("RTX 3090 Ti 24GB", "RTX 3090 Ti", True),
        ("TPU v5e-256", "TPU v5e", True),
        ("1x B200", "B200 SXM", True),
        ("p4d.24xlarge", "A100 SXM4 40GB", True),
        ("p5.48xlarge", "H100 SXM5 80GB", True),
        ("Azure ND96amsr_A100_v4", "A100 SXM4 80GB", True),
        ("DGX H100", "H100 SXM5 80GB", True),
        ("A100", "A100 SXM4 80GB", False),
        ("2x A100 40GB PCIe", "A100 PCIe 40GB", True),
        ("V100 (variant not stated)", "V100 SXM2 32GB", False),
        ("B200 (power limited)", "B200 SXM", False),
    ],
)
def test_a_blank_chip_is_read_from_what_is_printed_of_the_hardware(
    printed: str, chip: str, is_sure: bool
) -> None:
    case = case_of(row(chip="", hardware=printed))
    assert (case.chip.name, "chip" not in case.presumed) == (chip, is_sure)


def test_a_limit_in_watts_slows_products() -> None:
    plain, limited = (row(chip="", hardware="H100 SXM5" + text) for text in ("", ", 500W limit"))
    slower = predict_row(limited)["step_time_s"] / predict_row(plain)["step_time_s"]
    assert 1.02 < slower < 700 / 500


def test_no_run_prints_more_memory_than_its_card_has() -> None:
    """What was run was enough; that it is not by our count, the remark says."""
    ran = row(chip="H100", num_gpus="1", global_batch="", grad_accum="1", recompute="none")
    told = [predict_row(ran | {"micro_batch": str(size)}) for size in (1, 2, 4, 8, 16, 32, 64)]
    capacity = case_of(ran).rates.memory_bytes
    sizes = [one["memory_bytes_per_gpu"] for one in told]
    assert sizes == sorted(sizes) and 0.9 * capacity < sizes[-1] <= capacity
    unsure = predict_row(ran | {"micro_batch": "8", "precision": ""})["memory_bytes_per_gpu"]
    assert 0.5 * capacity < unsure < sizes[3], "less where less is known"
    own = row(framework="torchtitan", recompute="", num_gpus="8", zero_stage="")
    assert case_of(own).by_program == ("recompute", "zero_stage"), "which is known of it"
    assert "times the memory" in told[-1]["remark"] and told[0]["remark"] is None
    assert all(
        one["interval"]["memory_bytes_per_gpu"][0] <= size
        for one, size in zip(told, sizes, strict=True)
    )


def test_jax_takes_three_quarters_of_a_gpu_whatever_it_needs() -> None:
    small = row(chip="H100", framework="MaxText", layers="4", num_gpus="1", global_batch="1")
    capacity = case_of(small).rates.memory_bytes
    shown, allocated = (
        predict_row(small | {"memory_kind": kind})["memory_bytes_per_gpu"]
        for kind in ("nvidia-smi", "allocated")
    )
    assert shown == 0.75 * capacity > 2 * allocated
    slice_ = predict_row(small | {"chip": "TPU v5p", "memory_kind": "device"})
    assert slice_["memory_bytes_per_gpu"] < 0.5 * capacity


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("VRAM (nvtop)", "device"),
        ("GPU memory usage", "device"),
        ("torch.cuda.max_memory_reserved", "reserved"),
        ("mx.get_peak_memory", "allocated"),
        ("peak", ""),
    ],
)
def test_a_kind_of_memory_is_known_however_it_is_called(words: str, kind: str) -> None:
    assert case_of(row(memory_kind=words)).memory_kind == kind


def test_a_cell_that_is_read_twice_widens_the_interval_once() -> None:
    ranged = row(model="Llama-2-70B", kind="lora", seq="512-8192", micro_batch="1")
    presumed = case_of(ranged).presumed
    assert "seq" in presumed and len(presumed) == len(set(presumed))
    known = math.hypot(*(UNSURE[name] for name in presumed))
    assert case_of(ranged).spread == pytest.approx(known)


@pytest.mark.parametrize("column", ["chip", "framework", "recompute"])
def test_a_long_cell_takes_no_longer_than_others(column: str) -> None:
    """A pattern that tries all ways of dividing it would take minutes."""
    begin = time.process_time()
    for part in ("seq", "a100 ", "activation "):
        predict_row(row(kind="sft") | {column: "max_" + part * 2000 + "!"})
    assert time.process_time() - begin < 20.0


def test_spaces_in_a_cell_cost_no_time_and_change_nothing() -> None:
    started = time.process_time()
    padded = case_of(row(chip="", hardware="8x" + " " * 900 + "A100", seq="8" + " " * 900 + "k x"))
    assert time.process_time() - started < 20.0, "one more space is no further way to read it"
    assert padded.layout == case_of(row(chip="", hardware="8x A100", seq="8 k x")).layout
