"""Words that options take for programs and for the age of software."""

from __future__ import annotations

from trainrig.workload.layout.groups import SOFTWARE
from trainrig.workload.programs import documented
from trainrig.workload.programs.years import years

NAMES = tuple(documented())
"""Programs whose defaults have a source; others are taken, too (`known_programs`)."""
SOFTWARES = (*SOFTWARE, *years())
