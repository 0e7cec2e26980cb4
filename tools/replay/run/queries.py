"""The queries of the analysis, the verdict and the imports: SQL files beside the modules, also if Spark imports them from a zip."""

from __future__ import annotations

import re
from importlib import resources


def query(name: str, package: str | None = __package__) -> str:
    return resources.files(package or "").joinpath(f"{name}.sql").read_text(encoding="utf-8")


def views(name: str, package: str | None = __package__) -> dict[str, str]:
    """View -> its query, of a file in which each view starts with a line `-- view NAME`."""
    _, *parts = re.split(r"^-- view (\w+)$", query(name, package), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))
