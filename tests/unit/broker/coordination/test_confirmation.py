"""Rounds of fetches say whether this broker still leads, while ZooKeeper is silent. INV-23, INV-24, TXN-4."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import cast

import pytest

from broker.cluster.lease import LeadershipLease
from broker.coordination import confirmation
from broker.coordination.confirmation import FOLLOWERS_SILENCE_S_MAX, Confirmation
from broker.replication.partition import Partition, Role
from tests.support.api_world import turns_until
from tests.support.fake_time import FakeTime

FOLLOWERS = (2, 3)


class Led:
    """A partition with two followers in its ISR."""

    def __init__(self, now: float) -> None:
        self.role = Role.LEADER
        self.heard = dict.fromkeys(FOLLOWERS, now)

    def heard_of_isr(self) -> Mapping[int, float]:
        return self.heard

    def is_followed_since(self, since: float) -> bool:
        return all(at >= since for at in self.heard.values())


class World:
    """`answers` happens at each answer to the followers; 0.1 s pass between them."""

    def __init__(self, partitions: int = 1) -> None:
        self.time = FakeTime()
        self.lease = LeadershipLease(self.time, 6000)
        self.time.now += 10  # ZooKeeper is silent
        self.led = [Led(self.time.now) for _ in range(partitions)]
        self.answered = 0
        self.answers: Callable[[], object] = self.all_fetch
        self.confirmation = Confirmation(
            self.time, self.lease, lambda: cast(list[Partition], self.led), self.answer_followers
        )

    def answer_followers(self, partitions: tuple[()]) -> None:
        self.answered += 1
        self.time.now += 0.1
        self.answers()

    def all_fetch(self) -> None:
        for led in self.led:
            led.heard.update(dict.fromkeys(FOLLOWERS, self.time.now))

    def is_doubted(self, number: int = 0) -> bool:
        return self.confirmation.is_doubted(cast(Partition, self.led[number]))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirmation, "LOOK_S", 0.0)


async def test_who_fetches_twice_still_follows() -> None:
    world = World()
    assert world.confirmation.is_needed()
    await world.confirmation.round()
    assert (world.is_doubted(), world.answered) == (False, 2)


async def test_one_fetch_may_have_been_on_its_way_for_long() -> None:
    """The follower leads by now: it does not fetch again. Another partition of the same round is confirmed."""
    world = World(partitions=2)

    def one_is_late() -> None:
        world.led[1].heard.update(dict.fromkeys(FOLLOWERS, world.time.now))
        world.led[0].heard[2] = world.time.now
        if world.answered == 1:
            world.led[0].heard[3] = world.time.now

    world.answers = one_is_late
    began = world.time.now
    await world.confirmation.round()
    assert (world.is_doubted(0), world.is_doubted(1)) == (True, False)
    assert world.time.now - began < FOLLOWERS_SILENCE_S_MAX + 0.2
    world.answers = world.all_fetch
    await world.confirmation.round()
    assert not world.is_doubted(0)


async def test_a_follower_that_was_silent_before_is_not_waited_for() -> None:
    world = World()
    world.led[0].heard[3] -= FOLLOWERS_SILENCE_S_MAX + 0.1
    await world.confirmation.round()
    assert (world.is_doubted(), world.answered) == (True, 0)


async def test_one_late_fetch_of_a_silent_follower_confirms_nothing() -> None:
    """Neither during a round, which another partition makes long, nor in the turn in which the request came."""
    world = World(partitions=2)
    world.led[0].heard[3] -= FOLLOWERS_SILENCE_S_MAX + 0.1

    def slowly() -> None:
        if world.answered == 1:
            world.led[0].heard[3] = world.time.now
            world.led.append(Led(world.time.now))  # a late LeaderAndIsr, and one late fetch
        if world.answered > 5:
            world.led[1].heard.update(dict.fromkeys(FOLLOWERS, world.time.now))

    world.answers = slowly
    await world.confirmation.round()
    assert [world.is_doubted(number) for number in range(3)] == [True, False, True]
    world.time.now += confirmation.DOUBT_S + 0.1
    assert not world.is_doubted(0), "for requests that wait for no round, followers have fetched lately"
    del world.led[1:]
    world.answers = lambda: None
    world.led[0].heard[3] -= FOLLOWERS_SILENCE_S_MAX
    waiting = asyncio.create_task(world.confirmation.round())
    await asyncio.sleep(0)
    world.led[0].heard[3] = world.time.now
    await waiting
    assert world.is_doubted()


async def test_the_only_member_of_the_isr_needs_nobody() -> None:
    world = World()
    world.led[0].heard = {}
    await world.confirmation.round()
    assert (world.is_doubted(), world.answered) == (False, 0)


async def test_a_word_of_zookeeper_ends_the_doubt() -> None:
    world = World()
    world.answers = lambda: world.lease.prove(world.time.now)
    await world.confirmation.round()
    assert (world.is_doubted(), world.answered, world.confirmation.is_needed()) == (False, 1, False)


async def test_what_is_not_led_any_more_is_not_waited_for() -> None:
    world = World()

    def step_down() -> None:
        world.led[0].role = Role.FOLLOWER

    world.answers = step_down
    await world.confirmation.round()
    assert world.answered == 1


async def test_requests_that_come_during_a_round_share_the_next_one() -> None:
    world = World()
    first = asyncio.create_task(world.confirmation.round())
    await turns_until(lambda: world.answered)
    later = [asyncio.create_task(world.confirmation.round()) for _ in range(5)]
    await first
    assert not any(one.done() for one in later)
    await asyncio.gather(*later)
    assert world.answered == 4


async def test_the_end_of_the_broker_ends_the_rounds() -> None:
    world = World()
    world.answers = lambda: None
    waiting = [asyncio.create_task(world.confirmation.round()) for _ in range(3)]
    await turns_until(lambda: world.answered >= 2)
    waiting.append(asyncio.create_task(world.confirmation.round()))
    await asyncio.sleep(0)
    world.confirmation.close()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
