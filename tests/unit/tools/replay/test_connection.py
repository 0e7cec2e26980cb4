"""A connection of a replay gives each request its answer, however the bytes arrive, or says that there is none."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.replay.load.connection import BrokerConnection


class FakeTransport:
    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        pass


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


def test_an_answer_that_does_not_come_in_time_is_an_error_and_the_connection_can_be_closed() -> None:
    async def ask() -> None:
        made = connection()
        with pytest.raises(TimeoutError):
            await made.ask(b"", 0)
        made.close()

    asyncio.run(ask())
