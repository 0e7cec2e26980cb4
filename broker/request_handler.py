"""Takes requests from the channel and calls the API that serves them (NET-1, BAD-6..8, BAD-29).

Control requests are not in the table: on a client listener they are an unknown API. An error in a handler closes only that
connection, with the reason in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from broker.apis.api_versions import refuse_version
from broker.apis.coordinated import Handler
from broker.apis.gathered_produces import GatheredProduces, GuardedProduces
from broker.apis.table import HANDLERS
from broker.network.connection_state import Hold
from broker.network.request_channel import OLD_CLIENTS, Request
from broker.network.request_metrics import ApiMetrics, RequestMetrics
from broker.requests import request_time
from broker.requests.context import ApiContext
from broker.requests.request_time import MeasuredCoroutine, RequestTime
from broker.requests.steps import OWN_ERROR, REFUSALS, close_for
from protocol.kafka.api_keys import ANSWERED, ApiKey, ApiLevel

PRODUCE: Final = int(ApiKey.PRODUCE)
WRITE_TXN_MARKERS: Final = int(ApiKey.WRITE_TXN_MARKERS)
"""Between brokers: it costs no client anything."""

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
"""Limit of any request except Produce, which carries records. An admin's request for the largest cluster has a few megabytes."""


class RequestHandler:
    """The request channel calls `handle`, which never raises and never waits (BUG-26), and at the end of a turn `end_turn`."""

    def __init__(
        self,
        context: ApiContext,
        metrics: RequestMetrics | None = None,
        level: ApiLevel = ApiLevel.KAFKA_4,
    ) -> None:
        """`metrics` counts the requests; fetches are counted by their API, which knows whose they are."""
        self.faults: Callable[[Request], bool] | None = None
        """Sees each request first, and returns True for one that is not to be handled (`broker/fault_injection`)."""
        self._context = context
        self._quotas = context.quotas
        self._gathered = GatheredProduces(context) if context.authorizer is None else GuardedProduces(context)
        self._measured = (metrics or RequestMetrics()).by_key
        self._routes: dict[int, tuple[int, int, Handler, ApiMetrics | None]] = {}
        self.serve(level)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def level(self) -> ApiLevel:
        """The level that is served."""
        return self._level

    def serve(self, level: ApiLevel) -> None:
        """Answers the APIs and versions of this level, from the next request on. Another one is unknown, as in Kafka of that level."""
        self._level = level
        answered = ANSWERED[level]
        self._routes = {
            int(key): (*answered[key], handler, self._measured.get(key))
            for key, handler in HANDLERS.items()
            if key in answered
        }

    def handle(self, request: Request) -> None:
        header = request.header
        api_key = header.api_key
        route = self._routes.get(api_key)
        if route is None:
            request.close(f"unknown API key {api_key}")
            return
        oldest, newest, handler, metrics = route
        version = header.api_version
        if not oldest <= version <= newest:
            if api_key == ApiKey.API_VERSIONS:
                refuse_version(self._level, request)
            else:
                advice = OLD_CLIENTS if 0 <= version < oldest else ""
                request.close(f"{request.named()}: supported versions are v{oldest} to v{newest}{advice}")
            return
        if len(request.frame) > REQUEST_BYTES_MAX and api_key != ApiKey.PRODUCE:
            request.close(f"{request} has {len(request.frame)} bytes; the limit is {REQUEST_BYTES_MAX}")
            return
        if self.faults is not None and self.faults(request):
            return
        timing = None
        if metrics is not None:  # as ApiMetrics.count
            metrics.until_timed = left = metrics.until_timed - 1
            if left <= 0:
                timing = metrics.time(version, request.received_at)
                request.connection.when_answered(request.number, timing.answered)
        gathered = self._gathered
        toll = None
        if self._quotas.request.is_on and api_key != WRITE_TXN_MARKERS:
            toll = request_time.toll_of(self._quotas, request)
        try:
            if api_key == PRODUCE and gathered.gather(request):
                waiting = None
            else:
                gathered.append_all()  # they came first
                waiting = handler(self._context, request)
        except REFUSALS as error:
            close_for(request, error)
        except Exception:
            # The boundary of the request: a bug of the broker ends only this connection.
            log.exception("%s failed", request)
            request.close(OWN_ERROR)
        else:
            if waiting is not None:
                self._run(request, waiting, toll)
            if timing is not None:
                gathered.append_all()
                timing.handled()
        if toll is not None:
            toll.end()

    def end_turn(self) -> None:
        """To be called when the requests of a turn have been handled. Completes those that wait for it."""
        self._gathered.append_all()

    async def close(self) -> None:
        """Cancels the requests whose API is still awaiting something."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, request: Request, waiting: Coroutine[Any, Any, None], toll: RequestTime | None) -> None:
        request.connection.hold(Hold.ASYNC_API)
        request.keeps_frame = True
        task = asyncio.get_running_loop().create_task(
            self._finish(request, waiting if toll is None else MeasuredCoroutine(toll, waiting))
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, request: Request, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except REFUSALS as error:
            close_for(request, error)
        except Exception:
            # As in `handle`.
            log.exception("%s failed", request)
            request.close(OWN_ERROR)
        finally:
            request.keeps_frame = request.waits_again
            if request.large_size and not request.keeps_frame:
                request.connection.frame_handled(request)
            request.connection.release(Hold.ASYNC_API)
