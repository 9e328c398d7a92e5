"""The classic sequence as a file: its small scale, what of it is skipped where, what it chooses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from training_summaries import stored_view
from trainrig.analysis.judge_training import judge_trainings
from trainrig.errors import NeedsGpuError, UsageError
from trainrig.record import Outcome, Status, Verdict
from trainrig.runner.train_prepare import (
    at_full_scale,
    lacks,
    requested_experiments,
    this_site,
)
from trainrig.runner.train_records import Trained
from trainrig.train.config import Experiment
from trainrig.train.config_file import read_file
from trainrig.train.engines import Site

FILE = Path(__file__).resolve().parents[2] / "experiments" / "classic.toml"
TWO_CORES = Site(gpus=0, cores=2)


def test_the_small_scale_keeps_what_each_step_changes() -> None:
    """Batch 8 and 11 stay apart; the checkpointed batch is twice the others, not six times."""
    small = {own.name: own for own in read_file(FILE, {"scale": "tiny"})}
    assert len(small) == 42 and {own.seq_len for own in small.values()} == {64}
    assert [own.batch_size for own in small.values()][:7] == [8, 8, 11, 11, 11, 22, 8]
    full = {own.name: own for own in read_file(FILE, {})}
    assert [own.batch_size for own in full.values()][:7] == [8, 8, 11, 11, 11, 66, 8]
    assert small["BERT, fp32"].optimizer == "adamw" and full["BERT, fp32"].precision == "fp32"


def test_the_tiny_table_of_an_experiment(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    text = 'model = "gpt2"\nseq_len = 512\n[[experiment]]\nbatch_size = 9\n{}[tiny]\nseq_len = 64\n'
    path.write_text(text.format("tiny = { batch_size = 3, seq_len = 32 }\n"))
    (small,), (full,) = read_file(path, {"scale": "tiny"}), read_file(path, {})
    assert (small.batch_size, small.seq_len, full.batch_size, full.seq_len) == (3, 32, 9, 512)
    for wrong, words in (
        ("tiny = 3", "line 5: tiny is a table"),
        ("tiny = { depth = 3 }", "line [35]: an experiment has no 'depth'"),
    ):
        path.write_text(text.format(wrong + "\n"))
        with pytest.raises(UsageError, match=words):
            read_file(path, {})
    path.write_text(text.format("tiny = { seed = 3 }\n") + "[sweep]\nseed = [1, 2]\n")
    with pytest.raises(UsageError, match="seed is swept"):
        read_file(path, {"scale": "tiny"})


def test_what_only_gpus_have_is_skipped_on_a_processor_and_nothing_else() -> None:
    small = read_file(FILE, {"scale": "tiny"})
    needs_gpu = [own.name for own in small if isinstance(lacks(own, TWO_CORES), NeedsGpuError)]
    assert needs_gpu == [
        "BERT, Hugging Face, 8-bit optimizer",
        "BERT, tf32",
        "BERT, Hugging Face, tf32",
        "GPT-2, without P2P",
        "GPT-2, accumulation without P2P",
        "GPT-2, torch.nn.DataParallel",
        "GPT-2, Megatron, TP2, checkpointing",
        "GPT-2, Hugging Face, QLoRA",
    ]
    assert len(small) - len(needs_gpu) >= 24
    frameworks = {own.framework for own in small if own.name not in needs_gpu}
    assert frameworks == {"native", "huggingface", "deepspeed", "megatron"}
    said = lacks(next(own for own in small if not own.placement.p2p), TWO_CORES)
    assert said is not None and said.message == "p2p off is a matter of GPUs"
    plain = [
        own for own in small if not own.kernels.trainer and own.quantize == "none"
    ]  # bitsandbytes'
    one = [lacks(own.replace(device="cuda"), Site(gpus=1, cores=8)) for own in plain]
    assert all(isinstance(error, NeedsGpuError) for error in one if error) and any(one)


def trained(name: str, **more: Any) -> Trained:
    return Trained(experiment=Experiment.of(name=name), compared=True, **more)


def verdict_on(*trained: Trained) -> Verdict:
    return judge_trainings(stored_view(*trained))


def test_a_run_is_complete_without_what_only_gpus_have() -> None:
    skipped = {"status": Status.SKIPPED, "reason": "a matter of GPUs"}
    found = verdict_on(trained("a"), trained("b", needs_gpu=True, **skipped))
    assert found.outcome is Outcome.MEASURED  # one process of ours: compared with nothing
    assert (
        found.reason.startswith("1 experiment:") and "1 skipped for want of a GPU" in found.reason
    )
    assert found.reason.endswith("b")
    again = Trained(experiment=Experiment.of(name="c", recompute="full"), compared=True)
    assert verdict_on(trained("a"), again).outcome is Outcome.PASS
    lacking = verdict_on(trained("a"), trained("b", **skipped))
    assert lacking.outcome is Outcome.INCOMPLETE and "b: a matter of GPUs" in lacking.reason


def test_some_of_a_file_are_chosen_by_name() -> None:
    chosen = requested_experiments(FILE, {"scale": "tiny", "only": ("gpt-2, acc",)})
    assert [own.name for own in chosen] == [
        "GPT-2, accumulation",
        "GPT-2, accumulation without P2P",
    ]
    with pytest.raises(UsageError, match="'T5'") as caught:
        requested_experiments(FILE, {"only": ("GPT-2", "T5")})
    assert caught.value.hint is not None and "BERT, fp32" in caught.value.hint
    with pytest.raises(UsageError, match="--only"):
        requested_experiments(None, {"model": "gpt2", "only": ("a",)})


def test_published_figures_are_those_of_the_full_scale() -> None:
    keys = {"scale": "tiny", "only": ("BERT",), "device": "cpu"}
    small, full = requested_experiments(FILE, keys), at_full_scale(FILE, keys)
    assert [own.name for own in small] == [own.name for own in full]
    assert {own.model for own in full} == {"bert-large"} and full[0].seq_len == 512
    assert at_full_scale(None, keys) == ()


def test_what_is_wrong_at_full_scale_alone_does_not_stop_a_tiny_run(tmp_path: Path) -> None:
    path = tmp_path / "long.toml"
    path.write_text('model = "gpt2"\nseq_len = 4096\n[tiny]\nseq_len = 64\n')
    assert (
        requested_experiments(path, {"scale": "tiny"})
        and at_full_scale(path, {"scale": "tiny"}) == ()
    )


@pytest.mark.acceptance
def test_the_whole_file_trains(
    trainrig: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row agrees with one process, is declared beforehand, or wants a GPU and is counted."""
    monkeypatch.chdir(tmp_path)
    words = ("train", str(FILE), "--scale", "tiny", "--device", "cpu", "--json")
    code, out, err = trainrig(*words)
    (tmp_path / "classic.json").write_text(out)
    assert code == 0, err
    rows = {row["name"]: row for row in json.loads(out)["experiments"]}
    wanted, site = {}, this_site()
    for own in requested_experiments(FILE, {"scale": "tiny", "device": "cpu"}, lambda: site):
        needs_gpu = isinstance(lacks(own, site), NeedsGpuError)
        trained = "agreed" if own.expected.comparable else "NOT COMPARABLE"
        wanted[own.name] = "skipped" if needs_gpu else trained
    found = {name: row["row_verdict"] for name, row in rows.items()}
    assert found == wanted, {name: rows[name]["reason"] for name in rows if rows[name]["reason"]}
    in_bf16 = 0 if site.arithmetic[None].is_emulated("bf16") else 2
    assert len(rows) == 42 and list(found.values()).count("agreed") == 32 + in_bf16
    frameworks = {row["framework"] for row in rows.values() if row["row_verdict"] == "agreed"}
    assert frameworks == {"native", "huggingface", "deepspeed", "megatron"}
