"""Where reading starts: the values of `--offset`."""

from __future__ import annotations

import pytest

from tools.clients.starts import EARLIEST, LATEST, NoStart, Start, StartKind, first_offset, parse_start


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", EARLIEST),
        ("beginning", EARLIEST),
        ("latest", LATEST),
        ("end", LATEST),
        ("0", Start(StartKind.OFFSET, 0)),
        ("17", Start(StartKind.OFFSET, 17)),
        ("-5", Start(StartKind.LAST, 5)),
        ("@1763719200000", Start(StartKind.TIME, 1763719200000)),
        ("@2026-11-21T10:15:00Z", Start(StartKind.TIME, 1795256100000)),
        ("@20261121", Start(StartKind.TIME, 1795219200000)),
    ],
)
def test_starts(text: str, start: Start) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize("text", ["", "-", "--5", "x", "1.5", "٣", "@", "@soon", "@1969-01-01", "9" * 20, "9" * 19])
def test_bad_starts(text: str) -> None:
    with pytest.raises(NoStart):
        parse_start(text)


@pytest.mark.parametrize(
    ("start", "offset"),
    [
        (EARLIEST, 10),
        (LATEST, 20),
        (Start(StartKind.OFFSET, 10), 10),
        (Start(StartKind.OFFSET, 20), 20),
        (Start(StartKind.OFFSET, 9), None),
        (Start(StartKind.OFFSET, 21), None),
        (Start(StartKind.LAST, 0), 20),
        (Start(StartKind.LAST, 3), 17),
        (Start(StartKind.LAST, 300), 10),
    ],
)
def test_first_offsets(start: Start, offset: int | None) -> None:
    assert first_offset(start, 10, 20) == offset
