"""`python -m tools.bench.recorder_cost`: what the recorder costs a broker, on against off, in one run of the produce load.

The recorder is switched in turns, each with the next the other way round, so that a machine that gets slower or faster counts for
both. The result is the median of the turns' ratios. Do not run it beside another recording: it ends it.
"""

from __future__ import annotations

import asyncio
import statistics
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
import uvloop

from tools.admin.config_values import BROKERS, ENTITY_DEFAULT, Entity
from tools.admin.kafka_python_admin import KafkaPythonAdmin
from tools.bench.produce_load import LoadConnection, Totals, produce_frame
from tools.numbers import IntRange

ALL_BROKERS = Entity(BROKERS, ENTITY_DEFAULT)
SETTLED_S = 0.4
"""After a switch. A recording starts and stops within a few milliseconds."""


class Turn(NamedTuple):
    """CPU seconds of the broker for each request, and requests per second."""

    cpu_s: float
    rate: float


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process until now, in nanosecond steps: /proc/PID/stat has steps of 10 ms."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


async def run(
    address: str, topic: str, connections: int, record_bytes: int, pairs: int, seconds: float, pid: int
) -> list[tuple[Turn, Turn]]:
    """(off, on) of each pair of turns."""
    host, _, port = address.rpartition(":")
    totals = Totals()
    frame = produce_frame(topic, 0, record_bytes, acks=1)
    loop = asyncio.get_running_loop()
    opened = [
        (await loop.create_connection(lambda: LoadConnection(frame, topic, 1, totals), host, int(port)))[0]
        for _ in range(connections)
    ]
    totals.is_counting = True
    found = []
    with closing(KafkaPythonAdmin(address)) as admin:

        async def turn(*, is_on: bool) -> Turn:
            changes: dict[str, str | None] = {"recorder.id": "cost", "recorder.enable": str(is_on).lower()}
            await loop.run_in_executor(None, partial(admin.alter_configs, ALL_BROKERS, changes))
            await asyncio.sleep(SETTLED_S)
            totals.latencies_ms.clear()
            answers, cpu, began = totals.answers, cpu_seconds(pid), loop.time()
            await asyncio.sleep(seconds)
            count = max(totals.answers - answers, 1)
            return Turn((cpu_seconds(pid) - cpu) / count, count / (loop.time() - began))

        try:
            await turn(is_on=False)  # warm-up
            for number in range(pairs):
                first = await turn(is_on=number % 2 == 1)
                second = await turn(is_on=number % 2 == 0)
                found.append((second, first) if number % 2 else (first, second))
        finally:
            admin.alter_configs(ALL_BROKERS, {"recorder.id": None, "recorder.enable": None})
            for transport in opened:
                transport.close()
    if totals.failure:
        raise click.ClickException(totals.failure)
    return found


@click.command()
@click.option("--bootstrap-server", required=True, help="HOST:PORT of the leader of the topic's partition 0.")
@click.option("--topic", default="bench", show_default=True, help="An existing topic.")
@click.option("--connections", default=20, show_default=True)
@click.option("--record-bytes", default=100, show_default=True)
@click.option("--pairs", default=20, show_default=True, help="Pairs of turns, one off and one on.")
@click.option("--seconds", default=1.5, show_default=True, help="Length of a turn.")
@click.option("--pid", type=IntRange(), required=True, help="The broker's process.")
def main(
    bootstrap_server: str, topic: str, connections: int, record_bytes: int, pairs: int, seconds: float, pid: int
) -> None:
    """Produce as fast as the broker answers, and compare CPU time and rate with the recorder on and off."""
    found = uvloop.run(run(bootstrap_server, topic, connections, record_bytes, pairs, seconds, pid))
    for name, turns in (("off", [off for off, _ in found]), ("on", [on for _, on in found])):
        cpu, rate = statistics.median(turn.cpu_s for turn in turns), statistics.median(turn.rate for turn in turns)
        click.echo(f"{name:<3}  {cpu * 1e6:.1f} us CPU per request, {rate:,.0f} requests/s")
    for name, ratios in (
        ("CPU per request", sorted(on.cpu_s / off.cpu_s for off, on in found)),
        ("rate", sorted(on.rate / off.rate for off, on in found)),
    ):
        quarter = len(ratios) // 4
        click.echo(
            f"{name}, on/off: median {statistics.median(ratios):.3f}, "
            f"half of the pairs from {ratios[quarter]:.3f} to {ratios[-quarter - 1]:.3f}"
        )


if __name__ == "__main__":
    main()
