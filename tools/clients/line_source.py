"""Lines of a file or of standard input, without ever waiting long: deliveries are looked after between two lines."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from typing import BinaryIO

READ_BYTES = 64 * 1024
LINE_BYTES_MAX = 256 * 1024 * 1024
"""No broker takes a record as large: a file without newlines must not fill the memory."""


class LineTooLong(ValueError):
    """No newline within LINE_BYTES_MAX."""


def lines_of(stream: BinaryIO, wait_s: float) -> Iterator[bytes | None]:
    """Each line without its newline; None whenever no line came within `wait_s` seconds. The last may lack its newline.

    Raises LineTooLong, and OSError when the stream cannot be read.
    """
    descriptor = _descriptor(stream)
    rest: list[bytes] = []
    rest_bytes = 0
    while True:
        if descriptor is None:
            chunk = stream.read(READ_BYTES)
        elif not select.select([descriptor], [], [], wait_s)[0]:
            yield None
            continue
        else:
            # Not through the stream's buffer: a byte left in there would not wake the select.
            chunk = os.read(descriptor, READ_BYTES)
        if not chunk:
            break
        first, *others = chunk.split(b"\n")
        rest.append(first)
        rest_bytes += len(first)
        if rest_bytes > LINE_BYTES_MAX:
            raise LineTooLong(f"longer than {LINE_BYTES_MAX} bytes")
        for line in others:
            yield b"".join(rest)
            rest, rest_bytes = [line], len(line)
    if any(rest):
        yield b"".join(rest)


def _descriptor(stream: BinaryIO) -> int | None:
    """None for a stream that is no file, such as a test's."""
    try:
        return stream.fileno()
    except OSError:
        return None
