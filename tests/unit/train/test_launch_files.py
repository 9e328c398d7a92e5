"""What others' launchers are given: parsed by these where they are installed, by name elsewhere.

Megatron-LM's own parser is in no package (megatron-core's wheel has megatron.core alone).  Its
options stand in tests/support/fixtures/megatron_lm/options.csv with their types, read from the
parser of the release that constraints.txt pins; a parser made of them refuses what it would refuse:
an option that it has not, a value of another type or none of its choices.  On 23 November 2026 the
parser itself and its validate_args took each of MEGATRON.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from trainrig.train.config import Experiment
from trainrig.train.config_file import experiment_of
from trainrig.train.engines import ENGINES, Job
from trainrig.train.launch_files import (
    accelerate_config,
    deepspeed_config,
    megatron_arguments,
    megatron_files,
)


def experiment(**changes: Any) -> Experiment:
    keys = {"model": "gpt2", "precision": "fp32", "device": "cpu", "nproc": 4, "seq_len": 64}
    return experiment_of(keys | changes)


def test_accelerate_reads_its_configuration(tmp_path: Path) -> None:
    if find_spec("accelerate") is None:
        pytest.skip("needs accelerate")
    from accelerate.commands.config.config_args import load_config_from_file

    for own, kind, ranks in (
        (experiment(framework="huggingface"), "MULTI_CPU", 4),
        (experiment(framework="huggingface", nproc=1), "NO", 1),
        (experiment(framework="huggingface", device="cuda", zero=3), "FSDP", 4),
    ):
        path = tmp_path / "accelerate_config.json"
        path.write_text(json.dumps(accelerate_config(own)))
        found = load_config_from_file(str(path))
        assert (found.distributed_type.value, found.num_processes) == (kind, ranks)
        assert bool(found.fsdp_config) == (kind == "FSDP")


def test_deepspeed_configuration_has_the_documented_keys() -> None:
    own = experiment(framework="deepspeed", zero=3, grad_accum=2, offload="host", optimizer="sgd")
    found = deepspeed_config(own)
    assert found["train_batch_size"] == 4 * 2 * own.batch_size
    assert found["zero_optimization"]["offload_param"] == {"device": "cpu"}
    assert found["zero_allow_untested_optimizer"] and not found["zero_force_ds_cpu_optimizer"]
    narrow = deepspeed_config(experiment(framework="deepspeed", zero=1, precision="bf16"))
    assert narrow["bf16"] == {"enabled": True} and "fp16" not in narrow
    nvme = deepspeed_config(experiment(framework="deepspeed", zero=3, offload="disk"))
    assert nvme["zero_optimization"]["offload_optimizer"]["device"] == "nvme"


def test_megatrons_script_is_one_command_whatever_folders_are_called() -> None:
    own = experiment(framework="megatron", data="my data/$(touch x)")
    (text,) = megatron_files(own).values()
    assert own.data + "/train" in shlex.split(text.partition("exec ")[2].replace("\\\n", " "))


ROOT = Path(__file__).resolve().parents[3]
OPTIONS = ROOT / "tests" / "support" / "fixtures" / "megatron_lm" / "options.csv"
SPLIT_LLAMA = {
    "model": "llama:num_layers=4,hidden=64,num_heads=4,num_kv_heads=2",
    "pp": 2,
    "interleave": 2,
    "tp": 2,
    "sequence_parallel": True,
    "grad_accum": 4,
    "nproc": 8,
}
MEGATRON: tuple[dict[str, Any], ...] = (
    {},
    SPLIT_LLAMA,
    {"zero": 1, "recompute": "full", "device": "cuda"},
    {"recompute": "selective", "optimizer": "sgd", "device": "cuda"},
    {"lr_schedule": "wsd", "steps": 100},
    {"lr_schedule": "linear"},
    {"lr_schedule": "constant"},
    {"model": "bert-base", "tp": 2, "precision": "bf16"},
    {"precision": "fp16", "device": "cuda"},
)


class Refused(Exception):
    """What Megatron-LM would end with."""


def megatron_lm_parser() -> argparse.ArgumentParser:
    """A parser of its options: names, how many values, their types and choices."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)

    def refuse(message: str) -> Any:
        raise Refused(message)

    parser.error = refuse  # type: ignore[method-assign]
    types = {"int": int, "float": float, "str": str, "bool": bool}
    lines = [line for line in OPTIONS.read_text().splitlines() if not line.startswith("#")]
    for row in csv.DictReader(lines):
        if row["takes"] == "flag":
            parser.add_argument(row["option"], action="store_true")
            continue
        kind, several = types.get(row["type"]), row["takes"] != "1"
        choices = [kind(each) if kind else each for each in row["choices"].split()] or None
        how: dict[str, Any] = {"type": kind} if kind else {}
        nargs = int(row["takes"]) if row["takes"].isdecimal() else row["takes"]
        how |= {"nargs": nargs} if several else {}
        parser.add_argument(row["option"], choices=choices, **how)
    return parser


def words_of(own: Experiment) -> list[str]:
    """Megatron-LM's arguments as its parser is handed them."""
    pairs = megatron_arguments(own)
    return [word for name, text in pairs for word in (f"--{name}", *filter(None, [text]))]


@pytest.mark.parametrize("changes", MEGATRON, ids=lambda changes: "-".join(changes) or "plain")
def test_megatrons_arguments_are_options_of_its_parser(changes: dict[str, Any]) -> None:
    own = experiment(**{"framework": "megatron", **changes})
    words = words_of(own)
    found = megatron_lm_parser().parse_args(words)
    assert found.num_layers == int(words[words.index("--num-layers") + 1])
    assert found.global_batch_size == own.global_samples and found.lr == own.lr.peak
    assert found.tensor_model_parallel_size == own.tp and found.bf16 == (own.precision == "bf16")


def test_the_options_are_those_of_the_pinned_release() -> None:
    pinned = (ROOT / "constraints.txt").read_text().split("megatron-core==")[1].split()[0]
    assert f"core_v{pinned} " in OPTIONS.read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tensor-parallel-size", "2"], "unrecognized"),
        (["--lr", "fast"], "invalid float"),
        (["--lr-decay-style", "stepwise"], "invalid choice"),
        (["--train-iters"], "expected one argument"),
        (["--bf16", "1"], "unrecognized"),
    ],
)
def test_what_megatron_would_refuse_is_refused(words: list[str], said: str) -> None:
    """The list of options can say no."""
    with pytest.raises((Refused, argparse.ArgumentError), match=said):
        megatron_lm_parser().parse_args(words)


def test_megatrons_schedule_is_the_experiments() -> None:
    for name, words in (("linear", ["linear"]), ("constant", ["constant"]), ("wsd", ["WSD"])):
        own = experiment(framework="megatron", lr_schedule=name, steps=100)
        found = words_of(own)
        assert found[found.index("--lr-decay-style") + 1 :][:1] == words
        assert ("--lr-wsd-decay-iters" in found) == (name == "wsd")
    plain = words_of(experiment(framework="megatron", optimizer="sgd"))
    assert plain[plain.index("--optimizer") + 1] == "sgd"


def test_megatron_arguments_say_the_layout() -> None:
    own = experiment(
        model="llama:num_layers=4,hidden=64,num_heads=4,num_kv_heads=2",
        framework="megatron",
        pp=2,
        interleave=2,
        tp=2,
        sequence_parallel=True,
        grad_accum=4,
    )
    words = words_of(own)
    given = dict(zip(words, [*words[1:], ""], strict=True))
    for name, value in (
        ("tensor-model-parallel-size", 2),
        ("pipeline-model-parallel-size", 2),
        ("num-layers-per-virtual-pipeline-stage", 1),
        ("num-query-groups", 2),
        ("global-batch-size", own.global_samples),
        ("normalization", "RMSNorm"),
    ):
        assert given[f"--{name}"] == str(value)
    assert {"--sequence-parallel", "--swiglu", "--group-query-attention"} <= set(words)
    assert "--use-distributed-optimizer" not in words
    assert "pretrain_gpt.py" in megatron_files(own)["pretrain.sh"]
    assert "pretrain_bert.py" in megatron_files(experiment(model="bert-base"))["pretrain.sh"]


def test_each_file_lies_beside_what_is_trained(tmp_path: Path) -> None:
    for framework, name in (
        ("huggingface", "accelerate_config.json"),
        ("deepspeed", "ds_config.json"),
        ("megatron", "pretrain.sh"),
    ):
        folder = tmp_path / framework
        ENGINES[framework].command(experiment(framework=framework), folder, Job())
        assert (folder / name).read_text()


def test_a_plan_writes_what_real_launchers_parse(
    tmp_path: Path, trainrig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each winner's folder: accelerate, DeepSpeed and Megatron-Core read their own files in it."""
    for name in ("accelerate", "deepspeed", "megatron.core"):
        if find_spec(name) is None:
            pytest.skip(f"needs {name}")
    words = ["--model", "gpt2", "--on", "RTX-4090", "--gpus", "4", "--global-batch", "64"]
    written: list[Path] = []
    for more in ((), ("--framework", "megatron"), ("--framework", "huggingface")):
        folder = tmp_path / "-".join(more or ("any",))
        given = [*words, *more, "--top", "4", "--write", str(folder), "--json"]
        code, text, error = trainrig("plan", *given)
        assert code == 0, error
        found = [Path(path) for path in json.loads(text)["written"]]
        assert found and sorted(folder.glob("*.toml")) == sorted(found)
        written += found
    seen = set()
    for path in written:
        line = (path.with_suffix("") / "torchrun.sh").read_text()
        assert "NPROC_PER_NODE=4 exec sh" in line and f"../{path.name} --write" in line
        for file in path.with_suffix("").iterdir():
            seen.add(file.name)
            if file.name == "pretrain.sh":
                line = file.read_text().partition("exec ")[2].replace("\\\n", " ")
                script = shlex.split(line)
                program = next(n for n, word in enumerate(script) if word.endswith(".py"))
                assert megatron_lm_parser().parse_args(script[program + 1 :]).micro_batch_size
            elif file.name == "accelerate_config.json":
                from accelerate.commands.config.config_args import load_config_from_file

                assert load_config_from_file(str(file)).num_processes == 4
            elif file.name == "ds_config.json":
                monkeypatch.setenv("DS_ACCELERATOR", "cpu")
                from deepspeed.runtime import config

                monkeypatch.setattr(config.dist, "is_initialized", lambda: True)
                stages = tomllib.loads(path.read_text()).get("pp", 1)
                ranks = (
                    4 // stages
                )  # that share a batch: DeepSpeed's pipeline hands in its own mesh
                monkeypatch.setattr(config.dist, "get_world_size", lambda *_, n=ranks: n)
                monkeypatch.setattr(config.dist, "get_rank", lambda *_: 0)
                assert config.DeepSpeedConfig(json.loads(file.read_text())).train_batch_size == 64
    assert {"torchrun.sh", "accelerate_config.json", "ds_config.json", "pretrain.sh"} <= seen
