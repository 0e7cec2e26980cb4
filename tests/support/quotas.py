"""One broker with quotas, ours or a real Kafka, asked over the wire."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from tests.support.invariants import eventually
from tests.support.logs import batch
from tests.support.wire import Wire

SETTLED_S = 20.0
USER, CLIENT_ID, IP = "user", "client-id", "ip"
Entity = Mapping[str, str | None]


class Throttled(NamedTuple):
    """The throttle times of requests that follow each other, in milliseconds, and how long each answer took, in seconds."""

    times: list[int]
    took: list[float]
    at: list[int]
    """When the answers came, in milliseconds."""
    sizes: list[int]
    """What counts for the quota: bytes of the requests, or of the records of an answer."""


class Side:
    """A broker by its port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.topics = 0

    @contextmanager
    def wire(self, client_id: str | None = "admin") -> Iterator[Wire]:
        with Wire(self.port, timeout_s=60.0, client_id=client_id) as wire:
            yield wire

    def call(self, api_key: ApiKey, version: int, body: Mapping[str, Any], client_id: str | None = "admin") -> Any:
        with self.wire(client_id) as wire:
            return wire.call(api_key, version, body)

    def alter(self, entity: Entity, *, validate_only: bool = False, **quotas: float | None) -> tuple[int, str | None]:
        """Error code and message."""
        body = {
            "entries": [
                {
                    "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
                    "ops": [
                        {"key": key, "value": value or 0.0, "remove": value is None} for key, value in quotas.items()
                    ],
                }
            ],
            "validate_only": validate_only,
        }
        (row,) = self.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, body).entries
        return int(row.error_code), row.error_message

    def set(self, entity: Entity, **quotas: float | None) -> None:
        """Sets quotas, and waits until they are described."""
        assert self.alter(entity, **quotas) == (0, None)
        wanted = {key: value for key, value in quotas.items() if value is not None}

        def is_there() -> bool:
            _, _, entries = self.describe([])
            found = dict(next((values for names, values in entries if dict(names) == entity), ()))
            return all(found.get(key) == value for key, value in wanted.items())

        eventually(is_there, f"{entity} has {wanted}", SETTLED_S)
        time.sleep(0.3)  # a real Kafka follows its own announcement

    def describe(
        self, components: Sequence[tuple[str, int, str | None]], *, strict: bool = False
    ) -> tuple[int, str | None, list[tuple[tuple[tuple[str, str | None], ...], tuple[tuple[str, float], ...]]]]:
        """Error code, message, and the entities with their quotas, in one order."""
        body = {
            "components": [
                {"entity_type": kind, "match_type": match_type, "match": match}
                for kind, match_type, match in components
            ],
            "strict": strict,
        }
        answer = self.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, body)
        entries = [
            (
                tuple(sorted(((part.entity_type, part.entity_name) for part in row.entity), key=str)),
                tuple(sorted((one.key, one.value) for one in row.values)),
            )
            for row in answer.entries or ()
        ]
        return int(answer.error_code), answer.error_message, sorted(entries, key=str)

    def topic(self) -> str:
        """A new topic of one partition, with a leader."""
        self.topics += 1
        name = f"quotas-{self.topics}"
        body = {
            "topics": [{"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}],
            "timeout": 10_000,
            "validate_only": False,
        }
        (row,) = self.call(ApiKey.CREATE_TOPICS, 5, body).topics
        assert row.error_code == ErrorCode.NONE, row
        return name

    def produce(self, topic: str, client_id: str | None, sizes: Sequence[int], acks: int = 1) -> Throttled:
        """One request after the other, on one connection, with values of these bytes."""
        times, took, at, counted = [], [], [], []
        with self.wire(client_id) as wire:
            for size in sizes:
                body = {
                    "transactional_id": None,
                    "acks": acks,
                    "timeout": 5000,
                    "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch(1, size=size)}]}],
                }
                began = time.monotonic()
                answer = wire.call(ApiKey.PRODUCE, 9, body)
                took.append(time.monotonic() - began)
                (row,) = answer.responses[0].partition_responses
                assert row.error_code == ErrorCode.NONE, row
                times.append(messages.milliseconds(answer.throttle_time))
                at.append(int(time.monotonic() * 1000))
                counted.append(len(messages.encode_request(ApiKey.PRODUCE, 9, 0, "", body)))
        return Throttled(times, took, at, counted)

    def fetch(
        self, topic: str, client_id: str | None, count: int, max_bytes: int, version: int = 11
    ) -> tuple[Throttled, list[int]]:
        """The same for fetches from the start of the topic, and the bytes of their records."""
        times, took, at, sizes = [], [], [], []
        with self.wire(client_id) as wire:
            for _ in range(count):
                body = {
                    "replica_id": -1,
                    "max_wait": 0,
                    "min_bytes": 1,
                    "max_bytes": max_bytes,
                    "isolation_level": 0,
                    "session_id": 0,
                    "session_epoch": -1,
                    "topics": [
                        {
                            "topic": topic,
                            "partitions": [
                                {
                                    "partition": 0,
                                    "current_leader_epoch": -1,
                                    "fetch_offset": 0,
                                    "log_start_offset": -1,
                                    "partition_max_bytes": max_bytes,
                                }
                            ],
                        }
                    ],
                    "forgotten_topics_data": (),
                    "rack_id": "",
                }
                began = time.monotonic()
                answer = wire.call(ApiKey.FETCH, version, body)
                took.append(time.monotonic() - began)
                times.append(messages.milliseconds(answer.throttle_time))
                at.append(int(time.monotonic() * 1000))
                sizes.append(sum(len(part.records or b"") for row in answer.responses for part in row.partitions))
        return Throttled(times, took, at, [max(sizes)] * count), sizes
