"""Numbers at the edges: what a person types, and what a person reads.

Inside the program every quantity is in base SI units (seconds, bytes, FLOP/s,
bytes/s, watts, hertz).  This module is the only place that converts.  SI
prefixes are powers of 1000; memory sizes that people know as powers of 1024
are printed with the binary prefixes (KiB, MiB, GiB).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import humanize

from trainrig.errors import UsageError

DAY = 86400.0
"""Seconds."""
_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([a-zµ]+)\s*")
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
_COUNT = re.compile(r"(\d+)\s*(k|m|g|ki|mi|gi)?b?", re.IGNORECASE)
_COUNT_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_DURATION_UNITS = {
    "ms": 1e-3,
    "d": DAY,
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("day", "days"), DAY),
}

# A second, a byte and a hertz are what they are; FLOP/s reads as TFLOPS in the field.
_SPELLING = {"FLOP/s": "FLOPS", "OP/s": "OPS", "IO/s": "IOPS"}
_SI_STEPS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_STEP_OF = {prefix: step for step, prefix in _SI_STEPS}
_TOKENS = re.compile(r"(\d{1,20}(?:\.\d{1,9})?(?:[eE]\+?\d{1,2})?)\s*([kKMBT]?)")
_TOKEN_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_LENGTH = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([km]?)")
_LENGTH_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_QUANTITY = re.compile(
    r"(?P<number>\d{1,9}(\.\d{1,9})?)\s*(?P<step>[kMGTP]?)(?P<unit>FLOPS|FLOP/s|OPS|OP/s|B/s)"
)
_TIME_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def parse_duration(text: str, name: str = "") -> float:
    """Return seconds in ``text``: ``45s``, ``4m``, ``1.5h``, ``1h30m``, ``500ms``, ``20 min``.

    A number without a unit is refused with its two readings: tools disagree on whether it is
    seconds or minutes.

    Args:
        text: What was typed.
        name: The option that takes it, for the message: ``--budget``.

    Raises:
        UsageError: For a number without a unit, anything else, zero and infinity included.
    """
    typed = text.strip()
    where = f"{name} " if name else ""
    if _NUMBER.fullmatch(typed) and float(typed):
        raise UsageError(
            f"{where}{typed}: {typed} s or {typed} min?", f"write {typed}s or {typed}m"
        )
    parts = _DURATION.findall(typed)
    is_whole = "".join(match[0] for match in _DURATION.finditer(typed)) == typed
    seconds = 0.0
    if is_whole and all(unit in _DURATION_UNITS for _, unit in parts):
        seconds = sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)
    if not 0.0 < seconds < math.inf:
        wanted = f"{name} {text!r} is not a duration" if name else f"not a duration: {text!r}"
        raise UsageError(wanted, "write it like 45s, 4m or 1.5h")
    return seconds


def duration_text(seconds: float) -> str:
    """Return a duration as `parse_duration` reads it: ``90s``, ``20m``, ``1.5h``, ``7d``."""
    for unit, size in (("d", DAY), ("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        if seconds >= size and (seconds / size * 2.0).is_integer():
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s" if seconds >= 1.0 else f"{seconds * 1e3:g}ms"


def parse_count(text: str, most: int) -> int:
    """Return a count or a number of bytes from 1 to ``most``: ``65536``, ``256MiB``, ``16Mi``.

    Raises UsageError for anything else.
    """
    match = _COUNT.fullmatch(text.strip())
    value = int(match[1]) * _COUNT_UNITS.get((match[2] or "").lower(), 1) if match else 0
    if not 1 <= value <= most:
        raise UsageError(f"not a size: {text!r}", f"a whole number from 1 to {most}")
    return value


def parse_tokens(text: str) -> float:
    """Return a number of tokens.

    ``140e9``, ``140B``, ``1.5T``, ``300M``.  Raises UsageError otherwise.
    """
    match = _TOKENS.fullmatch(text.strip())
    value = float(match[1]) * _TOKEN_UNITS[(match[2] or "").upper()] if match else 0.0
    if not 0.0 < value < 1e30:
        raise UsageError(f"not a number of tokens: {text!r}", "above 0, written like 140e9 or 140B")
    return value


def parse_length(text: str, name: str) -> int:
    """Return a number of tokens as models' context is written: ``8192``, ``8k``, ``128k``, ``1M``.

    Args:
        text: What was typed; k is 1,024 and M 1,024 k.
        name: The option, without its dashes.

    Raises:
        UsageError: It is none, or zero.
    """
    match = _LENGTH.fullmatch(text.strip().lower())
    value = float(match[1]) * _LENGTH_UNITS[match[2]] if match else 0.0
    if not 1.0 <= value < 1e15 or value != int(value):
        raise UsageError(f"{name} = {text}", "a whole number from 1, or as 8k, 128k, 4M")
    return int(value)


def parse_quantity(text: str) -> tuple[float, str]:
    """Return a rate and its unit: ``600TFLOPS`` is 6e14 FLOP/s, ``800 TOPS`` OP/s, ``3.2TB/s`` B/s.

    Raises UsageError for anything else, zero included.
    """
    match = _QUANTITY.fullmatch(text.strip())
    value = float(match["number"]) * _STEP_OF[match["step"]] if match else 0.0
    if match is None or not 0.0 < value < math.inf:
        raise UsageError(f"not a rate: {text!r}", "write it like 600TFLOPS, 800TOPS or 3.2TB/s")
    unit = match["unit"]
    return value, next((si_unit for si_unit, spelled in _SPELLING.items() if spelled == unit), unit)


def format_time(seconds: float, digits: int = 3) -> str:
    """Return ``seconds`` as people read them.

    ``1.25 ms``, ``3 min 20 s``, ``4 h 5 min``, ``3 d 2 h``.
    """
    if 60.0 <= seconds < math.inf:
        if round(seconds) < 3600:
            minutes, seconds_left = divmod(round(seconds), 60)
            return f"{minutes} min {seconds_left} s" if seconds_left else f"{minutes} min"
        if round(seconds / 3600.0) < 48:
            hours, minutes = divmod(round(seconds / 60.0), 60)
            return f"{hours} h {minutes} min" if minutes else f"{hours} h"
        days, hours = divmod(round(seconds / 3600.0), 24)
        return f"{days} d {hours} h" if hours else f"{days} d"
    step, unit = si_scale(seconds, "s", digits) if seconds else _TIME_STEPS[-1]
    return f"{_digits(seconds / step, digits)} {unit}"


def si_scale(value: float, unit: str, digits: int = 3) -> tuple[float, str]:
    """Return the divisor and the spelled unit that suit ``value``.

    ``(1e12, "TFLOPS")`` for 1.6e14 FLOP/s.

    An axis or a table column calls it once with its largest value, so that all
    of its numbers share one prefix.  Times are in s, ms, µs or ns.
    """
    if unit == "s":
        size = abs(_rounded(value, digits))
        return next(
            (scale_step for scale_step in _TIME_STEPS if size >= scale_step[0]),
            _TIME_STEPS[-1 if value else 0],
        )
    spelled = _SPELLING.get(unit, unit)
    size = abs(_rounded(value, digits))
    for step, prefix in _SI_STEPS:
        if size >= step:
            return step, prefix + spelled
    return 1.0, spelled


def format_quantity(value: float, unit: str, digits: int = 3) -> str:
    """Return ``value`` with three digits and an SI prefix.

    ``161 TFLOPS``, ``1.01 TB/s``, ``2.52 GHz``.
    """
    if unit == "s":
        return format_time(value, digits)
    if unit in ("", "1"):
        return _digits(value, digits)
    divisor, spelled = si_scale(value, unit, digits)
    return f"{_digits(value / divisor, digits)} {spelled}"


def format_count(number: float, digits: int = 3) -> str:
    """Three digits, and B for billions as the field counts tokens: ``12.3k``, ``140B``."""
    steps = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (0.0, ""))
    size = abs(_rounded(number, digits))
    step, letter = next((count_step for count_step in steps if size >= count_step[0]), steps[-1])
    return _digits(number / (step or 1.0), digits) + letter


def format_money(amount: float, currency: str) -> str:
    """Return ``34,000 CNY``; with cents below 100, with three digits that count below 0.1."""
    size = abs(amount)
    decimals = 0 if size >= 100.0 or amount == round(amount) else 2
    if 0.0 < size < 0.1:
        decimals = min(9, 2 - math.floor(math.log10(size)))
    return f"{amount:,.{decimals}f} {currency}".rstrip()


def format_memory(num_bytes: float) -> str:
    """Return a memory size with a binary prefix: ``24.0 GiB``."""
    return humanize.naturalsize(num_bytes, binary=True, format="%.1f")


def format_share(fraction: float) -> str:
    """Return a fraction as a percentage: ``0.873`` is ``87 %``, ``0.0123`` is ``1.2 %``."""
    percent = fraction * 100.0
    return f"{percent:.1f} %" if abs(percent) < 10.0 else f"{percent:.0f} %"


def one_line(text: str) -> str:
    """Return ``text`` as it can be printed anywhere: no line breaks, no terminal's commands."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _digits(value: float, digits: int = 3) -> str:
    """Significant digits, no exponent, no trailing dot."""
    rounded = _rounded(value, digits)
    if rounded == 0 or not math.isfinite(rounded):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:.{decimals}f}"


def _rounded(value: float, digits: int) -> float:
    """Rounded as it will be printed, so that 999.7 GB/s becomes 1.00 TB/s and not 1000 GB/s."""
    return float(f"{value:.{digits}g}")


def signed(value: float, unit: str) -> str:
    """Return a difference with its sign: ``−51.0 TFLOPS``."""
    return ("−" if value < 0 else "+") + format_quantity(abs(value), unit)


def signed_share(share: float) -> str:
    """Return a relative difference with its sign: ``−31 %``.

    What is left of a whole is never called nothing: ``−99.8 %``.
    """
    text = format_share(abs(share))
    digits = 1
    while -1.0 < share < 0.0 and text.startswith("100") and digits < _MOST_DIGITS:
        text = f"{abs(share) * 100.0:.{digits}f} %"
        digits += 1
    return ("−" if share < 0 else "+") + text


_MOST_DIGITS = 5


def binary(value: float) -> str:
    """Return a power of two as people write it: ``64 Ki``, ``16 Mi``; others are rounded."""
    for step, prefix in ((2**30, " Gi"), (2**20, " Mi"), (2**10, " Ki")):
        if value >= step:
            return f"{value / step:.4g}{prefix}"
    return f"{value:g} "


def range_text(low: float, high: float, unit: str) -> str:
    """Return ``142 to 166 TFLOPS``; both with units where prefixes differ, one where alike."""
    high_text = format_quantity(high, unit)
    return (
        high_text
        if high_text == format_quantity(low, unit)
        else _two_of_unit(low, "to", high, unit)
    )


def amount_of(value: float, ceiling: float, unit: str) -> str:
    """Return ``161 of 165 TFLOPS``; both with units where the prefixes differ."""
    return _two_of_unit(value, "of", ceiling, unit)


def _two_of_unit(first: float, word: str, last: float, unit: str) -> str:
    before, after = format_quantity(first, unit), format_quantity(last, unit)
    number, _, spelled = before.partition(" ")
    return f"{number if after.endswith(' ' + spelled) else before} {word} {after}"


def plain_name(key: str) -> str:
    """Return a setting's name for people: ``batch_size`` is ``batch size``."""
    return key.replace("_", " ")


def plain_value(value: object) -> str:
    """Return a setting's value for people: ``yes``, ``no``, ``none``, else as a file spells it."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value) or "none"


def counted(number: int, noun: str) -> str:
    """Return ``1 run``, ``2 runs``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def device_text(model: str | None, index: int | None) -> str:
    """Return ``RTX 4090 #1``; a host, which has no index, is its model."""
    return str(model) if index is None else f"{model} #{index}"


def capital(text: str) -> str:
    """With a capital letter, unless the first word is a name like ``fp16``."""
    first = text.split(" ", 1)[0]
    return text if any(letter.isdigit() for letter in first) else text[:1].upper() + text[1:]


def ranges(numbers: Iterable[int]) -> str:
    """Return ``0-3,8`` of rising numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
