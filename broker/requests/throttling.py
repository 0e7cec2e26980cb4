"""What a request costs its client by the quotas, and the wait that follows (KIP-13, KIP-219).

Whoever is over a quota is answered at once, with the throttle time, and the connection is muted for so long: nothing is read from it.
The requests of followers are no client's.
"""

from __future__ import annotations

from broker.network.request_channel import Request
from broker.requests.context import ApiContext


def of_produce(context: ApiContext, request: Request, size: int, acks: int) -> int:
    """The throttle time, in milliseconds, of a Produce request whose body has `size` bytes. Mutes the connection. To be called once."""
    quotas = context.quotas
    if not quotas.is_on:
        return 0
    connection = request.connection
    throttle_ms = quotas.produce.record(connection.principal.name, request.header.client_id, size, quotas.now_ms())
    if throttle_ms:
        connection.mute(throttle_ms)
    return throttle_ms


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
        self.throttle_ms = throttle_ms = quotas.fetch.record(name, client_id, size, now)
        if throttle_ms:
            quotas.fetch.add(name, client_id, -size, now)
            connection.mute(throttle_ms)
        return throttle_ms
