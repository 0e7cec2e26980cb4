"""`ottla inspect conformance`: a cluster does not differ from itself, and from a real Kafka only as docs/CONFORMANCE.md says."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient

from protocol.kafka.api_keys import SERVED as SERVED_AT
from protocol.kafka.api_keys import ApiKey, ApiLevel, VersionRange
from tests.conftest import CALM, SHARED_KAFKA_SETTINGS, ClusterFactory
from tests.support.invariants import eventually
from tests.support.real_kafka import skip_without_kafka
from tests.support.wire import Wire
from tools.bench.real_kafka import running
from tools.cli import main
from tools.cluster.local_cluster import LocalCluster
from tools.inspect.conformance.actor import Step
from tools.inspect.conformance.conformance_command import known_at
from tools.inspect.conformance.page import kafkas_versions
from tools.inspect.conformance.report import sort_out
from tools.inspect.conformance.run import SERVED, played, step_differences
from tools.inspect.conformance.sequences import HISTORIES

pytestmark = pytest.mark.integration

EVERY_VERSION = bool(os.environ.get("OTTLA_TEST_CONFORMANCE"))
RECORD = bool(os.environ.get("OTTLA_TEST_RECORD"))
RECORDED = Path(__file__).parents[1] / "recorded" / "conformance"
OF_KAFKA_4 = ("raised-epochs",)
"""Histories that Kafka 3.9 cannot play."""
SETTINGS = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"}


def conformance(reference: str, subject: str, *options: str) -> Result:
    command = ["inspect", "conformance", "--reference", reference, "--subject", subject, *options]
    return CliRunner().invoke(main, command)


def first(bootstrap_servers: str) -> str:
    return bootstrap_servers.split(",")[0]


def test_a_cluster_does_not_differ_from_itself_and_is_left_as_it_was(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    broker = first(shared_cluster.bootstrap_servers)
    apis = [f"--api={name}" for name in ("Metadata", "Heartbeat", "DescribeProducers", "DescribeAcls", "SaslHandshake")]
    out = tmp_path / "out.json"
    result = conformance(broker, broker, "--quick", "--json", str(out), *apis)
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    assert report["differences"] == []
    assert report["requests"] > 100
    admin = AdminClient({"bootstrap.servers": broker})
    # A deletion is answered when the controller alone has forgotten the topic.
    eventually(
        lambda: not any(name.startswith("conform-") for name in admin.list_topics(timeout=10).topics),
        "its topics are gone",
    )


def test_what_cannot_be_compared_is_said_in_one_line(shared_cluster: LocalCluster) -> None:
    broker = first(shared_cluster.bootstrap_servers)
    for options, said in [
        ((broker, "nowhere"), "nowhere: expected host:port"),
        ((broker, broker, "--api", "Nothing"), "--api Nothing: no such API"),
        ((broker, broker, "--history", "nothing"), "--history nothing: no such history; expected one of topic, "),
        (("127.0.0.1:1", broker), "no broker answers at 127.0.0.1:1 (reference)"),
    ]:
        result = conformance(*options)
        assert result.exit_code == 2
        assert said in result.output


@pytest.mark.kafka
@pytest.mark.timeout(3600 if EVERY_VERSION else 1200)
@pytest.mark.parametrize("level", ApiLevel)
def test_all_differences_from_a_real_kafka_are_listed(
    new_cluster: ClusterFactory, tmp_path: Path, level: ApiLevel
) -> None:
    """FMT-1. All APIs in their newest versions, and the histories; OTTLA_TEST_CONFORMANCE=1: in all versions.

    The peer is Kafka 3.9.1 in ZooKeeper mode, or at level 4 Kafka 4.1.1 in KRaft mode.
    """
    is_newer = level is ApiLevel.KAFKA_4
    jars = skip_without_kafka(kraft=is_newer)
    home = tmp_path / "kafka"
    home.mkdir()
    patient = {} if is_newer else {"zookeeper.session.timeout.ms": "30000"}
    cluster = new_cluster(brokers=1, overrides={**SETTINGS, **patient, "broker.api.level": level.value})
    out = tmp_path / "out.json"
    chosen = ["--level", level.value, *([] if EVERY_VERSION else ["--quick"])]
    with running.running_kafka(home, jars, brokers=1, overrides={**SETTINGS, **patient}) as kafka:
        result = conformance(kafka.bootstrap_servers, cluster.bootstrap_servers, "--json", str(out), *chosen)
        served = advertised(kafka.bootstrap_servers)
    assert served == kafkas_versions(level)
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    if EVERY_VERSION and not is_newer:
        assert report["known_that_did_not_occur"] == []
    assert any(row["cases"] == [SERVED] for row in report["known_differences"])


def test_a_history_can_be_played_alone(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    broker, out = first(shared_cluster.bootstrap_servers), tmp_path / "out.json"
    result = conformance(broker, broker, "--history", "fetch-session", "--json", str(out))
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    assert (report["apis"], report["differences"], report["left_out"]) == (0, [], [])
    assert report["requests"] >= 9


@pytest.fixture(scope="module")
def ottla(new_module_cluster: ClusterFactory) -> LocalCluster:
    level = {"broker.api.level": ApiLevel.KAFKA_3_9.value}
    return new_module_cluster(brokers=3, overrides=SHARED_KAFKA_SETTINGS | SETTINGS | CALM | level)


@pytest.mark.parametrize("history", [history for history in HISTORIES if history not in OF_KAFKA_4])
@pytest.mark.parametrize("cluster", ["ottla", pytest.param("shared_kafka", marks=pytest.mark.kafka)])
def test_a_history_is_as_kafka_played_it(request: pytest.FixtureRequest, cluster: str, history: str) -> None:
    """CLI-2, CLI-3, CTL-8..12, LOG-1, BAD-25, BAD-32, BAD-33, INV-24, KIP-496: every answer is that of Kafka 3.9.1.

    With OTTLA_TEST_RECORD=1, a real Kafka's answers are written to `tests/recorded/conformance`.
    """
    servers = request.getfixturevalue(cluster).bootstrap_servers
    compare(servers, history, ApiLevel.KAFKA_3_9, records=RECORD and cluster == "shared_kafka")


@pytest.mark.parametrize("cluster", ["ottla", pytest.param("kafka", marks=pytest.mark.kafka)])
@pytest.mark.parametrize("history", OF_KAFKA_4)
def test_a_history_is_as_kafka_4_played_it(
    new_cluster: ClusterFactory, tmp_path: Path, cluster: str, history: str
) -> None:
    """TXN-6: every answer is that of Kafka 4.1.1, with a known difference. OTTLA_TEST_RECORD=1: as above."""
    if cluster == "ottla":
        ours = new_cluster(brokers=1, overrides={**SETTINGS, "broker.api.level": ApiLevel.KAFKA_4.value})
        compare(ours.bootstrap_servers, history, ApiLevel.KAFKA_4)
        return
    with running.running_kafka(tmp_path, skip_without_kafka(kraft=True), brokers=1, overrides=SETTINGS) as kafka:
        compare(kafka.bootstrap_servers, history, ApiLevel.KAFKA_4, records=RECORD)


def compare(bootstrap_servers: str, history: str, level: ApiLevel, *, records: bool = False) -> None:
    """Plays the history in the versions that ottla and Kafka have at this level."""
    ours = SERVED_AT[level]
    common = {
        ApiKey(key): VersionRange(max(ours[ApiKey(key)].min, oldest), min(ours[ApiKey(key)].max, newest))
        for key, (oldest, newest) in kafkas_versions(level).items()
        if key in ours
    }
    host, _, port = first(bootstrap_servers).rpartition(":")
    steps = json.loads(json.dumps(asyncio.run(played((host, int(port)), history, common))))
    file = RECORDED / f"{history}.json"
    if records:
        file.write_text("[\n" + ",\n".join(json.dumps(step) for step in steps) + "\n]\n")
    recorded = json.loads(file.read_text())
    found = step_differences(history, [Step(*row) for row in recorded], [Step(*row) for row in steps])
    assert sort_out(found, known_at(level)).other == []


def advertised(bootstrap_servers: str) -> dict[int, tuple[int, int]]:
    """API key -> oldest and newest version."""
    host, _, port = first(bootstrap_servers).rpartition(":")
    with Wire(int(port), host) as wire:
        body = {"client_software_name": "test", "client_software_version": "1"}
        answer = wire.call(ApiKey.API_VERSIONS, 3, body)
    return {int(row.api_key): (row.min_version, row.max_version) for row in answer.api_keys}
