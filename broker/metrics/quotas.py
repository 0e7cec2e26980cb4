"""What clients with a quota use, and how long they wait: kafka.server Produce, Fetch, Request, ControllerMutation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from broker.process.exposition import COUNTER, GAUGE, Sample, family, labels
from broker.quotas.client_quotas import Meter, Meters, Quotas
from broker.quotas.limits import Entity
from broker.quotas.rates import SampledRate
from protocol.zk.entity_names import desanitized


def quota_section(quotas: Quotas) -> Iterator[str]:
    """The labels are those of the JMX exporter: the quota, and who shares it."""
    now = quotas.now_ms()
    rates = {"Produce": quotas.produce, "Fetch": quotas.fetch}
    every: dict[str, Meters[Any]] = {**rates, "Request": quotas.request, "ControllerMutation": quotas.mutations}

    def samples(of: Sequence[str], value: Callable[[Meter[Any]], float]) -> Iterator[Sample]:
        for resource in of:
            for entity, meter in every[resource].measured():
                yield _labels(resource, entity), value(meter)

    def rate(meter: Meter[SampledRate]) -> float:
        return meter.measure.rate(now)

    yield from family("kafka_server_quota_byte_rate", GAUGE, "Bytes in each second", samples((*rates,), rate))
    yield from family(
        "kafka_server_quota_request_time", GAUGE, "Percent of the time of the loop", samples(("Request",), rate)
    )
    yield from family(
        "kafka_server_quota_tokens",
        GAUGE,
        "Partitions that may change at once; negative: that are owed",
        samples(("ControllerMutation",), lambda meter: meter.measure.left(meter.bound, now)),
    )
    yield from family(
        "kafka_server_quota_throttle_time",
        GAUGE,
        "The last throttle time in ms; NaN: none within a window",
        (
            (_labels(resource, entity), _throttle_time(meters, meter, now))
            for resource, meters in every.items()
            for entity, meter in meters.measured()
        ),
    )
    yield from family(
        "ottla_quota_throttled_requests_total",
        COUNTER,
        "Requests whose clients had to wait",
        ((labels(resource=resource), meters.throttled) for resource, meters in every.items()),
    )


def _throttle_time(meters: Meters[Any], meter: Meter[Any], now: int) -> float:
    is_recent = meter.throttle_ms > 0 and now - meter.throttled_at < meters.window.age_ms
    return meter.throttle_ms if is_recent else math.nan


def _labels(resource: str, entity: Entity) -> str:
    return labels(resource=resource, user=desanitized(entity.user), clientId=desanitized(entity.client_id))
