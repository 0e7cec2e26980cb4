"""Clients that ask for much and read nothing, against a running broker (NET-2).

Before, 7 KB of pipelined fetches had 64 answers made at once: memory grew by gigabytes, others waited for longer than they live.
"""

from __future__ import annotations

import os
import socket
import struct
import time

import pytest
from confluent_kafka.admin import NewTopic

from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch
from tests.conftest import ClusterFactory
from tests.hostile.beside import BrokerMemory, canary_beside
from tests.support.invariants import eventually, wait_known_everywhere
from tests.support.thorough import thorough
from tests.support.topics import create_topics, fetch_body, produce_batch
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
BATCHES = 40
ATTACKERS = 60
PIPELINED = 64
BUDGET = 64 * MIB
ALLOWED_MIB = 2 * 64 + 150
"""Twice the budget, one batch of each attacker, and what the allocator keeps."""
WORST_S = 2.0


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    running = new_module_cluster(brokers=1, overrides={"queued.max.response.bytes": str(BUDGET)})
    create_topics(running.bootstrap_servers, NewTopic("large", 1, 1))
    wait_known_everywhere(running, "large", 1)
    batch = build_batch([(None, os.urandom(900_000), (), 1000)])
    with Wire(running.port(1)) as wire:
        assert [produce_batch(wire, "large", batch).error_code for _ in range(BATCHES)] == [0] * BATCHES
    return running


def fetch(*, max_wait_ms: int, min_bytes: int) -> bytes:
    body = fetch_body("large", max_wait_ms=max_wait_ms, min_bytes=min_bytes, bytes_max=2**31 - 1)
    payload = messages.encode_request(ApiKey.FETCH, 11, 1, "silent", body)
    return struct.pack(">i", len(payload)) + payload


@pytest.mark.parametrize(("max_wait_ms", "min_bytes"), [(0, 1), thorough(300, 2**31 - 1)], ids=["at-once", "parked"])
def test_answers_that_nobody_reads(cluster: LocalCluster, max_wait_ms: int, min_bytes: int) -> None:
    """Memory stays within twice `queued.max.response.bytes`; a canary goes on; who reads nothing is disconnected."""
    memory = BrokerMemory(cluster)
    before = memory.now()
    request = fetch(max_wait_ms=max_wait_ms, min_bytes=min_bytes)
    attackers: list[socket.socket] = []
    with canary_beside(cluster, WORST_S):
        try:
            for _ in range(ATTACKERS):
                attacker = socket.socket()
                attacker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                attacker.connect(("127.0.0.1", cluster.port(1)))
                attacker.sendall(request * PIPELINED)
                attackers.append(attacker)
            time.sleep(2)
            with Wire(cluster.port(1)) as reader:
                reader.send_raw(fetch(max_wait_ms=0, min_bytes=1))
                assert len(reader.receive_frame()) > 900_000
        finally:
            for attacker in attackers:
                attacker.close()
    memory.close()
    assert memory.peak - before < ALLOWED_MIB
    eventually(lambda: memory.now() - before < ALLOWED_MIB, "memory comes back")
