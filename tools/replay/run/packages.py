"""The project's code as a zip, which Spark sends to the executors of a cluster (`spark.submit.pyFiles`)."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

PACKAGES = ("protocol", "tools")
KINDS = ("*.py", "*.sql", "*.js", "*.css", "*.html")
EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The time of all files in the zip, so that the same code gives the same zip."""


def write_packages(path: Path) -> None:
    """Writes the Python files of PACKAGES, the queries, and what the report is made of, as they are installed here."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            spec = importlib.util.find_spec(package)
            assert spec is not None
            for location in spec.submodule_search_locations or []:
                for file in sorted(found for kind in KINDS for found in Path(location).rglob(kind)):
                    name = str(Path(package) / file.relative_to(location))
                    archive.writestr(zipfile.ZipInfo(name, EARLIEST), file.read_bytes(), zipfile.ZIP_DEFLATED)
