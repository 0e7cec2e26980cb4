"""FLT-34: `docker-compose up`, a client on the host, `docker kill` of the leader, `docker start`: nothing is lost.

Skipped, with the reason, where there is no Docker engine.
"""

from __future__ import annotations

import json
import time
import uuid

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.background_load import BackgroundProducer, assert_all_read_back, summary
from tests.support.cli import ottla
from tests.support.compose_project import SERVICES, ComposeProject, leaders_and_isrs, run
from tests.support.invariants import eventually

BROKERS = (1, 2, 3)
PARTITIONS = 3
EVENTS = "/var/lib/ottla/events.jsonl"

# The images are built in the time of the fixture.
pytestmark = [pytest.mark.compose, pytest.mark.timeout(1500)]


def test_a_killed_leaders_container_loses_nothing(project: ComposeProject, capsys: pytest.CaptureFixture[str]) -> None:
    admin = AdminClient({"bootstrap.servers": project.bootstrap_servers, "log_level": "2"})
    topic = f"compose-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, PARTITIONS, 3, config={"min.insync.replicas": "2"})])[topic].result(30)

    def isr_is_full() -> bool:
        states = leaders_and_isrs(admin, topic)
        return len(states) == PARTITIONS and all(isr == list(BROKERS) for _, isr in states.values())

    eventually(isr_is_full, "a full ISR of every partition")
    with BackgroundProducer(project.bootstrap_servers, topic, PARTITIONS) as producer:
        producer.wait_for_acks(200)
        victim = leaders_and_isrs(admin, topic)[0][0]
        container = project.container(f"kafka{victim}")
        run(["docker", "kill", container])
        eventually(lambda: leaders_and_isrs(admin, topic).get(0, (victim, []))[0] not in (victim, -1), "another leader")
        producer.wait_for_acks(400)
        run(["docker", "start", container])
        eventually(isr_is_full, "a full ISR after the container's return", timeout_s=120)
        producer.wait_for_acks(200)

    verdict = assert_all_read_back(producer)
    eventually(project.is_healthy, "all four containers healthy again", timeout_s=120)
    with capsys.disabled():
        print(f"\n  docker kill of the leader: {summary(verdict)}")


def test_requests_in_containers_are_broken_and_healed(project: ComposeProject) -> None:
    admin = AdminClient({"bootstrap.servers": project.bootstrap_servers, "log_level": "2"})
    topic = f"compose-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1, 3, config={"min.insync.replicas": "2"})])[topic].result(30)
    rule = f"lose the answer to produce of topic {topic} once and cut"
    done = ottla(f"fault {rule} --compose {project.name}")
    assert done.exit_code == 0, done.output
    with BackgroundProducer(project.bootstrap_servers, topic, 1) as producer:
        producer.wait_for_acks(50)
    assert_all_read_back(producer)
    hits = [
        project.compose("exec", "-T", f"kafka{broker}", "grep", "--count", f'"request_fault","rule":"{rule}"', EVENTS)
        for broker in leaders_and_isrs(admin, topic)[0][:1]
    ]
    assert hits == ["1\n"]
    dead = project.container("kafka3")
    run(["docker", "kill", dead])
    healed = ottla(f"fault heal --compose {project.name}")
    assert healed.exit_code == 0, healed.output
    eventually(project.is_healthy, "all four containers healthy again", timeout_s=120)
    wrong = ottla(f"fault answer produce with NO_SUCH_ERROR --compose {project.name}")
    assert wrong.exit_code == 1
    assert "NO_SUCH_ERROR" in wrong.output


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
        readable = project.compose(
            "exec", "-T", service, "find", directory, "-ignore_readdir_race", "-mindepth", "1", "-perm", "/007"
        )
        assert readable.strip() == "", service


def test_a_stop_ends_in_time_and_cleanly(project: ComposeProject) -> None:
    began = time.monotonic()
    project.compose("stop", "kafka3")
    assert time.monotonic() - began < 28
    (found,) = json.loads(run(["docker", "inspect", project.container("kafka3")]))
    assert found["State"]["ExitCode"] == 0
    project.compose("start", "kafka3")
    eventually(project.is_healthy, "all four containers healthy again", timeout_s=120)
