"""What all verbs share: defaults shown, options in groups, names completed in the shell."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner

from trainrig.catalog.load import load_chips
from trainrig.catalog.lookup import find_chip
from trainrig.cli import verb
from trainrig.cli.main import VERBS, cli
from trainrig.errors import UsageError
from trainrig.store import create_run
from trainrig.workload.presets import NAMED, published

Completed = Callable[..., list[str]]


def test_an_option_without_its_value_names_the_help_of_its_verb(
    trainrig: Callable[..., tuple[int, str, str]],
) -> None:
    code, _, err = trainrig("report", "--md")
    assert code == 2
    assert "trainrig report --help" in err


def test_defaults_end_the_help_and_groups_have_headings() -> None:
    @verb.verb("Try it.")
    @verb.option("--model", group="Model", default_text="gpt2", help="A name.")
    @verb.option("--gpus", group="Machine", type=int, default=8, help="How many")
    @verb.option("--fast", group="Machine", is_flag=True, help="No care.")
    @verb.json_option()
    def command(**_: object) -> None:
        """Try."""

    shown = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert "Model: --model TEXT A name (default: gpt2)." in shown
    assert "Machine: --gpus INTEGER How many (default: 8). --fast No care." in shown
    assert "Output and help: --json" in shown


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ([], 240.0),
        (["--budget", "90s"], 90.0),
        (["--budget=1h30m"], 5400.0),
        (["--time", "2m"], 120.0),
        (["--duration", "2m"], 120.0),
        (["--minutes", "0.5"], 30.0),
        (["--minutes=2"], 120.0),
        (["--minutes", "2h"], 7200.0),
        (["--seconds", "3"], 3.0),
    ],
)
def test_a_duration_has_one_name_and_its_aliases(words: list[str], seconds: float) -> None:
    @verb.verb("Wait.")
    @verb.budget("4m", "Time limit.")
    def command(budget: float) -> None:
        click.echo(budget)

    found = CliRunner().invoke(command, words, catch_exceptions=False)
    assert found.output == f"{seconds}\n"


def test_the_value_of_an_option_is_not_an_alias() -> None:
    @verb.verb("Wait.")
    @verb.option("--out", help="Where to.")
    @verb.budget("4m", "Time limit.")
    def command(out: str, budget: float) -> None:
        click.echo(f"{out} {budget}")

    found = CliRunner().invoke(command, ["--out", "--time", "--time", "2m"], catch_exceptions=False)
    assert found.output == "--time 120.0\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--minutes"],
        ["--minutes", "nan"],
        ["--minutes", "-1"],
        ["--minutes", "x"],
        ["--budget", "4m", "--minutes", "4"],
        ["--", "--minutes"],
    ],
)
def test_a_wrong_duration_is_refused_by_any_name(words: list[str]) -> None:
    @verb.verb("Wait.")
    @verb.budget("4m", "Time limit.")
    def command(budget: float) -> None:
        raise AssertionError(budget)

    found = CliRunner().invoke(command, words)
    assert isinstance(found.exception, UsageError) or found.exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["qualify", "--budget", "4"],
        ["bench", "matmul", "--budget", "4"],
        ["bench", "collective", "--timeout", "4"],
        ["burn", "--budget", "4"],
        ["burn", "--time", "4"],
        ["remote", "test", "host", "--budget", "4"],
        ["train", "--timeout", "4"],
        ["train", "--checkpoint-interval", "4"],
        ["tune", "plans", "--timeout", "4"],
        ["inspect", "--wait", "4"],
        ["top", "--interval", "4"],
    ],
)
def test_a_bare_number_is_no_duration_to_any_verb(words: list[str]) -> None:
    found = CliRunner().invoke(cli, words)
    assert isinstance(found.exception, UsageError), found.output
    assert "4 s or 4 min" in found.exception.message
    assert found.exception.hint == "write 4s or 4m"


@pytest.fixture
def completed(tmp_path: Path) -> Completed:
    """What the shell is offered for the last of some words, by a process of its own."""

    def complete(*words: str) -> list[str]:
        line = ["trainrig", *(f'"{word}"' if " " in word else word for word in words)]
        done = subprocess.run(
            [sys.executable, "-m", "trainrig"],
            env={
                "_TRAINRIG_COMPLETE": "bash_complete",
                "COMP_WORDS": " ".join(line),
                "COMP_CWORD": str(len(words)),
                "PYTHONPATH": str(Path(verb.__file__).parents[2]),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    return complete


def test_verbs_complete(completed: Completed) -> None:
    assert completed("pre") == ["plain,predict"]
    assert completed("") == [f"plain,{name}" for name in [*VERBS, "help"]]
    assert completed("help", "fi") == ["plain,fits"]


def test_chips_complete_without_spaces_and_whatever_the_case(completed: Completed) -> None:
    assert "plain,RTX-4090" in completed("catalog", "rtx-40")
    assert completed("catalog", "no-such") == [""]


def test_the_names_of_chips_are_the_catalog_s() -> None:
    names = verb.chip_names()
    assert [find_chip(name) for name in names] == list(load_chips())


def test_benchmarks_complete(completed: Completed) -> None:
    assert completed("bench", "") == [
        f"plain,{name}"
        for name in ("matmul", "vector", "copy", "numa", "layer", "storage", "link", "collective")
    ]


def test_runs_complete_newest_first_and_files_where_there_is_none(
    completed: Completed, tmp_path: Path
) -> None:
    for _ in range(2):
        with create_run(tmp_path / "runs", "qualify", {}):
            pass
    names = sorted((f"runs/{path.name}" for path in (tmp_path / "runs").iterdir()), reverse=True)
    assert completed("report", "") == [f"plain,{name}" for name in names]
    assert completed("report", "runs/2") == [f"plain,{name}" for name in names]
    assert completed("compare", names[0], names[1][:-1]) == [f"plain,{names[1]}"]
    assert completed("report", "elsewhere/x") == ["file,elsewhere/x"]


HEAVY = {"torch", "numpy", "scipy", "rich", "jinja2"}


@pytest.mark.parametrize("words", ["catalog rtx", "report r", "bench m"])
def test_completion_loads_nothing_heavy(words: str) -> None:
    code = (
        "import sys\n"
        "from trainrig.cli.main import cli\n"
        "try: cli.main(prog_name='trainrig')\n"
        "except SystemExit: pass\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            "_TRAINRIG_COMPLETE": "bash_complete",
            "COMP_WORDS": f"trainrig {words}",
            "COMP_CWORD": "2",
            "PYTHONPATH": str(Path(verb.__file__).parents[2]),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert "click" in done.stderr
    assert not {name for name in HEAVY if f"'{name}'" in done.stderr}, words


def test_an_argument_is_not_listed_among_the_options() -> None:
    @verb.verb("Try it.")
    @click.argument("run")
    def command(**_: object) -> None:
        """Try RUN."""

    assert "Options:\n  --help" in CliRunner().invoke(command, ["--help"]).output


def test_models_and_words_of_a_layout_complete(completed: Completed) -> None:
    assert "plain,llama-7B" in completed("fits", "--model", "LLAMA-7")
    assert completed("predict", "--precision", "f")[:2] == ["plain,fp32", "plain,fp16"]
    assert completed("plan", "--on", "h100-s") == ["plain,H100-SXM5-80GB"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--minutes", "3", "--budget=4m"), "--minutes and --budget are one option"),
        (("--minutes", "3", "--minutes", "4"), "--minutes is given twice"),
        (("--budget", "3m", "--budget", "4m"), "--budget is given twice"),
    ],
)
def test_an_old_spelling_is_told_as_it_was_typed(
    trainrig: Callable[..., tuple[int, str, str]], words: tuple[str, ...], said: str
) -> None:
    code, _, err = trainrig("burn", *words)
    assert code == 2 and said in err


@pytest.mark.parametrize("words", [("--on", "B"), ("--on=B",), ("--no-p2p",)])
def test_a_value_that_is_given_twice_is_refused(words: tuple[str, ...]) -> None:
    @verb.verb("Try it.")
    @verb.option("--on", help="A chip.")
    @verb.option("--p2p/--no-p2p", default=None, help="Directly.")
    @verb.option("--dtype", multiple=True, help="Several.")
    @verb.json_option()
    def command(**_: object) -> None:
        """Try."""

    run = CliRunner().invoke
    fine = ["--on", "A", "--p2p", "--dtype", "a", "--dtype", "b", "--json", "--json"]
    assert run(command, fine).exit_code == 0
    done = run(command, [*fine, *words])
    assert done.exit_code == 2
    assert ("--p2p" if "p2p" in words[0] else "--on") + " is given twice" in done.output


@pytest.mark.parametrize("shell", ["zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "typed", "expected"),
    [
        ([], "pre", {"predict": "What a training step costs in time and memory."}),
        (["fits", "--model"], "LLAMA-7", {"llama-7B": None}),
        (["catalog"], "rtx-4090", {"RTX-4090": None}),
    ],
)
def test_other_shells_complete(
    shell: str, words: list[str], typed: str, expected: dict[str, str | None]
) -> None:
    """What click hands to zsh and fish; the script that asks for it names their variables."""
    found = get_completion_class(shell)
    assert found is not None
    complete = found(cli, {}, "trainrig", "_TRAINRIG_COMPLETE")
    items = {item.value: item for item in complete.get_completions(words, typed)}
    for name, summary in expected.items():
        assert items[name].help == summary
        assert name in complete.format_completion(items[name])
        assert (summary or "") in complete.format_completion(items[name])
    assert f"_TRAINRIG_COMPLETE={shell}_complete" in complete.source()


def test_an_unknown_model_is_answered_by_the_closest_and_the_place_of_the_list() -> None:
    with pytest.raises(UsageError, match="unknown model 'nosuch'") as caught:
        CliRunner().invoke(cli, ["train", "--model", "nosuch"], catch_exceptions=False)
    hint = str(caught.value.hint)
    assert len(hint) < 160 and "trainrig catalog --models" in hint
    listed = CliRunner().invoke(cli, ["catalog", "--models", "--json"]).output
    assert [shape["name"] for shape in json.loads(listed)] == [*NAMED, *published()]
    shown = CliRunner().invoke(cli, ["catalog", "--models"]).output
    assert "llama-7B" in shown and "6.74B" in shown


def test_only_may_be_repeated() -> None:
    words = ["train", "experiments/classic.toml", "--scale", "tiny", "--dry-run", "--json"]
    words += ["--only", "accumulation without", "--only", "BERT, fp32"]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    names = [each["name"] for each in json.loads(done.output)["experiments"]]
    assert "GPT-2, accumulation without P2P" in names
    assert any(name.startswith("BERT, fp32") for name in names)
    assert len(names) < 6


@pytest.mark.parametrize("name", ["--html", "--pdf", "--csv"])
def test_a_file_called_like_stdout_is_refused(
    trainrig: Callable[..., tuple[int, str, str]], name: str
) -> None:
    """It would lie in the folder under that name, and a pipe would get nothing."""
    code, out, err = trainrig("report", name, "-")
    assert code == 2 and out == "" and "- is no file" in err and "--md" in err
