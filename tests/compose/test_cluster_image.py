"""The image `cluster` as docs/TESTING.md says: a whole cluster in one container, for test suites in any language."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.background_load import BackgroundProducer, assert_all_read_back
from tests.support.compose_project import BUILD_TIMEOUT_S, find_compose, run
from tests.support.invariants import eventually
from tools.cluster.ports import free_ports

# The image is built in the time of the fixture.
pytestmark = [pytest.mark.compose, pytest.mark.timeout(1500)]
HEALTHY = ("ottla", "cluster", "health", "--watch", "--exit-when-healthy", "--timeout", "120")
STOP_S = "60"
INTERRUPTED, KILLED = 130, 137
"""Exit codes: `ottla cluster start --foreground` has stopped the brokers in order; it could not."""
RECORDS_PER_S = 200
FEW = 200


class Container:
    """One container of the image, which is removed with its volume."""

    def __init__(self, image: str, *options: str, arguments: Sequence[str] = ()) -> None:
        self.name = f"ottla-test-{secrets.token_hex(4)}"
        run(["docker", "run", "--detach", "--name", self.name, *options, image, *arguments])
        (found,) = json.loads(run(["docker", "inspect", self.name]))
        (mount,) = found["Mounts"]
        self.volume = str(mount["Name"])

    def execute(self, *command: str) -> str:
        return run(["docker", "exec", self.name, *command], timeout_s=180)

    def exit_code(self) -> int:
        """Of a container that has ended."""
        (found,) = json.loads(run(["docker", "inspect", self.name]))
        assert not found["State"]["Running"]
        return int(found["State"]["ExitCode"])

    def remove(self) -> None:
        print(run(["docker", "logs", self.name]))
        run(["docker", "rm", "--force", "--volumes", self.name])


def leader_of_orders(servers: str) -> int:
    """The leader of orders-0, as one of the brokers says; -1 without one."""
    metadata = AdminClient({"bootstrap.servers": servers, "log_level": 2}).list_topics("orders", timeout=60)
    return int(metadata.topics["orders"].partitions[0].leader)


def three_free_ports_in_a_row() -> range:
    """Ports that nobody else is given: most of 100 ports stand beside each other."""
    ports = set(free_ports(100))
    first = next(port for port in sorted(ports) if {port + 1, port + 2} <= ports)
    return range(first, first + 3)


@pytest.fixture(scope="module")
def image() -> str:
    find_compose()
    tag = "ottla-test-cluster"
    run(["docker", "build", "--quiet", "--target", "cluster", "--tag", tag, "."], timeout_s=BUILD_TIMEOUT_S)
    return tag


@pytest.fixture
def containers() -> Iterator[list[Container]]:
    """Those that the test has started; all are removed."""
    started: list[Container] = []
    yield started
    for container in started:
        container.remove()


def test_a_client_of_this_machine_survives_faults_inside(image: str, containers: list[Container]) -> None:
    """A killed leader, a cut one, a stop and a SIGKILL of the container: no acknowledged record is lost."""
    brokers = three_free_ports_in_a_row()
    ports = f"{brokers[0]}-{brokers[-1]}"
    published = ("--init", "--publish", f"127.0.0.1:{ports}:{ports}")
    container = Container(image, *published, arguments=("--port", str(brokers[0])))
    containers.append(container)
    assert "Nodes down:                       []" in container.execute(*HEALTHY)
    container.execute(
        "ottla", "topic", "create", "orders", "--replication-factor", "3", "--config", "min.insync.replicas=2"
    )
    servers = ",".join(f"localhost:{number}" for number in brokers)
    with BackgroundProducer(servers, "orders", 1, records_per_s=RECORDS_PER_S, message_timeout_ms=120_000) as load:
        for fault in ("kill", "isolate"):
            load.wait_for_acks(FEW)
            leader = leader_of_orders(servers)
            container.execute("ottla", "fault", fault, "leader", "orders-0")
            eventually(lambda old=leader: leader_of_orders(servers) not in (old, -1), "another broker leads")
            container.execute("ottla", "fault", "heal")
            container.execute(*HEALTHY)
        load.wait_for_acks(FEW)
    for end in (("stop", "--time", STOP_S), ("kill",)):
        run(["docker", *end, container.name])
        assert container.exit_code() == (INTERRUPTED if end[0] == "stop" else KILLED)
        run(["docker", "start", container.name])
        container.execute(*HEALTHY)
        assert_all_read_back(load)
    container.remove()
    containers.clear()
    assert container.volume not in run(["docker", "volume", "ls", "--quiet"]).split()


def test_a_client_in_another_container(image: str, containers: list[Container]) -> None:
    """`--advertise`, other options of `ottla cluster start`, and no `--init`, which Testcontainers does not set."""
    network = f"ottla-test-{secrets.token_hex(4)}"
    run(["docker", "network", "create", network])
    try:
        options = ("--network", network, "--network-alias", "kafka")
        container = Container(image, *options, arguments=("--advertise", "kafka", "--brokers", "2"))
        containers.append(container)
        container.execute(*HEALTHY)
        for _ in range(2):  # a broker that `heal` has started is a child of another process than the first one
            assert "broker 2" in container.execute("ottla", "fault", "kill", "broker", "2")
            container.execute("ottla", "fault", "heal")
            container.execute(*HEALTHY)
        client = ("docker", "run", "--rm", "--network", network, "--entrypoint", "ottla", image)
        command = ("verify", "run", "--bootstrap-server", "kafka:9092,kafka:9093", "--seconds", "4")
        assert "PASSED  clean: 0 findings" in run([*client, *command], timeout_s=180)
        run(["docker", "stop", "--time", STOP_S, container.name])
        assert container.exit_code() == INTERRUPTED
    finally:
        for container in containers:
            container.remove()
        containers.clear()
        run(["docker", "network", "rm", network])
