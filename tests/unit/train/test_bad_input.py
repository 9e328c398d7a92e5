"""What a person may hand to `trainrig data` and `trainrig train` that is none: one line and a hint.

Through the command line's own edge.  Nothing is trained, and no run is left behind.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainrig.cli import main as edge
from trainrig.data.prepare import prepare

Run = Callable[..., tuple[int, list[str]]]
MODEL = "gpt2:num_layers=1,hidden=32,num_heads=2,vocab=512,max_positions=32"


@pytest.fixture(scope="module")
def data(prepared_text: Path) -> Path:
    """A small prepared corpus."""
    return prepared_text


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in ``tmp_path``: its exit code and what it says on stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(edge, "prepare_streams", lambda: None)

    def run(*arguments: object) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["trainrig", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            edge.main()
        output = capsys.readouterr()
        assert output.out == ""
        return int(str(ended.value.code)), output.err.splitlines()

    return run


def refused(found: tuple[int, list[str]], word: str, code: int = 2) -> None:
    """One line that says it, one with a hint, the exit code, and no run."""
    number, lines = found
    assert number == code, lines
    line, hint = lines[-2:]
    assert line.startswith("trainrig: ") and word in line, lines
    assert hint.startswith("  hint: ")
    assert not list(Path().glob("runs/*")) and not list(Path().glob("data/*"))


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("empty.txt", b"", "empty.txt: empty"),
        ("binary.txt", bytes(range(256)) * 20, "binary.txt: binary"),
        ("pages.jsonl", b'{"title": "x"}\n', 'no field "text"'),
        ("folder/.hidden", b"text", "no text in 0 files"),
    ],
)
def test_what_is_no_text(cli: Run, tmp_path: Path, name: str, content: bytes, word: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    refused(cli("data", "prepare", name.partition("/")[0]), word)


@pytest.mark.parametrize("content", ["", "not json", "{}", '{"model": {"type": "BPE"}}'])
def test_what_is_no_tokenizer(cli: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "text.txt").write_text("some text " * 100)
    (tmp_path / "tokenizer.json").write_text(content)
    refused(cli("data", "prepare", "text.txt", "--tokenizer", "tokenizer.json"), "no tokenizer")


def truncate(folder: Path) -> None:
    path = folder / "train.bin"
    path.write_bytes(path.read_bytes()[:-100])


def change(folder: Path) -> None:
    """As long as before, with ids that no vocabulary has."""
    path = folder / "train.bin"
    path.write_bytes(b"\xff" * path.stat().st_size)


def swap(folder: Path) -> None:
    shutil.copy(folder / "heldout.bin", folder / "train.bin")
    shutil.copy(folder / "heldout.idx", folder / "train.idx")


def other_index(folder: Path) -> None:
    (folder / "train.idx").write_bytes(b"something else" * 100)


def other_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text() + " ")


def without_manifest_and_index(folder: Path) -> None:
    """Without the manifest alone it is Megatron's pair of files, which is taken as it is."""
    (folder / "manifest.json").unlink()
    (folder / "train.idx").unlink()


def other_vocabulary(folder: Path) -> None:
    path = folder / "manifest.json"
    content: dict[str, Any] = json.loads(path.read_text())
    content["tokens"]["vocab_size"] = 300
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (truncate, "train.bin is truncated"),
        (change, "train.bin does not match its manifest"),
        (swap, "train.bin does not match its manifest"),
        (other_index, "train.idx is no Megatron index"),
        (other_tokenizer, "tokenizer.json does not match its manifest"),
        (other_vocabulary, "beyond a vocabulary of 300"),
        (without_manifest_and_index, "train.bin has no index beside it"),
    ],
)
def test_data_that_are_not_what_they_say(
    cli: Run, data: Path, tmp_path: Path, damage: Callable[[Path], Any], word: str
) -> None:
    folder = Path(shutil.copytree(data, tmp_path / "copy"))
    damage(folder)
    refused(cli("train", "--data", folder, "--model", MODEL, "--seq-len", 16), word)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (
            ["--model", MODEL.replace("vocab=512", "vocab=300"), "--seq-len", "16"],
            "beyond a vocabulary of 300",
        ),
        (["--model", "nosuch"], "unknown model 'nosuch'"),
        (["--model", MODEL, "--seq-len", "64"], "knows 32 positions"),
        (["--batch-size", "0"], "batch_size = 0"),
        (["--batch-size", str(2**40)], f"batch_size = {2**40}"),
        (["--lr", "nan"], "lr = nan"),
        (["--precision", "int8"], "unknown precision 'int8'"),
        (["--resume", "nowhere"], "no such run"),
    ],
)
def test_what_cannot_be_trained(cli: Run, data: Path, arguments: list[str], word: str) -> None:
    folder = [] if "--resume" in arguments else ["--data", data]
    refused(cli("train", *folder, *arguments), word)


def test_too_little_text_for_a_sample(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("hello")
    ready = prepare((tmp_path / "tiny.txt",), out=tmp_path / "ready").folder
    refused(cli("train", "--data", ready), "too few for a sample of 256")


def test_no_compiler(cli: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    arguments = ["--data", data, "--model", MODEL, "--seq-len", 16, "--compile"]
    refused(cli("train", *arguments), "needs a compiler", code=3)


@pytest.mark.parametrize("content", [b"model,chip\n", b"\xff\xfe", b"a = ["])
def test_what_is_no_experiment_file(cli: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "table.csv").write_bytes(content)
    code, said = cli("train", "table.csv")
    assert code == 2 and said[0].startswith("trainrig: table.csv is no TOML: ")
    assert "trainrig plan --write DIR makes such files" in said[1] and len(said) == 2
