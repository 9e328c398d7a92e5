"""JSON of another shape is refused in one line without Python's words, with a way out."""

from __future__ import annotations

from pathlib import Path


def test_a_list_where_a_table_is_due_is_called_a_list(trainrig, tmp_path: Path) -> None:
    path = tmp_path / "diag.json"
    path.write_text('{\n"DCGM GPU Diagnostic": [{"category": "Deployment", "tests": []}]\n}\n')
    code, _, err = trainrig("import", str(path))
    assert code == 2 and "DCGM GPU Diagnostic is a list, not a table" in err
    assert "hint: give the JSON as the tool printed it" in err
