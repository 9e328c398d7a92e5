"""Where output goes that cannot be written: one line, the right exit code, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainrig.cli.progress import on_stderr
from trainrig.runner.progress import Progress

TRAINRIG = f"{sys.executable} -m trainrig"
LIGHT = ("--help", "catalog --json", "demo")
"""A page of help, JSON, and a text with colours."""


def shell(command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
        env={**os.environ, **environ},
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("verb", LIGHT)
def test_a_full_disk_behind_stdout_is_one_line(verb):
    done = shell(f"{TRAINRIG} {verb} > /dev/full")
    assert done.returncode == 3
    assert done.stderr.strip() == "trainrig: cannot write the output: No space left on device"


@pytest.mark.parametrize("verb", LIGHT)
def test_a_closed_stdout_is_no_fault_of_the_command(verb):
    done = shell(f"{TRAINRIG} {verb} >&-")
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("verb", ["catalog --json", "demo"])
def test_a_reader_that_has_seen_enough_is_no_finding(verb):
    done = shell(f'{TRAINRIG} {verb} | head -c 100; echo " ${{PIPESTATUS[0]}}"')
    assert done.stdout.endswith(" 0\n")
    assert done.stderr == ""


@pytest.mark.parametrize("verb", ["--help", "demo --json"])
def test_a_reader_that_reads_nothing_is_no_finding(verb):
    done = shell(f"{{ {TRAINRIG} {verb}; echo $? >&2; }} | true")
    assert done.stderr == "0\n"


@pytest.mark.parametrize(
    ("reader", "streams", "unbuffered"),
    [("true", "", "1"), ("true", "2>&1", ""), ("head -1", "", ""), ("grep -q d", "", "")],
)
def test_a_reader_that_leaves_does_not_hide_a_finding(tmp_path, reader, streams, unbuffered):
    log = tmp_path / "dmesg.txt"
    log.write_text("[ 1.000000] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n")
    verb = f"{TRAINRIG} doctor {log} {streams}"
    command = f"{verb} | {reader} > /dev/null; exit ${{PIPESTATUS[0]}}"
    done = shell(command, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("verb", "encoding"), [("demo", "ascii"), ("inspect", "ascii"), ("catalog", "latin-1")]
)
def test_a_terminal_that_lacks_a_character_gets_the_rest(verb, encoding):
    done = shell(f"{TRAINRIG} {verb}", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_a_verb_the_start_page_is_shown(trainrig):
    done = shell(TRAINRIG)
    assert done.returncode == 0
    assert trainrig("--help") == trainrig("help") == trainrig()
    assert done.stdout == trainrig()[1]
    assert "Start here:\n  trainrig inspect\n" in done.stdout


def test_help_of_a_verb_is_its_own_help(trainrig):
    assert trainrig("help", "fits") == trainrig("fits", "--help")
    assert trainrig("help", "data", "prepare") == trainrig("data", "prepare", "-h")
    code, _, err = trainrig("help", "data", "no-such")
    assert code == 2
    assert err == "trainrig: No such command 'no-such'.\n  hint: trainrig data --help\n"


@pytest.mark.parametrize("typed", ["predikt", "help predikt"])
def test_a_misspelt_verb_gets_the_one_that_was_meant(trainrig, typed):
    code, _, err = trainrig(*typed.split())
    assert code == 2
    assert err == (
        "trainrig: unknown verb 'predikt'\n  hint: did you mean predict?; all: trainrig --help\n"
    )


@pytest.mark.parametrize("where", ["/proc/x", "/dev/null/x"])
def test_a_detached_run_that_cannot_be_written_is_refused_here(trainrig, where):
    code, _, err = trainrig("qualify", "--detach", "--out", where)
    assert code == 3
    assert err.startswith("trainrig: cannot write")
    assert "Traceback" not in err


def test_a_detached_resume_of_nothing_is_refused_here(trainrig, tmp_path):
    none = ("--resume", str(tmp_path / "none"))
    code, _, err = trainrig("qualify", "--detach", "--out", str(tmp_path), *none)
    assert code == 2
    assert err.startswith("trainrig: no such run")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_talk_that_nobody_hears_costs_no_run(tmp_path):
    """A reader of stderr that has seen enough, or a full disk behind it."""
    program = (
        "from trainrig.cli.output import prepare_streams; prepare_streams()\n"
        "from trainrig.cli.progress import on_stderr\n"
        "from trainrig.runner.progress import Progress\n"
        "watch = on_stderr()\n"
        "for _ in range(9): watch(Progress(text='x' * 99999))\n"
        "print('went on')\n"
    )
    (tmp_path / "talk.py").write_text(program)
    start = f"{sys.executable} {tmp_path / 'talk.py'}"
    for behind in ("2> /dev/full", "2> >(head -c 1 > /dev/null)"):
        done = shell(f"{start} {behind}")
        assert (done.returncode, done.stdout) == (0, "went on\n")


def test_a_files_name_commands_no_terminal(trainrig, tmp_path):
    code, out, err = trainrig("train", str(tmp_path / "a\x1b[2J\nb.toml"))
    assert (code, out) == (2, "")
    line, _hint = err.splitlines()
    assert line.endswith("a?[2J?b.toml: No such file or directory")


@pytest.mark.parametrize(
    ("typed", "schema"),
    [
        ("catalog A100-SXM4-80GB --json", "catalog"),
        ("remote list --json", "remote-list"),
        ("fits --model gpt2 --on RTX-4090 --on RTX-3090 --json", "fits-beside"),
    ],
)
def test_a_json_object_names_its_schema_first(trainrig, typed, schema):
    found = json.loads(trainrig(*typed.split())[1])
    assert next(iter(found.items())) == ("schema", f"trainrig.{schema}/1")


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ("catalog nothere --json", "unknown chip: nothere"),
        ("plan --json --nonsense", "No such option"),
    ],
)
def test_who_asked_for_json_gets_the_error_as_json_too(trainrig, typed, error):
    code, out, err = trainrig(*typed.split())
    assert error in err
    found = json.loads(out)
    assert found["schema"] == "trainrig.error/1"
    assert error in found["error"] and found["hint"] and found["exit_code"] == code == 2
    assert trainrig(*typed.replace("--json", "").split())[1] == ""


CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
class Finder:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from trainrig.__main__ import main
main()
"""


def test_ctrl_c_while_the_command_is_still_read_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "trainrig: interrupted\n")


def test_a_case_that_is_measured_again_is_counted_as_that(capsys):
    watch = on_stderr()
    watch(Progress(text="first", done=59, total=59))
    watch(Progress(text="again", done=59, total=59, retry=1, retries=3))
    assert capsys.readouterr().err.splitlines() == ["[59/59] first", "[retry 1/3] again"]
