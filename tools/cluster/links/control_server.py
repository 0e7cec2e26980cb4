"""The process of the links carries out what `control.py` sends to it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

from tools.cluster.links.control import LINE_MAX, short_path
from tools.cluster.links.proxy import Proxy
from tools.cluster.links.rules import BadRule, Rule

IDLE_S = 30.0


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
