"""`python -m tools.bench.produce_load`: pre-encoded Produce requests over raw sockets, counted and timed.

The client does as little as possible, so that the broker is measured: each connection keeps `--in-flight` copies of one frame in
flight and checks only the answer's error code. A warm-up of at most a second is not counted, because memory is slow on first use.
The given broker must be the partition's leader.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

import click
import uvloop

from tools.bench.load import plan
from tools.numbers import IntRange


@dataclass
class Totals:
    """The results of all connections since the warm-up. `latencies_ms` has every answer."""

    answers: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    is_counting: bool = False
    failure: str = ""


class LoadConnection(asyncio.Protocol):
    """Sends the frame again for each answer."""

    def __init__(self, frame: bytes, topic: str, in_flight: int, totals: Totals) -> None:
        self._frame = frame
        # correlation id, tags, one topic, its name, one partition, its index, then the error code
        self._error_at = 4 + 4 + 1 + 1 + 1 + len(topic.encode()) + 1 + 4
        self._in_flight = in_flight
        self._totals = totals
        self._sent: list[float] = []
        self._received = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._send(self._in_flight)

    def _send(self, count: int) -> None:
        assert self.transport is not None
        self._sent += [time.perf_counter()] * count
        self.transport.write(self._frame * count)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        count = at = 0
        while len(received) - at >= 4:
            size = 4 + int.from_bytes(received[at : at + 4], "big")
            if len(received) - at < size:
                break
            (error,) = struct.unpack_from(">h", received, at + self._error_at)
            if error and not self._totals.failure:
                self._totals.failure = f"the broker answers with error code {error}"
            at += size
            count += 1
        del received[:at]
        totals = self._totals
        if totals.is_counting:
            now = time.perf_counter()
            totals.answers += count
            totals.latencies_ms += [(now - sent) * 1000 for sent in self._sent[:count]]
        del self._sent[:count]
        if count:
            self._send(count)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._totals.failure and self._totals.is_counting:
            self._totals.failure = "the broker closed a connection"


def produce_frame(topic: str, partition: int, record_bytes: int, acks: int, records: int = 1) -> bytes:
    """A complete Produce request with one batch of equal records."""
    batch = plan.batch(record_bytes, records, int(time.time() * 1000))
    return plan.produce_frame([(topic, partition)], acks, batch)


def cpu_seconds(pid: int | None) -> float:
    """User and system time of a process until now; 0 without a process."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def run(
    host: str, port: int, frame: bytes, topic: str, connections: int, in_flight: int, seconds: float, pid: int | None
) -> tuple[Totals, float, float]:
    """(totals, seconds measured, CPU seconds of the process `pid` meanwhile)"""
    totals = Totals()
    loop = asyncio.get_running_loop()
    opened = [
        (await loop.create_connection(lambda: LoadConnection(frame, topic, in_flight, totals), host, port))[0]
        for _ in range(connections)
    ]
    await asyncio.sleep(min(1.0, seconds / 3))
    totals.is_counting = True
    began, cpu_before = time.perf_counter(), cpu_seconds(pid)
    await asyncio.sleep(seconds)
    elapsed, cpu = time.perf_counter() - began, cpu_seconds(pid) - cpu_before
    totals.is_counting = False
    for transport in opened:
        transport.close()
    return totals, elapsed, cpu


@click.command()
@click.option("--bootstrap-server", required=True, help="HOST:PORT of the partition's leader.")
@click.option("--topic", default="bench", show_default=True, help="An existing topic.")
@click.option("--partition", default=0, show_default=True)
@click.option("--connections", default=20, show_default=True)
@click.option("--in-flight", default=1, show_default=True, help="Unanswered requests per connection.")
@click.option("--record-bytes", default=100, show_default=True)
@click.option("--acks", type=click.Choice(["1", "-1"]), default="1", show_default=True)
@click.option("--seconds", default=5.0, show_default=True)
@click.option("--pid", type=IntRange(), help="The broker's process; its CPU time is printed.")
def main(
    bootstrap_server: str,
    topic: str,
    partition: int,
    connections: int,
    in_flight: int,
    record_bytes: int,
    acks: str,
    seconds: float,
    pid: int | None,
) -> None:
    """Produce as fast as the broker answers, and print the rate and the latency."""
    host, _, port = bootstrap_server.rpartition(":")
    frame = produce_frame(topic, partition, record_bytes, int(acks))
    totals, elapsed, cpu = uvloop.run(run(host, int(port), frame, topic, connections, in_flight, seconds, pid))
    if totals.failure:
        raise click.ClickException(totals.failure)
    if not totals.answers:
        raise click.ClickException("the broker did not answer")
    times = sorted(totals.latencies_ms)

    def percentile(share: float) -> float:
        return times[min(len(times) - 1, int(len(times) * share))]

    click.echo(
        f"{totals.answers / elapsed:,.0f} requests/s, {totals.answers * record_bytes / elapsed / 1e6:,.1f} MB/s, "
        f"latency p50 {percentile(0.5):.2f} ms, p99 {percentile(0.99):.2f} ms, max {times[-1]:.2f} ms"
    )
    if pid is not None:
        click.echo(f"broker: {cpu / totals.answers * 1e6:.1f} us CPU per request, {cpu / elapsed:.0%} of a core")


if __name__ == "__main__":
    main()
