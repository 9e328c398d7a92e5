"""Text from a checkpoint: greedy by default, drawn by a seed, refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainrig.data.tokenizer import load_tokenizer
from trainrig.errors import DataError, TrainrigError, UsageError
from trainrig.train.config import Experiment, check
from trainrig.train.native import checkpoint
from trainrig.train.native.export_weights import export
from trainrig.train.native.loop import Engine
from trainrig.train.native.sampling import generate

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "and", "then", "home", "again"]


@pytest.fixture(scope="module")
def engine(prepared_text: Path) -> Engine:
    """Sixty steps on a text of twelve words."""
    own = Experiment.of(
        model="llama:num_layers=1,hidden=64,num_heads=2,vocab=400,max_positions=64",
        data=str(prepared_text),
        batch_size=4,
        seq_len=24,
        steps=60,
        precision="fp32",
        lr=1e-2,
    )
    with Engine(own, check(own)) as engine:
        engine.run(lambda _: None, lambda step: step >= own.steps)
    return engine


@pytest.fixture(scope="module")
def run(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with its checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    with checkpoint.Saver(engine, folder / ".checkpoints" / "01-native") as saver:
        saver.save(last=True)
    return folder


def test_it_goes_on_with_words_that_it_was_trained_on(run: Path) -> None:
    found = generate(run, "the cat sat", max_tokens=40, temperature=1.0, seed=3)
    words = found.text.split()
    assert sum(word in WORDS for word in words) > 0.8 * len(words) > 10
    assert found.step == 60 and (found.tokens, found.ended_by) == (40, "max_tokens")


def test_greedy_takes_the_most_probable_token(
    engine: Engine, run: Path, prepared_text: Path
) -> None:
    found = generate(run, "the cat", max_tokens=8)
    assert found == generate(run, "the cat", max_tokens=8, seed=9)
    assert found.text == generate(run, "the cat", max_tokens=8, temperature=2.0, top_k=1).text
    tokenizer = load_tokenizer(prepared_text).tokenizer
    tokens = tokenizer.encode("the cat", add_special_tokens=False).ids
    model: Any = engine.model
    with torch.no_grad():
        for _ in range(8):
            tokens = [*tokens, int(model(torch.tensor([tokens]))[0, -1].argmax())]
    assert tokenizer.decode(tokens) == "the cat" + found.text


def test_what_was_exported_goes_on_as_the_run_does(run: Path, tmp_path: Path) -> None:
    """Its length is the model's; a tokenizer that is not there is one line."""
    pytest.importorskip("safetensors")
    export(run, to="huggingface", out=tmp_path / "out")
    found, own = generate(tmp_path / "out", "the cat"), generate(run, "the cat", max_tokens=8)
    assert found.text.startswith(own.text) and (found.step, found.tokens) == (None, 100)
    (tmp_path / "out" / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="has no tokenizer"):
        generate(tmp_path / "out", "the cat")


def test_draws_follow_the_seed(run: Path) -> None:
    texts = [
        generate(run, "the", temperature=1.0, seed=seed, max_tokens=15).text for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"max_tokens": 0}, "max_tokens 0"), ({"temperature": -1.0}, "-1"), ({"top_k": -1}, "top_k")],
)
def test_numbers_out_of_range_are_refused(run: Path, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        generate(run, "the", **keys)


def test_the_verb_prints_prompt_and_text(
    run: Path, trainrig: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, _ = trainrig("generate", str(run), "--prompt", "the cat", "--max-tokens", "5")
    assert code == 0 and out.startswith("the cat") and len(out) > 9


def test_a_run_without_a_checkpoint_or_with_several_is_one_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no checkpoint"):
        generate(tmp_path, "the")
    for name in ("01-one", "02-two"):
        (tmp_path / ".checkpoints").mkdir(exist_ok=True)
        (tmp_path / ".checkpoints" / name).symlink_to(run / ".checkpoints" / "01-native")
    with pytest.raises(UsageError, match="checkpoints of 01-one, 02-two"):
        generate(tmp_path, "the")
    assert generate(tmp_path / ".checkpoints" / "01-one", "the", max_tokens=1).tokens == 1


def test_a_damaged_checkpoint_is_one_line(run: Path, tmp_path: Path) -> None:
    (place,) = (run / ".checkpoints" / "01-native").glob("step-*")
    copy = tmp_path / place.name
    copy.mkdir()
    for path in place.iterdir():
        content = path.read_bytes()
        (copy / path.name).write_bytes(content[:-9] if path.suffix == ".distcp" else content)
    with pytest.raises(TrainrigError, match="truncated"):
        generate(copy, "the")
