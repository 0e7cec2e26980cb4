"""The quotas of users and client ids: what they use, and how long who is over a quota waits (`ClientQuotaManager` in Kafka).

`Quotas.changed` is told the settings below `/config/users` and `/config/clients`; `broker/settings/entity_configs.py` follows them. A
client without any quota costs nothing: nothing is measured for it. Kafka forgets a client that was silent for an hour; here it is forgotten
as soon as it is silent for a whole window, if there are very many.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Collection, Mapping
from typing import Final, Generic, TypeVar

from broker.quotas.limits import Entity, Limits
from broker.quotas.quota_configs import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    OF_CLIENTS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    read_quota,
)
from broker.quotas.rates import SampledRate, TokenBucket, Window, throttle_time
from broker.settings.config import INT_MAX, BrokerConfig
from protocol.errors import ErrorCode, KafkaError
from protocol.plain_text import escaped, shortened

log = logging.getLogger(__name__)

METERS_MAX: Final = 10_000
"""Limit of the clients of one quota whose use is measured. Above it, those are forgotten that were silent for longest."""
METERS_SHOWN_MAX: Final = 1_000
"""Limit of the clients of one quota that have metrics."""
NAME_MAX: Final = 256
"""Characters of a client id by which its use is kept. For a longer one it is the hash: an id may have 32 KB, and there are many."""
CLIENTS: Final = "clients"
USERS: Final = "users"
SHOWN_MAX: Final = 200

Measure = TypeVar("Measure", SampledRate, TokenBucket)


class Meter(Generic[Measure]):
    """What the clients that share a quota use. `bound` is the quota, each second."""

    __slots__ = ("bound", "measure", "throttle_ms", "throttled_at")

    def __init__(self, measure: Measure) -> None:
        self.measure: Measure = measure
        self.bound = 0.0
        self.throttle_ms = 0
        """The last throttle time."""
        self.throttled_at = 0


class Meters(Generic[Measure]):
    """One quota: the limits, and who has used how much. `is_on` says whether anybody has a quota."""

    def __init__(self, window: Window, measure: Callable[[Window], Measure]) -> None:
        self.limits = Limits()
        self.window = window
        self.is_on = False
        self.throttled = 0
        """How often a client had to wait, since the start."""
        self._measure: Callable[[Window], Measure] = measure
        self._meters: dict[Entity, Meter[Measure]] = {}
        self._of_clients: dict[tuple[str, str | None], Meter[Measure] | None] = {}

    def __len__(self) -> int:
        return len(self._meters)

    def set(self, entity: Entity, value: float | None) -> None:
        """A quota is set, or removed (None). What was used so far counts, unless the quota was negative: what is owed then has no end."""
        before = self.limits.get(entity)
        if self.limits.set(entity, value):
            self._of_clients.clear()
            self.is_on = len(self.limits) > 0
            if not self.is_on or (before is not None and before < 0):
                self._meters.clear()

    def of(self, user: str, client_id: str | None, now: int) -> Meter[Measure] | None:
        """The meter of the client. None: it has no quota."""
        key = (user, client_id if client_id is None or len(client_id) <= NAME_MAX else _hash_of(client_id))
        try:
            return self._of_clients[key]
        except KeyError:
            pass
        if len(self._of_clients) >= METERS_MAX:
            self._of_clients.clear()
        found = self.limits.of(user, client_id)
        meter = None
        if found is not None:
            entity, bound = found
            if len(entity.client_id) > NAME_MAX:
                entity = entity._replace(client_id=_hash_of(entity.client_id))
            meter = self._meters.get(entity)
            if meter is None:
                if len(self._meters) >= METERS_MAX:
                    self._forget_some(now)
                meter = self._meters[entity] = Meter(self._measure(self.window))
            meter.bound = bound
        self._of_clients[key] = meter
        return meter

    def _forget_some(self, now: int) -> None:
        """Forgets those that were silent for a window, of which nothing is left, and a quarter of all at least."""

        def silent_ms(entity: Entity) -> float:
            last = self._meters[entity].measure.last_ms
            return math.inf if last is None else now - last

        by_silence = sorted(self._meters, key=silent_ms, reverse=True)
        for number, entity in enumerate(by_silence):
            if number >= METERS_MAX // 4 and silent_ms(entity) < self.window.age_ms:
                break
            del self._meters[entity]
        self._of_clients.clear()

    def has_to_wait(self, meter: Meter[Measure], throttle_ms: int, now: int) -> None:
        """Notes a throttle time."""
        self.throttled += 1
        meter.throttle_ms, meter.throttled_at = throttle_ms, now

    def measured(self) -> list[tuple[Entity, Meter[Measure]]]:
        """Who shares a quota, and what they use, of at most METERS_SHOWN_MAX. Another thread may ask."""
        return list(self._meters.items())[:METERS_SHOWN_MAX]


class Rates(Meters[SampledRate]):
    """A quota of bytes, or of the time that requests take. `limit_ms`: of a throttle time."""

    def __init__(self, window: Window, limit_ms: int | None = None) -> None:
        super().__init__(window, SampledRate)
        self._limit_ms = limit_ms

    def record(self, user: str, client_id: str | None, value: float, now: int) -> int:
        """The client used so much. Returns its throttle time in milliseconds; 0: it is within its quota."""
        meter = self.of(user, client_id, now)
        if meter is None:
            return 0
        meter.measure.record(value, now)
        wait_ms = meter.measure.wait_ms(meter.bound, now)
        if not wait_ms:
            return 0
        throttle_ms = throttle_time(wait_ms, self._limit_ms)
        if throttle_ms:
            self.has_to_wait(meter, throttle_ms, now)
        return throttle_ms

    def add(self, user: str, client_id: str | None, value: float, now: int) -> None:
        """The client used so much; a negative value takes it back. Its next request may have to wait for it."""
        meter = self.of(user, client_id, now)
        if meter is not None:
            meter.measure.record(value, now)

    def in_window(self, user: str, client_id: str | None, now: int) -> int:
        """What the client may use at once without being throttled, if it has used nothing before."""
        meter = self.of(user, client_id, now)
        if meter is None:
            return INT_MAX
        bound = meter.bound * self.window.full_s
        return int(max(0.0, bound)) if bound < INT_MAX else INT_MAX


class MutationQuota:
    """How many partitions a request may make or delete (KIP-599). Strict: none while the client owes some. Otherwise it waits after it."""

    def __init__(self, quotas: Quotas, user: str, client_id: str | None, *, is_strict: bool) -> None:
        self._quotas = quotas
        self._meter = quotas.mutations.of(user, client_id, quotas.now_ms()) if quotas.mutations.is_on else None
        self._is_strict = is_strict
        self._wait_ms = 0
        self._waits_since = 0

    def take(self, count: int) -> None:
        """So many partitions change. Raises KafkaError if they may not now."""
        meter = self._meter
        if meter is None:
            return
        now = self._quotas.now_ms()
        if self._is_strict and meter.measure.tokens(meter.bound, now) < 0:
            self._waits(meter, now)
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        meter.measure.take(meter.bound, count, now)
        if not self._is_strict:
            self._waits(meter, now)

    def throttle_ms(self) -> int:
        """The throttle time of the request, which may have waited since."""
        return max(0, self._wait_ms - (self._quotas.now_ms() - self._waits_since))

    def _waits(self, meter: Meter[TokenBucket], now: int) -> None:
        wait_ms = throttle_time(meter.measure.wait_ms(meter.bound, now))
        if wait_ms or self._is_strict:
            self._wait_ms, self._waits_since = wait_ms, now
            self._quotas.mutations.has_to_wait(meter, wait_ms, now)


class Quotas:
    """All quotas of users and client ids of this broker. `is_on`: somebody has a quota that counts for any request.

    `now_ms` is the broker's monotonic clock in milliseconds.
    """

    def __init__(self, config: BrokerConfig, monotonic: Callable[[], float]) -> None:
        window = Window(config.quota_window_num, config.quota_window_size_seconds * 1000)
        controller = Window(config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000)
        self.monotonic = monotonic
        self.produce = Rates(window)
        self.fetch = Rates(window)
        self.request = Rates(window, window.size_ms)
        self.mutations = Meters(controller, TokenBucket)
        self.is_on = False
        self._of_kind: Mapping[str, Meters[SampledRate] | Meters[TokenBucket]] = {
            PRODUCER_BYTE_RATE: self.produce,
            CONSUMER_BYTE_RATE: self.fetch,
            REQUEST_PERCENTAGE: self.request,
            CONTROLLER_MUTATION_RATE: self.mutations,
        }

    def now_ms(self) -> int:
        return int(self.monotonic() * 1000)

    # -- what the settings say ------------------------------------------------------------------------------------------

    def changed(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """`configs`: an entity, such as `users/alice/clients/app`, -> its settings now. A value that cannot be read changes nothing."""
        for name, config in configs.items():
            entity = entity_of(name)
            if entity is None:
                continue
            for kind, meters in self._of_kind.items():
                text = config.get(kind)
                try:
                    meters.set(entity, None if text is None else read_quota(OF_CLIENTS[kind], text))
                except ValueError:
                    log.warning(
                        "%s of %s cannot be read, the earlier value stays: %s",
                        kind,
                        _shown(name),
                        _shown(text or ""),
                    )
        self._count()

    def all_are(self, names: Collection[str]) -> None:
        """Other entities have no quotas."""
        kept = {entity_of(name) for name in names}
        for meters in self._of_kind.values():
            for entity in meters.limits.entities():
                if entity not in kept:
                    meters.set(entity, None)
        self._count()

    def _count(self) -> None:
        self.is_on = self.produce.is_on or self.fetch.is_on or self.request.is_on


def entity_of(name: str) -> Entity | None:
    """The entity of `users/<user>`, `users/<user>/clients/<client id>` or `clients/<client id>`; None: it is another one."""
    kind, *parts = name.split("/")
    if kind == CLIENTS and len(parts) == 1:
        return Entity("", parts[0])
    if kind == USERS and len(parts) == 1:
        return Entity(parts[0])
    if kind == USERS and len(parts) == 3 and parts[1] == CLIENTS:
        return Entity(parts[0], parts[2])
    return None


def _hash_of(name: str) -> str:
    return f"sha256-{hashlib.sha256(name.encode()).hexdigest()}"


def _shown(text: str) -> str:
    return shortened(escaped(text), SHOWN_MAX)
