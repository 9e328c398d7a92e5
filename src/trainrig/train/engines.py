"""The frameworks that train here: one spec each (`Framework`), and always a process of its own.

    supports(layout)           what it cannot train of a layout: an error with its hint, or None
    check(experiment)          refuses what it cannot train of an experiment
    missing(python)            why it cannot run here, in one line, or None
    command(experiment, run)   how it is started, with what it needs written to the folder ``run``
    collect(run)               what came of it, read from the events that its ranks wrote

    native        ours: one process a rank, or one for all GPUs (parallel = "dataparallel")
    huggingface   transformers.Trainer, by a driver that knows nothing of this package but its data
    deepspeed     DeepSpeed's engine around Hugging Face's models, likewise
    megatron      Megatron-Core's models, parallelism and optimizers, likewise

A spec that is registered is offered by ``trainrig train --framework`` and treated like these; no
other file knows one by name (tests/contracts/test_specs.py).  What `supports` refuses can be
predicted.  A framework that drives another project's engine runs in the Python that
`process.python_env` finds for it, with that project's torch; its driver needs nothing of ours but
the data.  The first weights are written before, by our own Python.

Imports no torch: which of them can run is a question of what is installed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainrig.catalog.arithmetic import UNKNOWN, Arithmetic
from trainrig.errors import NeedsGpuError, UnavailableError, UsageError
from trainrig.machine.cgroup import cpu_quota
from trainrig.machine.system_access import ThisMachine
from trainrig.process import flight_recorder
from trainrig.process.events import read_events
from trainrig.process.lost_ranks import Restart, final_rows, process_of, restarts_of
from trainrig.process.python_env import (
    LEAST_TORCH,
    check_torch,
    interpreter_for,
    is_external,
    missing_requirement,
    variable_of,
)
from trainrig.process.supervisor import Command
from trainrig.train import refusals
from trainrig.train.config import Experiment, to_dict
from trainrig.train.deepspeed_builds import lacking_for_builds
from trainrig.train.fewer_ranks import fewer_ranks
from trainrig.train.launch_files import accelerate_files, deepspeed_files, megatron_files
from trainrig.train.parity import Probe
from trainrig.train.refusals import Refusal, refused_by_all, refused_by_stages
from trainrig.workload import ModelShape, find, parameters
from trainrig.workload.layout import Layout
from trainrig.workload.model import GPU_ONLY
from trainrig.workload.programs import FRAMEWORKS
from trainrig.workload.programs.engine import EngineTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """GPUs, cores and arithmetic of this machine."""

    gpus: int
    """GPUs that CUDA_VISIBLE_DEVICES leaves."""
    cores: int
    numbers: tuple[int, ...] = ()
    """The driver's numbers of these GPUs, in the order in which torch sees them."""
    present: tuple[int, ...] = ()
    """Driver's numbers of all GPUs of the machine."""
    capabilities: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Compute capability by the driver's number, where the driver states it."""
    arithmetic: Mapping[int | None, Arithmetic] = field(default_factory=dict)
    """Arithmetic that each GPU has in hardware, by the driver's number; None: the host's."""

    def arithmetic_of(self, device: str, numbers: Sequence[int] = ()) -> Arithmetic:
        """Return the arithmetic that all ranks have on ``device``, on the GPUs of these numbers."""
        if device == "cpu" or not (device or self.gpus or numbers):
            return self.arithmetic.get(None, UNKNOWN)
        known = [self.arithmetic[n] for n in numbers or self.numbers if n in self.arithmetic]
        return min(
            known, key=lambda arithmetic: _BY_SPEED.index(arithmetic.fastest), default=_NO_GPU
        )


_BY_SPEED = ("fp32", "fp16", "bf16")
_NO_GPU = Arithmetic(fastest="bf16", reason="no GPU is here that says otherwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRank:
    """What a rank beside the first reported."""

    rank: int
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a training reported."""

    rows: tuple[Mapping[str, Any], ...] = ()
    """A step each, of rank 0."""
    facts: Mapping[str, Any] | None = None
    """Of the layout, of rank 0."""
    peers: tuple[OtherRank, ...] = ()
    """Ranks beside the first."""
    memory: float | None = None
    """The peak of the rank that held most, in bytes."""
    reserved: float | None = None
    memories: tuple[Mapping[str, Any], ...] = ()
    """Of each rank's devices: rank, device, allocated, reserved."""
    devices: tuple[Mapping[str, Any], ...] = ()
    """That the ranks found to be theirs: rank, device, name, uuid; cores of a host."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES as rank 0 had it."""
    stretch: tuple[Mapping[str, Any], ...] = ()
    """The most steps of rank 0 in a row without a checkpoint between them."""
    ended: float | None = None
    """When the last of these was over, by the monotonic clock."""
    heldout: tuple[tuple[int, float], ...] = ()
    """Steps trained and held-out loss, in nats a target, whenever it was taken."""
    decayed: tuple[int, int] | None = None
    """Weights of the whole model that decay, and those that do not."""
    probe: Probe | None = None
    ranks: int = 0
    """That trained last, as far as they said it."""
    hosts: tuple[str, ...] = ()
    """Of each rank."""
    restarts: tuple[Restart, ...] = ()
    """After each rank that was lost."""
    profiles: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    """Of each rank its profiled steps: seconds by part (`trainrig.trace`)."""
    traces: tuple[str, ...] = ()
    """Names of the traces that ranks kept, in the folder of their events."""
    no_profile: str = ""
    """Why a profiler that ran has no parts of a step; empty where it has them or did not run."""

    @property
    def profiled(self) -> dict[str, float] | None:
        """Return seconds of a profiled step by part.

        Each rank's of median length, the mean of the ranks.

        All ranks have the same step, and so the means add up to it.  None: not of every rank.
        """
        if not self.profiles or not all(self.profiles):
            return None
        middle = [
            sorted(rank_steps, key=lambda s: s["step_s"])[len(rank_steps) // 2]
            for rank_steps in self.profiles
        ]
        parts = [name for name in middle[0] if name.endswith("_s")]
        return {part: sum(float(step[part]) for step in middle) / len(middle) for part in parts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is done with an experiment in one start of its processes."""

    probe: bool = True
    """The comparison's five steps follow the timed ones."""
    stop: int | None = None
    """The step that is not trained any more; None: all are."""
    seconds: float | None = None
    """Time after which one process begins no step."""
    checkpoint: str = ""
    """The folder of its checkpoints, where our engine saves; empty: nowhere."""
    resume: str = ""
    """The checkpoint that it goes on from, or a folder that may have some: the newest."""
    stall_timeout: float = 0.0
    """Seconds without a move of any rank after which each ends by itself; 0: others see to it."""
    heldout: bool = False
    """The held-out loss is taken, by our engine."""
    trace: bool = False
    """Each rank keeps the trace of its profiled steps beside its events."""
    elsewhere: bool = False
    """Other machines run it: its environment has nothing that only this one is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A framework that trains here: a Python program, from experiment.json to events."""

    name: str
    program: tuple[str, ...]
    is_driven: bool = False
    """Another project's, in a Python that may be its own; else it runs in ours."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Packages of a driver's interpreter, each with the oldest version that will do."""
    files: Callable[[Experiment], Mapping[str, str]] = lambda _: {}
    """What its project's own launcher reads, by name: written to the folder, usable by hand."""
    prepare: tuple[str, ...] = ()
    """What our Python runs before; it is given the folder, as the program is."""
    refuses_layout: Callable[[Layout], Refusal] = lambda _: None
    """Reason why a layout is not trained by it, which another one may train."""
    refuses_model: Callable[[ModelShape], Refusal] = lambda _: None
    """Reason why a model is not trained by it, whatever the layout."""
    refuses: Callable[[Experiment], Refusal] = lambda _: None
    """Reason why an experiment is refused for something besides its layout."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the program's environment."""
    lacks: Callable[[Experiment], UnavailableError | None] = lambda _: None
    """What an experiment needs besides, and this machine has not."""

    def supports(self, layout: Layout, shape: ModelShape) -> UsageError | None:
        """Reason why a layout of a model is not trained, or None."""
        refused = refused_by_all(layout) or refused_by_stages(layout, shape)
        refused = refused or self.refuses_layout(layout) or self.refuses_model(shape)
        return UsageError(*refused) if refused else None

    def check(self, experiment: Experiment) -> None:
        """Raise UsageError for what is not trained."""
        if (refusal := self.supports(experiment.layout, find(experiment.model))) is not None:
            raise refusal
        if (refused := self.refuses(experiment)) is not None:
            raise UsageError(*refused)

    def missing(self, python: str = "") -> str | None:
        """Why it cannot run here, or None; ``python``: the interpreter that an experiment names."""
        if not self.is_driven:
            try:
                check_torch()
            except UnavailableError as error:
                return error.message
            return None
        return missing_requirement(interpreter_for(python, self.name), self.needs)

    def command(self, experiment: Experiment, run: Path, job: Job) -> Command:
        """Return one process a rank."""
        run.mkdir(parents=True, exist_ok=True)
        request = {"experiment": to_dict(experiment), **asdict(job)}
        (run / "experiment.json").write_text(json.dumps(request))
        for name, text in self.files(experiment).items():
            (run / name).write_text(text)
        env = dict(self.settings)
        on_gpu = experiment.device.startswith("cuda")
        if not on_gpu and (threads := _threads(experiment)):
            env["OMP_NUM_THREADS"] = str(threads)
        if on_gpu:
            ranks = None if job.elsewhere else experiment.processes
            env |= _gpu_rank_environment(ranks, experiment.unfused_parts)
        if on_gpu and experiment.processes > 1:
            env |= flight_recorder.settings(run)
        if not experiment.placement.p2p:
            env["NCCL_P2P_DISABLE"] = "1"
        if experiment.placement.devices:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, experiment.device_numbers))
            env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the driver's numbers
        python = python_of(experiment)
        return Command(
            argv=(python, *self.program, str(run)),
            ranks=experiment.processes,
            env=env,
            external=is_external(python),
            prepare=(sys.executable, *self.prepare, str(run)) if self.prepare else (),
            max_restarts=experiment.recovery.max_restarts,
            fewer=fewer_ranks(experiment) if experiment.recovery.max_restarts else (),
        )

    def collect(self, run: Path) -> Result:
        """Return rows and facts of each rank; devices and memory of all, and the most of a rank."""
        ranks = range(len(list(run.glob("events-*.jsonl"))))
        reported = [[event for _, event in read_events(run, rank)] for rank in ranks]
        first = reported[0] if reported else []
        starts = _events_named("start", first)
        if starts:  # ranks of earlier attempts are gone
            ranks = ranks[: starts[-1]["ranks"]]
        facts = [next(reversed(_events_named("layout", reported[rank])), None) for rank in ranks]
        placed = [
            (rank, (rank_facts or {}).get("placed", {})) for rank, rank_facts in enumerate(facts)
        ]
        memory = [
            (rank, event)
            for rank in ranks
            for event in _events_named("memory", reported[rank])[-1:]
        ]
        peaks = [each["peak"] for _, each in memory if each["peak"] is not None]
        reserved = [each["reserved"] for _, each in memory if each.get("reserved")]
        stretch, ended = longest_stretch(first)
        probe = next(reversed(_events_named("parity", first)), None)
        decay = next(reversed(_events_named("weight_decay", first)), None)
        profiles = [
            next(reversed(_events_named("breakdown", reported[rank])), {}) for rank in ranks
        ]
        return Result(
            rows=final_rows(_events_named("row", first)),
            facts=facts[0] if facts else None,
            peers=tuple(OtherRank(rank=rank, facts=facts[rank]) for rank in ranks[1:]),
            memory=max(peaks, default=None),
            reserved=max(reserved, default=None),
            memories=_devices(memory),
            devices=_devices(placed),
            visible=placed[0][1].get("visible") if placed else None,
            stretch=stretch,
            ended=ended,
            heldout=tuple(
                {
                    event["step"]: (event["step"], event["loss"])
                    for event in _events_named("heldout", first)
                    if event["loss"] is not None
                }.values()
            ),
            decayed=(decay["decayed"], decay["not_decayed"]) if decay else None,
            ranks=len(ranks) if starts else 0,
            hosts=tuple(process_of(run, rank)[0] for rank in ranks),
            restarts=restarts_of(first),
            profiles=tuple(tuple(each.get("steps", ())) for each in profiles),
            traces=tuple(each["trace"] for each in profiles if each.get("trace")),
            no_profile=next((each["missing"] for each in profiles if each.get("missing")), ""),
            probe=Probe(
                losses=tuple(probe["losses"]),
                grad_norms=tuple(probe["grad_norms"]),
                narrowing=probe.get("narrowing") or 1.0,
                only_first=bool(probe.get("only_first")),
                autocast=bool(probe.get("autocast")),
            )
            if probe
            else None,
        )


def _threads(experiment: Experiment) -> int:
    """Of each rank, where its own choice, one a processor, is more than the quota; or 0."""
    quota, seen = cpu_quota(ThisMachine()), len(os.sched_getaffinity(0))
    if experiment.placement.threads or not isinstance(quota, float) or quota >= seen:
        return experiment.placement.threads
    return max(1, int(quota) // experiment.mesh.ranks)


Event = Mapping[str, Any]


def _cores() -> int:
    """Processors that this process may use, by its affinity and its quota."""
    host = ThisMachine()
    usable, quota = host.usable_threads(), cpu_quota(host)
    cores = usable if isinstance(usable, int) else os.cpu_count() or 1
    return min(cores, int(quota)) if isinstance(quota, float) else cores


def _gpu_rank_environment(ranks: int | None, without: Collection[str] = ()) -> dict[str, str]:
    """Return environment variables for ranks on GPUs; variables that the user has set are left out.

    ``ranks``: those that share this machine; None where other machines run them.

    Threads: without a number each rank takes all cores, which the others' loaders and launches
    need.  The allocator's segments grow: blocks of changing size leave no holes between them
    (pytorch.org/docs/stable/notes/cuda.html).  ``without``: some of UNFUSED.
    """
    chosen = {}
    if ranks is not None and "omp" not in without:
        chosen["OMP_NUM_THREADS"] = str(max(1, _cores() // ranks))
    if "segments" not in without:
        chosen[_ALLOCATOR[0]] = "expandable_segments:True"
    if ranks is None:
        return chosen
    has_allocator = any(name in os.environ for name in _ALLOCATOR)
    set_by_user = {*os.environ, *(_ALLOCATOR if has_allocator else ())}
    return {name: value for name, value in chosen.items() if name not in set_by_user}


_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The second name is torch 2.10's, which still reads the first; drivers may have older ones."""


def longest_stretch(events: Sequence[Event]) -> tuple[tuple[Event, ...], float | None]:
    """Return the longest run of a rank's rows without a checkpoint or a held-out loss, and its end.

    A row comes when its step is over, or the next one; behind the last of a stretch comes nothing
    that takes time.
    """
    stretches: list[list[Event]] = [[]]
    ended = [0.0]
    for event in events:
        at = float(event.get("at") or 0.0)  # what is no number was read as None
        if event["event"] == "row":
            stretches[-1].append(event)
            ended[-1] = at
        elif event["event"] in ("checkpoint", "heldout", "start") and stretches[-1]:
            stretches.append([])
            ended.append(0.0)
        elif event["event"] == "trained" and stretches[-1]:
            ended[-1] = at
    place = max(range(len(stretches)), key=lambda number: len(stretches[number]))
    return tuple(stretches[place]), ended[place] or None


def _events_named(name: str, events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event["event"] == name]


def _devices(events: Iterable[tuple[int, Event]]) -> tuple[Event, ...]:
    """Return the devices in an event of each rank, with the rank's number."""
    return tuple(
        {"rank": rank, **device} for rank, event in events for device in event.get("devices", ())
    )


_START = str(Path(__file__).resolve().parent / "drivers" / "start.py")


_HUGGING_FACE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
_KNOWN = (
    Framework(
        name="native",
        program=("-m", "trainrig.train.native.rank_main"),
        refuses_layout=refusals.layout_refused_by_native,
        refuses_model=refusals.model_refused_by_native,
        refuses=refusals.refused_by_native,
    ),
    Framework(
        name="huggingface",
        program=(_START, "huggingface"),
        is_driven=True,
        needs={"torch": LEAST_TORCH, "numpy": "", "transformers": "4.49", "accelerate": ""},
        files=accelerate_files,
        prepare=("-m", "trainrig.train.driver_files", "transformers"),
        refuses_layout=refusals.layout_refused_by_trainer,
        refuses_model=refusals.model_refused_by_transformers,
        refuses=refusals.refused_by_trainer,
        lacks=refusals.lacking_for_trainer,
        settings=_HUGGING_FACE,
    ),
    Framework(
        name="deepspeed",
        program=(_START, "deepspeed"),
        is_driven=True,
        needs={"torch": LEAST_TORCH, "numpy": "", "transformers": "4.49", "deepspeed": "0.17"},
        files=deepspeed_files,
        prepare=("-m", "trainrig.train.driver_files", "transformers"),
        refuses_layout=refusals.layout_refused_by_deepspeed,
        refuses_model=refusals.model_refused_by_transformers,
        refuses=refusals.refused_by_deepspeed,
        lacks=lacking_for_builds,
        settings=_HUGGING_FACE,
    ),
    Framework(
        name="megatron",
        program=(_START, "megatron"),
        is_driven=True,
        needs={"torch": LEAST_TORCH, "numpy": "", "megatron.core": "0.16"},
        files=megatron_files,
        prepare=("-m", "trainrig.train.driver_files", "megatron-core"),
        refuses_layout=refusals.layout_refused_by_megatron,
        refuses_model=refusals.model_refused_by_megatron,
        refuses=refusals.refused_by_megatron,
        settings={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},  # as Megatron-LM asks for where tp > 1
        lacks=refusals.lacking_for_megatron,
    ),
)
ENGINES = {spec.name: spec for spec in _KNOWN}
"""Frameworks that train here, by name; another one is added by `register`."""


def register(spec: Framework) -> None:
    """Train with one more framework; a layout may name it from now on."""
    ENGINES[spec.name] = spec
    FRAMEWORKS.setdefault(spec.name, EngineTraits())


def engine_of(framework: str) -> Framework:
    """Return the framework of that name.  UsageError where it does not train here."""
    if framework in ENGINES:
        return ENGINES[framework]
    trained = " or ".join(ENGINES)
    raise UsageError(f"framework {framework} is predicted, and not trained yet", trained)


SMALL = 20_000_000
"""Weights of models that are trained to see that it is right, not how fast: on a host their ranks
may share cores."""
SHARING = 16
"""Ranks that may, at most."""


def check_site(experiment: Experiment, site: Site) -> None:
    """Refuse what this machine cannot run.  Raises UnavailableError, in one line."""
    on_gpu = experiment.device.startswith("cuda")
    if not on_gpu:
        _check_host(experiment)
    _check_framework(experiment)
    have, device_kind = (
        (site.gpus, "GPU") if on_gpu else (_room_for_ranks(experiment, site), "core")
    )
    needed = experiment.mesh.ranks
    if needed > have:
        ranks = "1 rank" if needed == 1 else f"{needed} ranks"
        fewer = f"--nproc {have}" if have else "--device cpu"
        lacks = NeedsGpuError if on_gpu else UnavailableError
        raise lacks(
            f"{ranks}, and {have} {device_kind}{'' if have == 1 else 's'}: each rank "
            "needs one of its own",
            fewer + ("; CUDA_VISIBLE_DEVICES is honoured" if on_gpu else ""),
        )
    for number in experiment.device_numbers:
        if number not in site.present:
            there = ", ".join(map(str, site.present)) or "none"
            words = f"devices {experiment.placement.devices}: there is no GPU {number}"
            raise UnavailableError(words, f"this machine has: {there}")
        if number not in site.numbers:
            shown = os.environ.get("CUDA_VISIBLE_DEVICES")
            by = f" by CUDA_VISIBLE_DEVICES={shown}" if shown is not None else ""
            words = f"devices {experiment.placement.devices}: GPU {number} is hidden from torch{by}"
            raise UnavailableError(words, "unset CUDA_VISIBLE_DEVICES, or name others")
    if experiment.optimizer == "adamw-8bit" and missing_requirement(
        python_of(experiment), {"torchao": ""}
    ):
        raise UnavailableError("adamw-8bit needs torchao", "pip install torchao")
    has = site.arithmetic_of(experiment.device, experiment.device_numbers)
    if not experiment.placement.emulate and has.is_emulated(experiment.precision):
        words = f"precision {experiment.precision} is emulated here, and emulate is false"
        raise NeedsGpuError(words, has.line)
    if experiment.precision == "fp8":
        _check_fp8(experiment, site)
    if experiment.kernels.liger and missing_requirement(
        python_of(experiment), {"liger_kernel": ""}
    ):
        raise UnavailableError("liger needs liger_kernel", "pip install liger-kernel")


_LEAST_FP8 = (8, 9)
"""Ada, the first of NVIDIA's with products of 8-bit floats; of AMD's (MI300) torch says it."""


def _check_fp8(experiment: Experiment, site: Site) -> None:
    """Refuse 8-bit products where a GPU or torchao lacks them."""
    for number in experiment.device_numbers or site.numbers[:1]:
        have = site.capabilities.get(number)
        if have is not None and have < _LEAST_FP8:
            least, shown = (".".join(map(str, version)) for version in (_LEAST_FP8, have))
            words = f"needs products of fp8: compute capability {least} (Ada, Hopper) or later"
            raise NeedsGpuError(f"{words}, and GPU {number} has {shown}", "precision bf16")
    if missing_requirement(python_of(experiment), {"torchao": "0.10"}):
        raise UnavailableError("missing: fp8 needs torchao (0.10 or newer)", "pip install torchao")


def _check_framework(experiment: Experiment) -> None:
    """Refuse a framework that is not installed, or without what it needs besides."""
    if (lacking := ENGINES[experiment.framework].missing(experiment.placement.python)) is not None:
        hint = "another --framework"
        if is_driven(experiment):
            hint += (
                ", or name a Python that has it: --python PATH or "
                f"{variable_of(experiment.framework)}"
            )
            hint += "; `make engines` installs what is tested"
        raise UnavailableError(f"{experiment.framework}: {lacking}", hint)
    if (missing := ENGINES[experiment.framework].lacks(experiment)) is not None:
        raise missing


def _check_host(experiment: Experiment) -> None:
    """Refuse what only GPUs have."""
    rules = (
        (not experiment.placement.p2p, "p2p off is a matter of GPUs", "leave p2p out on a CPU"),
        (experiment.precision == "tf32", "tf32 is a matter of GPUs", "fp32 on a CPU"),
        (
            experiment.precision == "fp8",
            "needs a GPU with products of fp8: compute capability 8.9 (Ada, Hopper) or later",
            "bf16 on a CPU",
        ),
        *(
            (
                word in experiment.unfused_parts,
                f"unfused = {word} is a matter of GPUs",
                f"leave {word} out",
            )
            for word in GPU_ONLY
        ),
        (
            experiment.kernels.cuda_graph,
            "CUDA graphs are a matter of GPUs",
            "leave cuda_graph out on a CPU",
        ),
        (
            experiment.kernels.liger,
            "Liger's kernels are a matter of GPUs",
            "leave liger out on a CPU",
        ),
        (
            experiment.parallel == "dataparallel",
            "torch.nn.DataParallel is a matter of GPUs",
            "leave parallel out: DDP",
        ),
    )
    for is_broken, words, hint in rules:
        if is_broken:
            raise NeedsGpuError(words, hint)


def _room_for_ranks(experiment: Experiment, site: Site) -> int:
    is_small = parameters(find(experiment.model)).total <= SMALL
    return max(site.cores, SHARING) if is_small else site.cores


def python_of(experiment: Experiment) -> str:
    """Return the interpreter that its ranks run in.  UsageError for a name that is none."""
    if is_driven(experiment):
        return interpreter_for(experiment.placement.python, experiment.framework)
    return sys.executable


def is_driven(experiment: Experiment) -> bool:
    """Return whether another project's engine trains it, maybe in a Python of its own."""
    return ENGINES[experiment.framework].is_driven
