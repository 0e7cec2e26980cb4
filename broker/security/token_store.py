"""Delegation tokens in ZooKeeper: read at the start, followed while the broker runs, made and changed (`DelegationTokenManagerZk`).

A change is conditional on the version that was read, so that a token that another broker removes does not come back, and is announced in
the same transaction, so that a token that is ended is ended everywhere. Kafka's brokers see these changes, and the reverse.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from broker.process.announced_writes import write_announced
from broker.process.announcements import Announcements
from broker.process.clock import Clock
from broker.security.delegation_tokens import DelegationTokens
from protocol.errors import ErrorCode, KafkaError
from protocol.topic_names import shown
from protocol.types import Principal
from protocol.zk import token_znodes
from protocol.zk.session import (
    BadVersion,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    Op,
    SetOp,
    ZkError,
    ZooKeeperSession,
    each_readable,
)
from protocol.zk.token_znodes import DelegationToken

log = logging.getLogger(__name__)

READ_AT_ONCE: Final = 500
DECODED_AT_ONCE: Final = 10
"""Tokens between two pauses. One may have hundreds of renewers."""
ATTEMPTS_MAX: Final = 10
TOKENS_MAX: Final = 10_000
"""Limit of all tokens."""
TOKENS_OF_ONE_MAX: Final = 1000
"""Limit of the tokens that one principal has requested."""
BYTES_MAX: Final = 4096
"""Limit of a token's node: the names of its owner, its requester and its renewers."""

Expiry = Callable[[DelegationToken], int | None]
"""The new end of a token, in ms since 1970; None: it ends at once. Raises KafkaError."""


class TokenLifetimes:
    """`max_ms`: `delegation.token.max.lifetime.ms`; `renewed_ms`: `.expiry.time.ms`; `check_s`: `.expiry.check.interval.ms`."""

    def __init__(self, max_ms: int, renewed_ms: int, check_s: float) -> None:
        self.max_ms = max_ms
        self.renewed_ms = renewed_ms
        self.check_s = check_s


class TokenStore:
    """Call `start` before clients log in, then `run` and `expire_regularly` as tasks."""

    def __init__(
        self, tokens: DelegationTokens, lifetimes: TokenLifetimes, zk: ZooKeeperSession, clock: Clock, timeout_s: float
    ) -> None:
        """`timeout_s`: how long a change waits for a new connection to ZooKeeper."""
        self.tokens = tokens
        self._lifetimes = lifetimes
        self._zk = zk
        self._clock = clock
        self._timeout_s = timeout_s
        decoders = {token_znodes.CHANGES: token_znodes.decode_change}
        self._announcements = Announcements(zk, clock, self, decoders, "delegation tokens")

    # -- following the changes ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Creates the parents, reads all tokens and watches for changes. Raises ZkError; may then be called again."""
        for path in (token_znodes.TOKENS, token_znodes.CHANGES):
            await self._zk.ensure_path(path)
        await self._announcements.start()

    async def run(self) -> None:
        """Follows the changes until cancelled."""
        await self._announcements.run()

    async def read_all(self) -> None:
        """As a `Follower`."""
        found = [name for name in await self._zk.children(token_znodes.TOKENS) if token_znodes.TOKEN_ID.fullmatch(name)]
        self.tokens.all_are(found)
        await self.read_changed(found)
        log.info("read %d delegation tokens", len(self.tokens))

    async def read_changed(self, ids: Sequence[str]) -> None:
        """As a `Follower`."""
        for at in range(0, len(ids), READ_AT_ONCE):
            some = ids[at : at + READ_AT_ONCE]
            nodes = await each_readable([token_znodes.path_of(one) for one in some], self._zk.get_many)
            for number, (token_id, node) in enumerate(zip(some, nodes, strict=True), 1):
                if number % DECODED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                try:
                    if isinstance(node, ZkError):
                        raise ValueError(node)
                    if node is None:
                        self.tokens.remove(token_id)
                    else:
                        self.tokens.put(token_znodes.decode(token_id, node[0]))
                except ValueError as error:
                    # Nobody may log in by a token of which it is not known whether it still counts.
                    self.tokens.remove(token_id)
                    log.warning(
                        "the delegation token %s cannot be read, and does not count: %s", shown(token_id), error
                    )

    # -- changing -------------------------------------------------------------------------------------------------------

    async def create(
        self, owner: Principal, requester: Principal, renewers: Sequence[Principal], lifetime_ms: int
    ) -> DelegationToken:
        """`lifetime_ms` 0 or less: as long as allowed. Raises KafkaError, ZkError."""
        names = sum(len(principal.name) for principal in (owner, requester, *renewers))
        if names > BYTES_MAX:
            raise _too_large()
        now = self._clock.wall_ms()
        limits = self._lifetimes
        ends_ms = now + (min(lifetime_ms, limits.max_ms) if lifetime_ms > 0 else limits.max_ms)
        token = DelegationToken(
            secrets.token_urlsafe(16),
            owner,
            requester,
            tuple(renewers),
            now,
            ends_ms,
            min(ends_ms, now + limits.renewed_ms),
        )
        data = token_znodes.encode(token)
        if len(data) > BYTES_MAX:
            raise _too_large()
        known = self.tokens.tokens.values()
        if len(known) >= TOKENS_MAX or sum(one.requester == requester for one in known) >= TOKENS_OF_ONE_MAX:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "there are too many delegation tokens")

        async def write() -> None:
            try:
                await self._write(CreateOp(token_znodes.path_of(token.id), data), token.id)
            except NodeExists:  # an earlier attempt, whose answer was lost
                return

        await self._zk.repeated(write, self._timeout_s)
        self.tokens.put(token)
        log.info("%s has a new delegation token %s of %s", requester, token.id, owner)
        return token

    async def renew(self, principal: Principal, digest: bytes, period_ms: int) -> int:
        """`period_ms` less than 0: as long as the settings say. Returns when the token expires. Raises KafkaError, ZkError."""
        now = self._clock.wall_ms()
        period_ms = self._lifetimes.renewed_ms if period_ms < 0 else period_ms
        return await self._change(principal, digest, now, lambda token: min(token.ends_ms, now + period_ms))

    async def expire(self, principal: Principal, digest: bytes, period_ms: int) -> int:
        """`period_ms` less than 0: at once. Returns when the token expires. Raises KafkaError, ZkError."""
        now = self._clock.wall_ms()
        if period_ms < 0:
            return await self._change(principal, digest, now, lambda token: None)
        return await self._change(principal, digest, now, lambda token: min(token.ends_ms, now + period_ms))

    async def _change(self, principal: Principal, digest: bytes, now: int, expiry: Expiry) -> int:
        token_id = self.tokens.with_hmac(digest)
        if token_id is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "")

        is_deleted = False  # perhaps: until the answer is here

        async def attempt() -> int:
            nonlocal is_deleted
            for _ in range(ATTEMPTS_MAX):
                try:
                    token, version = await self._read(token_id)
                except KafkaError as error:
                    if error.code is not ErrorCode.DELEGATION_TOKEN_NOT_FOUND:
                        raise
                    if is_deleted:
                        return now
                    # This broker had not heard that the token has ended. Perhaps a broker of Kafka died before it told the others.
                    await self._write(None, token_id)
                    raise
                if not token.is_of(principal):
                    raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "")
                expires_ms = expiry(token)
                if expires_ms is not None and min(token.ends_ms, token.expires_ms) < now:
                    raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED, "")
                try:
                    if expires_ms is None:
                        is_deleted = True
                        await self._write(DeleteOp(token_znodes.path_of(token_id), version), token_id)
                        self.tokens.remove(token_id)
                        return now
                    changed = token._replace(expires_ms=expires_ms)
                    data = token_znodes.encode(changed)
                    await self._write(SetOp(token_znodes.path_of(token_id), data, version), token_id)
                except (BadVersion, NoNode):
                    continue
                self.tokens.put(changed)
                return expires_ms
            raise ZkError(f"the delegation token {token_id} keeps changing")

        return await self._zk.repeated(attempt, self._timeout_s)

    async def _read(self, token_id: str) -> tuple[DelegationToken, int]:
        try:
            data, stat = await self._zk.get(token_znodes.path_of(token_id))
        except NoNode:
            self.tokens.remove(token_id)
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "") from None
        try:
            return token_znodes.decode(token_id, data), stat.version
        except ValueError as error:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the token cannot be read: {error}") from None

    async def _write(self, write: Op | None, token_id: str) -> None:
        """Writes and announces it. Raises ZkError."""
        await write_announced(self._zk, write, token_znodes.announcement(token_id))

    # -- the end of tokens ------------------------------------------------------------------------------------------------

    async def expire_regularly(self, is_controller: Callable[[], bool]) -> None:
        """Removes expired tokens while this broker is the controller, until cancelled. Nobody can log in by them before that, either."""
        while True:
            await asyncio.sleep(self._lifetimes.check_s)
            if is_controller():
                try:
                    await self.remove_expired()
                except ZkError as error:
                    log.debug("expired delegation tokens stay until ZooKeeper answers: %s", error)

    async def remove_expired(self) -> None:
        """Removes tokens that have expired. Raises ZkError."""
        now = self._clock.wall_ms()
        for known in [one for one in self.tokens.tokens.values() if min(one.ends_ms, one.expires_ms) < now]:
            try:
                token, version = await self._read(known.id)
                if min(token.ends_ms, token.expires_ms) >= now:
                    self.tokens.put(token)  # it was renewed
                    continue
                await self._write(DeleteOp(token_znodes.path_of(token.id), version), token.id)
            except (KafkaError, BadVersion, NoNode):
                continue
            self.tokens.remove(token.id)
            log.info("the delegation token %s of %s has expired", token.id, token.owner)


def _too_large() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"a token with its names has at most {BYTES_MAX} bytes")
