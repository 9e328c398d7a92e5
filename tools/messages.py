"""The catalogues of what trainrig shows: texts are found, carried over and compiled.

    python tools/messages.py --update    read the source, carry translations over, write .po and .mo
    python tools/messages.py             what a catalogue lacks; exit 1 where something is missing

Texts are not marked in the code.  Taken are: strings with words in the source (an f-string becomes
a form: its places bear the names of what stands in them; each way of a condition within it is a
form of its own), the help of the command line, texts of the data files named in DATA, what the
templates pass to ``_``, and `tools/composed.txt`, which lists what code composes from pieces.  A
translation that equals its msgid leaves the text English on purpose: names, units, commands.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "trainrig"
LOCALE = SOURCE / "locale"
COMPOSED = Path(__file__).with_name("composed.txt")
DATA = {
    "doctor/findings.toml": ("cause", "risk", "undo"),
    "doctor/logged.toml": ("evidence", "fix", "cause", "undo"),
    "doctor/xid.toml": ("meaning", "next"),
    "doctor/sxid.toml": ("meaning", "next"),
    "importers/trainings/*.toml": ("title", "definition", "judged_by", "memory")
    + ("no_timers", "zero_timers", "no_end", "no_memory"),
    "install/build_errors.toml": ("cause", "fix"),
    "catalog/build_rules.toml": ("says", "text", "fix", "title"),
    "catalog/electricity.toml": ("what",),
}
"""Files of data (or patterns of their names) and the keys in them whose texts are shown."""
NOT_SHOWN = (
    "train/native/export_weights.py",
    "machine/parse.py",
    "train/drivers/start.py",
    "process/python_env.py",
)
"""Files whose strings are never shown."""
SILENT_CALLS = frozenset(
    ["compile", "search", "fullmatch", "match", "split", "sub", "findall", "finditer", "find_spec"]
    + [
        "AssertionError",
        "NotImplementedError",
        "getLogger",
        "startswith",
        "endswith",
        "removeprefix",
    ]
    + ["removesuffix", "partition", "rpartition", "strptime", "strftime", "TypeVar", "Literal"]
    + ["getattr", "setattr", "import_module", "warn", "filterwarnings", "unify", "cast"]
)
"""What these take is read by a program, not by people."""
SHOWING_CALLS = frozenset(
    ["Section", "Facts", "Tile", "Column", "column", "words", "Cell", "Paragraph", "Badge", "Item"]
    + ["Axis", "Series", "Chart", "Note", "Findings", "WaterfallBars", "Bar", "table", "Table"]
    + ["LevelRule", "Quantity", "KeyNumber", "counted", "Share", "capital", "plain", "Part"]
)
"""What these take is shown, even a single word."""
_MOST_FORMS = 16
_PLACE = re.compile(r"\{(\w*)\}")


def messages() -> dict[str, list[tuple[str, int]]]:
    """Every text to translate, with the places where it is made."""
    found: dict[str, list[tuple[str, int]]] = {}
    everything = itertools.chain(_of_source(), _of_help(), _of_data(), _of_templates(), _composed())
    for name, line, text in everything:
        places = found.setdefault(text, [])
        if (name, line) not in places:
            places.append((name, line))
    return found


# ---- strings of the source


def _of_source() -> Iterator[tuple[str, int, str]]:
    for path in (*sorted(SOURCE.rglob("*.py")), ROOT / "tools" / "make_demo.py"):
        name = path.relative_to(SOURCE if SOURCE in path.parents else ROOT).as_posix()
        if name not in NOT_SHOWN:
            for line, text in texts_in(ast.parse(path.read_text(encoding="utf-8"))):
                yield name, line, text


def texts_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and form of each string that people may read."""
    yield from _walk(tree, shown=False)


def _walk(node: ast.AST, *, shown: bool) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Subscript() | ast.Compare():
            return  # a docstring, or what a program compares
        case ast.Call():
            yield from _of_call(node)
            return
        case ast.keyword(arg="kind" | "tone" | "metavar" | "colour"):
            return
        case ast.keyword(
            arg="group" | "label" | "title" | "name" | "head" | "what" | "note" | "short"
        ):
            yield from _walk(node.value, shown=True)
            return
    if isinstance(node, ast.Constant | ast.JoinedStr) or _is_sum(node):
        yield from _of_string(node, shown=shown)
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, shown=shown and isinstance(node, _PASSED_ON))


_PASSED_ON = ast.Dict | ast.List | ast.Tuple | ast.keyword | ast.IfExp | ast.Lambda | ast.Starred


def _of_string(node: ast.AST, *, shown: bool) -> Iterator[tuple[int, str]]:
    forms = list(itertools.islice(_forms(node), _MOST_FORMS))
    for form in forms:
        yield from _texts(getattr(node, "lineno", 0), form, shown=shown)
    for inner in _places(node):
        yield from _walk(inner, shown=False)


def _of_call(node: ast.Call) -> Iterator[tuple[int, str]]:
    name = _name(node.func)
    texts = [each.value for each in node.args if _is_text(each)]
    if name in SILENT_CALLS:
        return
    if name == "get" and texts:  # a key, and what stands in for its value
        for child in (node.func, *node.args[1:]):
            yield from _walk(child, shown=False)
    elif name == "translate" and texts:
        yield node.lineno, texts[0]
    elif name == "unknown" and texts:
        yield node.lineno, f"unknown {texts[0]} {{name}}"
    elif name == "counted" and texts:
        yield from ((node.lineno, f"{{number}} {texts[0]}{ending}") for ending in ("", "s"))
    else:
        for child in ast.iter_child_nodes(node):
            yield from _walk(child, shown=name in SHOWING_CALLS)


def _is_sum(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add)
        and any(
            isinstance(side, ast.JoinedStr) or _is_text(side) or _is_sum(side)
            for side in (node.left, node.right)
        )
    )


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _forms(node: ast.AST) -> Iterator[str]:
    """The ways in which a string can read, its places in braces."""
    match node:
        case ast.Constant(value=str(text)):
            text = text.replace("{}", "{value}")  # what format fills in is a place
            yield re.sub(r"\{(?!\w+\})|(?<![\w])\}", "\0", text)
        case ast.JoinedStr(values=values):
            for parts in itertools.product(*(list(_forms(value)) for value in values)):
                yield "".join(parts)
        case ast.FormattedValue(value=value):
            yield from _forms(value) if isinstance(value, ast.IfExp) else [f"{{{_noun(value)}}}"]
        case ast.IfExp(body=body, orelse=other):
            yield from _forms(body)
            yield from _forms(other)
        case ast.BinOp(op=ast.Add(), left=left, right=right) if _is_sum(node):
            for first, last in itertools.product(list(_forms(left)), list(_forms(right))):
                yield first + last
        case _:
            yield f"{{{_noun(node)}}}"


def _places(node: ast.AST) -> Iterator[ast.AST]:
    """The expressions that stand in a string's places."""
    match node:
        case ast.JoinedStr(values=values):
            for value in values:
                yield from _places(value)
        case ast.FormattedValue(value=value):
            yield from _places(value) if isinstance(value, ast.IfExp | ast.JoinedStr) else [value]
        case ast.IfExp(test=test, body=body, orelse=other):
            yield test
            yield from _places(body)
            yield from _places(other)
        case ast.BinOp(left=left, right=right) if _is_sum(node):
            yield from _places(left)
            yield from _places(right)
        case ast.Constant():
            return
        case _:
            yield node


def _noun(node: ast.AST) -> str:
    """Return what a translator is shown of an expression."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_") or "value"
        case ast.Call(func=func, args=args):
            name = _name(func).strip("_")
            return _noun(args[0]) if args and name.startswith(_FORMATTERS) else name or "value"
        case ast.Subscript(slice=ast.Constant(value=str(key))) if key.isidentifier():
            return key
        case ast.Subscript(value=value) | ast.Starred(value=value) | ast.BinOp(left=value):
            return _noun(value)
    return "value"


_FORMATTERS = ("format_", "signed", "capital", "str", "len", "abs", "round", "range_text", "join")


def _name(func: ast.AST) -> str:
    match func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


_CODE = re.compile(
    r"\\|\(\?[:=!<P]|^[#/.<@$^]|://|%\(|\[\^|==|^\w+ = |^import |^from \w+ import |;base64|</|\{\{"
    r"|\$[\w({$]\w*(?!\w*/)|^set -"
)
_WORDED = re.compile(r"[A-Za-z]{3}")
_COMMAND = re.compile(
    r"(?:sudo|pip|apt|apt-get|dnf|export|unset|chmod|systemctl|conda|docker|nvidia-smi|trainrig|ssh|ulimit"
    r"|echo|modprobe|cat|python3?|bash|numactl|ethtool|lspci|fio|git) [^;,:]*"
)


def _texts(line: int, form: str, *, shown: bool) -> Iterator[tuple[int, str]]:
    """The form with numbered names, if people may read it; each line of one that has lines."""
    if "\b" in form or form.startswith("#!"):
        return  # a help text; a script
    for part in form.split("\n"):
        text = _numbered(part.strip().lstrip(";,: ").rstrip(";, "))
        own = _PLACE.sub("", text)
        if (
            _COMMAND.fullmatch(text)
            or not _WORDED.search(own)
            or _CODE.search(own)
            or "\0" in own
            or "\1" in own
        ):
            continue
        is_phrase = " " in own.strip() or (own.strip()[:1].isupper() and own.strip().isalpha())
        has_lower = re.search(r"[a-z]{3}", own) is not None
        if not has_lower:
            continue
        if is_phrase or shown or (_PLACE.search(text) and own.strip().isalpha()):
            yield line, text


def _numbered(text: str) -> str:
    """Places of one name told apart: ``{value}``, ``{value_2}``."""
    seen: dict[str, int] = {}

    def rename(match: re.Match[str]) -> str:
        name = match[1]
        seen[name] = seen.get(name, 0) + 1
        return f"{{{name}}}" if seen[name] == 1 else f"{{{name}_{seen[name]}}}"

    return _PLACE.sub(rename, text)


# ---- help, data, templates


def _of_help() -> Iterator[tuple[str, int, str]]:
    from trainrig.cli.main import FIRST, GROUPS, cli

    yield from (("cli/main.py", 0, text) for text in (*GROUPS, *FIRST.values(), *_rows(GROUPS)))
    yield from _of_command("trainrig", cli)


def _rows(groups: dict[str, dict[str, str]]) -> list[str]:
    return [summary for verbs in groups.values() for summary in verbs.values()]


def _of_command(name: str, command: click.Command) -> Iterator[tuple[str, int, str]]:
    from trainrig.cli.help_page import DEFAULT, paragraphs

    place = f"help of {name}"
    for text in paragraphs(command.help or ""):
        lines = [line.strip() for line in text.split("\n")]
        found = lines[1:] if lines[0] == "\b" else [" ".join(lines)]
        is_prose = lines[0] != "\b"
        yield from ((place, 0, each) for each in found if is_prose or not _is_typed(each))
    # A command keeps the help option that its first context gives it.
    context = click.Context(command, info_name=name, help_option_names=["-h", "--help"])
    for option in command.get_params(context):
        text = getattr(option, "help", None) or ""
        match = DEFAULT.fullmatch(text)
        for part in (f"{match['text']}.", match["default"]) if match else (text,):
            if _WORDED.search(part) and not part.startswith(("{", "runs")) and " " in part:
                yield place, 0, part
        if group := getattr(option, "group", ""):
            yield place, 0, group
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found_command = command.get_command(context, inner)
            assert found_command is not None
            yield place, 0, found_command.get_short_help_str(200)
            yield from _of_command(f"{name} {inner}", found_command)


def _is_typed(line: str) -> bool:
    """Return whether a line of help is something to type."""
    return (
        not line
        or line.startswith(("trainrig ", "--", "python ", "ssh "))
        or not _WORDED.search(line)
    )


def _of_data() -> Iterator[tuple[str, int, str]]:
    for pattern, keys in DATA.items():
        for path in sorted(SOURCE.glob(pattern)):
            data = tomllib.loads(path.read_text(encoding="utf-8"))
            name = path.relative_to(SOURCE).as_posix()
            yield from ((name, 0, text) for text in _values(data, keys))


def _values(data: object, keys: Sequence[str]) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key in keys and isinstance(value, str) and _WORDED.search(value):
                yield " ".join(value.split())
            else:
                yield from _values(value, keys)
    elif isinstance(data, list):
        for value in data:
            yield from _values(value, keys)


def _of_templates() -> Iterator[tuple[str, int, str]]:
    for path in sorted((SOURCE / "report").rglob("*.j2")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for text in re.findall(r"""\b_\("([^"]+)"\)""", line):
                yield path.relative_to(SOURCE).as_posix(), number, text


def _composed() -> Iterator[tuple[str, int, str]]:
    for number, line in enumerate(COMPOSED.read_text(encoding="utf-8").splitlines(), start=1):
        if line and not line.startswith("#"):
            yield "tools/composed.txt", number, line


# ---- catalogues


def path_of(language: str) -> Path:
    """Return where a catalogue lies."""
    return LOCALE / language / "LC_MESSAGES" / "trainrig.po"


def load(language: str) -> Catalog:
    """A catalogue as it lies there; an empty one where there is none."""
    path = path_of(language)
    if not path.exists():
        return Catalog(language, domain="trainrig")
    with path.open("rb") as file:
        return read_po(file, language, "trainrig")


def update(language: str) -> Catalog:
    """The catalogue with today's texts; one whose places were renamed keeps its translation."""
    old = load(language)
    said = {str(each.id): str(each.string) for each in old if each.id and each.string}
    by_pieces = {_PLACE.sub("{}", msgid): (msgid, text) for msgid, text in said.items()}
    new = Catalog(
        language, domain="trainrig", project="trainrig", header_comment=old.header_comment
    )
    new.mime_headers = [pair for pair in new.mime_headers if pair[0] in _HEADERS]
    for msgid, places in sorted(messages().items(), key=lambda pair: (pair[1][0], pair[0])):
        text = said.get(msgid, "")
        if not text and (renamed := by_pieces.get(_PLACE.sub("{}", msgid))) is not None:
            names = dict(zip(_PLACE.findall(renamed[0]), _PLACE.findall(msgid), strict=True))
            text = _PLACE.sub(lambda place: f"{{{names.get(place[1], place[1])}}}", renamed[1])  # noqa: B023
        flags = ["python-brace-format"] if _PLACE.search(msgid) else []
        new.add(msgid, text, [(places[0][0], None)], flags)
    return new


_HEADERS = ("MIME-Version", "Content-Type", "Content-Transfer-Encoding")


def save(catalog: Catalog, language: str) -> None:
    """Write the .po, and the .mo that the program reads."""
    path = path_of(language)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        write_po(file, catalog, width=100, omit_header=False, ignore_obsolete=True)
    with path.with_suffix(".mo").open("wb") as file:
        write_mo(file, catalog)


def missing(language: str) -> list[str]:
    """Texts of the source that the catalogue has no translation of."""
    said = {str(each.id) for each in load(language) if each.id and each.string}
    return [text for text in messages() if text not in said]


def main() -> int:
    """Update the catalogues, or list what they lack."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="write the catalogues")
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT / "src"))
    lacking = 0
    for language in ("zh_CN",):
        if asked.update:
            save(update(language), language)
        for text in (absent := missing(language)):
            print(f"{language}: {text}")
        lacking += len(absent)
    print(f"{lacking} missing")
    return 1 if lacking and not asked.update else 0


if __name__ == "__main__":
    sys.exit(main())
