"""In which language the program speaks: chosen once, asked for where text is shown.

What is stored and what ``--json`` prints is English.  The few places that show text (help,
documents, progress, errors) pass it through `translate`, which finds it in a gettext catalogue:
word for word, or as a form with places (``{n} of {total} ran``), whose places are translated in
turn.  So a sentence of a run that was written last year, or by a colleague, is read in one's own
language, and code that makes a sentence is not marked.  Text that no entry knows stays as it is.

Nothing is loaded, and nothing is looked up, while the language is English.  ``locale/`` holds the
catalogues; ``tools/messages.py`` keeps them up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainrig.errors import UsageError

if TYPE_CHECKING:
    from trainrig.language.catalogue import Catalogue

ENGLISH = "en"
LANGUAGES = {ENGLISH: "English", "zh-CN": "简体中文"}
_ALIASES = {"zh": "zh-CN", "zh-hans": "zh-CN", "zh-sg": "zh-CN", "zh-hans-cn": "zh-CN"}
_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")

_tag = ENGLISH
_catalogue: Catalogue | None = None
_message_catalogue: Catalogue | None = None


def tag() -> str:
    """Return the language that text is shown in, as pages name it: ``en``, ``zh-CN``."""
    return _tag


def activate(language: str) -> None:
    """Show text in one of LANGUAGES from now on."""
    global _tag, _catalogue, _message_catalogue
    if language == _tag:
        return
    _tag, _catalogue, _message_catalogue = language, None, None
    if language != ENGLISH:
        from trainrig.language.catalogue import Catalogue

        _catalogue = Catalogue.load(language)


def translate(text: str) -> str:
    """Translate a text into the language that is shown, if that has an entry for it."""
    return text if _catalogue is None or not text else _catalogue.translate(text)


def translate_message(text: str) -> str:
    """Translate an error or a hint, but none of the names that it speaks of.

    A key of a file, a column or a verb is what the reader has to type: ``chip`` is no word of the
    message, though pages have it as one.
    """
    global _message_catalogue
    if _catalogue is None or not text:
        return text
    if _message_catalogue is None:
        from trainrig.language.catalogue import Catalogue

        _message_catalogue = Catalogue.load(_tag, keeps_input_keys=True)
    return _message_catalogue.translate_message(text)


def parse_language(word: str) -> str:
    """Return the language that a user names: ``zh-CN``, ``zh``, ``zh_CN.UTF-8``, ``en-US``.

    Raises UsageError for one that there is no catalogue of.
    """
    if (known := _known(word)) is None:
        raise UsageError(f"unknown language {word[:60]!r}", f"one of: {', '.join(LANGUAGES)}")
    return known


def environment_language(variables: Mapping[str, str], encoding: str | None) -> str:
    """Return the language that LANGUAGE, LC_ALL, LC_MESSAGES and LANG name, as for gettext.

    English where they name none of ours, in the C locale, or where the terminal's ``encoding``
    (None for the usual one) has no letters for it.
    """
    locale = next((variables[name] for name in _VARIABLES if variables.get(name)), "C")
    if locale.partition(".")[0] in ("C", "POSIX"):
        return ENGLISH
    wanted = [*filter(None, variables.get("LANGUAGE", "").split(":")), locale]
    for word in wanted:
        if (known := _known(word)) is not None:
            return known if _can_write(LANGUAGES[known], encoding) else ENGLISH
    return ENGLISH


def _known(word: str) -> str | None:
    plain = word.partition(".")[0].partition("@")[0].replace("_", "-").lower()
    spelled = {name.lower(): name for name in LANGUAGES} | _ALIASES
    return ENGLISH if plain.partition("-")[0] == ENGLISH else spelled.get(plain)


def _can_write(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or sys.getdefaultencoding())
    except (UnicodeEncodeError, LookupError):
        return False
    return True
