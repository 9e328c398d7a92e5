"""Experiments meet this machine: their tokens, devices and ceiling, and what is lacking for them.

What cannot be is refused before there is a run; the ceiling alone is measured in one.  Numbers of
GPUs are the driver's, in PCI order, whatever CUDA_VISIBLE_DEVICES makes of them; what a rank found
is known by the GPU's UUID.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainrig.benchmarks.matmul import BENCHMARK as MATMUL
from trainrig.benchmarks.matmul import matmul_case
from trainrig.benchmarks.spec import PlannedCase
from trainrig.catalog.arithmetic import HALF
from trainrig.catalog.published.training import baselines, baselines_of_case
from trainrig.data.batches import Shard
from trainrig.data.manifest import MANIFEST, read_manifest
from trainrig.data.open_batches import open_batches
from trainrig.data.prepare import MOST_VERIFIED, pairs_of, prepare, verify
from trainrig.errors import DataError, UnavailableError, UsageError
from trainrig.machine import Missing, Snapshot, environment_digest, inspect, value_or
from trainrig.machine.numa_nodes import beside_gpus, node_cpus, spread, usable_cpus
from trainrig.machine.snapshot import Gpu
from trainrig.machine.software import software
from trainrig.machine.system_access import Host, ThisMachine
from trainrig.process.programs import last_line, run_program
from trainrig.process.python_env import inspect_python, is_external
from trainrig.process.supervisor import MAX_STALL_TIMEOUT, STALL_TIMEOUT, master_port
from trainrig.record import Record, Status, new_id
from trainrig.report.document import Column, Document, Facts, Table
from trainrig.runner import energy
from trainrig.runner.executor import Executor
from trainrig.runner.plan import Block, tasks_of
from trainrig.runner.progress import Progress, Watcher
from trainrig.runner.targets import Target, described, find_targets
from trainrig.runner.train_logs import check_logs
from trainrig.runner.train_records import Device
from trainrig.store import RunWriter, read_run
from trainrig.train.config import Experiment, case_of, check, check_compiler, objective_of, to_dict
from trainrig.train.config_file import Fastest, experiment_of, read_file
from trainrig.train.engines import Result, Site, check_site, engine_of, is_driven, python_of
from trainrig.units import duration_text, plain_name, plain_value
from trainrig.workload import find
from trainrig.workload.layout.batch_split import samples_of, split_batch
from trainrig.workload.option_words import option_of


def with_data(experiments: Sequence[Experiment], watch: Watcher) -> list[Experiment]:
    """Return experiments with their token folders; the standard library is the default text.

    Raises DataError for a folder that does not hold what its manifest says.
    """
    folder = ""
    if not all(experiment.data for experiment in experiments):
        watch(Progress(text="no --data: Python's standard library is prepared", level="stage"))
        folder = str(prepare().folder)
    adopted = {
        requested.data: _adopted(Path(requested.data), watch)
        for requested in experiments
        if requested.data
    }
    with_folders = [
        requested.replace(data=str(adopted.get(requested.data, Path(folder)).resolve()))
        for requested in experiments
    ]
    with_folders = [
        requested.replace(init=str(Path(requested.init).resolve())) if requested.init else requested
        for requested in with_folders
    ]
    for init, model in dict.fromkeys(
        (requested.init, requested.model) for requested in with_folders if requested.init
    ):
        watch(Progress(text=f"first weights: {init}"))
        check_init(init, model)
    for data in {Path(requested.data) for requested in with_folders}:
        if read_manifest(data).train.num_tokens <= MOST_VERIFIED:
            verify(data)
    for requested in with_folders:
        shape = find(requested.model)
        open_batches(  # text that is too short, a vocabulary that is too small: refused by this
            Path(requested.data),
            "train",
            objective_of(shape),
            seq_len=requested.seq_len,
            shard=Shard(batch=requested.samples, num_ranks=requested.mesh.dp, seed=requested.seed),
            vocab_size=shape.vocab,
        )
    return with_folders


def _adopted(data: Path, watch: Watcher) -> Path:
    """Return prepared folder of ``data``: itself, or made of another program's .bin and .idx."""
    if (data / MANIFEST).exists() or not pairs_of((data,)):
        return data
    watch(Progress(text=f"{data}: tokens of another program, checked and copied", level="stage"))
    return prepare((data,), say=lambda line: watch(Progress(text=line))).folder


def check_init(init: str, model: str) -> None:
    """Raise DataError where ``init`` has no weights of ``model``; a process of its own looks."""
    program = (sys.executable, "-m", "trainrig.train.native.weight_source", init, model)
    done = run_program(program, _INIT_TIMEOUT, die_with_us=True)
    try:
        wrong = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        reason = last_line(done.stderr) if done.code is not None else "it did not end"
        raise DataError(f"cannot read {init}: {reason}") from None
    if wrong:
        kind = UnavailableError if wrong["error"] == "UnavailableError" else DataError
        raise kind(wrong["message"], wrong["hint"])


_INIT_TIMEOUT = 900.0
"""Seconds; the files of a checkpoint of ours are read whole for their checksums."""


def placed(experiment: Experiment, site: Site) -> Experiment:
    """Return the experiment with its device, and its Python interpreter if not ours."""
    device = experiment.device or ("cuda" if site.gpus or experiment.placement.devices else "cpu")
    if device not in ("cpu", "cuda"):
        raise UsageError(
            f"device {device!r}: experiments name cpu or cuda", "devices = 0,1 says which GPUs"
        )
    placed = experiment.replace(device=device)
    if device == "cuda" and not placed.placement.devices and placed.mesh.ranks <= len(site.numbers):
        # A process that saw more GPUs than its own could use them: Trainer does.
        placed = placed.replace(devices=",".join(map(str, site.numbers[: placed.mesh.ranks])))
    check(placed)
    engine_of(placed.framework).check(placed)
    if is_driven(placed):
        placed = placed.replace(python=python_of(placed))
    return placed


def make_ready(
    experiments: Sequence[Experiment], site: Site, watch: Watcher
) -> tuple[list[Experiment], list[UnavailableError | None]]:
    """Return the experiments with devices and data, and of each what this machine lacks for it.

    Raises what the first lacks where nothing can be trained; and for a port that is taken, before
    a run is made.
    """
    ready = [placed(experiment, site) for experiment in experiments]
    if len(ready) > 1 or ready[0].mesh.ranks > 1:  # each rank a core of its own
        ready = [
            placed_experiment.replace(threads=placed_experiment.placement.threads or 1)
            for placed_experiment in ready
        ]
    lacking = [lacks(experiment, site) for experiment in ready]
    if all(lacking) and lacking[0] is not None:
        raise lacking[0]
    ready = with_data(ready, watch)
    if any(experiment.mesh.ranks > 1 for experiment in ready):
        master_port()
    return ready, lacking


def lacks(experiment: Experiment, site: Site) -> UnavailableError | None:
    """Return what this machine lacks for an experiment."""
    try:
        check_site(experiment, site)
        check_logs(experiment)
        check_compiler(experiment)
    except UnavailableError as error:
        return error
    return None


def environment_of(experiment: Experiment, snapshot: Snapshot) -> str:
    """Return the digest of what a training runs under: its framework's own packages, too."""
    path = python_of(experiment)
    if not is_external(path):
        return environment_digest(snapshot, all_packages=is_driven(experiment))
    external = inspect_python(path)
    environment = software(ThisMachine(), list(external.folders))
    environment = dataclasses.replace(
        environment,
        python=".".join(map(str, external.version)),
        cuda_driver=snapshot.software.cuda_driver,
    )
    return environment_digest(
        dataclasses.replace(snapshot, software=environment), all_packages=True
    )


def site_of(snapshot: Snapshot, targets: Sequence[Target] | None = None) -> Site:
    """Return what this machine offers to experiments: devices, memory, packages."""
    chosen_targets = find_targets(snapshot) if targets is None else targets
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    usable = tuple(target.index for target in chosen_targets if target.index is not None)
    return Site(
        gpus=len(usable),
        cores=cores or 1,
        numbers=usable,
        present=tuple(gpu.index for gpu in _gpus(snapshot)),
        capabilities={
            gpu.index: tuple(int(part) for part in gpu.compute_capability.split("."))
            for gpu in _gpus(snapshot)
            if isinstance(gpu.compute_capability, str)
        },
        arithmetic={target.index: target.arithmetic for target in chosen_targets},
    )


def this_site() -> Site:
    """Return what this machine has for experiments, as it is now."""
    return site_of(described(inspect()))


def precision_lines(experiments: Iterable[Experiment], site: Site) -> tuple[str, ...]:
    """Return why a precision is the default here, and warnings where it is emulated, once each."""
    lines: dict[str, None] = {}
    for experiment in experiments:
        arithmetic = site.arithmetic_of(experiment.device, experiment.device_numbers)
        line = (
            arithmetic.line
            if experiment.precision == arithmetic.fastest
            else arithmetic.warning(experiment.precision)
        )
        if line is not None:
            lines[line] = None
    return tuple(lines)


def meters_of(experiment: Experiment, snapshot: Snapshot) -> energy.Meters:
    """Return the energy meters of an experiment's devices."""
    if not experiment.device.startswith("cuda"):
        return energy.host_meters()
    gpus = [
        gpu
        for number in experiment.device_numbers
        for gpu in _gpus(snapshot)
        if gpu.index == number
    ]
    for gpu in gpus:
        if gpu.vendor != "nvidia":
            return Missing(
                f"GPU {gpu.index}: the energy of {gpu.vendor.upper()}'s GPUs is not read"
            )
    return energy.gpu_meters([(gpu.index, value_or(gpu.uuid, None)) for gpu in gpus])


def cpus_of_ranks(
    experiment: Experiment, snapshot: Snapshot, host: Host | None = None
) -> tuple[frozenset[int], ...]:
    """Return processors that ``bind`` gives each rank; none where it is off or nothing is known."""
    nodes = (
        node_cpus(host or ThisMachine(), usable := usable_cpus())
        if experiment.placement.bind
        else None
    )
    if nodes is None or (isinstance(nodes, Missing) and experiment.device.startswith("cuda")):
        return ()
    if not experiment.device.startswith("cuda"):
        cpus_by_node = {0: usable} if isinstance(nodes, Missing) else nodes
        return spread(host or ThisMachine(), cpus_by_node, experiment.processes)
    gpu_cpus = beside_gpus(snapshot, value_or(nodes, {}), experiment.device_numbers)
    if experiment.processes == len(gpu_cpus):
        return gpu_cpus
    return (frozenset().union(*gpu_cpus) if all(gpu_cpus) else frozenset(),)


def devices_of(result: Result, snapshot: Snapshot) -> tuple[Device, ...]:
    """Return the devices that the ranks observed, with the driver's numbers of GPUs."""
    numbers = {value_or(gpu.uuid, ""): gpu.index for gpu in _gpus(snapshot)}
    return tuple(
        {**device, "index": numbers.get(device.get("uuid") or "-")} for device in result.devices
    )


def _gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    return () if isinstance(snapshot.gpus, Missing) else snapshot.gpus


_BESIDE_FILE = ("scale", "steps", "tokens", "seed", "data", "init", "device", "rounds", "log")
_CEILING_SECONDS = 8.0
_MATMUL_SIZE = {False: 1024, True: 8192}


def requested_experiments(
    file: Path | None, keys: Mapping[str, Any], look: Callable[[], Site] = this_site
) -> tuple[Experiment, ...]:
    """Return the experiments of a file, or the one that keys of the command line describe.

    ``look``: at what there is, where the precision is left to the device.  Raises UsageError,
    DataError.
    """
    fastest = _chosen_by(look)
    named = {key: value for key, value in keys.items() if value is not None}
    only = named.pop("only", ())
    if file is None:
        if only:
            raise UsageError("--only chooses among a file's experiments", "name a file")
        if str(named.get("device", "")).startswith("cuda:") and "devices" not in named:
            named["device"], _, named["devices"] = named["device"].partition(":")
        named |= _split_of(named)
        usual = Experiment.of()
        defaults = {key: usual.get(key) for key in ("heldout_batches", "checkpoint_every")}
        experiment = experiment_of(defaults | named, fastest)
        return (experiment.replace(name=experiment.name or experiment.framework),)
    for key in named:
        if key not in _BESIDE_FILE:
            raise UsageError(
                f"{option_of(key)} beside a file: the file says what is trained",
                "beside it: " + ", ".join(f"--{key}" for key in _BESIDE_FILE),
            )
    return _named(read_file(file, named, fastest), only)


def _split_of(named: dict[str, Any]) -> dict[str, int]:
    """Return micro-batch and accumulation of a global batch, which is taken out of ``named``."""
    if (wanted := named.pop("global_batch", None)) is None:
        return {}
    usual = Experiment.of()
    seq_len = named.get("seq_len", usual.layout.batch.seq_len)
    micro = named.get("batch_size", int(usual.layout.batch.micro))
    if isinstance(micro, str):
        raise UsageError(
            f"--global-batch {wanted} contradicts --micro-batch {micro}",
            "--micro-batch as a number, or leave --global-batch out",
        )
    split = math.prod(named.get(name, 1) for name in ("tp", "pp", "cp"))
    ranks = max(1, named.get("nproc", 1) // max(1, split))
    samples, accum = samples_of(wanted, seq_len), named.get("grad_accum")
    if "batch_size" not in named and accum is None and samples % (micro * ranks):
        micro = 1
    micro = None if accum is not None and "batch_size" not in named else micro
    micro, accum = split_batch(samples, micro, accum, ranks)
    return {"batch_size": micro, "grad_accum": accum}


def _chosen_by(look: Callable[[], Site]) -> Fastest:
    """Return the chooser of a precision; it looks at the machine once, when first called."""
    site = cache(look)
    return lambda device, numbers: site().arithmetic_of(device, numbers).fastest


def _named(experiments: Sequence[Experiment], only: Sequence[str]) -> tuple[Experiment, ...]:
    """Return the experiments whose name contains one of ``only``; all without any."""
    for text in only:
        if not any(text.lower() in candidate.name.lower() for candidate in experiments):
            names = ", ".join(experiment.name for experiment in experiments)
            raise UsageError(f"no experiment name contains {text!r}", f"it has: {names}")
    return tuple(
        candidate
        for candidate in experiments
        if not only or any(text.lower() in candidate.name.lower() for text in only)
    )


def at_full_scale(file: Path | None, keys: Mapping[str, Any]) -> tuple[Experiment, ...]:
    """Return a file's experiments at full scale, the one that published results refer to."""
    try:
        if file is None:
            return ()
        # What others publish without a word is bf16, whatever is fastest here.
        full_scale = read_file(file, {"scale": "full"}, lambda *_: HALF[0])
        return _named(full_scale, keys.get("only", ()))
    except UsageError:  # what is wrong at full scale alone is no fault of a tiny run
        return ()


def stall_timeout_of(timeout: float | None) -> float:
    """Return seconds in which no rank moves until a training is given up.  Raises UsageError."""
    if timeout is None:
        return STALL_TIMEOUT
    if not 1.0 <= timeout <= MAX_STALL_TIMEOUT:
        words = f"--timeout {duration_text(timeout)} is out of range"
        raise UsageError(words, "from 1s to 1h; without it 10m")
    return timeout


def config_of(experiments: Sequence[Experiment]) -> dict[str, Any]:
    """Return the run.toml of a training."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {
        "trainrig": version("trainrig"),
        "python": sys.version.split()[0],
        "argv": sys.argv[1:],
        **({"cuda_visible_devices": visible} if visible is not None else {}),
        "experiments": [to_dict(experiment) for experiment in experiments],
    }


def published_beside(experiments: Sequence[Experiment]) -> Iterator[Record]:
    """Return published results of the same cases."""
    published = tuple(baselines())
    for experiment in experiments:
        for record in baselines_of_case(case_of(experiment, ""), published):
            conditions = {**record.conditions, "experiment": experiment.name}
            yield record.replace(id=new_id(), conditions=conditions)


def measure_ceiling(
    run: RunWriter,
    target: Target,
    dtype: str,
    claims: Sequence[Record],
    environment: str,
    watch: Watcher,
) -> Record | None:
    """Return the rate of a large matrix product of the same dtype, the level below a step."""
    if target.arithmetic.is_emulated(dtype):  # on a processor a hundred times slower
        return None
    case = matmul_case(dtype, _MATMUL_SIZE[target.is_gpu])
    tasks = tasks_of(MATMUL, target, [PlannedCase(case=case, step=f"{dtype} matmul")])
    deadline = time.monotonic() + _CEILING_SECONDS
    executor = Executor(run, environment=environment, deadline=deadline, watch=watch, claims=claims)
    executor.total = 1
    block = Block(name="the ceiling", tasks=tasks)
    executor.run_block(block, _CEILING_SECONDS)
    for record in reversed(read_run(run.path).records):
        is_rate = record.is_point and record.status is Status.OK and record.unit == "FLOP/s"
        if is_rate and record.case == case:
            return record
    return None


def resolved(experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
    """Return each experiment's keys with all defaults, after checking its data and words.

    What only the machine decides (its GPUs, its interpreters) is not asked: a plan is for another.
    """
    for experiment in experiments:
        if experiment.data:
            read_manifest(Path(experiment.data))
    return [
        {
            **to_dict(requested),
            "warmup": requested.warmup_steps,
            "parallel": requested.layout.scheme,
        }
        for requested in experiments
    ]


def resolved_document(rows: Sequence[dict[str, Any]], notes: Sequence[str] = ()) -> Document:
    """Show what the experiments share as facts, what differs as a table, and ``notes`` below."""
    first_row = rows[0]
    shared = [key for key in first_row if all(row.get(key) == first_row[key] for row in rows)]
    shared = [key for key in shared if key != "name"]
    differ = [key for key in first_row if key not in shared]
    columns = [Column(plain_name(key), "words" if key == "name" else "number") for key in differ]
    table = Table(
        columns=tuple(columns),
        rows=tuple(tuple(plain_value(row.get(key, "")) for key in differ) for row in rows),
        title="Experiments",
        notes=(*notes, "nothing was started, nothing was written"),
    )
    pairs = tuple(
        (plain_name(key), plain_value(first_row[key])) for key in shared if first_row[key] != ""
    )
    return Document(title="", blocks=(Facts(pairs=pairs, title="All experiments"), table))
