"""`python -m tools.bench.group_load`: many groups of many members on one broker, all of which send heartbeats.

Each member has its own connection and sends JoinGroup (twice: the first answer gives its id), SyncGroup, then Heartbeat as
often as a Java consumer does. The goal: none of 10,000 members in 1,000 groups loses its session. Every heartbeat is answered
without an error, and every group ends stable in its first generation. The broker's CPU time is read from /proc.
"""

from __future__ import annotations

import asyncio
import resource
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import uvloop

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from tools.bench.produce_load import cpu_seconds
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ownership import own_servers

JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LIST_VERSION = 9, 5, 4, 4
CLIENT_ID = "bench"
GROUPS_AT_ONCE = 100
REBALANCE_MS = 120_000
RETRY_S = 0.2
TICK_S = 0.01
ERROR_AT = 4 + 1 + 4
"""Position of the error in a Heartbeat answer: after correlation id, tags and throttle time."""
PROTOCOL_TYPE, PROTOCOL_NAME = "consumer", "range"
SUBSCRIPTION = struct.pack(">hih4si", 0, 1, 4, b"read", -1)
RETRIABLE = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)


@dataclass
class Totals:
    """The results of all members. `latencies_ms` and `errors` are those of heartbeats."""

    latencies_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    skipped: int = 0
    """Heartbeats that were not sent, because the previous one was not answered yet or the connection was lost."""


class Member(asyncio.Protocol):
    """One connection with one request at a time."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._beat = b""
        self._beat_sent_at: float | None = None
        self.member_id = ""
        self.generation = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._totals.errors["connection lost"] += self._beat_sent_at is not None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("closed by the broker"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + size:
                return
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            if self._answer is not None:
                answer, self._answer = self._answer, None
                answer.set_result(frame)
            elif self._beat_sent_at is not None:
                self._totals.latencies_ms.append((time.perf_counter() - self._beat_sent_at) * 1000)
                self._beat_sent_at = None
                (error,) = struct.unpack_from(">h", frame, ERROR_AT)
                if error:
                    self._totals.errors[ErrorCode(error).name] += 1

    async def call(self, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """Returns the answer as kio's entity. Raises ConnectionError."""
        if self._transport is None:
            raise ConnectionError("closed by the broker")
        self._answer = waiting = asyncio.get_running_loop().create_future()
        self._transport.write(_framed(messages.encode_request(api_key, version, 1, CLIENT_ID, body)))
        return messages.decode_response(api_key, version, await waiting)[1]

    def prepare_heartbeats(self, group: str) -> None:
        body = {
            "group_id": group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
        }
        self._beat = _framed(messages.encode_request(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, 1, CLIENT_ID, body))

    def heartbeat(self) -> None:
        if self._transport is None or self._beat_sent_at is not None:
            self._totals.skipped += 1
            return
        self._totals.sent += 1
        self._beat_sent_at = time.perf_counter()
        self._transport.write(self._beat)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _framed(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


async def join(member: Member, group: str, session_ms: int) -> Any:
    """Repeats JoinGroup until the member is in a generation; returns the answer."""
    while True:
        body = {
            "group_id": group,
            "session_timeout": session_ms,
            "rebalance_timeout": REBALANCE_MS,
            "member_id": member.member_id,
            "group_instance_id": None,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": PROTOCOL_NAME, "metadata": SUBSCRIPTION}],
            "reason": None,
        }
        answer = await member.call(ApiKey.JOIN_GROUP, JOIN_VERSION, body)
        error = ErrorCode(int(answer.error_code))
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            member.member_id = answer.member_id
        elif error in RETRIABLE:
            await asyncio.sleep(RETRY_S)
        elif error is ErrorCode.NONE:
            member.member_id, member.generation = answer.member_id, answer.generation_id
            return answer
        else:
            raise click.ClickException(f"{group}: JoinGroup was answered {error.name}")


async def sync(member: Member, group: str, assignments: Mapping[str, bytes]) -> ErrorCode:
    body = {
        "group_id": group,
        "generation_id": member.generation,
        "member_id": member.member_id,
        "group_instance_id": None,
        "protocol_type": PROTOCOL_TYPE,
        "protocol_name": PROTOCOL_NAME,
        "assignments": [{"member_id": name, "assignment": data} for name, data in assignments.items()],
    }
    answer = await member.call(ApiKey.SYNC_GROUP, SYNC_VERSION, body)
    return ErrorCode(int(answer.error_code))


async def start_group(members: list[Member], group: str, session_ms: int) -> None:
    """Brings all members into one generation with assignments. Repeats the joins while a late member starts another generation."""
    while True:
        joined = await asyncio.gather(*(join(member, group, session_ms) for member in members))
        assignments = {member.member_id: b"something to read" for member in members}
        errors = await asyncio.gather(
            *(
                sync(member, group, assignments if answer.leader == member.member_id else {})
                for member, answer in zip(members, joined, strict=True)
            )
        )
        if set(errors) == {ErrorCode.NONE} and len({member.generation for member in members}) == 1:
            break
    for member in members:
        member.prepare_heartbeats(group)


async def beat_for(members: list[Member], seconds: float, interval_s: float) -> None:
    """Sends a heartbeat per member and interval, spread evenly."""
    began = time.perf_counter()
    sent = 0
    while (elapsed := time.perf_counter() - began) < seconds:
        due = int(elapsed / interval_s * len(members))
        for number in range(sent, due):
            members[number % len(members)].heartbeat()
        sent = due
        await asyncio.sleep(TICK_S)


async def connect(host: str, port: int, totals: Totals) -> Member:
    _, member = await asyncio.get_running_loop().create_connection(lambda: Member(totals), host, port)
    return member


async def create_offsets_topic(host: str, port: int) -> None:
    """Sends FindCoordinator, which creates `__consumer_offsets`, until the answer names a coordinator."""
    member = await connect(host, port, Totals())
    while True:
        answer = await member.call(ApiKey.FIND_COORDINATOR, 3, {"key": "any", "key_type": 0})
        if not answer.error_code:
            break
        await asyncio.sleep(RETRY_S)
    member.close()


@dataclass(frozen=True)
class Load:
    groups: int
    members: int
    seconds: float
    session_ms: int
    heartbeat_ms: int


async def run(host: str, port: int, pid: int, load: Load) -> None:
    """Prints the results. Raises ClickException if a heartbeat failed or a group is not stable at the end."""
    await create_offsets_topic(host, port)
    totals = Totals()
    began, cpu = time.perf_counter(), cpu_seconds(pid)
    at_once = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def one(number: int) -> list[Member]:
        async with at_once:
            members = [await connect(host, port, totals) for _ in range(load.members)]
            await start_group(members, f"bench-{number:05d}", load.session_ms)
            return members

    # The first groups must send heartbeats while the last ones join.
    ready: list[Member] = []
    joining = [asyncio.create_task(one(number)) for number in range(load.groups)]
    for task in joining:
        task.add_done_callback(lambda done: ready.extend(done.result()) if not done.exception() else None)
    while not all(task.done() for task in joining):
        await beat_for(list(ready), load.heartbeat_ms / 1000, load.heartbeat_ms / 1000)
    await asyncio.gather(*joining)
    count = load.groups * load.members
    seconds = time.perf_counter() - began
    click.echo(f"{count} members of {load.groups} groups have joined in {seconds:.1f} s", nl=False)
    click.echo(f", broker {cpu_seconds(pid) - cpu:.1f} s of CPU")

    totals.latencies_ms.clear()
    totals.sent = 0
    began, cpu = time.perf_counter(), cpu_seconds(pid)
    await beat_for(ready, load.seconds, load.heartbeat_ms / 1000)
    elapsed, used = time.perf_counter() - began, cpu_seconds(pid) - cpu
    await asyncio.sleep(1)
    latencies = sorted(totals.latencies_ms)
    p50, p99, worst = (latencies[int(share * (len(latencies) - 1))] for share in (0.5, 0.99, 1.0))
    click.echo(f"{totals.sent / elapsed:.0f} heartbeats/s for {elapsed:.0f} s: ", nl=False)
    click.echo(f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {worst:.1f} ms; broker {used / elapsed:.1%} of a core")
    stable = await ready[0].call(ApiKey.LIST_GROUPS, LIST_VERSION, {"states_filter": ["Stable"]})
    click.echo(f"{len(stable.groups)} of {load.groups} groups are stable; ", nl=False)
    click.echo(f"errors: {dict(totals.errors) or 'none'}; heartbeats skipped: {totals.skipped}")
    for member in ready:
        member.close()
    if totals.errors or len(stable.groups) < load.groups:
        raise click.ClickException("sessions were lost")


def allow_connections(count: int) -> None:
    """Raises the limit of open files for this process and the broker that it starts. Raises ClickException."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise click.ClickException(f"{count} connections need ulimit -n {wanted}, but the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@click.command()
@click.option("--groups", default=1000, show_default=True)
@click.option("--members", default=10, show_default=True, help="Members of each group.")
@click.option("--seconds", default=60.0, show_default=True, help="Duration of the heartbeats, after all have joined.")
@click.option("--session-ms", default=45_000, show_default=True)
@click.option("--heartbeat-ms", default=3_000, show_default=True)
def main(groups: int, members: int, seconds: float, session_ms: int, heartbeat_ms: int) -> None:
    """Measure a broker whose groups send heartbeats: its CPU time, and whether a session is lost."""
    allow_connections(groups * members)
    overrides = {"offsets.topic.replication.factor": "1"}
    with tempfile.TemporaryDirectory(prefix="ottla-groups-") as directory:
        own_servers()
        cluster = LocalCluster(Path(directory) / "cluster")
        try:
            # All members of a group join within the delay, so its first generation contains all of them.
            overrides = {**overrides, "group.initial.rebalance.delay.ms": "3000"}
            cluster.create(brokers=1, overrides=overrides)
            cluster.start()
            host, _, port = cluster.bootstrap_servers.rpartition(":")
            load = Load(groups, members, seconds, session_ms, heartbeat_ms)
            pid = cluster.pid(cluster.broker_ids[0])
            assert pid is not None
            uvloop.run(run(host, int(port), pid, load))
        finally:
            cluster.destroy()


if __name__ == "__main__":
    main()
