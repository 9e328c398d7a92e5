"""Whether `qualify` says what it should of machines whose state is known.

    python -m validation.verdicts              every line of the table; exit 1 where one is wrong
    python -m validation.verdicts --only x4    the lines whose names hold these words

The real plan, executor, expectations and judge run over workers that are not there, under a wound
clock (`simulated`).  A healthy device does what others published of it (`true_rates`), not what our
rate model says.  Every machine has the default budget.  On one healthy chip of each kind one reply
in twenty is slowed by something that the worker's counters saw, as on real machines; the other
machines are quiet unless their names say otherwise, so that one fault does not hide another.

What is right does not follow what the program does: it is written here by hand.
A chip of a vendor whose devices torch reaches by other names than CUDA's is
given PASS or MEASURED: what matters is that nothing breaks and that it is not called faulty.

The last lines are of 4,000 machines each, with one required case (`simulated.judged_alone`: the
real executor and judge, the plan and the expectations left out, since a whole qualification takes
seconds): a worker is slowed by 5 to 60 % with probability p, its counters see that with probability
d, workers scatter by 1.5 %, the floor is 0.92 of the nominal.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainrig.catalog.chip import Chip
from trainrig.catalog.load import load_chips
from trainrig.catalog.lookup import require_chip
from trainrig.machine.snapshot import PcieLink, Snapshot
from trainrig.process.worker import Reply
from trainrig.record import WORKER_CLOCK, Finding, Status
from validation import true_rates
from validation.simulated import Asked, Fault, Machine, Result, judged_alone, qualified

PASS, FAIL, INCOMPLETE, MEASURED = "PASS", "FAIL", "INCOMPLETE", "MEASURED"
CUDA_VENDORS = ("NVIDIA", "AMD")
MACHINES = 4000
FLOOR = 0.92


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One line of the table."""

    name: str
    machine: Machine
    outcomes: tuple[str, ...]
    """Any of these is right."""
    findings: tuple[str, ...] = ()
    """One of these has to be among the findings: an id, and what its evidence has to name."""
    alone: bool = False
    """No other error is right beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A scenario and what came out."""

    name: str
    expected: str
    came: str
    right: bool


# ---- what is wrong with machines


def slow(factor: float, device: str = "") -> Callable[[Asked], float]:
    """All devices, or one, at a share of a healthy one's speed."""

    def speed(asked: Asked) -> float:
        is_meant = asked.is_gpu and device in ("", asked.device)
        return factor if is_meant and asked.request.case.get("direction") not in _LINKS else 1.0

    return speed


_LINKS = ("h2d", "d2h")


def slow_class(factor: float, is_meant: Callable[[Asked], bool]) -> Callable[[Asked], float]:
    """One class of what a GPU does is slow, and the others are not."""
    return lambda asked: factor if asked.is_gpu and is_meant(asked) else 1.0


def slow_clock(factor: float) -> Fault:
    """A worker's clock that runs slow: every time that it tells is too short."""

    def fault(_: Asked, reply: Reply) -> Reply:
        clock = reply.conditions.get(WORKER_CLOCK)
        scaled = {WORKER_CLOCK: clock * factor} if isinstance(clock, float) else {}
        samples = tuple(sample * factor for sample in reply.samples)
        return dataclasses.replace(
            reply, samples=samples, conditions={**reply.conditions, **scaled}
        )

    return fault


def slow_link(factor: float) -> Callable[[Asked], float]:
    return lambda asked: factor if asked.request.case.get("direction") in _LINKS else 1.0


def seldom_noisy(asked: Asked, reply: Reply) -> Reply:
    """One reply in twenty is slowed by a neighbour, and the worker sees it."""
    noisy = random.Random(f"{asked.rng.random()}").random() < 0.05
    return _noisy(reply, asked.rng.uniform(1.05, 1.6), _WAITED) if noisy else reply


_WAITED = "the thread that feeds the GPU waited for a core 30 % of the time"
_OTHERS = "other processes used 60 % of the processors"


def _noisy(reply: Reply, factor: float, why: str | None) -> Reply:
    samples = tuple(sample * factor for sample in reply.samples)
    return dataclasses.replace(reply, samples=samples, disturbed=why)


def throttled(asked: Asked, reply: Reply) -> Reply:
    """The card is too hot: the driver says so while it works."""
    if not asked.is_gpu:
        return reply
    return dataclasses.replace(
        reply,
        conditions={
            **reply.conditions,
            "throttle_reasons": "hw_thermal_slowdown",
            "temperature_c": 97.0,
        },
    )


def desktop(asked: Asked, reply: Reply) -> Reply:
    """A desktop has the card open and does next to nothing there."""
    if not asked.is_gpu:
        return reply
    return dataclasses.replace(
        reply,
        conditions={**reply.conditions, "other_gpu_processes": 1, "other_gpu_share": 0.01},
    )


def busy_host(asked: Asked, reply: Reply) -> Reply:
    """Half of all workers share their processors with others; what the host computes is slower."""
    if random.Random(f"{asked.device} {asked.worker}").random() < 0.5:
        return reply
    if asked.is_gpu:
        return dataclasses.replace(reply, disturbed=_WAITED)
    return _noisy(reply, 1.6, _OTHERS)


def dies(when: Callable[[Asked], bool], reason: str) -> Fault:
    """CUDA fails in some cases."""

    def fault(asked: Asked, reply: Reply) -> Reply:
        if not asked.is_gpu or not when(asked):
            return reply
        return Reply(status=Status.FAILED, reason=reason, duration=1.0)

    return fault


def wrong_once() -> Fault:
    """One wrong answer in an optional case."""
    told: list[str] = []

    def fault(asked: Asked, reply: Reply) -> Reply:
        case = asked.request.case
        if not told and asked.is_gpu and case.get("dtype") == "bf16" and case.get("m") == 4096:
            told.append(asked.device)
            reason = "wrong answer after timing: 1 of 4096 rows of the product are wrong"
            return Reply(status=Status.FAILED, reason=reason, duration=1.0)
        return reply

    return fault


def with_link(generation: int, width: int) -> Callable[[Snapshot], Snapshot]:
    """The first card's link runs below what card and slot can do; the cards are idle when seen."""

    def changed(snapshot: Snapshot) -> Snapshot:
        def lesser(link: PcieLink) -> PcieLink:
            return dataclasses.replace(link, generation=generation, width=width)

        assert isinstance(snapshot.gpus, tuple)
        assert isinstance(snapshot.pci_gpus, tuple)
        return dataclasses.replace(
            snapshot,
            gpus=tuple(
                gpu.replace(link=lesser(gpu.link), utilization=0.0) for gpu in snapshot.gpus
            ),
            pci_gpus=tuple(
                dataclasses.replace(pci, link=lesser(pci.link)) for pci in snapshot.pci_gpus
            ),
        )

    return changed


def each_gpu(**changes: object) -> Callable[[Snapshot], Snapshot]:
    """A snapshot with something changed of every GPU."""

    def changed(snapshot: Snapshot) -> Snapshot:
        assert isinstance(snapshot.gpus, tuple)
        gpus = tuple(gpu.replace(**changes) for gpu in snapshot.gpus)
        return dataclasses.replace(snapshot, gpus=gpus)

    return changed


# ---- the lines


def _machine(
    name: str | Chip, count: int = 1, fault: Fault | None = None, **rest: object
) -> Machine:
    chip = require_chip(name) if isinstance(name, str) else name
    faults = () if fault is None else (fault,)
    return Machine(chip=chip, count=count, faults=faults, **rest)  # type: ignore[arg-type]


def healthy() -> Iterator[Scenario]:
    """Every chip of the catalog, and machines of several."""
    for chip in load_chips():
        usual = chip.vendor in CUDA_VENDORS
        yield Scenario(
            name=f"healthy {chip.name}",
            machine=_machine(chip, fault=seldom_noisy),
            outcomes=(PASS,) if usual else (PASS, MEASURED),
        )
    for seed in range(4):
        yield Scenario(
            name=f"healthy pair of RTX 4090, {seed}",
            machine=_machine("RTX 4090", 2, launch_scatter=0.06, seed=seed),
            outcomes=(PASS,),
        )
    yield Scenario(
        name="healthy 8 x H100 SXM5 80GB",
        machine=_machine("H100 SXM5 80GB", 8, launch_scatter=0.03),
        outcomes=(PASS,),
    )
    for name, fault in (("quiet", ()), ("busy", (busy_host,))):
        yield Scenario(
            name=f"host without GPUs, {name}",
            machine=Machine(chip=None, faults=fault),
            outcomes=(MEASURED,),
        )


KNOWN = ("RTX 4090", "H100 SXM5 80GB", "A100 SXM4 80GB", "V100 SXM2 16GB", "L4")
"""Of each fault."""
BELOW = ("below-band",)
LINK = ("pcie-link-below-max", "below-band copy")
DEVICE = ("device-failed",)


def faulty() -> Iterator[Scenario]:
    """Each fault on several chips."""
    for name in KNOWN:
        yield from _slow(name)
        yield from _links(name)
        yield from _broken(name)
        yield from _others(name)
    yield Scenario(
        name="one of 8 x H100 SXM5 80GB at 92 %",
        machine=_machine("H100 SXM5 80GB", 8, speed=slow(0.92, "cuda:3")),
        outcomes=(FAIL,),
        findings=("odd-device #3",),
        alone=True,
    )
    yield from _watched()
    yield Scenario(
        name="one of 2 x RTX 4090 at 85 %",
        machine=_machine("RTX 4090", 2, speed=slow(0.85, "cuda:1")),
        outcomes=(FAIL,),
        findings=("odd-device #1", "below-band #1"),
    )


def _one(number: int, **changes: object) -> Callable[[Snapshot], Snapshot]:
    """A snapshot with something changed of one GPU."""

    def changed(snapshot: Snapshot) -> Snapshot:
        assert isinstance(snapshot.gpus, tuple)
        gpus = list(snapshot.gpus)
        gpus[number] = dataclasses.replace(gpus[number], **changes)  # type: ignore[arg-type]
        return dataclasses.replace(snapshot, gpus=tuple(gpus))

    return changed


_EIGHT = "H100 SXM5 80GB"
_LAYERS = ("layer",)


def _watched() -> Iterator[Scenario]:
    """What had passed: clocks, memory, classes without a target, links, corrected errors."""
    for count in (1, 8):
        of = f"{count} x {_EIGHT}"
        yield Scenario(
            name=f"{of} whose workers' clocks run at 70 %",
            machine=_machine(_EIGHT, count, fault=slow_clock(0.7)),
            outcomes=(INCOMPLETE,),
            findings=("clock-wrong",),
        )
        yield Scenario(
            name=f"{of} at 60 % whose workers' clocks run at 70 %",
            machine=_machine(_EIGHT, count, fault=slow_clock(0.7), speed=slow(0.6)),
            outcomes=(INCOMPLETE, FAIL),
            findings=("clock-wrong", "below-band"),
        )
        yield Scenario(
            name=f"{of}: layers at 50 %",
            machine=_machine(
                _EIGHT, count, speed=slow_class(0.5, lambda a: a.request.benchmark in _LAYERS)
            ),
            outcomes=(MEASURED, FAIL),
            findings=("layers-slow",),
        )
        yield Scenario(
            name=f"{of}: fp64 at 25 %",
            machine=_machine(
                _EIGHT,
                count,
                speed=slow_class(0.25, lambda a: a.request.case.get("dtype") == "fp64"),
            ),
            outcomes=(FAIL,),
            findings=("below-claim",),
        )
        yield Scenario(
            name=f"{of}: corrected ECC errors by thousands",
            machine=_machine(
                _EIGHT,
                count,
                before=_one(count - 1, ecc=True, ecc_corrected_volatile=4),
                after=_one(count - 1, ecc=True, ecc_corrected_volatile=5_000_004),
            ),
            outcomes=(FAIL,),
            findings=("memory-errors-corrected",),
        )
        yield Scenario(
            name=f"{of}: a counter that goes back",
            machine=_machine(
                _EIGHT,
                count,
                before=_one(count - 1, ecc=True, ecc_corrected_volatile=5),
                after=_one(count - 1, ecc=True, ecc_corrected_volatile=3),
            ),
            outcomes=(INCOMPLETE,),
            findings=("counter-went-back",),
        )
        yield Scenario(
            name=f"{of}: one has 64 GiB",
            machine=_machine(_EIGHT, count, before=_one(count - 1, memory_total_bytes=64 << 30)),
            outcomes=(FAIL,),
            findings=("gpu-memory-short",),
        )
    yield Scenario(
        name=f"2 x {_EIGHT}: one has 5 % less memory",
        machine=_machine(_EIGHT, 2, before=_one(1, memory_total_bytes=int(0.95 * (80 << 30)))),
        outcomes=(FAIL,),
        findings=("gpu-memory-short",),
    )
    for count in (1, 8):
        yield Scenario(
            name=f"{count} x {_EIGHT}: a neighbour that stays from half of the run on",
            machine=_machine(_EIGHT, count, later=(130.0, 0.6)),
            outcomes=(INCOMPLETE,),
            findings=("machine-changed",),
        )
    yield Scenario(
        name=f"8 x {_EIGHT}: links at 45 %",
        machine=_machine(_EIGHT, 8, link_share=0.45),
        outcomes=(FAIL,),
        findings=("slow-link",),
    )


def _slow(name: str) -> Iterator[Scenario]:
    known = true_rates.num_published(require_chip(name), "fp16")
    if known:  # else the truth is itself a guess, and the band has to be as wide
        yield Scenario(
            name=f"{name} at 60 %",
            machine=_machine(name, speed=slow(0.60)),
            outcomes=(FAIL,),
            findings=BELOW,
        )
    if known > 1:  # else no band can be so narrow
        yield Scenario(
            name=f"{name} at 85 %",
            machine=_machine(name, speed=slow(0.85)),
            outcomes=(FAIL,),
            findings=BELOW,
        )
    yield Scenario(
        name=f"{name} throttled to 50 %",
        machine=_machine(name, fault=throttled, speed=slow(0.5)),
        outcomes=(FAIL,) if known else (FAIL, PASS),
        findings=("throttled",),
    )
    chip = require_chip(name)
    limit = 0.6 * (chip.board.tdp or 0.0)
    yield Scenario(
        name=f"{name} limited to 60 % of its power",
        machine=_machine(
            name,
            before=each_gpu(power_limit_w=limit),
            speed=_products_at(0.6 ** true_rates.power_exponent()),
        ),
        outcomes=(PASS,),
        findings=("power-limit-below-default",),
    )


def _products_at(factor: float) -> Callable[[Asked], float]:
    """A power limit slows products and layers, not the memory."""
    moves = ("copy", "vector")
    return lambda asked: factor if asked.is_gpu and asked.request.benchmark not in moves else 1.0


def _links(name: str) -> Iterator[Scenario]:
    chip = require_chip(name)
    generation, width = chip.pcie.generation or 5, chip.pcie.lanes or 16
    slow_generation = true_rates.link_rate(1, width) / true_rates.link_rate(generation, width)
    yield Scenario(
        name=f"{name} with 4 of 16 lanes",
        machine=_machine(name, before=with_link(generation, 4), speed=slow_link(4 / width)),
        outcomes=(FAIL,),
        findings=LINK,
    )
    yield Scenario(
        name=f"{name} at PCIe generation 1 under load",
        machine=_machine(name, before=with_link(1, width), speed=slow_link(slow_generation)),
        outcomes=(FAIL,),
        findings=LINK,
    )


def _broken(name: str) -> Iterator[Scenario]:
    lost = "AcceleratorError: CUDA error: GPU is lost"
    died = "the worker died with signal SIGABRT: CUDA error: unspecified launch failure"
    ecc = "AcceleratorError: CUDA error: uncorrectable ECC error encountered"
    yield Scenario(
        name=f"{name}: ECC errors are counted during load",
        machine=_machine(name, after=each_gpu(ecc=True, ecc_uncorrected_volatile=3)),
        outcomes=(FAIL,),
        findings=("ecc-uncorrected-errors",),
    )
    yield Scenario(
        name=f"{name}: ECC error in every optional bf16 case",
        machine=_machine(name, fault=dies(lambda a: a.request.case.get("dtype") == "bf16", ecc)),
        outcomes=(FAIL,),
        findings=(*DEVICE, "ecc-uncorrected-errors"),
    )
    yield Scenario(
        name=f"{name} is lost at 16384",
        machine=_machine(name, fault=dies(lambda a: a.request.case.get("m") == 16384, lost)),
        outcomes=(FAIL,),
        findings=DEVICE,
    )
    yield Scenario(
        name=f"{name}: all calls of CUDA fail",
        machine=_machine(name, fault=dies(lambda _: True, died)),
        outcomes=(FAIL,),
        findings=DEVICE,
    )
    yield Scenario(
        name=f"{name}: one wrong answer",
        machine=_machine(name, fault=wrong_once()),
        outcomes=(FAIL,),
        findings=("wrong-answer",),
    )


def _others(name: str) -> Iterator[Scenario]:
    yield Scenario(
        name=f"{name} with a desktop on it",
        machine=_machine(name, fault=desktop),
        outcomes=(PASS,),
    )
    yield Scenario(
        name=f"{name} on a busy host",
        machine=_machine(name, fault=busy_host),
        outcomes=(PASS,),
    )


def line_of(scenario: Scenario) -> Line:
    """Run a scenario and compare."""
    result = qualified(scenario.machine)
    wanted = "/".join(scenario.outcomes)
    wanted += f" {' or '.join(scenario.findings)}".rstrip()
    return Line(
        name=scenario.name,
        expected=wanted,
        came=_came(result),
        right=is_right(scenario, result),
    )


def is_right(scenario: Scenario, result: Result) -> bool:
    """The outcome, and the finding that explains it."""
    if result.outcome not in scenario.outcomes:
        return False
    errors = [f for f in result.findings if f.severity == "error"]
    graver = errors if result.outcome == FAIL else list(result.findings)
    found = [f for f in graver if any(_is_meant(f, words) for words in scenario.findings)]
    if scenario.findings and not found:
        return False
    return not scenario.alone or errors == found


def _is_meant(finding: Finding, words: str) -> bool:
    """Whether a finding is ``below-band copy``: its id, then what its evidence names."""
    id_, _, named = words.partition(" ")
    return finding.id == id_ and named in finding.evidence


def _came(result: Result) -> str:
    ids = Counter(f.id for f in result.findings if f.severity != "info")
    words = ", ".join(f"{count} {name}" if count > 1 else name for name, count in ids.items())
    why = result.reason if result.outcome not in (PASS, MEASURED, FAIL) else ""
    return "; ".join(each for each in (result.outcome, words, why) if each)[:110]


# ---- many machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Many machines of one kind, and how many may come out how."""

    ability: float
    noisy: float
    detected: float
    least_pass: float = 0.0
    most_pass: float = 1.0
    least_fail: float = 0.0
    most_fail: float = 1.0

    @property
    def name(self) -> str:
        """``ability 1.0, p 0.3, d 0.5``."""
        return f"ability {self.ability}, p {self.noisy}, d {self.detected}"


CROWDS = (
    Crowd(ability=1.0, noisy=0.0, detected=0.0, least_pass=0.999, most_fail=0.0),
    Crowd(ability=1.0, noisy=0.3, detected=0.5, least_pass=0.98, most_fail=0.0),
    Crowd(ability=1.0, noisy=0.5, detected=0.1, least_pass=0.88, most_fail=0.005),
    Crowd(ability=1.0, noisy=0.7, detected=0.3, least_pass=0.60, most_fail=0.01),
    Crowd(ability=0.8, noisy=0.0, detected=0.0, most_pass=0.0, least_fail=0.99),
    Crowd(ability=0.8, noisy=0.3, detected=0.5, most_pass=0.0, least_fail=0.85),
    Crowd(ability=0.8, noisy=0.5, detected=0.1, most_pass=0.0, least_fail=0.55),
    Crowd(ability=0.8, noisy=0.7, detected=0.3, most_pass=0.0),
)


def outcomes_of(crowd: Crowd, count: int = MACHINES) -> Counter[str]:
    """How many of ``count`` machines came out how."""
    rng = random.Random(1)

    def one() -> str:
        def speed(_: int) -> tuple[float, str | None]:
            noisy = rng.random() < crowd.noisy
            slowed = 1.0 + rng.gauss(0.0, 0.015) + (rng.uniform(0.05, 0.6) if noisy else 0.0)
            seen = _OTHERS if noisy and rng.random() < crowd.detected else None
            return crowd.ability / slowed, seen

        return judged_alone(speed, FLOOR)

    return Counter(one() for _ in range(count))


def crowd_line(crowd: Crowd, count: int = MACHINES) -> Line:
    """One line of the table for many machines."""
    found = outcomes_of(crowd, count)
    passed, failed = found[PASS] / count, found[FAIL] / count
    expected = f"PASS {crowd.least_pass:.1%} to {crowd.most_pass:.1%}, "
    expected += f"FAIL {crowd.least_fail:.1%} to {crowd.most_fail:.1%}"
    right = (
        crowd.least_pass <= passed <= crowd.most_pass
        and crowd.least_fail <= failed <= crowd.most_fail
    )
    came = ", ".join(f"{name} {found[name] / count:.1%}" for name in (PASS, FAIL, INCOMPLETE))
    name = f"{count} machines: {crowd.name}"
    return Line(name=name, expected=expected, came=came, right=right)


def scenarios() -> Iterator[Scenario]:
    """Every single machine of the table."""
    yield from healthy()
    yield from faulty()


def lines(words: str) -> Iterator[Line]:
    """The table, line by line, as far as the names hold ``words``."""
    for scenario in scenarios():
        if words in scenario.name:
            yield line_of(scenario)
    for crowd in CROWDS:
        if words in f"{MACHINES} machines: {crowd.name}":
            yield crowd_line(crowd)


def main(words: list[str] | None = None) -> int:
    """Print the table; 1 where a line is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="lines whose names hold these words")
    only = parser.parse_args(words).only
    wrong = Counter[bool]()
    print(f"{'':5s} {'machine':50s} {'right would be':44s} came out")
    for line in lines(only):
        wrong[line.right] += 1
        mark = "" if line.right else "WRONG"
        print(
            f"{mark:5s} {line.name:50.50s} {line.expected:44.44s} {line.came}",
            flush=True,
        )
    print(f"{wrong[True]} right, {wrong[False]} wrong")
    return 1 if wrong[False] or not wrong else 0


if __name__ == "__main__":
    sys.exit(main())
