"""Numbers at the edges: what is understood, what is refused, and how it reads."""

from __future__ import annotations

import contextlib
import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainrig.errors import UsageError
from trainrig.units import (
    duration_text,
    format_count,
    format_memory,
    format_quantity,
    format_share,
    format_time,
    one_line,
    parse_duration,
    parse_tokens,
    si_scale,
    signed_share,
)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (-0.31, "−31 %"),
        (-0.998, "−99.8 %"),
        (-0.99996, "−99.996 %"),
        (-1.0, "−100 %"),
        (1.0, "+100 %"),
    ],
)
def test_what_is_left_of_a_whole_is_not_lost(share: float, text: str) -> None:
    assert signed_share(share) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("45s", 45.0),
        ("4m", 240.0),
        ("4 min", 240.0),
        ("20 minutes", 1200.0),
        ("4m30s", 270.0),
        ("1h 30m", 5400.0),
        ("1.5h", 5400.0),
        ("500ms", 0.5),
        (" 2d ", 172800.0),
    ],
)
def test_a_duration_is_understood(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0s",
        "-4m",
        "+4m",
        "4 parsecs",
        "4M",
        "1e3",
        "inf",
        "nan",
        "m",
        "4m30",
        "4m,5s",
        "9" * 400,
    ],
)
def test_anything_else_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert caught.value.hint is not None
    assert "4m" in caught.value.hint


@pytest.mark.parametrize("number", ["4", "90", " 1.5 "])
def test_a_number_without_a_unit_is_refused_with_its_two_readings(number: str) -> None:
    typed = number.strip()
    with pytest.raises(UsageError) as caught:
        parse_duration(number, "--budget")
    assert f"--budget {typed}:" in caught.value.message
    for reading in (f"{typed} s", f"{typed} min"):
        assert reading in caught.value.message
    for spelling in (f"{typed}s", f"{typed}m"):
        assert spelling in (caught.value.hint or "")


@pytest.mark.parametrize("seconds", [0.5, 1.0, 45.0, 90.0, 240.0, 3600.0, 5400.0, 604800.0, 61.0])
def test_a_duration_is_written_as_it_is_read(seconds: float) -> None:
    assert parse_duration(duration_text(seconds)) == seconds


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert 0.0 < parse_duration(text) < math.inf


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.61e14, "FLOP/s", "161 TFLOPS"),
        (6.6e14, "OP/s", "660 TOPS"),
        (1.008e12, "B/s", "1.01 TB/s"),
        (999.7e9, "B/s", "1.00 TB/s"),
        (999.4e9, "B/s", "999 GB/s"),
        (2.52e9, "Hz", "2.52 GHz"),
        (0.0, "B/s", "0 B/s"),
        (-5.5e12, "FLOP/s", "-5.50 TFLOPS"),
        (0.00125, "s", "1.25 ms"),
        (3.14159, "", "3.14"),
        (9.996, "1", "10.0"),
        (math.inf, "W", "inf PW"),
    ],
)
def test_a_quantity_has_three_digits_and_its_prefix(value: float, unit: str, text: str) -> None:
    assert format_quantity(value, unit) == text


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("140e9", 1.4e11), ("10B", 1e10), ("1.5T", 1.5e12), ("300 M", 3e8), ("26000000", 2.6e7)],
)
def test_tokens_are_written_as_the_field_does(text: str, tokens: float) -> None:
    assert parse_tokens(text) == pytest.approx(tokens)


@pytest.mark.parametrize("text", ["", "B", "ten", "-1e9", "0", "1e99", "10X"])
def test_what_is_no_number_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a number of tokens"):
        parse_tokens(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (200.0, "3 min 20 s"),
        (180.0, "3 min"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h"),
        (244.0 * 60.0, "4 h 4 min"),
        (47.4 * 3600.0, "47 h 24 min"),
        (48.0 * 3600.0, "2 d"),
        (1e6, "11 d 14 h"),
        (1.0, "1.00 s"),
        (0.9996, "1.00 s"),
        (0.0123, "12.3 ms"),
        (4.5e-6, "4.50 µs"),
        (3e-10, "0.300 ns"),
        (0.0, "0 ns"),
    ],
)
def test_a_time_has_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


@given(st.floats(1.0, 1e17))
def test_a_rate_never_shows_four_digits_before_the_point(value: float) -> None:
    number = format_quantity(value, "B/s").split()[0]
    assert re.fullmatch(r"\d{1,3}(\.\d+)?", number)
    assert float(number) * si_scale(value, "B/s")[0] == pytest.approx(value, rel=0.006)


@given(st.floats(allow_nan=True, allow_infinity=True))
@example(-1.795e308)  # its three digits are infinity
@example(5e-324)
def test_no_number_breaks_the_formatters(value: float) -> None:
    assert format_time(value)
    assert format_quantity(value, "B/s")


def test_a_strangers_text_is_one_line_without_commands() -> None:
    assert one_line("a\nb\x1b[31mc\u202e µ×³") == "a?b?[31mc? µ×³"


def test_memory_is_binary_and_shares_are_percent() -> None:
    assert format_memory(24 * 2**30) == "24.0 GiB"
    assert format_share(0.873) == "87 %"
    assert format_share(0.0123) == "1.2 %"


@pytest.mark.parametrize(
    ("number", "text"), [(0.0, "0"), (-12_300.0, "-12.3k"), (math.nan, "nan"), (-0.5, "-0.500")]
)
def test_a_count_is_written_whatever_it_is(number: float, text: str) -> None:
    """A damaged record holds anything."""
    assert format_count(number) == text
