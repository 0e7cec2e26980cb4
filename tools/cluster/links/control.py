"""Sends the rules of links to their process: JSON lines over a Unix socket in the run directory, one answer for each line.

    {"add": [rule, ...]}    {"remove": [id, ...]}    {"remove": null} removes all    {"show": true}

Each answer is `{"rules": [...], "connections": n}` after the change, or `{"error": text}`, in which case nothing was changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.cluster.links.rules import BadRule, Rule

if TYPE_CHECKING:
    from tools.cluster.links.proxy import Proxy

LINE_MAX = 1024 * 1024
ANSWER_TIMEOUT_S = 5.0
IDLE_S = 30.0


class NoLinks(Exception):
    """The links cannot be told anything; the message says why."""


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for the socket that fits into a socket's address, which has 108 bytes, however deep the directory is."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}" if len(os.fsencode(path)) > 100 else str(path)
    finally:
        os.close(directory)


async def serve(proxy: Proxy, path: Path) -> asyncio.Server:
    """Only the owner of the process can connect."""
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
                writer.write(json.dumps(answer(proxy, line)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass  # ValueError: a line beyond LINE_MAX
        finally:
            writer.close()

    return await asyncio.start_unix_server(talk, sock=listening, limit=LINE_MAX)


def answer(proxy: Proxy, line: bytes) -> dict[str, Any]:
    """Carries out one line."""
    try:
        _carry_out(proxy, json.loads(line))
    except (BadRule, ValueError, RecursionError) as problem:
        return {"error": str(problem)}
    return {"rules": [rule.to_json() for rule in proxy.rules], "connections": proxy.connection_count}


def _carry_out(proxy: Proxy, request: object) -> None:
    """Raises BadRule."""
    match request:
        case {"add": list(rows), **rest} if not rest:
            proxy.add([Rule.from_json(row) for row in rows])
        case {"remove": list(ids), **rest} if not rest and all(isinstance(each, str) for each in ids):
            proxy.remove(ids)
        case {"remove": None, **rest} if not rest:
            proxy.remove(None)
        case {"show": True, **rest} if not rest:
            pass
        case _:
            raise BadRule('expected {"add": [rule, ...]}, {"remove": [id, ...]}, {"remove": null} or {"show": true}')


class LinksControl:
    """The client's side. The methods raise NoLinks."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, rules: Sequence[Rule]) -> None:
        self._ask({"add": [rule.to_json() for rule in rules]})

    def remove(self, ids: Sequence[str] | None) -> None:
        """None: all rules."""
        self._ask({"remove": None if ids is None else list(ids)})

    def rules(self) -> list[Rule]:
        return [Rule.from_json(row) for row in self._ask({"show": True})["rules"]]

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            with short_path(self._path) as short, socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ANSWER_TIMEOUT_S)
                connection.connect(short)
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as lines:
                    answered: dict[str, Any] = json.loads(lines.readline(LINE_MAX))
        except (OSError, ValueError) as problem:
            raise NoLinks(f"the links at {self._path} do not answer: {problem}") from None
        if "error" in answered:
            raise NoLinks(f"the links refuse that: {answered['error']}")
        return answered
