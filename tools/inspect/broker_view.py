"""What one broker answers to clients: its Metadata, its configs, and the reassignments if it is the controller.

The brokers' answers are compared, so each broker is asked over a connection to its address; a client library would ask any broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.topic_ids import topic_id_text
from protocol.types import Address, Assignment, TopicPartition
from tools.admin.config_values import BROKERS, ENTITY_DEFAULT, TOPICS, Entity
from tools.wire.client import ask
from tools.wire.security import PLAINTEXT, Security

TIMEOUT_S = 5.0
METADATA_VERSION = 12
DESCRIBE_CONFIGS_VERSION = 4
API_VERSIONS_VERSION = 3
LIST_REASSIGNMENTS_VERSION = 0

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
OWN_SOURCE = {TOPIC_RESOURCE: 1, BROKER_RESOURCE: 2}
DEFAULT_BROKER_SOURCE = 3
"""DescribeConfigs' numbers for resource types, and for configs that are set on such a resource itself."""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition in a broker's Metadata; leader -1 means none."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]


@dataclass(slots=True)
class BrokerView:
    """One broker's answers. `configs` is None without an answer; so is `reassignments`, for which only the controller is asked."""

    controller: int | None
    brokers: dict[int, Address]
    topic_ids: dict[str, str] = field(default_factory=dict)
    partitions: dict[TopicPartition, PartitionFacts] = field(default_factory=dict)
    configs: dict[Entity, dict[str, str]] | None = None
    reassignments: dict[TopicPartition, Assignment] | None = None


def live_brokers(address: Address, security: Security = PLAINTEXT) -> dict[int, Address] | None:
    """The brokers listed by the one at `address`; None if it does not answer."""
    answer = ask(address, TIMEOUT_S, ApiKey.METADATA, METADATA_VERSION, _metadata_request([]), security=security)
    return None if answer is None else _addresses(answer)


def read_broker(
    broker: int, address: Address, topics: Collection[str] | None, security: Security = PLAINTEXT
) -> BrokerView | None:
    """The view of all topics, or of these; None if the broker does not answer."""
    answer = ask(address, TIMEOUT_S, ApiKey.METADATA, METADATA_VERSION, _metadata_request(topics), security=security)
    if answer is None:
        return None
    view = BrokerView(answer.controller_id if answer.controller_id >= 0 else None, _addresses(answer))
    for topic in answer.topics:
        if topic.name is None or (topic.error_code and not topic.partitions):
            continue
        view.topic_ids[topic.name] = "" if topic.topic_id is None else topic_id_text(topic.topic_id)
        for partition in topic.partitions:
            view.partitions[TopicPartition(topic.name, partition.partition_index)] = PartitionFacts(
                partition.leader_id, partition.leader_epoch, tuple(partition.isr_nodes), tuple(partition.replica_nodes)
            )
    served = _served(address, security)
    if ApiKey.DESCRIBE_CONFIGS in served:
        view.configs = _configs(broker, address, list(view.topic_ids), security)
    if ApiKey.LIST_PARTITION_REASSIGNMENTS in served and view.controller == broker:
        view.reassignments = _reassignments(address, security)
    return view


def _metadata_request(topics: Collection[str] | None) -> Mapping[str, Any]:
    asked = None if topics is None else [{"topic_id": None, "name": topic} for topic in topics]
    return {"topics": asked, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}


def _addresses(answer: Any) -> dict[int, Address]:
    return {broker.node_id: (broker.host, broker.port) for broker in sorted(answer.brokers, key=lambda b: b.node_id)}


def _served(address: Address, security: Security) -> set[int]:
    """The keys of the APIs that the broker supports."""
    client = {"client_software_name": "ottla", "client_software_version": "1"}
    answer = ask(address, TIMEOUT_S, ApiKey.API_VERSIONS, API_VERSIONS_VERSION, client, security=security)
    return set() if answer is None else {int(api.api_key) for api in answer.api_keys}


def _configs(
    broker: int, address: Address, topics: Collection[str], security: Security
) -> dict[Entity, dict[str, str]] | None:
    """The configs set on each topic, on the broker and on all brokers, without secret ones."""
    entities = [
        *(Entity(TOPICS, topic) for topic in topics),
        Entity(BROKERS, str(broker)),
        Entity(BROKERS, ENTITY_DEFAULT),
    ]
    resources = [
        {
            "resource_type": TOPIC_RESOURCE if entity.kind == TOPICS else BROKER_RESOURCE,
            "resource_name": entity.name,
            "configuration_keys": None,
        }
        for entity in entities
    ]
    body = {"resources": resources, "include_synonyms": False, "include_documentation": False}
    answer = ask(address, TIMEOUT_S, ApiKey.DESCRIBE_CONFIGS, DESCRIBE_CONFIGS_VERSION, body, security=security)
    if answer is None:
        return None
    found = {}
    for entity, result in zip(entities, answer.results, strict=True):
        source = OWN_SOURCE[result.resource_type] if entity.name else DEFAULT_BROKER_SOURCE
        found[entity] = {
            config.name: config.value or ""
            for config in result.configs
            if config.config_source == source and not config.is_sensitive
        }
    return found


def _reassignments(address: Address, security: Security) -> dict[TopicPartition, Assignment] | None:
    body = {"timeout": int(TIMEOUT_S * 1000), "topics": None}
    answer = ask(
        address, TIMEOUT_S, ApiKey.LIST_PARTITION_REASSIGNMENTS, LIST_REASSIGNMENTS_VERSION, body, security=security
    )
    if answer is None or answer.error_code:
        return None
    return {
        TopicPartition(topic.name, partition.partition_index): Assignment(
            tuple(partition.replicas), tuple(partition.adding_replicas), tuple(partition.removing_replicas)
        )
        for topic in answer.topics
        for partition in topic.partitions
    }
