"""The time that a request takes of the broker's loop, for the quota `request_percentage` (KIP-124).

A hundred percent is the time of one thread: of the loop here, of one of its many threads in Kafka. Only what the loop does for the request
counts: its handler, its steps, the turns of its coroutine, its share of a write with others. Waiting costs nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Final, TypeVar

from broker.network.request_channel import Request
from broker.quotas.client_quotas import Quotas
from protocol.kafka import messages
from protocol.kafka.api_keys import FIRST_FLEXIBLE, ApiKey
from protocol.types import Buffer

Result = TypeVar("Result")

PERCENT: Final = 100
SIZE: Final = 4
"""Bytes of a throttle time."""


class RequestTime:
    """Measures one request, and pays for it once, when it is answered. What it takes afterwards counts for the next request."""

    __slots__ = ("_client_id", "_is_paid", "_quotas", "_since", "_spent", "_user")

    def __init__(self, quotas: Quotas, request: Request) -> None:
        self._quotas = quotas
        self._user = request.connection.principal.name
        self._client_id = request.header.client_id
        self._spent = 0.0
        self._since: float | None = None
        self._is_paid = False

    def begin(self) -> bool:
        """The loop works for the request. False: it did already, and another call ends that."""
        if self._since is not None:
            return False
        self._since = self._quotas.monotonic()
        return True

    def end(self) -> None:
        """The loop turns to something else."""
        self._take()
        self._since = None
        if self._is_paid and self._spent:
            spent, self._spent = self._spent, 0.0
            self._quotas.request.add(self._user, self._client_id, spent * PERCENT, self._quotas.now_ms())

    def add(self, seconds: float) -> None:
        """The loop has worked for this and other requests together; this is its share."""
        self._spent += seconds

    def pay(self, request: Request) -> int:
        """Records the time until now. Returns the throttle time in milliseconds, for which the connection is then muted."""
        self._take()
        spent, self._spent = self._spent, 0.0
        self._is_paid = True
        quotas = self._quotas
        throttle_ms = quotas.request.record(self._user, self._client_id, spent * PERCENT, quotas.now_ms())
        if throttle_ms:
            request.connection.mute(throttle_ms)
        return throttle_ms

    def paid(self, request: Request, body: Sequence[Buffer]) -> Sequence[Buffer]:
        """The body of the answer, with its throttle time if there is one. The request pays."""
        request.toll = None
        throttle_ms = self.pay(request)
        return with_throttle_time(request.header.api_key, request.header.api_version, body, throttle_ms)

    def _take(self) -> None:
        if self._since is not None:
            now = self._quotas.monotonic()
            self._spent += now - self._since
            self._since = now


def toll_of(quotas: Quotas, request: Request) -> RequestTime | None:
    """Begins to measure the request, if its client has the quota."""
    name, client_id = request.connection.principal.name, request.header.client_id
    if quotas.request.of(name, client_id, quotas.now_ms()) is None:
        return None
    toll = RequestTime(quotas, request)
    toll.begin()
    request.toll = toll
    return toll


def measured(toll: RequestTime | None, steps: Generator[Any, Any, Result]) -> Generator[Any, Any, Result]:
    """The same steps, whose time counts for the request. None: they are not measured."""
    return steps if toll is None else _measured(toll, steps)


def _measured(
    toll: RequestTime, steps: Generator[Any, Any, Result] | Coroutine[Any, Any, Result]
) -> Generator[Any, Any, Result]:
    step: Callable[[], Any] = lambda: steps.send(None)  # noqa: E731 - the next step, which what comes back decides
    try:
        while True:
            has_begun = toll.begin()
            try:
                found = step()
            except StopIteration as end:
                result: Result = end.value
                return result
            finally:
                if has_begun:
                    toll.end()
            try:
                value = yield found
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - of a thread, or a cancellation: the steps decide
                step = _thrower(steps, error)
            else:
                step = _sender(steps, value)
    finally:
        steps.close()


def _sender(steps: Any, value: Any) -> Callable[[], Any]:
    return lambda: steps.send(value)


def _thrower(steps: Any, error: BaseException) -> Callable[[], Any]:
    return lambda: steps.throw(error)


class MeasuredCoroutine(Awaitable[None]):
    """A coroutine whose time counts for the request."""

    def __init__(self, toll: RequestTime, coroutine: Coroutine[Any, Any, None]) -> None:
        self._toll = toll
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, None]:
        return _measured(self._toll, self._coroutine)


def with_throttle_time(api_key: int, version: int, body: Sequence[Buffer], throttle_ms: int) -> Sequence[Buffer]:
    """The body with this throttle time, if it has one and a shorter one. Answers of some versions have none."""
    if not throttle_ms:
        return body
    at = messages.throttle_time_at(api_key, version)
    if at is None:
        return body
    first, rest = bytes(body[0]), body[1:]
    if at == messages.AFTER_ROWS or len(first) < at + SIZE:
        first, rest = b"".join(body), ()
    if at == messages.AFTER_ROWS:
        at = _after_rows(api_key, version, first)
    longest = max(int.from_bytes(first[at : at + SIZE], "big", signed=True), throttle_ms)
    return (first[:at] + longest.to_bytes(SIZE, "big") + first[at + SIZE :], *rest)


def _after_rows(api_key: int, version: int, body: bytes) -> int:
    """Where an answer has a throttle time that comes after an array."""
    is_flexible = version >= FIRST_FLEXIBLE[api_key]
    if api_key != ApiKey.API_VERSIONS:
        return len(body) - SIZE - is_flexible
    if not is_flexible:
        return len(body) - SIZE
    count, at, shift = 0, 2, 0  # after the error: the number of rows and one, seven bits in each byte
    while True:
        byte = body[at]
        count |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return at + (count - 1) * 7
