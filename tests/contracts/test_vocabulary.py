"""One vocabulary: option, key of a file, key of JSON and field have one spelling."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from trainrig.cli.main import cli
from trainrig.prediction.as_json import prediction_dict
from trainrig.prediction.prediction import predict
from trainrig.prediction.scenario import question
from trainrig.train.config import KEYS, KEYS_OF_LAYOUT, RETIRED
from trainrig.train.config_file import KEYS as FILE_KEYS
from trainrig.workload.layout import PLACES, SIZES
from trainrig.workload.layout.groups import (
    DROPOUT,
    KERNELS,
    OFFLOAD,
    OPTIMIZERS,
    PARALLEL,
    RECOMPUTE,
    SCHEDULES,
    STATES,
)
from trainrig.workload.model import SHAPE_KEYS
from trainrig.workload.programs import FRAMEWORKS

SOURCE = Path(__file__).resolve().parents[2] / "src" / "trainrig"
LAYOUT = set(PLACES)
EXPERIMENT = set(KEYS) - set(KEYS_OF_LAYOUT)
SHAPE = set(SHAPE_KEYS.places)
DERIVED = {"nproc", "compile", "dp", "global_batch", "tokens", "scale"}
"""Said of a training and made into its layout or steps; or sizes that follow from a layout."""
WORDS = (
    LAYOUT | EXPERIMENT | SHAPE | DERIVED | {"batch", "seq", "dtype", "backend", "engine", "ranks"}
)
PLACE = {"on", "rates", "link", "host_memory", "fabric_gbps", "p2p", "chip", "cluster", "price"} | {
    "flash_version"
}
"""Where something would run."""
ABOUT_RUNS = {"out", "resume", "timeout", "only", "dry_run", "strict", "as_json", "write"} | {
    "nodes",
    "detach",
    "trace",
    "tmux",
}
ABOUT_ANSWERS = {
    "html",
    "pdf",
    "md",
    "method",
    "what_if",
    "cases",
    "simulate",
    "top",
    "days",
    "write",
    "as_json",
}


def options(verb: str) -> set[str]:
    """The names of a verb's options, as they are typed, with underscores."""
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    return {
        str(parameter.name) for parameter in command.params if isinstance(parameter, click.Option)
    }


@pytest.mark.parametrize("verb", ["train", "predict", "fits", "plan"])
def test_options_are_fields(verb: str) -> None:
    known = LAYOUT | EXPERIMENT | DERIVED | {"model", "json"}
    about = ABOUT_RUNS if verb == "train" else ABOUT_ANSWERS | PLACE
    assert options(verb) <= known | about, options(verb) - known - about


def test_keys_of_a_file_are_fields() -> None:
    assert set(FILE_KEYS) <= LAYOUT | EXPERIMENT | DERIVED
    assert set(KEYS) <= LAYOUT | EXPERIMENT | DERIVED
    assert not EXPERIMENT & LAYOUT, "an experiment contains its layout"


def test_every_option_of_a_training_is_a_key_of_its_file() -> None:
    assert options("train") - ABOUT_RUNS - {"json", "global_batch"} <= set(FILE_KEYS)


def test_a_predicted_layout_has_the_fields_names() -> None:
    asked = question({"model": "gpt2", "on": "RTX 4090", "gpus": 2, "batch_size": 2})
    assert set(prediction_dict(predict(asked))["layout"]) <= LAYOUT | {"dp", "global_batch"}


VALUES = {
    *(*RECOMPUTE, *SCHEDULES, *KERNELS, *FRAMEWORKS, *PARALLEL, *OPTIMIZERS),
    *(*OFFLOAD, *STATES, *DROPOUT),
} - {"none", "auto", "no", "yes"}
"""Not number formats: what one is accumulated in is a fact about both."""
ALLOWED = {
    ("train/config.py", "RETIRED"): "words of earlier versions, for error messages alone",
    ("train/config.py", "RETIRED_WORDS"): "likewise of values",
    ("analysis/training_results.py", "_OLDER_KEYS"): "keys of stored runs of earlier versions",
    (
        "workload/programs/__init__.py",
        "OF_SCHEDULES",
    ): "a fact of both",
}


PAIR = re.compile(r""""\w[\w-]*":\s*"\w""")
"""An entry of a dict literal that may be a translation."""


def translations(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Pairs of a dict literal that turn one of our words into another one."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                pair = key.value, value.value
                for known in (WORDS, VALUES):
                    if pair[0] in known and pair[1] in known and pair[0] != pair[1]:
                        yield node.lineno, str(pair[0]), str(pair[1])


def allowed_lines(name: str, tree: ast.Module) -> set[int]:
    """First lines of the dicts that may translate, by the name that they are assigned to."""
    return {
        node.value.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and (name, node.targets[0].id) in ALLOWED
    }


def test_no_dict_turns_our_words_into_our_words() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if not PAIR.search(text):
            continue
        name, tree = path.relative_to(SOURCE).as_posix(), ast.parse(text)
        fine = allowed_lines(name, tree)
        found += [(name, *pair) for pair in translations(tree) if pair[0] not in fine]
    assert not found


def test_a_planted_translation_is_found() -> None:
    planted = ast.parse('A = {"batch": "batch_size"}\nB = {"adamw": "adamw-fused"}')
    assert [pair[1:] for pair in translations(planted)] == [
        ("batch", "batch_size"),
        ("adamw", "adamw-fused"),
    ]


@pytest.mark.parametrize("key", RETIRED)
def test_an_old_key_is_refused_with_the_new_one_named(trainrig, tmp_path, key: str) -> None:
    file = tmp_path / "old.toml"
    file.write_text(f"{key} = 1\n")
    code, _, err = trainrig("train", str(file), "--dry-run")
    assert code == 2 and "Traceback" not in err
    assert f"has no {key!r}" in err and RETIRED[key] in err and "line 1" in err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("train", "--backend", "native"), "--framework"),
        (("predict", "--engine", "ddp"), "--parallel"),
        (("plan", "--engine", "fsdp"), "--framework"),
        (("train", "--optimizer", "adamw-plain", "--dry-run"), "adamw"),
    ],
)
def test_an_old_option_is_refused_with_the_new_one_named(trainrig, words, named) -> None:
    code, _, err = trainrig(*words)
    assert code == 2 and named in err and len(err.strip().splitlines()) == 2


def test_sizes_are_fields() -> None:
    assert set(SIZES) <= LAYOUT


# ---- what plan writes, train takes

QUESTIONS = [
    ("gpt2", "RTX 4090", 2, 16, ()),
    ("gpt2", "RTX 4090", 1, 8, ()),
    ("gpt2-medium", "RTX 3090 Ti", 4, 32, ("--recompute", "full")),
    ("gpt2-xl", "RTX 3090", 8, 64, ("--no-p2p",)),
    ("llama-1B", "A100 SXM4 80GB", 8, 64, ()),
    ("llama-7B", "A100 SXM4 80GB", 8, 64, ("--framework", "native")),
    ("llama-7B", "A100 SXM4 80GB", 8, 64, ("--framework", "huggingface")),
    ("llama-7B", "RTX 4090", 4, 64, ("--offload", "host")),
    ("bert-large", "RTX 4090", 4, 64, ("--precision", "fp16")),
    ("t5-large", "A100 SXM4 40GB", 8, 128, ()),
    ("llama-3B", "RTX 4090", 2, 32, ("--optimizer", "adamw-8bit")),
    ("gpt2", "V100 SXM2 32GB", 4, 32, ("--kernels", "compiled")),
    ("llama-13B", "H100 SXM5 80GB", 16, 64, ()),
    ("llama-7B", "A100 SXM4 80GB", 8, 64, ("--framework", "deepspeed")),
]


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: f"{asked[0]}-{asked[2]}-{asked[4]}")
def test_what_plan_writes_train_takes(trainrig, tmp_path, asked) -> None:
    model, chip, gpus, batch, more = asked
    folder = tmp_path / "plans"
    words = ("--model", model, "--on", chip, "--gpus", str(gpus), "--global-batch", str(batch))
    code, out, _ = trainrig("plan", *words, *more, "--top", "4", "--write", str(folder), "--json")
    plan = json.loads(out)
    assert code == 0
    shown = [family for family in plan["families"] if family["predict_only"] is None]
    chosen = [family["layout"] for family in shown]
    if (best := plan["best_that_trains"]) is not None and best["layout"] not in chosen:
        chosen.append(best["layout"])
    assert len(plan.get("written", ())) == len(chosen)
    assert chosen or gpus > plan["gpus_per_node"] or "lora" in more
    for path, layout in zip(plan.get("written", ()), chosen, strict=True):
        code, out, err = trainrig("train", path, "--dry-run", "--json")
        assert code == 0, err
        (shown,) = json.loads(out)["experiments"]
        assert shown["nproc"] == gpus and shown["model"] == model
        for name in KEYS_SHOWN:
            assert shown[name] == layout[name], name
    assert not (tmp_path / "runs").exists()


KEYS_SHOWN = (
    *("framework", "parallel", "batch_size", "grad_accum", "seq_len", "precision", "zero"),
    *("shard_size", "recompute", "optimizer", "offload"),
)
