"""Every client of the matrix writes and reads at the same time, for as long as asked (NET-1, NET-2).

    python -m tests.clients.pipelines --minutes 60 --directory DIR

Each round of a client: its reader starts at the end of its topic, its producer sends small records as fast as the library does, and an
independent client sends records of all sizes to the same partition. The reader must get each of them once, at consecutive offsets, and the
records of each writer in the order in which they were sent. At the end no socket of a broker is in CLOSE-WAIT.

`tests.support.deep_pipelines` does what no library does: two dozen requests of all kinds in flight.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import click

from tests.clients.cell import Cell, closing
from tests.clients.clients import CLIENTS, Client
from tests.clients.conftest import OVERRIDES, SIDE_BY_SIDE
from tests.clients.peers import Outgoing
from tests.clients.program import Line
from tests.conftest import CALM, running_clusters
from tests.support.deep_pipelines import RETENTION, left_behind
from tests.support.invariants import eventually
from tests.support.topics import new_topic
from tools.cluster.local_cluster import LocalCluster

FEATURE = "pipelines"
SMALL_COUNT, SMALL_SIZES = 300, (1, 30, 300)
"""The values are an argument of the client's program, which may have 128 KiB."""
LARGE_COUNT, LARGE_SIZES = 40, (10, 3_000, 60_000, 600_000)


class Pipelines:
    """The rounds of one client, one after the other. Raises AssertionError."""

    def __init__(self, client: Client, cluster: LocalCluster, directory: Path, seed: int) -> None:
        self.client, self._cluster, self._directory = client, cluster, directory
        self._random = Random(f"{seed}-{client.name}")
        self._topic = new_topic(cluster.bootstrap_servers, 1, 3, min_insync_replicas="2", **RETENTION)
        self._end = 0
        self._rounds = 0

    def play_round(self) -> None:
        self._rounds += 1
        small = self._values("small", SMALL_COUNT, SMALL_SIZES)
        large = self._values("large", LARGE_COUNT, LARGE_SIZES)
        count = len(small) + len(large)
        with closing(Cell(FEATURE, self.client, self._cluster, self._directory)) as cell:
            reader = cell.start_reader(self._topic, {"offset": self._end}, count)
            reader.wait_for_count("ready", 1)
            producer = cell.start_producer(self._topic, small, idempotent="idempotent" not in self.client.lacks)
            cell.peer.write(self._cluster.bootstrap_servers, self._topic, [Outgoing(value) for value in large])
            acknowledged = [line["acked"] for line in producer.result() if "acked" in line]
            assert sorted(acknowledged) == sorted(small), f"{self.client.name}: not everything was acknowledged once"
            self._check([line for line in reader.result() if "value" in line], small, large)
        self._end += count

    def _values(self, word: str, count: int, sizes: tuple[int, ...]) -> list[str]:
        return [f"{word} {self._rounds}.{number} " + self._random.choice(sizes) * "x" for number in range(count)]

    def _check(self, read: list[Line], small: list[str], large: list[str]) -> None:
        name = f"{self.client.name}, round {self._rounds}"
        offsets = [line["offset"] for line in read]
        assert offsets == list(range(self._end, self._end + len(small) + len(large))), f"{name}: offsets {offsets}"
        for values in (small, large):
            wanted = set(values)
            got = [line["value"] for line in read if line["value"] in wanted]
            assert got == values, f"{name}: not in order, or not once: {[value[:20] for value in got]}"


def run(cluster: LocalCluster, directory: Path, seed: int, seconds: float) -> Counter[str]:
    """Client -> its rounds. SIDE_BY_SIDE clients at a time, in turns."""
    waiting = [Pipelines(c, cluster, directory, seed) for c in CLIENTS if c.why_not() is None]
    rounds: Counter[str] = Counter()
    lock = threading.Lock()
    ends_at = time.monotonic() + seconds

    failed = threading.Event()

    def play() -> None:
        while time.monotonic() < ends_at and not failed.is_set():
            with lock:
                pipelines = waiting.pop(0)
            try:
                pipelines.play_round()
            except BaseException:
                failed.set()
                raise
            with lock:
                waiting.append(pipelines)
                rounds[pipelines.client.name] += 1

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for done in [pool.submit(play) for _ in range(SIDE_BY_SIDE)]:
            done.result()
    for broker in cluster.broker_ids:
        eventually(lambda b=broker: left_behind(cluster.port(b)) == 0, f"broker {broker} leaves no connection behind")
    return rounds


@click.command()
@click.option("--minutes", default=60.0, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option(
    "--directory", type=click.Path(path_type=Path), help="Where the cluster runs.  [default: a temporary one]"
)
def main(minutes: float, seed: int, directory: Path | None) -> None:
    """Run every client's producer and reader against three brokers, and check each record."""
    for client in CLIENTS:
        reason = client.why_not()
        if reason is not None:
            click.echo(f"NOT TESTED: {client.name}: {reason}")
    with tempfile.TemporaryDirectory() as temporary:
        place = directory or Path(temporary)
        (logs := place / "programs").mkdir(parents=True, exist_ok=True)
        with running_clusters(place) as start:
            rounds = run(start(brokers=3, overrides=OVERRIDES | CALM), logs, seed, minutes * 60)
    click.echo(f"passed: rounds of each client: {', '.join(f'{name} {n}' for name, n in rounds.most_common())}")


if __name__ == "__main__":
    main()
