"""Print the JSON schema of a record, as the code has it.

    python tools/record_schema.py > docs/record.schema.json

Run it after a change to src/trainrig/record.py; tests/unit/test_record.py compares the two.
"""

from __future__ import annotations

import json
import sys

from trainrig.record import SCHEMA_VERSION, json_schema


def schema_text() -> str:
    """The file's text: JSON Schema 2020-12, indented, with a newline at its end."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"trainrig record, schema version {SCHEMA_VERSION}",
    }
    schema = {**head, **{name: value for name, value in json_schema().items() if name != "title"}}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
