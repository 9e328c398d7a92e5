"""What a table's words for machines say of the chip, of how many, and of the network."""

from __future__ import annotations

import pytest
from validation.normalise.case import case_of
from validation.normalise.cells import Cells
from validation.normalise.machines import chip_of

from trainrig.prediction.step import predict_step

RUN = {"model": "Llama 2 7B", "seq": "4096", "micro_batch": "1", "zero_stage": "3"}


@pytest.mark.parametrize(
    ("hardware", "per_node", "gbps"),
    [
        ("MareNostrum 5, NVIDIA H100 64GB", "", 800),  # a system's own nodes
        ("GH200 96GB, 4 a node, Slingshot", "4", 800),
        ("A10, OCI standard network", "1", 25),
        ("H100 SXM5 80GB, 3.2 Tbps RoCE", "8", 3200),
        ("H100 SXM5 80GB, 8x400Gb/s InfiniBand", "8", 3200),
        ("H100 SXM5 80GB, 4 x 200 GbE", "8", 800),
        ("H100 SXM5 80GB, 400 Gbps InfiniBand per GPU", "8", 3200),
        ("H100 SXM5 80GB, ConnectX-7 InfiniBand 400 Gb/s", "8", 3200),  # an adapter's rate
        ("A100 SXM4 80GB, ConnectX-7, 400 Gb/s", "8", 400),
        ("H100 SXM5 80GB, TCP over eth0, 80 Gb/s", "8", 32),  # a socket's processor, not the line
        ("A100 SXM4 80GB, 900 GB/s NVLink, 100G Ethernet", "8", 1600),
        ("Habana Gaudi (8 nodes x 4; HLS-1H; 2x Mellanox, 100Gb/s)", "4", 1200),  # its own ports
        ("A100 SXM4 80GB", "4", 800),  # each module has a port
        ("A100 SXM4 80GB", "8", 1600),
    ],
)
def test_a_network_is_the_system_s_or_what_its_words_say(
    hardware: str, per_node: str, gbps: float
) -> None:
    row = RUN | {"hardware": hardware, "num_gpus": "64", "gpus_per_node": per_node}
    link = case_of(row).rates.links.between
    share = case_of(row | {"fabric_gbps_per_node": "800"}).rates.links.between.bandwidth / 100e9
    assert link.bandwidth == pytest.approx(gbps / 8 * 1e9 * share)


@pytest.mark.parametrize(
    ("hardware", "gpus", "per_node"),
    [
        ("two nodes of 8x A100", 16, 8),
        ("4 nodes (8x H100 each)", 32, 8),
        ("4x8 H100", 32, 8),
        ("2x8xA100", 16, 8),
        ("dual RTX 4090", 2, 2),
        ("4 T4", 4, 4),
        ("quad A6000", 4, 4),
        ("8x4090", 8, 8),
        ("RTX 3090", 1, 1),
        ("A100 (8 GPUs)", 8, 8),
        ("1,024 H100", 1024, 8),
        ("32 nodes (256 GPUs), H100 SXM", 256, 8),
        ("32 DGX H100 (256 H100)", 256, 8),
        ("p4d.24xlarge x 4", 32, 8),
        ("g5.12xlarge", 4, 4),
        ("16x a3-megagpu-8g", 128, 8),
        ("Oracle BM.GPU.H100.8", 8, 8),
        ("MI250X (8 GCDs)", 8, 8),
        ("2x EPYC 7763, 4x A100 40GB, 8x 200 GbE", 4, 4),
        ("Xeon Gold 6248, V100 32GB", 1, 1),
    ],
)
def test_devices_are_counted_as_machines_are_described(
    hardware: str, gpus: int, per_node: int
) -> None:
    layout = case_of({"model": "opt-125m", "seq": "1024", "hardware": hardware}).layout
    assert (layout.mesh.gpus, layout.mesh.gpus_per_node) == (gpus, per_node)


@pytest.mark.parametrize(
    ("hardware", "name"),
    [
        ("8 nodes x 8 AMD MI355 (288 GB HBM), Pensando AINIC", "MI355X"),
        ("8x AMD MI-355X OAM", "MI355X"),
        ("instinct-mi325 x 8", "MI325X"),
        ("MI300", "MI300X"),
        ("8 x L40", "L40"),
    ],
)
def test_letters_that_one_name_has_behind_a_number_may_lack(hardware: str, name: str) -> None:
    assert chip_of(Cells({"hardware": hardware})).name == name


def test_an_instinct_s_attention_is_amd_s_own_in_megatron_and_in_torch_since_2_9() -> None:
    def backward(**cells: str) -> float:
        row = RUN | {"hardware": "MI300X", "num_gpus": "8", "kernel_stack": "flash"} | cells
        return case_of(row).rates.attentions.backward.share

    older = backward(framework="PyTorch FSDP", date="2024-09")
    assert backward(framework="PyTorch 2.9 FSDP") == backward(framework="Megatron-LM", date="2025")
    assert backward(framework="PyTorch 2.9 FSDP") > 3 * older


def test_a_torus_is_gone_around_axis_by_axis_and_mlperf_s_bert_computes_no_padding() -> None:
    bert = {"model": "BERT-large", "seq": "512", "kind": "pretrain", "date": "2021-06"}
    row = bert | {"framework": "TensorFlow", "num_gpus": "256", "micro_batch": "4"}
    other, mlperf = (case_of(row | {"hardware": f"TPU v4{more}"}) for more in ("", " (MLPerf)"))
    ring = other.rates.links.inside
    assert ring.begin(256) == pytest.approx(ring.latency + 30 * ring.hop)
    assert (mlperf.layout.batch.seq_len, mlperf.timed.batch.seq_len, other.timed.batch.seq_len) == (
        512,
        256,
        512,
    )
    assert ring.rate(64) == ring.bandwidth  # a cube of v4 is closed, a smaller slice is open
    assert ring.rate(32) == 0.5 * ring.bandwidth
    jax = case_of(row | {"hardware": "TPU v6e", "framework": "MaxText"})
    assert jax.rates.links.inside.rate(64) == 0.5 * jax.rates.links.inside.bandwidth
    assert jax.layout.overlaps == "tensor"


def test_nothing_runs_beside_computation_on_intel_s_gpus() -> None:
    row = RUN | {"num_gpus": "24", "gpus_per_node": "12", "framework": "PyTorch 2.11 FSDP"}
    case = case_of(row | {"hardware": "Max 1550 tiles"})
    alone, beside = (
        predict_step(case.shape, case.timed.replace(overlap=how), case.rates).total
        for how in ("none", "auto")
    )
    assert case.timed.overlap.collectives == "none"
    assert alone > 1.05 * beside


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H100 SXM", "H100 SXM5 80GB"),
        ("8xH100", "H100 SXM5 80GB"),
        ("H100x8", "H100 SXM5 80GB"),
        ("HGX H100", "H100 SXM5 80GB"),
        ("a100_80g", "A100 SXM4 80GB"),
        ("M2 Max", "Apple M2 Max (38-core)"),
        ("7900 XTX", "Radeon RX 7900 XTX"),
        ("6x AMD Radeon RX 7900 XTX", "Radeon RX 7900 XTX"),
        ("Graphcore IPU-POD16", "IPU GC200"),
        ("ct5lp-hightpu-4t", "TPU v5e"),
        ("Standard_NC6s_v3", "V100 PCIe 16GB"),
        ("BM.GPU4.8 (OCI)", "A100 SXM4 40GB"),
        ("Selene, 64 nodes", "A100 SXM4 80GB"),
        ("8x Ascend NPU", "Ascend 910B"),  # of no date, but its model is of the 910B's years
        ("摩尔线程 MTT S5000", "MTT S5000"),
        ("64x Graphcore Bow IPU (ipu-pod64-POPART)", "Bow IPU"),
        ("昇腾910B", "Ascend 910B"),
        ("8 x Ascend NPUs (Ascend910 64G)", "Ascend 910B"),  # the 910A has 32 GB
        ("Strix Halo", "Radeon 8060S"),
        ("RTX 5060 Ti", "RTX 5060 Ti 16GB"),
        ("Atlas 800T A2 1x8", "Ascend 910B"),
        ("NVIDIA_H800-80GB 2x8", "H800 SXM5 80GB"),
        ("M3 128GB", "Apple M3 Max (40-core)"),
        ("M1Pro 32GB", "Apple M1 Pro (16-core)"),
        ("First-gen Gaudi, 8 devices", "Gaudi1"),
        ("Gaudi", "Gaudi1"),  # the first had no number
        ("8x Gaudi HL-225", "Gaudi2"),
        ("Gaudi, 8 cards", "Gaudi1"),
        ("max 1550, 2 tile(s)", "Data Center GPU Max 1550 stack"),
    ],
)
def test_a_chip_is_known_however_it_is_written(text: str, name: str) -> None:
    assert case_of(RUN | {"num_gpus": "8", "chip": text}).chip.name == name


def test_a_node_of_more_devices_than_modules_has_dies() -> None:
    whole = case_of(RUN | {"num_gpus": "8", "chip": "MI250X", "gpus_per_node": "4"})
    die = case_of(RUN | {"num_gpus": "8", "chip": "MI250X", "gpus_per_node": "8"})
    assert die.chip.name == "MI250X GCD" and die.rates.memory_bytes * 2 == whole.rates.memory_bytes
