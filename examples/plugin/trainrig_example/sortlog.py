"""The importer ``sortlog``: ``sorted 1048576 fp32 elements in 71.3 ms on Example One``."""

import re

from trainrig.importers import Importer, ImportHints, Reading
from trainrig.importers.extract import device_name, point, to_count, to_number
from trainrig.importers.file import FilePart
from trainrig.importers.runs import Marks

LINE = re.compile(r"^sorted (\d+) fp32 elements in (\S+) ms on (.+)$")


def read(file: FilePart, given: ImportHints) -> Reading:
    """Return a record for each line; one that is broken is refused with its number."""
    records = []
    for number, line in file.lines:
        if not line.startswith("sorted "):
            continue
        if (found := LINE.match(line)) is None:
            raise file.refuse(number, "a line of results that is broken off")
        file.use(number)
        num_elements = to_count(file, number, found[1], "number of elements")
        seconds = to_number(file, number, found[2], "time") / 1e3
        if seconds <= 0.0:
            raise file.refuse(number, "no time that a sort takes")
        case = {"num_elements": num_elements}
        rate = ("element_rate", "element/s")
        device = device_name(given.device or found[3])
        records.append(
            point(file, number, "sort", case, rate, num_elements / seconds, device=device)
        )
    return Reading(records=records)


IMPORTER = Importer(
    name="sortlog",
    title="how long sorts took (text)",
    order=200,
    marks=Marks(near=("sorted ",), line=r"^sorted \d+ fp32 elements in "),
    read=read,
    definition="elements / time of one sort, on one device",
    judged_by="nothing: no target is known",
    source="this example",
    tested_on=(),
)
