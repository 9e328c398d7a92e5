"""Vision transformers, translators' batches, and other words of rows that are older than Llama."""

import pytest
from validation.normalise.answers import time_of
from validation.normalise.case import case_of
from validation.normalise.shape import image_tokens, is_vision

from trainrig.errors import UsageError

ROW = {"hardware": "A100 SXM4 40GB", "num_gpus": "8", "framework": "PyTorch", "date": "2023-07"}


@pytest.mark.parametrize(
    ("name", "tokens", "layers", "hidden"),
    [
        ("vit_small_patch32_224", 50, 12, 384),
        ("ViT-L/14", 257, 24, 1024),
        ("deit_base_patch16_384", 577, 12, 768),
        ("ViT-B/16", 197, 12, 768),
    ],
)
def test_a_vision_transformer_s_name_says_its_sizes(
    name: str, tokens: int, layers: int, hidden: int
) -> None:
    case = case_of(ROW | {"model": name, "micro_batch": "64", "kind": "pretrain"})
    assert (case.shape.num_layers, case.shape.hidden, case.layout.batch.seq_len) == (
        layers,
        hidden,
        tokens,
    )
    assert (case.head, image_tokens(name.lower())) == (0.0, tokens)
    assert not is_vision("vicuna-7b")


def test_an_image_s_scores_are_neither_masked_nor_dropped() -> None:
    row = ROW | {"hardware": "RTX 3090", "num_gpus": "1", "framework": "timm, PyTorch 1.12"}
    row |= {"micro_batch": "192", "kind": "pretrain", "dtype": "fp16"}
    images = time_of(case_of(row | {"model": "vit_base_patch16_224"}))[1]
    words = time_of(case_of(row | {"model": "BERT-base", "seq": "197"}))[1]
    assert images < 0.8 * words


def test_a_device_alone_takes_no_part_of_a_whole_training_s_batch() -> None:
    row = ROW | {"model": "gpt3-1.3B", "kind": "pretrain", "seq": "1024"}
    alone, eight = (case_of(row | {"num_gpus": num}).layout for num in ("1", "8"))
    assert alone.batch.micro * alone.batch.grad_accum * 1024 == 8192
    assert eight.batch.micro * eight.batch.grad_accum * 1024 == 65536


def test_each_replica_of_megatron_s_has_a_sample_for_each_of_its_stages() -> None:
    row = {"hardware": "256x B200", "framework": "NeMo", "model": "Llama-4 Maverick", "kind": "sft"}
    x = case_of(row | {"seq": "4096", "global_batch": "32", "dtype": "bf16"}).layout
    assert (
        int(x.mesh.gpus) // (int(x.mesh.tp) * int(x.mesh.pp))
        <= 32
        == x.mesh.dp * x.batch.micro * x.batch.grad_accum
    )


def test_torch_1_zeroes_gradients_adds_to_them_and_clips_them_one_by_one() -> None:
    row = ROW | {"model": "BERT-large", "num_gpus": "1", "seq": "128", "micro_batch": "8"}
    row |= {"kind": "pretrain", "dtype": "fp16", "kernel_stack": "eager"}
    old, new = (time_of(case_of(row | {"framework": f"PyTorch {v}"}))[1] for v in ("1.13", "2.0"))
    assert 0.005 < old - new < 0.05


def test_a_translator_s_batch_is_of_tokens_and_its_name_tells_both_depths() -> None:
    row = ROW | {"model": "Transformer-big 12e12d (WMT14 en-de)", "kind": "pretrain"}
    case = case_of(row | {"hardware": "eight V100s", "framework": "Fairseq, batch_tokens 4096"})
    assert case.chip.name == "V100 SXM2 32GB"
    assert (case.shape.num_layers, case.shape.num_decoder_layers) == (12, 12)
    assert case.layout.batch.micro * case.layout.batch.seq_len == 4096


@pytest.mark.parametrize(
    ("changes", "precision"),
    [
        ({}, "fp32"),
        ({"date": "2021-07"}, "tf32"),
        ({"framework": "PyTorch 1.13"}, "fp32"),
        ({"framework": "PaddlePaddle 2.5"}, "tf32"),
        ({"framework": "NGC PyTorch"}, "tf32"),
        ({"framework": "NGC PyTorch", "hardware": "V100 SXM2 32GB"}, "fp32"),
        ({"framework": "TensorFlow 1.15", "hardware": "V100 SXM2 32GB", "dtype": ""}, "fp32"),
    ],
)
def test_fp32_is_what_the_program_multiplies(changes: dict[str, str], precision: str) -> None:
    row = ROW | {"model": "BERT-base", "dtype": "FP32", "seq": "128", "micro_batch": "96"}
    assert case_of(row | {"kind": "pretrain"} | changes).layout.precision.compute == precision


@pytest.mark.parametrize(
    ("printed", "chip", "gpus"),
    [
        ("64 H100s", "H100 SXM5 80GB", 64),
        ("8 NVIDIA A100 80GB GPUs", "A100 SXM4 80GB", 8),
        ("four T4s", "T4", 4),
        ("4090 24GB", "RTX 4090", 1),
        ("8 L40s", "L40S", 8),
        ("2 nodes x 8 H200", "H200 SXM 141GB", 16),
    ],
)
def test_several_chips_are_counted(printed: str, chip: str, gpus: int) -> None:
    row = {"hardware": printed, "model": "BERT-large", "micro_batch": "8", "kind": "pretrain"}
    case = case_of(row)
    assert (case.chip.name, case.layout.mesh.gpus) == (chip, gpus)


def test_encoders_have_lengths_of_their_own() -> None:
    row = ROW | {"model": "BERT-large", "micro_batch": "16"}
    kinds = {"finetune": 128, "pretrain": 512, "pretrain phase 1": 128}
    assert {kind: case_of(row | {"kind": kind}).timed.batch.seq_len for kind in kinds} == kinds


def test_a_neural_engine_is_refused() -> None:
    row = ROW | {"hardware": "Apple M4 Max (Neural Engine + CPU)", "model": "gpt2"}
    with pytest.raises(UsageError, match="neural engine"):
        case_of(row)


def test_numbers_say_what_a_compound_of_gpt_is_and_parameters_how_many_words_there_are() -> None:
    row = ROW | {"layers": "12", "hidden": "2048", "ffn": "11008", "seq": "2048"}
    llama = case_of(row | {"model": "agpt-2b", "kind": "pretrain"}).shape
    assert (llama.family, llama.ffn.gated) == ("llama", True)
    assert 200_000 < llama.vocab < 270_000
    assert case_of(row | {"model": "GPT 2B", "vocab": "32000"}).shape.family == "gpt2"


def test_a_micro_batch_of_bert_that_whole_lengths_do_not_fit_is_of_its_first_phase() -> None:
    row = ROW | {"model": "BERT-base", "precision": "fp16", "seq": "", "micro_batch": "64"}
    lengths = {
        chip: case_of(row | {"chip": chip}).layout.batch.seq_len
        for chip in ("V100 SXM2 16GB", "A100 SXM4 80GB")
    }
    assert lengths == {"V100 SXM2 16GB": 128, "A100 SXM4 80GB": 512}
