"""What is true of families stands in one table, with its sources; nothing else looks at names."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

import trainrig
from trainrig.workload import families
from trainrig.workload.families import FamilyFacts, facts_of
from trainrig.workload.presets import named

SOURCE = Path(trainrig.__file__).parent
LLAMA = named("llama-7B")


def test_each_rule_tells_by_something_and_says_where_it_stands() -> None:
    fields = {field.name for field in dataclasses.fields(FamilyFacts)}
    told_by = {"family", "variant", "name", "name_has", "mixture", "vectors", "vectors_above"}
    for rule in families._rules():
        assert rule["source"] and rule["facts"].keys() <= fields
        assert told_by & rule.keys() and rule.keys() <= told_by | {"facts", "source"}


def test_each_fact_is_true_of_some_family() -> None:
    stated = {name for rule in families._rules() for name in rule["facts"]}
    assert stated == {field.name for field in dataclasses.fields(FamilyFacts)}


@pytest.mark.parametrize(
    ("vectors", "outer", "caps", "heads"),
    [
        (0, False, False, False),
        (2 * LLAMA.hidden, True, True, False),
        (2 * LLAMA.hidden + 2 * LLAMA.attention.head_dim, True, False, True),
    ],
    ids=["Gemma 1", "Gemma 2", "Gemma 3"],
)
def test_generations_of_gemma_are_told_by_their_norms(
    vectors: int, outer: bool, caps: bool, heads: bool
) -> None:
    facts = facts_of(dataclasses.replace(LLAMA, variant="gemma", vectors=vectors))
    assert (facts.outer_norms, facts.caps_scores, facts.head_norms) == (outer, caps, heads)


def test_a_later_rule_wins() -> None:
    t5 = named("t5-large")
    assert facts_of(t5).rms_norm
    assert not facts_of(dataclasses.replace(t5, name="facebook/BART-large")).rms_norm


@pytest.mark.parametrize("package", ["workload", "predict"])
def test_nothing_else_asks_what_a_shape_is_called(package: str) -> None:
    """No shape's name or variant is looked into, or compared, but where a file of it is written."""
    asked = []
    for path in (SOURCE / package).rglob("*.py"):
        if path.name in ("families.py", "hf_config.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            asked += [f"{path.name}:{one.lineno}" for one in _looked_at(node) if _is_called(one)]
    assert not asked


def _looked_at(node: ast.AST) -> list[ast.expr]:
    """What is compared, or whose method is called."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return [node.func.value]
    return []


def _is_called(node: ast.expr) -> bool:
    return ast.unparse(node).endswith(("shape.name", "shape.variant"))
