"""The metrics page of a broker, as Prometheus's own parser reads it."""

import socket
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.process import http_pages
from broker.process.http_pages import CONNECTIONS_MAX
from broker.process.loop_watchdog import TurnTimes
from broker.process.metrics import MetricsServer
from broker.settings.config import ConfigError
from broker.settings.listeners import metrics_listener

PROCESS = (
    "cpu_seconds",
    "max_fds",
    "open_fds",
    "resident_memory_bytes",
    "start_time_seconds",
    "virtual_memory_bytes",
)


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
    process = {name: families[f"process_{name}"].samples[0].value for name in PROCESS}
    assert 1e6 < process["resident_memory_bytes"] < process["virtual_memory_bytes"]
    assert 0 < process["open_fds"] < process["max_fds"]
    assert 0 < process["cpu_seconds"] < time.time() - process["start_time_seconds"] + 1 < 1e6


def test_silent_connections_are_limited_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection takes a thread."""
    monkeypatch.setattr(http_pages._Handler, "timeout", 0.3)
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


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"200 OK"),
        (b"HEAD /metrics HTTP/1.0\n\n", b"200 OK"),
        (b"GET\r\n\r\n", b"400 Bad Request"),
        (b"\r\n", b"400 Bad Request"),
        (b"\x00\x00\x00\x14\x00\x12\x00\x00", b"400 Bad Request"),
    ],
)
def test_what_is_no_request_is_refused(request_bytes: bytes, status: bytes) -> None:
    server = MetricsServer("127.0.0.1", 0, TurnTimes())
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(request_bytes)
            connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    finally:
        server.close()
    assert answer.startswith(b"HTTP/1.0 " + status + b"\r\n")
    assert (b"# TYPE" in answer) == (request_bytes.startswith(b"GET / ") and status == b"200 OK")


def test_a_request_without_end_is_not_read_to_its_end() -> None:
    """The client sends until its connection is closed. It may not get to see the answer."""
    server = MetricsServer("127.0.0.1", 0, TurnTimes())
    try:
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        with connection, pytest.raises((ConnectionResetError, BrokenPipeError)):
            connection.sendall(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000_000)
    finally:
        server.close()


@pytest.mark.parametrize("text", ["9404", ":9404", "localhost:", "localhost:http", "localhost:99999", "localhost:²"])
def test_an_illegal_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.listener"):
        metrics_listener(text)
