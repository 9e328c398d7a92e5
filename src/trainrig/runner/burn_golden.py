"""Golden digests: what training steps gave on devices of one kind and software, to compare with.

A file of JSON lines, one a kind: ``key`` (device model, dtype, what torch is built on, threads of a
processor), ``names`` of the tensors, ``steps`` with their digests, ``added`` (a date).  Digests of
one key are equal on sound devices: the same kernels do the same arithmetic in the same order.  A
kind that the file lacks is added by a burn that found nothing wrong; what it has is never changed.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainrig.analysis.burn_facts import DIGESTS
from trainrig.benchmarks.burn import BENCHMARK
from trainrig.errors import DataError, first_problem
from trainrig.record import Outcome
from trainrig.safe_read import read_settings
from trainrig.store import read_run, write_atomic

_OF_SOFTWARE = ("torch", "cuda", "hip", "cudnn", "capability", "threads")
_Signed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class _Line(BaseModel):
    """One line of a golden file."""

    model_config = ConfigDict(strict=True, extra="forbid")
    key: dict[str, str | int | None]
    names: list[str] = Field(min_length=1)
    steps: list[list[_Signed]] = Field(min_length=1)
    added: str = ""


_MOST_BYTES = 1 << 28


@dataclass(slots=True)
class Golden:
    """The digests of a file; none where no file was named."""

    path: Path | None
    lines: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path | None) -> Golden:
        """Read stored digests; a missing file is empty.  Raises DataError for other files."""
        if path is None or not path.exists():
            return cls(path)
        try:
            texts = read_settings(path, _MOST_BYTES).decode("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read {path}: {error}") from None
        lines = []
        for number, text in enumerate(texts, start=1):
            try:
                lines.append(_Line.model_validate_json(text).model_dump())
            except ValidationError as error:
                location = f"{path}:{number}: {first_problem(error, 'the line')}"
                raise DataError(
                    location, "a file that trainrig burn --golden has written"
                ) from None
        return cls(path, lines)

    def find(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the stored digests of this hardware and software, or None."""
        return next((line for line in self.lines if line["key"] == dict(key)), None)

    def add_run(self, run: Path, outcome: Outcome) -> None:
        """Add the kinds that the file lacks, of a run that found nothing wrong."""
        if self.path is None or outcome is not Outcome.PASS:
            return
        before = len(self.lines)
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        for row in read_run(run).series.get(DIGESTS, ()):
            if not row.get("golden") and self.find(row["key"]) is None:
                line = {name: row[name] for name in ("key", "names", "steps")}
                self.lines.append({**line, "added": today})
        if len(self.lines) > before:
            texts = [json.dumps(line, separators=(",", ":")) for line in self.lines]
            write_atomic(self.path, "\n".join(texts) + "\n")


def key_of(device: str, dtype: str | None, ready: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hardware and software on which digests depend, as a key."""
    key: dict[str, Any] = {"device": device, "dtype": dtype, "version": BENCHMARK.version}
    key |= {name: ready.get(name) for name in _OF_SOFTWARE}
    if device != ready.get("name", device):
        key["named"] = ready["name"]
    if ready.get("capability") is None:  # a GPU's results do not depend on the host's threads
        del key["threads"]
    return key
