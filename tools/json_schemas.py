"""docs/schemas/: a JSON schema of what each verb's --json prints, and docs/json.md's table of them.

    python tools/json_schemas.py --write           all; it measures and trains a little: minutes
    python tools/json_schemas.py --write predict   those whose name begins so
    python tools/json_schemas.py --page            the table alone, from the schemas that are there

Types come from what the commands below print (genson); what a key means comes from
docs/schemas/keys.toml, where a key has one meaning wherever it stands.  What only other
machines have (GPUs, NVLink) is null or an empty list here: a schema refuses no type there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from genson import SchemaBuilder

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "schemas"
PAGE = ROOT / "docs" / "json.md"
MARK = "## Schemas"
MODEL = "gpt2:num_layers=1,hidden=64,num_heads=2,vocab=512,max_positions=64"
SMALL = f"--model {MODEL} --batch-size 2 --seq-len 32 --steps 6 --device cpu --timeout 5m"
BUILD = f"{ROOT}/docs/examples/one-4090.toml"
COST = "cost --buy 200000 --rent-per-machine-hour 32 --years 3 --currency USD"
SAMPLES: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect",),
    "doctor": ("doctor",),
    "catalog": ("catalog RTX-4090", "catalog MI300X"),
    "catalog-compare": ("catalog --compare RTX-4090 MI300X",),
    "catalog-part": ("catalog ConnectX-7",),
    "catalog-server": ("catalog DGX-H100",),
    "env": ("env --on RTX-4090 --os ubuntu24", "env --on RTX-4090 --os ubuntu24 --out env.sh"),
    "env-explain": ("env --explain build.log",),
    "predict": (
        "predict --model gpt2-medium --on RTX-4090 --gpus 2 --what-if nvlink --tokens 1e9",
        "predict --model gpt2 --on RTX-4090 --offload host --host-memory 64",
        "predict --model gpt2 --on RTX-4090 --gpus 2 --pp 2 --grad-accum 2 --framework megatron",
        "predict --model mixtral-8x7B --on H100-SXM5-80GB --gpus 64 --ep 8 --zero 1",
    ),
    "predict-beside": ("predict --model gpt2 --on RTX-4090 --on RTX-3090 --price 2 --price 1",),
    "predict-row": ("predict --cases cases.csv",),
    "predict-matmul": ("predict matmul --on RTX-5090",),
    "predict-vector": ("predict vector --on RTX-5090",),
    "predict-layer": ("predict layer --on RTX-5090",),
    "fits": (
        "fits --model llama-7B --on RTX-4090",
        "fits --model gpt2 --on RTX-4090",
        "fits --model llama-7B --on RTX-4090 --offload host --host-memory 64",
    ),
    "fits-beside": ("fits --model gpt2 --on RTX-4090 --on RTX-3090",),
    "plan": (
        "plan --model gpt2-medium --on RTX-4090 --gpus 4 --global-batch 64 --write plans",
        "plan --model gpt2-medium --on RTX-4090 --tokens 1e10 --days 60 --global-batch 64 "
        "--what-if nvlink",
    ),
    "build-check": (f"build check {BUILD}",),
    "build-suggest": (f"build suggest --budget 60000 --own {BUILD} --model gpt2-medium",),
    "build-cluster": (
        f"build cluster {BUILD} --budget 1.5e6 --tokens 1e10 --model gpt2-medium "
        "--network 10=1500 --network 100=9000",
    ),
    "cost": (
        COST,
        "cost --model llama-7B --tokens 140e9 --on H100-SXM5-80GB --gpus 8 --days 400 "
        "--buy 280000 --rent-per-gpu-hour 3 --watts 10200 --kwh-price 0.12 --pue 1.3 "
        "--currency USD",
    ),
    "data-prepare": ("data prepare {text} --vocab 512 --out data/small",),
    "data-info": ("data info data/small",),
    "train": (f"train --data data/small {SMALL} --out runs",),
    "train-dry-run": (f"train --data data/small {SMALL} --dry-run",),
    "train-write": (f"train --data data/small {SMALL} --write launch",),
    "generate": ("generate {trained} --prompt the --max-tokens 4",),
    "export": ("export {trained} --out weights",),
    "tune": ("tune two.toml --data data/small --top 2 --rounds 1 --steps 4 --device cpu",),
    "bench": 2 * ("bench vector --op scale --size 1Mi --budget 10s --out runs",),
    "qualify": ("qualify --budget 20s --only storage --out runs",),
    "report": ("report demo", "report {trained}", "report {measured}"),
    "compare": ("compare {older} {newer}",),
    "ledger": ("ledger runs",),
    "bundle": ("bundle demo --out demo.bundle",),
    "bundle-unpack": ("bundle demo.bundle --unpack unpacked",),
    "import": ("import {captures}",),
    "burn": ("burn --budget 3s --mode matmul --devices cpu --dtype fp32 --out runs",),
    "selftest": ("selftest --only bundle.hash --only train.loss",),
    "selftest-list": ("selftest --list --only bundle.hash",),
    "published": ("published RTX-4090", "published RTX-3090-Ti RTX-4090"),
    "top": ("top",),
    "remote-list": ("remote list",),
    "remote-audit": ("remote audit",),
    "jobs": ("jobs",),
    "prices-import": ("prices import prices.csv --to kept.csv",),
    "error": ("fits --model nothing --on RTX-4090",),
}
"""Schema -> commands, run one after the other in one folder."""
PLACES = {
    "text": f"{ROOT}/README.md",
    "captures": f"{ROOT}/tests/unit/importers/samples/p2p-2x4090.txt",
    "trained": "runs/*train*",
    "measured": "runs/*qualify*",
    "newer": "runs/*bench*",
    "older": "runs/*bench*",
}
MAP_SIZE = 32
"""An object with more keys than this, or with keys that are no words, is a table by name."""


def run(folder: Path, words: str) -> list[Any]:
    """The objects that a command prints."""
    for name, place in PLACES.items():
        if "{" + name + "}" in words:
            found = sorted(folder.glob(place)) if "*" in place else [place]
            words = words.replace("{" + name + "}", str(found[0 if name == "older" else -1]))
    command = [sys.executable, "-m", "trainrig", *words.split(), "--json"]
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src"), "HOME": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "["))]
    if not lines:
        sys.exit(f"trainrig {words}: printed no JSON (exit code {done.returncode})\n{done.stderr}")
    said = lines[0].get("error") if isinstance(lines[0], dict) and "exit_code" in lines[0] else None
    if said and "nothing" not in words:
        sys.exit(f"trainrig {words}: {said}")
    return lines


def prepared(folder: Path) -> None:
    """Return what the commands read and find."""
    from trainrig.report import DEMO
    from trainrig.store import unpack

    unpack(DEMO, folder / "demo")
    head = "part,price,currency,date,source,kind,per"
    row = "ASUS TUF Gaming RTX 4090,1,USD,2026-11-01,me,gpu,piece"
    table = "id,model,on,gpus,batch_size,tp,measured_step_s,measured_memory_bytes\n"
    table += "a,gpt2,RTX 4090,1,4,,0.1,1e9\n,gpt2,RTX 4090,2,,2,,\n,gpt2,RTX 4090,1,,2,,\n"
    (folder / "build.log").write_text(
        "#error -- unsupported GNU version! gcc versions later than 12 are not supported!\n"
    )
    (folder / "cases.csv").write_text(table)
    (folder / "prices.csv").write_text(f"{head}\n{row}\n")
    both = f'model = "{MODEL}"\nbatch_size = 2\nseq_len = 32\n'
    two = "".join(f'[[experiment]]\nname = "x{n}"\ngrad_accum = {n}\n' for n in (1, 2))
    (folder / "two.toml").write_text(both + two)


def schema_of(name: str, printed: list[Any], meanings: dict[str, str]) -> dict[str, Any]:
    """The schema of what was printed, with what each key means."""
    builder = SchemaBuilder(schema_uri="https://json-schema.org/draft/2020-12/schema")
    for each in printed:
        builder.add_object(each)
    schema: dict[str, Any] = builder.to_schema()
    described = described_node(schema, meanings, is_top=True)
    if "properties" in described:
        described["properties"]["schema"] = {"const": f"trainrig.{name}/1"}
    return {"title": f"trainrig {name}", **described}


def described_node(node: Any, meanings: dict[str, str], *, is_top: bool = False) -> Any:
    """A schema whose keys have their meanings; below the top no key is required."""
    if not isinstance(node, dict):
        return node
    node["anyOf"] = [described_node(each, meanings) for each in node.get("anyOf", ())]
    if not node["anyOf"]:
        del node["anyOf"]
    if "items" in node:
        node["items"] = described_node(node["items"], meanings)
    widen(node, is_top=is_top)
    properties = node.get("properties", {})
    for key, value in properties.items():
        inner = described_node(value, meanings)
        properties[key] = {"description": meanings[key], **inner} if key in meanings else inner
    return node


def is_table(properties: dict[str, Any]) -> bool:
    """Return whether keys are names of things, and not words that one thing is described with."""
    words = all(key.isidentifier() and key == key.lower() for key in properties)
    return not words or len(properties) > MAP_SIZE


def widen(node: dict[str, Any], *, is_top: bool) -> None:
    """Let a number be any, and a value below the top be null or not there: another machine's is."""
    types = node.pop("type", None)
    listed = {types} if isinstance(types, str) else set(types or ())
    listed = {"number" if each == "integer" else each for each in listed}
    if not is_top:
        node.pop("required", None)
        if listed - {"array"}:
            listed.add("null")
        if is_table(node.get("properties", {})):
            del node["properties"]
    if listed and listed != {"null"}:
        node["type"] = sorted(listed) if len(listed) > 1 else min(listed)


def page() -> str:
    """docs/json.md's table, from the schemas."""
    lines = [MARK, "", "| schema | keys |", "|---|---|"]
    for path in sorted(FOLDER.glob("*.json")):
        schema = json.loads(path.read_text())
        shown = schema if "properties" in schema else schema.get("items", {})
        keys = " ".join(f"`{key}`" for key in shown.get("properties", ()) if key != "schema")
        keys = keys if shown is schema else f"a list of: {keys}"
        lines.append(f"| [{path.stem}](schemas/{path.name}) | {keys} |")
    rows = ["", "### Keys", "", "| key | means |", "|---|---|"]
    used = {key for path in FOLDER.glob("*.json") for key in re_keys(path.read_text())}
    rows += [f"| `{key}` | {text} |" for key, text in meanings_of().items() if key in used]
    return "\n".join([*lines, *rows]) + "\n"


def re_keys(text: str) -> set[str]:
    """All keys that a schema describes."""
    found: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("properties"), dict):
                found.update(node["properties"])
            for value in node.values():
                visit(value)
        elif isinstance(node, list):
            for value in node:
                visit(value)

    visit(json.loads(text))
    return found


def meanings_of() -> dict[str, str]:
    """Key -> what it means."""
    return tomllib.loads((FOLDER / "keys.toml").read_text())


def main() -> None:
    """Write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", nargs="?", const="", metavar="NAME")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    if asked.write is not None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prepared(folder)
            for schema, commands in SAMPLES.items():
                if schema.startswith(asked.write):
                    printed = [line for words in commands for line in run(folder, words)]
                    text = json.dumps(schema_of(schema, printed, meanings_of()), indent=1)
                    (FOLDER / f"{schema}.json").write_text(text + "\n")
                    print(schema, file=sys.stderr)
    if asked.write is not None or asked.page:
        before = PAGE.read_text().partition(MARK)[0]
        PAGE.write_text(before + page())


if __name__ == "__main__":
    main()
