"""Metrics of clients, as Kafka's ClientMetricsManager (KIP-714): subscriptions, the clients that push, and what they have pushed.

A subscription is an entity `client-metrics/<name>` with settings. A client asks which metrics it shall push, and gets those of all
subscriptions that match it, the shortest of their intervals, and an id of that. It pushes under this id, no more often than in the
interval, until the subscriptions change: then its id is unknown, and it asks again.

A client instance is forgotten when its connection ends, or when it has been silent for three intervals.
"""

from __future__ import annotations

import logging
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Final, NamedTuple

from broker.settings.client_metrics import SELECTORS, ClientMetricsConfig, patterns_in
from broker.settings.config import BrokerConfig, attribute, parse_value
from broker.settings.config_layers import believable
from broker.settings.entity_configs import CLIENT_METRICS
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.compression import COMPRESSIONS
from protocol.kafka.wire import NO_UUID
from protocol.otlp import Number
from protocol.topic_ids import topic_id_text
from protocol.topic_names import shown
from protocol.zk.entity_names import desanitized

log = logging.getLogger(__name__)

ACCEPTED_COMPRESSION: Final = tuple(COMPRESSIONS.index(name) for name in ("zstd", "lz4", "gzip", "snappy"))
"""In the order in which clients shall prefer them, as in Kafka. A push may also be uncompressed."""
ALL_METRICS: Final = "*"
TELEMETRY_BYTES_MAX: Final = BrokerConfig().telemetry_max_bytes
"""The default of the limit."""
RESERVED: Final = (NO_UUID, uuid.UUID(int=1))
"""Ids that no client instance has (`Uuid.RESERVED`)."""
INSTANCES_MAX: Final = 16_384
"""Limit of client instances that are known, as in Kafka. The one that was heard of longest ago is forgotten."""
SERIES_MAX: Final = 20_000
"""Limit of numbers of all clients that the metrics page shows."""
FORGOTTEN_AFTER_S: Final = 60.0
FORGOTTEN_AFTER_INTERVALS: Final = 3
NEVER: Final = float("-inf")


class Client(NamedTuple):
    """What patterns look at, beside the id of the client instance."""

    client_id: str
    software_name: str
    software_version: str
    address: str
    port: str


class _Subscription(NamedTuple):
    """`configs`: the settings that it has, as text. `patterns`: selector -> compiled expression."""

    configs: Mapping[str, str]
    metrics: Sequence[str]
    interval_ms: int
    patterns: Mapping[str, object]

    def matches(self, values: Mapping[str, str]) -> bool:
        return all(
            values[selector] and pattern.fullmatch(values[selector])  # type: ignore[attr-defined]
            for selector, pattern in self.patterns.items()
        )


class Subscribed(NamedTuple):
    """What a client instance shall push."""

    instance_id: uuid.UUID
    subscription_id: int
    metrics: Sequence[str]
    interval_ms: int


class Instance:
    """A client instance. Times are those of the monotonic clock, in seconds. `series`: what it has pushed."""

    __slots__ = (
        "client",
        "expires_at",
        "is_terminating",
        "last_error",
        "last_get",
        "last_push",
        "series",
        "subscribed",
        "version",
    )

    def __init__(self, client: Client, subscribed: Subscribed, version: int) -> None:
        self.client = client
        self.subscribed = subscribed
        self.version = version
        self.last_get = self.last_push = NEVER
        self.is_terminating = False
        self.last_error = ErrorCode.NONE
        self.expires_at = 0.0
        self.series: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}


class ClientTelemetry:
    """Follows the settings of subscriptions, and serves GetTelemetrySubscriptions and PushTelemetry."""

    def __init__(self, bytes_max: int, monotonic: Callable[[], float]) -> None:
        """`bytes_max`: `telemetry.max.bytes`, of a push, compressed or not."""
        self.bytes_max = bytes_max
        self.instances: OrderedDict[uuid.UUID, Instance] = OrderedDict()
        self.throttled = self.unknown_subscriptions = self.pushes = self.pushed_bytes = self.refused = 0
        self._monotonic = monotonic
        self._subscriptions: dict[str, _Subscription] = {}
        self._version = 0
        self._of_connection: dict[Hashable, uuid.UUID] = {}
        self._series = 0

    # -- subscriptions --------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Of the subscriptions."""
        return sorted(self._subscriptions)

    def configs_of(self, name: str) -> Mapping[str, str]:
        """The settings that a subscription has; none if it does not exist."""
        found = self._subscriptions.get(name)
        return {} if found is None else found.configs

    def changed(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """As a `FollowsEntities`."""
        for entity, found in configs.items():
            name = _name_of(entity)
            if name is None:
                continue
            usable, complaints = believable(ClientMetricsConfig, found, self.configs_of(name), shown(entity))
            for complaint in complaints:
                log.warning("%s", complaint)
            self._version += 1
            if usable:
                self._subscriptions[name] = _subscription(usable)
            else:
                self._subscriptions.pop(name, None)

    def all_are(self, names: Collection[str]) -> None:
        """As a `FollowsEntities`."""
        kept = {_name_of(name) for name in names}
        for gone in self._subscriptions.keys() - kept:
            del self._subscriptions[gone]
            self._version += 1

    # -- clients --------------------------------------------------------------------------------------------------

    def subscribe(self, instance_id: uuid.UUID | None, client: Client) -> Subscribed:
        """What the client shall push; without an id, it gets one. Raises KafkaError(THROTTLING_QUOTA_EXCEEDED) if it asks too early."""
        found = instance_id if instance_id not in (None, NO_UUID) else None
        instance = self._instance(found or uuid.uuid4(), client)
        now = self._monotonic()
        if now - max(instance.last_get, instance.last_push) >= instance.subscribed.interval_ms / 1000:
            instance.last_get = now
        elif instance.last_error not in (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE):
            self.throttled += 1
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the client asks again before its interval is over")
        instance.last_error = ErrorCode.NONE
        return instance.subscribed

    def check_push(
        self,
        instance_id: uuid.UUID | None,
        client: Client,
        subscription_id: int,
        compression: int,
        size: int,
        *,
        is_terminating: bool,
    ) -> Instance:
        """Raises KafkaError if a push of `size` bytes is not to be read: INVALID_REQUEST, THROTTLING_QUOTA_EXCEEDED,
        UNKNOWN_SUBSCRIPTION_ID, UNSUPPORTED_COMPRESSION_TYPE, TELEMETRY_TOO_LARGE. A last push may come at any time."""
        if instance_id is None or instance_id in RESERVED:
            self.refused += 1
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no client instance has the id {instance_id}")
        instance = self._instance(instance_id, client)
        try:
            self._check(instance, subscription_id, compression, size, is_terminating)
        except KafkaError as error:
            instance.last_error = error.code
            self.refused += 1
            raise
        finally:
            instance.is_terminating = is_terminating
        return instance

    def _check(
        self, instance: Instance, subscription_id: int, compression: int, size: int, is_terminating: bool
    ) -> None:
        now = self._monotonic()
        subscribed = instance.subscribed
        if instance.is_terminating:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the client has pushed for the last time before")
        if instance.last_get > instance.last_push or now - instance.last_push >= subscribed.interval_ms / 1000:
            instance.last_push = now
        elif not is_terminating:
            self.throttled += 1
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the client pushes again before its interval is over")
        if subscription_id != subscribed.subscription_id:
            self.unknown_subscriptions += 1
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, f"subscription {subscription_id} is unknown")
        if not 0 <= compression < len(COMPRESSIONS):
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {compression} is unknown")
        if size > self.bytes_max:
            raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, f"{size} bytes; the limit is {self.bytes_max}")

    def pushed(self, instance: Instance, size: int, numbers: Sequence[Number]) -> None:
        """A push was read."""
        instance.last_error = ErrorCode.NONE
        self.pushes += 1
        self.pushed_bytes += size
        if self.instances.get(instance.subscribed.instance_id) is not instance:
            return  # forgotten meanwhile
        series = instance.series
        for number in numbers:
            key = number.metric, number.attributes
            if key not in series:
                if self._series >= SERIES_MAX:
                    continue
                self._series += 1
            series[key] = series.get(key, 0.0) + number.value if number.is_delta else number.value

    def unreadable(self, instance: Instance, error: ErrorCode) -> None:
        """A push that was to be read could not be read."""
        instance.last_error = error
        self.refused += 1

    def bind(self, instance_id: uuid.UUID, connection: Hashable) -> bool:
        """The instance is the one of this connection. True: the connection is new here, and its end is to be told to `gone`."""
        is_new = connection not in self._of_connection
        self._of_connection[connection] = instance_id
        return is_new

    def gone(self, connection: Hashable) -> None:
        """The connection has ended."""
        instance_id = self._of_connection.pop(connection, None)
        if instance_id is not None:
            self._forget(instance_id)

    def _instance(self, instance_id: uuid.UUID, client: Client) -> Instance:
        now = self._monotonic()
        while self.instances:
            oldest = next(iter(self.instances))
            if self.instances[oldest].expires_at > now and len(self.instances) <= INSTANCES_MAX:
                break
            self._forget(oldest)
        found = self.instances.get(instance_id)
        if found is not None and found.expires_at <= now:
            self._forget(instance_id)
            found = None
        if found is None or found.version != self._version:
            series = {} if found is None else found.series
            found = Instance(client, self._subscribed(instance_id, client), self._version)
            found.series = series
            self.instances[instance_id] = found
        interval_s = found.subscribed.interval_ms / 1000
        found.expires_at = now + max(FORGOTTEN_AFTER_S, FORGOTTEN_AFTER_INTERVALS * interval_s)
        self.instances.move_to_end(instance_id)
        return found

    def _forget(self, instance_id: uuid.UUID) -> None:
        instance = self.instances.pop(instance_id, None)
        if instance is not None:
            self._series -= len(instance.series)

    def _subscribed(self, instance_id: uuid.UUID, client: Client) -> Subscribed:
        values = dict(zip(SELECTORS, (_text_of(instance_id), *client), strict=True))
        matching = [each for each in self._subscriptions.values() if each.matches(values)]
        metrics = sorted({metric for each in matching for metric in each.metrics})
        if ALL_METRICS in metrics:
            metrics = [ALL_METRICS]
        interval_ms = min([ClientMetricsConfig.interval_ms, *(each.interval_ms for each in matching)])
        number = zlib.crc32(f"{metrics}{interval_ms}".encode() + instance_id.bytes)
        return Subscribed(instance_id, number - (1 << 32) if number >> 31 else number, metrics, interval_ms)


def _subscription(configs: Mapping[str, str]) -> _Subscription:
    values = {attribute(key): parse_value(ClientMetricsConfig, key, text) for key, text in configs.items()}
    config = ClientMetricsConfig(**values)  # type: ignore[arg-type]
    metrics = tuple(filter(None, config.metrics.split(",")))
    return _Subscription(dict(configs), metrics, config.interval_ms, patterns_in(config.match))


def _name_of(entity: str) -> str | None:
    """The subscription's name; None: it is another kind of entity, or cannot be read."""
    kind, _, node = entity.partition("/")
    if kind != CLIENT_METRICS:
        return None
    try:
        return desanitized(node)
    except ValueError:
        return None


def _text_of(instance_id: uuid.UUID) -> str:
    """As Kafka writes the id, in URL-safe base 64."""
    return topic_id_text(instance_id)
