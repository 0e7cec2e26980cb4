"""The one adapter to confluent-kafka's AdminClient: plain values out, one-line `AdminError`s in place of exceptions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewTopic, ResourceType

from tools.admin.bootstrap import parse_properties
from tools.admin.topic_views import ConfigView, PartitionView, TopicView

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 30.0
RETRY_PAUSE_S = 0.2


class AdminError(Exception):
    """A failed request: one line that says what is wrong and what to do."""


class TopicExists(AdminError):
    """The topic to create is there already."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The names of all topics, their partition counts, and the ids of the live brokers."""

    partition_counts: Mapping[str, int]
    live_brokers: frozenset[int]


class KafkaAdmin:
    """Requests to one cluster, each bounded in time."""

    def __init__(self, bootstrap_servers: str, command_config: Path | None = None) -> None:
        """Does not connect yet. Raises AdminError for a bad command config or address."""
        self._bootstrap_servers = bootstrap_servers
        # librdkafka's own log lines would stand beside our one line: only what is critical is let through.
        settings = {"client.id": "ottla-admin", **_client_settings(command_config)}
        settings |= {"bootstrap.servers": bootstrap_servers, "log_level": "2"}
        try:
            self._client = AdminClient(settings)
        except (KafkaException, ValueError) as problem:
            source = f"{command_config}: " if command_config else ""
            raise AdminError(f"{source}{_text(problem)}") from None

    def cluster(self) -> ClusterView:
        """Raises AdminError within a few seconds when no broker answers."""
        try:
            metadata = self._client.list_topics(timeout=CONNECT_TIMEOUT_S)
        except KafkaException as problem:
            if _code(problem) in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN):
                raise AdminError(
                    f"no broker answers at {self._bootstrap_servers} within {CONNECT_TIMEOUT_S:.0f} s; "
                    "check the address and that the cluster runs (`ottla cluster status`)"
                ) from None
            raise AdminError(_text(problem)) from None
        counts = {name: len(topic.partitions) for name, topic in metadata.topics.items()}
        return ClusterView(counts, frozenset(metadata.brokers))

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        replica_assignment: Sequence[Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Creates one topic; None leaves a number to the brokers' defaults. Raises TopicExists, AdminError."""
        request: dict[str, Any] = {"num_partitions": -1 if partitions is None else partitions}
        if replica_assignment is not None:
            request["num_partitions"] = len(replica_assignment)
            request["replica_assignment"] = [list(replicas) for replicas in replica_assignment]
        else:
            request["replication_factor"] = -1 if replication_factor is None else replication_factor
        new_topic = NewTopic(topic, config=dict(configs or {}), **request)
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            try:
                self._result(self._client.create_topics([new_topic], operation_timeout=REQUEST_TIMEOUT_S)[topic])
                return
            except KafkaException as problem:
                # A controller that has just died is asked again once its successor is elected.
                if _code(problem) != KafkaError.NOT_CONTROLLER or time.monotonic() > deadline:
                    raise self._create_error(topic, problem) from None
                time.sleep(RETRY_PAUSE_S)

    def describe_topics(self, topics: Iterable[str]) -> list[TopicView]:
        """The topics that still exist, with configs where the cluster serves them. Raises AdminError."""
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
                if _code(problem) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue  # deleted since it was listed
                raise AdminError(f"topic {name!r}: {_text(problem)}") from None
            views.append(_topic_view(description, None if configs is None else configs.get(name, {})))
        return sorted(views, key=lambda view: view.topic)

    def _configs(self, topics: Sequence[str]) -> dict[str, dict[str, ConfigView]] | None:
        """Configs by topic, or None when the cluster does not advertise DescribeConfigs."""
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        configs = {}
        for resource, future in self._client.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S).items():
            try:
                entries = self._result(future)
            except KafkaException as problem:
                if _code(problem) in (KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION):
                    return None
                if _code(problem) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise AdminError(f"configs of topic {resource.name!r}: {_text(problem)}") from None
            configs[resource.name] = {
                key: ConfigView(
                    "" if entry.value is None else entry.value,
                    is_default=ConfigSource(entry.source) is ConfigSource.DEFAULT_CONFIG,
                    is_override=ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG,
                )
                for key, entry in entries.items()
            }
        return configs

    def _result(self, future: Future[Any]) -> Any:
        return future.result(timeout=REQUEST_TIMEOUT_S + CONNECT_TIMEOUT_S)

    def _create_error(self, topic: str, problem: KafkaException) -> AdminError:
        """What to do about each refusal; the broker's own words first, as they know the particulars."""
        text = _text(problem).rstrip(".")
        code = _code(problem)
        if code == KafkaError.TOPIC_ALREADY_EXISTS:
            return TopicExists(
                f"topic {topic!r} exists already; see `ottla topic describe {topic}`, or --if-not-exists"
            )
        if code == KafkaError.INVALID_REPLICATION_FACTOR:
            brokers = len(self.cluster().live_brokers)
            return AdminError(f"{text}; choose --replication-factor from 1 to {brokers}, or start more brokers")
        advice = {
            KafkaError.INVALID_PARTITIONS: "choose --partitions of at least 1",
            KafkaError.INVALID_REPLICA_ASSIGNMENT: "check --replica-assignment against the brokers' ids",
            KafkaError.INVALID_CONFIG: "correct --config",
            KafkaError.TOPIC_EXCEPTION: "choose another name",
            KafkaError.REQUEST_TIMED_OUT: f"it may still be made: see `ottla topic describe {topic}`",
            KafkaError._TIMED_OUT: f"it may still be made: see `ottla topic describe {topic}`",
            KafkaError.NOT_CONTROLLER: "no controller is elected; see `ottla cluster status`",
        }.get(code)
        return AdminError(f"topic {topic!r} was not created: {text}" + (f"; {advice}" if advice else ""))


def _client_settings(command_config: Path | None) -> dict[str, str]:
    """The client properties of `--command-config` (librdkafka's names: Kafka's for security and more)."""
    if command_config is None:
        return {}
    try:
        return parse_properties(command_config.read_text())
    except OSError as problem:
        raise AdminError(f"--command-config {command_config}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise AdminError(f"--command-config {command_config}: not a text file") from None


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
    # librdkafka writes ids in the standard base64 alphabet, Kafka in the URL-safe one.
    topic_id = str(description.topic_id).replace("+", "-").replace("/", "_")
    return TopicView(description.name, topic_id, partitions, configs)


def _code(problem: KafkaException) -> int:
    return int(problem.args[0].code())


def _text(problem: Exception) -> str:
    """The text of librdkafka's error, in one line."""
    error = problem.args[0]
    text = error.str() if isinstance(error, KafkaError) else str(error)
    return " ".join(text.split())
