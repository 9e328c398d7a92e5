"""The errors' exit codes are an interface: scripts and schedulers read them."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from trainrig import errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.UsageError, 2),
        (errors.DataError, 2),
        (errors.StoreError, 3),
        (errors.UnavailableError, 3),
        (errors.NeedsCompilerError, 3),
        (errors.NeedsGpuError, 3),
    ],
)
def test_each_error_ends_in_its_exit_code(kind: type[errors.TrainrigError], code: int) -> None:
    error = kind("what happened", "what to do")
    assert isinstance(error, errors.TrainrigError)
    assert (error.exit_code, str(error), error.hint) == (code, "what happened", "what to do")


def test_every_error_is_in_the_tree_at_the_top_of_the_file() -> None:
    assert errors.__doc__ is not None
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.TrainrigError)
    ]
    drawn = [kind for kind in kinds if f" {kind.__name__} " in errors.__doc__.replace("\n", " ")]
    assert sorted(kind.__name__ for kind in kinds) == sorted(kind.__name__ for kind in drawn)
    for kind in kinds[1:]:
        line = next(line for line in errors.__doc__.splitlines() if f" {kind.__name__} " in line)
        assert f" {kind.exit_code} " in line


def test_the_exit_codes_are_the_documented_ones() -> None:
    codes = (
        errors.EXIT_OK,
        errors.EXIT_FINDING,
        errors.EXIT_USAGE,
        errors.EXIT_INCOMPLETE,
        errors.EXIT_INTERRUPTED,
    )
    assert codes == (0, 1, 2, 3, 130)


def test_the_first_problem_of_many_is_one_short_printable_line() -> None:
    adapter = TypeAdapter(dict[str, dict[str, int]])
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python({"a\nb": {"c\x1b[31m": "x"}, "d": 1})
    text = errors.first_problem(caught.value)
    assert text == "c?[31m in [a?b] is 'x', not a whole number"
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python({"k" * 500: {"c": "x"}})
    assert len(errors.first_problem(caught.value)) == 200
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python(3)
    assert errors.first_problem(caught.value, "the file") == "the file is 3, not a table"


class Memory(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    bandwidth_gb_s: float = Field(1.0, gt=0)
    size_gib: float = 1.0


class ChipFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    memory: Memory | None = None
    parts: list[Memory] = []
    peaks: dict[Literal["bf16", "fp8"], float] = {}


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        ({"nmae": "x"}, "unknown key 'nmae'", "did you mean name?"),
        (
            {"name": "x", "memory": {"bandwith_gb_s": 3.0}},
            "unknown key 'bandwith_gb_s' in [memory]",
            "did you mean bandwidth_gb_s?",
        ),
        (
            {"name": "x", "parts": [{}, {"sise_gib": 3.0}]},
            "unknown key 'sise_gib' in [parts 2]",
            "did you mean size_gib?",
        ),
        (
            {"name": "x", "peaks": {"bf17": 1.0}},
            "unknown key 'bf17' in [peaks]",
            "did you mean bf16?",
        ),
        ({}, "name is missing", "do this"),
        ({"name": None}, "name is null, not text in quotes", "do this"),
        ({"name": 4}, "name is 4, not text in quotes", "do this"),
        ({"name": "x", "memory": 4}, "memory is 4, not a table", "do this"),
        ({"name": "x", "parts": 4}, "parts is 4, not a list", "do this"),
        (
            {"name": "x", "memory": {"bandwidth_gb_s": "fast"}},
            "bandwidth_gb_s in [memory] is 'fast', not a number",
            "do this",
        ),
        (
            {"name": "x", "memory": {"bandwidth_gb_s": 0.0}},
            "bandwidth_gb_s in [memory] is 0.0, not above 0",
            "do this",
        ),
        ([], "the file is a list, not a table", "do this"),
    ],
)
def test_a_file_that_is_wrong_is_told_by_table_key_and_what_was_meant(
    content: object, message: str, hint: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        ChipFile.model_validate(content)
    error = errors.invalid(caught.value, "chip.toml", ChipFile, "do this")
    assert (error.message, error.hint) == (f"chip.toml: {message}", hint)


class Open(BaseModel):
    """A file that may hold more than what is read of it."""

    hidden_size: int
    num_layers: int = 1


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ({"hidde_size": 3}, "did you mean hidden_size? hidde_size is written there"),
        ({"other": 3}, "do this"),
        ({"num_layers": 3}, "do this"),
    ],
)
def test_a_missing_key_that_was_misspelt_is_named(content: object, hint: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Open.model_validate(content)
    error = errors.invalid(caught.value, "config.json", Open, "do this")
    assert (error.message, error.hint) == ("config.json: hidden_size is missing", hint)
