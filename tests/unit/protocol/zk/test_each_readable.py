"""A node that access rights keep from us costs no other node its read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from protocol.zk.session import ConnectionLoss, ZkError, each_readable


def test_all_others_are_read() -> None:
    asked: list[Sequence[str]] = []

    async def read(paths: Sequence[str]) -> list[str]:
        asked.append(paths)
        if not {"/3", "/7"}.isdisjoint(paths):
            raise ZkError("NoAuthError")
        return [path.upper() for path in paths]

    paths = [f"/{number}" for number in range(100)]
    found = asyncio.run(each_readable(paths, read))
    assert [at for at, one in enumerate(found) if isinstance(one, ZkError)] == [3, 7]
    assert [one for one in found if not isinstance(one, ZkError)] == [
        path for path in paths if path not in ("/3", "/7")
    ]
    assert len(asked) <= 2 * 2 * 8, "not one by one"


def test_a_lost_connection_is_no_unreadable_node() -> None:
    async def read(paths: Sequence[str]) -> list[str]:
        raise ConnectionLoss("test")

    with pytest.raises(ConnectionLoss):
        asyncio.run(each_readable(["/a", "/b"], read))
