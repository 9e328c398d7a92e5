"""The names that a user types into files and commands: src/trainrig/language/input_keys.txt.

    python tools/input_keys.py --write

A message that names one shows it as it is typed, in every language.  The names come from what reads
the files: the fields of the types that check them, the columns of the tables, the verbs.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import TypeAdapter

from trainrig.catalog import chip_file, servers
from trainrig.cli.main import VERBS
from trainrig.cli.predict_options import case_columns
from trainrig.language.catalogue import INPUT_KEYS
from trainrig.prediction.cases.columns import ID, MEASURED
from trainrig.procure import parts, parts_list, price_list
from trainrig.train.config_file import KEYS as FILE_KEYS


def input_keys() -> dict[str, tuple[str, ...]]:
    """Return the names by the file, or the command line, that they are typed into."""
    kinds = parts.KINDS
    return {
        "experiments": tuple(FILE_KEYS),
        "parts list": (*kinds, *fields_of(parts_list._Head), *fields_of(parts_list._Entry)),
        "parts": tuple(name for kind in kinds.values() for name in fields_of(kind)),
        "chip": (*fields_of(chip_file._File), *fields_of(servers._OwnChip)),
        "cluster": tuple(fields_of(servers._Cluster)),
        "prices": tuple(price_list.COLUMNS),
        "cases": (ID, *(column.name for column in case_columns()), *MEASURED),
        "verbs": tuple(word for verb in VERBS for word in verb.split()),
    }


def fields_of(kind: Any) -> Iterator[str]:
    """The keys that a type is read from, those of types within it too."""
    if dataclasses.is_dataclass(kind):
        yield from (field.name for field in dataclasses.fields(kind))
        return
    schema = TypeAdapter(kind).json_schema(by_alias=True)
    for part in (schema, *schema.get("$defs", {}).values()):
        yield from part.get("properties", {})


def text_of(groups: Iterable[Iterable[str]]) -> str:
    """The file's content: each name once, in order."""
    return "".join(f"{name}\n" for name in sorted({name for group in groups for name in group}))


def main() -> int:
    """Write the file, or say whether it is as it should be; exit 1 where it is not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    wanted = text_of(input_keys().values())
    if parser.parse_args().write:
        INPUT_KEYS.write_text(wanted, encoding="utf-8")
        return 0
    return int(INPUT_KEYS.read_text(encoding="utf-8") != wanted)


if __name__ == "__main__":
    raise SystemExit(main())
