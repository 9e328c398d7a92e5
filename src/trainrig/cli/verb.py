"""Building blocks of a verb: grouped options, shown defaults, shell completion.

`verb` and `option` take the place of click's decorators.  Help lists options under the heading that
each names (``group``), in the order of the verb's file, and ends an option's text with its default:
the value itself, or in ``default_text`` what is taken where the option is left out.
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from trainrig.errors import UsageError

PATH = click.Path(path_type=Path)
RETIRED = {
    "--backend": "--framework (DataParallel: --parallel dataparallel)",
    "--engine": "--framework (DDP and FSDP: --parallel)",
}
"""Options of earlier versions, refused, with what they are called now."""
Decorator = Callable[[Any], Any]
_ALL_OPTIONS = "trainrig.all_options"
_ALWAYS = ("--json", "-h", "--help", "--help-all")
"""Options that the short help of every verb lists."""


def _twice(option: click.Option, typed: list[str]) -> str:
    """Return the message about an option that is given twice, by the names that were typed."""
    known = {*option.opts, *getattr(option, "aliases", ())}
    names = [name for word in typed if (name := word.partition("=")[0]) in known]
    if len(set(names)) > 1:
        return f"{' and '.join(dict.fromkeys(names))} are one option: give it once"
    return f"{names[0] if names else option.opts[0]} is given twice"


class Verb(click.Command):
    """A command whose help has one section for each group of options.

    ``common`` names the options that ``--help`` lists, for verbs that have many; ``--help-all``
    lists all of them.
    """

    def __init__(self, *args: Any, common: Iterable[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.common = tuple(common)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with ``--help-all`` behind ``--help``."""
        return [*super().get_params(ctx), self._help_all()]

    def _help_all(self) -> click.Option:
        def show(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
            if is_asked and not ctx.resilient_parsing:
                ctx.meta[_ALL_OPTIONS] = True
                click.echo(ctx.get_help())
                ctx.exit()

        return click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            hidden=not self.common,
            callback=show,
            help="Show all options and exit.",
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse what click would not: a value that is given twice, and an option's old name."""
        typed, args = args, self._without_aliases(ctx, args)
        if not ctx.resilient_parsing:
            try:
                _, _, parameters_given = self.make_parser(ctx).parse_args(list(args))
            except click.NoSuchOption as error:
                if (name := RETIRED.get(error.option_name)) is None:
                    raise
                hint = f"it is called {name} now"
                raise UsageError(f"there is no {error.option_name}", hint) from None
            for parameter in parameters_given:
                if (
                    isinstance(parameter, click.Option)
                    and not parameter.multiple
                    and (not parameter.is_flag or parameter.secondary_opts)
                    and sum(parameter_given is parameter for parameter_given in parameters_given)
                    > 1
                ):
                    raise click.UsageError(_twice(parameter, typed), ctx)
        return super().parse_args(ctx, args)

    def _without_aliases(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments with today's name for each alias of an option.

        The value of an option stays as it is typed, also where it is spelled as an alias.
        """
        known = [
            parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)
        ]
        aliases = {
            name: (option.opts[0], unit)
            for option in known
            if isinstance(option, Option)
            for name, unit in option.aliases.items()
        }
        num_values = {
            name: option.nargs
            for option in known
            if not (option.is_flag or option.count)
            for name in (*option.opts, *option.secondary_opts)
        }
        spelled: list[str] = []
        words = iter(args)
        for word in words:
            if word in num_values:
                spelled += [word, *itertools.islice(words, num_values[word])]
                continue
            name, equals, value = word.partition("=")
            if word == "--" or name not in aliases:
                spelled += [word, *words] if word == "--" else [word]
                continue
            today, unit = aliases[name]
            typed = value if equals else next(words, None)
            spelled.append(today)
            if typed is not None:
                spelled.append(typed + unit * bool(_NUMBER.fullmatch(typed)))
        return spelled

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections in the order in which the verb declares them."""
        groups: dict[str, list[tuple[str, str]]] = {}
        is_short = bool(self.common) and not ctx.meta.get(_ALL_OPTIONS)
        for parameter in self.get_params(ctx):
            if not isinstance(parameter, click.Option):  # arguments are in the text
                continue
            if is_short and parameter.opts[0] not in (*self.common, *_ALWAYS):
                continue
            if (record := parameter.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(parameter, "group", ""), []).append(record)
        ungrouped = groups.pop("", [])
        title = "Output and help" if groups else "Options"
        for name, records in [*groups.items(), (title, ungrouped)]:
            with formatter.section(name):
                formatter.write_dl(records)


class VerbGroup(Verb, click.Group):
    """A verb that does something by itself, and has commands besides."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options of the verb itself."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)


class Option(click.Option):
    """An option with the heading under which the verb's help lists it."""

    def __init__(
        self,
        *args: Any,
        group: str = "",
        words: Callable[[], Iterable[str]] | None = None,
        aliases: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.group = group
        self.aliases = aliases or {}
        """Other spellings, which help does not list, and the unit of a bare number in them."""
        self.words = words
        """For ``{words}`` and ``{first}`` in its help; loaded only where help is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return its names and its help."""
        record = super().get_help_record(ctx)
        return None if record is None else (record[0], self._with_words(record[1]))

    def help_with_words(self) -> str:
        """Return the option's help, its words in place of ``{words}``."""
        return self._with_words(self.help or "")

    def _with_words(self, text: str) -> str:
        if self.words is None:
            return text
        words = list(self.words())
        listed = " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)
        return text.replace("{words}", listed).replace("{first}", words[0])


verb = partial(click.command, cls=Verb)
"""Makes a function a verb; its summary in the list of verbs is `cli.main`'s."""


def option(*names: str, help: str, default_text: str = "", **settings: Any) -> Decorator:  # noqa: A002
    """Return an option.

    Its help ends in ``(default: …)`` where it has a default or a ``default_text``.
    """
    value = settings.get("default")
    if not default_text and value is not None and not settings.get("is_flag"):
        default_text = str(value)
    if default_text:
        help = f"{help.removesuffix('.')} (default: {default_text})."  # noqa: A001
    return click.option(*names, cls=Option, help=help, **settings)


def rows(group: str, *listed: tuple[str, Any, str, str]) -> tuple[Decorator, ...]:
    """Options of one group as rows: names with commas, what it takes, ``default_text``, help.

    Names behind a bar, ``--micro-batch|--batch-size``, are old spellings that help does not list.
    It takes a number (int, float), a path (PATH), a duration (TIME), one of some `Names`, what a
    function completes, or any text (how help calls it, in a list where it may be repeated), or as
    click's settings say (FILE, FILES, RUN); None stands for a flag or, where the name has a slash,
    for a switch.
    """
    decorators = []
    for name, takes, default_text, text in listed:
        settings: dict[str, Any] = {}
        match takes:
            case None:
                settings = {"is_flag": True, "default": None}
            case dict():
                settings = takes
            case [metavar]:
                settings = {"metavar": metavar, "multiple": True}
            case str():
                settings = {"metavar": takes}
            case Names():
                settings = {"shell_complete": takes.complete, "words": takes.names}
            case _ if takes in (int, float) or isinstance(takes, click.ParamType):
                settings = {"type": takes}
            case _:
                settings = {"shell_complete": takes}
        option_name, *others = name.split("|")
        settings["aliases"] = dict.fromkeys(others, "")
        new_option = option(
            *option_name.split(","), group=group, default_text=default_text, help=text, **settings
        )
        decorators.append(new_option)
    return tuple(decorators)


def options(*groups: Iterable[Decorator]) -> Decorator:
    """Return all options of some groups, in their order."""

    def decorate(command: Any) -> Any:
        for group in reversed(groups):
            for decorator in reversed(list(group)):
                command = decorator(command)
        return command

    return decorate


OUT = option(
    "--out", type=PATH, default=Path("runs"), help="Folder in which the run's folder is made."
)


def _detach(name: str, how: str, text: str) -> Decorator:
    return option(name, "detach", flag_value=how, default="", default_text="no", help=text)


DETACH = options(
    (
        _detach("--detach", "alone", "Keep running when the terminal is closed."),
        _detach("--tmux", "tmux", "Keep running in a new tmux session."),
    )
)
"""Both set ``detach``: empty, ``alone`` or ``tmux``."""


STRICT = option(
    "--strict", is_flag=True, help="Exit with 3 where nothing was judged (MEASURED), not with 0."
)


class _FilePath(click.Path):
    """A file; ``-`` is none, which elsewhere is stdout."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == "-":
            raise UsageError("- is no file", "name one: only --md writes to stdout")
        return super().convert(value, param, ctx)


FILE: dict[str, Any] = {"type": _FilePath(path_type=Path), "metavar": "FILE"}
FILES: dict[str, Any] = {**FILE, "multiple": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The files that a document is written to, besides the terminal."""

    html: Path | None = None
    pdf: Path | None = None
    md: Path | None = None
    """``-`` is stdout."""

    @property
    def any(self) -> bool:
        """Return whether a file was asked for."""
        return (self.html, self.pdf, self.md) != (None, None, None)

    @property
    def md_on_stdout(self) -> bool:
        """Return whether markdown takes the place of what a terminal shows."""
        return self.md is not None and str(self.md) == "-"


def _with_pages(command: Any) -> Any:
    """Return a command that gets the three options as one value, ``pages``."""

    @wraps(command)
    def gathered(
        html: Path | None, pdf: Path | None, md: Path | None, *args: Any, **given: Any
    ) -> Any:
        return command(*args, pages=Pages(html=html, pdf=pdf, md=md), **given)

    return gathered


PAGES = (
    option("--html", **FILE, help="Write one offline HTML file."),
    option("--pdf", **FILE, help="Write a PDF, printed by an installed Chromium or Chrome."),
    option("--md", type=PATH, metavar="FILE", help="Write markdown; - is stdout."),
    _with_pages,
)
"""Options for the file a document is written to: see `cli.output.publish`."""


class _Tokens(click.ParamType):  # type: ignore[type-arg]  # click of 8.1 takes none
    """A number of tokens, as the field writes it."""

    name = "number"

    def convert(self, value: Any, *_: Any) -> float:
        from trainrig.units import parse_tokens

        return parse_tokens(value) if isinstance(value, str) else value


class _Length(click.ParamType):  # type: ignore[type-arg]  # click of 8.1 takes none
    """A number of tokens of a sample, as models' context is written."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, _: Any) -> int:
        from trainrig.units import parse_length

        name = param.opts[0].removeprefix("--") if param is not None else "length"
        return parse_length(value, name) if isinstance(value, str) else value


LENGTH = _Length()
"""``8192``, ``8k``."""


class _GlobalBatch(click.ParamType):  # type: ignore[type-arg]  # click of 8.1 takes none
    """Samples of a step, or with a unit its tokens, which wait for the sequence's length."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, _: Any) -> int | str:
        from trainrig.units import parse_length

        if not isinstance(value, str):
            return int(value)
        if value.strip().lstrip("-").isdecimal():
            return int(value)
        parse_length(value, "global-batch")
        return value


GLOBAL_BATCH = _GlobalBatch()
"""``512`` samples, ``4M`` tokens."""
TOKENS = _Tokens()
"""``140e9``, ``140B``."""


class _Duration(click.ParamType):  # type: ignore[type-arg]  # click of 8.1 takes none
    """A duration with its unit, in seconds; a bare number is refused with its two readings."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, _: Any) -> float:
        from trainrig.units import parse_duration

        name = param.opts[0] if param is not None else ""
        return parse_duration(value, name) if isinstance(value, str) else value


TIME = _Duration()
"""``45s``, ``4m``, ``1.5h``."""
_NUMBER = re.compile(r"-?\d+(\.\d*)?|-?\.\d+")


def budget(default: str, help: str, *, group: str = "") -> Decorator:  # noqa: A002
    """Return ``--budget``: how long a verb may take, spelled so by every verb that takes time.

    Args:
        default: As it is typed: ``4m``.
        help: What the time is for, in a sentence.
        group: The heading in the verb's help.

    ``--time``, ``--duration``, ``--minutes`` and ``--seconds`` are aliases; a bare number behind
    the last two has the unit that they name.
    """
    aliases = {"--time": "", "--duration": "", "--minutes": "m", "--seconds": "s"}
    return option("--budget", type=TIME, default=default, group=group, help=help, aliases=aliases)


def json_option(text: str = "One JSON object on stdout.") -> Decorator:
    """Return ``--json``, which every verb has."""
    return option("--json", "as_json", is_flag=True, help=text)


# ---- completion in the shell: names alone, so that nothing heavy is loaded while someone types


@dataclass(frozen=True, slots=True)
class Names:
    """Names that an option takes; they are looked up where help is shown or somebody types."""

    names: Callable[[], Iterable[str]]

    def complete(self, _: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
        """Return names that begin so, whatever their case.

        A space typed in quotes counts as a dash.
        """
        start = typed.lower().replace(" ", "-")
        return [CompletionItem(name) for name in self.names() if name.lower().startswith(start)]


def chip_names() -> list[str]:
    """Return the catalog's chips, dashes for spaces: the shells would split a name at its spaces.

    Reading and checking the whole catalog takes five times as long as finding its names.
    """
    import re

    import trainrig

    folder = Path(trainrig.__file__).parent / "catalog" / "chips"
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.toml"))]
    names = [name for text in texts for name in re.findall(r'^name = "(.+)"$', text, re.MULTILINE)]
    return [name.replace(" ", "-") for name in names]


def complete_runs(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Runs in runs/, newest first, or in the folder that is being typed; else any file."""
    from trainrig.store.run_folder import CONFIG

    folder, _slash, start = typed.rpartition("/")
    parent = Path(folder) if folder else Path("runs")
    runs = sorted((path.parent for path in parent.glob(f"{start}*/{CONFIG}")), reverse=True)
    return [CompletionItem(str(run)) for run in runs] or [CompletionItem(typed, type="file")]


def names_in(module: str, table: str) -> Names:
    """Return the names that a table of a module holds, as ``workload.layout``'s OPTIMIZERS."""
    return Names(lambda: list(getattr(importlib.import_module(f"trainrig.{module}"), table)))


class _RunPath(click.Path):
    """A run: its folder, its bundle, or the name, or a part of the name, of one in runs/."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from trainrig.store import place_of

        return place_of(Path(os.fsdecode(super().convert(value, param, ctx))))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return complete_runs(ctx, param, incomplete)


RUN_PATH = _RunPath(path_type=Path)
RUN: dict[str, Any] = {"type": RUN_PATH, "metavar": "RUN"}
CHIPS = Names(chip_names)
MACHINES: dict[str, Any] = {
    "multiple": True,
    "metavar": "MACHINE",
    "shell_complete": CHIPS.complete,
}
MODELS = names_in("workload.presets", "NAMED")
