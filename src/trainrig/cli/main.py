"""The command group: verbs are loaded when they are used, errors become one line.

``--help`` imports click and nothing else of weight, so that it answers at once.
Exit codes: see `trainrig.errors`.
"""

from __future__ import annotations

import importlib
import sys

import click

from trainrig.cli.output import forget_stdout, is_of_a_stream, prepare_streams
from trainrig.errors import (
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    TrainrigError,
)

# verb -> what `trainrig --help` says of it; the verb's own file is not loaded for that.
VERBS = {
    "qualify": "Inspect, measure, compare with what is expected, and give a verdict.",
    "inspect": "What this machine is: processor, memory, disks, GPUs, software.",
    "catalog": "What vendors claim: one chip, or several side by side.",
    "bench": "Measure one family: matmul, vector, copy, layer or storage.",
    "data": "Make text ready for training: tokenizer, tokens, a held-out part.",
    "train": "Train a model on text, and say where each step's time goes.",
    "predict": "What a training step costs in time and memory, before it is run.",
    "fits": "Does a training fit in memory, and which knob to turn first?",
    "plan": "Every layout of a model on so many GPUs, ranked; or how many GPUs.",
    "report": "Show a run: in the terminal, as HTML or as markdown.",
    "compare": "Two runs side by side: better, worse or cannot tell.",
    "ledger": "Predictions of earlier runs beside what was measured.",
    "bundle": "Pack a run into one file with a content hash, or unpack it.",
    "demo": "A report of two RTX 4090s made from published figures.",
}


class LazyGroup(click.Group):
    """A group whose commands live in ``trainrig.cli.<verb>``, as ``command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order in which people meet them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the verb's file."""
        if cmd_name not in VERBS:
            return None
        found: click.Command = importlib.import_module(f"trainrig.cli.{cmd_name}").command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trainrig", prog_name="trainrig")
def cli() -> None:
    """What a machine should do when it trains transformers, and what it does.

    \b
    Exit codes: 0 fine, 1 a finding, 2 wrong usage, 3 a required step could not
    run, 130 interrupted (the run stays valid).  Data goes to stdout, talk to
    stderr; every command takes --json.
    """


def main() -> None:
    """Run the command line and end the process with its exit code."""
    prepare_streams()
    try:
        code = cli.main(prog_name="trainrig", standalone_mode=False)
        sys.stdout.flush()
    except TrainrigError as error:
        from trainrig.units import one_line  # a file's name may hold a terminal's commands

        hint = one_line(error.hint) if error.hint else None
        code = _complain(one_line(error.message), hint, error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        code = EXIT_USAGE
        click.echo(error.format_message(), err=True)
    except click.UsageError as error:
        hint = f"{error.ctx.command_path if error.ctx else 'trainrig'} --help"
        code = _complain(error.format_message(), hint, EXIT_USAGE)
    except click.ClickException as error:
        code = _complain(error.format_message(), None, EXIT_USAGE)
    except (KeyboardInterrupt, click.Abort):
        code = _complain("interrupted", None, EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        forget_stdout()
        code = EXIT_OK
    except OSError as error:
        if not is_of_a_stream(error):
            raise
        forget_stdout()
        code = _complain(f"cannot write the output: {error.strerror}", None, EXIT_INCOMPLETE)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str, hint: str | None, code: int) -> int:
    print(f"trainrig: {message}", file=sys.stderr)
    if hint:
        print(f"  hint: {hint}", file=sys.stderr)
    return code
