"""The errors' exit codes are an interface: scripts and schedulers read them."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

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
    assert text.startswith("a?b.c?[31m: ") and "integer" in text
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python({"k" * 500: {"c": "x"}})
    assert len(errors.first_problem(caught.value)) == 200
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python(3)
    assert errors.first_problem(caught.value, "the file").startswith("the file: ")
