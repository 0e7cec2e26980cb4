"""Every API with every array of its request filled: the work grows with the elements, in steps, and the answer with the request.

Finds scans for each element, answers that repeat what is large, and APIs that serve a request in one turn of the loop (NET-4).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.groups.group.messages import Protocol
from broker.network.request_channel import Request
from broker.request_handler import RequestHandler
from broker.settings.config import BrokerConfig
from protocol.kafka.api_keys import SUPPORTED, ApiKey, ApiLevel
from protocol.kafka.framing import parse_request_header
from tests.support.api_world import FakeConnection, level_of
from tests.support.every_api import context_of
from tests.support.filled_requests import Filled, Kind, all_filled
from tests.support.group_cluster import GroupCluster
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper

FEW, MANY = 100, 800
GROWTH_MAX = 12
"""How much the processor time may grow from FEW to MANY, which are eight times as many. Quadratic work grows by 64."""
NOISE_S = 0.002
ATTEMPTS = 4
ELEMENTS_IN_A_STEP_MAX = 600
ANSWER_BYTES_PER_ELEMENT = 1_500
"""The longest are topics that can be made, with all their settings, and refusals that name all settings there are."""
ANSWER_BYTES = 20_000
"""For the topics, groups and settings that exist."""
AT_ONCE = (ApiKey.PRODUCE, ApiKey.FETCH)
"""Produce has limits of its own, and a Fetch of less than 8 KB is served at once."""
REPEATED = 100_000
METADATA_SIZE = 5_000
"""Bytes of what the member of the group `g` brings, and DescribeGroups tells."""
TURNS_MAX = 20_000
NEWEST = [(key, SUPPORTED[key].max) for key in SUPPORTED]
OLDER = [(key, version) for key, served in SUPPORTED.items() for version in range(served.min, served.max)]


class Steps:
    """A clock for long answers: each look at it is a step, and nothing takes long."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> float:
        self.count += 1
        return 0.0


class EveryApi:
    """One broker with a real coordinator and replica manager, without sockets; ZooKeeper is in memory, the controller a fake."""

    def __init__(self, directory: Path) -> None:
        self.cluster = GroupCluster(directory, {})
        self.steps = Steps()

    async def start(self) -> None:
        cluster = self.cluster
        await cluster.start(1)
        await cluster.serve(1, 0, (1,))
        cluster.join(1, protocols=(Protocol("range", bytes(METADATA_SIZE)),))
        cluster.pass_time(3.1)
        cluster.sync(1, "m", 1, {"m": b"mine"})
        await cluster.settle()
        zk = MemoryZooKeeper()
        for path in ("/brokers/topics/t", "/admin/delete_topics", "/config/topics", "/config/changes"):
            zk.ensure(path)
        config = BrokerConfig(broker_id=1, broker_api_level=ApiLevel.KAFKA_4.value)
        self.handler = RequestHandler(context_of(cluster, MemorySession(zk), config, self.steps))

    async def ask(self, filled: Filled, count: int) -> tuple[float, int, int]:
        """(seconds of the processor, steps, bytes of the answer)"""
        frame = memoryview(filled.frame(count))
        connection: Any = FakeConnection()
        self.steps.count = 0
        self.handler.serve(level_of(filled.api_key, filled.version))
        began = time.thread_time()
        self.handler.handle(Request(connection, 0, parse_request_header(frame), frame, 0.0))
        for _ in range(TURNS_MAX):
            if connection.sent or connection.reasons:
                break
            self.cluster.time.turn()
            await asyncio.sleep(0)
        taken = time.thread_time() - began
        assert connection.sent or connection.reasons[0].startswith("malformed"), (str(filled), connection.reasons)
        return taken, self.steps.count, len(connection.sent)


@pytest.fixture(scope="module")
def every_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EveryApi, asyncio.Runner]]:
    with asyncio.Runner() as runner:
        world = EveryApi(tmp_path_factory.mktemp("every-api"))
        runner.run(world.start())
        yield world, runner
        world.cluster.close()


def check(world: EveryApi, runner: asyncio.Runner, filled: Filled) -> None:
    few_s = few_bytes = 0.0
    for _ in range(ATTEMPTS):  # the machine may do something else
        few_s, _, few_bytes = runner.run(world.ask(filled, FEW))
        many_s, steps, many_bytes = runner.run(world.ask(filled, MANY))
        if many_s <= few_s * GROWTH_MAX + NOISE_S:
            break
    else:
        pytest.fail(f"{filled}: {few_s * 1000:.1f} ms for {FEW}, {many_s * 1000:.1f} ms for {MANY}")
    check_answer(filled, MANY, steps, many_bytes)
    if filled.kind is not Kind.DIFFERENT:
        assert many_bytes <= few_bytes + (MANY - FEW) * 100 + REPEATED, f"{filled}: {few_bytes}, {many_bytes} bytes"


def check_answer(filled: Filled, count: int, steps: int, size: int) -> None:
    assert size <= count * ANSWER_BYTES_PER_ELEMENT + ANSWER_BYTES, filled
    if not filled.is_read_at_once and filled.api_key not in AT_ONCE:
        assert steps >= count / ELEMENTS_IN_A_STEP_MAX, f"{filled}: {steps} steps"


@pytest.mark.parametrize(("api_key", "version"), NEWEST)
def test_the_work_grows_with_the_request(
    every_api: tuple[EveryApi, asyncio.Runner], api_key: ApiKey, version: int
) -> None:
    for filled in all_filled(api_key, version):
        check(*every_api, filled)


@pytest.mark.parametrize(("api_key", "version"), OLDER)
def test_older_versions_are_served_alike(
    every_api: tuple[EveryApi, asyncio.Runner], api_key: ApiKey, version: int
) -> None:
    world, runner = every_api
    for filled in all_filled(api_key, version):
        if filled.kind is Kind.SAME:
            _, steps, size = runner.run(world.ask(filled, FEW))
            check_answer(filled, FEW, steps, size)
