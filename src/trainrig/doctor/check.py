"""A check: what it reads of a snapshot, what it finds there, and when it cannot look.

`HealthCheck.judge` yields findings with what was seen and the exact fix; why it happens, what it
risks and how to undo the fix stand once for each kind of finding in findings.toml and are added
here.  Each check declares the facts that its healthy answer rests on; where one of them could not
be read, a check without findings is "not checkable" with the reason: not knowing is neither a fault
nor a pass.  A check of what the machine does not have (a GPU, modules of its own) is "not
applicable"; one that finds only what is worth knowing is a "note".

Severity.  error (a fault): the machine cannot train as it is, its memory or data are damaged, or
anyone on its network may run programs on it.  warning: it can train, but slower or less surely than
it should.  info: worth knowing, no fault.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from trainrig.catalog.lookup import chip_by_pci_id
from trainrig.machine.snapshot import (
    NOT_IN_FILE,
    NOT_READ,
    Gpu,
    Missing,
    PciGpu,
    Snapshot,
    value_or,
)
from trainrig.record import Finding, Severity, by_severity

State = Literal["healthy", "note", "warning", "fault", "not applicable", "not checkable"]
NVIDIA_ID, AMD_ID, HABANA_ID = "10de:", "1002:", "1da3:"
ENVIRONMENT = "software.python"
"""Fact that says that environment variables were read: they are a mapping, which cannot be missing;
files of another machine state no interpreter."""
_STATES: dict[str, State] = {"error": "fault", "warning": "warning", "info": "note"}


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """Answer of `HealthCheck.needs`: the machine has nothing that the check is about."""

    reason: str


NO_GPU = NotApplicable("no GPU here")


def needs_nothing(_: Snapshot) -> None:
    """Impose no condition on a check (`HealthCheck.needs`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """Question about the machine, and the function that answers it."""

    id: str
    title: str
    """The question, as a statement that holds on a healthy machine."""
    reads: str
    """Files, programs and libraries that the answer is read from."""
    finds: tuple[str, ...]
    """Ids of what it can find."""
    judge: Callable[[Snapshot], Iterable[Finding]]
    facts: tuple[str, ...] = ()
    """Values of the snapshot that a healthy answer rests on, by path: ``gpus.ecc.remap_failed``.

    Of a list each element must state its value, of a path that ends in ``*`` one of them.  ``a|b``
    is satisfied by either.  A path that ends in ``?`` also takes the reason why a program is absent
    for an answer.  Without any of its facts a check does not look at all."""
    needs: Callable[[Snapshot], object] = needs_nothing
    """Condition to look at all: `NotApplicable` says that there is nothing to look at, `Missing`
    why the check cannot look."""
    note: Callable[[Snapshot], str] = lambda _: ""
    """Text of a healthy answer, in place of a title that says too much; empty: the title."""
    root: str = ""
    """Facts that only root can read."""
    looks_without_root: bool = False
    """True where the check looks without root as well, and root adds to that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """State of one check, with its findings or the reason why it could not look."""

    check: HealthCheck
    state: State
    reason: str
    """Why it could not look or need not, or what a healthy answer says in place of the title."""
    findings: tuple[Finding, ...] = ()


def answer(check: HealthCheck, snapshot: Snapshot) -> Answer:
    """Ask one check of a snapshot."""
    needed = check.needs(snapshot)
    if isinstance(needed, NotApplicable):
        return Answer(check=check, state="not applicable", reason=needed.reason)
    if isinstance(needed, Missing):
        return Answer(check=check, state="not checkable", reason=needed.reason)
    facts = [{path: _values(snapshot, path) for path in fact.split("|")} for fact in check.facts]
    unknown = [fact for fact in facts if not any(_is_known(*item) for item in fact.items())]
    has_a_value = any(_is_known("*", values) for fact in facts for values in fact.values())
    judged = check.judge(snapshot) if has_a_value or not facts else ()
    findings = by_severity(explained(finding) for finding in judged)
    if unknown and not findings:
        values = [value for values in unknown[0].values() for value in values]
        reason = next(value.reason for value in values if isinstance(value, Missing))
        return Answer(check=check, state="not checkable", reason=reason)
    state = _STATES[findings[0].severity] if findings else "healthy"
    return Answer(check=check, state=state, reason=check.note(snapshot), findings=findings)


def _is_known(path: str, values: Sequence[object]) -> bool:
    is_missing = [isinstance(value, Missing) for value in values]
    return not all(is_missing) if path.endswith("*") else not any(is_missing)


def _values(value: Any, path: str) -> list[Any]:
    """Return the values at a path, one for each element of the lists that it leads through."""
    name, _, rest_of_path = path.rstrip("*").partition(".")
    value = getattr(value, name.rstrip("?"))
    if isinstance(value, Missing):
        is_answer = name.endswith("?") and value not in (NOT_READ, NOT_IN_FILE)
        return [value.reason if is_answer else value]
    if value == "":
        return [NOT_IN_FILE]
    if not rest_of_path:
        return [value]
    if not isinstance(value, tuple):
        return _values(value, rest_of_path)
    values = [known for element in value for known in _values(element, rest_of_path)]
    return values or [Missing(f"no {name} listed")]


def finding(id: str, severity: Severity, evidence: str, fix: str, **more: Any) -> Finding:
    """Make a finding; ``more`` goes before the texts that findings.toml has for the id."""
    return Finding(id=id, severity=severity, evidence=evidence, fix=fix, **more)


def explained(finding: Finding) -> Finding:
    """Return a finding with its cause, its risk and how to undo the fix, where it does not say."""
    known = meanings().get(finding.id, {})
    empty = {name: known[name] for name in known if not getattr(finding, name)}
    return dataclasses.replace(finding, **empty) if empty else finding


@cache
def meanings() -> Mapping[str, Mapping[str, Any]]:
    """Return finding id → its cause, risk, undo and whether the fix needs a reboot."""
    return _table("findings.toml")


@cache
def meanings_by_number(name: str) -> Mapping[int, Mapping[str, str]]:
    """Return number → meaning and next step of a table whose keys list numbers: ``1-4, 6``.

    Args:
        name: File in this folder: ``xid.toml``, ``sxid.toml``.
    """
    by_number = {}
    for key, row in _table(name).items():
        for part in key.split(","):
            first, _, last = part.strip().partition("-")
            by_number.update(dict.fromkeys(range(int(first), int(last or first) + 1), row))
    return by_number


def _table(name: str) -> Mapping[str, Mapping[str, Any]]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return {key: value for key, value in tomllib.loads(text).items() if isinstance(value, dict)}


# ---- what several checks look at


def needs_health(part: str) -> Callable[[Snapshot], object]:
    """Require a field of `Health` (`HealthCheck.needs`): ``network``, ``driver.loaded``."""

    def read(snapshot: Snapshot) -> object:
        value: object = snapshot.health
        for name in part.split("."):
            if isinstance(value, Missing):
                break
            value = getattr(value, name)
        return Missing("not looked at") if value == NOT_READ else value

    return read


def device_name(device: PciGpu) -> str:
    """Return the catalog's name, else the system's, else the id."""
    chip = chip_by_pci_id(device.pci_id)
    return chip.name if chip is not None else value_or(device.name, f"device {device.pci_id}")


def devices(snapshot: Snapshot) -> list[PciGpu]:
    """Return the devices on the bus that one would train on.

    Left out are integrated graphics, and other makers' processing accelerators (class 12), such as
    the NPU of a laptop.
    """
    return [
        device
        for device in value_or(snapshot.pci_gpus, ())
        if device.pci_id.startswith((NVIDIA_ID, HABANA_ID))
        or (device.pci_class.startswith("12") and device.pci_id.startswith(AMD_ID))
        or chip_by_pci_id(device.pci_id) is not None
    ]


def gpus_of(snapshot: Snapshot) -> tuple[Gpu, ...]:
    """Return the GPUs that a driver describes; none where no driver answers."""
    return value_or(snapshot.gpus, ())


def needs_gpus(snapshot: Snapshot) -> object:
    """Require a GPU that a driver describes (`HealthCheck.needs`)."""
    if isinstance(snapshot.gpus, Missing):
        return snapshot.gpus if devices(snapshot) else NO_GPU
    return snapshot.gpus or NO_GPU


def needs_devices(snapshot: Snapshot) -> object:
    """Require a GPU on the bus or in the driver's list (`HealthCheck.needs`)."""
    if gpus_of(snapshot) or devices(snapshot):
        return None
    return snapshot.pci_gpus if isinstance(snapshot.pci_gpus, Missing) else NO_GPU


def is_mobile(gpu: Gpu) -> bool:
    """Return whether it is a laptop's GPU, which is soldered and sleeps to save the battery."""
    return "Laptop" in value_or(gpu.name, "") or "Max-Q" in value_or(gpu.name, "")


def in_container(snapshot: Snapshot) -> bool:
    """Return whether the program runs in a container."""
    return value_or(snapshot.host.container, "none") != "none"


def numbers(gpus: Iterable[Gpu]) -> str:
    """Return the numbers of GPUs as text: ``GPU 0, 3``."""
    return f"GPU {', '.join(str(gpu.index) for gpu in gpus)}"


def version_of(value: object) -> tuple[int, int] | None:
    """Return the first two numbers of a version; None where there are none."""
    parts = value.split(".") if isinstance(value, str) else []
    if len(parts) < 2 or not all(part.isdecimal() and len(part) < 6 for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])
