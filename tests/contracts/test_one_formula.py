"""One formula: parameters of a rank and bytes of a GPU are the same numbers for all who ask."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from trainrig.benchmarks import training as qualified_step
from trainrig.catalog import require_chip
from trainrig.prediction.cluster import Cluster
from trainrig.prediction.fit.memory_options import fit
from trainrig.prediction.prediction import predict
from trainrig.prediction.scenario import Question
from trainrig.prediction.search import price
from trainrig.prediction.search.space import Space
from trainrig.prediction.step.communication import MeshSizes
from trainrig.runner import expectations
from trainrig.runner.batch_size import guess
from trainrig.runner.targets import Target
from trainrig.train.config import Experiment, case_of
from trainrig.workload import NAMED, ModelShape, named, parameters
from trainrig.workload.adapters import adapter_parameters
from trainrig.workload.layout import Layout, is_legal
from trainrig.workload.memory import memory
from trainrig.workload.memory.pipeline_stage import places, stage_of
from trainrig.workload.programs import FRAMEWORKS

MODELS = sorted(NAMED)
CHIP = require_chip("A100 SXM4 80GB")


def layouts(shape: ModelShape) -> list[Layout]:
    """A grid of what can be run: frameworks, splits, stages of ZeRO, with and without adapters."""
    grid = itertools.product(FRAMEWORKS, (1, 2), (1, 2), (0, 1, 2, 3), (0, 8))
    every = [
        Layout.of(
            gpus=8,
            tp=tp,
            pp=pp,
            zero=zero,
            lora_rank=rank,
            framework=framework,
            grad_accum=4,
            seq_len=128,
            offload="host" if framework == "deepspeed" and zero == 2 else "none",
        )
        for framework, tp, pp, zero, rank in grid
    ]
    return [layout for layout in every if is_legal(shape, layout)]


def lora_parameters(shape: ModelShape, rank: int) -> int:
    """Adapters of ``rank`` on all matrices of all blocks: what is trained instead of the model."""
    plain = shape.num_layers * adapter_parameters(shape, rank)
    return plain + shape.num_decoder_layers * adapter_parameters(shape, rank, decoder=True)


def by_hand(shape: ModelShape, layout: Layout, place: str) -> float:
    """Of one rank of a stage: matrices are split, norms are not.

    Of stages that are not equal the last, then the first have a block less than the longest.
    """
    h, norm = shape.hidden, shape.hidden * (2 if shape.norm_bias else 1)
    whole = parameters(shape)
    blocks, crossed = shape.num_layers, shape.num_decoder_layers
    num_norms = 2 * blocks + 3 * crossed
    within = num_norms * norm + blocks * shape.vectors
    final = whole.norms - within
    matrices, norms = whole.attention + whole.ffn, within
    ends = whole.embedding + whole.head
    if layout.mesh.pp > 1:
        assert not crossed and h
        longest = -(-blocks // layout.mesh.pp)
        lacking = longest * layout.mesh.pp - blocks
        here = (longest - (lacking >= {"last": 1, "first": 2, "inner": 1000}[place])) / blocks
        matrices, norms = matrices * here, norms * here
        at_last = whole.head + shape.head.tied * whole.embedding
        ends = {"last": at_last, "first": whole.embedding, "inner": 0}[place]
        final *= place == "last"
    return (matrices + ends) / layout.mesh.tp + norms + final


@pytest.mark.parametrize("model", MODELS)
def test_memory_and_time_count_the_same_parameters(model: str) -> None:
    shape = named(model)
    found = layouts(shape)
    assert len(found) >= 10
    for layout in found:
        stages = [stage_of(shape, layout, place) for place in places(shape, layout)]
        mesh = MeshSizes(shape, layout)
        for stage, place in zip(stages, places(shape, layout), strict=True):
            expected = by_hand(shape, layout, place)
            assert float(stage.num_parameters) == pytest.approx(expected, rel=1e-9), layout
        most = max(float(stage.num_parameters) for stage in stages)
        assert mesh.stage_parameters == pytest.approx(most, rel=1e-12), layout
        trained = max(float(stage.num_trained) for stage in stages)
        assert mesh.trained == pytest.approx(trained, rel=1e-12), layout
        assert trained == most or layout.lora.rank


@pytest.mark.parametrize("model", MODELS)
def test_one_gpu_holds_all_parameters_and_all_adapters(model: str) -> None:
    shape = named(model)
    layout = Layout.of(seq_len=1, kernels="flash")
    assert stage_of(shape, layout, "last").num_parameters == pytest.approx(
        parameters(shape).total, rel=1e-12
    )
    adapted = stage_of(shape, layout.replace(lora_rank=8), "last")
    assert adapted.num_trained == lora_parameters(shape, 8)
    assert MeshSizes(shape, layout.replace(lora_rank=8)).trained == lora_parameters(shape, 8)


def test_adapters_of_an_encoder_decoder() -> None:
    """Each block has them, and cross-attention in the decoder's."""
    shape, rank = named("t5-large"), 8
    attention, ffn = 4 * 2 * 1024, 2 * (1024 + 4096)
    assert lora_parameters(shape, rank) == rank * 24 * (3 * attention + 2 * ffn) == 8_650_752


@pytest.mark.parametrize("model", MODELS)
def test_predict_fits_and_plan_state_the_same_bytes(model: str) -> None:
    shape = named(model)
    for layout in layouts(shape)[::7]:
        cluster = Cluster(chip=CHIP, gpus=int(layout.mesh.gpus))
        question = Question(shape=shape, layout=layout, cluster=cluster)
        needed = memory(shape, layout)
        assert predict(question).memory == needed
        space = Space(shape=shape, base=layout, global_batch=int(layout.global_batch))
        assert price(space, layout, cluster.rates()).memory == needed.total
    assert fit(question).memory == needed


GPU = Target(torch_device="cuda:0", name=CHIP.name, index=0, memory_bytes=80 * 2**30, chip=CHIP)
TRAININGS: list[dict[str, Any]] = [
    {},
    {"precision": "fp32", "recompute": "full"},
    {"recompute": "selective", "grad_accum": 2, "compile": True},
    {"nproc": 2, "zero": 1},
    {"nproc": 4, "zero": 3},
    {"nproc": 2, "framework": "huggingface"},
]


@pytest.mark.parametrize("model", MODELS)
def test_train_asks_with_the_layout_that_is_predicted(model: str) -> None:
    """The batch search, what is predicted before training, and the step that qualifies."""
    for changes in TRAININGS:
        check_training(model, changes)


def check_training(model: str, changes: dict[str, Any]) -> None:
    experiment = Experiment.of(model=model, batch_size=2, seq_len=128, device="cuda", **changes)
    shape, layout = named(model), experiment.predicted_layout
    needed = memory(shape, layout)
    batch = guess(experiment, 80 * 2**30)
    if batch > 1:
        assert memory(shape, layout.replace(batch_size=batch)).total <= 80 * 2**30
        more = memory(shape, layout.replace(batch_size=batch + 1)).shown
        assert more > 80 * 2**30 or batch == 4096
    predicted = expectations._memory(experiment, GPU)
    assert predicted.value == float(needed.allocated)
    if experiment.nproc == 1:
        assert qualified_step.memory(case_of(experiment, "")) == needed.allocated
    stage = stage_of(shape, layout, "last")
    assert np.asarray(stage.num_parameters) == pytest.approx(parameters(shape).total)
