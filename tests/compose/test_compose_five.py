"""docker-compose.five.yml: five brokers and three ZooKeepers serve without one of each, and heal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.background_load import BackgroundProducer, assert_all_read_back
from tests.support.compose_project import (
    BUILD_TIMEOUT_S,
    FIVE,
    SERVICES_OF_FIVE,
    ComposeProject,
    find_compose,
    leaders_and_isrs,
    run,
)
from tests.support.invariants import eventually

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1500)]
TOPIC, PARTITIONS = "five", 5


@pytest.fixture(scope="module")
def five() -> Iterator[ComposeProject]:
    started = ComposeProject(find_compose(), FIVE, SERVICES_OF_FIVE)
    try:
        started.compose("build", "zookeeper", "kafka1", timeout_s=BUILD_TIMEOUT_S)
        started.compose("up", "--detach", timeout_s=300)
        eventually(started.is_healthy, "all eight containers healthy", timeout_s=180)
        yield started
    finally:
        print(started.compose("logs", "--no-color", "--tail", "20"))
        started.remove()


def modes(project: ComposeProject) -> list[str]:
    """What each running ZooKeeper says that it is, sorted."""
    ask = "exec 3<>/dev/tcp/127.0.0.1/2181; printf srvr >&3; sed -n 's/^Mode: //p' <&3"
    return sorted(
        run(["docker", "exec", project.container(name), "bash", "-c", ask]).strip()
        for name in project.services
        if name.startswith("zookeeper")
    )


def test_a_zookeeper_and_a_broker_may_be_missing(five: ComposeProject) -> None:
    assert modes(five) == ["follower", "follower", "leader"]
    admin = AdminClient({"bootstrap.servers": five.bootstrap_servers, "log_level": "2"})
    settings = {"min.insync.replicas": "2"}
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config=settings)])[TOPIC].result(60)

    def states() -> dict[int, tuple[int, int]]:
        """Partition -> (leader, size of the ISR)."""
        return {number: (leader, len(isr)) for number, (leader, isr) in leaders_and_isrs(admin, TOPIC).items()}

    def is_whole() -> bool:
        return [size for _, size in states().values()] == [3] * PARTITIONS

    eventually(is_whole, "full ISRs", timeout_s=60)
    with BackgroundProducer(five.bootstrap_servers, TOPIC, PARTITIONS) as producer:
        producer.wait_for_acks(200)
        leader = states()[0][0]
        # The first ZooKeeper is the one whose port is published, and which tools call `zookeeper`.
        lost = [five.container("zookeeper"), five.container(f"kafka{leader}")]
        run(["docker", "kill", *lost])
        eventually(
            lambda: states().get(0, (-1, 0))[0] not in (leader, -1),
            "another leader, elected with two ZooKeepers",
            timeout_s=60,
        )
        producer.wait_for_acks(400)
        run(["docker", "start", *lost])
        eventually(is_whole, "full ISRs again", timeout_s=120)
        producer.wait_for_acks(200)
    assert_all_read_back(producer)
    eventually(five.is_healthy, "all eight containers healthy again", timeout_s=120)
    assert modes(five) == ["follower", "follower", "leader"]


def test_an_id_that_is_not_in_the_ensemble_is_refused_in_one_line() -> None:
    find_compose()
    from subprocess import run as run_any

    wrong = ("-e", "ZOOKEEPER_ID=4", "-e", "ZOOKEEPER_ENSEMBLE=a b c")
    done = run_any(["docker", "run", "--rm", *wrong, "ottla-zookeeper"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "must be a number from 1 to 3" in done.stderr
