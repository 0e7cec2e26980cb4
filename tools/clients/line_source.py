"""Reads lines of a file or standard input in short waits, so that the caller can handle deliveries in between."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from typing import BinaryIO

READ_BYTES = 64 * 1024
LINE_BYTES_MAX = 256 * 1024 * 1024
"""Above any broker's limit for a record: a file without newlines must not fill the memory."""


class LineTooLong(ValueError):
    """A line has no newline within LINE_BYTES_MAX."""


def lines_of(stream: BinaryIO, wait_s: float) -> Iterator[bytes | None]:
    """Yields each line without its newline, and None whenever no line arrived within `wait_s`. The last line needs no newline.

    Raises LineTooLong, and OSError if the stream cannot be read.
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
            # Bypasses the stream's buffer: `select` does not report bytes that are already buffered.
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
    """The file descriptor; None for a stream that is not a file, such as a test's."""
    try:
        return stream.fileno()
    except OSError:
        return None
