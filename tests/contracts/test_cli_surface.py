"""The command line's surface is an interface: verbs, their arguments and options are pinned here.

A change that is meant is taken over with
``pytest --inline-snapshot=fix tests/contracts/test_cli_surface.py``
and noted in CHANGELOG.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from inline_snapshot import snapshot

from trainrig.cli.main import VERBS, cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "verbs.md").read_text()
TEXTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("docs/questions/*.md"),
    *ROOT.glob("src/trainrig/**/*.py"),
    *ROOT.glob("src/trainrig/**/*.md"),
]


def command(verb: str) -> click.Command:
    found = cli.get_command(click.Context(cli), verb)
    assert found is not None
    return found


def surface(verb: str) -> str:
    """The parameters of a verb, or of each of its commands, as they are typed."""
    found = command(verb)
    if isinstance(found, click.Group):
        own = [typed(found)] if found.params else []
        inner = [f"{name} {typed(found.commands[name])}" for name in found.commands]
        return " | ".join(own + inner)
    return typed(found)


def typed(found: click.Command) -> str:
    return " ".join(
        "/".join(parameter.opts)
        if isinstance(parameter, click.Option)
        else parameter.human_readable_name.upper() + "..." * (parameter.nargs == -1)
        for parameter in found.params
    )


def test_the_surface_is_as_promised() -> None:
    assert {verb: surface(verb) for verb in VERBS} == snapshot(
        {
            "qualify": "--budget --devices --only --out --resume --min --baseline --detach --tmux "
            "--strict --json",
            "burn": "--budget --devices --mode --dtype --memory --golden --out --detach --tmux "
            "--json",
            "doctor": "FILE... --markdown --apply --runs --json",
            "selftest": "--only --clean-runs --seed --list --json",
            "inspect": "--json --wait",
            "top": "--interval --once --json",
            "metrics": "--port --bind --token-file --once --json",
            "catalog": "NAME... --compare --models --servers --json",
            "env": "--os --on --driver --route --torch --pip-index --torch-index --conda-channel "
            "--nvidia-repo --image --try-extension --python --explain --out --json",
            "published": "CHIP... --kind --model --precision --html --md --all --json",
            "bench": "BENCHMARK --dtype --size --op --path --device --peak --ranks/--nproc "
            "--min --max --backend --peer-access --timeout --budget --out --strict --json",
            "build": "check FILE --gpu --psu --cpu --board --ram --case --cooling --disk --nic "
            "--riser --bridge --volts --breaker-amps --prices --currency --html --pdf --md --json "
            "| suggest --budget "
            "--currency --global-batch --tokens --volts --breaker-amps --noise-limit-db --own "
            "--model --seq-len --precision --kernels --optimizer --recompute --offload "
            "--method --lora-rank --prices --html --pdf --md --json | checklist FILE "
            "--out --json | "
            "cluster FILE --budget --tokens --network --global-batch --model --seq-len "
            "--precision --kernels --optimizer --recompute --offload --method --lora-rank --prices "
            "--currency --html --pdf --md --json",
            "cost": "--buy --parts --rent-per-gpu-hour --rent-per-machine-hour --rent-per-month "
            "--reserved-per-gpu-hour --reserved-per-machine-hour --spot-per-gpu-hour "
            "--spot-per-machine-hour --machine --rent-per-hour --reserved-per-hour "
            "--spot-per-hour --years --utilisation --machines --tokens --days "
            "--global-batch --resale --interest --watts --kwh-price --pue --hosting-per-month "
            "--staff-hours-per-month --staff-rate --mtbf-hours --checkpoint-seconds "
            "--restart-seconds --interruptions-per-day --model --seq-len --precision --kernels "
            "--optimizer --recompute --offload --method --lora-rank --on --gpus "
            "--gpus-per-node --link "
            "--host-memory --fabric-gbps --p2p --measured --prices --currency --html --pdf --md "
            "--json",
            "prices": "import CSV --currency --date --source --to --json | list PART --to --json "
            "| template --json",
            "data": "prepare TEXT... --out --vocab --tokenizer --text-key --json | info DIR --json",
            "train": "FILE --model --data --init --micro-batch --seq-len --steps --tokens "
            "--grad-accum --global-batch --precision --optimizer --lr --lr-schedule --warmup "
            "--log --heldout-every --seed --recompute --attention --compile --framework "
            "--parallel --python --device --devices --nproc --zero --shard-size --tp "
            "--sequence-parallel --pp --interleave --schedule --cp --ep --offload "
            "--checkpoint-every --checkpoint-interval --keep-checkpoints --max-restarts "
            "--min-nproc --p2p --bind --only --rounds --scale --timeout --write --nodes --dry-run "
            "--out --resume --trace --detach --tmux --strict --json",
            "tune": "PLAN --top --steps --rounds --data --device --scale --timeout --out --strict "
            "--json",
            "generate": "RUN --prompt --max-tokens --temperature --top-k --seed --device --json",
            "export": "FROM --to --out --model --precision --json",
            "predict": "--model --seq-len --precision --kernels --optimizer --recompute "
            "--offload --method --lora-rank --on --chip --cluster --rates --gpus --gpus-per-node "
            "--link --host-memory --fabric-gbps --p2p --framework --parallel --states --moments "
            "--lora-on --quantize --grad-reduce --fp8-params --optimizer-in-backward "
            "--offload-checkpoints --software "
            "--loss --overlap --cuda-graphs --router-spread --cp-comm --offload-overlap "
            "--global-batch --micro-batch --grad-accum --tp --pp --cp --ep --interleave "
            "--schedule --zero --shard-size --sequence-parallel --target-seq-len --experts "
            "--flash-version --tokens --what-if --price --cases --simulate --html --pdf --md "
            "--json | matmul --on --chip --rates --html --pdf --md --json | "
            "vector --on --chip --rates --html --pdf --md --json | layer --on --chip --rates "
            "--precision --kernels --html --pdf --md --json",
            "fits": "--model --seq-len --precision --kernels --optimizer --recompute --offload "
            "--method --lora-rank --on --chip --cluster --rates --gpus --gpus-per-node --link "
            "--host-memory --fabric-gbps --p2p --framework --parallel --states --moments "
            "--lora-on --quantize --grad-reduce --fp8-params --optimizer-in-backward "
            "--offload-checkpoints --software "
            "--loss --overlap --cuda-graphs --router-spread --cp-comm --offload-overlap "
            "--global-batch --micro-batch --grad-accum --tp --pp --cp --ep --interleave "
            "--schedule --zero --shard-size --sequence-parallel --target-seq-len --experts "
            "--flash-version --html --pdf --md --json",
            "plan": "--model --seq-len --precision --kernels --optimizer --recompute "
            "--offload --method --lora-rank --on --chip --cluster --rates --gpus "
            "--gpus-per-node --link "
            "--host-memory --fabric-gbps --p2p --framework --parallel --states --moments "
            "--lora-on --quantize --grad-reduce --fp8-params --optimizer-in-backward "
            "--offload-checkpoints --software "
            "--loss --overlap --cuda-graphs --router-spread --cp-comm --offload-overlap "
            "--global-batch --micro-batch --grad-accum --schedule --tokens --days --top --what-if "
            "--write --html --pdf --md --json",
            "remote": "forward HOST --port --reverse --name --config --json | "
            "frp --role --server --server-port --port --token-file --secret-file --name "
            "--ca --cert --key --json | "
            "cloudflared --tunnel --hostname --team --aud --port --name --json | "
            "notebook --port --root --python --name --json | list --json | "
            "run NAME --detach --tmux --json | remove NAME --json | "
            "test HOST... --budget --config --json | audit --json",
            "jobs": "--end --json",
            "attach": "JOB --all --json",
            "report": "RUN... --html --pdf --md --csv --junit --prometheus --json",
            "compare": "OLD NEW... --html --pdf --md --json",
            "ledger": "RUNS --calibrate --json",
            "import": "FILE... --as --on --model --precision --seq-len --gpus --batch-size --out "
            "--json",
            "bundle": "RUN --out --unpack --full --json",
            "demo": "--html --pdf --md --json",
        }
    )


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_json_and_a_line_of_help(verb: str) -> None:
    assert all("--json" in part.split() for part in surface(verb).split(" | "))
    assert command(verb).get_short_help_str()
    result = CliRunner().invoke(command(verb), ["--help"])
    assert result.exit_code == 0


def test_the_page_of_verbs_has_every_verb() -> None:
    assert re.findall(r"^\| `trainrig (\w+)` \|", PAGE, re.MULTILINE) == list(VERBS)


def test_an_unknown_verb_is_no_command() -> None:
    assert cli.get_command(click.Context(cli), "quality") is None


def said_in(text: str) -> list[tuple[str, list[str]]]:
    """The commands that a text names, as verb and options."""
    lines = re.findall(r"\btrainrig ([a-z]+)\b([^`\"'\n]*)", text)
    return [(verb, re.findall(r"--[a-z][a-z-]*", rest)) for verb, rest in lines if verb in VERBS]


def test_documents_and_hints_name_options_that_exist() -> None:
    said = {
        (path.name, verb, option)
        for path in TEXTS
        for verb, options in said_in(path.read_text())
        for option in options
    }
    assert ("bundle.py", "bundle", "--unpack") in said
    for name, verb, option in sorted(said):
        aliases = [
            alias
            for parameter in command(verb).params
            for alias in getattr(parameter, "aliases", ())
        ]
        assert option in [*re.split(r"[ /]", surface(verb)), *aliases, "--help", "--help-all"], (
            f"{name}: trainrig {verb} {option}"
        )


def test_an_option_that_does_not_exist_would_be_seen() -> None:
    text = "hint: trainrig qualify --resume RUN --fast, or `trainrig inspect`"
    assert said_in(text) == [("qualify", ["--resume", "--fast"]), ("inspect", [])]


def test_commands_in_code_spans_are_verbs() -> None:
    for path in TEXTS:
        if path.suffix == ".md":
            for verb in re.findall(r"(?:`|^    )trainrig ([a-z]+)", path.read_text(), re.MULTILINE):
                assert verb in [*VERBS, "help"], f"{path.name}: trainrig {verb}"
