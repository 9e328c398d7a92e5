"""Published runs of the step that is asked about, and the host that would explain a slow one."""

from __future__ import annotations

import pytest

from trainrig.prediction import published_runs as module
from trainrig.prediction.prediction import Prediction, predict
from trainrig.prediction.published_runs import published_runs
from trainrig.prediction.scenario import question

BERT = {"model": "bert-large", "on": "RTX 4090", "framework": "huggingface", "precision": "fp32"}
BERT |= {"seq_len": 512, "kernels": "eager"}


def asked(**changes: object) -> Prediction:
    return predict(question(BERT | {"batch_size": 8} | changes))


def test_two_owners_of_one_card_and_what_lies_between_them() -> None:
    found = asked()
    near, slow = published_runs(found)
    assert near.ratio == pytest.approx(1.0, abs=0.12) and near.host_call_s is None
    assert slow.ratio == pytest.approx(2.7, abs=0.3)
    assert slow.host_call_s is not None and slow.host_call_s > 10 * found.rates.launch
    with_it = found.rates.replace(launch=slow.host_call_s)
    from trainrig.prediction.step import predict_step

    again = predict_step(found.question.shape, found.layout, with_it)
    assert float(again.total) == pytest.approx(slow.step_time_s, rel=0.02)


def test_another_batch_precision_or_card_is_another_step() -> None:
    assert not published_runs(asked(batch_size=9))
    assert not published_runs(asked(precision="tf32"))
    assert not published_runs(asked(on="RTX 3090"))


def test_runs_on_other_cards_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(module, "_run", lambda row, found: read.append(row["on"]))
    found = predict(question({"model": "gpt2-medium", "on": "Quadro RTX 8000", "seq_len": 384}))
    assert published_runs(found) == () and read
    assert {*read} == {"Quadro RTX 8000"}


def test_other_groups_of_layers_on_each_stage_are_another_step() -> None:
    asked = {"model": "gpt3-175B", "seq_len": 2048}
    asked |= {"on": "A100 SXM4 80GB", "gpus": 64, "tp": 8, "pp": 8, "grad_accum": 64}
    asked |= {"framework": "megatron", "precision": "fp16", "recompute": "full"}
    for groups, num in ((3, 1), (1, 0)):
        assert len(published_runs(predict(question(asked | {"interleave": groups})))) == num


def test_a_model_as_deep_and_wide_is_another_step() -> None:
    """Llama 3 8B has Llama 2 7B's layers and width; a padded vocabulary is the same model's."""
    layout = {"on": "H100 SXM5 80GB", "gpus": 16, "seq_len": 4096, "batch_size": 2, "zero": 3}
    layout |= {"framework": "native", "precision": "bf16", "recompute": "full"}
    assert published_runs(predict(question({"model": "llama-7B"} | layout)))
    assert published_runs(
        predict(
            question(
                {"model": "llama:num_layers=32,hidden=4096,num_heads=32,ffn=11008,vocab=32064"}
                | layout
            )
        )
    )
    assert not published_runs(predict(question({"model": "llama-3.1-8B"} | layout)))


def test_a_run_over_another_link_is_another_step() -> None:
    """Two RTX 3090 Ti: with a bridge 326 ms, over PCIe 468 ms, by one owner."""
    layout = {"model": "gpt2-medium", "on": "RTX 3090 Ti", "gpus": 2, "batch_size": 5}
    layout |= {"seq_len": 1024, "precision": "bf16"}
    for link, seconds in (("nvlink", 0.3259), ("pcie", 0.4677)):
        runs = published_runs(predict(question(layout | {"link": link})))
        assert {run.step_time_s for run in runs} == {seconds}
