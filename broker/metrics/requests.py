"""Requests of clients and followers: kafka.network RequestMetrics, RequestChannel, and the listeners' connections."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from broker.network.acceptor import Acceptor
from broker.network.request_channel import RequestChannel
from broker.network.request_metrics import (
    FETCH,
    FETCH_CONSUMER,
    FETCH_FOLLOWER,
    PARTS,
    ApiMetrics,
    RequestMetrics,
    kafka_name,
)
from broker.process.exposition import COUNTER, GAUGE, family, labels, single, times_ms

TEXTS = (
    "Time until a request is taken from the queue",
    "Time in the handler",
    "Time in the purgatory, or until an awaited step is done",
    "Time from the receipt of a request until its answer is handed to the connection",
)
"""In the order of PARTS."""


def request_section(metrics: RequestMetrics) -> Iterator[str]:
    """An API appears with its first request. As in Kafka, `Fetch` has all fetches, which are also counted by who fetches."""
    together: dict[str, tuple[ApiMetrics, ...]] = {
        FETCH: (metrics.fetch_consumer, metrics.fetch_follower),
        FETCH_CONSUMER: (metrics.fetch_consumer,),
        FETCH_FOLLOWER: (metrics.fetch_follower,),
        **{kafka_name(key): (api,) for key, api in metrics.by_key.items()},
    }
    requests = {
        name: [sum(counts) for counts in zip(*(a.requests for a in apis), strict=True)]
        for name, apis in together.items()
    }
    used = {name: apis for name, apis in together.items() if any(requests[name])}
    yield from family(
        "kafka_network_requestmetrics_requests_total",
        COUNTER,
        "Requests, by API and version",
        (
            (labels(request=name, version=version), count)
            for name in used
            for version, count in enumerate(requests[name])
            if count
        ),
    )
    now = time.monotonic()
    for at, (part, text) in enumerate(zip(PARTS, TEXTS, strict=True)):
        yield from times_ms(
            f"kafka_network_requestmetrics_{part}",
            text,
            (({"request": name}, [api.parts()[at] for api in apis]) for name, apis in used.items()),
            now,
        )


def network_section(channel: RequestChannel, acceptors: Mapping[str, Acceptor]) -> Iterator[str]:
    yield from single(
        "kafka_network_requestchannel_requestqueuesize", GAUGE, "Requests that wait to be handled", channel.queued
    )
    yield from single(
        "kafka_network_socketserver_memorypoolused",
        GAUGE,
        "Bytes of requests above 64 KiB that are being received or wait (queued.max.request.bytes)",
        channel.large.bytes,
    )
    yield from single(
        "ottla_network_unsent_answer_bytes",
        GAUGE,
        "Bytes of answers that clients have not read (queued.max.response.bytes)",
        channel.unsent.total,
    )
    processors = [
        (labels(listener=listener, networkProcessor=number), processor)
        for listener, acceptor in list(acceptors.items())
        for number, processor in enumerate(acceptor.processors)
    ]
    name = "kafka_server_socket_server_metrics_connection"
    yield from family(f"{name}_count", GAUGE, "Open connections", ((of, len(p.connections)) for of, p in processors))
    yield from family(
        f"{name}_creation_total", COUNTER, "Accepted connections", ((of, p.connections_made) for of, p in processors)
    )
    yield from family(
        f"{name}_close_total", COUNTER, "Connections that ended", ((of, p.connections_ended) for of, p in processors)
    )
