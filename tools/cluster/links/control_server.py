"""The process of the links carries out what `control.py` sends to it."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

from protocol import json_lines
from tools.cluster.links.proxy import Proxy
from tools.cluster.links.rules import BadRule, Rule


async def serve(proxy: Proxy, path: Path) -> asyncio.Server:
    """Only the owner of the process can connect."""
    return await json_lines.serve(path, partial(answer, proxy))


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
