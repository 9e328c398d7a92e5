"""The command group: verbs are loaded when they are used, errors become one line.

``--help`` imports click and nothing else of weight, so that it answers at once.
Exit codes: see `trainrig.errors`.
"""

from __future__ import annotations

import importlib
import os
import sys

import click
from click.shell_completion import CompletionItem

from trainrig import plugins
from trainrig.cli.internal_error import report_crash
from trainrig.cli.output import (
    best_effort,
    discard,
    is_stream_error,
    prepare_streams,
    print_error,
)
from trainrig.errors import (
    EXIT_CRASH,
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    TrainrigError,
    unknown,
)
from trainrig.language import (
    ENGLISH,
    activate,
    environment_language,
    parse_language,
    translate,
    translate_message,
)

EXIT_CODES = (
    "0 fine, 1 a finding, 2 wrong usage, 3 a required step is missing or undecided, "
    "70 a fault of trainrig itself, 130 interrupted."
)
# heading -> verb -> what the start page says of it; the verb's own file is not loaded for that.
GROUPS = {
    "Measure a machine": {
        "qualify": "Measure, compare with what is expected, and give a verdict.",
        "burn": "Minutes of heavy work, every result compared, every sensor watched.",
        "bench": "Run one benchmark by itself: matrix products, copies, layers, a disk ...",
    },
    "Understand a machine": {
        "doctor": "What is wrong with this machine, and how to put it right.",
        "selftest": "Plants a fault below every check, and sees that it is found.",
        "inspect": "What this machine is: processor, memory, disks, GPUs, software.",
        "top": "Devices, processes, and the training or burn that runs, second by second.",
        "metrics": "Sensors, trainings and burns for Prometheus, on loopback.",
        "catalog": "What vendors claim: one chip, or several side by side.",
        "published": "Is my number normal?  What others published of a card.",
        "env": "A script that installs driver, CUDA and torch that go together.",
    },
    "Predict, before you buy or run": {
        "predict": "What a training step costs in time and memory.",
        "fits": "Does a training fit in memory, and which option saves most?",
        "plan": "Every layout of a model on so many GPUs, ranked; or how many GPUs.",
    },
    "Buy, build or rent": {
        "build": "Is a parts list legal?  The best build under a budget; how to assemble it.",
        "cost": "Buy, rent or cloud: totals, break-even, price of a million tokens.",
        "prices": "Keep a dated list of prices.",
    },
    "Train": {
        "data": "Prepare text for training: tokenizer, tokens, a held-out part.",
        "train": "Train a model, or a file of experiments; where each step's time goes.",
        "tune": "The best layouts of a plan, trained and ranked by what was measured.",
        "generate": "Continue a text with what a run has trained.",
        "export": "Weights for Hugging Face, Megatron-Core or DeepSpeed.",
    },
    "Reach a machine": {
        "remote": "Forwards, relays, a notebook: set up, tested, audited, taken back.",
        "jobs": "What was started with --detach, and how it stands.",
        "attach": "Follow a job as if it ran here.",
    },
    "Runs and their records": {
        "report": "Show a run: in the terminal, as HTML or as markdown.",
        "compare": "Runs against a baseline: better, worse or cannot tell.",
        "ledger": "Predictions of earlier runs beside what was measured.",
        "import": "Read other tools' files: nccl-tests, DCGM, fio, training logs, traces ...",
        "bundle": "Pack a run into one file with a content hash, or unpack it.",
        "demo": "A report of two RTX 3090 Ti made from published figures.",
    },
}
VERBS = {verb: summary for verbs in GROUPS.values() for verb, summary in verbs.items()}
FIRST = {
    "inspect": "What is this machine?  Two seconds, changes nothing.",
    "qualify": "Is it as fast as it should be?  Four minutes, a verdict, report.html.",
    "fits --model llama-7B --on RTX-4090": "Before you buy or rent: does it fit?",
    "demo": "What does a report look like?",
}


class LazyGroup(click.Group):
    """A group whose commands live in ``trainrig.cli.<verb>``, as ``command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs, in the order in which people meet them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the verb's file."""
        if cmd_name == "help":
            return help_of
        if cmd_name not in VERBS:
            plugin: click.Command | None = plugins.find(plugins.VERBS, cmd_name, click.Command)
            return plugin
        command: click.Command = importlib.import_module(f"trainrig.cli.{cmd_name}").command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``--lang`` wherever it stands: a verb's errors and help are in that language too."""
        return super().parse_args(ctx, _language_first(ctx, args))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Click's own, which knows no names here to say which verb was meant."""
        word = args[0]
        is_ours = word.startswith("-") or word == "help" or word in VERBS
        if not is_ours and self.get_command(ctx, word) is None:
            raise _unknown_verb(word)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write commands to begin with, then the verbs by purpose, without loading them."""
        with formatter.section("Start here"):
            for typed, answer in FIRST.items():
                formatter.write_text(f"trainrig {typed}")
                with formatter.indentation():
                    formatter.write_text(answer)
        for title, rows in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(rows.items()))
        with formatter.section("More"):
            formatter.write_dl(
                [
                    ("trainrig help VERB", "Examples and options of a verb."),
                    ("trainrig --version", "The version."),
                    ("--lang zh-CN", "In Chinese, with any verb (default: LANG; else en)."),
                    ("exit codes", EXIT_CODES),
                ]
            )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Verbs with their summaries, without loading them; or the group's own options."""
        verbs = [
            CompletionItem(name, help=summary)
            for name, summary in [*VERBS.items(), ("help", "Examples and options of a verb.")]
            if name.startswith(incomplete)
        ]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]


def _unknown_verb(word: str) -> TrainrigError:
    return unknown("verb", word, VERBS, "; all: trainrig --help")


def _language_first(ctx: click.Context, args: list[str]) -> list[str]:
    """Return the arguments with ``--lang`` and its value in front."""
    language: list[str] = []
    others: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":
            others += [word, *words]
        elif word == "--lang":
            if (value := next(words, None)) is None and not ctx.resilient_parsing:
                raise click.BadOptionUsage(word, "Option '--lang' requires an argument.", ctx)
            language += [word, value] if value is not None else []
        elif word.startswith("--lang="):
            language.append(word)
        else:
            others.append(word)
    return [*language, *others]


def _speak(_: click.Context, __: click.Parameter, requested: str | None) -> None:
    """Choose the language before anything else is read, so that errors and help are in it."""
    activate(ENGLISH)
    stdout = getattr(sys.stdout, "encoding", None)
    if requested is not None:
        activate(parse_language(requested))
    else:
        activate(environment_language(os.environ, stdout))
    from trainrig.cli.help_page import page_class

    click.Context.formatter_class = page_class()


def _show_help(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        click.echo(ctx.get_help())
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    options_metavar="",
    subcommand_metavar="VERB [OPTIONS]",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="trainrig", prog_name="trainrig")
@click.option(
    "--lang",
    is_eager=True,
    expose_value=False,
    callback=_speak,
    help="Language: zh-CN or en (default: LANG; else en).",
)
@click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    hidden=True,
    callback=_show_help,
    help="Show this message and exit.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Is this machine as fast as it should be at training transformers?

    trainrig measures matrix products, memory, disk, transformer layers and training
    steps, holds them against data sheets and published results, and predicts what a
    training costs on machines that you do not have.  Every verb takes --json.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _complete_verb(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    return [CompletionItem(name, help=VERBS[name]) for name in VERBS if name.startswith(typed)]


@click.command("help")
@click.argument("verb", nargs=-1, shell_complete=_complete_verb)
@click.pass_context
def help_of(ctx: click.Context, verb: tuple[str, ...]) -> None:
    """Show the help of VERB, or the start page."""
    above = ctx.find_root()
    for name in verb:
        group = above.command
        command = group.get_command(above, name) if isinstance(group, click.Group) else None
        if command is None and group is cli:
            raise _unknown_verb(name)
        if command is None:
            raise click.UsageError(f"No such command {name!r}.", above)
        above = click.Context(command, info_name=name, parent=above)
    click.echo(above.get_help())


def main() -> None:
    """Run the command line and end the process with its exit code."""
    prepare_streams()
    try:
        code = _run()
    except Exception as error:  # noqa: BLE001 - the edge: a fault of ours is no finding
        code = report_crash(error)
        if "--json" in sys.argv[1:]:
            with best_effort():
                print_error(f"internal error: {type(error).__name__}", None, EXIT_CRASH)
    sys.exit(code if isinstance(code, int) else 0)


def _run() -> object:
    """Run the command line; return its exit code, whatever is wrong with the request."""
    code: object
    try:
        code = cli.main(prog_name="trainrig", standalone_mode=False)
        sys.stdout.flush()
    except TrainrigError as error:
        from trainrig.units import one_line  # a file's name may hold a terminal's commands

        hint = one_line(error.hint) if error.hint else None
        code = _complain(one_line(error.message), hint, error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:  # a group without its command: data
        code = EXIT_USAGE
        click.echo(error.format_message(), err=True)
    except click.UsageError as error:
        # click does not say of which verb an option lacks its value
        verb = next((f"trainrig {word}" for word in sys.argv[1:] if word in VERBS), "trainrig")
        hint = f"{error.ctx.command_path if error.ctx else verb} --help"
        code = _complain(error.format_message(), hint, EXIT_USAGE)
    except click.ClickException as error:
        code = _complain(error.format_message(), None, EXIT_USAGE)
    except (KeyboardInterrupt, click.Abort):
        code = _complain("interrupted", None, EXIT_INTERRUPTED)
    except SystemExit as ended:
        # click ends a pipe that broke elsewhere (a socket) with 1, which is a finding here
        is_broken = type(sys.stdout).__name__.endswith("PacifyFlushWrapper")
        code = EXIT_INCOMPLETE if is_broken else ended.code
    except OSError as error:
        if not is_stream_error(error):
            raise
        discard()
        code = _complain(f"cannot write the output: {error.strerror}", None, EXIT_INCOMPLETE)
    return code


def _complain(message: str, hint: str | None, code: int) -> int:
    print(f"trainrig: {translate_message(message)}", file=sys.stderr)
    if hint:
        hint_line = translate("hint: {text}").replace("{text}", translate_message(hint))
        print(f"  {hint_line}", file=sys.stderr)
    if "--json" in sys.argv[1:]:
        with best_effort():
            print_error(message, hint, code)
    return code
