"""`python -m tools.bench.cost_of_change`: two brokers, for example of two commits, compared under the same produce load.

Each broker is measured in turns while the other is idle, and each pair of turns has the other order than the pair before, so that a
machine that gets slower or faster counts for both. The result is the median of the pairs' ratios. CPU time is compared and not the rate:
other work on the machine hardly changes it.
"""

from __future__ import annotations

import asyncio
import statistics
from typing import NamedTuple

import click
import uvloop

from tools.bench.produce_load import LoadConnection, Totals, produce_frame
from tools.bench.recorder_cost import cpu_seconds


class Target(NamedTuple):
    """The leader of the topic's partition 0."""

    host: str
    port: int
    pid: int


async def cpu_per_request(target: Target, frame: bytes, topic: str, connections: int, seconds: float) -> float:
    """CPU seconds of the broker for each request, after a short warm-up."""
    totals = Totals()
    loop = asyncio.get_running_loop()
    opened = [
        (await loop.create_connection(lambda: LoadConnection(frame, topic, 1, totals), target.host, target.port))[0]
        for _ in range(connections)
    ]
    await asyncio.sleep(seconds / 4)
    totals.is_counting = True
    cpu = cpu_seconds(target.pid)
    await asyncio.sleep(seconds)
    cpu, answers = cpu_seconds(target.pid) - cpu, totals.answers
    totals.is_counting = False
    for transport in opened:
        transport.close()
    if totals.failure or not answers:
        raise click.ClickException(totals.failure or "the broker did not answer")
    return cpu / answers


async def run(
    before: Target, after: Target, frame: bytes, topic: str, connections: int, pairs: int, seconds: float
) -> list[tuple[float, float]]:
    """(before, after) of each pair of turns."""
    found = []
    for target in (before, after):
        await cpu_per_request(target, frame, topic, connections, seconds)
    for number in range(pairs):
        order = (before, after) if number % 2 else (after, before)
        costs = [await cpu_per_request(target, frame, topic, connections, seconds) for target in order]
        found.append((costs[0], costs[1]) if number % 2 else (costs[1], costs[0]))
    return found


def target_of(text: str) -> Target:
    address, _, pid = text.rpartition(",")
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and pid.isdecimal()):
        raise click.UsageError(f"{text}: expected HOST:PORT,PID of a broker")
    return Target(host, int(port), int(pid))


@click.command()
@click.option("--before", required=True, metavar="HOST:PORT,PID", help="A broker, which leads the topic's partition 0.")
@click.option("--after", required=True, metavar="HOST:PORT,PID", help="The other broker, of another cluster.")
@click.option("--topic", default="bench", show_default=True, help="An existing topic in both clusters.")
@click.option("--connections", default=20, show_default=True)
@click.option("--record-bytes", default=100, show_default=True)
@click.option("--records", default=1, show_default=True, help="Records in each request.")
@click.option("--acks", type=click.Choice(["1", "-1"]), default="1", show_default=True)
@click.option("--pairs", default=20, show_default=True, help="Pairs of turns, one for each broker.")
@click.option("--seconds", default=1.5, show_default=True, help="Length of a turn.")
def main(
    before: str,
    after: str,
    topic: str,
    connections: int,
    record_bytes: int,
    records: int,
    acks: str,
    pairs: int,
    seconds: float,
) -> None:
    """Produce to both brokers in turns, and compare their CPU time per request."""
    frame = produce_frame(topic, 0, record_bytes, int(acks), records)
    found = uvloop.run(run(target_of(before), target_of(after), frame, topic, connections, pairs, seconds))
    for name, costs in (("before", [one for one, _ in found]), ("after", [other for _, other in found])):
        quiet, middle = statistics.quantiles(costs, n=10)[0], statistics.median(costs)
        click.echo(
            f"{name:<6}  {middle * 1e6:.2f} us CPU per request, {quiet * 1e6:.2f} us in the best tenth of the turns"
        )
    ratios = sorted(other / one for one, other in found)
    quarter = len(ratios) // 4
    click.echo(
        f"after/before: median {statistics.median(ratios):.4f}, "
        f"half of the pairs from {ratios[quarter]:.4f} to {ratios[-quarter - 1]:.4f}"
    )


if __name__ == "__main__":
    main()
