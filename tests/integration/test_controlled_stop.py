"""A broker that is asked to stop, stops: also when nobody could take over what it leads (STA-2, FLT-2)."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.load import read_everything
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

RETRIES, BACKOFF_S = 3, 1.0
BOUND_S = RETRIES * BACKOFF_S + 7.0


@pytest.mark.parametrize("is_controller", [True, False], ids=["the controller", "not the controller"])
def test_with_one_replica_left_it_stops_in_bounded_time(
    new_cluster: Callable[..., LocalCluster], is_controller: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks as often as `controlled.shutdown.max.retries` says, then stops all the same, and loses nothing by it."""
    cluster = new_cluster(
        brokers=3,
        overrides={
            "controlled.shutdown.max.retries": str(RETRIES),
            "controlled.shutdown.retry.backoff.ms": str(round(BACKOFF_S * 1000)),
        },
    )
    zk = ZooKeeperView(cluster.zookeeper_connect)
    try:
        controller = zk.controller()
        assert controller is not None
        others = [b for b in cluster.broker_ids if b != controller]
        last, gone = (controller, others[0]) if is_controller else (others[0], others[1])
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        made = admin.create_topics([NewTopic("t", 1, replica_assignment=[[last, gone]]), NewTopic("solo", 1, 1)])
        for future in made.values():
            future.result(30)
        assert_healed(cluster, zk, "t")
        cluster.kill(gone)
        eventually(lambda: zk.state("t", 0).isr == (last,), "one in-sync replica left")
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
        for number in range(50):
            producer.produce("t", str(number).encode())
        assert producer.flush(30) == 0

        began = time.monotonic()
        cluster.signal(last, signal.SIGTERM)
        eventually(lambda: cluster.pid(last) is None, "the process ended", timeout_s=BOUND_S)
        took = time.monotonic() - began
        with capsys.disabled():
            print(f" [stopped in {took:.1f} s]", end="")
        eventually(lambda: zk.state("t", 0).leader == -1, "nobody leads")
        assert zk.state("t", 0).isr == (last,), "INV-4: the lone member stays in the ISR"

        cluster.start_broker(gone)
        cluster.wait_ready(brokers=[gone])
        assert zk.state("t", 0).leader == -1, "INV-18: the other one is not in the ISR"
        cluster.start_broker(last)
        cluster.wait_ready()
        assert_healed(cluster, zk, "t")
        records = read_everything(cluster.bootstrap_servers, "t", 1)
        assert {record.value() for record in records} == {str(number).encode() for number in range(50)}
    finally:
        zk.close()
