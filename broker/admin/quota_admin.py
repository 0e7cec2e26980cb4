"""Describes and changes the quotas of users, client ids and addresses in `/config` (KIP-546; `ZkAdminManager` in Kafka 3.9).

Any broker describes and changes them. A change keeps the other settings of its znode, as the passwords of a user, is written conditional on
the version that was read, and is announced to all brokers in the same transaction. A znode without settings is removed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from broker.admin.topic_admin import ZOOKEEPER_WAIT_MAX_S
from broker.process.announced_writes import write_announced
from broker.quotas.quota_configs import DOUBLE, OF_ADDRESSES, OF_CLIENTS, quota_text, read_quota
from broker.settings.dynamic_configs import DynamicConfigs
from broker.settings.entity_configs import CLIENTS, IPS, READ_AT_ONCE, USERS, all_entities, is_entity
from protocol.errors import ErrorCode, KafkaError
from protocol.zk.entity_names import DEFAULT, desanitized, sanitized
from protocol.zk.session import (
    BadVersion,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotEmpty,
    SetOp,
    ZkError,
    ZooKeeperSession,
    each_readable,
)
from protocol.zk.znodes import ConfigChangeZNode, ConfigZNode

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"
"""Kafka's names of the kinds of entities."""

EXACT, OF_DEFAULT, ANY = 0, 1, 2
"""Kafka's match types: this name, the default, every name."""
WRITE_ATTEMPTS = 20
CHECKED_AT_ONCE = 20
"""Changes between two pauses: those that are refused take no request to ZooKeeper."""

Quotas = Mapping[str, float]
EntityNames = Mapping[str, str | None]
"""The kind of entity -> its name; None: the default."""
Resolves = Callable[[str], Awaitable[bool]]


class Component(NamedTuple):
    """What a filter wants of one kind of entity. `match` is the name for EXACT."""

    kind: str
    match_type: int
    match: str | None

    def matches(self, names: EntityNames) -> bool:
        if self.kind not in names:
            return False
        if self.match_type == ANY:
            return True
        return names[self.kind] == (self.match if self.match_type == EXACT else None)


class Alteration(NamedTuple):
    """The changes of one entity: (quota, its value; None: it is removed)."""

    entity: EntityNames
    changes: Sequence[tuple[str, float | None]]


class QuotaAdmin:
    """See the module's docstring. `resolves` says whether the name of a host has an address."""

    def __init__(self, zk: ZooKeeperSession, configs: DynamicConfigs, resolves: Resolves) -> None:
        self._zk = zk
        self._configs = configs
        self._resolves = resolves

    async def describe(self, components: Sequence[Component], *, is_strict: bool) -> list[tuple[EntityNames, Quotas]]:
        """The entities with quotas that match. Strict: they have no other kinds. Raises KafkaError, ZkError."""
        check_filter(components)
        wanted = []
        for number, name in enumerate(await all_entities(self._zk), 1):
            if number % READ_AT_ONCE == 0:
                await asyncio.sleep(0)
            entity = names_of(name)
            if entity is not None and is_wanted(entity, components, is_strict=is_strict):
                wanted.append((name, entity))
        described: list[tuple[EntityNames, Quotas]] = []
        for at in range(0, len(wanted), READ_AT_ONCE):
            part = wanted[at : at + READ_AT_ONCE]
            nodes = await each_readable([f"/config/{name}" for name, _ in part], self._zk.get_many)
            for (_, entity), node in zip(part, nodes, strict=True):
                if node is None:
                    continue
                try:
                    if isinstance(node, ZkError):
                        raise ValueError(node)
                    quotas = _quotas(entity, ConfigZNode.decode_entity(node[0]))
                except ValueError:
                    raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "") from None
                if quotas:
                    described.append((entity, quotas))
        return described

    async def alter(self, alterations: Iterable[Alteration], *, validate_only: bool) -> list[KafkaError | None]:
        """The error of each, or None. They are made one after the other."""
        results: list[KafkaError | None] = []
        for number, alteration in enumerate(alterations, 1):
            if number % CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                await self._alter(alteration, validate_only=validate_only)
                results.append(None)
            except KafkaError as error:
                results.append(error.with_traceback(None))
            except ZkError as away:
                results.append(KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {away}"))
        return results

    async def _alter(self, alteration: Alteration, *, validate_only: bool) -> None:
        name = entity_name(alteration.entity)
        ip = alteration.entity.get(IP)
        if ip is not None and not await self._resolves(sanitized(ip)):
            raise _invalid(f"{sanitized(ip)} is not a valid IP or resolvable host.")
        changes = texts_of(alteration)
        if not is_entity(name):
            raise _invalid(f"ZooKeeper has no node of the name {name}")
        if validate_only:
            return
        await self._zk.repeated(partial(self._write, name, changes), ZOOKEEPER_WAIT_MAX_S)
        # At once, so that the quota counts here for whoever is told of the change.
        await self._zk.repeated(partial(self._configs.read_again, name), ZOOKEEPER_WAIT_MAX_S)

    async def _write(self, name: str, changes: Mapping[str, str | None]) -> None:
        """May be called again after a lost answer: the same changes, made twice, give the same settings, and are announced twice."""
        path = f"/config/{name}"
        announcement = ConfigChangeZNode.announcement(name)
        for _ in range(WRITE_ATTEMPTS):
            try:
                data, stat = await self._zk.get(path)
            except NoNode:
                data, stat = b"", None
            try:
                current = ConfigZNode.decode_entity(data)
            except ValueError:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "") from None
            merged: dict[str, str | None] = {**current, **changes}
            config = {key: text for key, text in merged.items() if text is not None}
            try:
                if stat is None:
                    if config:
                        await self._zk.ensure_path(path.rpartition("/")[0])
                    write = CreateOp(path, ConfigZNode.encode(config)) if config else None
                    await write_announced(self._zk, write, announcement)
                elif config or not await self._removed(path, stat.version, announcement):
                    await write_announced(self._zk, SetOp(path, ConfigZNode.encode(config), stat.version), announcement)
                return
            except (BadVersion, NodeExists, NoNode):
                continue
        raise ZkError(f"the settings of {name} keep changing")

    async def _removed(self, path: str, version: int, announcement: CreateOp) -> bool:
        """Removes a znode without settings, and its parents if nothing else is in them. False: others are below it."""
        try:
            await write_announced(self._zk, DeleteOp(path, version), announcement)
        except NotEmpty:
            return False
        parent = path.rpartition("/")[0]
        if parent.endswith(f"/{CLIENTS}") and parent != ConfigZNode.parent(CLIENTS):
            user = parent.rpartition("/")[0]
            try:
                await self._zk.delete(parent)
                data, stat = await self._zk.get(user)
                if not ConfigZNode.decode_entity(data):
                    await self._zk.delete(user, stat.version)
            except (NotEmpty, NoNode, BadVersion, ValueError):
                pass  # somebody needs it
        return True


def check_filter(components: Sequence[Component]) -> None:
    """Raises KafkaError, by Kafka's checks in its order."""
    texts = {USER: "user", CLIENT_ID: "client", IP: "ip"}
    kinds: set[str] = set()
    for kind, match_type, match in components:
        if match_type not in (EXACT, OF_DEFAULT, ANY) or (match_type == EXACT and match is None):
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "")
        if kind == "":
            raise _invalid("Unexpected empty filter component entity type")
        if kind not in texts:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{kind}' not supported")
        if kind in kinds:
            raise _invalid(f"Duplicate {texts[kind]} filter component entity type")
        kinds.add(kind)
    if IP in kinds and len(kinds) > 1:
        raise _invalid(
            "Invalid entity filter component combination, IP filter component should not be used with user or clientId "
            "filter component."
        )


def is_wanted(entity: EntityNames, components: Sequence[Component], *, is_strict: bool) -> bool:
    """Whether a filter wants the entity."""
    if not all(component.matches(entity) for component in components):
        return False
    return not is_strict or len(components) == len(entity)


def entity_name(entity: EntityNames) -> str:
    """The name of its znode below `/config`. Raises KafkaError, by Kafka's checks in its order."""
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    nodes = {kind: DEFAULT if name is None else sanitized(name) for kind, name in entity.items()}
    if IP in nodes:
        if len(nodes) > 1:
            raise _invalid("Invalid quota entity combination, IP entity should not be used with user/client ID entity.")
        return f"{IPS}/{nodes[IP]}"
    if USER not in nodes:
        return f"{CLIENTS}/{nodes[CLIENT_ID]}"
    if CLIENT_ID in nodes:
        return f"{USERS}/{ConfigZNode.of_both(nodes[USER], nodes[CLIENT_ID])}"
    return f"{USERS}/{nodes[USER]}"


def names_of(name: str) -> EntityNames | None:
    """The entity of a znode below `/config`; None: its name is no text."""
    kind, *nodes = name.split("/")
    kinds = [IP] if kind == IPS else [CLIENT_ID] if kind == CLIENTS else [USER, CLIENT_ID]
    try:
        named = [None if node == DEFAULT else desanitized(node) for node in nodes[::2]]
    except ValueError:
        return None
    return dict(zip(kinds, named, strict=False))


def texts_of(alteration: Alteration) -> dict[str, str | None]:
    """The texts that ZooKeeper gets; None: the quota is removed. Raises KafkaError.

    Kafka also removes what is no quota, such as the password of a user.
    """
    types = OF_ADDRESSES if IP in alteration.entity else OF_CLIENTS
    texts: dict[str, str | None] = {}
    for key, value in alteration.changes:
        if value is None:
            if key in types:
                texts[key] = None
            continue
        if key not in types:
            raise _invalid(f"Invalid configuration key {key}")
        try:
            texts[key] = quota_text(types[key], value)
        except ValueError as problem:
            raise _invalid(f"Configuration {key} {problem}") from None
    return texts


async def resolves(host: str) -> bool:
    """Whether the name has an address, or is one."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        try:
            await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return False
    return True


def _quotas(entity: EntityNames, config: Mapping[str, str]) -> Quotas:
    types = OF_ADDRESSES if IP in entity else OF_CLIENTS
    return {key: read_quota(DOUBLE, text) for key, text in config.items() if key in types}


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
