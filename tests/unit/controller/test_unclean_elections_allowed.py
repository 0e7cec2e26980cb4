"""INV-18: `unclean.leader.election.enable` is enabled while a partition waits for a member of its ISR."""

from __future__ import annotations

import pytest

from tests.support.memory_cluster import MemoryCluster

KEY = "unclean.leader.election.enable"


async def wait_for_broker_2(cluster: MemoryCluster) -> None:
    """Broker 2, alone in the ISR of three topics, is dead; 1 and 3 live. `no` forbids unclean elections itself."""
    for topic in ("own", "plain"):
        await cluster.create_topic(topic, {0: (2, 3)})
    await cluster.create_topic("no", {0: (2, 3)}, {KEY: "false"})
    for topic in ("own", "plain", "no"):
        cluster.leader_writes_isr(topic, 0, (2,))
    await cluster.settle()
    await cluster.kill(2)
    assert [cluster.state(topic).leader for topic in ("own", "plain", "no")] == [-1, -1, -1]


async def test_enabled_for_one_topic(cluster: MemoryCluster) -> None:
    await wait_for_broker_2(cluster)
    await cluster.create_topic("own", {0: (2, 3)}, {KEY: "true"})
    for controller in cluster.controllers.values():
        controller.unclean_elections_allowed("own")
    await cluster.settle()
    assert [cluster.state(topic).leader for topic in ("own", "plain", "no")] == [3, -1, -1]
    assert cluster.state("own").isr == (3,)


async def test_enabled_as_the_default_of_all_topics(cluster: MemoryCluster) -> None:
    """A topic's own `false` still counts. Enabling it again, or in a broker that is not the controller, has no effect."""
    await wait_for_broker_2(cluster)
    for _ in range(2):
        for controller in cluster.controllers.values():
            controller.set_unclean_election_default(True)
        await cluster.settle()
    assert [cluster.state(topic).leader for topic in ("own", "plain", "no")] == [3, 3, -1]
    assert cluster.state("plain").leader_epoch == 2


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_the_next_controller_uses_the_changed_default_too(cluster: MemoryCluster, is_allowed: bool) -> None:
    await wait_for_broker_2(cluster)
    heir = next(broker for broker in cluster.controllers if broker != cluster.controller)
    await cluster.start(2)
    assert cluster.state("plain").leader == 2
    for controller in cluster.controllers.values():
        controller.set_unclean_election_default(is_allowed)
    first = cluster.controller
    await cluster.kill(first)
    await cluster.kill(2)
    assert cluster.controller == heir
    assert cluster.state("plain").leader == (3 if is_allowed else -1)
    assert cluster.state("no").leader == -1
