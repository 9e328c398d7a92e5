"""A gettext catalogue asked for finished sentences: ``3 of 5 ran`` is ``{n} of {total} ran``.

An entry with places is a form.  The forms that can fit a text are those whose rarest word is in it;
of those that fit, the one with the most letters of its own is taken, and what stands in its places
is translated in turn.  Where no form fits, the text is taken apart at its sentence ends,
semicolons, colons and commas.  Text without a word (numbers, units) is not looked up.
"""

from __future__ import annotations

import gettext
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from trainrig.language.width import is_wide

DOMAIN = "trainrig"
FOLDER = Path(__file__).parent.parent / "locale"
INPUT_KEYS = Path(__file__).with_name("input_keys.txt")
"""Names that are typed into files and commands, a line each (tools/input_keys.py)."""
PLACE = re.compile(r"\{(\w*)\}")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]+")
_GAP = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef]) +(?=[\u3000-\u9fff\uff00-\uffef])| +(?=（)")
"""Spaces between Chinese and Chinese, and before a wide bracket."""
_MOST_REJOINED = 8
"""Parts of a text among which an entry of several parts is sought."""
_DEEPEST = 8
"""Forms in places of forms."""
_ENDS = (("\n", "\n"), ("  ", "  "), (". ", "。"), ("; ", "；"), (": ", "："), (", ", "，"))
"""Where a text is taken apart; what joins the parts again."""
_SIGNS = (" = ", " ≤ ", " ≥ ", " + ")
"""Where arithmetic is taken apart: ``230 W processor + 92 W rest = 322 W``."""
_TYPED = re.compile(r"((?:fp|bf|tf|int)\d+|\d+\.|#\d+) (.+)")
"""``fp16 matmul``, ``2. RTX 4090``."""
_SENTENCE_ENDS = ("\n", "  ", ". ", "; ")
_COPIED = ("toml", "quoted")
"""How names of places begin that hold what is typed, or what others printed: it stays."""
_COUNT = "number"
_AMOUNT_ALONE = re.compile(r"\d[\d.,]*[kMBT]?(?: to \d[\d.,]*)?")
"""What begins the names of places that hold a number alone."""
_OWN_FOR_A_PLACE = 9
"""A form with fewer letters for each of its places, like ``{quantity} of {name}``, is taken only
where in each place stands a number, a name, or what has an entry."""
_PROSE = re.compile(r"(?:^|\s)(?:[A-Z]?[a-z]{2,})(?=[\s,;:]|\.\s|\.?$)")
"""A word that is no name."""
_NUMBER = re.compile(r"[-−+±~$€¥<>×]?\d\S*(?: \S+){0,2}")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
"""``'a name'``: what somebody typed, which stays."""
_AMOUNT = re.compile(r"(.+?) ([-−+±×] ?\d\S*(?: \S+)?)")
"""``pipeline bubble +46.2 ms``."""
_BRACKETED = re.compile(r"(.+?) \((.+)\)", re.DOTALL)
"""``Xeon(R) (skipped: no time is left)``: brackets of a name begin behind no space."""
_BY_ITSELF = re.compile(r"(?:^|(?<=[,:;] )|(?<=[(\[]))[a-z][a-z0-9_]*(?=$|[,:;)\]])")
"""A word between marks: ``chip`` in ``it reads: chip, model``."""
_FIRST_MARK = 0xE000
"""Letters for private use, which no text has: they stand for names while a text is translated."""
_CHANGE = re.compile(r"\D+ [-−+±]\d\S*(?: \S+)?")
"""``gradient + weight collectives +11.7 ms``: an amount, no sum."""
_REST = r"((?:(?:[,;:] | \().*?)?)"
"""What may stand in a place next to a place: nothing, or what is added behind a word."""
_MARKS = {":": "：", "?": "？"}
_ONE_OF = re.compile(r"one of: ([^;]+)")
"""``one of: matmul, link``: names to type, which stay."""
_CHOICE = "one of: {names}"
_LIST = re.compile(r"[\w+./-]+(?:, [\w+./-]+)* (or|and) [\w+./-]+")


@dataclass(frozen=True, slots=True)
class Form:
    """An entry with places."""

    pattern: re.Pattern[str]
    names: tuple[str, ...]
    pieces: tuple[str, ...]
    """Its own text, between the places."""
    translation: str


class Catalogue:
    """The entries of one language."""

    def __init__(self, entries: Mapping[str, str], names: Collection[str] = ()) -> None:
        """``names``: what stays wherever it is a text, a part or a place by itself."""
        self._names = frozenset(names)
        self._whole = {msgid: text for msgid, text in entries.items() if msgid and text}
        forms = [_split(msgid) for msgid in self._whole if PLACE.search(msgid)]
        words = [set(_words(" ".join(pieces))) for pieces, _ in forms]
        frequency = Counter(word for each in words for word in each)
        self._forms: defaultdict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]]
        self._forms = defaultdict(list)
        for form, own in zip(forms, words, strict=True):
            if own:
                self._forms[min(own, key=lambda word: (frequency[word], word))].append(form)
        self._compiled: dict[tuple[tuple[str, ...], tuple[str, ...]], Form] = {}
        self.translate = lru_cache(20_000)(self._translate)

    @staticmethod
    def of(language: str, *, keeps_names: bool = False) -> Catalogue:
        """The catalogue of a language; raises FileNotFoundError where the installation lacks it.

        ``keeps_names``: for messages, in which the names of INPUT_KEYS are what is to be typed.
        """
        found = gettext.translation(DOMAIN, FOLDER, [language.replace("-", "_")])
        entries: Mapping[object, str] = vars(found)["_catalog"]
        names = INPUT_KEYS.read_text(encoding="utf-8").split() if keeps_names else ()
        return Catalogue(
            {msgid: text for msgid, text in entries.items() if isinstance(msgid, str)}, names
        )

    def translate_message(self, text: str) -> str:
        """The text with each of its names as it is typed, whatever they mean on a page."""
        found: list[str] = []

        def mark(match: re.Match[str]) -> str:
            if match[0] not in self._names:
                return match[0]
            found.append(match[0])
            return chr(_FIRST_MARK + len(found) - 1)

        if text in self._whole and text not in self._names:  # a text of ours, word for word
            return self._whole[text]
        shown = self.translate(_BY_ITSELF.sub(mark, text))
        for number, name in enumerate(found):
            shown = shown.replace(chr(_FIRST_MARK + number), name)
        return shown

    def _translate(self, text: str) -> str:
        return self._found(text, 0) or text

    def _found(self, text: str, depth: int) -> str | None:
        """The translation, or None where nothing of the text has an entry."""
        if depth > _DEEPEST or text in self._names or _WORD.search(text) is None:
            return None
        if _QUOTED.fullmatch(text) is not None:
            return None
        inner = text.strip()
        if inner != text:
            start = text.index(inner)
            found = self._found(inner, depth)
            return found and text[:start] + found + text[start + len(inner) :]
        spellings = [text]
        if not any(letter.isdigit() for letter in text.partition(" ")[0]):
            spellings += [text[:1].lower() + text[1:], text[:1].upper() + text[1:]]
        for spelled in dict.fromkeys(spellings):
            if (found := self._entry(spelled)) is not None:
                return text if found == spelled else found  # left as it is: as it was written
            if (found := self._formed(spelled, depth, is_whole=True)) is not None:
                return found
        return self._apart(text, depth) or self._formed(text, depth, is_whole=False)

    def _entry(self, text: str) -> str | None:
        """The entry that is the text, but for its end; or of names to choose from, which stay."""
        if (found := self._whole.get(text)) is not None:
            return found
        if (found := self._whole.get(f"{text}.")) is not None:  # a sentence taken out of a text
            return found.removesuffix("。")
        if (head := self._whole.get(text[:-1])) is not None and text[-1] in _MARKS:
            return head + _MARKS[text[-1]]
        if (choice := _ONE_OF.fullmatch(text)) is not None and _CHOICE in self._whole:
            return _filled(self._whole[_CHOICE], {"names": choice[1]})
        return None

    def _formed(self, text: str, depth: int, *, is_whole: bool) -> str | None:
        """The text as a form; ``is_whole``: one with as many sentences as the text."""
        candidates = [form for word in set(_words(text)) for form in self._forms.get(word, ())]
        candidates.sort(key=lambda form: (-sum(map(len, form[0])), len(form[1])))
        for pieces, names in candidates:
            if not _can_hold(text, pieces):
                continue
            form = self._compiled.get((pieces, names)) or self._compile(pieces, names)
            match = form.pattern.fullmatch(text)
            if match is None:
                continue
            found = list(zip(form.names, match.groups(), strict=True))
            if (is_whole and not _is_of_one_text(text, form, found)) or not self._fits(
                form, found, depth
            ):
                continue
            values = {
                name: value if name.startswith(_COPIED) else self._found(value, depth + 1) or value
                for name, value in found
            }
            return _filled(form.translation, values)
        return None

    def _fits(self, form: Form, found: Sequence[tuple[str, str]], depth: int) -> bool:
        """Whether each place holds what may stand there; what is copied may be anything."""
        own = [(name, value) for name, value in found if not name.startswith(_COPIED)]
        if not all(_is_whole_value(value) for _, value in own):
            return False
        if any(
            name.startswith(_COUNT) and not _AMOUNT_ALONE.fullmatch(value) for name, value in own
        ):
            return False
        return _own(form.pieces) >= _OWN_FOR_A_PLACE * len(found) or all(
            ": " not in value and (_is_plain(value) or self._is_known(value, depth))
            for _, value in own
        )

    def _is_known(self, text: str, depth: int) -> bool:
        """Whether an entry, a name or a form is the whole text, but for a data type before it."""
        if text in self._names:
            return True
        if (typed := _TYPED.fullmatch(text)) is not None:
            text = typed[2]
        spellings = dict.fromkeys((text, text[:1].upper() + text[1:], text[:1].lower() + text[1:]))
        return depth < _DEEPEST and (
            any(each in self._whole for each in spellings)
            or any(self._formed(each, depth + 1, is_whole=True) is not None for each in spellings)
        )

    def _compile(self, pieces: tuple[str, ...], names: tuple[str, ...]) -> Form:
        msgid = pieces[0] + "".join(
            f"{{{name}}}{piece}" for name, piece in zip(names, pieces[1:], strict=True)
        )
        pattern = re.escape(pieces[0])
        for last, piece in itertools.pairwise(pieces):
            is_next_to_place = not last and pattern.endswith(")")
            pattern += (_REST if is_next_to_place else "(.*?)") + re.escape(piece)
        form = Form(re.compile(pattern, re.DOTALL), names, pieces, self._whole[msgid])
        self._compiled[pieces, names] = form
        return form

    def _apart(self, text: str, depth: int) -> str | None:
        """The parts of a text translated each by itself; None where none of them is known."""
        if (listed := _LIST.fullmatch(text)) is not None:
            joined = {"or": "或", "and": "和"}[listed[1]]
            return f" {joined} ".join(text.rsplit(f" {listed[1]} ", 1))
        if " or " in text and not any(map(_PROSE.search, text.split(" or "))):
            return text.replace(" or ", " 或 ")
        if (around := self._around_mark(text, depth)) is not None:
            return around
        for mark, joined in _ENDS:
            parts = self._rejoined(list(_parts(text, mark)), mark)
            if len(parts) > 1:
                known = [self._found(part, depth + 1) for part in parts]
                found = [new or old for new, old in zip(known, parts, strict=True)]
                return _joined(found, mark, joined) if any(known) else None
        if _CHANGE.fullmatch(text) is not None:
            return self._trimmed(text, depth)
        return self._of_arithmetic(text, depth) or self._trimmed(text, depth)

    def _rejoined(self, parts: list[str], mark: str) -> list[str]:
        """The parts, but those in one that are an entry with such marks in it."""
        if not 2 < len(parts) <= _MOST_REJOINED:
            return parts
        for begin, end in itertools.combinations(range(len(parts) + 1), 2):
            if 1 < end - begin < len(parts):
                whole = mark.join(parts[begin:end])
                if self._is_entry(whole):
                    return [*parts[:begin], whole, *parts[end:]]
        return parts

    def _is_entry(self, text: str) -> bool:
        return text in self._whole or text[:1].lower() + text[1:] in self._whole

    def _around_mark(self, text: str, depth: int) -> str | None:
        """A text of two parts, one of which is an entry that has such marks itself."""
        for mark, joined in _ENDS[-2:]:
            head, _, tail = text.rpartition(mark)  # and a word behind it
            if head and self._is_known(head, depth) and not any(each in tail for each, _ in _ENDS):
                parts = [self._found(head, depth) or head, self._found(tail, depth) or tail]
                return _joined(parts, mark, joined)
        head, _, tail = text.partition(": ")  # AMD EPYC: Layer by batch and part: bf16
        if ": " in tail and any(self._is_known(t, depth) for t in (tail, tail.rpartition(", ")[0])):
            return f"{self._found(head, depth) or head}：{self._found(tail, depth)}"
        return None

    def _of_arithmetic(self, text: str, depth: int) -> str | None:
        """The terms of a sum with its figures translated each by itself."""
        mark = next((mark for mark in _SIGNS if mark in text), None)
        if mark is None or not any(letter.isdigit() for letter in text):
            return None
        parts = text.split(mark)
        known = [self._found(part, depth + 1) for part in parts]
        found = [new or old for new, old in zip(known, parts, strict=True)]
        return mark.join(found) if any(known) else None

    def _trimmed(self, text: str, depth: int) -> str | None:
        """The text without what stands around it: a data type, a bracket, its full stop."""
        if (typed := _TYPED.fullmatch(text)) is not None:
            whole = self._found(typed[2], depth + 1)
            return whole and f"{typed[1]} {whole}"
        if (amount := _AMOUNT.fullmatch(text)) is not None:
            whole = self._found(amount[1], depth + 1)
            return whole and f"{whole} {amount[2]}"
        for end, new in ((".", "。"), ("?", "？"), (":", "："), (" ...", "……")):
            if text.endswith(end) and (whole := self._found(text.removesuffix(end), depth + 1)):
                return whole + new
        if text[:1] == "(" and text.find(")") == len(text) - 1:
            whole = self._found(text[1:-1], depth + 1)
            return whole and f"（{whole}）"
        if (bracketed := _BRACKETED.fullmatch(text)) is not None and all(
            map(_is_whole_value, bracketed.groups())
        ):
            before, inside = bracketed.groups()
            new_before, new_inside = self._found(before, depth + 1), self._found(inside, depth + 1)
            if new_before or new_inside:
                return f"{new_before or before}（{new_inside or inside}）"
        return None


def _joined(parts: list[str], mark: str, joined: str) -> str:
    """The parts with the mark between them that Chinese has, but between names ``, ``."""
    text = parts[0]
    for last, part in itertools.pairwise(parts):
        is_plain = mark == ", " and not (ends_wide(last) or is_wide(part[:1]))
        text += (mark if is_plain else joined) + part
    return text


def _filled(form: str, values: Mapping[str, str]) -> str:
    text = PLACE.sub(lambda place: values.get(place[1], place[0]), form)
    return _GAP.sub("", text)


def _is_plain(text: str) -> bool:
    """Whether the text is a number with its unit, a name, or quoted."""
    return any(each.fullmatch(text) for each in (_NUMBER, _QUOTED)) or _PROSE.search(text) is None


def _is_of_one_text(text: str, form: Form, found: Sequence[tuple[str, str]]) -> bool:
    """Whether the form has the text's ends of sentences, and its outer places hold a part each."""
    is_long = _own(form.pieces) >= _OWN_FOR_A_PLACE  # what it quotes may be sentences
    copied = [value for name, value in found if is_long and name.startswith(_COPIED)]
    if any(
        mark in text and all(mark not in each for each in (*form.pieces, *copied))
        for mark in _SENTENCE_ENDS
    ):
        return False
    if not form.pieces[0] and ": " in found[0][1]:  # "x: y is missing": the form is of y
        return False
    outer = [(form.pieces[0], found[0]), (form.pieces[-1], found[-1])]
    return all(piece or value in copied or ", " not in value for piece, (_, value) in outer)


def _is_whole_value(text: str) -> bool:
    """Whether it may stand in a place: no half of brackets, no end that something follows."""
    return not text.endswith((":", ";", ",")) and all(
        text.count(first) == text.count(last) for first, last in ("()", "[]", "（）")
    )


def _own(pieces: tuple[str, ...]) -> int:
    """Letters of a form's own."""
    return sum(letter.isalpha() for piece in pieces for letter in piece)


def ends_wide(text: str) -> bool:
    """Whether the text ends in a wide letter, or in a bracket or number behind one."""
    return is_wide(text.rstrip(")]'\"。、")[-1:])


def _split(msgid: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The pieces of text of a form, and the names of the places between them."""
    parts = PLACE.split(msgid)
    return tuple(parts[::2]), tuple(parts[1::2])


def _words(text: str) -> Iterator[str]:
    return (word.lower() for word in _WORD.findall(text))


def _can_hold(text: str, pieces: tuple[str, ...]) -> bool:
    """Whether the pieces stand in the text, one behind the other: cheaper than to match them."""
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def _parts(text: str, mark: str) -> Iterator[str]:
    """The text between marks that stand in no brackets."""
    depth, start, n = 0, 0, 0
    while n < len(text):
        if text[n] in "([{":
            depth += 1
        elif text[n] in ")]}":
            depth = max(0, depth - 1)
        elif depth == 0 and text.startswith(mark, n):
            yield text[start:n]
            n += len(mark)
            start = n
            continue
        n += 1
    yield text[start:]
