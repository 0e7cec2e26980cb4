"""Text tables."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.plain_text import escaped


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns two spaces apart."""
    rows = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
