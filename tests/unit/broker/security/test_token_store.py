"""Delegation tokens on a ZooKeeper in memory: made, renewed, ended, followed, and used for a login (CLI-5, KIP-48)."""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from broker.process import announcements
from broker.security import token_store
from broker.security.delegation_tokens import DelegationTokens
from broker.security.mechanisms import LoginRefused, Scram
from broker.security.scram_users import ScramUsers
from broker.security.token_store import TokenLifetimes, TokenStore
from protocol.errors import ErrorCode
from protocol.scram import HASHES, ScramClient
from protocol.types import Principal
from protocol.zk import token_znodes
from protocol.zk.session import ZkError
from protocol.zk.token_znodes import DelegationToken
from tests.support.fake_time import FakeTime
from tests.support.killed_writers import Killed, killed_at_each_write
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.support.refusals import refused

HOUR_MS = 3_600_000
ALICE, BOB, EVE = (Principal("User", name) for name in ("alice", "bob", "eve"))


class Broker:
    def __init__(self, server: MemoryZooKeeper, time: FakeTime) -> None:
        self.session = MemorySession(server)
        self.tokens = DelegationTokens("the secret")
        zk: Any = self.session
        self.store = TokenStore(self.tokens, TokenLifetimes(24 * HOUR_MS, HOUR_MS, 1.0), zk, time, 1.0)

    async def create(self, lifetime_ms: int = -1) -> DelegationToken:
        return await self.store.create(ALICE, ALICE, [BOB], lifetime_ms)

    def digest(self, token: DelegationToken) -> bytes:
        return self.tokens.hmac_of(token.id)


class World:
    """Two brokers that follow the tokens."""

    def __init__(self) -> None:
        self.server = MemoryZooKeeper()
        self.time = FakeTime(1000.0)
        self.one, self.other = (Broker(self.server, self.time) for _ in range(2))

    async def __aenter__(self) -> World:
        for broker in (self.one, self.other):
            await broker.store.start()
        self._tasks = [asyncio.create_task(broker.store.run()) for broker in (self.one, self.other)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def now(self) -> int:
        return self.time.wall_ms()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(announcements, "RETRY_S", 0)
    return World()


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def log_in(
    broker: Broker, token_id: str, password: bytes, now: Callable[[], int], mechanism: str = "SCRAM-SHA-512"
) -> Scram:
    """As a client does, with `tokenauth=true`. Raises LoginRefused."""
    scram = Scram(mechanism, ScramUsers(), "nonce", b"x", lambda name, one: broker.tokens.login(name, one, now()), now)
    client = ScramClient(mechanism, token_id, b64encode(password).decode(), "abc", tokenauth=True)
    client.check(scram.take(client.final(scram.take(client.first()))))
    return scram


async def test_a_token_is_known_everywhere_and_logs_its_owner_in(world: World) -> None:
    token = await world.one.create()
    assert (token.issued_ms, token.ends_ms, token.expires_ms) == (
        world.now,
        world.now + 24 * HOUR_MS,
        world.now + HOUR_MS,
    )
    await turns()
    for broker in (world.one, world.other):
        for mechanism in HASHES:
            scram = log_in(broker, token.id, broker.digest(token), lambda: world.now, mechanism)
            assert (scram.is_complete, scram.user, scram.owner, scram.lifetime_ms) == (True, token.id, "alice", HOUR_MS)
    stored = world.server.nodes[token_znodes.path_of(token.id)].data
    assert world.one.digest(token) not in stored
    assert b64encode(world.one.digest(token)) not in stored


async def test_wrong_and_expired_tokens(world: World) -> None:
    token = await world.one.create(lifetime_ms=1000)
    for token_id, password in ((token.id, b"wrong"), ("unknown", b"x")):
        with pytest.raises(LoginRefused):
            log_in(world.one, token_id, password, lambda: world.now)
    world.time.advance(1.0)
    with pytest.raises(LoginRefused, match="no such user"):
        log_in(world.one, token.id, world.one.digest(token), lambda: world.now)


async def test_renewals(world: World) -> None:
    token = await world.one.create(lifetime_ms=3 * HOUR_MS)
    await turns()
    digest = world.one.digest(token)
    world.time.advance(1800)
    assert await world.other.store.renew(BOB, digest, -1) == world.now + HOUR_MS
    assert await world.other.store.renew(ALICE, digest, 10 * HOUR_MS) == token.ends_ms, "never longer than that"
    await turns()
    assert world.one.tokens.tokens[token.id].expires_ms == token.ends_ms
    with refused(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH):
        await world.one.store.renew(EVE, digest, -1)
    with refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND):
        await world.one.store.renew(ALICE, b"unknown", -1)
    world.time.advance(3 * 3600)
    with refused(ErrorCode.DELEGATION_TOKEN_EXPIRED):
        await world.one.store.renew(ALICE, digest, -1)


async def test_the_end(world: World) -> None:
    token = await world.one.create()
    await turns()
    digest = world.one.digest(token)
    assert await world.other.store.expire(BOB, digest, 1000) == world.now + 1000
    assert await world.other.store.expire(BOB, digest, -1) == world.now
    assert token_znodes.path_of(token.id) not in world.server.nodes
    await turns()
    for broker in (world.one, world.other):
        assert not broker.tokens.tokens
        with refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND):
            await broker.store.renew(ALICE, digest, -1)


async def test_a_token_that_another_broker_ends_does_not_come_back(world: World) -> None:
    token = await world.one.create()
    world.server.remove(token_znodes.path_of(token.id))  # as Kafka's broker, whose announcement is still to come
    with refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND):
        await world.one.store.renew(ALICE, world.one.digest(token), -1)
    assert not world.one.tokens.tokens


async def test_expired_tokens_are_removed_unless_they_were_renewed(world: World) -> None:
    expired, renewed = await world.one.create(1000), await world.one.create(HOUR_MS)
    world.time.advance(0.9)
    stale = renewed._replace(expires_ms=world.now)
    world.one.tokens.put(stale)  # the announcement of the renewal is still to come
    world.time.advance(0.2)
    await world.one.store.remove_expired()
    assert list(world.one.tokens.tokens) == [renewed.id]
    assert world.server.children(token_znodes.TOKENS) == [renewed.id]
    await turns()
    assert list(world.other.tokens.tokens) == [renewed.id]
    assert expired.id not in world.other.tokens.tokens


async def test_what_cannot_be_read_does_not_count(world: World) -> None:
    token = await world.one.create()
    path = token_znodes.path_of(token.id)
    for data in (b"", b"{", b"[]", b'{"version":9}', token_znodes.encode(token._replace(id="x"))):
        world.server.ensure(path, token_znodes.encode(token))
        await world.one.store.read_changed([token.id])
        assert len(world.one.tokens) == 1
        world.server.ensure(path, data)
        await world.one.store.read_changed([token.id])
        assert len(world.one.tokens) == 0
    world.server.create(token_znodes.CHANGE_PREFIX, b"../x", is_sequential=True)
    await turns()


async def test_limits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_store, "TOKENS_OF_ONE_MAX", 2)
    for _ in range(2):
        await world.one.create()
    with refused(ErrorCode.POLICY_VIOLATION):
        await world.one.create()
    await world.one.store.create(ALICE, BOB, [], -1)
    with refused(ErrorCode.INVALID_REQUEST):
        await world.one.store.create(ALICE, EVE, [Principal("User", "x" * 5000)], -1)


async def test_a_renewer_without_a_name(world: World) -> None:
    """Otherwise nobody would know of the token, and nobody remove it."""
    async with world:
        token = await world.one.store.create(ALICE, ALICE, [Principal("User", "")], -1)
        await turns()
        assert world.other.tokens.tokens[token.id] == token


async def test_a_lost_answer(world: World) -> None:
    token = await world.one.create()
    world.one.session.lose_answers = 1
    assert await world.one.store.renew(ALICE, world.one.digest(token), 5000) == world.now + 5000
    world.one.session.lose_answers = 1
    another = await world.one.create()
    assert len(world.server.children(token_znodes.TOKENS)) == 2
    world.one.session.lose_answers = 1
    try:
        await world.one.store.expire(ALICE, world.one.digest(another), -1)
    except ZkError:
        pytest.fail("it is gone, and that is what was asked for")
    assert another.id not in world.one.tokens.tokens


CHANGES = {
    "create": lambda broker, token: broker.create(),
    "renew": lambda broker, token: broker.store.renew(ALICE, broker.digest(token), 2 * HOUR_MS),
    "end": lambda broker, token: broker.store.expire(ALICE, broker.digest(token), -1),
    "expire": lambda broker, token: broker.store.remove_expired(),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_by_a_broker_that_dies_is_known_to_all_or_not_made(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a token that its owner has ended would count elsewhere up to its end."""
    monkeypatch.setattr(announcements, "RETRY_S", 0)

    async def attempt(arm: Callable[[MemorySession], None]) -> None:
        world = World()
        for broker in (world.one, world.other):
            await broker.store.start()
        following = asyncio.create_task(world.other.store.run())
        token = await world.one.create(10 * HOUR_MS)
        await turns()
        if change == "expire":
            world.time.advance(3601)
        arm(world.one.session)
        with contextlib.suppress(Killed):
            await CHANGES[change](world.one, token)
        await turns()
        stored = {
            token_id: token_znodes.decode(token_id, world.server.nodes[token_znodes.path_of(token_id)].data)
            for token_id in world.server.children(token_znodes.TOKENS)
        }
        assert world.other.tokens.tokens == stored
        following.cancel()

    assert await killed_at_each_write(attempt) == 2, "before and after the only write"


async def test_a_token_that_a_broker_of_kafka_has_ended_without_a_word(world: World) -> None:
    """It died before it announced the end. Whoever asks for the end again lets all know."""
    async with world:
        token = await world.one.create()
        await turns()
        world.server.remove(token_znodes.path_of(token.id))
        with refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND):
            await world.one.store.expire(ALICE, world.one.digest(token), -1)
        await turns()
        assert not world.other.tokens.tokens


def test_kafkas_node() -> None:
    """As a Kafka 3.9.1 writes it, and of the version before, without a requester."""
    data = (
        b'{"owner":"User%3Aalice","tokenRequester":"User%3ACN%3Dx","tokenId":"abc","version":3,"renewers":["User%3Ab%2Cc"],'
        b'"issueTimestamp":1,"maxTimestamp":3,"expiryTimestamp":2}'
    )
    token = DelegationToken("abc", ALICE, Principal("User", "CN=x"), (Principal("User", "b,c"),), 1, 3, 2)
    assert token_znodes.decode("abc", data) == token
    assert token_znodes.decode("abc", token_znodes.encode(token)) == token
    for text in (rb"User:\ud800", b"User%3A%FF", b"User%3A%ED%A0%80"):
        with pytest.raises(ValueError, match="can't"):
            token_znodes.decode("abc", data.replace(b"User%3Aalice", text))
    older = data.replace(b'"version":3', b'"version":2')
    assert token_znodes.decode("abc", older) == token._replace(requester=ALICE)
