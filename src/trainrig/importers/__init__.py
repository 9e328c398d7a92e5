"""Other tools' files, read into records: each format is one file with its spec, ``IMPORTER``.

importer     what an importer is, the file it is handed, and which importer reads a file
extract      numbers and records out of text and JSON, refused with their line where broken
"""

from trainrig.importers.importer import (
    Given,
    Importer,
    Reading,
    importers,
    read_file,
    register,
)

__all__ = ["Given", "Importer", "Reading", "importers", "read_file", "register"]
