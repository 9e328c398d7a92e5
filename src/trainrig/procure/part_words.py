"""Parts in a person's own words: ``2x RTX 4090``, ``1000 W ATX 3.1``, ``7950X``, ``B650E``.

Each becomes the entry that a parts list would have (`entries_of`), so that flags and a file are
checked by one function.  Words that say little make a part of which little is known: a chip alone
is a card whose length, width and plugs no rule can compare, a chipset a board whose slots are not
known.  The rules that need them say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainrig.catalog.lookup import find_chip
from trainrig.errors import UsageError
from trainrig.procure.part_catalog import find_part, load_parts, near_names
from trainrig.procure.parts import required_fields
from trainrig.procure.platforms import chipset_fields

PRESUMED_EFFICIENCY = 0.9
"""Of a power supply of which only the watts are named."""
Entry = dict[str, Any]
_COUNT = re.compile(r"\s*(\d{1,3})\s*[x×*]\s*(?=\D|\d+\s*gi?b\b)(.+)", re.IGNORECASE)
_NUMBER = r"(\d+(?:\.\d+)?)"


def entries_of(described: Mapping[str, Iterable[str]]) -> dict[str, list[Entry]]:
    """Return the tables of a parts list that descriptions by kind stand for.

    Raises:
        UsageError: Every description that means no part, or several, in one answer.
    """
    found: dict[str, list[Entry]] = {}
    wrong: list[UsageError] = []
    for kind, texts in described.items():
        for text in texts:
            try:
                found.setdefault(kind, []).append(entry_of(kind, text))
            except UsageError as error:
                wrong.append(error)
    if wrong:
        raise all_of(wrong)
    return found


def all_of(errors: list[UsageError]) -> UsageError:
    """Return one error that says what several say, each hint once."""
    hints = dict.fromkeys(error.hint for error in errors if error.hint)
    return UsageError("; ".join(error.message for error in errors), "; ".join(hints) or None)


def entry_of(kind: str, text: str) -> Entry:
    """Return the entry of a parts list that a description stands for.

    Args:
        kind: One of `parts.KINDS`.
        text: A name or a description, with a count before it: ``2x RTX 4090``.

    Raises:
        UsageError: A description that means no part, or several.
    """
    counted = _COUNT.fullmatch(text)
    count, words = (int(counted[1]), counted[2]) if counted else (1, text)
    words = words.strip()
    entry = _named(kind, words) or _described(kind, words) or _only_one(kind, words)
    if entry is None:
        near = near_names(kind, words)
        fields = ", ".join(required_fields(kind))
        hint = f"{'did you mean ' + ' or '.join(near) + '? else ' if near else ''}"
        raise UsageError(
            f"--{kind}: unknown {kind} {words!r}",
            f"{hint}in a file: [[{kind}]] part = {words!r} with {fields}",
        )
    return entry | {"count": count}


def _named(kind: str, words: str) -> Entry | None:
    part = find_part(kind, words)
    return None if part is None else {"part": part.name}


def _only_one(kind: str, words: str) -> Entry | None:
    """The catalog's part that has all of the words; several are refused by their names."""
    wanted = set(_words(words))
    names = [
        part.name for part in load_parts()[kind] if wanted and wanted <= set(_words(part.name))
    ]
    if len(names) > 1:
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        raise UsageError(f"--{kind} {words!r} is one of: {shown}", "give the whole name")
    return {"part": names[0]} if names else None


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())


def _described(kind: str, words: str) -> Entry | None:
    describe = _DESCRIBED.get(kind)
    return None if describe is None else describe(words)


def _card(words: str) -> Entry | None:
    chip = find_chip(words)
    return None if chip is None else {"part": words, "chip": chip.name}


def _board(words: str) -> Entry | None:
    """A board by its chipset alone; a board's name that the catalog lacks is no chipset."""
    board = chipset_fields(words)
    return None if board is None else {"part": words} | board


def _supply(words: str) -> Entry | None:
    """A supply by its watts, and its version of ATX where that is named."""
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
    """A module by its size and generation: ``32 GB DDR5-5600 RDIMM``."""
    size = re.search(r"(\d+)\s*gi?b\b", words, re.I)
    kind = re.search(r"\bDDR\d", words, re.I)
    if size is None or kind is None:
        return None
    return {
        "part": words,
        "capacity_gib": int(size[1]),
        "memory_type": kind[0].upper(),
        "registered": re.search(r"\b(LR|R)DIMM|\breg(istered)?\b", words, re.I) is not None,
        "so_dimm": re.search(r"\bSO-?DIMM", words, re.I) is not None,
    }


def _disk(words: str) -> Entry | None:
    """A disk by its size and connection: ``4 TB NVMe``."""
    size = re.search(_NUMBER + r"\s*(tb|gb)\b", words, re.I)
    ways = {"m2": r"\bm\.?2\b|\bnvme\b", "u2": r"\bu\.?[23]\b", "sata": r"\bsata\b"}
    found = [way for way, form in ways.items() if re.search(form, words, re.I)]
    if size is None or not found or find_part("disk", words) is not None:
        return None
    terabytes = float(size[1]) / (1.0 if size[2].lower() == "tb" else 1000.0)
    interface = "u2" if "u2" in found else found[0]
    return {"part": words, "capacity_tb": terabytes, "interface": interface}


_DESCRIBED: Mapping[str, Callable[[str], Entry | None]] = {
    "gpu": _card,
    "board": _board,
    "psu": _supply,
    "ram": _memory,
    "disk": _disk,
}
