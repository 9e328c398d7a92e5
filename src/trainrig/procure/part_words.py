"""Parts in a person's own words: ``2x RTX 4090``, ``1000 W ATX 3.1``, ``7950X``, ``技嘉 B650E``.

Each becomes the entry that a parts list would have (`entries_of`), so that flags and a file are
checked by one function.  Words that say little make a part of which little is known: a chip alone
is a card whose length, width and plugs no rule can compare, a chipset a board whose slots are not
known.  The rules that need them say so.  Chinese names are read by catalog/part_words.toml.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

import trainrig.catalog
from trainrig.catalog.lookup import find_chip
from trainrig.errors import UsageError
from trainrig.procure.part_catalog import find_part, load_parts, near_names
from trainrig.procure.parts import required_fields
from trainrig.procure.platforms import chipset_fields
from trainrig.record import read_toml

WORDS_FILE = Path(trainrig.catalog.__file__).parent / "part_words.toml"
PRESUMED_EFFICIENCY = 0.9
"""Efficiency of a power supply of which only the watts are named."""
Entry = dict[str, Any]
_COUNT = re.compile(r"\s*(\d{1,3})\s*[x×*]\s*(?=\D|\d+\s*gi?b\b)(.+)", re.IGNORECASE)
_COUNT_BEHIND = re.compile(r"(.+?)\s*[x×*]\s*(\d{1,3})\s*", re.IGNORECASE)
_KIT = re.compile(r"\b(\d{1,2})\s*[x×*]\s*(?=\d+\s*gi?b\b)", re.IGNORECASE)
_PRICE = re.compile(r"(.+?)\s*@\s*(\d+(?:\.\d+)?)\s*")
_NUMBER = r"(\d+(?:\.\d+)?)"
_CHIPSET = re.compile(r"\b([A-Z]{1,3}\d{2,3}E?)[MI]?\b")
_RADIATORS_MM = (120, 140, 240, 280, 360, 420, 480)


class _Ignored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    words: tuple[str, ...]


class _WordsFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    schema_: Annotated[Literal[1], Field(alias="schema")]
    brands: dict[str, str]
    terms: dict[str, str]
    ignored: _Ignored


@cache
def _words_file() -> _WordsFile:
    return read_toml(WORDS_FILE, _WordsFile, WORDS_FILE.name)


def entries_of(described: Mapping[str, Iterable[str]]) -> dict[str, list[Entry]]:
    """Return the tables of a parts list that descriptions by kind stand for.

    Raises:
        UsageError: Every description that means no part, or several, in one answer.
    """
    entries: dict[str, list[Entry]] = {}
    errors: list[UsageError] = []
    for kind, texts in described.items():
        for text in texts:
            try:
                entries.setdefault(kind, []).append(entry_of(kind, text))
            except UsageError as error:
                errors.append(error)
    if errors:
        raise all_of(errors)
    return entries


def all_of(errors: list[UsageError]) -> UsageError:
    """Return one error that says what several say, each hint once."""
    hints = dict.fromkeys(error.hint for error in errors if error.hint)
    return UsageError("; ".join(error.message for error in errors), "; ".join(hints) or None)


def entry_of(kind: str, text: str) -> Entry:
    """Return the entry of a parts list that a description stands for.

    Args:
        kind: One of `parts.KINDS`.
        text: A name or a description, with a count before it and the price of one behind it:
            ``2x RTX 4090 @ 12999``.

    Raises:
        UsageError: A description that means no part, or several.
    """
    priced = _PRICE.fullmatch(text)
    price = {"price": float(priced[2])} if priced else {}
    count, written = _counted(kind, priced[1] if priced else text)
    english = in_english(written)
    entry = (
        _named(kind, written)
        or _named(kind, english)
        or _described(kind, english)
        or _only_one(kind, english)
        or _without_brand(kind, english)
    )
    if entry is None:
        similar_names = near_names(kind, english)
        fields = ", ".join(required_fields(kind))
        hint = (
            f"{'did you mean ' + ' or '.join(similar_names) + '? else ' if similar_names else ''}"
        )
        raise UsageError(
            f"--{kind}: unknown {kind} {written!r}",
            f"{hint}in a file: [[{kind}]] part = {written!r} with {fields}",
        )
    if "part" not in entry:
        entry = {"part": written} | entry
    return entry | {"count": count} | price


def _counted(kind: str, text: str) -> tuple[int, str]:
    """Split a count from a description: ``2x RTX 4090``, ``RTX 4090 x2``, ``DDR5 4×32GB``."""
    if match := _COUNT.fullmatch(text):
        return int(match[1]), match[2].strip()
    if kind in ("gpu", "ram", "disk") and (match := _COUNT_BEHIND.fullmatch(text)):
        return int(match[2]), match[1].strip()
    if kind == "ram" and (match := _KIT.search(text)):
        return int(match[1]), f"{text[: match.start()]}{text[match.end() :]}".strip()
    return 1, text.strip()


def in_english(text: str) -> str:
    """Return a description with Chinese brands and terms in English."""
    if text.isascii():
        return text
    words = _words_file()
    for chinese, english in sorted(
        (words.brands | words.terms).items(), key=lambda pair: -len(pair[0])
    ):
        text = text.replace(chinese, f" {english} ")
    text = text.translate(str.maketrans("，、（）×", ",,()x"))
    return " ".join(text.split())


def without_brand(text: str) -> str:
    """Return a description without its maker and without words that no rule compares."""
    for brand in _words_file().brands.values():
        text = re.sub(rf"(?<!\w){re.escape(brand)}(?!\w)", " ", text, flags=re.IGNORECASE)
    ignored = set(_words_file().ignored.words)
    words = [word for word in text.split() if not set(_words(word)) <= ignored]
    return " ".join(words)


def _named(kind: str, words: str) -> Entry | None:
    part = find_part(kind, words)
    return None if part is None else {"part": part.name}


def _only_one(kind: str, words: str) -> Entry | None:
    """Return the catalog's part that has all of the words; refuse several by their names."""
    description = set(_words(words))
    names = [
        part.name
        for part in load_parts()[kind]
        if description and description <= set(_words(part.name))
    ]
    if len(names) > 1:
        name_list = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        raise UsageError(f"--{kind} {words!r} is one of: {name_list}", "give the whole name")
    return {"part": names[0]} if names else None


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())


def _described(kind: str, words: str) -> Entry | None:
    describe = _DESCRIBED.get(kind)
    return None if describe is None else describe(words)


def _without_brand(kind: str, words: str) -> Entry | None:
    """Return a part whose maker, or whose board's name, the catalog does not know."""
    unbranded = without_brand(words)
    entry = _described(kind, unbranded)
    if kind == "gpu" and entry is not None:
        return entry | _card_cooling(words)
    if kind == "board" and entry is None:
        return _board_of_chipset(words)
    return entry or _only_one(kind, unbranded)


def _card(words: str) -> Entry | None:
    chip = find_chip(words)
    if chip is None:
        return None
    if chip.board.cooling != "passive":
        return {"chip": chip.name}
    slots = {} if chip.board.slots is None else {"slots": float(chip.board.slots)}
    return {"chip": chip.name, "cooling": "passive"} | slots  # the vendor's only design


def _card_cooling(words: str) -> Entry:
    """Return how a card is cooled, where the words say so."""
    if re.search(r"\bwater\b|\bliquid\b|\bhydro\b|\baio\b", words, re.I):
        return {"cooling": "water"}
    return {"cooling": "blower"} if re.search(r"\bblower\b", words, re.I) else {}


def _board(words: str) -> Entry | None:
    """Return a board by its chipset alone."""
    return chipset_fields(words)


def _board_of_chipset(words: str) -> Entry | None:
    """Return a board whose name has a chipset in it: ``Gigabyte B650E AORUS Master``."""
    chipsets = dict.fromkeys(match[1] for match in _CHIPSET.finditer(words.upper()))
    boards = [board for name in chipsets if (board := chipset_fields(name)) is not None]
    return boards[0] if len(boards) == 1 else None


def _supply(words: str) -> Entry | None:
    """Return a supply by its watts, and its version of ATX where that is named."""
    match = re.fullmatch(_NUMBER + r"\s*w?(?:att)?(?:\s*,?\s*atx\s*(2|3\.0|3\.1))?", words, re.I)
    if match is None:
        return None
    name = f"{float(match[1]):g} W" + (f" ATX {match[2]}" if match[2] else "")
    atx = {"atx": match[2]} if match[2] else {}
    return {
        "part": name,
        "watts": float(match[1]),
        "efficiency": PRESUMED_EFFICIENCY,
        **atx,
    }


def _memory(words: str) -> Entry | None:
    """Return a module by its size, and its generation where it is named: ``32 GB DDR5``."""
    size = re.search(r"(\d+)\s*gi?b\b", words, re.I)
    if size is None:
        return None
    generation = re.search(r"\bDDR\d", words, re.I)
    speed = re.search(r"\bDDR\d[- ](\d{4})\b", words, re.I)
    return ({"speed_mt_s": float(speed[1])} if speed else {}) | {
        "capacity_gib": int(size[1]),
        "memory_type": generation[0].upper() if generation else None,
        "registered": re.search(r"\b(LR|R)DIMM|\breg(istered)?\b", words, re.I) is not None,
        "so_dimm": re.search(r"\bSO-?DIMM", words, re.I) is not None,
    }


def _disk(words: str) -> Entry | None:
    """Return a disk by its size, and its connection where it is named: ``4 TB NVMe``."""
    size = re.search(_NUMBER + r"\s*(tb|gb)\b", words, re.I)
    if size is None or find_part("disk", words) is not None:
        return None
    forms = {"u2": r"\bu\.?[23]\b", "m2": r"\bm\.?2\b|\bnvme\b", "sata": r"\bsata\b"}
    interface = next((way for way, form in forms.items() if re.search(form, words, re.I)), None)
    terabytes = float(size[1]) / (1.0 if size[2].lower() == "tb" else 1000.0)
    return {"capacity_tb": terabytes, "interface": interface}


def _cooler(words: str) -> Entry | None:
    """Return a cooler by its radiator or its height: ``360 mm water-cooled``, ``air 160 mm``."""
    size = re.search(r"(\d{2,3})\s*(?:mm)?\b", words)
    if size is None:
        return None
    number = int(size[1])
    is_wet = re.search(r"\bwater\b|\bliquid\b|\baio\b|\bradiator\b", words, re.I) is not None
    if is_wet or "mm" not in words.casefold():
        return {"radiator_mm": number} if is_wet and number in _RADIATORS_MM else None
    return {"height_mm": float(number)}


def _case(words: str) -> Entry | None:
    """Return a case by its kind: ``ATX case``, ``full tower``, ``4U``, ``open frame``."""
    units = re.search(r"\b([1-9])\s*U\b", words, re.I)
    if units is not None:
        return {"airflow": "front-to-back", "rack_units": int(units[1])}
    if re.search(r"\bopen\b|\bframe\b", words, re.I):
        return {"airflow": "open"}
    formats = [name for name in ("E-ATX", "mATX", "ATX", "Mini-ITX") if _has(words, name)]
    if formats or re.search(r"\bcase\b|\btower\b|\bchassis\b", words, re.I):
        return {"airflow": "tower"} | ({"form_factors": tuple(formats)} if formats else {})
    return None


def _has(words: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?!\w)", words, re.I) is not None


_DESCRIBED: Mapping[str, Callable[[str], Entry | None]] = {
    "gpu": _card,
    "board": _board,
    "psu": _supply,
    "ram": _memory,
    "disk": _disk,
    "cooling": _cooler,
    "case": _case,
}
