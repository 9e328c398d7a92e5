"""Rows as strangers write them: odd spellings, blanks and parallel layouts are all answered."""

from __future__ import annotations

import math
import random
import time

import pytest
from validation.normalise.answers import predict_row, predict_rows
from validation.normalise.case import case_of
from validation.normalise.cells import Cells
from validation.normalise.row_errors import measured_time

from trainrig.errors import DataError
from trainrig.prediction.step import predict_step
from trainrig.workload import model_flops
from trainrig.workload.model import ModelShape, parameters
from trainrig.workload.model_lookup import find, spelled
from trainrig.workload.presets import named
from validation.normalise import case

ROW = {"chip": "A100 SXM4 80GB", "num_gpus": "8", "layers": "32", "hidden": "4096", "seq": "2048"}
ROW |= {"heads": "32", "ffn": "11008", "vocab": "32000", "global_batch": "64", "micro_batch": "1"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama-2-7b", "llama-7B"),
        ("meta-llama/Llama-3.1-8B", "llama-8B"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7B"),
        ("google/gemma-2-9b", "gemma-2-9B"),
        ("microsoft/phi-3-mini-4k-instruct", "phi-3-mini"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7B-v0.1"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7B"),
        ("openai/gpt-oss-20b", "gpt-oss-20B"),
        ("zai-org/GLM-5", "glm-5"),
    ],
)
def test_a_model_is_known_by_its_id(text: str, name: str) -> None:
    assert find(text).name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("DeepSeek-R1-Distill-Qwen-1.5B", "qwen2.5-1.5B"),
        ("DeepSeek-R1-Distill-Llama-70B", "llama3-70B"),
        ("WizardLM-13B", "llama-13B"),
        ("bigscience/bloomz-3b", "bloom-3B"),
        ("GPT-3 Small (125M)", "gpt2"),
        ("Megatron-Turing 530B", "mt-nlg-530B"),
        ("1T GPT", "megatron-1T"),
        ("T5 220M", "t5-base"),
        ("MiniMax-M2.5", "minimax-m2-230B-A10B"),
    ],
)
def test_a_tuned_or_otherwise_called_model_has_its_base_s_sizes(text: str, name: str) -> None:
    found = spelled(text)
    assert found is not None and found.name == name
    assert spelled("Sheared-LLaMA-1.3B") is None, "no Llama of 13B"
    assert spelled("Cerebras-GPT-1.3B") is None and spelled("GPT-3.9B") is None, "nor of 39B"


def test_a_size_alone_is_a_llama_of_that_size() -> None:
    for text, billions in (("10B", 10.0), ("350M", 0.35), ("125M", 0.125), ("1.3b", 1.3)):
        assert parameters(find(text)).total / 1e9 == pytest.approx(billions, rel=0.05)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen2.5-7B", 7.616),
        ("qwen3-8B", 8.191),
        ("gemma-2-9B", 9.242),
        ("gemma-3-27B", 27.01),
        ("phi-3-mini", 3.821),
        ("falcon-40B", 41.3),
        ("nemotron-4-340B", 341.0),
        ("opt-13B", 12.85),
        ("pythia-6.9B", 6.857),
        ("bloom-176B", 176.2),
        ("starcoder2-15B", 15.96),
        ("glm-5", 744.0),
        ("nemotron-3-super-120B-A12B", 120.7),
        ("nemotron-h-56B", 56.5),
        ("qwen3-next-80B-A3B", 79.7),
    ],
)
def test_published_models_have_the_published_parameters(name: str, billions: float) -> None:
    assert parameters(named(name)).total / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_stated_window_is_what_a_token_looks_back_on() -> None:
    stated = ROW | {"framework": "PyTorch DDP, FlexAttention with a sliding window of 256"}
    assert case_of(stated).shape.attention.windows == (256,) * 32
    some = case_of(ROW | {"model": "1B SWA 7:1, window 1024"}).shape.attention.windows
    assert (
        some[6:9] == (1024, 0, 1024)
        and not case_of(ROW | {"framework": "Windows 11"}).shape.attention.windows
    )


def test_a_hybrid_whose_layers_are_counted_one_by_one_is_the_whole_model() -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads", "ffn", "vocab", "params_b"), "")
    row = ROW | blank | {"model": "Nemotron-3 Nano 30B-A3B", "precision": "bf16", "num_gpus": "8"}
    case = case_of(row | {"layers": "52", "heads": "32"})
    assert case.shape == case_of(row).shape and case.shape.attention.windows.count(0) == 3
    # 23 of Mamba's layers: forward and backward 1.35 x 128.5 bytes an element of 4096 wide values.
    steps = [
        predict_step(shape, case.layout, case.rates)
        for shape in (case.shape.replace(state_width=2 * 4096), case.shape)
    ]
    added = steps[0].forward + steps[0].backward - steps[1].forward - steps[1].backward
    tokens = case.layout.batch.micro * case.layout.batch.seq_len * case.layout.batch.grad_accum
    least = 20 * tokens * 4096 * 1.35 * 128.5 / case.rates.streams.bandwidth
    assert least <= added < 1.5 * least


def test_tokens_further_ahead_are_a_block_and_logits_more_in_megatron_alone() -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads", "ffn", "vocab", "params_b"), "")
    row = ROW | blank | {"precision": "bf16", "num_gpus": "8", "micro_batch": "8", "tp": "1"}
    for framework, least, most in (("Megatron-Bridge", 1.1, 1.5), ("PyTorch FSDP", 1.0, 1.0)):
        times = []
        for model in ("Nemotron-3 Nano 30B-A3B", "Nemotron-3.5 Lightning"):
            case = case_of(row | {"framework": framework, "model": model})
            times.append(predict_step(case.shape, case.layout, case.rates).forward)
        assert least <= times[1] / times[0] <= most


def test_a_window_takes_less_time_the_longer_the_sequence() -> None:
    assert named("gemma-3-12B").attention.windows[:7] == (1024,) * 5 + (0, 1024)
    row = ROW | {"model": "gemma-3-12b", "layers": "", "hidden": "", "heads": "", "ffn": ""}
    row |= {"vocab": "", "kernel_stack": "flash", "zero_stage": "3", "precision": "bf16"}
    for seq, least, most in (("1024", 1.0, 1.0), ("16384", 1.1, 3.0)):
        case = case_of(row | {"seq": seq})
        plain = case.shape.replace(windows=())
        ratio = (
            predict_step(plain, case.layout, case.rates).total
            / predict_step(case.shape, case.layout, case.rates).total
        )
        assert least <= ratio * (1 + 1e-9) and ratio <= most * (1 + 1e-9)


CELLS = {
    "chip": "H100|A100 40GB PCIe|RTX 4090|MI250X|MI300X|Gaudi2|TPU v5p|Trainium1|GB200|P40|T4",
    "gpus_per_node": "|8|4|1",
    "link": "|NVLink 4|PCIe Gen4|xGMI|ICI|InfiniBand|none|HCCS",
    "fabric_gbps_per_node": "|200|800 Gbps|3,200|nan",
    "framework": "|Megatron-LM|NeMo 24.07|torchtitan|DeepSpeed|JAX/MaxText|Colossal-AI|Unsloth",
    "model": "Llama-2-7B|Qwen/Qwen3-8B|gemma-3-27b|GPT-3 13B|ours|Yi-34B|mistral-7b",
    "params_b": "|6.7",
    "seq": "2048|4k|1024|131072|2048.0",
    "micro_batch": "|1|2|1.0",
    "grad_accum": "|4|16",
    "vpp": "||2|5",
    "ep": "||1|8",
    "dp": "|8",
    "zero_stage": "|0|1|2|3|ZeRO-3|full_shard|distributed optimizer",
    "seq_parallel": "|True|yes|0",
    "precision": "|bf16|BF16 mixed|fp32|fp8-hybrid|mxfp8|nvfp4|nf4|int8|O2|amp",
    "kernel_stack": "|FlashAttention-2|FA3|TE|torch.compile|eager|xformers|triton|Liger",
    "recompute": "|none|full|selective|True|yes|block 4|0",
    "kind": "|pretrain|sft|lora|qlora",
    "offload": "|none|cpu|nvme|optimizer",
    "optimizer": "|adamw|AdamW 8bit|Muon|paged_adamw_32bit|lion",
    "states": "|pure|bf16|amp O2",
    "num_experts": "||16",
}


def test_whatever_a_row_combines_is_answered() -> None:
    chance = random.Random(14)
    for _ in range(150):
        row = {name: chance.choice(words.split("|")) for name, words in CELLS.items()}
        tp, pp, cp = (chance.choice((1, 1, 2, 4)) for _ in "tpc")
        row |= {"tp": str(tp), "pp": str(pp), "cp": str(cp), "num_gpus": str(8 * tp * pp * cp)}
        row |= {"layers": "32", "hidden": "4096", "heads": "32", "global_batch": "512"}
        found = predict_row(row)
        assert found["reason"] is None, (found["reason"], row)
        low, high = found["interval"]["step_time_s"]
        assert 0.0 < low < found["step_time_s"] < high < math.inf


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ({"hardware": "4 nodes x 8 H100"}, 32),
        ({"hardware": "2x AMD EPYC 7742, 4x A100"}, 4),
        ({"hardware": "two-socket EPYC, eight A100"}, 8),
        ({"hardware": "H100, 8x400Gb/s InfiniBand", "gpus_per_node": "2"}, 2),
        ({"hardware": "RTX 4090 x2"}, 2),
        ({"hardware": "2 nodes of 4 B200"}, 8),
        ({"nodes": "2"}, 16),
        ({"nodes": "2", "gpus_per_node": "4"}, 8),
        ({"chip": "v5p-128"}, 64),
        ({"chip": "", "hardware": "TPU v6e-256"}, 256),
        ({"chip": "tpu-v5litepod-16"}, 16),
        ({"num_gpus": "64 (8x8)"}, 64),
        ({"num_gpus": "64 chips"}, 64),
        ({"global_batch": "", "tp": ""}, 1),
    ],
)
def test_devices_are_counted_however_they_are_printed(changes: dict[str, str], gpus: int) -> None:
    assert case_of(ROW | {"num_gpus": ""} | changes).layout.mesh.gpus == gpus


def test_parallel_sizes_may_bear_their_names() -> None:
    layout = case_of(ROW | {"tp": "TP2", "pp": "2 (VP 2)", "num_gpus": "16"}).layout
    assert (layout.mesh.tp, layout.mesh.pp) == (2, 2)


def test_what_does_not_fit_is_presumed_to_be_sharded_and_only_then_recomputed() -> None:
    row = ROW | {"framework": "Megatron-LM", "num_gpus": "64"}
    assert case_of(row | {"tp": "8"}).layout.sharding.zero == 0, "it fits"
    assert case_of(row).layout.sharding.zero == 1, "7 B are 120 GB of states on each GPU"
    assert case_of(row | {"zero_stage": "0"}).layout.sharding.zero == 0, "it is stated"
    assert "zero_stage" in predict_row(row)["presumed"]
    wide = row | {"zero_stage": "1", "seq": "16384", "micro_batch": "2", "global_batch": "128"}
    assert case_of(wide).layout.memory.recompute == "full"
    assert case_of(wide | {"recompute": "none"}).layout.memory.recompute == "none"


def test_what_is_answered_otherwise_than_printed_is_named() -> None:
    assert "ep" in predict_row(ROW | {"model": "Mixtral-8x7B", "ep": "16"})["presumed"]
    stated = ROW | {"zero_stage": "1", "recompute": "none", "kernel_stack": "flash"}
    stated |= {"precision": "bf16", "link": "nvlink", "kv_heads": "32", "model": "ours"}
    assert predict_row(stated)["presumed"] == []


def test_kernels_that_a_framework_brings_are_its_default() -> None:
    for framework, chip, kernels in (
        ("NeMo 25.07", "H100", "flash+fused"),
        ("Megatron-Core", "A100 SXM4 80GB", "flash+fused"),
        ("MaxText", "TPU v4", "flash+fused"),
        ("DeepSpeed", "H100", "flash"),
    ):
        assert case_of(ROW | {"framework": framework, "chip": chip}).layout.kernels.stack == kernels
    assert case_of(ROW | {"framework": "MaxText", "chip": "TPU v5p"}).layout.sharding.zero == 3


def test_a_short_name_alone_and_adapters_in_a_name_are_read() -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads", "ffn", "vocab"), "")
    assert case_of(ROW | blank | {"model": "gpt2", "seq": "1024"}).shape.name == "gpt2"
    assert case_of(ROW | blank | {"model": "microsoft/phi-4"}).shape.name == "phi-4"
    assert case_of(ROW | {"model": "Llama2-70B-LoRA"}).layout.lora.rank > 0


@pytest.mark.parametrize(
    ("text", "chip"),
    [
        ("a3-highgpu-8g", "H100 SXM5 80GB"),
        ("a2-megagpu-16g", "A100 SXM4 40GB"),
        ("DGX A100 40GB", "A100 SXM4 40GB"),
        ("Mac Studio M2 Ultra", "Apple M2 Ultra (76-core)"),
        ("M2 Ultra 192GB", "Apple M2 Ultra (76-core)"),
        ("4060 Ti 16GB", "RTX 4060 Ti 16GB"),
        ("tpu7x-128", "TPU7x"),
    ],
)
def test_a_name_with_a_part_of_another_is_the_longer_one(text: str, chip: str) -> None:
    assert case_of(ROW | {"chip": "", "hardware": text}).chip.name == chip
    assert case_of(ROW | {"chip": text}).chip.name == chip


def test_a_card_whose_name_ends_with_a_number_is_one() -> None:
    one = ROW | {"chip": "", "num_gpus": "", "global_batch": ""}
    for hardware, gpus in (("RTX 5090", 1), ("H100 x 8", 8), ("MI300Xx8", 8), ("A100x4", 4)):
        assert case_of(one | {"hardware": hardware}).layout.mesh.gpus == gpus, hardware


def test_numbers_with_two_ends_are_the_upper_one() -> None:
    layout = case_of(ROW | {"seq": "up to 2048", "global_batch": "64-256"}).layout
    assert (layout.batch.seq_len, layout.global_batch) == (2048, 256)
    assert case_of(ROW | {"num_gpus": "4x8"}).layout.mesh.gpus == 32
    assert case_of(ROW | {"num_gpus": "4 nodes"}).layout.mesh.gpus == 32
    assert case_of(ROW | {"num_gpus": "100", "tp": "8"}).layout.mesh.gpus == 96


def test_what_one_device_cannot_hold_is_presumed_to_be_split() -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "tp", "pp"), "")
    row = ROW | blank | {"framework": "NeMo", "num_gpus": "64", "model": "Llama 3 70B"}
    assert "tp" in predict_row(row)["presumed"]
    assert case_of(row).layout.mesh.tp == 4, "beside a sharded optimizer"
    assert case_of(row | {"framework": "Megatron-LM", "zero_stage": "0"}).layout.mesh.tp == 8
    experts = row | {"model": "Mixtral-8x7B"}
    assert case_of(experts).layout.mesh.ep == 4 and case_of(experts).layout.mesh.tp == 1
    assert case_of(row | {"tp": "2", "pp": "8"}).layout.mesh.tp == 2, "it is stated"
    few = predict_row(row | {"num_gpus": "8", "tp": "1", "pp": "1"})
    assert "whole does not fit" in few["reason"]


def test_a_named_server_has_its_own_network_and_size() -> None:
    row = ROW | {"num_gpus": "64", "chip": ""}
    wide, narrow = (case_of(row | {"hardware": name}) for name in ("DGX A100", "p4de.24xlarge"))
    assert wide.rates.links.between.bandwidth > 3 * narrow.rates.links.between.bandwidth
    assert case_of(row | {"hardware": "trn1n.32xlarge"}).layout.mesh.gpus_per_node == 16


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen2.5-VL-7B", "qwen2.5-7B"),
        ("DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7B"),
        ("OLMoE", "olmoe-1B-7B"),
        ("DeepSeek-MoE-16B", "deepseek-moe-16B"),
        ("ESM2-650M", "esm2-650M"),
        ("deepseek-coder-6.7b-instruct", "deepseek-coder-6.7B"),
    ],
)
def test_models_are_known_by_what_they_are_called(text: str, name: str) -> None:
    found = spelled(text)
    assert found is not None and found.name == name
    assert spelled("bloomz-9b") is None, "a family is no size"


def test_programs_are_spread_and_widened_as_their_documentation_says() -> None:
    row = ROW | {"num_gpus": "64", "precision": "bf16"}
    for framework, parallel in (("NeMo Automodel", "fsdp"), ("levanter", "fsdp"), ("MLX", "auto")):
        assert case_of(row | {"framework": framework}).layout.sharding.parallel == parallel
    assert case_of(row | {"framework": "ModelLink"}).layout.framework == "megatron"
    wide, narrow = (case_of(row | {"framework": name}).spread for name in ("MLX", "PyTorch"))
    assert wide > narrow
    assert case_of(row | {"kind": "dpo"}).spread > case_of(row | {"kind": "sft"}).spread


@pytest.mark.parametrize(
    ("cells", "presumed"),
    [
        ({"shared_experts": "0", "first_dense_layers": "0"}, ()),
        ({"num_experts": "8", "topk": "2", "shared_experts": "0"}, ()),
        ({"num_experts": "64", "model": "x-57b-a14b"}, ()),
        ({"global_batch": "", "micro_batch": ""}, ("global_batch", "micro_batch")),
        ({"global_batch": "", "micro_batch": "", "pp": "4"}, ("global_batch", "micro_batch")),
        ({"global_batch": "", "micro_batch": "", "kind": "sft"}, ("global_batch", "micro_batch")),
        ({"kv_heads": "2", "tp": "8"}, ("heads",)),
        ({"kv_heads": "8", "cp": "16", "cp_comm": "ulysses", "num_gpus": "16"}, ("heads",)),
        ({"heads": "34", "hidden": "4352", "tp": "4"}, ("heads",)),
        ({"heads": "6", "hidden": "384", "cp": "64", "cp_comm": "ulysses"}, ("cp_comm",)),
    ],
)
def test_what_was_run_is_answered(cells: dict[str, str], presumed: tuple[str, ...]) -> None:
    found = predict_row(ROW | {"num_gpus": "64"} | cells)
    assert found["reason"] is None and set(presumed) <= set(found["presumed"])


def test_a_t5_of_its_own_length_writes_spans_and_its_parameters_say_how_deep_it_is() -> None:
    row = ROW | {"model": "T5 3B", "layers": "24", "hidden": "2048", "ffn": "5120", "seq": "512"}
    row |= {"kind": "pretrain-encdec"}
    blank, printed = case_of(row | {"layers": "12"}), case_of(row | {"params_b": "2.85"})
    assert blank.layout.batch.target_seq_len == 128 and blank.shape.num_layers == 12, (
        "of each stack"
    )
    both = case_of(row | {"layers": "48", "params_b": "2.85"}).shape
    assert (both.num_layers, both.num_decoder_layers) == (24, 24), "of both together"
    assert (printed.shape.num_layers, printed.shape.num_decoder_layers) == (24, 24)
    assert printed.shape.ffn.gated and not blank.shape.ffn.gated
    assert case_of(row | {"kind": "finetune"}).layout.batch.target_seq_len == 0
    assert case_of(row | {"model": "t5-v1_1-xl", "layers": ""}).shape.name == "t5-v1.1-xl"


def test_what_one_device_and_today_leave_is_presumed() -> None:
    one = ROW | {
        "chip": "H100 SXM5 80GB",
        "num_gpus": "1",
        "global_batch": "1",
        "precision": "bf16",
    }
    wide = case_of(one)  # 7 billion parameters with fp32 masters need 108 GB
    assert wide.layout.precision.states == "pure" and "states" in wide.presumed
    assert case_of(one | {"layers": "8"}).layout.precision.states == "auto"
    thunder = {"framework": "Lightning Thunder", "kernel_stack": "fused"}
    assert case_of(one | thunder).layout.kernels.stack == "flash+fused"
    assert case_of(ROW | {"framework": "build-nanogpt (DDP)"}).layout.kernels.stack == "compiled"


@pytest.mark.parametrize("words", [{"date": "2024-06"}, {"framework": "HF, flash-attn 2"}])
def test_todays_flash_attention_has_no_factor_of_older_software_s(words: dict[str, str]) -> None:
    row = ROW | {"seq": "32768", "kernel_stack": "flash", "zero_stage": "3", "chip": "H100 SXM"}
    first, second = case_of(row | {"date": "2023-01"}), case_of(row | words)
    seconds = [predict_step(one.shape, one.timed, one.rates).forward for one in (first, second)]
    assert 0.6 * seconds[0] < seconds[1] < 0.9 * seconds[0]


def test_a_model_of_states_or_convolutions_attends_in_few_layers_and_is_unsure() -> None:
    row = ROW | {"seq": "131072", "kernel_stack": "flash", "zero_stage": "3"}
    whole, other = case_of(row | {"model": "ours 7B"}), case_of(row | {"model": "ours Mamba 7B"})
    assert other.shape.attention.windows.count(0) == 4 and not whole.shape.attention.windows
    assert "model" in other.presumed and other.spread > whole.spread
    seconds = [predict_step(one.shape, one.timed, one.rates).forward for one in (whole, other)]
    assert seconds[1] < 0.5 * seconds[0]
    sparse = {"layers": "", "hidden": "", "ffn": "", "model": "glm5-2", "num_gpus": "1024"}
    case = case_of(ROW | sparse | {"global_batch": "1024"})  # of half its heads, as stated
    assert (
        "model" in case.presumed
        and case.shape.attention.num_kv_heads == case.shape.attention.num_heads == 32
    )


@pytest.mark.parametrize(
    ("chip", "name"),
    [("TPU v3", "bf16"), ("Gaudi1", "bf16"), ("V100 SXM2 32GB", "fp16"), ("H100 SXM", "bf16")],
)
def test_a_precision_that_is_not_stated_is_one_that_the_chip_has(chip: str, name: str) -> None:
    assert case_of(ROW | {"chip": chip}).layout.precision.compute == name


def test_stages_are_filled_where_only_a_micro_batch_is_stated() -> None:
    case = case_of(ROW | {"global_batch": "", "pp": "4"})
    assert case.layout.batch.grad_accum >= 16 and "global_batch" in case.presumed


def test_a_step_of_an_unknown_batch_is_measured_by_its_rate() -> None:
    row = ROW | {"step_time_s": "90", "tokens_per_s_per_gpu": "2000"}
    assert measured_time(row, case_of(row)) == 90
    blank = row | {"global_batch": "", "micro_batch": ""}
    x = case_of(blank).layout
    assert measured_time(blank, case_of(blank)) == x.global_batch * 2048 / 8 / 2000


@pytest.mark.parametrize(
    ("cells", "gpus"),
    [
        ({"hardware": "DGX A100", "chip": ""}, 8),
        ({"micro_batch": ""}, 1),
        ({"global_batch": "", "micro_batch": "", "layers": "", "model": "Llama-3-70B"}, 8),
    ],
)
def test_devices_that_nobody_counts_are_a_node_s_or_one_or_what_the_model_needs(
    cells: dict[str, str], gpus: int
) -> None:
    case = case_of(ROW | {"num_gpus": "", "hidden": "", "model": "Llama-2-7B"} | cells)
    assert int(case.layout.mesh.gpus) == gpus and "num_gpus" in case.presumed
    assert ("nodes" in case.presumed) == bool((ROW | cells)["global_batch"])


def test_flops_a_second_time_a_step_where_it_is_known_which_were_counted() -> None:
    row = ROW | {"tflops_per_gpu": "200", "recompute": "full", "framework": "Megatron-Core"}
    case = case_of(row)
    flops = model_flops(case.shape, int(case.layout.global_batch), 2048)
    assert measured_time(row, case) == pytest.approx(flops / 8 / 200e12)
    share = row | {"tflops_per_gpu": "", "mfu": "40"}  # in percent, of the claimed peak
    assert measured_time(share, case) == pytest.approx(flops / 8 / (0.4 * 312e12), rel=1e-3)
    for open_cells in ({"framework": "Megatron-DeepSpeed"}, {"seq": "131072"}):
        other = row | open_cells
        with pytest.raises(DataError, match="which were counted is not"):
            measured_time(other, case_of(other))


def test_tokens_a_second_hardly_depend_on_a_batch_that_is_not_stated() -> None:
    def tokens(cells: dict[str, str]) -> float:
        case = case_of(ROW | cells)
        x = case.layout
        step = predict_step(case.shape, case.timed, case.rates)
        return float(x.global_batch * x.batch.seq_len / step.total)

    blank = tokens({"global_batch": "", "micro_batch": ""})
    assert blank == pytest.approx(tokens({"global_batch": "1024", "micro_batch": ""}), rel=0.1)


@pytest.mark.parametrize("name", ["micro_batch", "hidden", "global_batch", "grad_accum", "layers"])
def test_no_number_is_so_large_that_its_row_takes_long(name: str) -> None:
    row = ROW | {"heads": "", "params_b": "", name: "999999999"}
    started = time.process_time()
    predict_row(row)
    assert time.process_time() - started < 20.0  # what counts to such a number takes half a minute


@pytest.mark.parametrize("simulate", [False, True])
@pytest.mark.parametrize("num", [3, 2100])  # here, and in other processes
def test_a_mistake_in_one_row_is_its_reason(
    monkeypatch: pytest.MonkeyPatch, num: int, simulate: bool
) -> None:
    real = case.shape_of

    def broken(cells: Cells) -> ModelShape:
        if cells["model"] == "broken":
            raise StopIteration
        return real(cells)

    monkeypatch.setattr(case, "shape_of", broken)
    rows = [ROW] * (num - 1) + [ROW | {"model": "broken"}]
    *others, last = predict_rows(rows, simulate=simulate)
    assert all(one["reason"] is None and one["step_time_s"] for one in others)
    assert last["step_time_s"] is None and "StopIteration in test_strangers" in last["reason"]


def test_zero_2_of_transformers_trainer_is_deepspeeds() -> None:
    row = ROW | {"framework": "HF Trainer", "zero_stage": "2", "micro_batch": "1"}
    assert case_of(row | {"offload": "host"}).layout.framework == "deepspeed"
    assert case_of(row).layout.framework == "deepspeed"  # Trainer has stages by it alone
    assert case_of(row | {"framework": "HF, FSDP"}).layout.framework == "huggingface"


def test_what_goes_through_a_desktops_memory_is_less_sure() -> None:
    pair = ROW | {"chip": "RTX 3090 Ti", "num_gpus": "2", "framework": "DDP", "global_batch": "2"}
    pair |= {"layers": "4", "hidden": "1024", "ffn": "4096", "heads": "16", "seq": "512"}
    widths = []
    for link in ("pcie", "nvlink"):
        found = predict_row(pair | {"link": link})
        low, high = found["interval"]["step_time_s"]
        widths.append(high / low)
    assert widths[0] > 1.5 * widths[1]


def test_what_devices_share_experts_of_is_a_mixture() -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads", "ffn", "vocab"), "")
    row = ROW | blank | {"num_gpus": "64", "ep": "64", "model": "Nobody 120B"}
    assert case_of(row).shape.moe.num_experts == 128 and case_of(row).layout.mesh.ep == 64
    assert case_of(row | {"model": "Llama-2-7B"}).shape.moe.num_experts == 0, "a slip of the table"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"framework": "torchtitan (FSDP2) + torchao"}, {"states": "autocast", "zero": 3}),
        ({"framework": "torchtitan", "recompute": ""}, {"recompute": "selective"}),
        (
            {"framework": "torchtitan", "date": "2025-01", "kernel_stack": "compiled"},
            {"loss": "whole"},
        ),
        (
            {"framework": "torchtitan", "date": "2025-08", "kernel_stack": "compiled"},
            {"loss": "auto"},
        ),
        ({"framework": "NeMo AutoModel", "kind": "finetune"}, {"states": "pure"}),
        ({"framework": "HF Trainer + DeepSpeed"}, {"zero": 2}),
        ({"framework": "HF Trainer", "date": "2024-03"}, {"optimizer": "adamw"}),
        ({"framework": "HF Trainer", "date": "2026-03"}, {"optimizer": "adamw-fused"}),
        ({"framework": "our script", "dtype": "bf16-true"}, {"states": "pure"}),
        ({"framework": "our script", "dtype": "bf16 amp"}, {"states": "auto"}),
        ({"framework": "DeepSpeed", "pp": "2"}, {"zero": 1, "framework": "deepspeed"}),
        ({"framework": "DeepSpeed", "pp": "2", "tp": "2"}, {"framework": "megatron"}),
        ({"framework": "PyTorch Lightning", "date": "2022"}, {"software": "torch1"}),
        ({"framework": "PyTorch Lightning", "date": "2023"}, {"software": "current"}),
        ({"framework": "Megatron-LM", "tp": "2", "date": "2024-02"}, {"sequence_parallel": 1}),
        ({"framework": "Megatron-LM", "tp": "2", "date": "2021"}, {"sequence_parallel": 0}),
    ],
)
def test_what_a_program_does_by_default(changes: dict[str, str], said: dict[str, object]) -> None:
    layout = case_of(ROW | changes).layout
    assert {name: layout.get(name) for name in said} == said
