"""`trainrig catalog`: what stands on stdout, what a wrong name ends in."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from trainrig.catalog.fields import FIELDS, chip_dict
from trainrig.catalog.load import load_chips
from trainrig.catalog.lookup import require_chip
from trainrig.cli.catalog import command
from trainrig.errors import UsageError
from trainrig.report.chip_report import compare_document, list_document
from trainrig.report.document import Table
from trainrig.report.render.markdown import to_markdown


def run(*args: str, columns: int = 100) -> Result:
    return CliRunner().invoke(command, list(args), env={"COLUMNS": str(columns)})


def words(result: Result, start: str) -> list[str]:
    """The words of the first line that begins with ``start``."""
    assert result.exit_code == 0, result.exception
    lines = (line.strip() for line in result.output.splitlines())
    return next(line for line in lines if line.startswith(start)).split()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_list_fits_the_terminal_and_cuts_nothing(columns: int) -> None:
    result = run(columns=columns)
    assert words(result, "RTX 4090 ")[2:] == ["2022", "24", "1008", "450", "82.6", "165.2", "330.3"]
    assert "…" not in result.output
    assert max(map(len, result.output.splitlines())) <= columns
    for chip in load_chips():
        assert chip.name in result.output


def test_one_chip_with_its_sources() -> None:
    result = run("RTX", "4090")  # a name without quotes
    assert words(result, "fp16, fp32 accumulate")[4:] == ["165.2", "TFLOPS", "ada"]
    assert words(result, "fp16, fp16 accumulate")[4:6] == ["330.3", "TFLOPS"]
    assert words(result, "bandwidth") == ["bandwidth", "1008", "GB/s", "ada"]
    assert words(result, "INT32 cores")[-1] == "int32?"
    assert "ada: NVIDIA Ada GPU Architecture, whitepaper v2.1" in result.output
    assert run("10de:2684").output == result.output


def test_comparison_keeps_accumulate_types_apart_and_shows_ratios() -> None:
    result = run("--compare", "RTX 4090", "V100 SXM2 16GB")
    assert words(result, "fp16, fp32 accumulate")[-3:] == ["125", "TFLOPS", "×0.76"]
    assert words(result, "fp16, fp16 accumulate")[-3:] == ["125", "TFLOPS", "×0.38"]
    assert words(result, "fp8, fp32 accumulate")[-1] == "unknown"
    assert "V100 SXM2 16GB: No tensor unit" in result.output


def test_json_of_one_and_of_a_comparison_is_an_object_and_of_all_an_array() -> None:
    one = json.loads(run("NVIDIA GeForce RTX 4090", "--json").output)
    assert one["name"] == "RTX 4090"
    assert one["bandwidth_bytes_per_s"] == pytest.approx(1008e9)
    assert one["pci_ids"] == ["10de:2684"]
    rates = {(p["dtype"], p["accumulate"], p["unit"]): p["rate"] for p in one["peaks"]}
    assert rates["fp16", "fp32", "tensor"] == pytest.approx(165.2e12)
    assert one["sources"]["tensor.fp16.fp32"]["verified"] is True
    assert one["sources"]["bandwidth_bytes_per_s"]["date"] == "2026-11-20"
    assert len(json.loads(run("--json").output)) == len(load_chips())
    both = json.loads(run("--json", "--compare", "RTX 4090", "RTX 4090 D").output)
    assert both["schema"] == "trainrig.catalog-compare/1"
    assert [chip["name"] for chip in both["chips"]] == ["RTX 4090", "RTX 4090 D"]


def test_an_unknown_value_is_null_and_every_source_is_that_of_a_field() -> None:
    keys = {field.json_name for field in FIELDS}
    for chip in load_chips():
        content = chip_dict(chip)
        peaks = {found.field for found in chip.peaks}
        sources = content["sources"]
        assert isinstance(sources, dict)
        assert set(sources) <= keys | peaks
        for name in keys - set(sources):
            assert content[name] in (None, [])


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["RTX"], "RTX is one of:"),
        (["RTX 4900"], "unknown chip: RTX 4900"),
        (["--compare", "RTX 4090"], "two chips or more"),
        (["--compare", "RTX 4090", "TPU"], "TPU is one of:"),
        (["H100 MIG 1g", "--json"], "unknown chip"),
    ],
)
def test_a_name_that_leads_nowhere_is_a_usage_error(args: list[str], part: str) -> None:
    result = run(*args)
    assert isinstance(result.exception, UsageError)
    assert part in result.exception.message
    assert result.output == ""


def test_the_process_ends_with_2_one_line_and_a_hint() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainrig", "catalog", "RTX 4900"],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "unknown chip: RTX 4900" in done.stderr
    assert "RTX 4090" in done.stderr
    assert "Traceback" not in done.stderr


def test_neither_torch_nor_a_terminal_library_is_needed_for_json() -> None:
    code = (
        "import sys; from trainrig.cli.catalog import command\n"
        "command(['RTX 4090', '--json'], standalone_mode=False)\n"
        "print(sorted({'torch', 'numpy', 'rich', 'altair', 'scipy'} & set(sys.modules)),"
        " file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, text=True, timeout=60
    )
    assert done.stderr.strip() == "[]"


def test_chips_side_by_side_begin_with_what_training_asks_about() -> None:

    chips = [require_chip(name) for name in ("RTX 4090", "A100 SXM4 80GB")]
    table = compare_document(chips).blocks[0]
    assert isinstance(table, Table)
    labels = [cells[0].text for _, cells in table.lines()]
    assert labels[0].startswith("bf16")
    first = labels[: labels.index("16 bit for each watt") + 1]
    assert first[-4:] == ["memory", "bandwidth", "TDP", "16 bit for each watt"]
    cells = dict(zip(labels, (cells for _, cells in table.lines()), strict=True))
    assert cells["16 bit for each watt"][2].small == "×2.12"


def test_a_figure_that_is_not_verified_neither_wins_nor_loses() -> None:
    chips = (require_chip("A800 PCIe 80GB"), require_chip("A100 PCIe 80GB"))
    for ordered in (chips, chips[::-1]):
        text = to_markdown(compare_document(ordered))
        watts = next(line for line in text.splitlines() if "16 bit for each watt" in line)
        assert "?" in watts and "×" not in watts
        assert "×1.00" in next(line for line in text.splitlines() if "bandwidth" in line)


def test_a_cell_of_the_list_in_another_unit_than_its_heading_keeps_it() -> None:
    chip = require_chip("RTX 4090")
    small = dataclasses.replace(chip, memory=dataclasses.replace(chip.memory, size=512 << 20))
    (listed,) = (block for block in list_document([small]).blocks if isinstance(block, Table))
    assert "512 MiB" in listed.rows[0]
