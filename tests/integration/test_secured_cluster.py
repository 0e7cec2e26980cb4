"""A cluster of `ottla cluster start --secure` (RUN-5): its files, its commands, and the settings that it writes for clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.helpers import create_ssl_context
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer

from tests.support.cli import ottla
from tests.support.invariants import ZooKeeperView, eventually
from tests.support.secured import create, replaces_a_killed_leader
from tests.support.thorough import release, thorough
from tools.cluster.local_cluster import LocalCluster
from tools.properties_file import read_properties

pytestmark = pytest.mark.integration

OWNERS = 0o600


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    local = LocalCluster(tmp_path_factory.mktemp("secured") / "cluster")
    with ExitStack() as ending:
        ending.callback(local.destroy)
        done = ottla(
            f"cluster start --secure --dir {local.directory} --override zookeeper.session.timeout.ms=30000 "
            "--override min.insync.replicas=2 --override connections.max.reauth.ms=4000"
        )
        assert done.exit_code == 0, done.output
        assert "<user>/client.properties" in done.output
        yield local


def python_settings(cluster: LocalCluster, user: str, library: str) -> dict[str, Any]:
    return dict(json.loads((cluster.directory / "security" / user / "python.json").read_text())[library])


def librdkafka(cluster: LocalCluster, user: str) -> dict[str, Any]:
    """Of the file for kcat and others."""
    text = (cluster.directory / "security" / user / "librdkafka.properties").read_text()
    return {**{key: value for key, value, _ in read_properties(text)}, "log_level": 0}


def output(cluster: LocalCluster, line: str, stdin: str | None = None) -> str:
    done = ottla(f"{line} --dir {cluster.directory}", stdin)
    assert done.exit_code == 0, (line, done.output)
    return done.output


def test_only_the_owner_can_read_what_is_secret(cluster: LocalCluster) -> None:
    secret = cluster.directory / "security"
    assert secret.stat().st_mode & 0o777 == 0o700
    files = [path for path in (*secret.rglob("*"), cluster.directory / "client.properties") if path.is_file()]
    assert {path.name for path in files} >= {"passwords", "authority.key", "broker-1.pem", "client.pem", "python.json"}
    assert {path.stat().st_mode & 0o777 for path in files} == {OWNERS}


def test_the_commands_need_no_options(cluster: LocalCluster) -> None:
    output(cluster, "topic create commanded --partitions 3 --replication-factor 3")
    output(cluster, "produce commanded", stdin="one\ntwo\n")
    read = output(cluster, "consume commanded --from-beginning --exit-at-end --group g")
    assert sorted(read.splitlines()[:2]) == ["one", "two"]
    assert "commanded" in output(cluster, "topic describe commanded")
    assert "g" in output(cluster, "group list").split()
    output(cluster, "config alter --entity-type topics --entity-name commanded --add-config retention.ms=60000")
    assert "Healthy:                          true" in output(cluster, "cluster health")
    assert "running" in output(cluster, "cluster status")
    assert "User:alice" in output(cluster, "acl list")
    assert "bob: SCRAM-SHA-256" in output(cluster, "user list")
    assert "controller" in output(cluster, "timeline")
    assert "!=" not in output(cluster, "inspect znodes")


def test_each_client_logs_in_with_the_settings_of_its_file(cluster: LocalCluster) -> None:
    topic = create(cluster_of(cluster), "of-clients", 1)
    producer = KafkaProducer(**python_settings(cluster, "alice", "kafka-python"))
    assert producer.send(topic, b"of kafka-python").get(30).offset == 0
    producer.close()

    async def send() -> int:
        settings = python_settings(cluster, "alice", "aiokafka")
        context = create_ssl_context(cafile=settings.pop("ssl_cafile"))
        async with AIOKafkaProducer(**settings, ssl_context=context) as asynchronous:
            return int((await asynchronous.send_and_wait(topic, b"of aiokafka")).offset)

    assert asyncio.run(send()) == 1
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        client = {**python_settings(cluster, "alice", "confluent-kafka"), "sasl.mechanism": mechanism}
        assert topic in AdminClient(client).list_topics(timeout=30).topics
    assert read_by_certificate(cluster, topic) == ["of kafka-python", "of aiokafka"]


def cluster_of(cluster: LocalCluster) -> dict[str, Any]:
    return librdkafka(cluster, "admin")


def read_by_certificate(cluster: LocalCluster, topic: str) -> list[str]:
    """As alice, whom only her certificate names."""
    access = cluster.access("alice")
    file = cluster.directory / "security" / "alice" / "mutual-tls.properties"
    done = ottla(
        f"consume {topic} --from-beginning --exit-at-end --bootstrap-server {access.mutual_tls_servers} --command-config {file}"
    )
    assert done.exit_code == 0, done.output
    return done.output.splitlines()[:-1]


def test_what_users_may_do(cluster: LocalCluster) -> None:
    """Alice may do everything with topics, and nothing with the cluster; bob may do nothing."""
    topic = create(librdkafka(cluster, "alice"), "of-alice", 1)
    refused = ottla(
        f"acl list --dir {cluster.directory} --command-config {cluster.directory}/security/alice/client.properties"
    )
    assert refused.exit_code == 1
    assert "Cluster authorization failed" in refused.output
    found = AdminClient(librdkafka(cluster, "bob")).list_topics(topic, timeout=30).topics[topic]
    assert found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_only_brokers_log_in_where_brokers_talk(cluster: LocalCluster, mechanism: str) -> None:
    found = read_properties((cluster.broker_directory(1) / "server.properties").read_text())
    (listeners,) = (one.value for one in found if one.key == "listeners")
    addresses = {protocol: address for protocol, _, address in (one.partition("://") for one in listeners.split(","))}
    errors: list[KafkaError] = []
    of_alice = {**librdkafka(cluster, "alice"), "sasl.mechanism": mechanism, "error_cb": errors.append}
    admin = AdminClient({**of_alice, "bootstrap.servers": addresses["INTERNAL"]})
    eventually(lambda: admin.poll(0.1) or errors, "she is refused", 20.0)
    assert errors[0].code() == KafkaError._AUTHENTICATION, errors


def test_a_killed_leader_is_replaced_at_once_and_nothing_is_lost(cluster: LocalCluster, zk: ZooKeeperView) -> None:
    replaces_a_killed_leader(cluster, zk, librdkafka(cluster, "alice"))


def test_faults_by_role(cluster: LocalCluster) -> None:
    output(cluster, "topic create hit --replication-factor 3")
    assert "broker" in output(cluster, "fault kill leader hit-0")
    output(cluster, "fault heal")
    output(cluster, "cluster health --watch --exit-when-healthy --timeout 60")


def test_a_new_start_keeps_certificates_and_passwords(cluster: LocalCluster) -> None:
    secret = cluster.directory / "security"
    before = {path: path.read_bytes() for path in secret.rglob("*") if path.is_file()}
    output(cluster, "user delete bob")
    output(cluster, "cluster stop")
    output(cluster, "cluster start")
    assert {path: path.read_bytes() for path in secret.rglob("*") if path.is_file()} == before
    assert "bob" not in output(cluster, "user list"), "users are made once"
    assert "of-alice" in AdminClient(librdkafka(cluster, "alice")).list_topics(timeout=30).topics


def test_nothing_that_is_secret_is_anywhere_else(cluster: LocalCluster, tmp_path: Path) -> None:
    """Neither in the reports of a run with faults, nor in a file but the secret ones, nor in the arguments of a process."""
    output(cluster, "topic create judged --replication-factor 3 --config min.insync.replicas=2")
    reports = f"--json {tmp_path}/verdict.json --junit {tmp_path}/junit.xml --html {tmp_path}/page.html"
    faults = "--fault 'kill leader of judged-0 at 2s' --fault 'restart it at 4s' --seconds 7"
    (tmp_path / "said").write_text(output(cluster, f"verify run {faults} {reports}"))
    output(cluster, f"timeline --html {tmp_path}/timeline.html")
    assert_no_secret(cluster, [tmp_path, cluster.directory])
    secrets = secrets_of(cluster)
    for process in cluster.running():
        arguments = Path(f"/proc/{process.pid()}/cmdline").read_bytes()
        assert not [word for word in secrets if word in arguments]


def secrets_of(cluster: LocalCluster) -> list[bytes]:
    assert cluster.secured is not None
    words = list(cluster.secured.passwords().values())
    assert len(words) == 4
    return [*(word.encode() for word in words), b"PRIVATE KEY"]


def assert_no_secret(cluster: LocalCluster, directories: list[Path]) -> None:
    secrets, allowed = secrets_of(cluster), cluster.directory / "security"
    read = 0
    for path in (path for directory in directories for path in directory.rglob("*") if path.is_file()):
        if allowed not in path.parents and path.name not in ("server.properties", "client.properties"):
            content = path.read_bytes()
            assert not [word for word in secrets if word in content], path
            read += 1
    assert read > 20


@pytest.mark.parametrize("count", [thorough(4), release(10)])
def test_random_faults_lose_nothing(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Of all kinds that a cluster with links can have; another seed each time."""
    done = ottla(f"verify run --secure --random-faults {count} --topic orders:6")
    with capsys.disabled():
        print(f"\n{done.output}")
    assert done.exit_code == 0, done.output


@pytest.mark.thorough
def test_a_start_that_waits_says_which_broker_complains(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller cannot log in at broker 2, which has another password for brokers."""
    from tools.cluster import local_cluster

    monkeypatch.setattr(local_cluster, "SLOW_S", 2.0)
    cluster.stop()
    file = cluster.broker_directory(2) / "server.properties"
    kept = file.read_text()
    file.write_text(kept.replace('user_broker="', 'user_broker="wrong-'))
    said: list[str] = []
    try:
        with pytest.raises(local_cluster.NotServing, match=r"broker \d says: .*(cannot log in at|password is wrong)"):
            cluster.start(timeout=10, say=said.append)
    finally:
        file.write_text(kept)
    assert said[0].startswith("Still waiting: broker ")
    assert any(" says: " in line for line in said)
    cluster.start()
