"""What a request costs its client by the quotas, and the wait that follows (KIP-13, KIP-219).

Whoever is over a quota is answered at once, with the throttle time, and the connection is muted for so long: nothing is read from it.
`request_time.py` has the quota of time. The requests of followers are no client's.
"""

from __future__ import annotations

from broker.network.request_channel import Request
from broker.quotas.client_quotas import MutationQuota
from broker.requests.context import ApiContext
from broker.requests.request_time import RequestTime


def of_produce(context: ApiContext, request: Request, size: int, acks: int) -> int:
    """The throttle time, in milliseconds, of a Produce request whose body has `size` bytes. Mutes the connection. To be called once."""
    quotas = context.quotas
    if not quotas.is_on:
        return 0
    connection = request.connection
    time_ms = _time_ms(request) if acks else 0
    request.toll = None  # the time of a request that is not answered costs nothing, as in Kafka
    throttle_ms = quotas.produce.record(connection.principal.name, request.header.client_id, size, quotas.now_ms())
    if throttle_ms:
        connection.mute(throttle_ms)
    return max(throttle_ms, time_ms)


class OfConsumer:
    """What a consumer's Fetch costs. `bytes_max`: more would be throttled even if the client has fetched nothing before."""

    __slots__ = ("_context", "_request", "bytes_max", "throttle_ms")

    def __init__(self, context: ApiContext, request: Request) -> None:
        self._context = context
        self._request = request
        quotas = context.quotas
        name, client_id = request.connection.principal.name, request.header.client_id
        self.bytes_max = quotas.fetch.in_window(name, client_id, quotas.now_ms())
        self.throttle_ms = 0

    def count(self, size: int) -> int:
        """An answer has `size` bytes. Returns the throttle time; above 0, the connection is muted, and an empty answer is to be sent."""
        quotas = self._context.quotas
        connection = self._request.connection
        name, client_id, now = connection.principal.name, self._request.header.client_id, quotas.now_ms()
        time_ms = _time_ms(self._request)
        bytes_ms = quotas.fetch.record(name, client_id, size, now)
        self.throttle_ms = throttle_ms = max(time_ms, bytes_ms)
        if throttle_ms:
            quotas.fetch.add(name, client_id, -size, now)
            connection.mute(throttle_ms)
        return throttle_ms


def of_mutations(context: ApiContext, request: Request, strict_since: int) -> MutationQuota:
    """The quota for the partitions that a request makes or deletes. `strict_since`: the first version whose clients know how to wait."""
    is_strict = request.header.api_version >= strict_since
    return MutationQuota(
        context.quotas, request.connection.principal.name, request.header.client_id, is_strict=is_strict
    )


def mute_for(request: Request, quota: MutationQuota) -> int:
    """The throttle time of the answer that is about to be sent. Mutes the connection."""
    throttle_ms = quota.throttle_ms()
    if throttle_ms:
        request.connection.mute(throttle_ms)
    return throttle_ms


def _time_ms(request: Request) -> int:
    """The throttle time for the time that the request took until now."""
    toll = request.toll
    request.toll = None
    return toll.pay(request) if isinstance(toll, RequestTime) else 0
