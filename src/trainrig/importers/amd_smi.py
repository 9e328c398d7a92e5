"""amd-smi static and rocm-smi -a as JSON: what AMD's driver says of each GPU.

Read by the readers that ask these tools on this machine (`machine.amd`).

Source: github.com/ROCm/amdsmi amdsmi_cli, github.com/ROCm/rocm_smi_lib; ROCm 5 to 7.
"""

from __future__ import annotations

from collections.abc import Callable

from trainrig.importers.extract import device_name, point
from trainrig.importers.file import FilePart
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.spelling import marks_of
from trainrig.machine.amd import parse_amd_smi, parse_rocm_smi
from trainrig.machine.snapshot import GPU_KEYS, Gpu, Missing
from trainrig.record import Record

_METRICS = (
    ("power", "W", "power_w"),
    ("power_limit", "W", "power_limit_w"),
    ("sm_clock", "Hz", "sm_clock_hz"),
    ("temperature", "°C", "temperature_c"),
    ("memory_used", "B", "memory_used_bytes"),
    ("memory_total", "B", "memory_total_bytes"),
)


def _reader(
    tool: str, parse: Callable[[str], tuple[Gpu, ...] | Missing]
) -> Callable[[FilePart, ImportHints], Reading]:
    def read(file: FilePart, _: ImportHints) -> Reading:
        value = file.json  # refuses a broken one with its line
        text = file.text[file.json_start :]
        file.use_all()
        gpus = parse(text)
        if isinstance(gpus, Missing) or not value:
            reason = gpus.reason if isinstance(gpus, Missing) else "it is empty"
            raise file.refuse(file.lines[0][0], reason)
        records = [record for gpu in gpus for record in _records(file, tool, gpu)]
        return Reading(gpus=gpus, records=records)

    return read


def _records(file: FilePart, tool: str, gpu: Gpu) -> list[Record]:
    name = device_name(None if isinstance(gpu.name, Missing) else gpu.name)
    values = {key: GPU_KEYS.get(gpu, key) for _, _, key in _METRICS}
    return [
        point(
            file,
            file.lines[0][0],
            "gpu-state",
            {"tool": tool},
            (metric, unit),
            float(values[key]),
            device=name or "GPU",
            index=gpu.index,
        )
        for metric, unit, key in _METRICS
        if not isinstance(values[key], Missing)
    ]


_DEFINITION = "what the driver said at one moment; values that the tool does not print are missing"

IMPORTERS = (
    Importer(
        name="amd-smi",
        title="state of each AMD GPU (amd-smi static --json)",
        order=140,
        marks=marks_of("amd-smi"),
        read=_reader("amd-smi", parse_amd_smi),
        definition=_DEFINITION,
        judged_by="the doctor's checks of a GPU",
        source="github.com/ROCm/amdsmi",
        tested_on=("amd-smi-static.json",),
    ),
    Importer(
        name="rocm-smi",
        title="state of each AMD GPU (rocm-smi -a --json)",
        order=141,
        marks=marks_of("rocm-smi"),
        read=_reader("rocm-smi", parse_rocm_smi),
        definition=_DEFINITION,
        judged_by="the doctor's checks of a GPU",
        source="github.com/ROCm/rocm_smi_lib",
        tested_on=("rocm-smi.json",),
    ),
)
