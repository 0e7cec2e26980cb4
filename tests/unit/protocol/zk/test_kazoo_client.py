"""The changed parts of kazoo that need no server: the mailbox, select, multiRead."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import GetChildren, GetData

from protocol.zk.kazoo_client import LoopHandler, Mailbox, MultiRead, SetWatches, Watcher
from protocol.zk.operations import WatchEvent


async def test_a_mailbox_keeps_the_order_and_survives_a_bug_in_a_callback() -> None:
    seen: list[Any] = []
    done = asyncio.Event()
    mailbox = Mailbox(asyncio.get_running_loop())

    def broken() -> None:
        raise RuntimeError("a bug in a listener")

    def post_all() -> None:
        for number in range(1000):
            mailbox.post(seen.append, number)
        mailbox.post(broken)
        mailbox.post(seen.append, "end")
        mailbox.post(done.set)

    await asyncio.to_thread(post_all)
    await done.wait()
    assert seen == [*range(1000), "end"]


def test_a_mailbox_of_a_closed_loop_is_silent() -> None:
    loop = asyncio.new_event_loop()
    mailbox = Mailbox(loop)
    loop.close()
    mailbox.post(print)
    mailbox.post(print)


def test_select_returns_the_ready_sockets() -> None:
    handler = LoopHandler(mailbox=None)  # type: ignore[arg-type]
    left, right = socket.socketpair()
    with left, right:
        assert handler.select([left, right], [], [], 0) == ([], [], [])
        left.send(b"x")
        assert handler.select([left, right], [], [], 1) == ([right], [], [])
        assert handler.select([], [left], [], None) == ([], [left], [])
    left, right = socket.socketpair()
    right.close()
    with left:
        assert handler.select([left], [], [], None) == ([left], [], []), "a closed peer is readable: its end"


def test_equal_callbacks_of_a_node_are_one_watch() -> None:
    seen: list[WatchEvent] = []
    assert len({Watcher("/a", seen.append), Watcher("/a", seen.append), Watcher("/a", print)}) == 2


STAT = tuple(range(1, 12))
STAT_BYTES = struct.pack("!qqqqiiiqiiq", *STAT)


def multi_header(kind: int, error: int) -> bytes:
    return struct.pack("!iBi", kind, kind == -1 and error == -1, error)


def test_multi_read_answers() -> None:
    answer = (
        b"head"
        + (multi_header(4, 0) + struct.pack("!i", 2) + b"hi" + STAT_BYTES)
        + (struct.pack("!iBi", -1, 0, -101) + struct.pack("!i", -101))
        + (multi_header(4, 0) + struct.pack("!i", -1) + STAT_BYTES)
        + (multi_header(8, 0) + struct.pack("!ii1si2s", 2, 1, b"a", 2, "ö".encode()))
        + multi_header(-1, -1)
    )
    first, missing, null, names = MultiRead.deserialize(answer, 4)
    assert (first[0], tuple(first[1])) == (b"hi", STAT)
    assert isinstance(missing, NoNodeError)
    assert (null[0], tuple(null[1])) == (None, STAT)
    assert names == ["a", "ö"]


def test_multi_read_requests() -> None:
    request = MultiRead([GetData("/a", None), GetChildren("/", None)])
    assert request.serialize() == (
        struct.pack("!iBi", 4, 0, -1)
        + (struct.pack("!i", 2) + b"/a\0")
        + struct.pack("!iBi", 8, 0, -1)
        + (struct.pack("!i", 1) + b"/\0")
        + struct.pack("!iBi", -1, 1, -1)
    )


def test_set_watches_requests() -> None:
    request = SetWatches(7, ["/a"], [], ["/b", "/c"])
    assert request.serialize() == struct.pack("!qi i2s i i i2s i2s", 7, 1, 2, b"/a", 0, 2, 2, b"/b", 2, b"/c"), (
        "length of each list, then each path with its length"
    )


@pytest.mark.parametrize("request_type", [SetWatches, MultiRead])
def test_requests_are_truthy(request_type: type) -> None:
    """kazoo treats a falsy request as no request."""
    assert request_type(*[[]] * len(request_type.__slots__))
