"""Experiments as the file that gives them again, every default filled in.

A run keeps it as experiments.toml: ``trainrig train RUN/experiments.toml`` trains the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from trainrig.train.experiment import Experiment
from trainrig.train.files import AUTO, FIELDS

NAME = "experiments.toml"
_TITLE = "# What was trained, every default filled in; trainrig train FILE trains it again.\n"


def file_of(experiments: Sequence[Experiment], texts: Mapping[str, str]) -> str:
    """The file of these experiments; ``texts``: which text a folder of data holds, by its hash."""
    tables = [keys_of(each) for each in experiments]
    shared = {
        key: value
        for key, value in tables[0].items()
        if all(key in table and table[key] == value for table in tables)
    }
    own = [{key: value for key, value in table.items() if key not in shared} for table in tables]
    notes = "".join(f"# text of {digest}: {folder!r}\n" for folder, digest in texts.items())
    listed: dict[str, Any] = {"experiment": own} if any(own) else {}
    return _TITLE + notes + tomli_w.dumps(shared | listed)


def keys_of(own: Experiment) -> dict[str, Any]:
    """An experiment in the words of a file; what is empty stays out."""
    found = {key: getattr(own, field) for key, field in FIELDS.items()}
    found["warmup"] = own.warmup_steps
    if own.auto_batch:
        found["batch_size"] = AUTO
    return {key: value for key, value in found.items() if value != ""}
