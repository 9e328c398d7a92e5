"""docs/experiments.md says of files and keys what the program does."""

from __future__ import annotations

import re
from pathlib import Path

from trainrig.train.config import Experiment
from trainrig.train.config_file import AUTO, KEYS, read_file

PAGE = Path(__file__).resolve().parents[2] / "docs" / "experiments.md"


def rows() -> dict[str, str]:
    """Each key of the page's table with the text of its default."""
    found = {}
    for names, default in re.findall(r"^\| (`[^|]+) \|([^|]*)\|", PAGE.read_text(), re.MULTILINE):
        found |= dict.fromkeys(re.findall(r"`(\w+)`", names), default.strip())
    return found


def test_every_key_has_its_row() -> None:
    assert set(rows()) == set(KEYS)


def test_defaults_are_those_of_the_program() -> None:
    usual = Experiment.of(name="x")
    said = {key: default for key, default in rows().items() if default and "," not in default}
    said |= {"steps": "20", "tokens": ""}
    for key, default in said.items():
        if key in ("tokens", "scale"):
            continue
        if key == "precision":  # what an experiment has that no file and no command line is behind
            assert (default, usual.precision) == (AUTO, "fp32")
            continue
        value = usual.get(key)
        assert default == (str(value).lower() if isinstance(value, bool) else str(value)), key
    numbers = rows()["lr"].split(", ")
    update = usual.update
    asked = (usual.lr.peak, update.weight_decay, update.beta1, update.beta2, update.eps)
    assert [float(text) for text in (numbers[0], *numbers[-5:])] == [*asked, update.clip]


def test_the_example_is_a_file(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    path = tmp_path / "example.toml"
    path.write_text(block)
    full = read_file(path, {})
    assert [own.name for own in full[:2]] == ["DDP, precision fp32", "DDP, precision bf16"]
    assert len(full) == 6 and {own.zero for own in full} == {0, 3}
    tiny = read_file(path, {"scale": "tiny"})
    assert {(own.seq_len, own.steps) for own in tiny} == {(64, 8)}
    assert [own.batch_size for own in tiny] == [4, 4, 4, 4, 2, 2]
