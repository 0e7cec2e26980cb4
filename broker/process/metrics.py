"""The broker's metrics in Prometheus text, at `http://<metrics.listener>/metrics`: docs/METRICS.md.

A thread of the metrics server makes the page, so a scrape does not block the event loop. It only reads plain numbers, and pauses, so
that the loop gets the interpreter (`exposition.paced`). There is no page unless `metrics.listener` names an address: anyone who reaches
the address may read the page. Because each connection takes a thread of the broker, at most CONNECTIONS_MAX connections are served at
a time, with the time-out CONNECTION_TIMEOUT_S.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from socketserver import ThreadingMixIn
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from broker.process.exposition import Section, paced
from broker.process.loop_watchdog import BUCKETS_S, TurnTimes

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

NO_PAGES: Mapping[str, Any] = MappingProxyType({})

CONNECTIONS_MAX = 8
"""Limit of connections that are served at a time; further ones are closed. A scrape takes milliseconds."""
CONNECTION_TIMEOUT_S = 5.0
"""How long the server waits for a client that sends nothing, or does not read."""


class LoopTurns(Collector):
    """The event loop's turns, as the watchdog measures them (NET-4)."""

    def __init__(self, times: TurnTimes) -> None:
        self._times = times

    def collect(self) -> Iterator[Metric]:
        times = self._times
        longest = GaugeMetricFamily(
            "ottla_loop_longest_turn_seconds", "Longest turn of the event loop since the start", labels=["call"]
        )
        longest.add_metric([times.longest_call], times.longest_s)
        yield longest
        turns = HistogramMetricFamily(
            "ottla_loop_turn_seconds", "Duration of the event loop's turns, measured by a timer every 20 ms"
        )
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        buckets, seen = [], 0
        for bound, count in zip(bounds, times.counts, strict=True):
            seen += count
            buckets.append((bound, seen))
        turns.add_metric([], buckets, times.total_s)
        yield turns


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *args: Any, **named: Any) -> None:
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(*args, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that disconnected or were too slow."""


class _Handler(WSGIRequestHandler):
    timeout = CONNECTION_TIMEOUT_S

    def log_message(self, *_: Any) -> None:
        """Keeps clients' requests out of the broker's log."""


def _page(sections: Sequence[Section]) -> WSGIApplication:
    def metrics(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain; version=0.0.4; charset=utf-8")])
        return paced(sections)

    return metrics


def _routed(metrics: WSGIApplication, pages: Mapping[str, WSGIApplication]) -> WSGIApplication:
    def route(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO", ""))
        for start, page in pages.items():
            if path == start or path.startswith(f"{start}/"):
                return page(environ, start_response)
        return metrics(environ, start_response)

    return route


class MetricsServer:
    """Serves the page. Raises OSError if the address cannot be used."""

    def __init__(
        self,
        host: str,
        port: int,
        times: TurnTimes,
        pages: Mapping[str, WSGIApplication] = NO_PAGES,
        sections: Sequence[Section] = (),
    ) -> None:
        """Port 0 means a free port. `self.port` is the bound port. `pages`: further pages, by the start of their path. `sections`: what
        the metrics page has besides the process and its loop."""
        registry = CollectorRegistry()
        registry.register(LoopTurns(times))
        ProcessCollector(registry=registry)
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        server = type("MetricsHttpServer", (_Server,), {"address_family": family})
        page = _page([lambda: (generate_latest(registry).decode(),), *sections])
        self._server: WSGIServer = make_server(host, port, _routed(page, pages), server, _Handler)
        self.port = int(self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
