"""The only adapter to confluent-kafka's AdminClient: returns plain values and raises one-line `AdminError`s."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tools.admin.client_settings import read_command_config
from tools.admin.cluster_view import ClusterView, NodeView
from tools.admin.topic_views import ConfigView, PartitionView, TopicView
from tools.failures import AdminError, NotServed, TopicExists

CONNECT_TIMEOUT_S = 5.0
CONNECT_ATTEMPTS = 3
"""Of `CONNECT_TIMEOUT_S` each, for a question that any broker can answer."""
REQUEST_TIMEOUT_S = 30.0
RETRY_PAUSE_S = 0.2

NOT_SERVED = frozenset({KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION})
NOBODY_ANSWERS = frozenset({KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN})

Answer = TypeVar("Answer")


class KafkaAdmin:
    """Requests to one cluster, each with a time limit."""

    def __init__(
        self,
        bootstrap_servers: str,
        command_config: Path | None = None,
        *,
        properties: Mapping[str, str] = MappingProxyType({}),
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        """Does not connect yet. `properties` are librdkafka's. Raises AdminError for a bad command config or address."""
        self._bootstrap_servers = bootstrap_servers
        self._command_config = command_config
        self._connect_timeout_s = connect_timeout_s
        # A command prints one line for an error: librdkafka's own log lines are shown only if they are critical.
        settings = {"client.id": "ottla-admin", **properties, **read_command_config(command_config)}
        self._settings = settings | {"bootstrap.servers": bootstrap_servers, "log_level": "2"}
        try:
            self._client = AdminClient(self._settings)
        except (KafkaException, ValueError) as problem:
            source = f"{command_config}: " if command_config else ""
            raise AdminError(f"{source}{error_text(problem)}") from None

    def _connect_anew(self) -> None:
        """Makes a new client, which looks up leaders and coordinators. The old client may keep asking the former ones."""
        self._client = AdminClient(self._settings)

    # reading

    def cluster(self) -> ClusterView:
        """One broker's Metadata. Raises AdminError if no broker answers in time."""
        metadata = self._of_any_broker(lambda timeout_s: self._client.list_topics(timeout=timeout_s))
        return ClusterView(
            controller=metadata.controller_id if metadata.controller_id >= 0 else None,
            nodes=tuple(NodeView(b.id, b.host, b.port) for _, b in sorted(metadata.brokers.items())),
            topics={name: _partitions(topic) for name, topic in sorted(metadata.topics.items())},
        )

    def nodes(self) -> tuple[NodeView, ...]:
        """The live brokers with their racks, sorted by id. Raises AdminError."""
        described = self._of_any_broker(
            lambda timeout_s: self._result(self._client.describe_cluster(request_timeout=timeout_s))
        )
        nodes = sorted(described.nodes, key=lambda node: node.id)
        return tuple(NodeView(node.id, node.host, node.port, node.rack or None) for node in nodes)

    def _of_any_broker(self, ask: Callable[[float], Answer]) -> Answer:
        """The answer to `ask(timeout in seconds)`, which any broker can give. Raises AdminError.

        A client asks one of the brokers it is connected to, and waits for that one even when it hangs, or is killed meanwhile. A new
        client may ask another. Where no broker takes a connection, nothing is tried again.
        """
        begun = time.monotonic()
        for attempt in range(1, CONNECT_ATTEMPTS + 1):
            try:
                return ask(self._connect_timeout_s)
            except KafkaException as problem:
                code = error_code(problem)
                if code not in NOBODY_ANSWERS:
                    raise AdminError(error_text(problem)) from None
                if code != KafkaError._TIMED_OUT or attempt == CONNECT_ATTEMPTS:
                    break
            self._connect_anew()
        raise AdminError(
            f"no broker answers at {self._bootstrap_servers} within {time.monotonic() - begun:.0f} s; "
            "check the address and that the cluster runs (`ottla cluster status`)"
        )

    # topics

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        replica_assignment: Sequence[Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Creates one topic; None means the brokers' default. Raises TopicExists, AdminError."""
        request: dict[str, Any] = {"num_partitions": -1 if partitions is None else partitions}
        if replica_assignment is not None:
            request["num_partitions"] = len(replica_assignment)
            request["replica_assignment"] = [list(replicas) for replicas in replica_assignment]
        else:
            request["replication_factor"] = -1 if replication_factor is None else replication_factor
        new_topic = NewTopic(topic, config=dict(configs or {}), **request)
        try:
            self._ask_controller(
                lambda: self._client.create_topics([new_topic], operation_timeout=REQUEST_TIMEOUT_S)[topic]
            )
        except KafkaException as problem:
            raise self._create_error(topic, problem) from None

    def delete_topic(self, topic: str) -> bool:
        """Returns False if the topic does not exist. Raises AdminError."""
        try:
            self._ask_controller(
                lambda: self._client.delete_topics([topic], operation_timeout=REQUEST_TIMEOUT_S)[topic]
            )
        except KafkaException as problem:
            if error_code(problem) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return False
            raise refusal(f"topic {topic!r} was not deleted", problem, DELETE_ADVICE) from None
        return True

    def create_partitions(self, topic: str, total: int, added: Sequence[Sequence[int]] | None = None) -> None:
        """Grows the topic to `total` partitions; `added` has the replicas of each new one. Raises AdminError."""
        replicas = {} if added is None else {"replica_assignment": [list(brokers) for brokers in added]}
        request = NewPartitions(topic, total, **replicas)
        try:
            self._ask_controller(
                lambda: self._client.create_partitions([request], operation_timeout=REQUEST_TIMEOUT_S)[topic]
            )
        except KafkaException as problem:
            raise refusal(f"no partitions were added to topic {topic!r}", problem, PARTITIONS_ADVICE) from None

    def describe_topics(self, topics: Iterable[str]) -> list[TopicView]:
        """The topics that still exist, with configs if the cluster supports DescribeConfigs. Raises AdminError."""
        names = sorted(topics)
        if not names:
            return []
        configs = self._configs(names)
        views = []
        for name, future in self._client.describe_topics(
            TopicCollection(names), request_timeout=REQUEST_TIMEOUT_S
        ).items():
            try:
                description = self._result(future)
            except KafkaException as problem:
                if error_code(problem) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue  # deleted after it was listed
                raise AdminError(f"topic {name!r}: {error_text(problem)}") from None
            views.append(_topic_view(description, None if configs is None else configs.get(name, {})))
        return sorted(views, key=lambda view: view.topic)

    # configs

    def alter_topic_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Sets each key on the topic, or removes it (None); other keys stay. Raises AdminError."""
        self._alter_configs(ConfigResource(ResourceType.TOPIC, topic, incremental_configs=_entries(changes)))

    def alter_broker_configs(self, broker: int, changes: Mapping[str, str | None]) -> None:
        """Sets or removes keys on one live broker; the request goes to that broker. Raises AdminError."""
        self._alter_configs(ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=_entries(changes)))

    def _alter_configs(self, resource: ConfigResource) -> None:
        what = f"configs of {resource.restype.name.lower()} {resource.name!r} were not changed"
        try:
            futures = self._client.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
            self._result(futures[resource])
        except KafkaException as problem:
            raise refusal(what, problem, CONFIG_ADVICE) from None

    def _configs(self, topics: Sequence[str]) -> dict[str, dict[str, ConfigView]] | None:
        """Configs by topic, or None if the cluster does not support DescribeConfigs."""
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        configs = {}
        for resource, future in self._client.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S).items():
            try:
                entries = self._result(future)
            except KafkaException as problem:
                if error_code(problem) in NOT_SERVED:
                    return None
                if error_code(problem) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise AdminError(f"configs of topic {resource.name!r}: {error_text(problem)}") from None
            configs[resource.name] = {
                key: ConfigView(
                    "" if entry.value is None else entry.value,
                    is_default=ConfigSource(entry.source) is ConfigSource.DEFAULT_CONFIG,
                    is_override=ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG,
                )
                for key, entry in entries.items()
            }
        return configs

    def _result(self, future: Future[Answer]) -> Answer:
        try:
            return future.result(timeout=REQUEST_TIMEOUT_S + CONNECT_TIMEOUT_S)
        except TimeoutError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None

    def _ask_controller(self, request: Callable[[], Future[Answer]]) -> Answer:
        """Retries while no broker is the controller, for at most REQUEST_TIMEOUT_S. Raises KafkaException."""
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            try:
                return self._result(request())
            except KafkaException as problem:
                if error_code(problem) != KafkaError.NOT_CONTROLLER or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_PAUSE_S)

    def _create_error(self, topic: str, problem: KafkaException) -> AdminError:
        """The error for a refused creation: the broker's text, which has the details, then advice."""
        text = error_text(problem).rstrip(".")
        code = error_code(problem)
        if code == KafkaError.TOPIC_ALREADY_EXISTS:
            return TopicExists(
                f"topic {topic!r} already exists; see `ottla topic describe {topic}`, or --if-not-exists"
            )
        if code == KafkaError.INVALID_REPLICATION_FACTOR:
            brokers = len(self.cluster().live_brokers)
            return AdminError(f"{text}; use --replication-factor 1 to {brokers}, or start more brokers")
        return refusal(f"topic {topic!r} was not created", problem, CREATE_ADVICE)


CREATE_ADVICE = {
    KafkaError.INVALID_PARTITIONS: "--partitions must be at least 1",
    KafkaError.INVALID_REPLICA_ASSIGNMENT: "check --replica-assignment against the brokers' ids",
    KafkaError.INVALID_CONFIG: "correct --config",
    KafkaError.TOPIC_EXCEPTION: "choose another name",
    KafkaError.REQUEST_TIMED_OUT: "it may still be created: see `ottla topic describe`",
    KafkaError._TIMED_OUT: "it may still be created: see `ottla topic describe`",
}
DELETE_ADVICE = {
    KafkaError.REQUEST_TIMED_OUT: "it may still be deleted: see `ottla topic list`",
    KafkaError._TIMED_OUT: "it may still be deleted: see `ottla topic list`",
    KafkaError.TOPIC_DELETION_DISABLED: "the brokers' delete.topic.enable is false",
}
PARTITIONS_ADVICE = {
    KafkaError.INVALID_PARTITIONS: "--partitions must be above the current count",
    KafkaError.INVALID_REPLICA_ASSIGNMENT: "check --replica-assignment against the brokers' ids",
    KafkaError.REASSIGNMENT_IN_PROGRESS: "wait for the reassignment: see `ottla reassign list`",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "`ottla topic list` shows the topics",
}
CONFIG_ADVICE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "`ottla topic list` shows the topics",
    KafkaError._TIMED_OUT: "is the broker up? See `ottla cluster health`",
    KafkaError._TRANSPORT: "is the broker up? See `ottla cluster health`",
}


def refusal(what: str, problem: KafkaException, advice: Mapping[int, str]) -> AdminError:
    """What failed, the broker's reason, and what to do."""
    code = error_code(problem)
    if code in NOT_SERVED:
        return NotServed(f"{what}: this cluster does not support that request ({error_text(problem)})")
    if code == KafkaError.NOT_CONTROLLER:
        return AdminError(f"{what}: no controller is elected; see `ottla cluster health`")
    hint = advice.get(code)
    return AdminError(f"{what}: {error_text(problem).rstrip('.')}" + (f"; {hint}" if hint else ""))


def _entries(changes: Mapping[str, str | None]) -> list[ConfigEntry]:
    return [
        ConfigEntry(
            key,
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for key, value in changes.items()
    ]


def _partitions(topic: Any) -> tuple[PartitionView, ...]:
    """The partitions of the client's TopicMetadata, in order."""
    return tuple(
        PartitionView(
            partition=partition.id,
            leader=None if partition.leader < 0 else partition.leader,
            replicas=tuple(partition.replicas),
            isr=tuple(partition.isrs),
        )
        for _, partition in sorted(topic.partitions.items())
    )


def _topic_view(description: Any, configs: Mapping[str, ConfigView] | None) -> TopicView:
    partitions = tuple(
        PartitionView(
            partition=partition.id,
            leader=None if partition.leader is None or partition.leader.id < 0 else partition.leader.id,
            replicas=tuple(node.id for node in partition.replicas),
            isr=tuple(node.id for node in partition.isr),
        )
        for partition in sorted(description.partitions, key=lambda partition: partition.id)
    )
    # librdkafka encodes ids in standard base64, Kafka in the URL-safe alphabet.
    topic_id = str(description.topic_id).replace("+", "-").replace("/", "_")
    return TopicView(description.name, topic_id, partitions, configs)


def error_code(problem: KafkaException) -> int:
    return int(problem.args[0].code())


def error_text(problem: Exception) -> str:
    """The text of librdkafka's error in one line."""
    error = problem.args[0]
    text = error.str() if isinstance(error, KafkaError) else str(error)
    return " ".join(text.split())
