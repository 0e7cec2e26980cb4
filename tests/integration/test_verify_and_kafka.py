"""`ottla verify run` against a real Kafka behind `ottla links`: Kafka 3.9 with its ZooKeeper, and Kafka 4 in KRaft mode.

The links break single requests, and `--fault-command` kills a broker, in the same run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.invariants import eventually
from tests.support.links import links_before
from tests.support.real_kafka import skip_without_kafka
from tests.support.verified import EXACTLY_ONCE, faults, verify
from tools.admin.kafka_admin import KafkaAdmin
from tools.bench.real_kafka.harm import harmable
from tools.bench.real_kafka.running import running_kafka

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

SETTINGS = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "zookeeper.session.timeout.ms": "3000",
}
"""A broker that is killed is missed soon. Each mode reads the settings that it knows."""
OPTIONS = ["--topic", "orders:4", "--topic", "invoices:4", "--no-load", "--grace", "60", "--allow", "unrecovered"]
IN_REQUESTS = (
    "answer produce of topic invoices with NOT_LEADER_OR_FOLLOWER 2 times at 1s",
    "lose the answer to end-txn once and cut at 2s",
)


@dataclass(frozen=True)
class Behind:
    """A Kafka, the directory of the links before it, and the command that harms its brokers."""

    servers: str
    links: Path
    harm: str


@pytest.fixture(scope="module", params=[False, True], ids=["3.9", "4"])
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    jars = skip_without_kafka(kraft=request.param)
    directory = tmp_path_factory.mktemp("kafka")
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("XDG_STATE_HOME", str(directory / "state"))
        running = stack.enter_context(running_kafka(directory / "kafka", jars, overrides=SETTINGS))
        links = stack.enter_context(links_before(running.bootstrap_servers, directory / "links"))
        yield Behind(running.bootstrap_servers, links, stack.enter_context(harmable(running, directory)))


def test_a_clean_program_has_no_findings_while_a_broker_is_killed(kafka: Behind, tmp_path: Path) -> None:
    named = ["--links", str(kafka.links), "--fault-command", kafka.harm]
    asked = faults(*IN_REQUESTS, "kill leader of invoices-0 at 3s", "restart it at 6s")
    verified = verify(named, tmp_path, [*asked, *OPTIONS, "--seconds", "10"], EXACTLY_ONCE)
    assert verified.exit_code == 0, verified.output
    assert {each["error"] for each in verified.found["faults"]} == {""}
    assert {each["verb"] for each in verified.found["faults"]} == {"answer", "lose", "kill", "restart"}
    assert verified.found["clients"][0]["reports"]["committed-txn"] > 10
    hit = "".join(log.read_text() for log in kafka.links.glob("broker-*/events.jsonl"))
    assert hit.count('"api":"Produce"') == 2
    assert hit.count('"api":"EndTxn"') == 1


def test_a_planted_bug_is_found(kafka: Behind, tmp_path: Path) -> None:
    """A reader of uncommitted records. The topics of an earlier test are deleted. On a slow machine, no transaction is aborted."""
    admin = KafkaAdmin(kafka.servers)
    for topic in ("orders", "invoices"):
        admin.delete_topic(topic)
    eventually(lambda: not {"orders", "invoices"} & set(admin.cluster().topics), "the topics are deleted")
    named = ["--links", str(kafka.links)]
    options = [*faults("throttle fetch by 100ms 5 times at 1s"), *OPTIONS, "--seconds", "5"]
    verified = verify(named, tmp_path, options, [*EXACTLY_ONCE, "--bug", "uncommitted"])
    assert verified.exit_code == 1, verified.output
    assert verified.count("early-read") > 0
    assert verified.failures() <= {"aborted-read", "early-read"}
