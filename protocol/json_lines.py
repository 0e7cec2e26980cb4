"""JSON lines over a Unix socket, one answer for each line: how a command on this machine tells a process what to do.

Only the user that the process runs as can connect: a client of a broker cannot.

    python -m protocol.json_lines SOCKET REQUEST

asks in a container, where this machine cannot connect. It prints what `answered` reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

LINE_MAX = 1024 * 1024
ANSWER_TIMEOUT_S = 5.0
IDLE_S = 30.0


class NoAnswer(Exception):
    """The process does not answer, or refuses; the message says why."""


class NobodyListens(NoAnswer):
    """There is no socket, or the process that made it has ended."""


class Refused(NoAnswer):
    """The process answers `{"error": text}`: it has changed nothing."""


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for the socket that fits into a socket's address, which has 108 bytes, however deep the directory is."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}" if len(os.fsencode(path)) > 100 else str(path)
    finally:
        os.close(directory)


def ask(path: Path, request: Mapping[str, Any], timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
    """Sends one line; returns the answer. Raises NoAnswer."""
    try:
        with short_path(path) as short, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(short)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer: dict[str, Any] = json.loads(lines.readline(LINE_MAX))
    except (ConnectionRefusedError, FileNotFoundError) as problem:
        raise NobodyListens(str(problem)) from None
    except (OSError, ValueError) as problem:
        raise NoAnswer(str(problem)) from None
    if "error" in answer:
        raise Refused(str(answer["error"]))
    return answer


FAILURES: Mapping[str, type[NoAnswer]] = MappingProxyType(
    {failure.__name__: failure for failure in (NobodyListens, Refused, NoAnswer)}
)


def main(arguments: Sequence[str]) -> int:
    path, request = arguments
    try:
        print(json.dumps({"answer": ask(Path(path), json.loads(request))}))
    except NoAnswer as problem:
        print(json.dumps({"failure": type(problem).__name__, "why": str(problem)}))
    return 0


def answered(printed: str) -> dict[str, Any]:
    """What `main` printed, as the answer of `ask`. Raises NoAnswer."""
    try:
        told = json.loads(printed)
        if "answer" not in told:
            raise FAILURES[told["failure"]](told["why"])
        answer: dict[str, Any] = told["answer"]
    except (ValueError, KeyError, TypeError):
        raise NoAnswer(f"it printed {printed[:100]!r}") from None
    return answer


async def serve(path: Path, answer: Callable[[bytes], Mapping[str, Any]]) -> asyncio.Server:
    """`answer` gets a line, which may be anything, and must not raise. Raises OSError if the socket cannot be made."""
    path.unlink(missing_ok=True)  # noqa: ASYNC240 - once, before the start
    umask = os.umask(0o177)
    try:
        with short_path(path) as short:
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(short)
    finally:
        os.umask(umask)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await asyncio.wait_for(reader.readline(), IDLE_S):
                writer.write(json.dumps(answer(line)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass  # ValueError: a line beyond LINE_MAX
        finally:
            writer.close()

    return await asyncio.start_unix_server(talk, sock=listening, limit=LINE_MAX)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
