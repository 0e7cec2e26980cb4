"""docker-compose.secure.yml: the containers have TLS, users and rights; a leader is killed, and no secret is in a log (RUN-5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from tests.support.cli import ottla
from tests.support.compose_project import (
    BUILD_TIMEOUT_S,
    SECURE,
    SERVICES,
    ComposeProject,
    find_compose,
    port_variable,
    run,
)
from tests.support.invariants import eventually
from tests.support.small_traces import produce, written
from tools.cluster.secured.files import USERS

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1500)]
TLS_PORTS = ("OTTLA_KAFKA1_TLS_PORT", "OTTLA_KAFKA2_TLS_PORT", "OTTLA_KAFKA3_TLS_PORT")


@pytest.fixture(scope="module")
def project() -> Iterator[ComposeProject]:
    started = ComposeProject(find_compose(), SECURE, SERVICES, *TLS_PORTS)
    try:
        started.compose("build", "zookeeper", "kafka1", "certificates", timeout_s=BUILD_TIMEOUT_S)
        started.compose("up", "--detach", timeout_s=300)
        eventually(started.is_healthy, "all four containers healthy", timeout_s=120)
        assert run(["docker", "wait", started.container("users")], 60).strip() == "0"
        yield started
    finally:
        print(started.compose("logs", "--no-color", "--tail", "40"))
        started.remove()


@pytest.fixture(scope="module")
def files(project: ComposeProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory `security`, copied as docs/CONTAINERS.md says."""
    copied = tmp_path_factory.mktemp("secured") / "security"
    run(["docker", "cp", f"{project.container('users')}:/secured/security", str(copied)])
    for file in (*copied.glob("*/*.properties"), *copied.glob("*/python.json")):
        file.write_text(file.read_text().replace("/secured/security", str(copied)))
    return copied


def client(files: Path, user: str) -> dict[str, str]:
    return dict(json.loads((files / user / "python.json").read_text())["confluent-kafka"])


def test_a_killed_leader_costs_no_record(project: ComposeProject) -> None:
    faults = "--fault 'kill leader of orders-0 at 4s' --fault 'restart it at 8s' --seconds 12"
    judged = ottla(f"verify run --compose {project.name} --topic orders:3 {faults}")
    assert judged.exit_code == 0, judged.output
    assert "clean: 0 findings" in judged.output
    eventually(project.is_healthy, "all containers healthy again", timeout_s=120)
    assert "controller" in ottla(f"timeline --compose {project.name}").output


def test_users_have_the_rights_of_a_local_cluster(project: ComposeProject, files: Path) -> None:
    found = AdminClient(client(files, "bob")).list_topics("orders", timeout=30).topics["orders"]
    assert found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    mutual_tls = ",".join(f"localhost:{project.ports[name]}" for name in TLS_PORTS)
    listed = ottla(f"topic list --bootstrap-server {mutual_tls} --command-config {files}/alice/mutual-tls.properties")
    assert "orders" in listed.output
    assert "alice" in project.compose("run", "--rm", "tools", "user", "list", timeout_s=120)


def test_a_container_has_only_what_it_needs(project: ComposeProject, files: Path) -> None:
    """The authority's key could make a certificate for anybody."""
    of_broker = run(["docker", "exec", project.container("kafka2"), "find", "/secured", "-type", "f"]).split()
    names = ("admin/client.properties", "authority.pem", "broker-2.pem", "broker-2.properties")
    assert sorted(of_broker) == [f"/secured/security/{name}" for name in names]
    seen = {file.name for file in files.rglob("*") if file.is_file()}
    assert {"authority.pem", "passwords", "client.pem", "python.json"} <= seen
    assert not [name for name in seen if "broker" in name or name.endswith(".key")]
    assert sorted(line.partition("=")[0] for line in (files / "passwords").read_text().splitlines()) == sorted(USERS)


def test_nobody_else_changes_nodes_of_zookeeper_or_reads_secrets(project: ComposeProject) -> None:
    zk = KazooClient(f"localhost:{project.ports[port_variable('zookeeper')]}", timeout=10)
    zk.start(timeout=20)
    try:
        assert sorted(zk.get_children("/brokers/ids")) == ["1", "2", "3"]
        with pytest.raises(NoAuthError):
            zk.get("/config/users/admin")
        with pytest.raises(NoAuthError):
            zk.set("/brokers/topics/orders", b"{}")
    finally:
        zk.stop()
        zk.close()


def test_a_replay_connects_as_admin(project: ComposeProject, tmp_path: Path) -> None:
    rows = [produce(200 * number, number, topic="departures", records=5) for number in range(20)]
    trace = written(tmp_path / "trace.parquet", rows, departures=1)
    replayed = ottla(
        f"replay run {trace} --compose {project.name} --out {tmp_path / 'out'} --create-topics "
        "--fault 'kill leader of departures-0 at 1s' --fault 'restart it at 3s'"
    )
    assert replayed.exit_code == 0, replayed.output


def test_nothing_that_is_secret_is_in_a_log_or_an_environment(project: ComposeProject, tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    run(["docker", "cp", f"{project.container('certificates')}:/secured/security/passwords", str(passwords)])
    words = [line.partition("=")[2] for line in passwords.read_text().splitlines()]
    assert len(words) == 4
    shown = project.compose("logs", "--no-color") + run(["docker", "inspect", *project.containers()])
    assert not [word for word in [*words, "PRIVATE KEY"] if word in shown]
