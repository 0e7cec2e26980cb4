"""A connection gives each request its answer, however the bytes arrive, or says that there is none."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kafka.framing import MalformedRequest
from tools.wire.connection import BrokerConnection, OnAnswer


class FakeTransport:
    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        pass


async def some_turns() -> None:
    """The loop does everything that is due."""
    for _ in range(20):
        await asyncio.sleep(0)


def connection() -> BrokerConnection:
    made = BrokerConnection(lambda _: None)
    made.connection_made(cast(asyncio.Transport, FakeTransport()))
    return made


@given(st.lists(st.binary(max_size=6), max_size=5), st.lists(st.integers(1, 7), min_size=1))
def test_answers_come_in_order_and_whole(answers: list[bytes], cuts: list[int]) -> None:
    async def play() -> None:
        made = connection()
        got: list[bytes | None] = []
        for _ in [*answers, "one more"]:
            made.send(b"", lambda answer: got.append(None if answer is None else bytes(answer)))
        data = b"".join(len(answer).to_bytes(4, "big") + answer for answer in answers)
        at = number = 0
        while at < len(data):
            size = cuts[number % len(cuts)]
            made.data_received(data[at : at + size])
            at, number = at + size, number + 1
        assert got == answers
        made.close()
        assert got == [*answers, None]

    asyncio.run(play())


async def test_an_answer_that_does_not_come_in_time_is_an_error_and_the_connection_can_be_closed() -> None:
    made = connection()
    with pytest.raises(TimeoutError):
        await made.ask(b"", 0)
    made.close()


async def test_requests_wait_during_a_login_and_leave_after_it_in_their_order() -> None:
    made = connection()
    sent: list[bytes] = []
    made._transport.write = sent.append  # type: ignore[method-assign,union-attr,assignment]
    got: list[str] = []

    def on_answer(name: str) -> OnAnswer:
        return lambda answer: got.append(f"{name} {'lost' if answer is None else bytes(answer).decode()}")

    logins = 0

    async def log_in() -> float:
        nonlocal logins
        logins += 1
        await made.ask(b"login ", 60, ahead=True)
        return 0.0 if logins == 1 else 60.0

    made.send(b"before ", on_answer("before"))
    made.log_in_after(0, log_in)
    await some_turns()
    made.send(b"after ", on_answer("after"))
    made.send(b"last ", on_answer("last"))
    await some_turns()
    assert b"".join(sent) == b"before login "
    made.data_received(b"\0\0\0\1a\0\0\0\1b")
    await some_turns()
    assert b"".join(sent) == b"before login after last "
    made.data_received(b"\0\0\0\1c")
    assert got == ["before a", "after c"]
    made.log_in_after(0, log_in)
    await some_turns()
    made.send(b"never", on_answer("never"))
    made.close()
    assert got[2:] == ["last lost", "never lost"]


@pytest.mark.parametrize("failure", [ConnectionResetError("gone"), MalformedRequest("what?")])
async def test_a_login_that_fails_ends_the_connection(failure: Exception) -> None:
    made = connection()

    async def log_in() -> float:
        raise failure

    made.log_in_after(0, log_in)
    await some_turns()
    assert not made.is_open
