"""Trainer's breakdown by a clock of our own: its parts are those of our engine."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers")
pytest.importorskip("accelerate", reason="needs accelerate")
from safetensors.torch import load_file

from trainrig.train.drivers import common, huggingface
from trainrig.train.drivers import huggingface_timer as driver
from trainrig.train.drivers.huggingface_model import rank_of_adapters, with_adapters
from trainrig.train.native.breakdown import STEPS, Recorder
from trainrig.train.native.step_timer import Stopwatch


class Clock:
    """Stands still but for what the test lets pass."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


class Silent:
    """Nobody is told anything."""

    def __call__(self, *_: Any, **__: Any) -> None:
        pass

    set_position = __call__


@pytest.fixture
def clock() -> Clock:
    return Clock()


def trainer(clock: Clock) -> Any:
    """A Trainer of one step of two micro-batches that was never given a model."""
    found: Any = driver.Timed.__new__(driver.Timed)
    found.watch = Stopwatch(clock, lambda start, end: end - start)
    found.steps = []
    found.losses, found.norms, found.rates = [torch.tensor(9.0)], [2.0], [0.1]
    found.options = {"batch_size": 4, "grad_accum": 2, "seq_len": 8, "steps": 2}
    found.emit = found.events = Silent()
    found._recorded = ExitStack()
    return found


def step(clock: Clock, found: Any) -> dict[str, float]:
    """A delay of its own size in each part."""
    found.steps.append(found.watch.begin())
    clock.passes(1.0)
    found._part("data_wait", found.steps[-1].start)
    for _ in range(2):
        start = found.watch.mark()
        clock.passes(2.0)
        found._part("forward", start)
        start = found.watch.mark()
        clock.passes(3.0)
        found._part("backward", start)
    found._update_from = found.watch.mark()
    clock.passes(4.0)
    found.step_ended()
    clock.passes(0.25)
    found.watch.end()
    (row,) = found.rows()
    return row


def test_each_delay_is_found_in_its_own_part(clock: Clock) -> None:
    row = step(clock, trainer(clock))
    expected = {
        "data_wait": 1.0,
        "forward": 4.0,
        "backward": 6.0,
        "optimizer": 4.0,
        "other": 0.25,
        "time": 15.25,
    }
    assert {name: row[name] for name in expected} == expected


def test_steps_behind_those_asked_for_are_profiled_and_told_of_alone(clock: Clock) -> None:
    """What is trained ends before: its rows, its memory, its energy."""
    found, said = trainer(clock), []
    found.args = SimpleNamespace(device=torch.device("cpu"))
    found.emit = lambda event, **content: said.append((event, content.get("steps")))
    found._trained = lambda: said.append(("rows", None))
    found._recorder = Recorder()
    for _ in range(2 + STEPS + 1):
        found.steps.append(found.watch.begin())
        found._update_from = found.watch.mark()
        torch.ones(8).sum()
        found.step_ended()
    told = [(event, steps) for event, steps in said if event != "alive"]
    assert [event for event, _ in told] == ["trained", "rows", "breakdown"]
    assert len(told[-1][1] or ()) == STEPS
    assert all(each["own_s"] == each["step_s"] > each["idle_s"] for each in told[-1][1] or ())


def test_a_loss_is_the_mean_over_the_ranks(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainer multiplies each rank's share by the number of ranks."""
    monkeypatch.setattr(driver.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(driver.dist, "all_reduce", lambda losses: losses.add_(7.0))
    monkeypatch.setattr(driver.common, "SIZE", 2)
    row = step(clock, trainer(clock))
    assert row["loss"] == (9.0 + 7.0) / 2
    assert row["tokens"] == 2 * 4 * 2 * 8


READ_BY_TWO = """
from types import SimpleNamespace
import torch
from trainrig.train.drivers import huggingface_timer as driver
found = driver.Timed.__new__(driver.Timed)
found.train_dataset = [{"x": torch.tensor(number * number)} for number in range(4)]
found.args = SimpleNamespace(
    dataloader_num_workers=2, dataloader_persistent_workers=False, dataloader_pin_memory=False
)
loader = found.get_train_dataloader()
print(loader.num_workers, found._loader.num_workers, [int(each["x"]) for each in loader])
"""


@pytest.mark.acceptance
def test_processes_read_where_they_are_asked_for() -> None:
    """The loader was made without them: Trainer at its best read in its own process.

    In a process of its own: torch forks its readers, and one with many threads may wait for ever.
    """
    words = [sys.executable, "-c", READ_BY_TWO]
    # A process that has threads of OpenMP may be forked while one holds a lock.
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True, env=env)
    assert done.stdout == "2 2 [0, 1, 4, 9]\n"  # in their order


def test_another_project_s_kernels_are_read_off_the_live_modules() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    assert driver.common.code_of("liger_kernel", model) == []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    forward.__module__, forward.__qualname__ = "liger_kernel.transformers.x", "LigerNorm.forward"
    model[1].forward = forward.__get__(model[1])  # as Liger does it
    assert driver.common.code_of("liger_kernel", model) == ["LigerNorm"]


@pytest.mark.parametrize(("name", "moments"), [("adafactor", 0), ("adamw", 2), ("sgd", 0)])
def test_rows_and_columns_of_a_matrix_are_no_moments(name: str, moments: int) -> None:
    """Counted as states they would look like a shard of one that is spread over ranks."""
    from transformers.optimization import Adafactor

    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 8))
    made: Any = {"adafactor": Adafactor, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    fixed = {"scale_parameter": False, "relative_step": False} if name == "adafactor" else {}
    optimizer = made(model.parameters(), lr=0.1, **fixed)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    facts = common.facts_of(model, model.parameters(), optimizer, "cpu")
    whole = sum(weight.numel() for weight in model.parameters())
    assert facts["moments"] == moments
    assert facts["states"] == (whole if moments else 0) and facts["masters"] == whole


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks for it
def test_adapters_are_found_in_live_modules_and_frozen_weights_are_not() -> None:
    pytest.importorskip("peft", reason="needs peft")
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = transformers.LlamaForCausalLM(config)
    assert rank_of_adapters(model) is None
    before = model(torch.arange(8)[None]).logits
    adapted = with_adapters(model, {"lora_rank": 4, "quantize": "none", "recompute": "none"})
    assert rank_of_adapters(adapted) == 4
    assert torch.equal(adapted(torch.arange(8)[None]).logits, before)  # they begin as no change
    trained = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    assert {name.split(".lora_")[0].rsplit(".", 1)[1] for name in trained} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }


@pytest.mark.parametrize(
    ("chip", "precision", "expected"),
    [
        ((7, 5), "fp16", None),
        ((7, 0), "fp32", None),
        ((8, 0), "bf16", True),
        ((9, 0), "fp32", False),
    ],
)
def test_tf32_is_asked_for_where_there_is_some(
    chip: tuple[int, int], precision: str, expected: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainer raises at the start where a Turing card is asked for it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: chip)
    assert huggingface.tf32_for(precision) is expected


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_frozen_weights_are_rounded_where_transformers_loads_them(
    recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of layers, bitsandbytes' are on no device and take no weights."""
    import transformers

    given: dict[str, Any] = {}
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=8)
    )

    def load(folder: str, **how: Any) -> Any:
        given.update(how, weights=load_file(Path(folder) / "model.safetensors"))
        return model

    def prepare(own: Any, **how: Any) -> Any:
        given.update(how)
        return own

    monkeypatch.setattr(type(model), "from_pretrained", load)
    monkeypatch.setattr(transformers, "BitsAndBytesConfig", SimpleNamespace)
    monkeypatch.setenv("LOCAL_RANK", "1")
    peft = SimpleNamespace(
        prepare_model_for_kbit_training=prepare,
        LoraConfig=SimpleNamespace,
        get_peft_model=lambda own, _: own,
    )
    monkeypatch.setitem(sys.modules, "peft", peft)
    options = {"lora_rank": 4, "quantize": "nf4-double", "precision": "bf16"}
    assert with_adapters(model, options | {"recompute": recompute}) is model
    assert torch.equal(given["weights"]["transformer.wte.weight"], model.transformer.wte.weight)
    assert given["device_map"] == {"": 1}
    assert given["use_gradient_checkpointing"] == (recompute == "full")
    how = given["quantization_config"]
    assert (how.bnb_4bit_quant_type, how.bnb_4bit_use_double_quant) == ("nf4", True)
    assert how.bnb_4bit_compute_dtype == torch.bfloat16
