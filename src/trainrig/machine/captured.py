"""Outputs of system tools in files of another machine, as the host that probes look at.

A file may be one tool's output or hold many of them, as nvidia-bug-report.log does.  Outputs are
recognised by a line that each has (captured.toml); everything else is `NOT_IN_FILE`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from trainrig.machine.fact import NOT_IN_FILE, Missing
from trainrig.machine.smart import smartctl_json
from trainrig.record import read_by, read_toml

SECTION_CHARS = 1 << 22
"""Limit of one output's size; what follows in its section is not read."""
_SECTION = re.compile(r"^(?:_{20,}|\*\*\* \S.*|\*{20,}|={30,})$")
"""Line between two outputs in nvidia-bug-report.log and in reports that print several."""


@read_by({"extra": "forbid"})
class _Output:
    name: str
    line: str
    answers: str
    source: str


@cache
def _outputs() -> tuple[tuple[_Output, re.Pattern[str]], ...]:
    path = Path(__file__).with_name("captured.toml")
    outputs = read_toml(path, tuple[_Output, ...], path.name, "output")
    return tuple((output, re.compile(output.line, re.MULTILINE)) for output in outputs)


def names_of_outputs(text: str) -> list[str]:
    """Return the names of the tools whose outputs are in a text: ``dmidecode``."""
    return [output.name for output, line in _outputs() if line.search(text)]


def sections(lines: Iterable[str]) -> Iterator[str]:
    """Cut a file's lines into sections of one output each."""
    section: list[str] = []
    num_chars = 0
    for line in lines:
        if _SECTION.match(line):
            yield "\n".join(section)
            section, num_chars = [], 0
        elif num_chars < SECTION_CHARS:
            section.append(line)
            num_chars += len(line) + 1
    yield "\n".join(section)


class CapturedHost:
    """A machine of which only outputs in files are known; it answers as `Host` does."""

    environment: Mapping[str, str] = {}

    def __init__(self) -> None:
        """Begin without any output."""
        self._answers: dict[str, str] = {}
        self.disk_names: list[str] = []
        """Names of the disks that smartctl reported on."""

    def add(self, section: str) -> bool:
        """Keep the outputs in a section of a file; return whether there is one."""
        names = [output for output, line in _outputs() if line.search(section)]
        for output in names:
            if output.answers == "smartctl":
                self._add_smart(section)
            else:
                self._answers.setdefault(output.answers, section)
        return bool(names)

    def _add_smart(self, section: str) -> None:
        """Keep a disk's report under the disk's name, else under its number among the reports."""
        report = smartctl_json(section)
        device = report.get("device")
        path = device.get("name") if isinstance(device, dict) else None
        name = str(path or report.get("model_name") or "disk").removeprefix("/dev/")
        while name in self.disk_names:
            name += "'"
        self.disk_names.append(name)
        self._answers[f"smartctl -j -H -A /dev/{name}"] = json.dumps(report)

    def read(self, path: str) -> str | Missing:
        """Return the text of a file, where it was captured."""
        return self._answers.get(path, NOT_IN_FILE)

    def run(self, *command: str, **_: object) -> str | Missing:
        """Return what a command printed, where that was captured."""
        return self._answers.get(" ".join(command), NOT_IN_FILE)

    def names(self, path: str) -> tuple[str, ...] | Missing:
        """Return that no folder is known."""
        return NOT_IN_FILE

    def resolve(self, path: str) -> str | Missing:
        """Return that no symbolic link is known."""
        return NOT_IN_FILE

    link_text = resolve

    def mode(self, path: str) -> int | Missing:
        """Return that no permission is known."""
        return NOT_IN_FILE

    capacity_bytes = mode

    def usable_threads(self) -> int | Missing:
        """Return that no affinity is known."""
        return NOT_IN_FILE
