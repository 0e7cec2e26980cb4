"""Creates, enlarges and deletes topics: the checks, and the writes to ZooKeeper (BAD-26, BAD-27).

Used by CreateTopics, CreatePartitions, DeleteTopics and by Metadata's auto-creation. One multi creates a topic: its settings, then
its assignment. The controller watches the children of `/brokers/topics` (CTL-6), the assignments (CTL-8) and the children of
`/admin/delete_topics` (CTL-9), and does the rest.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from broker.admin import partition_additions
from broker.cluster.metadata_cache import MetadataCache
from broker.settings.config import BrokerConfig, ConfigError
from protocol import replica_placement
from protocol.errors import ErrorCode, KafkaError
from protocol.topic_ids import topic_id_text
from protocol.topic_names import OFFSETS_TOPIC, TOPIC_NAME_MAX, TRANSACTION_STATE_TOPIC, is_valid_topic_name
from protocol.types import Assignment
from protocol.zk.session import (
    BadVersion,
    CheckOp,
    CreateOp,
    MultiFailed,
    NodeExists,
    NoNode,
    Op,
    SetOp,
    ZkError,
    ZooKeeperSession,
)
from protocol.zk.znodes import ConfigZNode, DeleteTopicZNode, TopicZNode

log = logging.getLogger(__name__)

Result = TypeVar("Result")

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
BROKER_DEFAULT = -1
WRITE_ATTEMPTS = 20
ZOOKEEPER_WAIT_MAX_S = 10.0
"""Limit of the wait for a connection to ZooKeeper. A server of an ensemble restarts in less."""
ID_RETRY_S = 0.05
"""How long to wait for the controller to give an id back that a tool before Kafka 2.8 has removed."""
PARTITIONS_ON_THE_LOOP = 1_000
"""Up to this many partitions of a topic are checked, placed and encoded on the loop, at 2 us each; more in a thread."""
PARTITION_BYTES = 8
"""The minimum size of a partition in a topic's znode."""
SHOWN_MAX = 100
"""Limit of numbers in an error message."""
ZNODE_BYTES_MAX = 1_000_000
"""ZooKeeper accepts requests of 1 MiB by default (`jute.maxbuffer`), and ends the session for a larger one."""


def check_topic_name(name: str) -> None:
    """Raises KafkaError with the reason."""
    if not is_valid_topic_name(name):
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {name[:TOPIC_NAME_MAX]!r} is illegal: 1 to {TOPIC_NAME_MAX} of a-z A-Z 0-9 . _ -, not '.' or '..'",
        )


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 means the broker's default. With `assignments` (partition -> replicas) both numbers are -1."""

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """A checked topic, ready to write."""

    name: str
    topic_id: uuid.UUID
    assignment: dict[int, tuple[int, ...]]
    configs: dict[str, str]

    @property
    def replication_factor(self) -> int:
        return len(self.assignment[0])


class TopicNames:
    """The topic names that are taken, by a topic itself or by a topic with a colliding name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._alike = {name.replace(".", "_"): name for name in self._names}

    def add(self, name: str) -> None:
        self._names.add(name)
        self._alike.setdefault(name.replace(".", "_"), name)

    def check_absent(self, name: str) -> None:
        """Raises KafkaError if the topic exists, or a topic with a colliding name."""
        if name in self._names:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        self.check_collision(name)

    def check_collision(self, name: str) -> None:
        """Raises KafkaError if another name is equal to `name` when `.` and `_` count as equal, as in metrics."""
        other = self._alike.get(name.replace(".", "_"), name)
        if other != name:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} collides with {other!r}: '.' and '_' count as equal"
            )


class TopicAdmin:
    """Uses the metadata cache for the live brokers and the existing names."""

    def __init__(
        self, config: BrokerConfig, zk: ZooKeeperSession, metadata: MetadataCache, random_below: Callable[[int], int]
    ) -> None:
        """`random_below(n)` returns a number from 0 to n - 1, for placing replicas."""
        self._config = config
        self._zk = zk
        self._metadata = metadata
        self._random_below = random_below
        self._being_created: set[str] = set()
        self._thread = asyncio.Lock()
        self._names: tuple[int, TopicNames] | None = None
        """A version of the metadata cache, and the topic names in that version."""

    def plan(self, topic: NewTopic) -> PlannedTopic:
        """Checks everything that does not need ZooKeeper. Raises KafkaError with the code and reason for the client."""
        check_topic_name(topic.name)
        if topic.name == CLUSTER_METADATA_TOPIC:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{topic.name} is the name of KRaft's log and cannot be a topic"
            )
        if self._metadata.partitions_of(topic.name):
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name!r} already exists")
        self._check_collision(topic.name, self._metadata.topics)
        configs = self._check_configs(topic.configs)
        assignment = self._check_assignment(topic) if topic.assignments else self._place(topic)
        return PlannedTopic(topic.name, _new_topic_id(), assignment, configs)

    async def planned(self, topic: NewTopic) -> PlannedTopic:
        """Like `plan`, but runs in a thread for a topic with very many partitions."""
        size = max(topic.partitions, len(topic.assignments), self._config.num_partitions)
        return await self._off_the_loop(size, partial(self.plan, topic))

    async def names(self) -> TopicNames:
        """The current topics in ZooKeeper. Raises ZkError."""
        return TopicNames(await self._zk.children(TopicZNode.PARENT))

    async def write(
        self, topic: PlannedTopic, names: TopicNames | None = None, *, wait_s: float = ZOOKEEPER_WAIT_MAX_S
    ) -> None:
        """Creates the znodes. `names`: the topics as read a moment ago. Raises KafkaError, ZkError.

        `wait_s`: how long to wait for ZooKeeper when the connection breaks meanwhile; with 0 that is an error at once.
        """
        self._check_room(len(topic.assignment) * topic.replication_factor)
        if names is None and ("." in topic.name or "_" in topic.name):
            names = await self.names()
        if names is not None:
            names.check_absent(topic.name)
        config_path = ConfigZNode.path("topics", topic.name)
        config = ConfigZNode.encode(topic.configs)
        data = await self._off_the_loop(len(topic.assignment), partial(_encoded_new, topic))
        assignment_write = CreateOp(TopicZNode.path(topic.name), data)
        await self._zk.repeated(partial(self._create, topic, assignment_write, config_path, config), wait_s)
        if names is not None:
            names.add(topic.name)

    async def _create(self, topic: PlannedTopic, assignment_write: CreateOp, config_path: str, config: bytes) -> None:
        """May be called again after a lost answer: the topic id tells an earlier call's topic from another one's."""
        config_write: Op = CreateOp(config_path, config)
        for _ in range(WRITE_ATTEMPTS):
            try:
                await self._zk.multi([config_write, assignment_write])
                return
            except MultiFailed as failure:
                if isinstance(failure.error, NoNode) and isinstance(config_write, SetOp):
                    # The settings were removed with a topic of that name, which was just deleted.
                    config_write = CreateOp(config_path, config)
                    continue
                if not isinstance(failure.error, NodeExists):
                    raise
                if failure.index == 0 and isinstance(config_write, CreateOp):
                    if await self._zk.exists(assignment_write.path) is not None:
                        break
                    # The new settings replace those that a deleted topic or an admin tool has left.
                    config_write = SetOp(config_path, config)
                    continue
                break
        if not await self._exists(topic):
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name!r} already exists")

    async def _exists(self, topic: PlannedTopic) -> bool:
        """Whether it is this topic that exists, and not another one of its name. It may have got other replicas already."""
        try:
            data, _ = await self._zk.get(TopicZNode.path(topic.name))
            size = len(data) // PARTITION_BYTES
            found_id, _ = await self._off_the_loop(size, partial(_decoded, topic.name, data))
        except (NoNode, KafkaError):
            return False
        return found_id == topic_id_text(topic.topic_id)

    async def add_partitions(
        self,
        name: str,
        count: int,
        given: Sequence[tuple[int, ...]] | None,
        *,
        validate_only: bool,
        permit: Callable[[int], None] = lambda count: None,
    ) -> frozenset[int]:
        """Adds partitions until the topic has `count` (CTL-8). Returns the numbers of the new partitions. See `partition_additions`.

        `permit` is told the number of the new partitions before they are written, once, and may raise KafkaError. Raises KafkaError, also
        UNKNOWN_TOPIC_OR_PARTITION and INVALID_TOPIC_EXCEPTION (the topic is being deleted), or ZkError.
        """
        path = TopicZNode.path(name)
        for attempt in range(WRITE_ATTEMPTS):
            if not is_valid_topic_name(name):
                raise _unknown(name)
            if await self._zk.exists(DeleteTopicZNode.path(name)) is not None:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion.")
            try:
                data, stat = await self._zk.get(path)
            except NoNode:
                raise _unknown(name) from None
            brokers = [(broker.id, broker.rack) for broker in self._metadata.brokers()]
            size = max(count, len(data) // PARTITION_BYTES)
            added, data = await self._off_the_loop(size, partial(_grown, name, data, count, given, brokers))
            self._check_room(sum(map(len, added.values())))
            if validate_only:
                return frozenset(added)
            if not attempt:
                permit(len(added))
            try:
                await self._zk.set(path, data, stat.version)
            except BadVersion:
                continue  # A reassignment or another admin changed the topic: decide again with the current content.
            except NoNode:
                raise _unknown(name) from None
            log.info("topic %s gets %d partitions: %.1000s", name, len(added), added)
            return frozenset(added)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the assignment of {name} keeps changing")

    async def request_deletion(self, name: str, topic_id: uuid.UUID | None) -> None:
        """Writes `/admin/delete_topics/<name>` (CTL-9), unless it exists already.

        With `topic_id`, only the topic with that id is deleted, not a later one of the same name. Raises KafkaError:
        UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION; or ZkError.
        """
        path = TopicZNode.path(name)
        for _ in range(WRITE_ATTEMPTS):
            version = -1
            if topic_id is not None:
                try:
                    data, stat = await self._zk.get(path)
                except NoNode:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}") from None
                found_id = _decoded(name, data)[0]
                if found_id is None:
                    await asyncio.sleep(ID_RETRY_S)
                    continue
                if found_id != topic_id_text(topic_id):
                    raise KafkaError(
                        ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}: {name} was created again"
                    )
                version = stat.version
            try:
                await self._zk.multi([CheckOp(path, version), CreateOp(DeleteTopicZNode.path(name))])
                log.info("topic %s is to be deleted", name)
                return
            except MultiFailed as failure:
                match failure.error:
                    case NodeExists():
                        return
                    case BadVersion():
                        continue
                    case NoNode():
                        raise _unknown(name) from None
                raise
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the node of {name} keeps changing, or has no topic id")

    async def create_automatically(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Creates each topic with the broker's defaults, `__consumer_offsets` with `offsets.topic.*`, `__transaction_state`
        with `transaction.state.log.*`.

        Returns an error for each name. LEADER_NOT_AVAILABLE, which clients retry: the topic exists by now, or ZooKeeper failed. It does
        not wait for ZooKeeper: the client waits for its other topics, too, and perhaps to produce on the same connection.
        """
        return {name: await self._create_automatically(name) for name in dict.fromkeys(names)}

    async def _create_automatically(self, name: str) -> ErrorCode:
        if name in self._being_created:
            return ErrorCode.LEADER_NOT_AVAILABLE
        self._being_created.add(name)
        try:
            await self.write(self.plan(self._automatic_topic(name)), wait_s=0)
            log.info("created topic %s, requested by a client", name)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                log.warning("topic %s was not created: %s", name, error)
                return error.code
        except ZkError as error:
            log.warning("topic %s was not created: %s", name, error)
        finally:
            self._being_created.discard(name)
        return ErrorCode.LEADER_NOT_AVAILABLE

    def _automatic_topic(self, name: str) -> NewTopic:
        """The topic to create. Internal topics get the settings that Kafka's AutoTopicCreationManager gives them."""
        config = self._config
        if name == OFFSETS_TOPIC:
            return NewTopic(
                name,
                config.offsets_topic_num_partitions,
                config.offsets_topic_replication_factor,
                configs={
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": str(config.offsets_topic_segment_bytes),
                },
            )
        if name == TRANSACTION_STATE_TOPIC:
            return NewTopic(
                name,
                config.transaction_state_log_num_partitions,
                config.transaction_state_log_replication_factor,
                configs={
                    "cleanup.policy": "compact",
                    "compression.type": "uncompressed",
                    "min.insync.replicas": str(config.transaction_state_log_min_isr),
                    "segment.bytes": str(config.transaction_state_log_segment_bytes),
                    "unclean.leader.election.enable": "false",
                },
            )
        return NewTopic(name)

    async def _off_the_loop(self, partitions: int, work: Callable[[], Result]) -> Result:
        """Runs `work`: at once, or in a thread if that many partitions would block the loop. One thread runs at a time."""
        if partitions <= PARTITIONS_ON_THE_LOOP:
            return work()
        async with self._thread:
            return await asyncio.get_running_loop().run_in_executor(None, work)

    def _check_collision(self, name: str, others: Callable[[], Sequence[str]]) -> None:
        if "." not in name and "_" not in name:
            return
        version = self._metadata.version
        if self._names is None or self._names[0] != version:
            self._names = (version, TopicNames(others()))
        self._names[1].check_collision(name)

    def _check_room(self, replicas: int) -> None:
        """Checks `max.broker.partitions` (KIP-578), the limit of replicas per live broker, for all live brokers together."""
        each, brokers = self._config.max_broker_partitions, len(self._metadata.brokers())
        if self._metadata.replica_count() + replicas > each * brokers:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{replicas} more replicas would be too many: max.broker.partitions is {each}, with {brokers} live brokers",
            )

    def _check_configs(self, configs: Mapping[str, str | None]) -> dict[str, str]:
        missing = sorted(key for key, value in configs.items() if value is None)
        if missing:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"missing value for {', '.join(missing)}")
        given = {key: value for key, value in configs.items() if value is not None}
        try:
            self._config.topic_defaults().with_overrides(given).check_together()
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        return given

    def _check_assignment(self, topic: NewTopic) -> dict[int, tuple[int, ...]]:
        if topic.partitions != BROKER_DEFAULT or topic.replication_factor != BROKER_DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "partition count and replication factor must be -1 with an assignment"
            )
        assignment = dict(sorted(topic.assignments.items()))
        if list(assignment) != list(range(len(assignment))):
            found = list(assignment)[:SHOWN_MAX]
            raise _bad_assignment(f"partitions must be 0 to {len(assignment) - 1}, found {found}")
        size = len(assignment[0])
        live = {broker.id for broker in self._metadata.brokers()}
        for partition, replicas in assignment.items():
            if not replicas:
                raise _bad_assignment(f"partition {partition} has no replicas")
            if len(set(replicas)) != len(replicas):
                raise _bad_assignment(f"partition {partition} has a duplicate replica: {list(replicas[:SHOWN_MAX])}")
            if len(replicas) != size:
                raise _bad_assignment(f"partition {partition} has {len(replicas)} replicas, partition 0 has {size}")
            if unknown := sorted(set(replicas) - live):
                raise _bad_assignment(f"partition {partition}: no live broker has the id {unknown[0]}")
        return assignment

    def _place(self, topic: NewTopic) -> dict[int, tuple[int, ...]]:
        partitions = self._config.num_partitions if topic.partitions == BROKER_DEFAULT else topic.partitions
        factor = topic.replication_factor
        if factor == BROKER_DEFAULT:
            factor = self._config.default_replication_factor
        brokers = [(broker.id, broker.rack) for broker in self._metadata.brokers()]
        if partitions <= 0:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions: expected at least 1")
        partition_additions.check_count(partitions)
        if factor <= 0:
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, f"replication factor {factor}: expected at least 1")
        if factor > len(brokers):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {factor} is larger than the {len(brokers)} live brokers",
            )
        start, shift = self._random_below(len(brokers)), self._random_below(len(brokers))
        return replica_placement.place(brokers, partitions, factor, start_index=start, shift=shift)


def _encoded_new(topic: PlannedTopic) -> bytes:
    assignment = {partition: Assignment(replicas) for partition, replicas in topic.assignment.items()}
    return _encoded(topic_id_text(topic.topic_id), assignment)


def _grown(
    name: str,
    data: bytes,
    count: int,
    given: Sequence[tuple[int, ...]] | None,
    brokers: Sequence[tuple[int, str | None]],
) -> tuple[dict[int, tuple[int, ...]], bytes]:
    """(the new partitions, the topic's znode with them). Raises KafkaError."""
    topic_id, existing = _decoded(name, data)
    if not existing:
        raise _unknown(name)
    added = partition_additions.plan(name, existing, count, given, brokers)
    grown = existing | {partition: Assignment(replicas) for partition, replicas in added.items()}
    return added, _encoded(topic_id, grown)


def _encoded(topic_id: str | None, assignment: Mapping[int, Assignment]) -> bytes:
    """The topic's znode. Raises KafkaError if it is too large for ZooKeeper."""
    data = TopicZNode.encode(topic_id, assignment)
    if len(data) > ZNODE_BYTES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{len(assignment)} partitions with these replicas are {len(data)} bytes in ZooKeeper, whose limit is "
            f"{ZNODE_BYTES_MAX} for one topic",
        )
    return data


def _decoded(name: str, data: bytes) -> tuple[str | None, dict[int, Assignment]]:
    """(topic id, partition -> assignment) from the topic's znode. Raises KafkaError if it is not readable."""
    try:
        return TopicZNode.decode(data)
    except ValueError as error:
        reason = f"the node of topic '{name}' in ZooKeeper cannot be read: {error}"
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, reason) from None


def _unknown(name: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


def _bad_assignment(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def _new_topic_id() -> uuid.UUID:
    """A random id whose text does not start with `-`, which command lines would take for an option (as in Kafka)."""
    while True:
        topic_id = uuid.uuid4()
        if not topic_id_text(topic_id).startswith("-"):
            return topic_id
