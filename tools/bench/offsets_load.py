"""`python -m tools.bench.offsets_load`: a coordinator is killed, and another broker loads a million committed offsets.

There are two brokers; all groups are in one partition of `__consumer_offsets`. Each group's offsets are committed in one request.
Then the coordinator is killed, and the other broker is asked for the last group's offset until it returns the offset. Meanwhile it
gets a heartbeat every 20 ms; a heartbeat's latency counts from the time at which it was due. Goals: the offset after 10 s, and a
p99 of 50 ms for heartbeats.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import uvloop
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from tools.bench.produce_load import cpu_seconds
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ownership import own_servers

TOPIC = "flights"
CLIENT_ID = "bench"
CONNECTIONS = 8
PROBE_INTERVAL_S = 0.02
ASK_INTERVAL_S = 0.01
QUIET_S = 3.0
ANSWER_TIMEOUT_S = 120.0
VERSIONS = {ApiKey.FIND_COORDINATOR: 3, ApiKey.OFFSET_COMMIT: 7, ApiKey.OFFSET_FETCH: 7, ApiKey.HEARTBEAT: 3}
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "2",
    "min.insync.replicas": "1",
}


class Connection:
    """Sends one request at a time to one broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, cluster: LocalCluster, broker: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", cluster.port(broker)))

    async def call(self, api_key: ApiKey, body: Mapping[str, Any]) -> Any:
        """The answer as kio's entity."""
        payload = messages.encode_request(api_key, VERSIONS[api_key], 7, CLIENT_ID, body)
        self._writer.write(struct.pack(">i", len(payload)) + payload)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return messages.decode_response(api_key, VERSIONS[api_key], await self._reader.readexactly(size))[1]

    def close(self) -> None:
        self._writer.close()


def group_name(number: int) -> str:
    return f"consumers-of-flights-{number:05}"


async def find_coordinator(cluster: LocalCluster) -> int:
    """Waits until the groups have a coordinator. Raises ClickException."""
    connection = await Connection.to(cluster, cluster.broker_ids[0])
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while time.monotonic() < deadline:
        answer = await connection.call(ApiKey.FIND_COORDINATOR, {"key": group_name(0), "key_type": 0})
        if answer.error_code == ErrorCode.NONE:
            connection.close()
            return int(answer.node_id)
        await asyncio.sleep(0.1)
    raise click.ClickException("no coordinator was found")


async def commit_all(cluster: LocalCluster, broker: int, groups: int, partitions: int) -> None:
    """Group n commits offset n of every partition."""
    numbers = iter(range(groups))

    async def commit_some() -> None:
        connection = await Connection.to(cluster, broker)
        for number in numbers:
            offsets = [
                {
                    "partition_index": partition,
                    "committed_offset": number,
                    "committed_leader_epoch": 0,
                    "committed_metadata": "",
                }
                for partition in range(partitions)
            ]
            body = {
                "group_id": group_name(number),
                "generation_id_or_member_epoch": -1,
                "generation_id": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": [{"name": TOPIC, "partitions": offsets}],
            }
            await commit(connection, body)
        connection.close()

    await asyncio.gather(*(commit_some() for _ in range(CONNECTIONS)))


async def commit(connection: Connection, body: Mapping[str, Any]) -> None:
    while True:
        answer = await connection.call(ApiKey.OFFSET_COMMIT, body)
        errors = {int(p.error_code) for topic in answer.topics for p in topic.partitions}
        if errors == {ErrorCode.NONE}:
            return
        if not errors <= {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT}:
            raise click.ClickException(f"a commit was answered with {sorted(ErrorCode(e).name for e in errors)}")
        await asyncio.sleep(ASK_INTERVAL_S)


async def ask_until_loaded(cluster: LocalCluster, broker: int, group: int) -> dict[str, float]:
    """Error -> seconds from the call to the last answer with that error; NONE means that the offsets are loaded."""
    connection = await Connection.to(cluster, broker)
    body = {
        "group_id": group_name(group),
        "topics": [{"name": TOPIC, "partition_indexes": [0]}],
        "require_stable": True,
    }
    began = time.perf_counter()
    last: dict[str, float] = {}
    while time.perf_counter() - began < ANSWER_TIMEOUT_S:
        answer = await connection.call(ApiKey.OFFSET_FETCH, body)
        error = ErrorCode(int(answer.error_code))
        last[error.name] = time.perf_counter() - began
        if error is ErrorCode.NONE:
            found = answer.topics[0].partitions[0].committed_offset
            if found != group:
                raise click.ClickException(f"found offset {found}, but {group} was committed")
            connection.close()
            return last
        await asyncio.sleep(ASK_INTERVAL_S)
    raise click.ClickException(f"not loaded after {ANSWER_TIMEOUT_S:.0f} s; the answers were {last}")


async def probe(connection: Connection, delays_ms: list[float]) -> None:
    """Sends heartbeats until cancelled; measures each answer, also an error, from the time at which its request was due."""
    due = time.perf_counter()
    body = {"group_id": group_name(0), "generation_id": 1, "member_id": "nobody", "group_instance_id": None}
    while True:
        await connection.call(ApiKey.HEARTBEAT, body)
        now = time.perf_counter()
        delays_ms.append((now - due) * 1000)
        due += PROBE_INTERVAL_S
        await asyncio.sleep(max(0.0, due - now))


def waited_seconds(pid: int | None) -> float:
    """How long a process's first thread was ready to run but had no processor, because of other work on the machine."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def summary(delays_ms: list[float]) -> str:
    times = sorted(delays_ms)
    p50, p99 = (times[min(len(times) - 1, int(len(times) * share))] for share in (0.5, 0.99))
    worst_s = delays_ms.index(times[-1]) * PROBE_INTERVAL_S
    return f"{len(times)} requests, p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {times[-1]:.1f} ms (after {worst_s:.1f} s)"


async def run(cluster: LocalCluster, groups: int, partitions: int) -> None:
    coordinator = await find_coordinator(cluster)
    (other,) = (broker for broker in cluster.broker_ids if broker != coordinator)
    began = time.perf_counter()
    await commit_all(cluster, coordinator, groups, partitions)
    elapsed = time.perf_counter() - began
    click.echo(f"{groups * partitions:,} offsets of {groups:,} groups committed in {elapsed:.1f} s")
    quiet_ms: list[float] = []
    loading_ms: list[float] = []
    await ask_until_loaded(cluster, coordinator, groups - 1)
    connection = await Connection.to(cluster, other)
    quiet = asyncio.create_task(probe(connection, quiet_ms))
    await asyncio.sleep(QUIET_S)
    quiet.cancel()
    await asyncio.gather(quiet, return_exceptions=True)
    connection.close()
    probing = asyncio.create_task(probe(await Connection.to(cluster, other), loading_ms))
    cpu_before, waited_before = cpu_seconds(cluster.pid(other)), waited_seconds(cluster.pid(other))
    cluster.kill(coordinator)
    last = await ask_until_loaded(cluster, other, groups - 1)
    cpu = cpu_seconds(cluster.pid(other)) - cpu_before
    waited = waited_seconds(cluster.pid(other)) - waited_before
    probing.cancel()
    without = last.get(ErrorCode.NOT_COORDINATOR.name, 0.0)
    click.echo(
        f"after the coordinator's kill: {last['NONE']:.2f} s until its offsets are served again, {without:.2f} s of"
    )
    click.echo(f"them before the other broker leads, {last['NONE'] - without:.2f} s for loading")
    click.echo(f"the other broker used {cpu:.2f} s of CPU, and waited {waited:.2f} s for a processor")
    click.echo(f"heartbeats before:    {summary(quiet_ms)}")
    click.echo(f"heartbeats meanwhile: {summary(loading_ms)}")


@click.command()
@click.option("--offsets", default=1_000_000, show_default=True)
@click.option("--partitions", default=100, show_default=True, help="Partitions that each group commits.")
def main(offsets: int, partitions: int) -> None:
    """Measure how long the offsets take to load, and how late other requests are answered meanwhile."""
    with tempfile.TemporaryDirectory(prefix="ottla-offsets-") as directory:
        own_servers()
        cluster = LocalCluster(Path(directory) / "cluster")
        try:
            cluster.create(brokers=2, overrides=SETTINGS)
            cluster.start()
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
            admin.create_topics([NewTopic(TOPIC, partitions, 2)])[TOPIC].result(60)
            uvloop.run(run(cluster, offsets // partitions, partitions))
        finally:
            cluster.destroy()


if __name__ == "__main__":
    main()
