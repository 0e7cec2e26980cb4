"""Metrics that clients push (KIP-714): kafka.server client-metrics, and the numbers themselves."""

from __future__ import annotations

from collections.abc import Iterator

from broker.process.exposition import COUNTER, GAUGE, Sample, family, labels
from broker.telemetry.client_telemetry import ClientTelemetry
from protocol.topic_ids import topic_id_text


def telemetry_section(telemetry: ClientTelemetry) -> Iterator[str]:
    counts = (
        ("kafka_server_client_metrics_unknown_subscription_request_total", telemetry.unknown_subscriptions,
         "Pushes under an id that the client does not have, or no longer"),
        ("kafka_server_client_metrics_throttle_total", telemetry.throttled, "Requests of clients before their interval was over"),
        ("ottla_client_metrics_pushes_total", telemetry.pushes, "Pushes that were read"),
        ("ottla_client_metrics_pushed_bytes_total", telemetry.pushed_bytes, "Their bytes, as they were sent"),
        ("ottla_client_metrics_refused_total", telemetry.refused, "Pushes that were refused, or could not be read"),
    )  # fmt: skip
    instances = len(telemetry.instances)
    yield from family(
        "kafka_server_client_metrics_instance_count", GAUGE, "Client instances that are known", [("", instances)]
    )
    for name, count, text in counts:
        yield from family(name, COUNTER, text, [("", count)])
    yield from family("ottla_client_metric", GAUGE, "A number that a client pushed", _numbers(telemetry))


def _numbers(telemetry: ClientTelemetry) -> Iterator[Sample]:
    for instance_id, instance in list(telemetry.instances.items()):
        own = {"client_instance_id": topic_id_text(instance_id), "client_id": instance.client.client_id}
        for (metric, attributes), value in list(instance.series.items()):
            shown = ",".join(f"{key}={text}" for key, text in attributes)
            yield labels(**own, metric=metric, attributes=shown), value
