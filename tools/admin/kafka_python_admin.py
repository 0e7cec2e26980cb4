"""The only adapter to kafka-python's KafkaAdminClient.

It does what confluent-kafka cannot do, or not fully: reassignments, elections, log directories, configs with all synonyms, configs
for all brokers (`--entity-default`), and deletions of group offsets. It also fetches group offsets, because librdkafka 2.16 crashes
(SIGSEGV) there on NOT_COORDINATOR or a lost connection.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from kafka import KafkaAdminClient
from kafka import TopicPartition as ClientTopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import (
    BrokerResponseError,
    KafkaConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    NoError,
    NotControllerError,
    RetriableError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    for_code,
)
from kafka.protocol.admin import AlterPartitionReassignmentsRequest

from protocol.errors import error_name
from protocol.types import Assignment, TopicPartition
from tools.admin.client_settings import kafka_python_settings, read_command_config
from tools.admin.config_values import ConfigSynonym, ConfigValue, Entity
from tools.admin.reassign_plan import Place, Replica
from tools.failures import AdminError, NotServed

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 30.0
RETRY_PAUSE_S = 0.3

PREFERRED_ELECTION = 0
UNCLEAN_ELECTION = 1

ACCEPTED = "OK"
"""What kafka-python says of configs that were changed."""

Answer = TypeVar("Answer")


class _Client(KafkaAdminClient):  # type: ignore[misc]
    """KafkaAdminClient, with the brokers' reasons for refusals, which it leaves out: the error codes say much less.

    It also accepts the resource `""`, Kafka's name for the configs of all brokers, which any broker serves.
    """

    async def _send_request_to_controller(
        self,
        request: Any,
        get_errors_fn: Callable[[Any], Iterable[Any]] = lambda answer: (),
        raise_errors: bool = True,
        ignore_errors: Collection[Any] = (),
    ) -> Any:
        def errors(answer: Any) -> list[Any]:
            reason = getattr(answer, "error_message", None)
            return [_with_reason(error, reason) for error in get_errors_fn(answer)]

        return await super()._send_request_to_controller(request, errors, raise_errors, ignore_errors)

    def alter_partition_reassignments(
        self, reassignments: Mapping[Any, Sequence[int] | None], timeout_ms: int | None = None
    ) -> dict[Any, Any]:
        """Partition -> the error class, whose `description` is the controller's reason, or None."""
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=self._validate_timeout(timeout_ms),
            topics=self._process_alter_partition_reassignments_input(reassignments),
        )
        answer = self._manager.run(
            self._send_request_to_controller, request, lambda answer: [for_code(answer.error_code)]
        )
        return {
            ClientTopicPartition(topic.name, row.partition_index): _with_reason(
                for_code(row.error_code), row.error_message
            )
            if row.error_code
            else None
            for topic in answer.responses
            for row in topic.partitions
        }

    @staticmethod
    def _group_config_resources(config_resources: Sequence[Any]) -> tuple[dict[int, list[Any]], list[Any]]:
        by_broker: dict[int, list[Any]] = {}
        others = []
        for resource in config_resources:
            if resource.resource_type is ConfigResourceType.BROKER and resource.name:
                by_broker.setdefault(int(resource.name), []).append(resource)
            else:
                others.append(resource)
        return by_broker, others

    @classmethod
    def _describe_configs_process_responses(cls, responses: Any, config_filter: Any = "modified") -> Any:
        """A topic that does not exist has no configs; every other refusal is raised."""
        for response in responses:
            for row in response.results:
                error = for_code(row.error_code)
                if error not in (NoError, UnknownTopicOrPartitionError):
                    raise _with_reason(error, row.error_message)
        return super()._describe_configs_process_responses(responses, config_filter)

    @staticmethod
    def _alter_configs_process_responses(responses: Any) -> dict[str, dict[str, str]]:
        """Kind of resource -> its name -> ACCEPTED, or the reason for the refusal."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for row in responses:
            said = _error_name(row.error_code, row.error_message)[1] if row.error_code else ACCEPTED
            found[ConfigResourceType(row.resource_type).name.lower()][row.resource_name] = said
        return dict(found)


class KafkaPythonAdmin:
    """Requests to one cluster, each with a time limit. Call `close` at the end."""

    def __init__(
        self,
        bootstrap_servers: str,
        command_config: Path | None = None,
        *,
        answer_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """Connects. `answer_timeout_s` limits the wait for one answer; some requests are sent again.

        Raises AdminError if no broker answers within a few seconds.
        """
        # kafka-python logs every error that it raises, and the command prints the same error.
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
        settings = {"client_id": "ottla-admin", **kafka_python_settings(read_command_config(command_config))}
        settings |= {
            "bootstrap_servers": bootstrap_servers.split(","),
            "bootstrap_timeout_ms": int(CONNECT_TIMEOUT_S * 1000),
            "request_timeout_ms": int(answer_timeout_s * 1000),
        }
        self._bootstrap_servers = bootstrap_servers
        self._settings = settings
        self._client = self._connected()

    def _connected(self) -> _Client:
        try:
            return _Client(**self._settings)
        except KafkaTimeoutError:
            raise AdminError(
                f"no broker answers at {self._bootstrap_servers} within {CONNECT_TIMEOUT_S:g} s; "
                "check the address and that the cluster runs (`ottla cluster status`)"
            ) from None
        except (KafkaError, KafkaConfigurationError, ValueError, OSError) as problem:
            raise AdminError(f"cannot connect to {self._bootstrap_servers}: {_text(problem)}") from None

    def close(self) -> None:
        self._client.close()

    # reassignments

    def reassignments(self, patience_s: float = REQUEST_TIMEOUT_S) -> dict[TopicPartition, Assignment]:
        """The reassignments in progress, in order. Retries for `patience_s` without a controller. Raises NotServed, AdminError."""
        answer = self._ask_controller(
            "the reassignments cannot be listed", lambda: self._client.list_partition_reassignments(), patience_s
        )
        return {
            TopicPartition(*partition): Assignment(
                tuple(move["replicas"]), tuple(move["adding_replicas"]), tuple(move["removing_replicas"])
            )
            for partition, move in sorted(answer.items())
        }

    def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, str | None]:
        """Starts each move, or cancels it (None). Partition -> the reason for a refusal, else None. Raises AdminError."""
        request = {
            ClientTopicPartition(*partition): None if replicas is None else list(replicas)
            for partition, replicas in targets.items()
        }
        answer = self._ask_controller(
            "the reassignments were not changed", lambda: self._client.alter_partition_reassignments(request)
        )
        return {
            partition: _refusal(answer.get(ClientTopicPartition(*partition), KafkaError), partition)
            for partition in targets
        }

    # elections

    def elect_leaders(
        self, *, unclean: bool, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, tuple[str, str] | None]:
        """Partition -> None for a new leader, else (code name, reason). `partitions` None means all. Raises NotServed, AdminError."""
        answer = self._ask_controller(
            "no leader was elected",
            lambda: self._client.elect_leaders(
                UNCLEAN_ELECTION if unclean else PREFERRED_ELECTION,
                None if partitions is None else _by_topic(partitions),
                timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
                raise_errors=False,
            ),
        )
        if answer.error_code:
            raise AdminError(f"no leader was elected: {_error_name(answer.error_code)[1]}")
        return {
            TopicPartition(topic.topic, partition.partition_id): _error_name(
                partition.error_code, partition.error_message
            )
            if partition.error_code
            else None
            for topic in answer.replica_election_results
            for partition in topic.partition_result
        }

    # log directories

    def replica_sizes(
        self, brokers: Collection[int], partitions: Collection[TopicPartition]
    ) -> dict[tuple[int, TopicPartition], int]:
        """(broker, partition) -> bytes of that replica, for each broker that answers. Raises NotServed, AdminError."""
        wanted = _by_topic(partitions)
        sizes = {}
        for broker in sorted(brokers):
            try:
                described = self._ask(
                    "the replica sizes cannot be read", partial(self._client.describe_log_dirs, wanted, [broker])
                )
            except NotServed:
                raise
            except AdminError:
                continue  # such as a broker that has just died
            for directory in described[0]["log_dirs"]:
                for topic in directory["topics"]:
                    for replica in topic["partitions"]:
                        if not replica["is_future_key"]:
                            partition = TopicPartition(topic["name"], replica["partition_index"])
                            sizes[broker, partition] = replica["partition_size"]
        return sizes

    def log_directories(self, replicas: Collection[Replica]) -> dict[Replica, Place]:
        """The directory of each replica, without those of brokers that do not answer. Raises NotServed."""
        return self._log_directories(replicas)[0]

    def replicas_without_log(self, replicas: Collection[Replica]) -> set[Replica]:
        """The replicas whose broker answers but has no log of them. Raises NotServed."""
        found, answered = self._log_directories(replicas)
        return {replica for replica in replicas if replica.broker in answered and replica not in found}

    def _log_directories(self, replicas: Collection[Replica]) -> tuple[dict[Replica, Place], set[int]]:
        """The directory of each replica, and the brokers that answered."""
        found: dict[Replica, Place] = {}
        answered: set[int] = set()
        for broker in sorted({replica.broker for replica in replicas}):
            wanted = _by_topic([replica.partition for replica in replicas if replica.broker == broker])
            try:
                described = self._ask(
                    "the log directories cannot be read", partial(self._client.describe_log_dirs, wanted, [broker])
                )
            except NotServed:
                raise
            except AdminError:
                continue
            answered.add(broker)
            for directory in described[0]["log_dirs"]:
                for topic in directory["topics"]:
                    for row in topic["partitions"]:
                        replica = Replica(TopicPartition(topic["name"], row["partition_index"]), broker)
                        end = "future" if row["is_future_key"] else "current"
                        found[replica] = found.get(replica, Place())._replace(**{end: directory["log_dir"]})
        return found, answered

    def alter_log_directories(self, targets: Mapping[Replica, str]) -> dict[Replica, tuple[str, str] | None]:
        """Replica -> None if its move started or is not needed, else (code name, reason). Raises NotServed, AdminError."""
        request = {(*replica.partition, replica.broker): target for replica, target in targets.items()}
        answer = self._ask("the log directories were not changed", lambda: self._client.alter_replica_log_dirs(request))
        codes = {(row.topic, row.partition, row.broker_id): error.errno for row, error in answer.items()}
        return {
            replica: _error_name(code) if (code := codes.get((*replica.partition, replica.broker), 0)) else None
            for replica in targets
        }

    # groups

    def group_offsets(self, group: str) -> dict[TopicPartition, tuple[int, int | None, str]]:
        """Partition -> committed offset, leader epoch and metadata; empty for an unknown group. Raises NotServed, AdminError."""
        answer = self._ask_coordinator(
            f"the offsets of group {group!r} cannot be fetched", lambda: self._client.list_group_offsets([group])[group]
        )
        return {
            TopicPartition(*partition): (
                found.offset,
                None if found.leader_epoch is None or found.leader_epoch < 0 else found.leader_epoch,
                found.metadata or "",
            )
            for partition, found in answer.items()
            if found.offset >= 0
        }

    def delete_group_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[str, str] | None]:
        """Partition -> None if the group has no offset there now, else (code name, reason). Raises NotServed, AdminError."""
        request = [ClientTopicPartition(*partition) for partition in partitions]
        answer = self._ask_coordinator(
            f"the offsets of group {group!r} were not deleted",
            lambda: self._client.delete_group_offsets(group, request),
        )
        return {
            TopicPartition(found.topic, found.partition): _error_name(error.errno) if error.errno else None
            for found, error in answer.items()
        }

    # configs

    def describe_configs(self, entities: Sequence[Entity]) -> dict[Entity, dict[str, ConfigValue]]:
        """All configs of each entity, by key. An entity that does not exist appears to have none. Raises NotServed, AdminError."""
        if not entities:
            return {}
        resources = [ConfigResource(_resource_type(entity), entity.name) for entity in entities]
        answer = self._ask(
            "configs cannot be described",
            lambda: self._client.describe_configs(resources, include_synonyms=True, config_filter="all"),
        )
        return {
            entity: {
                key: _config_value(value)
                for key, value in sorted(
                    answer.get(_resource_type(entity).name.lower(), {}).get(entity.name, {}).items()
                )
            }
            for entity in entities
        }

    def alter_configs(self, entity: Entity, changes: Mapping[str, str | None]) -> None:
        """Sets each key, or removes it (None); other keys stay. Raises AdminError with the broker's reason."""
        entries = {key: ("delete", None) if value is None else ("set", value) for key, value in changes.items()}
        resource = ConfigResource(_resource_type(entity), entity.name, entries)
        answer = self._ask(
            f"configs of {entity} were not changed",
            lambda: self._client.alter_configs([resource], raise_on_unknown=False, incremental=True),
        )
        said = answer[_resource_type(entity).name.lower()][entity.name]
        if said != ACCEPTED:
            raise AdminError(f"configs of {entity} were not changed: {said.rstrip('.')}")

    def _ask_controller(
        self, what: str, request: Callable[[], Answer], patience_s: float = REQUEST_TIMEOUT_S
    ) -> Answer:
        """Retries while no broker is the controller, for at most `patience_s`. Raises NotServed, AdminError."""
        # kafka-python raises RuntimeError if neither of two brokers that it asked was the controller.
        return self._ask_again(what, request, (RetriableError, RuntimeError), patience_s, "see `ottla cluster health`")

    def _ask_coordinator(self, what: str, request: Callable[[], Answer]) -> Answer:
        """Retries after the group's coordinator moved, and while it loads its groups. Raises NotServed, AdminError."""
        advice = "is its coordinator up? See `ottla cluster health`"
        return self._ask_again(what, request, (RetriableError,), REQUEST_TIMEOUT_S, advice)

    def _ask_again(
        self,
        what: str,
        request: Callable[[], Answer],
        retriable: tuple[type[Exception], ...],
        patience_s: float,
        advice: str,
    ) -> Answer:
        """Retries the request, which must be safe to repeat."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return request()
            except UnsupportedVersionError:
                raise NotServed(f"{what}: this cluster does not support that request") from None
            except retriable as problem:
                if time.monotonic() >= deadline:
                    raise AdminError(f"{what}: {_text(problem)}; {advice}") from None
                time.sleep(RETRY_PAUSE_S)
                # The old client keeps asking the old controller or coordinator; a new client looks it up again.
                self._client.close()
                self._client = self._connected()
            except KafkaError as problem:
                raise AdminError(f"{what}: {_text(problem)}") from None

    def _ask(self, what: str, request: Callable[[], Answer]) -> Answer:
        """Raises NotServed, AdminError."""
        try:
            return request()
        except UnsupportedVersionError:
            raise NotServed(f"{what}: this cluster does not support that request") from None
        except KafkaError as problem:
            raise AdminError(f"{what}: {_text(problem)}") from None


def _by_topic(partitions: Collection[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    return topics


def _error_name(code: int, message: str | None = None) -> tuple[str, str]:
    """(Kafka's name of the code, the reason)."""
    name = error_name(code)
    return name, " ".join((message or for_code(code).description or name).split())


def _with_reason(error: Any, reason: str | None) -> Any:
    """kafka-python's error class, with a broker's reason in the place of the text for its code."""
    # kafka-python compares these two by identity.
    if not reason or error in (NoError, NotControllerError):
        return error
    return type(error.__name__, (error,), {"description": reason})


def _resource_type(entity: Entity) -> Any:
    return ConfigResourceType.TOPIC if entity.kind == "topics" else ConfigResourceType.BROKER


def _config_value(value: Mapping[str, Any]) -> ConfigValue:
    return ConfigValue(
        value=value["value"],
        source=value["config_source"],
        is_read_only=value["read_only"],
        is_sensitive=value["is_sensitive"],
        synonyms=tuple(
            ConfigSynonym(synonym["name"], synonym["value"], synonym["source"]) for synonym in value.get("synonyms", ())
        ),
    )


def _refusal(error: Any, partition: TopicPartition) -> str | None:
    """The reason from an error class for one partition."""
    if error is None:
        return None
    reason = " ".join((getattr(error, "description", "") or error.__name__).split())
    return f"{partition}: {reason.rstrip('.')}"


def _text(problem: Exception) -> str:
    """The error in one line, without the request and response that kafka-python quotes."""
    if isinstance(problem, BrokerResponseError) and problem.description:
        return " ".join(str(problem.description).split()).rstrip(".")
    return " ".join(str(problem).split()) or type(problem).__name__
