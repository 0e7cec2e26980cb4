"""Describes and changes the SCRAM credentials of users in `/config/users` (KIP-554; `ZkAdminManager` in Kafka 3.9).

Any broker describes them; the active controller changes them. A change keeps the user's other settings (quotas), is written conditional
on the version that was read, and is announced to all brokers in the same transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from broker.admin.topic_admin import ZOOKEEPER_WAIT_MAX_S
from broker.process.announced_writes import write_announced
from broker.security.scram_users import credential_text, read_credential
from broker.settings.dynamic_configs import DynamicConfigs
from broker.settings.entity_configs import USERS
from protocol.errors import ErrorCode, KafkaError
from protocol.scram import HASHES, ITERATIONS_MIN, credential_of
from protocol.zk.entity_names import DEFAULT, desanitized, sanitized
from protocol.zk.session import (
    BadVersion,
    CreateOp,
    NodeExists,
    NoNode,
    SetOp,
    ZkError,
    ZooKeeperSession,
    each_readable,
)
from protocol.zk.znodes import ConfigChangeZNode, ConfigZNode

ITERATIONS_MAX = 16_384
"""Kafka's maximum."""
MECHANISM_OF: Mapping[int, str] = dict(enumerate(HASHES, 1))
"""Kafka's ScramMechanism numbers."""
WRITE_ATTEMPTS = 20
USERS_READ_AT_ONCE = 500
NO_NAME = "Username must not be empty"


class Upsertion(NamedTuple):
    """A user's new credential. `mechanism` is Kafka's number."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"Upsertion({self.user!r}, {self.mechanism})"


class Deletion(NamedTuple):
    """A credential that a user no longer has."""

    user: str
    mechanism: int


Described = Sequence[tuple[int, int]] | KafkaError
"""(Kafka's number of the mechanism, iterations) of each credential of a user, or the error."""


class ScramAdmin:
    """See the module's docstring."""

    def __init__(self, zk: ZooKeeperSession, configs: DynamicConfigs) -> None:
        self._zk = zk
        self._configs = configs

    async def describe(self, users: Sequence[str]) -> dict[str, Described]:
        """By user. Without `users`, all that have a credential. Raises ZkError."""
        if not users:
            (names,) = await self._zk.children_many([ConfigZNode.parent(USERS)])
            found: dict[str, Described] = {}
            for user in sorted(_users(names or ())):
                found[user] = ()
            described = await self._described(list(found))
            return {user: one for user, one in described.items() if one}
        results: dict[str, Described] = {}
        counts = Counter(users)
        for user, count in counts.items():
            if not user:
                results[user] = KafkaError(ErrorCode.RESOURCE_NOT_FOUND, NO_NAME)
            elif count > 1:
                text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
                results[user] = KafkaError(ErrorCode.DUPLICATE_RESOURCE, text)
        described = await self._described([user for user in counts if user not in results])
        for user, one in described.items():
            text = f"Attempt to describe a user credential that does not exist: {user}"
            results[user] = one or KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)
        return {user: results[user] for user in counts}

    async def _described(self, users: Sequence[str]) -> dict[str, Described]:
        results: dict[str, Described] = dict.fromkeys(users, ())
        users = [user for user in users if ConfigZNode.is_entity_name(sanitized(user))]
        for at in range(0, len(users), USERS_READ_AT_ONCE):
            part = users[at : at + USERS_READ_AT_ONCE]
            nodes = await each_readable([_path(user) for user in part], self._zk.get_many)
            for user, node in zip(part, nodes, strict=True):
                try:
                    if isinstance(node, ZkError):
                        raise ValueError(node)
                    config = ConfigZNode.decode_entity(node[0]) if node is not None else {}
                    results[user] = [
                        (number, read_credential(config[name]).iterations)
                        for number, name in MECHANISM_OF.items()
                        if name in config
                    ]
                except ValueError:
                    results[user] = KafkaError(
                        ErrorCode.UNKNOWN_SERVER_ERROR, "its settings in ZooKeeper cannot be read"
                    )
        return results

    async def alter(
        self, upsertions: Sequence[Upsertion], deletions: Sequence[Deletion]
    ) -> dict[str, KafkaError | None]:
        """By user: the error, or None. All changes of a user are made, or none."""
        results: dict[str, KafkaError | None] = dict(illegal(upsertions, deletions))
        users = users_of(upsertions, deletions)
        for user in users:
            if user in results:
                continue
            changes = {MECHANISM_OF[one.mechanism]: _value(one) for one in upsertions if one.user == user}
            removed = [MECHANISM_OF[one.mechanism] for one in deletions if one.user == user]
            there: set[str] = set()
            try:
                await self._zk.repeated(partial(self._write, user, changes, removed, there), ZOOKEEPER_WAIT_MAX_S)
                # At once, so that whoever is told of the change can log in here.
                await self._zk.repeated(partial(self._configs.read_again, _entity(user)), ZOOKEEPER_WAIT_MAX_S)
                results[user] = None
            except KafkaError as error:
                results[user] = error.with_traceback(None)
            except ZkError as away:
                results[user] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {away}")
        return results

    async def _write(self, user: str, changes: Mapping[str, str], removed: Sequence[str], there: set[str]) -> None:
        """May be called again after a lost answer. `there` keeps what of `removed` the user had."""
        for _ in range(WRITE_ATTEMPTS):
            current, version = await self._read(user)
            there.update(mechanism for mechanism in removed if mechanism in current)
            if len(there) < len(removed):
                text = "Attempt to delete a user credential that does not exist"
                raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)
            kept = {key: value for key, value in current.items() if key not in removed}
            data = ConfigZNode.encode({**kept, **changes})
            try:
                write = CreateOp(_path(user), data) if version is None else SetOp(_path(user), data, version)
                await write_announced(self._zk, write, ConfigChangeZNode.announcement(_entity(user)))
                return
            except (BadVersion, NodeExists, NoNode):
                continue
        raise ZkError(f"the settings of user {user!r} keep changing")

    async def _read(self, user: str) -> tuple[dict[str, str], int | None]:
        try:
            data, stat = await self._zk.get(_path(user))
        except NoNode:
            return {}, None
        try:
            return ConfigZNode.decode_entity(data), stat.version
        except ValueError:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "its settings in ZooKeeper cannot be read") from None


def users_of(upsertions: Sequence[Upsertion], deletions: Sequence[Deletion]) -> list[str]:
    """The users of the changes, each once."""
    return list(dict.fromkeys((*(one.user for one in upsertions), *(one.user for one in deletions))))


def illegal(upsertions: Sequence[Upsertion], deletions: Sequence[Deletion]) -> Mapping[str, KafkaError]:
    """The users none of whose changes are made, because the request is wrong, by Kafka's checks in its order. Pure."""
    wrong: dict[str, KafkaError] = {}
    for deletion in deletions:
        if not deletion.user:
            wrong[""] = KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, NO_NAME)
        elif deletion.mechanism not in MECHANISM_OF:
            wrong[deletion.user] = _unknown_mechanism()
    for user in users_of(upsertions, deletions):
        if user and not ConfigZNode.is_entity_name(sanitized(user)):
            wrong[user] = KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"ZooKeeper has no node of the name {user}")
    for upsertion in upsertions:
        if not upsertion.user:
            wrong[""] = KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, NO_NAME)
        elif upsertion.mechanism not in MECHANISM_OF:
            wrong[upsertion.user] = _unknown_mechanism()
        elif upsertion.iterations > ITERATIONS_MAX:
            wrong[upsertion.user] = KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
        elif upsertion.iterations < ITERATIONS_MIN:
            wrong[upsertion.user] = KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
        elif not upsertion.salt or not upsertion.salted_password:
            # Kafka stores them, and then nobody can log in by them.
            wrong[upsertion.user] = KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salt or the password is empty")
    pairs = Counter(
        (*((one.user, one.mechanism) for one in upsertions), *((one.user, one.mechanism) for one in deletions))
    )
    for (user, _), count in pairs.items():
        if count > 1 and user not in wrong:
            text = "A user credential cannot be altered twice in the same request"
            wrong[user] = KafkaError(ErrorCode.DUPLICATE_RESOURCE, text)
    return wrong


def _unknown_mechanism() -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")


def _value(one: Upsertion) -> str:
    return credential_text(credential_of(MECHANISM_OF[one.mechanism], one.salted_password, one.salt, one.iterations))


def _path(user: str) -> str:
    return ConfigZNode.path(USERS, sanitized(user))


def _entity(user: str) -> str:
    return f"{USERS}/{sanitized(user)}"


def _users(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        if name != DEFAULT:
            try:
                yield desanitized(name)
            except ValueError:
                continue
