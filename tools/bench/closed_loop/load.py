"""What a load is. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PRODUCE_VERSION, PRODUCE_VERSIONS = 9, range(3, 14)
FETCH_VERSION, FETCH_VERSIONS = 12, range(4, 19)
"""The version of a load that names none, and all of them."""
TOPIC_IDS_SINCE = 13
"""From this version on, a Fetch and a Produce name their topics by the id."""


@dataclass(frozen=True, slots=True)
class Load:
    """A load. `raw` requests are encoded already; `librdkafka` is an application's client, with batches of its own.

    produce: each of `connections` sends to the partitions that one broker leads, in turns; a raw request has one batch of
    `records_per_batch` records for each of `partitions_per_request`. Beside them, `idle_connections` send nothing.
    consume: each connection reads one partition, again and again from its log start to its end, `fetch_bytes` at most with each
    request. Each request in flight reads the partition on its own.
    end-to-end: each of `connections` is a producer and a consumer with a partition of their own.

    `record_bytes`: the size of a value. `acks`: 1, or -1 for all. `api_version`: of raw requests; None: the usual one.
    """

    kind: Literal["produce", "consume", "end-to-end"]
    client: Literal["raw", "librdkafka"] = "raw"
    connections: int = 1
    in_flight: int = 1
    record_bytes: int = 100
    records_per_batch: int = 1
    acks: int = 1
    topics: int = 1
    partitions: int = 1
    partitions_per_request: int = 1
    replication_factor: int = 1
    fetch_bytes: int = 1024 * 1024
    idle_connections: int = 0
    api_version: int | None = None

    @property
    def version(self) -> int:
        """Of the raw requests."""
        return self.api_version or (FETCH_VERSION if self.kind == "consume" else PRODUCE_VERSION)
