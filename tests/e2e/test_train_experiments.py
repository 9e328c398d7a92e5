"""Experiment files, contradictions, layouts as found, the parity rule: what needs no training."""

from __future__ import annotations

import ast
import itertools
import math
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from training_summaries import (
    findings_of,
    printed,
    stored_view,
    summary_of,
    trained_once,
    training_view,
)
from trainrig.errors import DataError, UnavailableError, UsageError
from trainrig.process.supervisor import STALL_TIMEOUT
from trainrig.report.render.markdown import to_markdown
from trainrig.report.training_report import training_document
from trainrig.runner.batch_size import state_bytes
from trainrig.runner.train_prepare import requested_experiments, stall_timeout_of
from trainrig.runner.train_records import Trained, rates_of, slug_of
from trainrig.selftest.train_faults import RANK_FACTS
from trainrig.train.config import Experiment, check
from trainrig.train.config_file import KEYS, experiment_of, read_file, tiny
from trainrig.train.engines import ENGINES, Result, Site, check_site, engine_of
from trainrig.train.layout_check import differences, observed_layout, requested_layout
from trainrig.train.parity import Probe, disagreement, is_reference, probe_of, reference_of
from trainrig.workload import find, model_flops, parameters

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "experiments").glob("*.toml"))


def write(folder: Path, text: str) -> Path:
    path = folder / "x.toml"
    path.write_text(text)
    return path


# ---- files

SWEPT = ("seed", "steps", "batch_size")
ODD = ("-1", "1.5", "nan", "1e30", "true", '""', '"a\\nb"', '"\\u0000"', "1979-05-27", "[1]", "{}")
TABLES = ("# all\n{}\n", "# one\n[[experiment]]\n{}\n", "[tiny]\n{}\n")


def test_a_file_is_shared_keys_own_keys_and_a_sweep(tmp_path: Path) -> None:
    text = """
model = "gpt2"
batch_size = 4
tokens = 4096
seq_len = 64
[[experiment]]
name = "alone"
[[experiment]]
name = "two"
nproc = 2
optimizer = "adamw-fused"
[sweep]
precision = ["fp32", "bf16"]
grad_accum = [1, 2]
"""
    found = read_file(write(tmp_path, text), {})
    assert [(e.name, e.precision, e.grad_accum) for e in found[:4]] == [
        ("alone, precision fp32, grad_accum 1", "fp32", 1),
        ("alone, precision fp32, grad_accum 2", "fp32", 2),
        ("alone, precision bf16, grad_accum 1", "bf16", 1),
        ("alone, precision bf16, grad_accum 2", "bf16", 2),
    ]
    assert len(found) == 8
    assert [e.steps for e in found[:2]] == [16, 8]  # 4096 tokens by 256 and 512
    assert {e.optimizer for e in found} == {"adamw-fused"}
    assert found[-1].global_samples == 16


def test_the_tiny_scale_changes_the_model_and_what_the_file_says(tmp_path: Path) -> None:
    text = 'model = "bert-large"\nseq_len = 512\nbatch_size = 8\n[tiny]\nseq_len = 64\n'
    (full,) = read_file(write(tmp_path, text), {})
    (small,) = read_file(write(tmp_path, text), {"scale": "tiny"})
    assert (full.model, full.seq_len) == ("bert-large", 512)
    assert (find(small.model).family, small.seq_len, small.batch_size) == ("bert", 64, 8)
    assert find(small.model).num_layers == 2


def test_the_tiny_scale_keeps_every_axis_and_shrinks_data_parallelism(tmp_path: Path) -> None:
    """64 ranks are 16; heads, layers and stages are enough for what splits them."""
    text = """
model = "llama-7B:num_layers=30"
name = "large"
nproc = 64
tp = 4
pp = 2
interleave = 2
zero = 1
grad_accum = 4
"""
    (full,) = read_file(write(tmp_path, text), {})
    (small,) = read_file(write(tmp_path, text), {"scale": "tiny"})
    assert (full.mesh.ranks, full.mesh.dp) == (64, 8)
    assert (small.mesh.ranks, small.mesh.dp, small.tp, small.pp) == (16, 2, 4, 2)
    assert small.name == "large, 16 of 64 ranks"
    shape = find(small.model)
    assert (shape.attention.num_heads, shape.num_layers) == (
        4,
        5,
    )  # 30 layers in 4 stages are not equal
    text = 'model = "llama-7B"\nnproc = 64\ntp = 8\npp = 4\nname = "deep"\ngrad_accum = 4\n'
    hybrid = 'model = "llama-7B"\nnproc = 64\nzero = 3\nshard_size = 32\nname = "hybrid"\n'
    (small,) = read_file(write(tmp_path, hybrid), {"scale": "tiny"})
    assert (small.mesh.ranks, small.shard_size) == (16, 8)
    (whole,) = read_file(write(tmp_path, text), {"scale": "tiny"})
    assert whole.mesh.ranks == 64  # no rank could go without an axis: refused where it is trained


@pytest.mark.parametrize("model", ["gpt2", "gpt-neo-1.3B", "bert-base", "t5-base", "llama-1B"])
def test_every_family_has_a_tiny_shape(model: str) -> None:
    assert find(tiny(model)).family == find(model).family


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('model = "gpt2"\nbatchsize = 3\n', 2, "no 'batchsize'"),
        ("[[experiment]]\nnproc = 2\n[[experiment]]\nzero = 1\n", 4, "there is one"),
        ("nproc = 2\nzero = 4\n", 2, "zero = 4"),
        ('batch_size = "four"\n', 1, "batch_size = 'four'"),
        ("steps = 3\ntokens = 9\n", 1, "steps and tokens"),
        ("\n[sweep]\nzero = 3\n", 3, "swept over a list"),
        ("[sweep]\nzeal = [3]\n", 2, "no 'zeal'"),
        ("experiment = 3\n", 1, "experiments are tables"),
        ('[[experiment]]\nname = "a"\n[[experiment]]\nname = "a"\n', None, "two experiments"),
        ('\noffload = "host"\n', 2, "offload host"),
        ('model = "gpt2"\nseq_len = 4096\n', 2, "1024 positions"),
        ('seed = 1\nmodel = "gpt2:num_layers=0"\n', 2, "model = .*needs num_layers"),
        ('seed = 1\nmodel = "nosuch.json"\n', 2, "model = .*cannot read"),
        ('seed = 1\nmodel = "' + "x" * 5000 + '"\n', 2, "unknown model"),
        ("seed = 1\nshard_size = -1\n", 2, "shard_size = -1"),
        ("seed = 1\ntokens = inf\n", 2, "tokens = inf"),
        ("seed = 1\nexperiment = []\n", 2, "experiments is empty"),
        ("seed = 1\nexperiment = [{zeal = 1}]\n", 2, "no 'zeal'"),
        ("seed = 1\nsweep.zero = 3\n", 2, "swept over a list"),
        ('seed = 1\nname = "a\\u001b[2J"\n', 2, "name = "),
        ("steps = 1\n[sweep]\n" + "".join(f"{k} = [{'1, ' * 999}]\n" for k in SWEPT), 2, "at most"),
        ('[[experiment]]\nframework = "megatrain"\n', 2, "unknown framework"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int | None, words: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=words) as caught:
        read_file(path, {})
    assert "\n" not in caught.value.message
    if line is not None:
        assert caught.value.message.startswith(f"{path}, line {line}: ")


@pytest.mark.parametrize("key", KEYS)
def test_any_value_of_any_key_is_taken_or_refused_with_its_line(tmp_path: Path, key: str) -> None:
    """Values of every type that TOML has, in every table."""
    said = []
    for table, value in itertools.product(TABLES, ODD):
        text = table.format(f"{key} = {value}")
        path = write(tmp_path, text)
        line = 1 + text[: text.index(f"{key} = ")].count("\n")
        try:
            read_file(path, {"scale": "tiny"} if "[tiny]" in text else {})
        except UsageError as error:
            said.append((error.message, f"{path}, line {line}: "))
    assert len(said) >= 2 * 6
    for words, place in said:
        assert words.startswith(place)
        assert words.isprintable() and len(words) < 300 + len(place)


def test_a_table_speaks_for_all_that_it_holds(tmp_path: Path) -> None:
    """A scale of its own, a length in other words, and no sweep that is swept away."""
    text = 'model = "gpt2"\nsteps = 9\n[[experiment]]\ntokens = 4096\nscale = "tiny"\n'
    text += "[[experiment]]\n[tiny]\nseq_len = 64\nbatch_size = 4\n"
    small, full = read_file(write(tmp_path, text), {})
    assert (small.steps, small.seq_len, find(small.model).num_layers) == (16, 64, 2)
    assert (full.steps, full.seq_len, full.model) == (9, 256, "gpt2")
    (small, _) = read_file(write(tmp_path, text), {"steps": 3, "scale": "tiny"})
    assert small.steps == 3
    text = "[sweep]\nseed = [1, 2]\nseq_len = [16, 32]\n[tiny]\nseq_len = 8\n"
    with pytest.raises(UsageError, match=r"line 2: seed is swept, and --seed"):
        read_file(write(tmp_path, text), {"seed": 3})
    with pytest.raises(UsageError, match=r"line 3: seq_len is swept, and \[tiny\]"):
        read_file(write(tmp_path, text), {"scale": "tiny"})
    assert [e.seq_len for e in read_file(write(tmp_path, text), {})] == [16, 32, 16, 32]


def test_thousands_of_experiments_are_read_at_once(tmp_path: Path) -> None:
    seeds = ", ".join(map(str, range(2000)))
    found = read_file(write(tmp_path, f"[sweep]\nseed = [{seeds}]\n"), {})
    assert len({e.name for e in found}) == 2000


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no TOML"):
        read_file(write(tmp_path, "a = = 1"), {})
    for text in ("seed = " + "9" * 5000, "seed = " + "[" * 5000, "seed = 1\nseed = 2"):
        with pytest.raises(DataError, match="no TOML") as caught:
            read_file(write(tmp_path, text), {})
        assert caught.value.message.isprintable()
    with pytest.raises(DataError, match="a pipe or a device"):
        read_file(Path("/dev/zero"), {})
    with pytest.raises(DataError, match="cannot read"):
        read_file(tmp_path / "absent.toml", {})
    (found,) = read_file(write(tmp_path, "\ufeffseed = 3\r\n"), {})
    assert found.seed == 3


def test_the_command_line_beside_a_file_changes_little(tmp_path: Path) -> None:
    path = write(tmp_path, 'model = "gpt2"\n')
    (found,) = requested_experiments(path, {"steps": 3, "scale": None})
    assert found.steps == 3
    with pytest.raises(UsageError, match="--zero beside a file"):
        requested_experiments(path, {"zero": 3})
    (found,) = requested_experiments(path, {"tokens": 4096.0})
    assert found.steps == 2  # of 8 samples of 256
    (found,) = requested_experiments(
        None, {"model": "gpt2", "scale": "tiny", "nproc": 2, "zero": None}
    )
    assert (found.name, found.nproc, found.zero) == ("native", 2, 0)


def test_how_long_a_silence_is_borne_can_be_said() -> None:
    assert (stall_timeout_of(None), stall_timeout_of(90.0), stall_timeout_of(3600.0)) == (
        STALL_TIMEOUT,
        90.0,
        3600.0,
    )
    for seconds in (0.5, 7200.0):
        with pytest.raises(UsageError):
            stall_timeout_of(seconds)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize("scale", ["full", "tiny"])
def test_the_files_that_are_handed_out_can_be_read(path: Path, scale: str) -> None:
    found = read_file(path, {"scale": scale})
    assert found
    for experiment in found:
        check(experiment)
        engine_of(experiment.framework).check(experiment)


def test_there_are_files() -> None:
    assert "parity.toml" in [path.name for path in FILES]


# ---- contradictions and what a machine lacks


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"nproc": 0}, "nproc = 0"),
        ({"zero": 2}, "there is one"),
        ({"nproc": 2, "shard_size": 2}, "nothing is sharded"),
        ({"nproc": 4, "zero": 3, "shard_size": 3}, "cannot be cut into groups of 3"),
        ({"nproc": 2, "offload": "host"}, "offload host"),
        (
            {"framework": "huggingface", "nproc": 2, "zero": 3, "precision": "fp16"},
            "fp16 scales its loss",
        ),
        ({"parallel": "dataparallel", "nproc": 2, "zero": 3, "device": "cuda"}, "every weight"),
        # accelerate takes the request, trains with DDP and says nothing: see the next test.
        ({"framework": "huggingface", "nproc": 2, "zero": 3}, "accelerate would run DDP"),
        ({"framework": "huggingface", "nproc": 2, "zero": 1, "device": "cuda"}, "no such stage"),
        ({"framework": "huggingface", "recompute": "selective"}, "no selective"),
        ({"framework": "huggingface", "steps": 2**31 - 1}, "learning rate of each"),
    ],
)
def test_what_contradicts_itself_is_a_sentence(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        experiment_of({"model": "gpt2", **keys})
    assert "\n" not in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("keys", "site", "words"),
    [
        ({"nproc": 3}, Site(gpus=0, cores=2), "3 ranks, and 2 cores"),
        ({"nproc": 4, "device": "cuda"}, Site(gpus=1, cores=8), "4 ranks, and 1 GPU:"),
        ({"device": "cuda"}, Site(gpus=0, cores=8), "^1 rank, and 0 GPUs:"),
        ({"p2p": False}, Site(gpus=0, cores=2), "p2p"),
        ({"parallel": "dataparallel", "device": "cuda"}, Site(gpus=0, cores=2), "0 GPUs"),
        ({"parallel": "dataparallel", "nproc": 2}, Site(gpus=2, cores=2), "a matter of GPUs"),
    ],
)
def test_what_the_machine_lacks_is_a_sentence(keys: dict[str, Any], site: Site, words: str) -> None:
    with pytest.raises(UnavailableError, match=words):
        check_site(experiment_of({"model": "gpt2", **keys}), site)


def test_an_engine_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("trainrig.process.python_env.metadata.version", nothing)
    monkeypatch.setattr("trainrig.process.python_env.find_spec", lambda _: None)
    assert ENGINES["native"].missing() == "torch is not installed"


# ---- layouts as found


def test_sharding_that_was_silently_left_out_is_seen() -> None:
    """Seen with transformers 5.23 and accelerate 1.15 on the CPU: FSDP was asked for, DDP ran."""
    asked = requested_layout(
        Experiment.of(framework="huggingface", nproc=2, zero=3, batch_size=4, precision="fp32")
    )
    assert differences(asked, observed_layout(RANK_FACTS)) == [
        "zero: asked 3, found 0 (DistributedDataParallel)",
        "shard_ranks: asked 2, found 1 (DistributedDataParallel)",
    ]


@pytest.mark.parametrize(
    ("facts", "zero"),
    [
        ({}, 0),
        ({"states": 500}, 1),
        ({"states": 500, "gradients": 500}, 2),
        ({"states": 500, "gradients": 500, "weights": 500, "weights_between": 870}, 3),
        ({"states": 500, "ranks": 1}, 0),
        ({"states": 0, "moments": 0, "masters": 500}, 1),
    ],
)
def test_the_stage_follows_from_what_a_rank_holds(facts: dict[str, Any], zero: int) -> None:
    assert observed_layout({**RANK_FACTS, **facts}).sharding.zero == zero


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"ranks": 1}, "ranks: asked 2, found 1"),
        ({"micro_batches": 2}, "grad_accum: asked 1, found 2"),
        ({"micro_tokens": 512}, "micro_tokens: asked 1024, found 512"),
        ({"optimizer": "SGD"}, "optimizer: asked AdamW, found SGD"),
        ({"compiled": True}, "compile: asked False, found True"),
        ({"weight_dtype": "bfloat16"}, "precision: asked fp32, found bf16"),
        ({"gradient_dtype": "bfloat16"}, "gradient_precision: asked fp32, found bf16"),
        ({"reduce_dtype": "bfloat16"}, "gradient_precision: asked fp32, found bf16"),
        ({"master_dtype": "bfloat16"}, "master_precision: asked fp32, found bf16"),
        ({"block_forwards": 2}, "recompute: asked none, found full"),
        ({"fused": False}, "fused_optimizer: asked True, found False"),
        ({"device": "cuda:1"}, "device: asked cpu, found cuda"),
    ],
)
def test_a_difference_is_told_with_both_values(facts: dict[str, Any], word: str) -> None:
    asked = requested_layout(Experiment.of(nproc=2, batch_size=4, precision="fp32"))
    assert differences(asked, observed_layout(RANK_FACTS)) == []
    (said,) = differences(asked, observed_layout({**RANK_FACTS, **facts}))
    assert said.startswith(word)


def test_where_the_weights_wait_says_whether_they_are_offloaded() -> None:
    on_gpu = {**RANK_FACTS, "device": "cuda:0", "master_device": "cpu"}
    asked = requested_layout(Experiment.of(nproc=2, batch_size=4, precision="fp32", device="cuda"))
    assert differences(asked, observed_layout(on_gpu)) == [
        "offload: asked False, found True (DistributedDataParallel)"
    ]
    assert differences(asked, observed_layout(on_gpu | {"master_device": "cuda"})) == []


# ---- parity

REFERENCE = Probe(losses=(6.928, 6.9, 6.8, 6.7, 6.6), grad_norms=(1.5708, 1.5, 1.4, 1.3, 1.2))


def test_the_same_numbers_are_comparable() -> None:
    assert disagreement(REFERENCE, REFERENCE, "fp32") is None


def test_a_loss_of_the_wrong_scale_is_not_comparable() -> None:
    """Seen with transformers 5.23, BERT on two ranks: loss and gradient are twice what they are."""
    twice = Probe(losses=(13.856, *REFERENCE.losses[1:]), grad_norms=(3.1415, 1.5, 1.4, 1.3, 1.2))
    said = disagreement(twice, REFERENCE, "fp32")
    assert said is not None and said.startswith("loss of step 0: 13.856") and "2 times" in said


def test_a_gradient_of_the_wrong_scale_is_seen_behind_equal_losses() -> None:
    twice = Probe(losses=REFERENCE.losses, grad_norms=(3.1416, *REFERENCE.grad_norms[1:]))
    said = disagreement(twice, REFERENCE, "fp32")
    assert said is not None and said.startswith("gradient norm of step 0")


@pytest.mark.parametrize(
    ("dtype", "factor", "fine"),
    [
        ("fp32", 1.00005, True),
        ("fp32", 1.0005, False),
        ("bf16", 1.015, True),
        ("bf16", 1.03, False),
        ("fp32", math.nan, False),
    ],
)
def test_later_losses_have_the_tolerance_of_their_precision(
    dtype: str, factor: float, fine: bool
) -> None:
    later = (*REFERENCE.losses[:3], REFERENCE.losses[3] * factor, REFERENCE.losses[4])
    own = Probe(losses=later, grad_norms=REFERENCE.grad_norms)
    assert (disagreement(own, REFERENCE, dtype) is None) == fine


def test_what_is_no_number_is_not_comparable() -> None:
    """No value is taken for 0: a reference may have no number either."""
    odd = Probe(losses=(6.928, None, 6.8, 6.7, 6.6), grad_norms=REFERENCE.grad_norms)
    for own, reference in ((odd, REFERENCE), (REFERENCE, odd), (odd, odd)):
        said = disagreement(own, reference, "fp32")
        assert said is not None and said.startswith("loss of step 1: ") and "nan" in said


def test_fewer_steps_are_no_comparison() -> None:
    short = Probe(losses=REFERENCE.losses[:2], grad_norms=REFERENCE.grad_norms[:2])
    assert disagreement(short, REFERENCE, "fp32") == "2 of 5 steps were trained"


def test_a_reference_trains_on_the_same_samples_in_one_process() -> None:
    own = Experiment.of(
        nproc=4, batch_size=2, grad_accum=3, zero=3, framework="huggingface", precision="bf16"
    )
    reference = reference_of(own)
    assert reference.global_samples == own.global_samples == 24
    assert (reference.nproc, reference.batch_size, reference.framework) == (1, 2, "native")
    assert is_reference(reference, own)
    assert not is_reference(reference.replace(precision="fp32"), own)
    assert not is_reference(reference.replace(batch_size=1), own)
    assert not is_reference(reference.replace(seed=1), own)
    assert not is_reference(own, own)
    probe = probe_of(own)
    assert (probe.optimizer, probe.update.clip, probe.update.weight_decay, probe.nproc) == (
        "sgd",
        0.0,
        0.0,
        4,
    )


# ---- what is told of it


def row(step: int, seconds: float = 0.5, **parts: Any) -> dict[str, Any]:
    used = {"data_wait": 0.0, "forward": 0.2, "backward": 0.24, "optimizer": 0.05}
    used |= {"other": 0.01} | parts
    return {"step": step, "loss": 9.0 - step, "grad_norm": 1.0, "time": seconds, **used}


def trained(**changes: Any) -> Trained:
    own = Experiment.of(
        model="gpt2-small-cpu",
        name="two",
        nproc=2,
        batch_size=4,
        seq_len=256,
        precision="fp32",
        device="cpu",
    )
    rows = tuple(row(step, 9.0 if step < 3 else 0.5) for step in range(8))
    result = Result(rows=rows, facts=RANK_FACTS, memory=1e6, probe=REFERENCE)
    return trained_once(own, **{"result": result, "compared": True} | changes)


def test_rates_are_those_of_the_steps_behind_the_first() -> None:
    rates = rates_of(trained())
    assert rates["sample_rate"] == pytest.approx(8 / 0.5)
    assert rates["token_rate"] == pytest.approx(8 * 256 / 0.5)
    shape = find("gpt2-small-cpu")
    assert rates["flop_rate"] == pytest.approx(model_flops(shape, 4, 256) / 0.5)
    # Beside the products a device computes norms and activations.
    assert rates["hardware_flop_rate"] == pytest.approx(rates["flop_rate"], rel=0.05)
    again = trained()
    again.experiment = again.experiment.replace(recompute="full")
    assert rates_of(again)["hardware_flop_rate"] > 1.1 * rates_of(again)["flop_rate"]


def test_the_summary_adds_up() -> None:
    found = summary_of(trained())
    assert sum(found["breakdown"].values()) == pytest.approx(found["step_time_s"])
    assert found["row_verdict"] == "agreed"
    asked, observed = found["layout_asked"], found["layout_found"]
    assert {name: observed[name] for name in asked if observed[name] is not None}.items() <= (
        asked.items()
    )


def test_every_fault_is_a_finding() -> None:
    assert findings_of(trained()) == ()
    facts = RANK_FACTS | {"ranks": 1}
    wrong = trained(result=Result(rows=trained().first.result.rows, facts=facts))
    assert [f.id for f in findings_of(wrong)] == ["layout-not-as-asked"]
    assert wrong.word == "DIFFERS"
    apart = trained(not_comparable="loss of step 0: 13.856")
    assert [f.id for f in findings_of(apart)] == ["not-comparable"]
    assert apart.word == "DIFFERS"
    other = tuple(row(step, other=0.2, forward=0.01) for step in range(8))
    slow = trained(result=Result(rows=other, facts=RANK_FACTS))
    assert [f.id for f in findings_of(slow)] == ["time-in-no-part"]


def test_the_tables_show_every_experiment_and_why_one_failed() -> None:
    alone = trained()
    alone.experiment = alone.experiment.replace(name="one|process\x1b[2J")
    rows = [summary_of(alone), summary_of(trained(not_comparable="loss of step 0: 13.856"))]
    document = training_document(training_view(*rows))
    text = printed(document)
    assert "2 ranks, fp32, as DistributedDataParallel" in text
    assert "DIFFERS: two: loss of step 0: 13.856" in text
    assert "16.0 sample/s" in text and "\x1b" not in text
    assert "one\\|process" in to_markdown(document)
    failed = summary_of(trained(result=Result(), reason="rank 1 was ended by SIGKILL"))
    assert "-" in printed(training_document(training_view(failed)))


def test_the_least_that_a_rank_needs_shrinks_with_sharding() -> None:
    keys = {"model": "llama-7B", "nproc": 8, "precision": "bf16"}
    whole, shared = (state_bytes(experiment_of(keys | {"zero": zero})) for zero in (0, 3))
    assert whole > 90e9 and whole > 3 * shared
    assert shared < 17e9  # a rank draws its own part alone: 24 GB cards will do
    offloaded = state_bytes(experiment_of(keys | {"zero": 3, "offload": "host"}))
    assert offloaded < 4e9
    trainer = state_bytes(
        experiment_of(keys | {"zero": 3, "framework": "huggingface", "device": "cuda"})
    )
    assert trainer >= 4 * parameters(find("llama-7B")).total  # begins with all weights


def test_names_become_file_names() -> None:
    assert slug_of("ZeRO-3, bf16/../..") == "zero-3-bf16"
    assert slug_of("…") == "experiment"


# What drivers take of ours: the clock of a step needs no more than they do.
TIMER = ROOT / "src/trainrig/train/native/step_timer.py"
DRIVERS = sorted((ROOT / "src/trainrig/train/drivers").glob("*.py"))


@pytest.mark.parametrize("path", [*DRIVERS, TIMER], ids=lambda path: path.name)
def test_a_driver_knows_nothing_of_us_but_the_data(path: Path) -> None:
    """It runs in its engine's environment, which has no models or engine of ours."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    external = {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}
    allowed = (
        "torch",
        "transformers",
        "deepspeed",
        "megatron",
        "trainrig.data",
        "trainrig.process",
        "trainrig.train.drivers",
        "trainrig.train.native.step_timer",
        "trainrig.train.native.breakdown",
        "trainrig.train.native.traffic",
        "trainrig.train.native.host_sums",
        "trainrig.train.native.gpu",
    )
    assert all(name.startswith(allowed) for name in external), external


def test_a_stored_run_shows_its_experiments_on_every_page() -> None:
    """Terminal, markdown and HTML; what a stranger's file holds instead is left out."""
    from reports import markdown
    from trainrig.record import RunView
    from trainrig.report.run_report import render_html

    alone = trained()
    alone.experiment = alone.experiment.replace(name="<b>one</b>")
    view = stored_view(alone, trained(not_comparable="loss of step 0: 13.856"))
    page = render_html([view])
    assert "<h2>Experiments</h2>" in page and "&lt;b&gt;one&lt;/b&gt;" in page
    assert "<b>one</b>" not in page and "loss of step 0: 13.856" in page
    assert "observed layout" in markdown(view)
    odd: Any = {"experiments": ({"name": 3}, {"losses": "x"})}
    assert "<h2>Experiments</h2>" not in render_html([RunView(name="r", series=odd)])
