"""A gettext catalogue asked for finished sentences: ``3 of 5 ran`` is ``{n} of {total} ran``.

An entry with places is a form.  A text can often be read in several ways: as one form or another,
or as parts between commas.  The parse is taken that leaves the fewest letters without an entry,
and of those the one with the fewest parts; what stands in the places of a form is read in turn.
Quoted text stays as it is, and no parse breaks it.
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
_DEEPEST = 8
"""Levels of forms in places of forms."""
_MOST_SPLITS = 100
"""Ways to divide a text among the places of one form."""
_MOST_REJOINED = 8
"""Parts of a text among which an entry of several parts is sought."""
_ENDS = {"\n": "\n", "  ": "  ", ". ": "。", "; ": "；", ": ": "：", ", ": "，"}
"""Marks at which a text is divided, and what joins the parts again."""
_SIGNS = (" = ", " ≤ ", " ≥ ", " < ", " > ", " + ")
"""Signs at which arithmetic is divided: ``230 W processor + 92 W rest = 322 W``."""
_SENTENCE_ENDS = ("\n", "  ", ". ", "; ", ": ", *_SIGNS)
_LAST_MARKS = ((r"\.", "。"), (r"\?", "？"), (":", "："), (r" \.\.\.", "……"))
_TRIMMED = (
    (re.compile(r"((?:fp|bf|tf|int)\d+|\d+\.|#\d+) (.+)"), "{} {}"),  # fp16 matmul; 2. RTX 4090
    (re.compile(r"(.+?) ([-−+±×] ?\d\S*(?: \S+)?)"), "{} {}"),  # pipeline bubble +46.2 ms
    (re.compile(r"(.+?) \((.+)\)", re.DOTALL), "{}（{}）"),  # Xeon(R) (skipped: no time is left)
    (re.compile(r"\(([^)]+)\)"), "（{}）"),
    *((re.compile(rf"(.+){end}", re.DOTALL), f"{{}}{new}") for end, new in _LAST_MARKS),
)
"""Patterns of what stands around a text that has an entry, and its form in Chinese."""
_COPIED = ("toml", "quoted")
"""Prefixes of names of places that hold what is typed, or what others printed: it stays."""
_COUNT = "number"
"""Prefix of names of places that hold a number alone."""
_TWO_AMOUNTS = re.compile(r"(?:[a-z]+\d+|\d\S*(?: \S+)?), \d\S*(?: \S+)?")
"""An amount behind another one or a data type, as ``fp16, 102 %``: it is another value."""
_AMOUNT_ALONE = re.compile(r"\d[\d.,]*[kMBT]?(?: to \d[\d.,]*)?")
_QUOTED = re.compile(r"(?<![\w'\"])(['\"])([^\n]+?)\1(?![\w\"])(?!'(?!s\b))")
"""Text between quotes: it stays."""
_PROSE = re.compile(r"(?:^|\s)(?:[A-Z]?[a-z]{2,})(?=[\s,;:]|\.\s|\.?$)")
"""A word that is no name."""
_SENTENCE_WORD = re.compile(r"(?:^|\s)[a-z]{2,}(?=[\s,;:]|\.\s|\.?$)")
_NUMBER = re.compile(r"[-−+±~$€¥<>×]?\d\S*(?: \S+){0,3}")
_BY_ITSELF = re.compile(r"(?:^|(?<=[,:;] )|(?<=[(\[]))[a-z][a-z0-9_]*(?=$|[,:;)\]])")
"""A word between marks: ``chip`` in ``it reads: chip, model``."""
_FIRST_MARK, _LAST_MARK = 0xE000, 0xF8FF
"""Letters for private use, which no text has: they stand for names."""
_ADDED = re.compile(r"[,;:](?!\d)| \(")
"""Beginning of a place that follows another place at once: text that is added to a word."""
_MARKS = {":": "：", "?": "？"}
_ONE_OF = re.compile(r"one of: ([^;]+)")
"""``one of: matmul, link``: names to type, which stay."""
_CHOICE = "one of: {names}"
_LIST = re.compile(r"[\w+./-]+(?:, [\w+./-]+)* (or|and) [\w+./-]+")
_ENTRY, _FORM, _DIVIDED, _AS_IS = range(4)

Split = tuple[tuple[str, ...], tuple[str, ...]]
"""The pieces of text of a form, and the names of the places between them."""


@dataclass(frozen=True, slots=True)
class Parse:
    """One translation of a text, put together from translated messages, and its cost."""

    translation: str
    cost: float
    """Letters that no entry has, and the parts that the text was divided into."""
    kind: int
    """_ENTRY, _FORM, _DIVIDED or _AS_IS: what the whole text was read as."""
    literal: int = 0
    """Letters of the form's own text, of a _FORM."""


class Catalogue:
    """The entries of one language."""

    def __init__(self, entries: Mapping[str, str], names: Collection[str] = ()) -> None:
        """``names``: what stays wherever it is a text, a part or a place by itself."""
        self._names = frozenset(names)
        self._whole = {msgid: text for msgid, text in entries.items() if msgid and text}
        self._quoted = {match[2] for msgid in self._whole for match in _QUOTED.finditer(msgid)}
        forms = [_split(msgid) for msgid in self._whole if PLACE.search(msgid)]
        words = [set(_free_words(pieces)) or set(_words(" ".join(pieces))) for pieces, _ in forms]
        frequency = Counter(itertools.chain.from_iterable(words))
        self._forms: defaultdict[str, list[Split]] = defaultdict(list)
        for form, form_words in zip(forms, words, strict=True):
            if form_words:
                rarest = min(form_words, key=lambda word: (frequency[word], word))
                self._forms[rarest].append(form)
        self.translate = lru_cache(20_000)(self._translate)
        self._parse = lru_cache(100_000)(self._best_parse)

    @staticmethod
    def load(language: str, *, keeps_input_keys: bool = False) -> Catalogue:
        """Return catalogue of a language; raises FileNotFoundError where the installation lacks it.

        ``keeps_input_keys``: for messages, in which the names of INPUT_KEYS are to be typed.
        """
        names = INPUT_KEYS.read_text(encoding="utf-8").split() if keeps_input_keys else ()
        return Catalogue(Catalogue.entries_of(language), names)

    @staticmethod
    def entries_of(language: str) -> dict[str, str]:
        """Return each text and its translation; raises FileNotFoundError where there are none."""
        translations = gettext.translation(DOMAIN, FOLDER, [language.replace("-", "_")])
        entries: Mapping[object, str] = vars(translations)["_catalog"]
        return {msgid: text for msgid, text in entries.items() if isinstance(msgid, str)}

    def translate_message(self, text: str) -> str:
        """Translate a message, but none of its names that are to be typed."""
        if text in self._whole and text not in self._names:
            return self._whole[text]
        names: list[str] = []

        def mark(match: re.Match[str]) -> str:
            return _marked(match[0], names) if match[0] in self._names else match[0]

        return _unmarked(self.translate(_BY_ITSELF.sub(mark, text)), names)

    def _translate(self, text: str) -> str:
        if text in self._whole or _WORD.search(text) is None:
            return self._whole.get(text, text)
        marks = [ord(letter) for letter in text if _FIRST_MARK <= ord(letter) <= _LAST_MARK]
        outer_marks = max(marks, default=_FIRST_MARK - 1) - _FIRST_MARK + 1
        quoted = [chr(_FIRST_MARK + number) for number in range(outer_marks)]  # stay themselves

        def mark(match: re.Match[str]) -> str:
            is_ours = match[2] in self._quoted
            return match[0] if is_ours else match[1] + _marked(match[2], quoted) + match[1]

        parse = self._parse(_QUOTED.sub(mark, text), 0)
        if quoted and parse.kind in (_DIVIDED, _AS_IS):  # the quotes may be those of a form
            unmarked = self._parse(text, 0)
            parse = unmarked if unmarked.kind == _FORM else parse
        return _unmarked(parse.translation, quoted)

    def _best_parse(self, text: str, depth: int) -> Parse:
        """Return the parse of the text that costs the least."""
        as_is = Parse(text, _letters(text), _AS_IS)
        if text in self._names:
            return Parse(text, 0, _ENTRY)
        if depth > _DEEPEST or _WORD.search(text) is None:
            return as_is
        inner = text.strip()
        if inner != text:
            start = text.index(inner)
            parse = self._parse(inner, depth)
            around = text[:start], text[start + len(inner) :]
            return Parse(parse.translation.join(around), parse.cost, parse.kind)
        spellings = [text]
        if not any(letter.isdigit() for letter in text.partition(" ")[0]):
            spellings += [text[:1].lower() + text[1:], text[:1].upper() + text[1:]]
        for spelling in dict.fromkeys(spellings):
            if (entry := self._entry(spelling)) is not None:
                return Parse(text if entry == spelling else entry, 0.5, _ENTRY)
        parses = itertools.chain(
            *(self._form_parses(spelling, depth) for spelling in dict.fromkeys(spellings)),
            self._divided_parses(text, depth),
        )
        return min(parses, key=lambda parse: parse.cost, default=as_is)

    def _entry(self, text: str) -> str | None:
        """Return the translation of a text that is an entry, but for its end."""
        if (whole := self._whole.get(text)) is not None:
            return whole
        if (whole := self._whole.get(f"{text}.")) is not None:  # a sentence taken out of a text
            return whole.removesuffix("。")
        if (head := self._whole.get(text[:-1])) is not None and text[-1] in _MARKS:
            return head + _MARKS[text[-1]]
        return None

    def _form_parses(self, text: str, depth: int) -> Iterator[Parse]:
        """Yield the parses of a text as a form with values in its places."""
        for word in dict.fromkeys(_words(text)):
            for pieces, names in self._forms.get(word, ()):
                for values in itertools.islice(_values(text, pieces), _MOST_SPLITS):
                    if (parse := self._parse_of_form(pieces, names, values, depth)) is not None:
                        yield parse

    def _parse_of_form(
        self, pieces: Sequence[str], names: Sequence[str], values: Sequence[str], depth: int
    ) -> Parse | None:
        """Return the parse of a form with these values; None where a place cannot hold its."""
        literal = sum(map(_letters, pieces))
        cost, translations = 2.0 - _LITERAL * sum(map(len, pieces)), {}
        is_short = literal < _SHORT_FOR_A_PLACE * len(names)
        for name, value in zip(names, values, strict=True):
            if name.startswith(_COPIED):
                translations[name] = value
                cost += 0 if literal >= _LONG else _letters(value)
                continue
            parse = self._parse(value, depth + 1)
            if not _may_hold(name, value, parse, is_short=is_short):
                return None
            translations[name] = parse.translation
            cost += parse.cost + _value_cost(value, parse, literal)
        for piece, before, value in zip(pieces[1:], values, values[1:], strict=False):
            if piece == " " and " " in before and value.isalpha():
                cost += _LAST_WORD
        msgid = pieces[0] + "".join(
            f"{{{name}}}{piece}" for name, piece in zip(names, pieces[1:], strict=True)
        )
        return Parse(_filled(self._whole[msgid], translations), cost, _FORM, literal)

    def _divided_parses(self, text: str, depth: int) -> Iterator[Parse]:
        """Yield the parses of a text in parts: between marks, terms of a sum, in brackets."""
        if (choice := _ONE_OF.fullmatch(text)) is not None and _CHOICE in self._whole:
            translation = _filled(self._whole[_CHOICE], {"names": choice[1]})
            yield Parse(translation, _letters(choice[1]), _ENTRY)
        yield from _choices(text)
        for mark, joined in _ENDS.items():
            parts = list(_parts(text, mark))
            if len(parts) > 1:
                yield self._join_parses(self._parse_parts(parts, mark, depth), mark, joined)
        for sign in _SIGNS:
            if sign in text and any(map(str.isdigit, text)):
                parses = [self._parse(part, depth + 1) for part in text.split(sign)]
                terms = sign.join(parse.translation for parse in parses)
                yield Parse(terms, _total_cost(parses), _DIVIDED)
        yield from self._trimmed_parses(text, depth)

    def _trimmed_parses(self, text: str, depth: int) -> Iterator[Parse]:
        """Yield the parses of a text without its data type, amount, bracket or full stop."""
        for pattern, form in _TRIMMED:
            match = pattern.fullmatch(text)
            if match is not None and all(map(_is_whole_value, match.groups())):
                parses = [self._parse(part, depth + 1) for part in match.groups()]
                if any(parse.kind != _AS_IS for parse in parses):
                    whole = form.format(*(parse.translation for parse in parses))
                    yield Parse(whole, _total_cost(parses), _DIVIDED)

    def _parse_parts(self, parts: list[str], mark: str, depth: int) -> list[Parse]:
        """Return parses of the parts, those in one that cost less when they are read as one."""
        if len(parts) > _MOST_REJOINED:
            return [self._parse(part, depth + 1) for part in parts]
        best: list[tuple[float, list[Parse]]] = [(0.0, [])]
        for end in range(1, len(parts) + 1):
            ways = []
            for begin in range(end):
                if end - begin < len(parts):
                    parse = self._parse(mark.join(parts[begin:end]), depth + 1)
                    if end - begin == 1 or parse.kind in (_ENTRY, _FORM):
                        cost, parses = best[begin]
                        ways.append((cost + parse.cost + 1, [*parses, parse]))
            best.append(min(ways, key=lambda way: way[0]))
        return best[-1][1]

    def _join_parses(self, parses: Sequence[Parse], mark: str, joined: str) -> Parse:
        """Join parts with the mark between them that Chinese has, but names with ``, ``."""
        text = parses[0].translation
        for last, parse in itertools.pairwise(parses):
            part = parse.translation
            is_plain = mark == ", " and not (ends_wide(last.translation) or is_wide(part[:1]))
            text += (mark if is_plain else joined) + part
        if all(parse.kind == _AS_IS for parse in parses):
            text = mark.join(parse.translation for parse in parses)
            return Parse(text, _total_cost(parses), _AS_IS)
        return Parse(text, _total_cost(parses), _DIVIDED)


def _choices(text: str) -> Iterator[Parse]:
    """Yield a list of names with the word before its last one translated."""
    if (listed := _LIST.fullmatch(text)) is not None:
        joined = {"or": "或", "and": "和"}[listed[1]]
        names = f" {joined} ".join(text.rsplit(f" {listed[1]} ", 1))
        yield Parse(names, _letters(text) - 1, _DIVIDED)
    elif " or " in text and not any(map(_PROSE.search, text.split(" or "))):
        yield Parse(text.replace(" or ", " 或 "), _letters(text) - 2, _DIVIDED)


_LITERAL = 0.001
"""Reduction of a form's cost for each of its letters: of two that fit, the longer one wins."""
_DIVIDED_VALUE = 3
"""Cost of a value with a comma, colon or full stop of its own."""
_LONG = 10
"""Letters of a form that is surely meant, so that what it quotes may be anything."""
_SHORT_FOR_A_PLACE = 9
"""A form with fewer letters for each of its places, like ``{quantity} of {name}``, is read only
where in each place stands a number, a name, or what has an entry."""
_KNOWN = 6
"""Cost below which a text in parts is known: what it costs to divide it, and no more."""
_LONGER_INSIDE = 9
"""Cost of a form in a place of a form that has fewer letters: ``{name} off`` is hardly meant."""
_LAST_WORD = 10
"""Cost of a place that holds the word behind a value of several words: it belongs to them."""
_UNKNOWN_VALUE = 4
"""Cost of a value of several words of which none has an entry."""


def _total_cost(parses: Sequence[Parse]) -> float:
    """Return the cost of a text that is divided into parts."""
    return sum(parse.cost for parse in parses) + 1 + len(parses)


def _letters(text: str) -> int:
    return sum(map(str.isalpha, text))


def _marked(value: str, marked: list[str]) -> str:
    """Return the letter that stands for a value while the text around it is translated."""
    marked.append(value)
    return chr(_FIRST_MARK + len(marked) - 1)


def _unmarked(text: str, marked: Sequence[str]) -> str:
    for number, value in enumerate(marked):
        text = text.replace(chr(_FIRST_MARK + number), value)
    return text


def _values(text: str, pieces: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the ways to divide a text among the places between the pieces of a form."""
    first, *others = pieces
    if text.startswith(first) and text.endswith(others[-1]) and _can_hold(text, pieces):
        yield from _divisions(text[len(first) :], others, follows_place=False)


def _divisions(
    text: str, pieces: Sequence[str], *, follows_place: bool
) -> Iterator[tuple[str, ...]]:
    """Yield the values of the places before each of the pieces, the last of which ends the text."""
    piece, *others = pieces
    if follows_place and not (
        _ADDED.match(text) or (text.startswith(piece) if piece else not text)
    ):
        return
    if not others:
        if text.endswith(piece):
            yield (text[: len(text) - len(piece)],)
        return
    at = 0
    while (at := text.find(piece, at)) >= 0:
        text_behind = text[at + len(piece) :]
        if _can_hold(text_behind, others):
            for values in _divisions(text_behind, others, follows_place=not piece):
                yield (text[:at], *values)
        if at >= len(text):
            return
        at += 1


def _filled(form: str, values: Mapping[str, str]) -> str:
    text = PLACE.sub(lambda place: values.get(place[1], place[0]), form)
    return _GAP.sub("", text)


def _may_hold(name: str, value: str, parse: Parse, *, is_short: bool) -> bool:
    """Return whether a place of a form may hold a value, as it is read."""
    if not _is_whole_value(value):
        return False
    if name.startswith(_COUNT) and not _AMOUNT_ALONE.fullmatch(value):
        return False
    is_known = parse.kind in (_ENTRY, _FORM) or parse.cost < _KNOWN
    if is_short and _TWO_AMOUNTS.fullmatch(value):
        return False
    return not is_short or is_known or _is_plain(value)


def _value_cost(value: str, parse: Parse, literal: int) -> int:
    """Return the cost of a value that a form of so many letters would hardly have."""
    cost = _DIVIDED_VALUE if value.startswith("%") else 0
    if parse.kind == _FORM and parse.literal > literal and not _NUMBER.fullmatch(value):
        cost += _LONGER_INSIDE
    if parse.kind == _AS_IS and len(_PROSE.findall(value)) > 1:
        cost += _UNKNOWN_VALUE
    marks = (*_ENDS, *_SIGNS) if parse.kind == _DIVIDED else _SENTENCE_ENDS
    if parse.kind in (_DIVIDED, _AS_IS) and any(mark in value for mark in marks):
        cost += _DIVIDED_VALUE
    return cost


def _is_plain(text: str) -> bool:
    """Return whether the text is a number with its unit, or names."""
    return _NUMBER.fullmatch(text) is not None or _SENTENCE_WORD.search(text) is None


def _is_whole_value(text: str) -> bool:
    """Return whether a text is no half of brackets and has no end that something follows."""
    if text.endswith((":", ";", ",", ").")) or (text.startswith(" (") and not text.endswith(")")):
        return False
    for first, last in ("()", "[]", "（）"):
        depths = itertools.accumulate((letter == first) - (letter == last) for letter in text)
        if text.count(first) != text.count(last) or min(depths, default=0) < 0:
            return False
    return True


def ends_wide(text: str) -> bool:
    """Return whether the text ends in a wide letter, or in a bracket or number behind one."""
    return is_wide(text.rstrip(")]'\"。、")[-1:])


def _split(msgid: str) -> Split:
    parts = PLACE.split(msgid)
    return tuple(parts[::2]), tuple(parts[1::2])


def _words(text: str) -> Iterator[str]:
    return (word.lower() for word in _WORD.findall(text))


def _free_words(pieces: Sequence[str]) -> Iterator[str]:
    """Yield the words of a form that touch no place: a text has them as they are."""
    text = "{".join(pieces)
    for match in _WORD.finditer(text):
        if "{" not in text[max(match.start() - 1, 0) : match.end() + 1]:
            yield match[0].lower()


def _can_hold(text: str, pieces: Sequence[str]) -> bool:
    """Return whether a text holds the pieces in order: cheaper than to divide it."""
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def _parts(text: str, mark: str) -> Iterator[str]:
    """Yield the text between marks that stand in no brackets."""
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
