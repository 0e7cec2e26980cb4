"""FLT-34: `docker-compose up`, a client on the host, `docker kill` of the leader, `docker start`: nothing is lost.

Skipped, with the reason, where there is no Docker engine or the published ports are taken.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.invariants import eventually
from tests.support.load import BackgroundProducer, assert_nothing_lost, read_everything

REPOSITORY = Path(__file__).resolve().parents[2]
BROKERS = (1, 2, 3)
SERVICES = ("zookeeper", "kafka1", "kafka2", "kafka3")
BOOTSTRAP_SERVERS = "localhost:9092,localhost:9093,localhost:9094"
PUBLISHED_PORTS = (2181, 9092, 9093, 9094)
PARTITIONS = 3
BUILD_TIMEOUT_S = 900.0
COMMAND_TIMEOUT_S = 120.0

# The images are built in the time of the fixture.
pytestmark = [pytest.mark.compose, pytest.mark.timeout(1500)]


class ComposeProject:
    """docker-compose.yml under a project name of its own: no other project's containers or volumes are touched."""

    def __init__(self, compose: Sequence[str]) -> None:
        self.name = f"ottla-test-{uuid.uuid4().hex[:8]}"
        self._compose = [*compose, "--file", str(REPOSITORY / "docker-compose.yml"), "--project-name", self.name]

    def compose(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        return run([*self._compose, *arguments], timeout_s)

    def container(self, service: str) -> str:
        """The id of the service's container, also of one that does not run."""
        project = f"label=com.docker.compose.project={self.name}"
        role = f"label=com.docker.compose.service={service}"
        return run(["docker", "ps", "--all", "--quiet", "--filter", project, "--filter", role]).strip()

    def health(self, service: str) -> str:
        (state,) = json.loads(run(["docker", "inspect", self.container(service)]))
        return str(state["State"].get("Health", {}).get("Status"))

    def is_healthy(self) -> bool:
        return all(self.health(service) == "healthy" for service in SERVICES)


def run(command: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Standard output; a command that fails fails the test with what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, (
        f"{' '.join(command)} -> {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout


def succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find_compose() -> list[str]:
    """The command of Compose v2 or v1; skips the test, with the reason, where the stack cannot be run."""
    if shutil.which("docker") is None or not succeeds(["docker", "info"]):
        pytest.skip("NOT TESTED: no Docker engine answers, so the containers' failover was not tried")
    for compose in (["docker", "compose"], ["docker-compose"]):
        if succeeds([*compose, "version"]):
            break
    else:
        pytest.skip("NOT TESTED: neither `docker compose` nor `docker-compose` is there")
    taken = [port for port in PUBLISHED_PORTS if not is_free(port)]
    if taken:
        pytest.skip(f"NOT TESTED: ports {taken} of docker-compose.yml are in use on this machine")
    return compose


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.fixture(scope="module")
def project() -> Iterator[ComposeProject]:
    started = ComposeProject(find_compose())
    try:
        started.compose("--profile", "tools", "build", timeout_s=BUILD_TIMEOUT_S)
        started.compose("up", "--detach", timeout_s=300)
        eventually(started.is_healthy, "all four containers healthy", timeout_s=120)
        yield started
    finally:
        print(started.compose("logs", "--no-color", "--tail", "40"))
        started.compose("down", "--volumes", "--remove-orphans", timeout_s=300)


def leaders_and_isrs(admin: AdminClient, topic: str) -> dict[int, tuple[int, list[int]]]:
    """Partition -> (leader, sorted ISR) as the brokers' metadata has it; empty while nothing answers."""
    try:
        partitions = admin.list_topics(topic, timeout=5).topics[topic].partitions
    except KafkaException:
        return {}
    return {number: (partition.leader, sorted(partition.isrs)) for number, partition in partitions.items()}


def test_a_killed_leaders_container_loses_nothing(project: ComposeProject, capsys: pytest.CaptureFixture[str]) -> None:
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP_SERVERS, "log_level": "2"})
    topic = f"compose-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, PARTITIONS, 3, config={"min.insync.replicas": "2"})])[topic].result(30)

    def isr_is_full() -> bool:
        states = leaders_and_isrs(admin, topic)
        return len(states) == PARTITIONS and all(isr == list(BROKERS) for _, isr in states.values())

    eventually(isr_is_full, "a full ISR of every partition")
    with BackgroundProducer(BOOTSTRAP_SERVERS, topic, PARTITIONS) as producer:
        producer.wait_for_acks(200)
        victim = leaders_and_isrs(admin, topic)[0][0]
        container = project.container(f"kafka{victim}")
        run(["docker", "kill", container])
        eventually(lambda: leaders_and_isrs(admin, topic).get(0, (victim, []))[0] not in (victim, -1), "another leader")
        producer.wait_for_acks(400)
        run(["docker", "start", container])
        eventually(isr_is_full, "a full ISR after the container's return", timeout_s=120)
        producer.wait_for_acks(200)
        acknowledged = producer.stop()

    assert acknowledged.failed == []
    doubled = assert_nothing_lost(acknowledged, read_everything(BOOTSTRAP_SERVERS, topic, PARTITIONS))
    eventually(project.is_healthy, "all four containers healthy again", timeout_s=120)
    with capsys.disabled():
        print(
            f"\n  docker kill of the leader: {len(acknowledged.positions)} acknowledged, 0 lost, {doubled} doubled, "
            f"longest time without an acknowledgement {producer.longest_gap_s():.2f} s"
        )


def test_the_containers_do_not_run_as_root(project: ComposeProject) -> None:
    for service in SERVICES:
        assert project.compose("exec", "-T", service, "id", "--user").strip() != "0"


def test_clients_inside_reach_the_brokers_by_their_inner_listeners(project: ComposeProject) -> None:
    listed = project.compose(
        "run", "--rm", "-T", "tools", "topic", "list", "--bootstrap-server", "kafka2:19092", "--format", "json"
    )
    assert isinstance(json.loads(listed), list)


def test_a_container_can_write_its_data_only(project: ComposeProject) -> None:
    """An attacker in a broker's container has no root, no capability, no writable image, and only limited memory."""
    for service in SERVICES:
        (found,) = json.loads(run(["docker", "inspect", project.container(service)]))
        host = found["HostConfig"]
        assert host["ReadonlyRootfs"], service
        assert [name.upper() for name in host["CapDrop"]] == ["ALL"], service
        assert any(option.startswith("no-new-privileges") for option in host["SecurityOpt"]), service
        assert host["Memory"] > 0, service
        assert host["PidsLimit"] > 0, service
        assert [limit["Name"] for limit in host["Ulimits"]] == ["nofile"], service
        refused = "touch /opt/x /usr/bin/x /etc/x 2>/dev/null && echo written || echo refused"
        assert project.compose("exec", "-T", service, "bash", "-c", refused).strip() == "refused", service
        assert "CapEff:\t0000000000000000" in project.compose("exec", "-T", service, "cat", "/proc/1/status"), service


def test_the_brokers_image_has_no_clients_and_no_installer(project: ComposeProject) -> None:
    tried = "; ".join(
        f"print({module!r}, importlib.util.find_spec({module!r}) is None)"
        for module in ("confluent_kafka", "kafka", "click", "pip", "tools")
    )
    shown = project.compose("exec", "-T", "kafka1", "python3", "-P", "-c", f"import importlib.util; {tried}")
    assert shown.count("True") == 5, shown
    assert b"-P\0-m\0broker" in project.compose("exec", "-T", "kafka1", "cat", "/proc/1/cmdline").encode()


def test_other_users_cannot_read_the_data(project: ComposeProject) -> None:
    for service, directory in (("kafka1", "/var/lib/ottla"), ("zookeeper", "/var/lib/zookeeper")):
        readable = project.compose("exec", "-T", service, "find", directory, "-mindepth", "1", "-perm", "/007")
        assert readable.strip() == "", service


def test_a_stop_ends_in_time_and_cleanly(project: ComposeProject) -> None:
    began = time.monotonic()
    project.compose("stop", "kafka3")
    assert time.monotonic() - began < 28
    (found,) = json.loads(run(["docker", "inspect", project.container("kafka3")]))
    assert found["State"]["ExitCode"] == 0
    project.compose("start", "kafka3")
    eventually(project.is_healthy, "all four containers healthy again", timeout_s=120)
