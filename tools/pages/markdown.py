"""Text and tables in Markdown, as a CI shows them: what comes from outside is text, and never markup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any


def plain(value: Any) -> str:
    """Text from outside: on one line, and neither markup nor HTML."""
    one_line = " ".join(str(value).split())
    return re.sub(
        r"([\\`*_{}\[\]|#~])", r"\\\1", one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    )


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """`header` is Markdown; the rows are plain text."""
    lines = [header, ["---"] * len(header), *([plain(value) for value in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
