"""What a broker tells of itself in Prometheus text, at `http://<metrics.listener>/metrics`.

The page is made in a thread of prometheus-client's own server, so a scrape does not hold the event loop. It only reads
plain numbers. There is no page unless `metrics.listener` names an address: whoever reaches the address may read it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from broker.config import ConfigError
from broker.loop_watchdog import BUCKETS_S, TurnTimes
from protocol.numbers import is_plain_number


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
            "ottla_loop_turn_seconds", "Turns of the event loop that a timer each 10 ms has seen"
        )
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        buckets, seen = [], 0
        for bound, count in zip(bounds, times.counts, strict=True):
            seen += count
            buckets.append((bound, seen))
        turns.add_metric([], buckets, times.total_s)
        yield turns


class MetricsServer:
    """Serves the page. Raises OSError when the address cannot be used."""

    def __init__(self, listener: str, times: TurnTimes) -> None:
        host, port = parse_listener(listener)
        registry = CollectorRegistry()
        registry.register(LoopTurns(times))
        ProcessCollector(registry=registry)
        self._server: Any
        self._thread: threading.Thread
        self._server, self._thread = start_http_server(port, host, registry)
        self.port = int(self._server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def parse_listener(text: str) -> tuple[str, int]:
    """(host, port) of `host:port`; port 0 is a free one. Raises ConfigError."""
    host, _, port = text.rpartition(":")
    if not host or not is_plain_number(port) or int(port) > 65535:
        raise ConfigError(f"metrics.listener={text!r}: allowed is host:port, for example 127.0.0.1:9404")
    return host.strip("[]"), int(port)
