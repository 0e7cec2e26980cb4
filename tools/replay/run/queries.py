"""The queries of the analysis and of the verdict: the SQL files beside this module, also if Spark imports it from a zip."""

from __future__ import annotations

import re
from importlib import resources


def query(name: str) -> str:
    return resources.files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def views(name: str) -> dict[str, str]:
    """View -> its query, of a file in which each view starts with a line `-- view NAME`."""
    _, *parts = re.split(r"^-- view (\w+)$", query(name), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))
