"""Attacks on the control listeners of a running cluster: nobody is deposed, clients notice nothing (BAD-4, BAD-28, INV-8)."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from urllib.parse import urlsplit

import msgpack
import pytest

from protocol.errors import ErrorCode
from protocol.kafka import fetch_codec
from protocol.kafka.fetch_codec import FetchRequest, FetchRequestPartition
from protocol.rpc import framing
from protocol.rpc.messages import (
    ControlRequest,
    LeaderAndIsrRequest,
    PartitionState,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.topic_ids import new_topic_id, topic_id_uuid
from protocol.zk.znodes import TopicZNode
from tests.conftest import ClusterFactory
from tests.hostile.beside import canary_beside
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.topics import new_topic
from tests.support.wire import Wire
from tools.admin.bootstrap import parse_properties
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

LONGEST_WAIT_S = 1.0
"""Of a client, while the attacks go on; 0.5 s and the noise of a machine that runs other tests."""
TOPIC_ID = new_topic_id(bytes(16))


@pytest.fixture
def cluster(new_cluster: ClusterFactory) -> LocalCluster:
    return new_cluster(brokers=3)


def control_port(zk: ZooKeeperView, broker: int) -> tuple[int, int]:
    """Where it listens, and its broker epoch: all that an attacker could know."""
    data, stat = zk.client.get(f"/brokers/ids/{broker}")
    texts = json.loads(data)["endpoints"]
    return urlsplit(next(text for text in texts if text.startswith("CONTROLLER"))).port or 0, stat.czxid


def forged(broker_epoch: int, controller_epoch: int, controller: int, topic: str) -> list[ControlRequest]:
    head = (controller, controller_epoch, broker_epoch)
    state = PartitionState(topic, 0, controller_epoch, 2, 2**31 - 1, (2,), 0, (1, 2, 3), is_new=True)
    stop = StopReplicaPartition(topic, 0, -2, True)
    return [
        LeaderAndIsrRequest(*head, (state,), {topic: TOPIC_ID}),
        UpdateMetadataRequest(*head, (state,), {topic: TOPIC_ID}, (), True),
        StopReplicaRequest(*head, (stop,), {}),
    ]


def is_closed_upon(port: int, data: bytes) -> bool:
    with Wire(port) as wire:
        wire.send_raw(data)
        return wire.is_closed_by_peer()


def test_the_cluster_stands_them(cluster: LocalCluster, zk: ZooKeeperView) -> None:
    topic = new_topic(cluster.bootstrap_servers, 4, 3)
    assert_healed(cluster, zk, topic)
    controller, epoch = cluster.controller_id(), zk.controller_epoch()
    before = zk.states(topic)
    with canary_beside(cluster, LONGEST_WAIT_S), contextlib.ExitStack() as stack:
        for broker in cluster.broker_ids:
            port, broker_epoch = control_port(zk, broker)
            for claimed, sender in ((epoch + 1, controller), (2**31 - 1, 3), (epoch, controller % 3 + 1)):
                for request in forged(broker_epoch, claimed, sender, topic):
                    assert is_closed_upon(port, framing.request_frame(1, request)), (claimed, sender)
            for request in forged(2**63 - 1, epoch, controller, topic):
                assert is_closed_upon(port, framing.request_frame(1, request)), "a life to come"
            for request in forged(broker_epoch, epoch, controller, "../../outside"):
                assert is_closed_upon(port, framing.request_frame(1, request)), "a path"
            for field in (float("nan"), True, 2.0**31):
                body = [3, controller, field, broker_epoch, [], {}, 0]
                payload = struct.pack(">i", 1) + msgpack.packb(body)
                assert is_closed_upon(port, struct.pack(">i", len(payload)) + payload)
            head = b"".join(map(msgpack.packb, (1, controller, epoch, broker_epoch)))
            bomb = struct.pack(">i", 1) + b"\x9a" + head + b"\xdd\x00\x00\xf0\x00" * 12_000
            assert is_closed_upon(port, struct.pack(">i", len(bomb)) + bomb)
            halves = [stack.enter_context(contextlib.closing(Wire(port).socket)) for _ in range(400)]
            for half in halves[-6:]:
                half.sendall(struct.pack(">i", 32 * 2**20) + bytes(4_000_000))
    assert zk.states(topic) == before, "nobody was deposed, nothing was stopped"
    assert not list(cluster.directory.rglob("outside*"))
    # The true controller is obeyed, and so is the next one.
    cluster.kill(controller)
    eventually(lambda: zk.controller() not in (None, controller), "another controller")
    cluster.start_broker(controller)
    assert_healed(cluster, zk, topic)


def own_listener(broker: int, home: Path) -> dict[str, str]:
    """For brokers that copy from each other over a listener of their own."""
    given = parse_properties((home / "server.properties").read_text())
    return {
        "listeners": f"INTERNAL://127.0.0.1:0,{given['listeners']}",
        "listener.security.protocol.map": f"INTERNAL:PLAINTEXT,{given['listener.security.protocol.map']}",
        "inter.broker.listener.name": "INTERNAL",
    }


def test_a_client_is_no_follower_on_its_own_listener(new_cluster: ClusterFactory) -> None:
    """BAD-28: with the right epochs, which nobody outside can know."""
    cluster = new_cluster(brokers=2, own_properties=own_listener)
    zk = ZooKeeperView(cluster.zookeeper_connect)
    topic = new_topic(cluster.bootstrap_servers, 1, 2)
    assert_healed(cluster, zk, topic)
    state, topic_id = zk.state(topic, 0), TopicZNode.decode(zk.client.get(TopicZNode.path(topic))[0])[0]
    leader, follower = state.leader, next(broker for broker in cluster.broker_ids if broker != state.leader)
    data, _ = zk.client.get(f"/brokers/ids/{leader}")
    endpoints = [urlsplit(text) for text in json.loads(data)["endpoints"]]
    ports = {endpoint.scheme.upper(): endpoint.port or 0 for endpoint in endpoints}
    zk_epoch = zk.client.exists(f"/brokers/ids/{follower}").czxid
    zk.close()
    assert topic_id is not None
    wanted = [(topic_id_uuid(topic_id), [FetchRequestPartition(0, 0, state.leader_epoch, -1, 0, 1000)])]

    def fetched(listener: str, replica: int) -> tuple[int, list[int]]:
        epoch = zk_epoch if replica >= 0 else -1
        request = FetchRequest(replica, epoch, 0, 0, 1000, 0, 0, -1, wanted, (), "")
        with Wire(ports[listener]) as wire:
            payload = fetch_codec.encode_request(15, 1, "forger", request)
            wire.send_raw(len(payload).to_bytes(4, "big") + payload)
            frame = memoryview(wire.receive_frame())
        answer = fetch_codec.decode_response(15, frame, 5)
        return answer.error, [row.error for _, rows in answer.topics for row in rows]

    assert fetched("PLAINTEXT", follower) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
    assert fetched("PLAINTEXT", -1) == (0, [0])
    assert fetched("INTERNAL", follower) == (0, [0])
