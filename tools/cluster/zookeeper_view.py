"""Reads a cluster's znodes. Creates nothing, not even a missing chroot."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from protocol.types import Assignment, BrokerInfo, LeaderAndIsr, TopicPartition
from protocol.zk.session import NoNode, Stat, ZkError, ZooKeeperSession
from protocol.zk.znodes import (
    BrokerIdZNode,
    ConfigZNode,
    ControllerEpochZNode,
    ControllerZNode,
    DeleteTopicZNode,
    PartitionStateZNode,
    PreferredElectionZNode,
    ReassignPartitionsZNode,
    TopicZNode,
)
from tools.admin.bootstrap import addresses_of, resolves
from tools.admin.config_values import BROKERS, ENTITY_DEFAULT, TOPICS, Entity
from tools.cluster.zookeeper_place import ZooKeeperPlace
from tools.failures import AdminError

SESSION_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_S = 5.0
DEFAULT_BROKER_NODE = "<default>"

Value = TypeVar("Value")


@dataclass(slots=True)
class ZooKeeperView:
    """The znodes of a cluster, or of some of its topics. `unreadable`: path -> why its content cannot be parsed."""

    controller: int | None = None
    controller_epoch: int | None = None
    brokers: dict[int, BrokerInfo] = field(default_factory=dict)
    topic_ids: dict[str, str | None] = field(default_factory=dict)
    assignment: dict[TopicPartition, Assignment] = field(default_factory=dict)
    states: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    configs: dict[Entity, dict[str, str]] = field(default_factory=dict)
    pending: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def to_be_deleted(self) -> set[str]:
        """Topics under deletion: brokers no longer show them to clients."""
        parent = DeleteTopicZNode.path("")
        return {path.removeprefix(parent) for path in self.pending if path.startswith(parent)}

    @property
    def topics_without_id(self) -> tuple[str, ...]:
        """The topics whose node has no id. None if no topic has one: the brokers are older than Kafka 2.8, and do not need ids."""
        if not any(self.topic_ids.values()):
            return ()
        missing = (topic for topic, topic_id in self.topic_ids.items() if topic_id is None)
        return tuple(sorted(topic for topic in missing if topic not in self.to_be_deleted))


class ZooKeeperReader:
    """Reads below a chroot. Call `open` first and `close` at the end."""

    def __init__(self, place: ZooKeeperPlace, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        hosts = place.connect
        self._connect_timeout_s = connect_timeout_s
        addresses, slash, chroot = hosts.partition("/")
        self._hosts = hosts
        self._root = (slash + chroot).rstrip("/")
        # The session gets no chroot: it would create a missing one.
        self._session = ZooKeeperSession(addresses, session_timeout_ms=SESSION_TIMEOUT_MS, access=place.access)

    async def open(self) -> None:
        """Raises AdminError if no ZooKeeper answers, or if it has no Kafka cluster there."""
        with contextlib.suppress(ValueError):  # no addresses: the session says so
            names = [host for host, _ in addresses_of(self._hosts.partition("/")[0])]
            if not any(map(resolves, names)):
                raise AdminError(f"--zookeeper {self._hosts}: the host name {names[0]} does not resolve")
        try:
            await self._session.start(self._connect_timeout_s)
            found = await self._session.exists(self._root + BrokerIdZNode.PARENT)
        except ZkError as problem:
            raise AdminError(f"--zookeeper {self._hosts}: {problem}") from None
        if found is None:
            raise AdminError(
                f"--zookeeper {self._hosts}: found no cluster (no {BrokerIdZNode.PARENT}); is the chroot right?"
            )

    async def close(self) -> None:
        await self._session.close()

    async def read(self, topics: Collection[str] | None = None) -> ZooKeeperView:
        """Reads all topics, or these only. Raises AdminError if the connection breaks."""
        try:
            return await self._read(topics)
        except ZkError as problem:
            raise AdminError(f"--zookeeper {self._hosts}: {problem}") from None

    async def _read(self, topics: Collection[str] | None) -> ZooKeeperView:
        view = ZooKeeperView()
        controller, epoch = await self._get([ControllerZNode.PATH, ControllerEpochZNode.PATH])
        view.controller = _decoded(view, ControllerZNode.PATH, controller, ControllerZNode.decode)
        view.controller_epoch = _decoded(view, ControllerEpochZNode.PATH, epoch, ControllerEpochZNode.decode)
        await self._read_brokers(view)
        names = [name for name in await self._children(TopicZNode.PARENT) if topics is None or name in topics]
        for name, node in zip(names, await self._get([TopicZNode.path(name) for name in names]), strict=True):
            decoded = _decoded(view, TopicZNode.path(name), node, TopicZNode.decode)
            if decoded is not None:
                view.topic_ids[name] = decoded[0]
                view.assignment |= {TopicPartition(name, number): a for number, a in sorted(decoded[1].items())}
        await self._read_states(view)
        await self._read_configs(view, names)
        await self._read_pending(view)
        return view

    async def _read_brokers(self, view: ZooKeeperView) -> None:
        ids = BrokerIdZNode.broker_ids(await self._children(BrokerIdZNode.PARENT))
        paths = [BrokerIdZNode.path(broker) for broker in ids]
        for broker, path, node in zip(ids, paths, await self._get(paths), strict=True):
            if node is not None:
                epoch = node[1].czxid
                info = _decoded(view, path, node, partial(BrokerIdZNode.decode, broker, epoch=epoch))
                if info is not None:
                    view.brokers[broker] = info

    async def _read_states(self, view: ZooKeeperView) -> None:
        partitions = list(view.assignment)
        paths = [PartitionStateZNode.path(partition) for partition in partitions]
        for partition, path, node in zip(partitions, paths, await self._get(paths), strict=True):
            if node is not None:
                version = node[1].version
                state = _decoded(view, path, node, partial(PartitionStateZNode.decode, version=version))
                if state is not None:
                    view.states[partition] = state

    async def _read_configs(self, view: ZooKeeperView, topics: Sequence[str]) -> None:
        entities = {Entity(TOPICS, topic): ConfigZNode.path(TOPICS, topic) for topic in topics}
        entities |= {Entity(BROKERS, str(broker)): ConfigZNode.path(BROKERS, str(broker)) for broker in view.brokers}
        entities[Entity(BROKERS, ENTITY_DEFAULT)] = ConfigZNode.path(BROKERS, DEFAULT_BROKER_NODE)
        nodes = await self._get(list(entities.values()))
        for (entity, path), node in zip(entities.items(), nodes, strict=True):
            view.configs[entity] = _decoded(view, path, node, ConfigZNode.decode) or {}

    async def _read_pending(self, view: ZooKeeperView) -> None:
        """Reads the requests that the controller has not processed yet."""
        paths = [ReassignPartitionsZNode.PATH, PreferredElectionZNode.PATH]
        for path, node in zip(paths, await self._get(paths), strict=True):
            if node is not None:
                view.pending[path] = node[0].decode(errors="replace")
        for topic in await self._children(DeleteTopicZNode.PARENT):
            view.pending[DeleteTopicZNode.path(topic)] = "to be deleted"

    async def _get(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        return await self._session.get_many([self._root + path for path in paths]) if paths else []

    async def _children(self, path: str) -> list[str]:
        try:
            return sorted(await self._session.children(self._root + path))
        except NoNode:
            return []


def _decoded(
    view: ZooKeeperView, path: str, node: tuple[bytes, Stat] | None, decode: Callable[[bytes], Value]
) -> Value | None:
    """The decoded value; None for a missing or unreadable node, which is recorded."""
    if node is None:
        return None
    try:
        return decode(node[0])
    except ValueError as problem:
        view.unreadable[path] = str(problem)
        return None


def client_address(
    broker: BrokerInfo, control_plane_listener: str, protocol: str = "PLAINTEXT"
) -> tuple[str, int] | None:
    """A broker's address for clients of this security protocol; None if it has none."""
    usable: list[Any] = [e for e in broker.endpoints if e.security_protocol == protocol]
    usable.sort(key=lambda endpoint: endpoint.listener == control_plane_listener)
    return (usable[0].host, usable[0].port) if usable else None
