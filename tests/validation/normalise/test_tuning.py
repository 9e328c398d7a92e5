"""What fine-tuning programs do where a row does not say: presumed, and by the row's date."""

from __future__ import annotations

from typing import Any

import pytest
from validation.normalise.answers import memory_of, predict_row, time_of
from validation.normalise.case import case_of

from trainrig.prediction.step import predict_step
from trainrig.workload.model import parameters

ROW = {"chip": "A100 SXM4 80GB", "num_gpus": "1", "model": "Llama-2-7B", "micro_batch": "4"}
ROW |= {"seq": "1024", "precision": "bf16", "zero_stage": "0", "dp": "1", "grad_accum": "1"}
_SMALL = {"model": "Llama-3.2-1B", "kind": "sft"}


@pytest.mark.parametrize(
    ("cells", "field", "value"),
    [
        ({"framework": "LLaMA-Factory", "kind": "lora"}, "recompute", "full"),
        ({"framework": "HF PEFT", "kind": "lora"}, "recompute", "none"),
        ({"framework": "TRL", "kind": "lora", "date": "2025-10"}, "recompute", "full"),
        ({"framework": "TRL", "kind": "lora", "date": "2024-10"}, "recompute", "none"),
        ({"framework": "HF PEFT", "kind": "qlora"}, "recompute", "full"),
        ({"framework": "LLaMA-Factory", "kind": "lora", "recompute": "none"}, "recompute", "none"),
        (_SMALL | {"framework": "TRL", "date": "2026-03"}, "states", "pure"),
        (_SMALL | {"framework": "TRL", "date": "2025-03"}, "states", "auto"),
        (_SMALL | {"framework": "TRL, DeepSpeed", "date": "2026-03"}, "states", "auto"),
        (_SMALL | {"dtype": "bf16 mixed precision"}, "states", "auto"),
        (_SMALL | {"kind": "pretrain", "optimizer": "AdamW, bf16 states"}, "states", "pure"),
        ({"kind": "lora", "model": "Llama-2-7B [lora rank32]"}, "lora_rank", 32),
        ({"kind": "lora"}, "lora_rank", 8),
        ({"kind": "pretrain", "precision": "int8"}, "lora_rank", 0),
        ({"kind": "pretrain", "precision": "int8"}, "precision", "fp8"),
        ({"kind": "pretrain", "precision": "int8", "dtype": "INT8 weights"}, "precision", "bf16"),
        ({"kind": "lora", "precision": "int8"}, "quantize", "int8"),
        ({"kind": "sft", "seq": ""}, "seq_len", 408),
        ({"kind": "finetune", "seq": "", "framework": "HF Trainer"}, "seq_len", 1024),
        ({"kind": "sft", "seq": "", "framework": "run_translation.py, wmt16"}, "seq_len", 32),
        ({"recompute": "selective (0.2 % of the FLOPs)"}, "recompute", "none"),
        ({"recompute": "selective (23 % of the FLOPs)"}, "recompute", "full"),
        ({"kind": "Full fine-tuning", "seq": "", "framework": "HF Trainer"}, "seq_len", 1024),
        ({"kind": "Pre-training", "precision": "int8"}, "lora_rank", 0),
        ({"kind": "pretrain", "seq": ""}, "seq_len", 4096),  # a Llama 2
        ({"framework": "HF transformers", "date": "2022-12"}, "kernels", "eager"),
        ({"framework": "HF transformers", "date": "2024-05"}, "kernels", "flash"),
        ({"framework": "torchao", "date": "2024-08", "kernel_stack": "eager"}, "kernels", "flash"),
        ({"framework": "HF", "date": "2023-08", "kernel_stack": "eager"}, "kernels", "eager"),
        ({"framework": "build-nanogpt", "kind": "pretrain"}, "kernels", "compiled"),
        ({"offload": "host: residual"}, "offload", "none"),
        ({"framework": "LitGPT"}, "states", "pure"),
        ({"framework": "LLMQ (C++/CUDA)", "kind": "pretrain"}, "kernels", "flash+fused"),
        ({"framework": "Fast-LLM", "zero_stage": "", "num_gpus": "8", "dp": "8"}, "zero", 1),
        ({"framework": "Languini", "kernel_stack": "torch.compile"}, "kernels", "fused"),
        ({"framework": "Languini", "kernel_stack": "compiled, flash"}, "kernels", "compiled"),
    ],
)
def test_what_a_program_does_by_itself_is_presumed(
    cells: dict[str, str], field: str, value: Any
) -> None:
    case = case_of(ROW | cells)
    assert case.timed.get(field) == value
    column = {"recompute": "recompute", "kernels": "kernel_stack"}.get(field, "precision")
    assert column in case.presumed or column in cells or column == "precision"


def test_an_average_length_is_timed_and_the_longest_batch_needs_the_memory() -> None:
    mean = case_of(ROW | {"kind": "sft", "seq": "210"})
    assert (
        mean.timed.batch.seq_len == 210
        and mean.layout.batch.seq_len == 768
        and "seq" in mean.presumed
    )
    assert not case_of(ROW | {"kind": "sft", "seq": "512"}).mean_seq
    assert not case_of(ROW | {"kind": "pretrain", "seq": "210"}).mean_seq


def test_adapters_cost_time_and_less_than_all_weights() -> None:
    """A frozen step without its adapters would be the lower bound: gradients of inputs alone."""
    lora, whole = ({"kind": kind, "recompute": "none"} for kind in ("lora", "finetune"))
    assert 0.7 < time_of(case_of(ROW | lora))[1] / time_of(case_of(ROW | whole))[1] < 0.95


def test_integers_of_a_pretraining_are_multiplied_at_their_own_rate() -> None:
    row = ROW | {"chip": "RTX 4090", "kind": "pretrain", "model": "Llama-3.2-1B"}
    sustained = case_of(row | {"precision": "int8"}).rates.matmuls.sustained
    assert sustained["fp8"] > 1.25 * case_of(row).rates.matmuls.sustained["fp8"]


def test_stages_are_filled_where_nobody_says_with_how_many() -> None:
    """By micro-batches of one sample, or as many of the stated size as a step usually has."""
    row = ROW | {
        "num_gpus": "8",
        "pp": "4",
        "grad_accum": "",
        "kind": "pretrain",
        "framework": "NeMo",
    }
    assert case_of(row).layout.batch.grad_accum >= 4
    whole = case_of(row | {"micro_batch": "", "global_batch": "64"}).layout
    assert (whole.batch.micro, whole.batch.grad_accum) == (1, 32)


def test_a_stated_part_of_a_named_model_is_that_part() -> None:
    row = {"chip": "H100 SXM5 80GB", "num_gpus": "8", "seq": "1024", "grad_accum": "4"}
    part = case_of(row | {"model": "Nobody-35B-A3B, 8 layers", "layers": "8", "num_experts": "8"})
    assert (part.shape.num_layers, part.shape.moe.num_experts) == (8, 8)
    assert (part.layout.batch.micro, part.layout.batch.grad_accum) == (4, 4)
    whole = case_of(row | {"model": "Nobody-7B", "layers": "32"}).shape
    assert parameters(whole).total == pytest.approx(7e9, rel=0.2)


@pytest.mark.parametrize(
    ("cells", "zero", "recompute"),
    [
        ({"framework": "Megatron-LM"}, 0, "none"),
        ({"framework": "DeepSpeed", "zero_stage": "3"}, 3, "none"),
        ({"framework": "MaxText", "zero_stage": "3", "recompute": "minimal"}, 3, "selective"),
        ({"framework": "MaxText", "zero_stage": "3"}, 3, "full"),
        ({"framework": "MaxText", "recompute": "custom (decoder_layer_input=offload)"}, 3, "full"),
        ({"framework": "MaxText", "recompute": "custom (mlpwo=offload)"}, 3, "selective"),
    ],
)
def test_what_is_sharded_and_computed_again_is_the_programs_default(
    cells: dict[str, str], zero: int, recompute: str
) -> None:
    """Of 8 H100s that have memory enough."""
    row = {"chip": "H100 SXM5 80GB", "num_gpus": "8", "micro_batch": "1", "seq": "2048"}
    layout = case_of(row | {"model": "TinyLlama-1.1B"} | cells).layout
    assert (layout.sharding.zero, layout.memory.recompute) == (zero, recompute)


def test_flash_attention_on_an_a100_is_its_second_version_since_torch_has_it() -> None:
    row = ROW | {"kernel_stack": "flash", "seq": "32768", "kind": "pretrain", "recompute": "full"}
    times = [time_of(case_of(row | {"date": date}))[1] for date in ("2022-06", "2024-06")]
    assert 0.6 < times[1] / times[0] < 0.85
    assert case_of(row | {"framework": "torch 2.4"}).rates == case_of(row | {"date": "2025"}).rates


def test_what_xla_compiles_is_fused_beside_its_attention() -> None:
    row = ROW | {"chip": "TPU v5p", "kernel_stack": "flash", "kind": "pretrain"}
    layout = case_of(row | {"framework": "MaxText"}).layout
    assert layout.kernels.stack == "flash+fused"


def test_what_xla_compiles_goes_through_a_stated_batch_at_once() -> None:
    row = {"chip": "TPU v5p", "num_gpus": "16", "kind": "pretrain", "global_batch": "256"}
    row |= {"framework": "MaxText", "model": "Llama-2-7B", "seq": "4096", "zero_stage": "3"}
    layout = case_of(row).layout
    assert (layout.batch.micro, layout.batch.grad_accum) == (16, 1)


def test_a_batch_of_each_chip_is_gone_through_at_once_where_chips_share_a_sample() -> None:
    """MaxText's `per_device_batch_size`: 4 on each of 64 chips, 8 to a sample."""
    row = {"chip": "TPU v5p", "num_gpus": "64", "tp": "8", "seq": "2048", "global_batch": "256"}
    row |= {"model": "Llama-2-7B", "micro_batch": "4", "framework": "MaxText", "zero_stage": "3"}
    layout = case_of(row).layout
    assert (layout.batch.micro, layout.batch.grad_accum) == (32, 1)
    assert case_of(row | {"grad_accum": "8"}).layout.batch.grad_accum == 8


@pytest.mark.parametrize(("chip", "share"), [("Ascend 910B", 0.85), ("TPU v5e", 0.95)])
def test_products_reach_what_was_published_of_the_class(chip: str, share: float) -> None:
    rates = case_of(ROW | {"chip": chip, "model": "Llama-3.2-1B", "kind": "pretrain"}).rates
    assert rates.matmuls.sustained["bf16"] <= share * rates.peaks["bf16"] * 1.001
    assert rates.matmuls.sustained["bf16"] > 0.75 * rates.peaks["bf16"]


def test_a_tuning_without_any_batch_has_small_micro_batches() -> None:
    row = {"chip": "A100 SXM4 80GB", "num_gpus": "1", "model": "Llama-3.2-1B"}
    small = case_of(row | {"kind": "sft"}).timed
    assert (small.batch.micro, small.batch.seq_len) == (2, 320) and small.batch.grad_accum > 1
    assert case_of(row | {"kind": "pretrain"}).layout.batch.seq_len == 8192  # as it was trained


def test_an_offloaded_training_without_a_batch_adds_up_until_copies_no_longer_rule() -> None:
    blank = {"micro_batch": "", "grad_accum": "", "kind": "finetune", "offload": "nvme"}
    case = case_of(ROW | blank)
    assert case.layout.memory.offload == "disk" and case.layout.batch.grad_accum > 4
    stated = case_of(ROW | blank | {"micro_batch": "2", "grad_accum": "1"})
    assert stated.layout.batch.grad_accum == 1
    per_sample = [time_of(one)[1] / int(one.layout.global_batch) for one in (case, stated)]
    assert per_sample[0] < 0.6 * per_sample[1]
    activations = {"offload": "activations, 40 layers, to host", "num_gpus": "8", "dp": "8"}
    assert case_of(ROW | activations).layout.memory.offload == "none"
    big = {"model": "Llama 3.1 70B", "chip": "RTX 5090", "num_gpus": "1", "offload": "nvme"}
    assert case_of(big).shape.num_layers == 80  # whole: its weights may be away, too


@pytest.mark.parametrize(("seq", "samples"), [("128", 32), ("512", 8), ("8192", 1)])
def test_a_stated_accumulation_alone_is_of_micro_batches_of_a_few_thousand_tokens(
    seq: str, samples: int
) -> None:
    cells = {"micro_batch": "", "grad_accum": "10", "seq": seq, "model": "BERT-large"}
    layout = case_of(ROW | cells).layout
    assert (layout.batch.micro, layout.batch.grad_accum) == (samples, 10)


BARE = {"chip": "A100 SXM4 80GB", "num_gpus": "8", "model": "Llama-2-7B", "precision": "bf16"}


def test_a_stage_of_transformers_trainer_is_deepspeed_s() -> None:
    hf = BARE | {"framework": "HF Trainer", "kind": "sft", "micro_batch": "4", "seq": "1024"}
    schemes = {
        (stage, words): case_of(hf | {"zero_stage": stage, "framework": words}).layout.framework
        for stage in ("", "0", "2", "3")
        for words in ("HF Trainer", "HF Trainer, FSDP")
    }
    ours = {key for key, name in schemes.items() if name == "deepspeed"}
    assert ours == {("2", "HF Trainer"), ("3", "HF Trainer")}


def test_an_example_s_length_follows_the_micro_batch_that_is_padded_to_it() -> None:
    lora = BARE | {"framework": "HF PEFT", "kind": "lora", "num_gpus": "1"}
    lengths = [
        case_of(lora | {"micro_batch": n}).timed.batch.seq_len for n in ("1", "2", "8", "64")
    ]
    assert lengths == [256, 320, 512, 512]


def test_words_state_an_average_length_and_tokens_of_a_batch() -> None:
    row = ROW | {"kind": "sft", "seq": "", "micro_batch": "", "grad_accum": "2"}
    words = "max_tokens_per_gpu=25000, 13222 samples, mean 1,000.2 tokens"
    filled = case_of(row | {"framework": "HF, " + words})
    assert (filled.layout.batch.micro, filled.timed.batch.seq_len) == (25, 1000)
    padded = case_of(row | {"framework": "HF, average 500 tokens", "micro_batch": "8"})
    assert (padded.timed.batch.seq_len, padded.layout.batch.seq_len) == (1000, 1750)
    words = "524,288 tokens a global batch"
    many = case_of(ROW | {"kind": "pretrain", "grad_accum": "", "kernel_stack": words})
    assert many.layout.global_batch == 512


def test_the_most_that_an_example_may_have_is_not_its_length() -> None:
    rows = {
        "HF Trainer": {"seq": "2048"},
        "torchtitan": {"seq": "2048"},
        "TRL": {"seq": "279"},  # an average
    }
    cases = {
        words: case_of(BARE | more | {"framework": words, "kind": "sft", "micro_batch": "1"})
        for words, more in rows.items()
    }
    assert [words for words, case in cases.items() if "mean_seq" in case.presumed] == ["HF Trainer"]


def test_a_program_may_have_begun_to_checkpoint_tunings() -> None:
    row = BARE | {"framework": "prime-rl", "kind": "sft", "micro_batch": "1"}
    dated = [
        case_of(row | {"date": date}).layout.memory.recompute for date in ("2025-12", "2026-08")
    ]
    assert dated == ["none", "full"]


def test_litgpt_computes_again_where_weights_are_sharded() -> None:
    litgpt = BARE | {"framework": "LitGPT", "kind": "qlora", "dtype": "nf4", "micro_batch": "1"}
    assert case_of(litgpt | {"num_gpus": "1"}).layout.memory.recompute == "none"
    sharded = litgpt | {"framework": "LitGPT FSDP", "dtype": "bf16", "kind": "lora"}
    assert case_of(sharded).layout.memory.recompute == "full"


def test_widening_a_matrix_takes_the_host_time() -> None:
    lora = BARE | {"framework": "HF PEFT", "num_gpus": "1", "micro_batch": "1", "seq": "128"}
    lora |= {"recompute": "none"}
    plain, quantised = (
        time_of(case_of(lora | more))[1]
        for more in ({"kind": "lora"}, {"kind": "qlora", "dtype": "nf4"})
    )
    assert 1.2 < quantised / plain < 2.0


def test_what_a_format_s_cell_says_of_states_is_read() -> None:
    states = {
        words: case_of(BARE | {"framework": "HF Trainer", "dtype": words, "kind": "sft"}).layout
        for words in ("bf16 (weights too)", "bf16-true", "bf16 (states of the same type)", "bf16")
    }
    assert [one.precision.states for one in states.values()] == ["pure", "pure", "pure", "auto"]


def test_deepspeed_s_pipeline_is_not_megatron_s() -> None:
    row = BARE | {"framework": "DeepSpeed pipeline parallel", "num_gpus": "2", "pp": "2"}
    assert case_of(row | {"chip": "MI250"}).layout.kernels.stack == "flash"
    found = case_of(row | {"chip": "MI100", "model": "Qwen3 base 0.6B", "micro_batch": "1"})
    assert (found.layout.framework, found.layout.kernels.stack) == ("deepspeed", "eager")
    assert found.shape.name == "qwen3-0.6B"


def test_scores_lie_in_memory_until_torch_has_a_kernel_that_trains_on_the_chip() -> None:
    row = BARE | {"chip": "Max 1550", "model": "Llama 3.1 8B", "kernel_stack": "compiled"}
    found = [
        case_of(row | {"framework": f"torchtitan, PyTorch {version}"}).layout
        for version in ("2.10", "2.11")
    ]
    assert [one.kernels.plain_attention for one in found] == [1, 0]


def test_ranks_of_ddp_are_whole_whatever_a_gpu_can_hold() -> None:
    row = BARE | {"chip": "MI250X GCD", "num_gpus": "8", "model": "Llama 2 13B", "dtype": "bf16"}
    found = case_of(row | {"framework": "PyTorch, gradient all-reduce", "optimizer": "Adafactor"})
    assert (found.layout.sharding.zero, found.layout.precision.states) == (0, "pure")


def test_frozen_weights_travel_as_they_are_stored() -> None:
    row = BARE | {"framework": "FSDP", "chip": "RTX 3090", "num_gpus": "2", "zero_stage": "3"}
    row |= {"micro_batch": "1", "seq": "512", "link": "pcie"}
    exchanged = [
        float(predict_step(case.shape, case.timed, case.rates).data_comm)
        for case in (case_of(row | {"kind": "lora"}), case_of(row | {"kind": "qlora"}))
    ]
    assert exchanged[1] < 0.4 * exchanged[0]


def test_examples_of_many_lengths_hold_more_of_the_allocator_than_packed_ones() -> None:
    """Blocks of shorter logits stay; of what is pre-trained all are alike."""
    tuned = {"model": "Qwen2.5-7B", "chip": "A100", "num_gpus": "1", "seq": "2048"}
    tuned |= {"micro_batch": "1", "framework": "ms-swift", "kind": "lora", "recompute": "full"}

    def told(**changes: str) -> float:
        return float(predict_row(tuned | changes)["memory_bytes_per_gpu"])

    logits = 12 * 2048 * 152064
    assert told() - told(kind="lora, packed") == pytest.approx(0.9 * logits, rel=0.01)
    kinds = [
        told(kind=kind, memory_kind="max_memory_allocated") for kind in ("lora", "lora, packed")
    ]
    assert kinds[0] == kinds[1]


def test_memory_is_the_longest_example_s_where_no_length_is_stated() -> None:
    tuned = {"model": "Llama-2-7B", "chip": "A100", "num_gpus": "1", "micro_batch": "1"}
    case = case_of(tuned | {"framework": "our script", "kind": "lora"})
    assert (case.layout.batch.seq_len, case.timed.batch.seq_len) == (512, 256)


@pytest.mark.parametrize(
    ("words", "kernels"),
    [
        ("Unsloth", "flash+fused"),
        ("HF Trainer + Liger", "flash+fused"),
        ("HF Trainer, torch.compile", "compiled"),
        ("HF Trainer (no torch.compile)", "eager"),
        ("HF Trainer, FA2", "flash"),
        ("HF Trainer without flash attention", "eager"),
        ("HF Trainer", "eager"),
    ],
)
def test_kernels_that_a_program_is_named_with_are_read(words: str, kernels: str) -> None:
    row = BARE | {"framework": words, "model": "Llama-3.2-1B", "kind": "sft", "date": "2023-06"}
    assert case_of(row | {"micro_batch": "4"}).layout.kernels.stack == kernels


def test_mlperf_tuning_of_llama_2_is_nemo_in_fp8_whatever_container_is_named() -> None:
    row = {"chip": "H200", "num_gpus": "16", "gpus_per_node": "8", "framework": "PyTorch 25.04"}
    row |= {"model": "Llama2-70B LoRA r=16", "seq": "8192", "global_batch": "8", "kind": "lora"}
    case = case_of(row)
    assert case.layout.framework == "megatron" and case.layout.precision.compute == "fp8"
    assert int(case.layout.mesh.tp * case.layout.mesh.cp) == 2  # 16 devices work on 8 samples
    of_peft = case_of(row | {"framework": "Hugging Face peft", "num_gpus": "8"})
    assert of_peft.layout.framework == "huggingface" and of_peft.layout.precision.compute == "bf16"


def test_conversations_are_longer_than_instructions() -> None:
    """Where a length is stated that examples are cut at; nor is any longer than that."""
    row = {"hardware": "A100 SXM4 40GB", "num_gpus": "1", "kind": "qlora", "micro_batch": "1"}
    row |= {"framework": "Unsloth; maximum length 2048", "precision": "nf4"}
    chat, task = (
        case_of(row | {"model": name}) for name in ("Llama-3.1-8B-Instruct", "Llama-3.1-8B")
    )
    assert (chat.timed.batch.seq_len, task.timed.batch.seq_len) == (512, 256)
    short = row | {"model": "Llama-3.1-8B-Instruct", "framework": "trl; max_seq_length=128"}
    assert case_of(short).timed.batch.seq_len == 128


def test_jax_computes_again_where_its_programs_say_so() -> None:
    row = {"hardware": "Quadro RTX 8000", "num_gpus": "2", "model": "Gemma 3 1B", "zero_stage": "3"}
    row |= {"seq": "128", "micro_batch": "8", "precision": "bf16", "kind": "pretrain"}
    plain, own = (case_of(row | {"framework": name}) for name in ("JAX, Flax NNX", "MaxText"))
    assert (plain.layout.memory.recompute, own.layout.memory.recompute) == ("none", "full")
    rates = plain.rates.matmuls.sustained
    assert rates["bf16"] == rates["fp32"]  # widened once, where nothing multiplies it


def test_transformers_llama_4_lets_every_token_meet_every_expert() -> None:
    row = {"hardware": "H100 SXM5 80GB", "num_gpus": "8", "model": "Llama 4 Scout", "seq": "4096"}
    row |= {"kind": "lora", "micro_batch": "1", "precision": "bf16", "date": "2025-05"}
    names = ("axolotl, HF transformers", "Megatron-Bridge")
    shapes = (case_of(row | {"framework": name}).shape for name in names)
    assert [shape.moe.experts_per_token for shape in shapes] == [16, 1]


def test_a_card_may_have_twice_its_name_s_memory() -> None:
    row = {"chip": "MI50", "num_gpus": "1", "model": "Llama 2 7B", "seq": "512", "kind": "qlora"}
    sizes = {"AMD MI50 32GB": 32, "AMD MI50": 16, "AMD MI50, 128 GB of host memory": 16}
    for words, gib in sizes.items():
        offered = case_of(row | {"hardware": words}).rates.memory_bytes
        assert offered == pytest.approx(gib * 2**30, rel=0.02)


def test_a_card_alone_fetches_frozen_weights_from_the_host_for_each_pass() -> None:
    row = {"chip": "RTX 3050 Laptop", "num_gpus": "1", "model": "Llama-3.1-8B", "seq": "512"}
    row |= {"kind": "qlora", "precision": "nf4", "micro_batch": "1", "framework": "torch"}
    away = case_of(row | {"offload": "frozen weights streamed layer by layer from host RAM"})
    assert (away.layout.memory.offload, away.layout.scheme) == ("host", "fsdp")
    step = predict_step(away.shape, away.timed, away.rates).offload
    assert step * away.rates.host_link * 2 > 2 * 0.5 * 6e9 and memory_of(away)[1] < 4e9


def test_several_disks_share_the_states_and_tf32_is_said_beside_fp32() -> None:
    row = {"num_gpus": "1", "model": "GPT 13B", "micro_batch": "8", "offload": "nvme"}
    ten, one = (
        case_of(row | {"hardware": f"1x RTX 4090, {n}x D7-P5510 3.84 TB SSD"}).rates.disk
        for n in (10, 1)
    )
    assert ten == 10 * one
    fp32 = {"chip": "A100 SXM4 80GB", "model": "GPT-2 124M", "precision": "fp32", "date": "2026-08"}
    words = ("TF32 matmul on", "TF32 off", "")
    found = [case_of(fp32 | {"kernel_stack": each}).layout.precision.compute for each in words]
    assert found == ["tf32", "fp32", "fp32"]


def test_a_program_that_searches_for_a_layout_has_the_quickest_that_fits() -> None:
    row = ROW | {"num_gpus": "8", "dp": "", "global_batch": "4", "micro_batch": "", "seq": "8192"}
    row |= {"zero_stage": "", "kind": "pretrain", "grad_accum": "4"}
    found, plain = (case_of(row | {"framework": name}) for name in ("nnScaler", "PyTorch"))
    assert found.layout.global_batch == 4 < plain.layout.global_batch
    assert "tp" in found.presumed


def test_a_batch_is_cut_by_stages_where_the_program_does_so() -> None:
    row = {
        "hardware": "8 x MI355X",
        "model": "llama-3-8B",
        "seq": "4096",
        "pp": "8",
        "date": "2026-05",
    }
    row |= {"global_batch": "64", "grad_accum": "1", "num_gpus": "8", "framework": "MaxText (JAX)"}
    assert case_of(row).layout.batch.grad_accum == 8
    assert case_of(row | {"micro_batch": "64"}).layout.batch.grad_accum == 1
