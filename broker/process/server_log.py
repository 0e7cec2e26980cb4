"""The server log: the broker's messages on stderr, one line per message, whatever the message contains.

* Text from outside is escaped here, for all modules: a client's newline cannot forge a line, no escape sequence reaches a terminal.
* Lines of one kind (from one place in the code) are limited, so that a client that is refused a thousand times a second does not
  cause a thousand lines. Omitted lines are counted, and their number is logged.
* A log in its own file is rotated. File descriptors 1 and 2 refer to that file, so it also has the output of libraries.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.process.rotated_file import SERVER_LOG_ROTATION, Rotation, open_to_append, put_aside
from protocol.plain_text import escaped, escaped_lines, shortened

BURST = 100
"""Lines of one kind that may be written at once."""
LINES_PER_S = 1.0
"""Lines of one kind that may be written per second after a burst."""
MESSAGE_LENGTH_MAX = 4096
"""Limit of characters in a message, and in each line of a traceback. The number of a traceback's lines is not limited."""
REPORT_INTERVAL_S = 10.0
"""How often omitted lines are reported if no further line of their kind is written."""
LAYOUT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
STDOUT, STDERR = 1, 2


class PlainFormatter(logging.Formatter):
    """Escapes and shortens the message. The lines of a traceback are indented, so that none looks like a line of the log."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__(LAYOUT)
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = escaped(shortened(record.message, MESSAGE_LENGTH_MAX))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(stack_info)


class LineLimit:
    """A token bucket for each kind of line."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._kinds: dict[tuple[str, int], _Kind] = {}

    def admit(self, record: logging.LogRecord) -> int | None:
        """None if the line is omitted; otherwise the number of lines of its kind that were omitted before it."""
        now = self._monotonic()
        where = (record.pathname, record.lineno)
        kind = self._kinds.get(where)
        if kind is None:
            kind = self._kinds[where] = _Kind(record, now)
        kind.lines = min(BURST, kind.lines + (now - kind.at) * LINES_PER_S)
        kind.at = now
        if kind.lines < 1:
            kind.omitted += 1
            return None
        kind.lines -= 1
        omitted, kind.omitted = kind.omitted, 0
        return omitted

    def omitted(self) -> list[logging.LogRecord]:
        """One line for each kind of which lines were omitted since the last report."""
        found = []
        for kind in self._kinds.values():
            if kind.omitted:
                found.append(kind.report(kind.omitted))
                kind.omitted = 0
        return found


class _Kind:
    """One kind of line: `lines` more may be written, as of `at`."""

    def __init__(self, first: logging.LogRecord, now: float) -> None:
        self.logger = first.name
        self.level = first.levelno
        self.text = str(first.msg)
        self.lines = float(BURST)
        self.at = now
        self.omitted = 0

    def report(self, count: int) -> logging.LogRecord:
        message = f"and {count:,} more lines like this one: {self.text}"
        return logging.LogRecord(self.logger, self.level, "", 0, message, None, None)


class ServerLogHandler(logging.Handler):
    """Writes to file descriptor 2. With `path`, descriptors 1 and 2 refer to that file, which is rotated."""

    def __init__(self, path: Path | None = None, rotation: Rotation = SERVER_LOG_ROTATION) -> None:
        super().__init__()
        self.setFormatter(PlainFormatter())
        self.limit = LineLimit()
        self.on_failure: Callable[[str], object] = lambda reason: None
        """Called when lines cannot be written; called again only after a line was written."""
        self._path = path
        self._rotation = rotation
        self._is_failing = False
        if path is not None:
            self._redirect_to_file(path)

    def emit(self, record: logging.LogRecord) -> None:
        omitted = self.limit.admit(record)
        if omitted is None:
            return
        if omitted:
            report = logging.LogRecord(
                record.name, record.levelno, "", 0, f"and {omitted:,} more lines like the next one", None, None
            )
            self._write(report)
        self._write(record)

    def report_omitted(self) -> None:
        """Reports how many lines were omitted."""
        with self.lock or contextlib.nullcontext():
            for record in self.limit.omitted():
                self._write(record)

    async def run(self) -> None:
        """Reports omitted lines regularly, until cancelled."""
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            self.report_omitted()

    def _write(self, record: logging.LogRecord) -> None:
        try:
            line = self._line(record)
            os.write(STDERR, line.encode(errors="backslashreplace"))
            if self._path is not None and os.fstat(STDERR).st_size > self._rotation.bytes_max:
                put_aside(self._path, self._rotation.old_files)
                self._redirect_to_file(self._path)
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                self._is_failing = True
                self.on_failure(error.strerror or str(error))

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record) + "\n"
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            # A message that cannot be formatted must not make its caller fail.
            return f"this message cannot be formatted: {escaped(repr(record.msg))}: {escaped(repr(error))}\n"

    @staticmethod
    def _redirect_to_file(path: Path) -> None:
        fd = open_to_append(path)
        os.dup2(fd, STDOUT)
        os.dup2(fd, STDERR)
        os.close(fd)


def set_up(path: Path | None = None) -> ServerLogHandler:
    """Sets up logging of this process: level INFO and above, to stderr or to `path`. Raises OSError."""
    handler = ServerLogHandler(path)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    return handler


def say(line: str) -> None:
    """Writes a line to stderr without a log prefix: that the broker is ready, or why it does not start."""
    print(escaped(shortened(line, MESSAGE_LENGTH_MAX)), file=sys.stderr, flush=True)


def _indented(text: str) -> str:
    return "\n".join(f"    {shortened(line, MESSAGE_LENGTH_MAX)}" for line in escaped_lines(text).split("\n"))
