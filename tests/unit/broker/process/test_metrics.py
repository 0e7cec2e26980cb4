"""The metrics page of a broker, as Prometheus's own parser reads it."""

import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.process import metrics
from broker.process.loop_watchdog import TurnTimes
from broker.process.metrics import CONNECTIONS_MAX, MetricsServer
from broker.settings.config import ConfigError
from broker.settings.listeners import metrics_listener


def test_the_page_shows_the_turns_of_the_loop() -> None:
    times = TurnTimes()
    for seconds in (0.004, 0.04, 9.0):
        times.add(seconds, "log.py:1 append")
    server = MetricsServer("127.0.0.1", 0, times)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as page:
            families = {family.name: family for family in text_string_to_metric_families(page.read().decode())}
    finally:
        server.close()

    buckets = {s.labels["le"]: s.value for s in families["ottla_loop_turn_seconds"].samples if "le" in s.labels}
    assert (buckets["0.005"], buckets["0.03"], buckets["0.05"], buckets["+Inf"]) == (1, 1, 2, 3)
    (longest,) = families["ottla_loop_longest_turn_seconds"].samples
    assert (longest.value, longest.labels) == (9.0, {"call": "log.py:1 append"})
    assert "process_resident_memory_bytes" in families


def test_silent_connections_are_limited_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection takes a thread."""
    monkeypatch.setattr(metrics._Handler, "timeout", 0.3)
    server = MetricsServer("127.0.0.1", 0, TurnTimes())
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3 * CONNECTIONS_MAX)]
    try:
        for connection in idle:
            connection.settimeout(10)
            assert connection.recv(1) == b""  # closed, those that are too many at once
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as page:
            assert page.status == 200
    finally:
        for connection in idle:
            connection.close()
        server.close()


@pytest.mark.parametrize("text", ["9404", ":9404", "localhost:", "localhost:http", "localhost:99999", "localhost:²"])
def test_an_illegal_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.listener"):
        metrics_listener(text)
