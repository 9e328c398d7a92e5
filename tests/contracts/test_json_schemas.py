"""What --json prints is what docs/schemas/ says; tools/json_schemas.py writes them."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tools import json_schemas

from trainrig.cli.main import VERBS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "schemas"

NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
WITHOUT = {
    "attach": "prints its job: jobs",
    "prices": "its list is an array of rows",
    "remote": "remote list and remote audit stand for the verbs that set something up",
    "data": "data-prepare, data-info",
    "build": "build-check, build-suggest, build-cluster",
    "demo": "prints a report's",
    "metrics": "serves, and says where",
}
NOT_SAMPLED = {"env-try-extension", "job", "detach"}
"""They need a compiler for CUDA, or a job that runs."""
# Other inputs than those from which the schemas were made.
ASKED = {
    "catalog": "catalog A100-SXM4-80GB",
    "catalog-compare": "catalog --compare A30 L40S",
    "selftest-list": "selftest --list --only train.loss",
    "predict": "predict --model llama-7B --on H100-SXM5-80GB --gpus 16 --zero 3",
    "predict-beside": "predict --model bert-large --on A30 --on L40S",
    "fits": "fits --model bert-large --on RTX-3090 --batch-size 62",
    "plan": "plan --model gpt2 --on RTX-3090 --gpus 2 --global-batch 16",
    "cost": "cost --buy 9000 --rent-per-hour 2 --years 2 --currency EUR",
    "report": "demo",
    "published": "published A100-PCIe-40GB",
    "top": "top",
    "doctor": "doctor",
    "inspect": "inspect",
    "error": "catalog nothing",
}


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize(("name", "typed"), ASKED.items())
def test_what_is_printed_is_as_its_schema_says(
    name: str, typed: str, trainrig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*typed.split(), "--json"]
    monkeypatch.setattr(sys, "argv", ["trainrig", *words])
    _, out, _ = trainrig(*words)
    jsonschema.validate(json.loads(out), schema(name))
    assert set(json.loads(out)) <= set(schema(name)["properties"])


def test_a_value_of_another_type_and_a_key_that_is_gone_are_seen() -> None:
    right = {"schema": "trainrig.error/1", "error": "x", "hint": "y", "exit_code": 2}
    jsonschema.validate(right, schema("error"))
    for wrong in (right | {"exit_code": "2"}, right | {"schema": "x"}, {"error": "x"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema("error"))


def test_every_verb_and_every_other_answer_has_a_schema() -> None:
    assert sorted(json_schemas.SAMPLES) == NAMES
    assert set(VERBS) <= {*NAMES, *WITHOUT}
    named = {
        node.value.value
        for path in (ROOT / "src" / "trainrig" / "cli").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.keyword)
        and node.arg == "schema"
        and isinstance(node.value, ast.Constant)
    }
    assert named <= set(NAMES)
    by_position = {
        name
        for path in (ROOT / "src" / "trainrig" / "cli").glob("*.py")
        for name in re.findall(r'print_(?:json|values)\(.*, "([a-z-]+)"\)', path.read_text())
    }
    assert "predict-row" in by_position and by_position <= {*NAMES, *NOT_SAMPLED}


def test_the_page_is_made_of_the_schemas() -> None:
    text = (ROOT / "docs" / "json.md").read_text()
    assert text == text.partition(json_schemas.MARK)[0] + json_schemas.page()


def test_every_meaning_is_of_a_key_that_is_printed() -> None:
    printed = {
        key for name in NAMES for key in json_schemas.re_keys((FOLDER / f"{name}.json").read_text())
    }
    assert set(json_schemas.meanings_of()) <= printed
