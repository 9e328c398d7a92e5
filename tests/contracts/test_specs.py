"""Benchmarks and frameworks are known by specs: a new one shows up, no file knows one by name."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from runner_fakes import HOST, gpu
from trainrig.analysis.compare import compare_runs
from trainrig.analysis.waterfall import build_waterfalls
from trainrig.benchmarks import spec as registry
from trainrig.benchmarks.spec import (
    Benchmark,
    LevelRule,
    Metric,
    PlannedCase,
    Quantity,
    Scope,
    Selection,
    benchmarks,
    case_text,
    register,
)
from trainrig.benchmarks.storage import MAX_SHARE_OF_FREE
from trainrig.cli import bench as bench_verb
from trainrig.cli import compare as compare_verb
from trainrig.cli import plan as plan_verb
from trainrig.cli import predict as predict_verb
from trainrig.cli import train as train_verb
from trainrig.errors import UsageError
from trainrig.prediction.rates import OPERATIONS
from trainrig.record import Case, Kind, Record, RunView
from trainrig.runner.layout_search import predict_only
from trainrig.runner.plan import qualify_plan
from trainrig.runner.view import judged_view
from trainrig.store import read_run
from trainrig.train import engines
from trainrig.train.config import Experiment
from trainrig.train.engines import ENGINES, Framework
from trainrig.train.parity import reference_of
from trainrig.units import parse_count
from trainrig.workload import Work, find
from trainrig.workload.layout import Layout
from trainrig.workload.programs import FRAMEWORKS

SRC = Path(__file__).resolve().parents[2] / "src" / "trainrig"

MEASURING_HALF = """
from trainrig.measure.timing import Prepared


def prepare(case, device):
    numbers = list(range(case["turns"]))
    return Prepared(call=lambda: sum(numbers), wrong=lambda: None)
"""


def planned(turns: int) -> PlannedCase:
    return PlannedCase(case={"turns": turns}, step="spin", required=True)


def qualify(scope: Scope) -> list[PlannedCase]:
    return [] if scope.beside_gpus else [planned(1000)]


def select(selection: Selection) -> list[PlannedCase]:
    return [planned(parse_count(size, 10**6)) for size in selection.sizes]


def turns(case: Case) -> int:
    return int(str(case["turns"]))


SPIN = Benchmark(
    name="spin",
    version=1,
    title="additions of Python's own",
    order=99,
    module="spin_half",
    example={"turns": 8},
    fields={"turns": 10**9},
    work=lambda case: Work(flops=turns(case), num_bytes=0),
    metrics=lambda case: (
        Metric(name="turn_rate", unit="turn/s", amount=float(turns(case)), formula="turns / time"),
    ),
    memory=lambda case: 8 * turns(case),
    qualify=qualify,
    options={"size": "turns of the wheel", "device": ""},
    select=select,
    label=lambda case: f"{case['turns']} turns of the wheel",
    sizes=frozenset(["turns"]),
    levels=(
        LevelRule(
            quantity=Quantity(name="spinning", metric="turn_rate", order=90),
            name="Best spin",
            order=10,
        ),
    ),
)


@pytest.fixture
def spin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Benchmark]:
    """A benchmark of which nothing is known but its spec and its measuring half."""
    (tmp_path / "spin_half.py").write_text(MEASURING_HALF)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{SRC.parent}")
    register(SPIN)
    importlib.reload(bench_verb)  # its help is made from the specs
    yield SPIN
    del registry._registered["spin"]
    importlib.reload(bench_verb)


def point(value: float, run: str = "", attempt: int | None = None) -> Record:
    return Record(
        kind=Kind.MEASURED,
        benchmark="spin",
        case={"turns": 1000},
        metric="turn_rate",
        unit="turn/s",
        value=value,
        interval=(value * 0.99, value * 1.01),
        device="Test CPU",
        run=run,
        attempt=attempt,
    )


def test_nothing_is_known_of_it_before() -> None:
    assert "spin" not in {spec.name for spec in benchmarks()}


@pytest.mark.usefixtures("spin")
@pytest.mark.parametrize("budget", [30.0, 240.0])
def test_a_qualification_runs_it(budget: float) -> None:
    for targets, where in (([HOST], HOST), ([gpu(0), HOST], gpu(0))):
        tasks = [task for block in qualify_plan(targets, budget) for task in block.tasks]
        (task,) = [task for task in tasks if task.benchmark == "spin"]
        assert (task.target, task.planned.step, task.planned.required) == (where, "spin", True)


@pytest.mark.usefixtures("spin")
def test_it_has_a_label_and_a_level_on_the_page() -> None:
    from reports import markdown

    view = RunView(name="run", records=(point(2e9),))
    assert case_text("spin", {"turns": 1000}) == "1000 turns of the wheel"
    (waterfall,) = build_waterfalls(view)
    assert (waterfall.quantity, waterfall.levels[-1].name) == ("spinning", "Best spin")
    page = markdown(view)
    assert "1000 turns of the wheel" in page
    assert "Best spin" in page


@pytest.mark.usefixtures("spin")
def test_bench_lists_it() -> None:
    """`test_plugin` measures one by its own half."""
    run = CliRunner().invoke
    shown = " ".join(run(bench_verb.command, ["--help"]).output.split())
    assert "additions of Python's own" in shown
    assert "spin: turns of the wheel" in shown
    assert MAX_SHARE_OF_FREE == 1 / 40 and "a fortieth of what is free" in shown
    refused = run(bench_verb.command, ["spin", "--dtype", "fp32"])
    assert "spin has no --dtype" in str(refused.exception)
    unknown = run(bench_verb.command, ["nope"]).exception
    assert "spin" in str(getattr(unknown, "hint", ""))
    assert "step" not in str(getattr(unknown, "hint", ""))


@pytest.mark.usefixtures("spin")
def test_compare_judges_it() -> None:
    runs = [RunView(name=name, records=(point(value),)) for name, value in (("a", 1e9), ("b", 2e9))]
    assert "spin" in repr(compare_runs(*runs))


# ---- no file knows a benchmark by name

NAMES = {spec.name for spec in benchmarks()} | {"step", "training"}
LOOK_UPS = {"find", "benchmark", "case_text", "kind_text", "role_of", "ceiling", "skipped_record"}


def is_own(path: Path) -> bool:
    """What a benchmark is, how it is measured, and published figures as its records."""
    room, *rest = path.relative_to(SRC).parts
    if room in ("benchmarks", "measure"):
        return path.stem.startswith(tuple(NAMES))
    return [room, *rest[:1]] == ["catalog", "published"]


def named_in(node: ast.AST) -> bool:
    """Whether a literal name of a benchmark stands in an expression, but as a field of a case."""
    if isinstance(node, ast.Subscript):
        return False
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get":
        return False
    if isinstance(node, ast.Constant):
        return node.value in NAMES if isinstance(node.value, str) else False
    return any(named_in(child) for child in ast.iter_child_nodes(node))


def asks_for_benchmark(node: ast.AST) -> bool:
    words = {getattr(n, "attr", None) or getattr(n, "id", None) for n in ast.walk(node)}
    return bool(words & {"benchmark", "family", "name", "spec"})


def known_by_name(tree: ast.AST) -> Iterator[int]:
    """Lines that compare with, look up or key by the literal name of a benchmark."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(asks_for_benchmark, sides)) and any(map(named_in, sides)):
                yield node.lineno
        elif isinstance(node, ast.Dict):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            if len(NAMES.intersection(keys)) > 1 and not set(keys) <= set(OPERATIONS):
                yield node.lineno
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            given = [word.value for word in node.keywords if word.arg in ("benchmark", "family")]
            if any(map(named_in, given)) or (called in LOOK_UPS and any(map(named_in, node.args))):
                yield node.lineno


def test_a_label_says_nothing_of_what_its_case_does_not() -> None:
    """Other tools' files leave out what we always write: ``None 8192 × 8192 × 8192``."""
    for one in registry.benchmarks():
        for key in one.example:
            for case in (
                {name: value for name, value in one.example.items() if name != key},
                {**one.example, key: None},
            ):
                text = registry.case_text(one.name, case)
                assert "None" not in text and ", ," not in text, (one.name, case)
                assert text == text.strip(" ,"), (one.name, case)


def sources(*words: str) -> Iterator[tuple[Path, ast.Module]]:
    """Files of the package that contain one of these words, parsed."""
    for path in SRC.rglob("*.py"):
        text = path.read_text()
        if any(word in text for word in words):
            yield path, ast.parse(text)


def quoted(names: Iterable[str]) -> list[str]:
    return [f'"{name}"' for name in names]


def test_no_file_knows_a_benchmark_by_name() -> None:
    found = [
        f"{path.relative_to(SRC)}:{line}"
        for path, tree in sources(*quoted(NAMES))
        if not is_own(path)
        for line in known_by_name(tree)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        'if row.benchmark == "layer": pass',
        'if record.benchmark not in ("matmul", "vector"): pass',
        'if name == "copy": pass',
        'if spec.name != "copy": pass',
        'weights = {"matmul": 5.0, "vector": 3.0}',
        'spec = benchmark("storage")',
        'Task(benchmark="matmul")',
        'if (r.benchmark, r.metric) == ("copy", "byte_rate"): pass',
    ],
)
def test_the_rule_sees_a_name(line: str) -> None:
    assert list(known_by_name(ast.parse(line))) == [1]


@pytest.mark.parametrize(
    "line",
    ['if op.kind == "matmul": pass', 'name = case.get("layer")', 'rate = rates["matmul"]'],
)
def test_the_rule_lets_other_words_pass(line: str) -> None:
    assert list(known_by_name(ast.parse(line))) == []


# ---- no file knows a framework by name

FRAMEWORK_FILES = (
    # the spec
    "train/engines.py",
    # a driver names its project's package
    "train/drivers",
    # what it does by itself to layouts, kernels, bytes and messages
    "workload/programs",
    # published figures, as their authors call the software
    "catalog/published",
    # readers of a framework's own log
    "importers/hf_results.py",
    # whose code a layer is: the benchmark's own word
    "benchmarks/layer.py",
    "measure/layer_blocks.py",
    # Trainer's arguments, one of which is called so
    "train/trainer_arguments.py",
    # forms of files, which are called by the projects that read them
    "data/prepare.py",
    "cli/export.py",
    "train/weight_forms.py",
    "train/native/weight_source.py",
    "train/native/export_weights.py",
)


def framework_names(tree: ast.AST) -> Iterator[int]:
    """Lines on which a framework's name stands as a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in FRAMEWORKS:
            yield node.lineno


def test_no_file_knows_a_framework_by_name() -> None:
    found = [
        f"{path.relative_to(SRC)}:{line}"
        for path, tree in sources(*quoted(FRAMEWORKS))
        if not any(path.is_relative_to(SRC / own) for own in FRAMEWORK_FILES)
        for line in framework_names(tree)
    ]
    assert found == []


def test_every_file_that_may_name_a_framework_does() -> None:
    for own in FRAMEWORK_FILES:
        place = SRC / own
        files = place.rglob("*.py") if place.is_dir() else [place]
        assert any(list(framework_names(ast.parse(file.read_text()))) for file in files), own


@pytest.mark.parametrize(
    "line",
    [
        'if own.framework == "huggingface": pass',
        'if layout.framework not in ("megatron", "deepspeed"): pass',
        'labels = {"native": "ours"}',
        'own.replace(framework="native")',
        'match own.framework:\n    case "torchtitan": pass',
    ],
)
def test_the_rule_sees_a_frameworks_name(line: str) -> None:
    assert list(framework_names(ast.parse(line)))


# ---- the number of processes is not the number that shares the data: the mesh says both

NPROC_FILES = (
    "train/config.py",  # where the key becomes the mesh
    "train/drivers",  # the processes that torchrun started
)


def counts_with_nproc(tree: ast.AST) -> Iterator[int]:
    """Lines that compute with ``nproc``, compare it, or hand it on by another name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign | ast.Compare):
            parts: list[ast.AST] = [node]
        elif isinstance(node, ast.Call):
            parts = [*node.args, *(word.value for word in node.keywords if word.arg != "nproc")]
            parts = [part for part in parts if isinstance(part, ast.Name | ast.Attribute)]
        else:
            continue
        for part in parts:
            named = (getattr(n, "attr", None) or getattr(n, "id", None) for n in ast.walk(part))
            if "nproc" in named:
                yield node.lineno


def test_only_the_mesh_says_how_many_share_the_data() -> None:
    found = [
        f"{path.relative_to(SRC)}:{line}"
        for path, tree in sources("nproc")
        if not any(path.is_relative_to(SRC / own) for own in NPROC_FILES)
        for line in counts_with_nproc(tree)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "samples = own.samples * own.nproc",
        "total *= experiment.nproc",
        "if own.nproc > 1: pass",
        "Shard(batch=8, num_ranks=own.nproc)",
        "devices = range(experiment.nproc)",
    ],
)
def test_the_rule_sees_nproc(line: str) -> None:
    assert list(counts_with_nproc(ast.parse(line)))


def test_a_mesh_tells_ranks_from_those_that_share_the_data() -> None:
    layout = Layout.of(gpus=8, tp=2, pp=2, batch_size=3, grad_accum=5)
    assert (layout.mesh.of_one.ranks, layout.mesh.of_one.dp) == (8, 2)
    own = Experiment(layout=layout)
    assert own.global_samples == 3 * 5 * 2
    assert (own.nproc, own.processes, reference_of(own).grad_accum) == (8, 8, 5 * 2)
    alone = Experiment(layout=Layout.of(gpus=4, parallel="dataparallel"))
    assert (alone.mesh.dp, alone.processes) == (4, 1)


# ---- a framework of which nothing is known but its spec and its program

PROGRAM = """
import json
from trainrig.process.child import run_rank

WEIGHTS = "num_parameters weights weights_between gradients masters states".split()
DTYPES = "weight_dtype gradient_dtype master_dtype state_dtype".split()
PARTS = {"data": 0.001, "forward": 0.003, "backward": 0.005, "optimizer": 0.001}


def train(folder, events):
    own = json.loads((folder / "experiment.json").read_text())["experiment"]
    facts = dict.fromkeys(WEIGHTS, 1000) | dict.fromkeys(DTYPES, "float32")
    facts |= {"ranks": 1, "moments": 2, "block_forwards": 1, "micro_batches": own["grad_accum"]}
    facts |= {"micro_tokens": own["batch_size"] * own["seq_len"], "wrapped": "Dummy"}
    facts |= {"optimizer": "AdamW", "fused": True, "compiled": False, "offloaded": False}
    facts |= {"device": "cpu", "threads": 1, "transport": None, "placements": None}
    events.emit("layout", **facts)
    for step in range(own["steps"]):
        row = {"step": step, "loss": 6.0 - 0.2 * step, "grad_norm": 1.0, "time": 0.010}
        events.emit("row", **row, **PARTS)
    events.emit("memory", peak=None, reserved=None, devices=[])
    events.emit("trained")


run_rank(train)
"""


@pytest.fixture
def dummy(tmp_path: Path) -> Iterator[Framework]:
    """A framework that claims ten steps and computes nothing."""
    program = tmp_path / "dummy_program.py"
    program.write_text(PROGRAM)
    spec = Framework(name="dummy", program=(str(program),))
    engines.register(spec)
    yield spec
    del ENGINES["dummy"]
    del FRAMEWORKS["dummy"]


def test_a_framework_is_unknown_before() -> None:
    with pytest.raises(UsageError, match="dummy"):
        Layout.of(framework="dummy")


TRAIN = ("--framework", "dummy", "--scale", "tiny", "--model", "gpt2", "--device", "cpu")


@pytest.mark.usefixtures("dummy")
def test_help_and_a_dry_run_know_it() -> None:
    run = CliRunner().invoke
    shown = " ".join(run(train_verb.command, ["--help"]).output.split())
    assert "native, huggingface, deepspeed, megatron or dummy" in shown
    done = run(train_verb.command, [*TRAIN, "--dry-run", "--json"], standalone_mode=False)
    assert done.exception is None, done.exception
    assert '"framework": "dummy"' in done.stdout


@pytest.mark.usefixtures("dummy")
def test_it_is_predicted_and_planned_with_as_one_that_trains() -> None:
    words = ["--model", "gpt2", "--on", "RTX 4090", "--framework", "dummy", "--gpus", "4"]
    for verb, more in ((predict_verb, []), (plan_verb, ["--global-batch", "8"])):
        done = CliRunner().invoke(verb.command, [*words, *more], standalone_mode=False)
        assert done.exception is None, done.exception
        assert "dummy, " in done.stdout
    assert predict_only(Layout.of(gpus=4, zero=3, framework="dummy"), find("gpt2")) is None
    assert predict_only(Layout.of(gpus=4, zero=3, framework="megatron"), find("gpt2")) is not None


@pytest.mark.usefixtures("dummy")
def test_it_is_trained_with_judged_reported_and_compared(
    prepared_text: Path, tmp_path: Path
) -> None:
    from reports import markdown

    words = [*TRAIN, "--data", str(prepared_text), "--steps", "10", "--batch-size", "2"]
    words += ["--precision", "fp32", "--seq-len", "16", "--json", "--out", str(tmp_path / "runs")]
    for _ in range(2):
        done = CliRunner().invoke(train_verb.command, words, standalone_mode=False)
        found = json.loads(done.stdout.splitlines()[-1])
        assert (found["framework"], found["row_verdict"]) == ("dummy", "NOT COMPARABLE")
        assert found["layout_found"]["wrapped"] == "Dummy"
    runs = [read_run(path) for path in sorted((tmp_path / "runs").iterdir())]
    views = [judged_view(run) for run in runs]
    rates = [r.value for r in runs[0].records if r.metric == "sample_rate"]
    assert rates == [pytest.approx(2 / 0.010)]
    page = markdown(views[0])
    assert "- Verdict: NOT COMPARABLE" in page
    assert "1 rank, fp32, as Dummy" in page
    old, new = (str(run.path) for run in runs)
    compared = CliRunner().invoke(compare_verb.command, [old, new], standalone_mode=False)
    (row,) = [line for line in compared.stdout.splitlines() if "4.2000" in line]
    assert row.split()[:7] == ["dummy", "200", "200", "-", "-", "4.2000", "4.2000"]
