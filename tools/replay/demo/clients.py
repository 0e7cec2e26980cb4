"""The confluent-kafka clients of the demo's consumer group."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer

METADATA_TIMEOUT_S = 5.0
# librdkafka's own log lines would break the progress bar; brokers going down are part of a replay.
QUIET = {"log_level": 0}


def ignore_error(_: object) -> None:
    """Ignores librdkafka's reports on connections: it retries, and the operations have the final results."""


def new_consumer(bootstrap_servers: str, properties: Mapping[str, str], group: str) -> Consumer:
    """A consumer for assigned partitions, or for requests about `group`; it joins no group (the library requires a name).

    `properties` are librdkafka's.
    """
    return Consumer(
        {
            **QUIET,
            **properties,
            "bootstrap.servers": bootstrap_servers,
            "client.id": "ottla-replay",
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 500,
            "fetch.error.backoff.ms": 50,
            "error_cb": ignore_error,
        }
    )
