"""The public functions: the page of examples runs, and they ask what the command line asks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import trainrig
from trainrig.cli import fits as fits_verb
from trainrig.cli import plan as plan_verb
from trainrig.cli import predict as predict_verb
from trainrig.store.bundle import open_bundle, unpack

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
DEMO = ROOT / "src" / "trainrig" / "report" / "demo.bundle"
OF_THE_VERB = {
    *("chip", "cluster", "rates", "tokens", "days", "top", "what_if", "write"),
    *("price", "cases", "simulate", "as_json", "html", "md", "pdf", "help_all"),
}
"""Options that are no property of a training; ``on`` takes the files of chips and clusters."""


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_page_runs(
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert EXAMPLES[number].count("\n") <= 12
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLES[number], f"example {number}", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("verb", [predict_verb, fits_verb, plan_verb])
def test_python_takes_the_options_of_the_verb(verb: Any) -> None:
    options = {parameter.name for parameter in verb.command.params} - OF_THE_VERB
    assert options <= get_type_hints(trainrig.TrainingOptions).keys()


def test_the_version_is_the_package_s() -> None:
    assert re.match(r"\d+\.\d+", trainrig.__version__)


def test_it_answers_as_the_verb_does(trainrig: Callable[..., Any]) -> None:
    from trainrig.api import fits, plan, predict

    words = ("--model", "llama-7B", "--on", "RTX 4090", "--gpus", "8", "--json")
    asked = {"model": "llama-7B", "on": "RTX 4090", "gpus": 8}
    said = json.loads(trainrig("predict", *words, "--sequence-parallel", "--tp", "4")[1])
    found = predict(**asked, sequence_parallel=True, tp=4)  # type: ignore[arg-type]
    assert said["step_time_s"] == found.time
    assert json.loads(trainrig("fits", *words)[1])["verdict"] == fits(**asked).verdict  # type: ignore[arg-type]
    said = json.loads(trainrig("plan", *words, "--global-batch", "64")[1])
    assert said["best"] == plan(**asked, global_batch=64).to_dict()["best"]  # type: ignore[arg-type]


def test_a_bundle_is_redacted_unless_it_is_full(tmp_path: Path) -> None:
    run = unpack(DEMO, tmp_path / "runs")
    machine = json.loads((run / "machine.json").read_text())
    machine.setdefault("host", {})["hostname"] = "secret-host-7"
    (run / "machine.json").write_text(json.dumps(machine))
    for full in (False, True):
        bundle = tmp_path / f"{full}.bundle"
        trainrig.pack(run, bundle, full=full)
        _, files = open_bundle(bundle)
        assert any(b"secret-host-7" in data for data in files.values()) is full


def test_a_run_without_its_verdict_is_judged_as_the_verb_does(tmp_path: Path) -> None:
    run = unpack(DEMO, tmp_path / "runs")
    (run / "verdict.json").unlink(missing_ok=True)
    verdict = trainrig.read_run(run).verdict
    assert verdict is not None and "cut off" in verdict.reason
    assert "cut off" in trainrig.render_html(run)


def test_paths_are_text_or_path(tmp_path: Path) -> None:
    for path in (DEMO, str(DEMO)):
        assert trainrig.read_run(path).records
        assert "<html" in trainrig.render_html(path)
        assert not trainrig.compare(path, path).is_worse
    with pytest.raises(trainrig.TrainrigError, match="nothing"):
        trainrig.read_run(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[({"gpu": 8}, "gpu"), ({"zero": 9}, "zero"), ({"model": "no-such-model"}, "no-such")],
        *[({"gpus": "8"}, "gpus"), ({"gpus": 2.5}, "gpus"), ({"p2p": "yes"}, "p2p")],
        *[({"framework": 5}, "framework"), ({"gpus": True}, "gpus")],
    ],
)
def test_a_mistake_is_a_message_and_a_hint(options: dict[str, Any], message: str) -> None:
    with pytest.raises(trainrig.TrainrigError) as caught:
        trainrig.predict(**{"model": "gpt2", "on": "RTX 4090"} | options)  # type: ignore[arg-type]
    assert message in caught.value.message and caught.value.hint
