"""Other tools' files, read into records: each format is one file with its spec, ``IMPORTER``.

importer     what an importer is, the file it is handed, and which importer reads a file
extract      numbers and records out of text and JSON, refused with their line where broken
"""

from trainrig.importers.importer import (
    Importer,
    ImportHints,
    Reading,
    importers,
    read_file,
    register,
)

__all__ = ["ImportHints", "Importer", "Reading", "importers", "read_file", "register"]
