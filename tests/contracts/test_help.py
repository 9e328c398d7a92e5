"""Help is for people who know nothing of the code: examples, shown defaults, whole sentences."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from trainrig.cli.main import VERBS, cli
from trainrig.cli.verb import Option, Verb

# Options that do nothing where they are left out: files to write, things to ask for besides.
WITHOUT_DEFAULT = {
    "qualify": {"--resume"},
    "predict": {"--model", "--on", "--chip", "--cluster", "--rates", "--cases"}
    | {"--tokens", "--what-if", "--price", "--html", "--pdf", "--md"},
    **{
        f"predict {name}": {"--on", "--chip", "--rates", "--html", "--pdf", "--md"}
        for name in ("matmul", "vector", "layer")
    },
    "fits": {"--model", "--on", "--chip", "--cluster", "--rates", "--html", "--pdf", "--md"},
    "plan": {"--model", "--on", "--rates", "--gpus", "--global-batch", "--tokens", "--days"}
    | {"--what-if", "--write", "--lora-rank", "--chip", "--cluster", "--html", "--pdf", "--md"},
    "train": {"--tokens", "--scale", "--only", "--resume", "--write"},
    "report": {"--html", "--pdf", "--md", "--csv", "--junit", "--prometheus"},
    "published": {"--html", "--md"},
    "compare": {"--html", "--pdf", "--md"},
    "bundle": {"--unpack"},
    "demo": {"--html", "--pdf", "--md"},
    "build check": {"--html", "--pdf", "--md"},
    "build cluster": {"--html", "--pdf", "--md", "--budget", "--tokens", "--network", "--model"},
    "build suggest": {"--html", "--pdf", "--md", "--budget", "--model"},
    "cost": {"--html", "--pdf", "--md", "--measured", "--model", "--on"},
}
# What cannot be read without the line above it.
OPENINGS = ("of ", "the same", "those", "that ", "what it", "whether it", "also ", "as ")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every verb, and the commands of a verb that has several."""
    ctx = click.Context(cli)
    for verb in VERBS:
        found = cli.get_command(ctx, verb)
        assert found is not None
        if isinstance(found, Verb) or not isinstance(found, click.Group):
            yield verb, found
        if isinstance(found, click.Group):
            yield from ((f"{verb} {name}", inner) for name, inner in found.commands.items())


COMMANDS = [pytest.param(*each, id=each[0]) for each in commands()]


def options(command: click.Command) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option) and not each.hidden]


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_every_option_shows_its_default(name: str, command: click.Command) -> None:
    """An option of the verb's own maker, which writes defaults in one way."""
    assert isinstance(command, Verb)
    allowed = WITHOUT_DEFAULT.get(name, set())
    for option in options(command):
        assert isinstance(option, Option), option.name
        shown = "(default: " in (option.help or "")
        assert shown or option.is_flag or option.opts[0] in allowed, option.opts[0]
    assert allowed <= {option.opts[0] for option in options(command)}


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_texts_stand_alone(name: str, command: click.Command) -> None:
    texts = [inspect.cleandoc(command.help or ""), command.get_short_help_str(200)]
    texts += [option.help or "" for option in options(command)]
    texts += [VERBS[name]] if name in VERBS else []
    for text in texts:
        assert text and not text.lower().startswith(OPENINGS), text
        assert text.rstrip().endswith((".", "?")), text


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_help_begins_with_an_example_that_a_newcomer_types(
    name: str, command: click.Command
) -> None:
    _, _, rest = inspect.cleandoc(command.help or "").partition("\b\n")
    first = rest.splitlines()[0]
    assert re.match(rf"trainrig {name}(?: |$)", first)
    examples = re.findall(rf"trainrig {name}(?: .*)?$", rest, re.MULTILINE)  # behind a pipe, too
    given = set(re.findall(r"--[a-z][a-z-]*", " ".join(examples)))
    assert given <= {opt for option in options(command) for opt in option.opts} | {"--help"}


def test_many_options_stand_in_groups() -> None:
    for _, command in ((each.values[0], each.values[1]) for each in COMMANDS):
        assert isinstance(command, click.Command)
        ungrouped = [each for each in options(command) if not getattr(each, "group", "")]
        assert len(ungrouped) <= 10


def test_the_start_page_lists_every_verb_once_under_a_heading() -> None:
    page = CliRunner().invoke(cli, []).output
    assert re.findall(r"^  (\w+)  +[A-Z]", page, re.MULTILINE) == list(VERBS)


def test_the_start_page_answers_help_all_as_well() -> None:
    pages = [CliRunner().invoke(cli, [option]) for option in ("--help", "--help-all")]
    assert pages[0].output == pages[1].output and pages[1].exit_code == 0
