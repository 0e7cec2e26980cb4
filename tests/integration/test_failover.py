"""Killed, stopped, paused and deposed brokers under acks=all load: nothing acknowledged is lost, and the cluster heals.

FLT-1, 2, 4, 5, 6 and CTL-1 with real processes, a real ZooKeeper and confluent-kafka; INV-1, 4, 5, 27 are checked after each.
"""

from __future__ import annotations

import json
import signal
import time

import pytest
from click.testing import CliRunner

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch
from tests.conftest import ClusterFactory
from tests.support.background_load import read_everything, under_load
from tests.support.injected import inject
from tests.support.invariants import ZooKeeperView, assert_healed, eventually, victim_of
from tests.support.thorough import thorough
from tests.support.topics import init_producer_id, new_topic, produce_batch, produce_body
from tests.support.wire import Wire
from tools.cli import main
from tools.cluster.local_cluster import LocalCluster
from tools.faults.processes import Broker

pytestmark = pytest.mark.integration

PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=3, overrides={"auto.leader.rebalance.enable": "false"})


@pytest.fixture
def topic(cluster: LocalCluster, zk: ZooKeeperView) -> str:
    """A new topic of 4 partitions on all three brokers."""
    eventually(lambda: zk.live_brokers() == sorted(cluster.broker_ids), "all brokers live before the test")
    name = new_topic(cluster.bootstrap_servers, PARTITIONS, 3, min_insync_replicas="2")
    assert_healed(cluster, zk, name)
    return name


def leads_no_more(zk: ZooKeeperView, topic: str, victim: int) -> bool:
    return all(state.leader not in (victim, -1) for state in zk.states(topic).values())


def bring_back(cluster: LocalCluster, zk: ZooKeeperView, victim: int) -> None:
    eventually(lambda: cluster.pid(victim) is None, "the broker's process ended")
    cluster.start_broker(victim)
    eventually(lambda: victim in zk.live_brokers(), "the broker registered again")


@pytest.mark.parametrize("role", [thorough("leader"), thorough("controller"), "both"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_nothing_is_lost(cluster: LocalCluster, zk: ZooKeeperView, topic: str, role: str, how: signal.Signals) -> None:
    with under_load(cluster, zk, topic, PARTITIONS) as producer:
        victim = victim_of(role, zk, topic)
        epoch = zk.controller_epoch()
        was_controller = zk.controller() == victim
        cluster.signal(victim, how)
        eventually(lambda: leads_no_more(zk, topic, victim), "new leaders")
        producer.wait_for_acks(400)
        eventually(lambda: victim not in zk.live_brokers(), "the dead broker's node gone")
        if was_controller:
            eventually(lambda: zk.controller() not in (None, victim), "another controller")
            assert zk.controller_epoch() == epoch + 1
        bring_back(cluster, zk, victim)


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_five_leaders_in_a_row_stop_or_die(
    cluster: LocalCluster, zk: ZooKeeperView, topic: str, how: signal.Signals
) -> None:
    """FLT-3, INV-7: each is stopped or killed as soon as it leads, and has its own epoch."""
    epochs = [zk.state(topic, 0).leader_epoch]
    with under_load(cluster, zk, topic, PARTITIONS) as producer:
        for _ in range(5):
            leader = zk.state(topic, 0).leader
            cluster.signal(leader, how)
            eventually(lambda old=leader: leads_no_more(zk, topic, old), f"others than {leader} lead")
            epochs.append(zk.state(topic, 0).leader_epoch)
            producer.wait_for_acks(100)
            bring_back(cluster, zk, leader)
            eventually(lambda: all(len(state.isr) == 3 for state in zk.states(topic).values()), "full ISRs")
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize("how", [signal.SIGKILL, thorough(signal.SIGTERM)], ids=["SIGKILL", "SIGTERM"])
def test_an_idempotent_producer_writes_each_record_once_and_in_order(
    cluster: LocalCluster, zk: ZooKeeperView, topic: str, how: signal.Signals
) -> None:
    """LOG-5, INV-20: every broker is killed or stopped in turn, with five requests in flight."""
    with under_load(cluster, zk, topic, PARTITIONS, idempotent=True) as producer:
        for victim in cluster.broker_ids:
            cluster.signal(victim, how)
            eventually(lambda gone=victim: leads_no_more(zk, topic, gone), "new leaders")
            producer.wait_for_acks(400)
            bring_back(cluster, zk, victim)
            assert_healed(cluster, zk, topic)


def test_a_repeated_batch_is_answered_with_its_first_offset_by_every_later_leader(
    cluster: LocalCluster, zk: ZooKeeperView, topic: str
) -> None:
    """LOG-5, INV-20, BUG-24: through a kill, and through a clean stop and start of all brokers."""

    written_ms = int(time.time() * 1000)  # of now: retention would delete older records in the middle of a slow run

    def produce(wire: Wire, sequence: int, epoch: int = 0) -> tuple[int, int]:
        batch = build_batch(
            [(None, b"v", (), written_ms)] * 2,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        answer = produce_batch(wire, topic, batch)
        return int(answer.error_code), answer.base_offset

    def check_all(gap: ErrorCode = ErrorCode.NOT_ENOUGH_REPLICAS) -> None:
        """`gap`: the answer to a batch before which one is missing. A new leader waits a while for the missing one."""
        with Wire(cluster.port(zk.state(topic, 0).leader)) as wire:
            # ZooKeeper may know it before the broker does.
            eventually(lambda: produce(wire, 14)[0] != ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader leads")
            for number in range(3, 8):
                assert produce(wire, 2 * number) == (ErrorCode.NONE, 2 * number)
            assert produce(wire, 4) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
            assert produce(wire, 18) == (gap, -1)

    leader = zk.state(topic, 0).leader
    with Wire(cluster.port(leader)) as wire:
        producer_id = init_producer_id(wire).producer_id
        assert [produce(wire, 2 * number) for number in range(8)] == [(0, 2 * number) for number in range(8)]
    check_all(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    cluster.signal(leader, signal.SIGKILL)
    eventually(lambda: zk.state(topic, 0).leader not in (leader, -1), "another leader")
    check_all()
    bring_back(cluster, zk, leader)
    assert_healed(cluster, zk, topic)
    inject("stop", [Broker(cluster, broker) for broker in cluster.broker_ids])
    assert_healed(cluster, zk, topic)
    check_all()
    with Wire(cluster.port(zk.state(topic, 0).leader)) as wire:
        assert produce(wire, 16) == (ErrorCode.NONE, 16)
        assert produce(wire, 0, epoch=1) == (ErrorCode.NONE, 18)
        assert produce(wire, 18) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


def test_a_deleted_controller_znode_elects_again(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    """CTL-1: deleting /controller by hand forces an election; the epoch rises by exactly one, and the cluster works on."""
    eventually(lambda: zk.controller() is not None, "a controller")
    epoch = zk.controller_epoch()
    with under_load(cluster, zk, topic, PARTITIONS):
        zk.client.delete("/controller")
        eventually(lambda: zk.controller() is not None and zk.controller_epoch() == epoch + 1, "the next controller")
    assert zk.controller_epoch() == epoch + 1
    new_topic(cluster.bootstrap_servers, 1, 3)


@pytest.mark.parametrize("acks", [1, thorough(-1)])
def test_a_leader_paused_past_its_session_acknowledges_nothing_and_rejoins(
    cluster: LocalCluster, zk: ZooKeeperView, topic: str, acks: int
) -> None:
    """FLT-6: requests that reached the paused leader's socket are not acknowledged under its old epoch when it wakes up."""
    victim = victim_of("leader", zk, topic)
    partition = next(p for p, s in zk.states(topic).items() if s.leader == victim)
    old_epoch = zk.state(topic, partition).leader_epoch

    def body(value: bytes) -> dict[str, object]:
        return produce_body(topic, build_batch([(None, value, [], 1_700_000_000_000)]), acks, [partition])

    with Wire(cluster.port(victim)) as wire, under_load(cluster, zk, topic, PARTITIONS) as producer:
        first = wire.call(ApiKey.PRODUCE, 8, body(b"before the pause"))
        assert first.responses[0].partition_responses[0].error_code == ErrorCode.NONE

        cluster.pause(victim)
        wire.send(ApiKey.PRODUCE, 8, body(b"while paused"))
        eventually(lambda: zk.state(topic, partition).leader not in (victim, -1), "another leader")
        producer.wait_for_acks(200)
        cluster.resume(victim)

        try:
            _, late = messages.decode_response(ApiKey.PRODUCE, 8, wire.receive_frame())
            error = late.responses[0].partition_responses[0].error_code
            assert error == ErrorCode.NOT_LEADER_OR_FOLLOWER
        except ConnectionError:
            pass  # closing the connection acknowledges nothing either
        eventually(lambda: victim in zk.live_brokers(), "the broker registered again")
    assert zk.state(topic, partition).leader_epoch > old_epoch
    records = read_everything(cluster.bootstrap_servers, topic, PARTITIONS)
    assert b"while paused" not in {m.value() for m in records}


def test_the_event_logs_tell_the_story(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    """RUN-3, OBS-1: the timeline of a killed controller has the fault and each step of CTL-2, and its page can be drawn."""
    victim = victim_of("both", zk, topic)
    with under_load(cluster, zk, topic, PARTITIONS) as producer:
        cluster.kill(victim)
        producer.wait_for_acks(200)
        bring_back(cluster, zk, victim)
        assert_healed(cluster, zk, topic)
    told = CliRunner().invoke(main, ["timeline", "--dir", str(cluster.directory), "--format", "json"])
    assert told.exit_code == 0, told.output
    lines = [json.loads(line) for line in told.output.splitlines()]
    killed = next(
        at
        for at, line in enumerate(lines)
        if f"kill the process of broker {victim}, which is the contr" in line["text"]
    )
    steps = [line["text"] for line in lines[killed:] if "CTL-2" in line["rules"] and "tep " in line["text"]]
    assert [f"tep {number}:" in text for number, text in enumerate(steps[:7], 1)] == [True] * 7
    assert any("becomes the leader of" in line["text"] for line in lines[killed:])
    page = cluster.directory / "timeline.html"
    assert CliRunner().invoke(main, ["timeline", "--dir", str(cluster.directory), "--html", str(page)]).exit_code == 0
    page.unlink()
